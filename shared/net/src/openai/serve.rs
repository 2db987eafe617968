//! The accept loop: connections with limits, and an end.

use super::config::Limits;
use super::counters::FrontCounters;
use super::stall::StallGuard;
use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;

/// Pause after an accept that failed, which happens when descriptors run out: trying at once would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Connections above the limit that are told so at the same time. Further ones are closed without a word.
const REFUSALS_MAX: usize = 64;
/// Time to tell it: enough for the client to send its request and read the answer.
const REFUSAL_TIME: Duration = Duration::from_secs(1);
/// Said to a connection above the limit, whatever it wants.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n\
content-length: 125\r\n\r\n{\"error\":{\"message\":\"too many open connections: try again\",\"type\":\"server_error\",\"param\":null,\
\"code\":\"too_many_connections\"}}";

/// Serves `router` on `listener` until `cancel`; then takes nothing new, lets open requests end for `limits.drain`, and cuts off the
/// rest. Owns every connection: when this future ends or is dropped, none is left.
pub async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    counters: Arc<FrontCounters>,
    cancel: CancellationToken,
) {
    let (mut connections, mut refusals) = (JoinSet::new(), JoinSet::new());
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            Some(ended) = connections.join_next() => note_panic(&ended),
            Some(ended) = refusals.join_next() => note_panic(&ended),
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) if connections.len() >= limits.connections_max => {
                    counters.connection_refused();
                    if refusals.len() < REFUSALS_MAX {
                        refusals.spawn(refuse(socket));
                    }
                }
                Ok((socket, _)) => {
                    connections.spawn(connection(socket, router.clone(), limits, Arc::clone(&counters), cancel.clone()));
                }
                Err(error) => {
                    tracing::warn!(%error, "the HTTP front cannot accept a connection");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }
    drop(listener);
    let drained = tokio::time::timeout(limits.drain, async { while connections.join_next().await.is_some() {} }).await;
    if drained.is_err() {
        tracing::warn!(open = connections.len(), "the HTTP front cuts off connections that did not end in time");
    }
    connections.shutdown().await;
}

async fn connection(socket: TcpStream, router: Router, limits: Limits, counters: Arc<FrontCounters>, cancel: CancellationToken) {
    let _open = counters.connection();
    // Tokens are small and wanted at once; without it each would wait for the client's acknowledgement.
    if let Err(error) = socket.set_nodelay(true) {
        tracing::debug!(%error, "tokens may be sent late on an HTTP connection");
    }
    let io = TokioIo::new(StallGuard::new(socket, limits.client_stall, counters));
    let serving = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header_read)
        .max_buf_size(limits.header_bytes_max)
        .serve_connection(io, TowerToHyperService::new(router));
    let mut serving = std::pin::pin!(serving);
    let ended = tokio::select! {
        ended = serving.as_mut() => ended,
        () = cancel.cancelled() => {
            serving.as_mut().graceful_shutdown();
            serving.await
        }
    };
    if let Err(error) = ended {
        // Clients that vanish, stall or send garbage: expected, counted elsewhere, and nobody else's concern.
        tracing::debug!(%error, "an HTTP connection ended early");
    }
}

/// Says that there is no room, and reads what the client has sent until it is done: closing before that would reset the connection, and
/// the client might never see the answer.
async fn refuse(mut socket: TcpStream) {
    let told = async {
        socket.write_all(FULL).await?;
        socket.shutdown().await?;
        let mut unread = [0; 4_096];
        while socket.read(&mut unread).await? > 0 {}
        std::io::Result::Ok(())
    };
    if let Ok(Err(error)) = tokio::time::timeout(REFUSAL_TIME, told).await {
        tracing::debug!(%error, "a connection above the limit could not be told so");
    }
}

fn note_panic(ended: &Result<(), JoinError>) {
    if let Err(error) = ended
        && error.is_panic()
    {
        tracing::error!(%error, "a bug: the task of an HTTP connection panicked");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_canned_answer_has_the_length_that_it_says() {
        let text = std::str::from_utf8(FULL).expect("ASCII");
        let (head, body) = text.split_once("\r\n\r\n").expect("a head and a body");
        assert!(head.contains(&format!("content-length: {}", body.len())), "{}", body.len());
        assert!(serde_json::from_str::<serde_json::Value>(body).is_ok());
    }
}
