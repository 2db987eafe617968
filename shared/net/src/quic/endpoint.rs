//! One UDP socket that listens and dials.

use super::limits::{self, CONNECTIONS_MAX, DIAL_TIME_MAX, HANDSHAKES_MAX, JOIN_TIME_MAX, JOINERS_MAX};
use super::link::{Code, Link};
use super::reset::ResetSecret;
use crate::tls::{self, Admit, CertClock, Identity, SERVER_NAME, TlsError};
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, ConnectionError, ServerConfig};
use shared::ids::NodeId;
use shared::wire::ALPN;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::JoinSet;
use tokio::time::timeout;

/// What went wrong with a connection.
#[derive(Debug, thiserror::Error)]
pub enum QuicError {
    /// The socket could not be opened.
    #[error("listening on UDP {address}: want a free port of an own address")]
    Bind {
        /// The wanted address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A name has no address.
    #[error("looking up `{address}`: want `host:port`")]
    Resolve {
        /// What was looked up.
        address: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The identity is of no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The endpoint cannot dial there.
    #[error("dialling {address}: {why}")]
    Dial {
        /// Where.
        address: String,
        /// Why not.
        why: String,
    },
    /// Nobody answered in time.
    #[error("no answer from {0} within {s} seconds", s = DIAL_TIME_MAX.as_secs())]
    Silent(String),
    /// The other end speaks something else.
    #[error("the other end does not speak `{}`", String::from_utf8_lossy(ALPN))]
    Protocol,
    /// The connection has ended.
    #[error("connection ended: {0}")]
    Lost(#[from] ConnectionError),
}

/// The addresses of `host:port`.
///
/// # Errors
/// [`QuicError::Resolve`] when there is none.
pub async fn resolve(address: &str) -> Result<Vec<SocketAddr>, QuicError> {
    let failed = |source| QuicError::Resolve { address: address.to_owned(), source };
    let found: Vec<SocketAddr> = tokio::net::lookup_host(address).await.map_err(failed)?.collect();
    if found.is_empty() { Err(failed(io::Error::new(io::ErrorKind::NotFound, "no address"))) } else { Ok(found) }
}

/// A socket with an identity. Clones share it.
#[derive(Clone, Debug)]
pub struct Endpoint {
    inner: quinn::Endpoint,
    clock: CertClock,
    /// Handshakes of others that began and failed.
    failed: Arc<AtomicU64>,
    listening: Option<Arc<Listening>>,
}

#[derive(Debug)]
struct Listening {
    admit: Admit,
    identity: RwLock<Identity>,
}

impl Endpoint {
    /// Opens a socket at `listen` (port 0 takes a free one) for a member that dials and listens.
    ///
    /// # Errors
    /// [`QuicError::Bind`] or [`QuicError::Tls`].
    pub fn bind(
        listen: SocketAddr,
        identity: &Identity,
        admit: Admit,
        clock: &CertClock,
        secret: &ResetSecret,
    ) -> Result<Self, QuicError> {
        let server = server_config(identity, admit, clock)?;
        let inner = open(listen, secret, Some(server))?;
        let listening = Some(Arc::new(Listening { admit, identity: RwLock::new(identity.clone()) }));
        Ok(Self { inner, clock: clock.clone(), failed: Arc::default(), listening })
    }

    /// A socket that only dials, for a machine that has no identity yet.
    ///
    /// # Errors
    /// [`QuicError::Bind`].
    pub fn nameless(local: SocketAddr, clock: &CertClock) -> Result<Self, QuicError> {
        let inner = open(local, &ResetSecret::random(), None)?;
        Ok(Self { inner, clock: clock.clone(), failed: Arc::default(), listening: None })
    }

    /// Where it listens.
    ///
    /// # Errors
    /// [`QuicError::Dial`] when the system does not say.
    pub fn local_addr(&self) -> Result<SocketAddr, QuicError> {
        self.inner.local_addr().map_err(|error| QuicError::Dial { address: "own socket".to_owned(), why: error.to_string() })
    }

    /// Connections of others that did not come about: failed handshakes, and those for which there was no place. Datagrams that
    /// are no handshake at all are not counted.
    #[must_use]
    pub fn refused(&self) -> u64 {
        let stats = self.inner.stats();
        self.failed.load(Ordering::Relaxed) + stats.refused_handshakes + stats.ignored_handshakes
    }

    /// Uses a renewed identity from now on; open connections stay.
    ///
    /// # Errors
    /// [`QuicError::Tls`] when it is of no use; the older one then stays.
    pub fn set_identity(&self, identity: &Identity) -> Result<(), QuicError> {
        let Some(listening) = &self.listening else { return Ok(()) };
        let server = server_config(identity, listening.admit, &self.clock)?;
        self.inner.set_server_config(Some(server));
        *listening.identity.write().unwrap_or_else(PoisonError::into_inner) = identity.clone();
        Ok(())
    }

    /// Dials the member `expected` at an address. Anybody else who answers there is refused.
    ///
    /// # Errors
    /// [`QuicError`] when it does not answer, or is another.
    pub async fn connect(&self, address: SocketAddr, expected: &NodeId) -> Result<Link, QuicError> {
        let Some(listening) = &self.listening else {
            return Err(QuicError::Dial { address: address.to_string(), why: "this machine has not joined a fleet".to_owned() });
        };
        let identity = listening.identity.read().unwrap_or_else(PoisonError::into_inner).clone();
        let config = tls::client_config(&identity, &self.clock, expected, ALPN)?;
        self.dial(address, config).await
    }

    /// Dials the hub of the fleet whose authority has this SHA-256, without a certificate.
    ///
    /// # Errors
    /// [`QuicError`] when it does not answer, or is another.
    pub async fn connect_to_join(&self, address: SocketAddr, authority_sha256: &str) -> Result<Link, QuicError> {
        self.dial(address, tls::joining_config(authority_sha256, &self.clock, ALPN)?).await
    }

    async fn dial(&self, address: SocketAddr, config: rustls::ClientConfig) -> Result<Link, QuicError> {
        let failed = |why: String| QuicError::Dial { address: address.to_string(), why };
        let crypto = QuicClientConfig::try_from(config).map_err(|error| failed(error.to_string()))?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(limits::dialled());
        let connecting = self.inner.connect_with(config, address, SERVER_NAME).map_err(|error| failed(error.to_string()))?;
        let connection = timeout(DIAL_TIME_MAX, connecting).await.map_err(|_| QuicError::Silent(address.to_string()))??;
        established(connection, None)
    }

    /// Takes connections. One acceptor an endpoint: two would share what comes.
    #[must_use]
    pub fn acceptor(&self) -> Acceptor {
        Acceptor {
            endpoint: self.inner.clone(),
            failed: Arc::clone(&self.failed),
            tasks: JoinSet::new(),
            places: Arc::new(Semaphore::new(CONNECTIONS_MAX)),
            strangers: Arc::new(Semaphore::new(JOINERS_MAX)),
        }
    }

    /// Closes every connection and waits until the other ends were told, at most `limit`.
    pub async fn close(&self, code: Code, why: &str, limit: std::time::Duration) {
        self.inner.close(code.to_quinn(), why.as_bytes());
        // Whoever has not heard by then will see silence or a reset.
        drop(timeout(limit, self.inner.wait_idle()).await);
    }
}

fn open(local: SocketAddr, secret: &ResetSecret, server: Option<ServerConfig>) -> Result<quinn::Endpoint, QuicError> {
    let failed = |source| QuicError::Bind { address: local, source };
    let socket = UdpSocket::bind(local).map_err(failed)?;
    let runtime = Arc::new(quinn::TokioRuntime);
    quinn::Endpoint::new(secret.endpoint_config(), server, socket, runtime).map_err(failed)
}

fn server_config(identity: &Identity, admit: Admit, clock: &CertClock) -> Result<ServerConfig, QuicError> {
    let crypto = QuicServerConfig::try_from(tls::server_config(identity, clock, admit, ALPN)?)
        .map_err(|error| TlsError::Unreadable(error.to_string()))?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    limits::limit_incoming(&mut config);
    config.transport_config(limits::accepted());
    Ok(config)
}

fn established(connection: quinn::Connection, place: Option<OwnedSemaphorePermit>) -> Result<Link, QuicError> {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    if data.and_then(|data| data.protocol).as_deref() != Some(ALPN) {
        connection.close(Code::PROTOCOL.to_quinn(), b"unknown protocol");
        return Err(QuicError::Protocol);
    }
    Link::new(connection, place)
}

/// Carries out handshakes side by side, so that a slow one holds up nobody. Dropping it ends the handshakes under way.
#[derive(Debug)]
pub struct Acceptor {
    endpoint: quinn::Endpoint,
    failed: Arc<AtomicU64>,
    /// Handshakes, and the timers of clients without a certificate.
    tasks: JoinSet<Option<Link>>,
    places: Arc<Semaphore>,
    strangers: Arc<Semaphore>,
}

impl Acceptor {
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
                incoming = self.endpoint.accept() => self.begin(incoming?),
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
        self.tasks.spawn(handshake(incoming, place, Arc::clone(&self.failed)));
    }

    /// Clients without a certificate get few places and little time.
    fn admit(&mut self, link: Link) -> Option<Link> {
        if link.peer().is_some() {
            return Some(link);
        }
        let Ok(place) = Arc::clone(&self.strangers).try_acquire_owned() else {
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

async fn handshake(incoming: quinn::Incoming, place: OwnedSemaphorePermit, failed: Arc<AtomicU64>) -> Option<Link> {
    let address = incoming.remote_address();
    let connected =
        async { Ok(timeout(DIAL_TIME_MAX, incoming.accept()?).await.map_err(|_| QuicError::Silent(address.to_string()))??) };
    match connected.await.and_then(|connection| established(connection, Some(place))) {
        Ok(link) => Some(link),
        Err(why) => {
            failed.fetch_add(1, Ordering::Relaxed);
            tracing::debug!(%address, %why, "handshake failed");
            None
        }
    }
}
