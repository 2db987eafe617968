//! One port of UDP and TCP that listens and dials.

use super::connection::{Code, Link};
use super::limits::{self, DIAL_TIME_MAX};
use super::listen::Acceptor;
use super::lost::LinkError;
use super::reset::ResetSecret;
use super::tcp::{self, End};
use crate::host::Refusals;
use crate::tls::{self, Admit, CertClock, Identity, SERVER_NAME, TlsError};
use quinn::crypto::rustls::{HandshakeData, QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, ServerConfig};
use rustls::pki_types::ServerName;
use shared::fleet::Transport;
use shared::ids::NodeId;
use shared::wire::ALPN;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::{Arc, Mutex, PoisonError, RwLock, Weak};
use std::time::Duration;
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::timeout;
use tokio_rustls::{TlsAcceptor, TlsConnector, TlsStream};
use tokio_util::task::TaskTracker;

/// Bytes that the system keeps for sending on a TCP connection: fills 100 ms at 20 Mbit/s. With the system's own choice, which
/// grows to megabytes, a cancel on a slow link would stand behind seconds of tokens.
const TCP_SEND_BYTES: u32 = 256 * 1024;
/// TCP connections that wait to be looked at; the system ignores more, and clients try again.
const TCP_BACKLOG: u32 = 1_024;
/// How often a port that is free for both UDP and TCP is looked for, where any port will do.
const PORT_TRIES_MAX: usize = 32;

/// The addresses of `host:port`.
///
/// # Errors
/// [`LinkError::Resolve`] when there is none.
pub async fn resolve(address: &str) -> Result<Vec<SocketAddr>, LinkError> {
    let failed = |source| LinkError::Resolve { address: address.to_owned(), source };
    let found: Vec<SocketAddr> = tokio::net::lookup_host(address).await.map_err(failed)?.collect();
    if found.is_empty() { Err(failed(io::Error::new(io::ErrorKind::NotFound, "no address"))) } else { Ok(found) }
}

/// Sockets with an identity. Clones share them.
#[derive(Clone, Debug)]
pub struct Endpoint {
    pub(super) udp: quinn::Endpoint,
    clock: CertClock,
    /// Handshakes of others that began and failed.
    pub(super) refusals: Arc<Refusals>,
    pub(super) listening: Option<Arc<Listening>>,
    running: Arc<Running>,
}

#[derive(Debug)]
pub(super) struct Listening {
    admit: Admit,
    identity: RwLock<Identity>,
    pub(super) tcp: TcpListener,
    tls: RwLock<Arc<rustls::ServerConfig>>,
}

/// The TCP connections, each driven by a task of this endpoint. QUIC's are quinn's.
#[derive(Debug, Default)]
struct Running {
    tasks: TaskTracker,
    open: Mutex<Vec<Weak<tcp::Shared>>>,
}

impl Running {
    fn begin(&self, tls: TlsStream<TcpStream>, remote: SocketAddr, end: End) -> tcp::Connection {
        let (connection, driving) = tcp::Connection::new(tls, remote, end);
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.retain(|old| old.strong_count() > 0);
        open.push(connection.downgrade());
        drop(self.tasks.spawn(driving));
        connection
    }

    async fn close(&self, code: Code, why: &str) {
        let open = std::mem::take(&mut *self.open.lock().unwrap_or_else(PoisonError::into_inner));
        open.iter().filter_map(Weak::upgrade).for_each(|connection| connection.close(code, why));
        self.tasks.close();
        self.tasks.wait().await;
    }
}

impl Endpoint {
    /// Opens sockets for UDP and TCP at `listen` (port 0 takes one that is free for both) for a member that dials and listens.
    ///
    /// # Errors
    /// [`LinkError::Bind`] or [`LinkError::Tls`].
    pub fn bind(
        listen: SocketAddr,
        identity: &Identity,
        admit: Admit,
        clock: &CertClock,
        secret: &ResetSecret,
    ) -> Result<Self, LinkError> {
        let (server, tls) = server_configs(identity, admit, clock)?;
        let (datagrams, tcp) = sockets(listen).map_err(|source| LinkError::Bind { address: listen, source })?;
        let udp = open(listen, datagrams, secret, Some(server))?;
        let listening = Listening { admit, identity: RwLock::new(identity.clone()), tcp, tls: RwLock::new(tls) };
        let (listening, refusals, running) = (Some(Arc::new(listening)), Arc::default(), Arc::default());
        Ok(Self { udp, clock: clock.clone(), refusals, listening, running })
    }

    /// Sockets that only dial, for a machine that has no identity yet.
    ///
    /// # Errors
    /// [`LinkError::Bind`].
    pub fn nameless(local: SocketAddr, clock: &CertClock) -> Result<Self, LinkError> {
        let socket = UdpSocket::bind(local).map_err(|source| LinkError::Bind { address: local, source })?;
        let udp = open(local, socket, &ResetSecret::random(), None)?;
        Ok(Self { udp, clock: clock.clone(), refusals: Arc::default(), listening: None, running: Arc::default() })
    }

    /// Where it listens, on UDP and TCP alike.
    ///
    /// # Errors
    /// [`LinkError::Dial`] when the system does not say.
    pub fn local_addr(&self) -> Result<SocketAddr, LinkError> {
        self.udp.local_addr().map_err(|error| LinkError::Dial { address: "own socket".to_owned(), why: error.to_string() })
    }

    /// Connections of others that did not come about: failed handshakes, and those for which there was no place. Datagrams that
    /// are no handshake at all are not counted.
    #[must_use]
    pub fn refused(&self) -> u64 {
        let stats = self.udp.stats();
        self.refusals.total() + stats.refused_handshakes + stats.ignored_handshakes
    }

    /// The same, without those that were refused for want of a place before anything of them was read, by reason.
    #[must_use]
    pub fn refusals(&self) -> Arc<Refusals> {
        Arc::clone(&self.refusals)
    }

    /// Uses a renewed identity from now on; open connections stay.
    ///
    /// # Errors
    /// [`LinkError::Tls`] when it is of no use; the older one then stays.
    pub fn set_identity(&self, identity: &Identity) -> Result<(), LinkError> {
        let Some(listening) = &self.listening else { return Ok(()) };
        let (server, tls) = server_configs(identity, listening.admit, &self.clock)?;
        self.udp.set_server_config(Some(server));
        *listening.tls.write().unwrap_or_else(PoisonError::into_inner) = tls;
        *listening.identity.write().unwrap_or_else(PoisonError::into_inner) = identity.clone();
        Ok(())
    }

    /// Dials the member `expected` at an address. Anybody else who answers there is refused.
    ///
    /// # Errors
    /// [`LinkError`] when it does not answer, or is another.
    pub async fn connect(&self, address: SocketAddr, expected: &NodeId, by: Transport) -> Result<Link, LinkError> {
        let Some(listening) = &self.listening else {
            return Err(LinkError::Dial { address: address.to_string(), why: "this machine has not joined a fleet".to_owned() });
        };
        let identity = listening.identity.read().unwrap_or_else(PoisonError::into_inner).clone();
        let config = tls::client_config(&identity, &self.clock, expected, ALPN)?;
        self.dial(address, config, by, End::Dialler).await
    }

    /// Dials the hub of the fleet whose authority has this SHA-256, without a certificate.
    ///
    /// # Errors
    /// [`LinkError`] when it does not answer, or is another.
    pub async fn connect_to_join(&self, address: SocketAddr, authority_sha256: &str, by: Transport) -> Result<Link, LinkError> {
        self.dial(address, tls::joining_config(authority_sha256, &self.clock, ALPN)?, by, End::Joiner).await
    }

    async fn dial(&self, address: SocketAddr, config: rustls::ClientConfig, by: Transport, end: End) -> Result<Link, LinkError> {
        let dialled = async {
            match by {
                Transport::Quic => self.dial_quic(address, config).await,
                Transport::Tcp => self.dial_tcp(address, config, end).await,
            }
        };
        let silent = |_| LinkError::Silent { address: address.to_string(), by };
        timeout(DIAL_TIME_MAX, dialled).await.map_err(silent)?
    }

    async fn dial_quic(&self, address: SocketAddr, config: rustls::ClientConfig) -> Result<Link, LinkError> {
        let failed = |why: String| LinkError::Dial { address: address.to_string(), why };
        let crypto = QuicClientConfig::try_from(config).map_err(|error| failed(error.to_string()))?;
        let mut config = ClientConfig::new(Arc::new(crypto));
        config.transport_config(limits::dialled());
        let connecting = self.udp.connect_with(config, address, SERVER_NAME).map_err(|error| failed(error.to_string()))?;
        established(connecting.await?, None)
    }

    async fn dial_tcp(&self, address: SocketAddr, config: rustls::ClientConfig, end: End) -> Result<Link, LinkError> {
        let failed = |error: io::Error| LinkError::Dial { address: address.to_string(), why: error.to_string() };
        let name = ServerName::try_from(SERVER_NAME).map_err(|error| failed(io::Error::other(error)))?;
        let socket = self.tcp_socket_towards(address).map_err(failed)?.connect(address).await.map_err(failed)?;
        let tls = TlsConnector::from(Arc::new(config)).connect(name, socket).await.map_err(failed)?;
        self.established_tcp(tls.into(), address, None, |_| end)
    }

    /// From the same own address as datagrams, where one was configured.
    fn tcp_socket_towards(&self, address: SocketAddr) -> io::Result<TcpSocket> {
        let (socket, own) = (tcp_socket(address)?, self.udp.local_addr()?.ip());
        if !own.is_unspecified() && own.is_ipv4() == address.is_ipv4() {
            socket.bind(SocketAddr::new(own, 0))?;
        }
        Ok(socket)
    }

    /// Shakes hands with whoever connected.
    pub(super) async fn host_tcp(
        self,
        socket: TcpStream,
        remote: SocketAddr,
        place: OwnedSemaphorePermit,
    ) -> Result<Link, LinkError> {
        let failed = |error: io::Error| LinkError::Dial { address: remote.to_string(), why: error.to_string() };
        let Some(listening) = &self.listening else { return Err(failed(io::ErrorKind::Unsupported.into())) };
        socket.set_nodelay(true).map_err(failed)?;
        let config = Arc::clone(&listening.tls.read().unwrap_or_else(PoisonError::into_inner));
        let accepting = timeout(DIAL_TIME_MAX, TlsAcceptor::from(config).accept(socket)).await;
        let tls =
            accepting.map_err(|_| LinkError::Silent { address: remote.to_string(), by: Transport::Tcp })?.map_err(failed)?;
        self.established_tcp(tls.into(), remote, Some(place), |member| if member { End::Host } else { End::HostOfJoiner })
    }

    fn established_tcp(
        &self,
        tls: TlsStream<TcpStream>,
        remote: SocketAddr,
        place: Option<OwnedSemaphorePermit>,
        end: impl FnOnce(bool) -> End,
    ) -> Result<Link, LinkError> {
        let session = tls.get_ref().1;
        if session.alpn_protocol() != Some(ALPN) {
            return Err(LinkError::Protocol);
        }
        let chain = session.peer_certificates().map(<[_]>::to_vec);
        Link::tcp(chain.as_deref(), place, |member| self.running.begin(tls, remote, end(member)))
    }

    /// Takes connections. One acceptor an endpoint: two would share what comes.
    #[must_use]
    pub fn acceptor(&self) -> Acceptor {
        Acceptor::new(self.clone())
    }

    /// Closes every connection and waits until the other ends were told, at most `limit`.
    pub async fn close(&self, code: Code, why: &str, limit: Duration) {
        self.udp.close(code.to_quinn(), why.as_bytes());
        let told = async { tokio::join!(self.udp.wait_idle(), self.running.close(code, why)) };
        // Whoever has not heard by then will see silence or a reset.
        drop(timeout(limit, told).await);
    }
}

/// UDP and TCP of one port.
fn sockets(listen: SocketAddr) -> io::Result<(UdpSocket, TcpListener)> {
    let tries = if listen.port() == 0 { PORT_TRIES_MAX } else { 1 };
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for _ in 0..tries {
        let datagrams = UdpSocket::bind(listen)?;
        match listener(datagrams.local_addr()?) {
            Ok(listener) => return Ok((datagrams, listener)),
            Err(error) => last = error,
        }
    }
    Err(last)
}

fn listener(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = tcp_socket(address)?;
    // A restarted program finds connections of its last life in their last wait.
    #[cfg(unix)]
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(TCP_BACKLOG)
}

fn tcp_socket(towards: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if towards.is_ipv4() { TcpSocket::new_v4() } else { TcpSocket::new_v6() }?;
    socket.set_nodelay(true)?;
    socket.set_send_buffer_size(TCP_SEND_BYTES)?;
    Ok(socket)
}

fn open(
    local: SocketAddr,
    socket: UdpSocket,
    secret: &ResetSecret,
    server: Option<ServerConfig>,
) -> Result<quinn::Endpoint, LinkError> {
    let runtime = Arc::new(quinn::TokioRuntime);
    let opened = quinn::Endpoint::new(secret.endpoint_config(), server, socket, runtime);
    opened.map_err(|source| LinkError::Bind { address: local, source })
}

fn server_configs(
    identity: &Identity,
    admit: Admit,
    clock: &CertClock,
) -> Result<(ServerConfig, Arc<rustls::ServerConfig>), TlsError> {
    let tls = Arc::new(tls::server_config(identity, clock, admit, ALPN)?);
    let crypto = QuicServerConfig::try_from(Arc::clone(&tls)).map_err(|error| TlsError::Unreadable(error.to_string()))?;
    let mut config = ServerConfig::with_crypto(Arc::new(crypto));
    limits::limit_incoming(&mut config);
    config.transport_config(limits::accepted());
    Ok((config, tls))
}

pub(super) fn established(connection: quinn::Connection, place: Option<OwnedSemaphorePermit>) -> Result<Link, LinkError> {
    let data = connection.handshake_data().and_then(|data| data.downcast::<HandshakeData>().ok());
    if data.and_then(|data| data.protocol).as_deref() != Some(ALPN) {
        connection.close(Code::PROTOCOL.to_quinn(), b"unknown protocol");
        return Err(LinkError::Protocol);
    }
    Link::quic(connection, place)
}
