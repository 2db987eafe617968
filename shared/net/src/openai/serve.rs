//! The accept loop: connections with limits, and an end.

use super::config::Limits;
use super::counters::FrontCounters;
use super::wire::{Gate, Patience};
use axum::Router;
use hyper::Request;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{JoinError, JoinSet};
use tokio_util::sync::CancellationToken;
use tower::ServiceExt;

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

/// Connections by the address that they come from. As many entries as connections.
#[derive(Debug, Default)]
struct Crowd(Mutex<BTreeMap<IpAddr, usize>>);

/// One connection's place in the crowd.
struct Place {
    crowd: Arc<Crowd>,
    from: IpAddr,
}

impl Crowd {
    /// A place, unless this address has as many as it may.
    fn enter(self: &Arc<Self>, address: IpAddr, most: usize) -> Option<Place> {
        let from = household(address);
        let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(from).or_default();
        if *count >= most {
            return None;
        }
        *count += 1;
        Some(Place { crowd: Arc::clone(self), from })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut counts = self.crowd.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.from) {
            *count -= 1;
            if *count == 0 {
                counts.remove(&self.from);
            }
        }
    }
}

/// One machine has one IPv4 address, and all of an IPv6 network of 64 bits.
fn household(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6(Ipv6Addr::from_bits(address.to_bits() & !u128::from(u64::MAX))),
        address => address,
    }
}

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
    let crowd = Arc::new(Crowd::default());
    loop {
        tokio::select! {
            biased;
            () = cancel.cancelled() => break,
            Some(ended) = connections.join_next() => note_panic(&ended),
            Some(ended) = refusals.join_next() => note_panic(&ended),
            accepted = listener.accept() => match accepted {
                Ok((socket, peer)) => {
                    let room = connections.len() < limits.connections_max;
                    match crowd.enter(peer.ip(), limits.connections_per_peer_max).filter(|_| room) {
                        Some(place) => {
                            let link = Link { address: peer.ip(), limits, counters: Arc::clone(&counters), _place: place };
                            connections.spawn(link.serve(socket, router.clone(), cancel.clone()));
                        }
                        None => {
                            counters.connection_refused();
                            counters.note_refusal(&peer.ip().to_string(), "too_many_connections");
                            if refusals.len() < REFUSALS_MAX {
                                refusals.spawn(refuse(socket));
                            }
                        }
                    }
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

/// One connection.
struct Link {
    address: IpAddr,
    limits: Limits,
    counters: Arc<FrontCounters>,
    _place: Place,
}

impl Link {
    async fn serve(self, socket: TcpStream, router: Router, cancel: CancellationToken) {
        let _open = self.counters.connection();
        // Tokens are small and wanted at once; without it each would wait for the client's acknowledgement.
        if let Err(error) = socket.set_nodelay(true) {
            tracing::debug!(%error, "tokens may be sent late on an HTTP connection");
        }
        let Limits { header_bytes_max, header_read, idle, client_stall, .. } = self.limits;
        let patience = Patience { header_bytes_max, header_read, idle, stall: client_stall };
        let gate = Gate::new(socket, self.address, patience, Arc::clone(&self.counters));
        let peer = gate.peer();
        let service = service_fn(move |mut request: Request<Incoming>| {
            request.extensions_mut().insert(Arc::clone(&peer));
            router.clone().oneshot(request)
        });
        // Heads come whole through the gate, which has their clock; and a client that has ended its side still wants its answer.
        let serving =
            http1::Builder::new().half_close(true).max_buf_size(header_bytes_max).serve_connection(TokioIo::new(gate), service);
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

    #[test]
    fn a_household_has_so_many_places_and_gives_them_back() {
        let crowd = Arc::new(Crowd::default());
        let address = |text: &str| text.parse::<IpAddr>().expect("an address");
        let held: Vec<_> = (0..2).filter_map(|_| crowd.enter(address("10.0.0.1"), 2)).collect();
        assert!(held.len() == 2 && crowd.enter(address("::ffff:10.0.0.1"), 2).is_none());
        assert!(crowd.enter(address("10.0.0.2"), 2).is_some());
        drop(held);
        assert!(crowd.0.lock().expect("no panic").is_empty());
        let _one = crowd.enter(address("2001:db8::1"), 1).expect("room");
        assert!(crowd.enter(address("2001:db8::2"), 1).is_none() && crowd.enter(address("2001:db8:0:1::1"), 1).is_some());
    }
}
