//! Taking connections of both transports.

use super::connection::{Code, Link};
use super::endpoint::{Endpoint, established};
use super::limits::{CONNECTIONS_MAX, DIAL_TIME_MAX, HANDSHAKES_MAX, JOIN_TIME_MAX, JOINERS_MAX, TCP_HANDSHAKES_MAX};
use super::lost::LinkError;
use shared::fleet::Transport;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

/// How long no TCP connections are taken after the system could not give one, for want of descriptors, say.
const PAUSE: Duration = Duration::from_millis(100);

/// Carries out handshakes side by side, so that a slow one holds up nobody. Dropping it ends the handshakes under way.
#[derive(Debug)]
pub struct Acceptor {
    endpoint: Endpoint,
    /// Handshakes, and the timers of clients without a certificate.
    tasks: JoinSet<Option<Link>>,
    places: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
    tcp_handshakes: Arc<Semaphore>,
    /// Until when no TCP connections are taken.
    paused: Instant,
}

impl Acceptor {
    pub(super) fn new(endpoint: Endpoint) -> Self {
        Self {
            endpoint,
            tasks: JoinSet::new(),
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            strangers: Arc::new(Semaphore::new(JOINERS_MAX)),
            tcp_handshakes: Arc::new(Semaphore::new(TCP_HANDSHAKES_MAX)),
            paused: Instant::now(),
        }
    }

    /// The next established connection; `None` once the endpoint is closed. Cancel-safe. Strangers' failures are logged at debug
    /// level only: anybody can send garbage.
    pub async fn next(&mut self) -> Option<Link> {
        loop {
            tokio::select! {
                biased;
                Some(done) = self.tasks.join_next() => {
                    if let Ok(Some(link)) = done && let Some(link) = self.admit(link) {
                        return Some(link);
                    }
                }
                incoming = self.endpoint.udp.accept() => self.begin(incoming?),
                connected = tcp(&self.endpoint, self.paused) => match connected {
                    Ok((socket, remote)) => self.begin_tcp(socket, remote),
                    Err(error) => {
                        tracing::debug!(%error, "a TCP connection could not be taken");
                        self.paused = Instant::now() + PAUSE;
                    }
                },
            }
        }
    }

    fn begin(&mut self, incoming: quinn::Incoming) {
        let busy = self.tasks.len();
        let Ok(place) = Arc::clone(&self.places).try_acquire_owned() else { return incoming.refuse() };
        if busy >= HANDSHAKES_MAX + JOINERS_MAX {
            return incoming.refuse();
        }
        if busy >= HANDSHAKES_MAX / 2 && incoming.may_retry() && !incoming.remote_address_validated() {
            // Fails only when a retry is impossible, which was just asked.
            return drop(incoming.retry());
        }
        let address = incoming.remote_address();
        let endpoint = self.endpoint.clone();
        self.tasks.spawn(async move { endpoint.told(address, quic(incoming, address, place).await) });
    }

    /// Hangs up where there is no place: the client tries again.
    fn begin_tcp(&mut self, socket: TcpStream, remote: SocketAddr) {
        let handshake = Arc::clone(&self.tcp_handshakes).try_acquire_owned();
        let (Ok(place), Ok(handshake)) = (Arc::clone(&self.places).try_acquire_owned(), handshake) else {
            self.endpoint.refusals.note("link", "no_place", &remote.ip().to_string());
            return;
        };
        let endpoint = self.endpoint.clone();
        self.tasks.spawn(async move {
            let hosted = endpoint.clone().host_tcp(socket, remote, place).await;
            drop(handshake);
            endpoint.told(remote, hosted)
        });
    }

    /// Clients without a certificate get few places and little time.
    fn admit(&mut self, link: Link) -> Option<Link> {
        if link.peer().is_some() {
            return Some(link);
        }
        let Ok(place) = Arc::clone(&self.strangers).try_acquire_owned() else {
            self.endpoint.refusals.note("link", "too_many_join", &link.address().ip().to_string());
            link.close(Code::BUSY, "too many join at a time");
            return None;
        };
        let watched = link.clone();
        self.tasks.spawn(async move {
            if timeout(JOIN_TIME_MAX, watched.closed()).await.is_err() {
                watched.close(Code::FORBIDDEN, "join and come back with a certificate");
            }
            drop(place);
            None
        });
        Some(link)
    }
}

impl Endpoint {
    fn told(&self, address: SocketAddr, shaken: Result<Link, LinkError>) -> Option<Link> {
        match shaken {
            Ok(link) => Some(link),
            Err(why) => {
                self.refusals.note("link", "handshake", &address.ip().to_string());
                tracing::debug!(%address, %why, "handshake failed");
                None
            }
        }
    }
}

async fn quic(incoming: quinn::Incoming, address: SocketAddr, place: OwnedSemaphorePermit) -> Result<Link, LinkError> {
    let silent = |_| LinkError::Silent { address: address.to_string(), by: Transport::Quic };
    let connection = timeout(DIAL_TIME_MAX, incoming.accept()?).await.map_err(silent)??;
    established(connection, Some(place))
}

async fn tcp(endpoint: &Endpoint, paused: Instant) -> io::Result<(TcpStream, SocketAddr)> {
    let Some(listening) = &endpoint.listening else { return std::future::pending().await };
    sleep_until(paused).await;
    listening.tcp.accept().await
}
