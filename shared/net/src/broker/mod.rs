//! The MQTT broker inside the hub.
//!
//! Our own accept loop in front of the crate `mqtt5`: its ready-made server lets one silent socket block the port, cannot be
//! held to TLS 1.3, and never shows the certificate to the access rules. Here each connection gets one handler of that crate
//! with rights made from its certificate. Never here: plain text, a client without a certificate, a right that comes from
//! anything that a client says about itself.

mod accept;
mod limits;
mod rights;
mod waiting;

pub use limits::{CLIENTS_MAX, HANDSHAKE_TIME_MAX};
pub use rights::Admission;

use crate::host::{NotStopped, Refusals, Tasks};
use crate::tls::{self, Admit, CertClock, Identity, TlsError};
use accept::Acceptor;
use mqtt5::broker::resource_monitor::ResourceMonitor;
use mqtt5::broker::router::MessageRouter;
use mqtt5::broker::storage::QueueLimits;
use mqtt5::broker::sys_topics::BrokerStats;
use mqtt5::broker::{DynamicStorage, FileBackend};
use shared::ids::NodeId;
use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::broadcast;
use tokio_rustls::TlsAcceptor;

/// How often what has expired is thrown away.
const SWEEP_PERIOD: Duration = Duration::from_secs(60);

/// Where the broker listens and what it keeps.
#[derive(Clone, Debug)]
pub struct BrokerSettings {
    /// Port 0 takes a free one.
    pub listen: SocketAddr,
    /// Folder of the retained messages; made where there is none.
    pub store: PathBuf,
    /// Who the hub is: that identity may do everything under our prefix.
    pub hub: NodeId,
}

/// Why there is no broker.
#[derive(Debug, thiserror::Error)]
pub enum BrokerError {
    /// The port could not be opened.
    #[error("listening on TCP {address} for MQTT: want a free port of an own address")]
    Bind {
        /// The wanted address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// The identity is of no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The retained messages could not be read.
    #[error("opening the store of retained messages `{folder}`: {why}")]
    Store {
        /// Which folder.
        folder: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// What all connections share.
pub(crate) struct Inner {
    pub(crate) hub: NodeId,
    pub(crate) admission: Arc<dyn Admission>,
    pub(crate) config: Arc<mqtt5::broker::BrokerConfig>,
    pub(crate) router: Arc<MessageRouter>,
    pub(crate) stats: Arc<BrokerStats>,
    pub(crate) resources: Arc<ResourceMonitor>,
    pub(crate) acceptor: RwLock<TlsAcceptor>,
    pub(crate) clients: Mutex<BTreeMap<u64, Client>>,
    next_client: AtomicU64,
    /// From the beginning of a stop on, nothing is published any more: otherwise the last wills of all clients would be kept,
    /// and after a restart the whole fleet would read as gone.
    pub(crate) stopping: AtomicBool,
    /// See [`Broker::refused`] and [`Broker::forbidden`].
    pub(crate) refusals: Arc<Refusals>,
}

/// The reason of a refusal to publish or subscribe.
pub(crate) const TOPIC: &str = "topic";

/// One connection.
pub(crate) struct Client {
    node: NodeId,
    end: broadcast::Sender<()>,
}

impl Inner {
    /// Notes a connection; its handler ends when the receiver hears something.
    pub(crate) fn enter(&self, node: &NodeId) -> (u64, broadcast::Receiver<()>) {
        let (end, ended) = broadcast::channel(1);
        let number = self.next_client.fetch_add(1, Ordering::Relaxed);
        let mut clients = self.clients();
        if self.stopping.load(Ordering::Acquire) {
            // It came between the beginning of a stop and the end of its own handshake. The receiver is in our hand: it hears.
            drop(end.send(()));
        }
        clients.insert(number, Client { node: node.clone(), end });
        (number, ended)
    }

    pub(crate) fn leave(&self, number: u64) {
        self.clients().remove(&number);
    }

    fn clients(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Client>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self, which: impl Fn(&NodeId) -> bool) -> usize {
        let clients = self.clients();
        let ending = clients.values().filter(|client| which(&client.node));
        // A handler that is already gone hears nothing, and needs not.
        ending.map(|client| drop(client.end.send(()))).count()
    }
}

/// A running broker.
pub struct Broker {
    inner: Arc<Inner>,
    tasks: Tasks,
    address: SocketAddr,
    storage: Arc<DynamicStorage>,
    clock: CertClock,
}

impl fmt::Debug for Broker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Broker").field("address", &self.address).field("clients", &self.clients()).finish_non_exhaustive()
    }
}

impl Broker {
    /// Opens the store and the port, and serves.
    ///
    /// # Errors
    /// [`BrokerError`] says what is missing.
    pub async fn start(
        settings: BrokerSettings,
        identity: &Identity,
        clock: &CertClock,
        admission: Arc<dyn Admission>,
    ) -> Result<Self, BrokerError> {
        let bind = |source| BrokerError::Bind { address: settings.listen, source };
        let acceptor = tls_acceptor(identity, clock)?;
        let listener = TcpListener::bind(settings.listen).await.map_err(bind)?;
        let address = listener.local_addr().map_err(bind)?;
        let store = |error: mqtt5::MqttError| BrokerError::Store { folder: settings.store.clone(), why: error.to_string() };
        let storage = open_store(&settings.store).await.map_err(store)?;
        let router = Arc::new(limits::limit_router(MessageRouter::with_storage(Arc::clone(&storage))));
        router.initialize().await.map_err(store)?;
        let inner = Arc::new(Inner {
            hub: settings.hub.clone(),
            admission,
            config: Arc::new(limits::config(&settings.store)),
            router,
            stats: Arc::new(BrokerStats::new()),
            resources: Arc::new(ResourceMonitor::new(limits::resources())),
            acceptor: RwLock::new(acceptor),
            clients: Mutex::new(BTreeMap::new()),
            next_client: AtomicU64::new(0),
            stopping: AtomicBool::new(false),
            refusals: Arc::default(),
        });
        let tasks = Tasks::new();
        tasks.spawn_vital("mqtt broker accepting", Acceptor::new(Arc::clone(&inner), tasks.clone()).run(listener));
        tasks.spawn("mqtt broker sweeping", sweep(Arc::clone(&inner), Arc::clone(&storage), tasks.cancelled()));
        Ok(Self { inner, tasks, address, storage, clock: clock.clone() })
    }

    /// Where it listens.
    #[must_use]
    pub const fn local_addr(&self) -> SocketAddr {
        self.address
    }

    /// How many clients are connected.
    #[must_use]
    pub fn clients(&self) -> usize {
        self.inner.clients().len()
    }

    /// Connections that did not come about: failed handshakes, certificates that are no longer good, wrong client ids, no place.
    #[must_use]
    pub fn refused(&self) -> u64 {
        self.inner.refusals.total() - self.forbidden()
    }

    /// Attempts of clients to publish or subscribe where they may not.
    #[must_use]
    pub fn forbidden(&self) -> u64 {
        self.inner.refusals.counts().get(&("mqtt", TOPIC)).copied().unwrap_or(0)
    }

    /// Both, by reason.
    #[must_use]
    pub fn refusals(&self) -> Arc<Refusals> {
        Arc::clone(&self.inner.refusals)
    }

    /// Ends all connections of a node, as after a revocation; its last will is published. Says how many there were.
    pub fn disconnect(&self, node: &NodeId) -> usize {
        self.inner.end(|other| other == node)
    }

    /// Uses a renewed identity for connections from now on.
    ///
    /// # Errors
    /// [`BrokerError::Tls`] when it is of no use; the older one then stays.
    pub fn set_identity(&self, identity: &Identity) -> Result<(), BrokerError> {
        let acceptor = tls_acceptor(identity, &self.clock)?;
        *self.inner.acceptor.write().unwrap_or_else(PoisonError::into_inner) = acceptor;
        Ok(())
    }

    /// Cancelled when the broker has stopped, also by itself.
    #[must_use]
    pub fn stopped(&self) -> tokio_util::sync::CancellationToken {
        self.tasks.cancelled()
    }

    /// Ends all connections without publishing last wills, and gives back port and store, within `deadline`.
    ///
    /// # Errors
    /// [`NotStopped`] names what hung and was aborted.
    pub async fn stop(self, deadline: Duration) -> Result<(), NotStopped> {
        self.inner.stopping.store(true, Ordering::Release);
        self.tasks.cancel();
        self.inner.end(|_| true);
        let stopped = self.tasks.stop(deadline).await;
        if let Err(error) = self.storage.shutdown().await {
            tracing::warn!(%error, "the store of retained messages was not closed properly");
        }
        stopped
    }
}

/// A broker that is dropped without [`Broker::stop`] ends as well, only unwatched.
impl Drop for Broker {
    fn drop(&mut self) {
        self.inner.stopping.store(true, Ordering::Release);
        self.tasks.cancel();
        self.inner.end(|_| true);
    }
}

fn tls_acceptor(identity: &Identity, clock: &CertClock) -> Result<TlsAcceptor, TlsError> {
    Ok(TlsAcceptor::from(Arc::new(tls::server_config(identity, clock, Admit::Members, b"")?)))
}

async fn open_store(folder: &std::path::Path) -> Result<Arc<DynamicStorage>, mqtt5::MqttError> {
    let limits = QueueLimits { max_messages: limits::QUEUED_MAX, max_bytes: limits::QUEUED_BYTES_MAX };
    Ok(Arc::new(DynamicStorage::File(FileBackend::with_queue_limits(folder, limits).await?)))
}

async fn sweep(inner: Arc<Inner>, storage: Arc<DynamicStorage>, stop: tokio_util::sync::CancellationToken) {
    loop {
        tokio::select! {
            biased;
            () = stop.cancelled() => return,
            () = tokio::time::sleep(SWEEP_PERIOD) => {}
        }
        inner.resources.cleanup_expired_windows().await;
        inner.router.sweep_sessions().await;
        if let Err(error) = mqtt5::broker::StorageBackend::cleanup_expired(&*storage).await {
            tracing::warn!(%error, "expired messages could not be thrown away");
        }
    }
}
