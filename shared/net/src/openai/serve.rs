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
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

/// Pause after an accept that failed, which happens when descriptors run out: trying at once would only burn a core.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Said to a connection above the limit, without reading what it wants.
const FULL: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: application/json\r\nretry-after: 1\r\nconnection: close\r\n\
content-length: 124\r\n\r\n{\"error\":{\"message\":\"too many open connections: try again\",\"type\":\"server_error\",\"param\":null,\
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
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            Some(_) = connections.join_next() => {}
            accepted = listener.accept() => match accepted {
                Ok((socket, _)) if connections.len() >= limits.connections_max => refuse(&socket, &counters),
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
    let nodelay = socket.set_nodelay(true);
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
    if let Err(error) = nodelay.map_err(|error| error.to_string()).and(ended.map_err(|error| error.to_string())) {
        // Clients that vanish, stall or send garbage: expected, counted elsewhere, and nobody else's concern.
        tracing::debug!(error, "an HTTP connection ended early");
    }
}

/// A fresh socket's buffer is empty, so this does not wait; what does not fit is not worth waiting for.
fn refuse(socket: &TcpStream, counters: &FrontCounters) {
    counters.connection_refused();
    if let Err(error) = socket.try_write(FULL) {
        tracing::debug!(%error, "a connection above the limit could not be told so");
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
