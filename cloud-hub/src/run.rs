//! What is started, and in which order it stops.

use crate::ca::{Authority, CaError};
use crate::chores::{Chores, keep_usage};
use crate::clock::UnixTime;
use crate::config::{Config, ConfigError};
use crate::io::admin::{self, Admin};
use crate::io::broker::{Broker, Broking, Revocations};
use crate::io::driver::{Driver, Parts};
use crate::io::ingress::HubIngress;
use crate::io::input::{INBOX_MAX, Inbox};
use crate::io::links::{self, Gate};
use crate::io::metrics::Metrics;
use crate::io::mqtt::{self, Publisher};
use crate::logic::{BadStart, Hub, Restored};
use crate::state::{Addresses, StateDir, StateError};
use crate::store::{Db, Meta, Store, StoreError, StoreThread};
use sha2::{Digest, Sha256};
use shared::work::Catalogue;
use shared_net::host::{Clock, NotStopped, StateFolder, Tasks};
use shared_net::link::{Code, Endpoint, LinkError, ResetSecret, ResetSecretError};
use shared_net::mqtt::{Mqtt, MqttError};
use shared_net::openai::{BadFront, Exposure, FrontConfig, FrontCounters, KeyRing, KeySource, router_keyed};
use shared_net::tls::{Admit, CertClock, Identity};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

/// How long each group of tasks may take to end.
const STOP_TIME_MAX: Duration = Duration::from_secs(5);
/// How long agents may take to hear that the hub closes.
const CLOSE_TIME_MAX: Duration = Duration::from_secs(1);
/// Operators and their dashboards are few; more are refused.
const ADMIN_CONNECTIONS_MAX: usize = 64;

/// Why the hub did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot be used.
    #[error("checking the configuration")]
    Config(#[from] ConfigError),
    /// The state folder cannot be used.
    #[error("opening the state folder")]
    State(#[from] StateError),
    /// The database cannot be used.
    #[error("reading the hub's database")]
    Store(#[from] StoreError),
    /// The hub's own identity could not be made.
    #[error("making the hub's identity")]
    Ca(#[from] CaError),
    /// The core refuses its configuration or what was stored.
    #[error("starting the hub's core")]
    Logic(#[from] BadStart),
    /// The QUIC endpoint cannot be opened.
    #[error("opening the endpoint for agents")]
    Quic(#[from] LinkError),
    /// The secret of resets cannot be kept.
    #[error("opening the endpoint for agents")]
    Reset(#[from] ResetSecretError),
    /// A TCP address cannot be listened on.
    #[error("listening on {what} at {address}: want a free port of an own address")]
    Listen {
        /// For what.
        what: &'static str,
        /// Where.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The OpenAI front cannot be had.
    #[error("starting the OpenAI API")]
    Front(#[from] BadFront),
    /// The MQTT client cannot be had.
    #[error("starting the MQTT client")]
    Mqtt(#[from] MqttError),
    /// The embedded broker cannot be had.
    #[cfg(feature = "broker")]
    #[error("starting the MQTT broker")]
    Broker(#[from] shared_net::broker::BrokerError),
    /// This build has no broker.
    #[error("this build has no embedded broker: set `mqtt.external` to the address of one")]
    NoBroker,
}

/// Something did not stop as it should.
#[derive(Debug, thiserror::Error)]
#[error("stopping the hub")]
pub struct StopError(#[from] NotStopped);

/// A running hub. Dropping it without [`Handle::shutdown`] only asks its tasks to end.
#[derive(Debug)]
pub struct Handle {
    addresses: Addresses,
    running: Option<Running>,
}

#[derive(Debug)]
struct Running {
    /// Where strangers come in: stopped first, so that nothing new begins.
    front: Tasks,
    /// Everything else.
    work: Tasks,
    endpoint: Endpoint,
    broker: Broker,
    store: Store,
    store_thread: StoreThread,
    wall: CertClock,
    /// How long open requests may take to end.
    drain: Duration,
    _folder: StateFolder,
}

/// Starts a hub: store, endpoint, broker, core, listeners. Returns when all of them listen.
///
/// # Errors
/// [`StartError`] says what could not be started; nothing is left running then.
pub async fn start(config: Config) -> Result<Handle, StartError> {
    config.validate_to_serve()?;
    crate::io::use_ring();
    let state = StateDir::at(&config.state);
    let folder = state.lock()?;
    let mut db = Db::open(&state.database(), config.records)?;
    let meta = db.meta()?;
    let wall = CertClock::new(meta.clock.0);
    let authority = Arc::new(state.authority()?);
    let identity = authority.issue_hub(&meta.hub, &[], UnixTime::now(&wall))?.identity;
    let revocations = Revocations::default();
    revocations.add(&db.revoked_serials(UnixTime::now(&wall))?);
    let broking = Broking {
        listen: config.mqtt.listen,
        store: state.broker(),
        hub: &meta.hub,
        identity: &identity,
        wall: &wall,
        revocations: &revocations,
    };
    let broker = Broker::start(&config.mqtt, broking).await?;
    let (front, work) = (Tasks::new(), Tasks::new());
    let ground = Ground { config, state, authority, meta, wall, identity, revocations, front, work };
    let started = ground.start(db, &broker).await;
    match started {
        Ok((addresses, endpoint, store, store_thread)) => {
            let drain = Duration::from_millis(ground.config.http.front.drain_ms);
            let Ground { front, work, wall, .. } = ground;
            let running = Running { front, work, endpoint, broker, store, store_thread, wall, drain, _folder: folder };
            Ok(Handle { addresses, running: Some(running) })
        }
        Err(error) => {
            // The error that matters is the first.
            drop(ground.front.stop(STOP_TIME_MAX).await);
            drop(ground.work.stop(STOP_TIME_MAX).await);
            drop(broker.stop(STOP_TIME_MAX).await);
            Err(error)
        }
    }
}

/// What everything stands on.
struct Ground {
    config: Config,
    state: StateDir,
    authority: Arc<Authority>,
    meta: Meta,
    wall: CertClock,
    identity: Identity,
    revocations: Revocations,
    front: Tasks,
    work: Tasks,
}

/// What the parts share once the store runs.
struct Common {
    store: Store,
    metrics: Arc<Metrics>,
    counters: Arc<FrontCounters>,
    inbox: Inbox,
    node_lifetime: Duration,
    ring: KeyRing,
}

impl Ground {
    async fn start(&self, db: Db, broker: &Broker) -> Result<(Addresses, Endpoint, Store, StoreThread), StartError> {
        let hub = Hub::new(self.config.core(&self.meta.hub, &broker.advertised), self.restored(&db)?)?;
        let (catalogue, catalogue_seen) = watch::channel(Arc::new(db.catalogue()?));
        let secret = ResetSecret::load(self.state.path())?;
        let endpoint = Endpoint::bind(self.config.quic.listen, &self.identity, Admit::MembersAndJoiners, &self.wall, &secret)?;
        let (http_socket, http) = listen("the OpenAI API", self.config.http.listen).await?;
        let (admin_socket, admin) = listen("the admin API", self.config.admin.listen).await?;
        let ring = self.ring(&db)?;
        let (store, store_thread) = Store::start(db)?;
        let (inbox, inputs) = mpsc::channel(INBOX_MAX);
        let counters = Arc::new(FrontCounters::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&counters)));
        broker.refusals().into_iter().chain([endpoint.refusals()]).for_each(|refusals| metrics.show_refusals(refusals));
        let node_lifetime = Duration::from_secs(self.config.certificates.node_lifetime_s);
        let common = Common { store: store.clone(), metrics, counters, inbox, node_lifetime, ring };

        let mqtt = self.mqtt(broker, &common)?;
        let publisher = Publisher::new(mqtt.clone(), Arc::clone(&common.metrics), broker.clone());
        let driver = self.driver(hub, publisher, catalogue, &common);
        self.work.spawn_vital("core", driver.run(inputs, self.work.cancelled()));
        let gate = Arc::new(self.gate(&common));
        self.work.spawn_vital("agents", links::accept(gate, endpoint.acceptor(), self.work.clone()));
        self.work.spawn("chores", self.chores(&endpoint, broker, mqtt, &store).run(self.work.cancelled()));
        self.work.spawn("use of API keys", keep_usage(common.ring.clone(), store.clone(), self.work.cancelled()));
        let quic = endpoint.local_addr()?;
        let addresses = Addresses { quic, http, admin, broker: broker.local.clone(), pid: std::process::id() };
        // Before anybody gets an answer: who saw one may call a command, which looks here for the hub.
        self.state.write_addresses(&addresses)?;
        self.openai(http_socket, http, catalogue_seen, &common)?;
        self.admin(admin_socket, admin, self.token_address(quic), common)?;
        Ok((addresses, endpoint, store, store_thread))
    }

    /// The fleet's API keys, with what they used of their day.
    fn ring(&self, db: &Db) -> Result<KeyRing, StoreError> {
        let ring = KeyRing::new(self.wall.clone());
        ring.set(KeySource::Fleet, db.keys()?);
        ring.restore(&db.key_usage()?);
        Ok(ring)
    }

    fn restored(&self, db: &Db) -> Result<Restored, StoreError> {
        Ok(Restored {
            incarnation: self.meta.incarnation,
            session_epoch: self.meta.session_epoch.0,
            nodes: db.restored_nodes()?,
            services: db.catalogue()?.iter().cloned().collect(),
            keys: db.keys()?,
            dispatch: self.meta.dispatch.clone(),
        })
    }

    fn mqtt(&self, broker: &Broker, common: &Common) -> Result<Mqtt, StartError> {
        let settings = mqtt::settings(broker.local.clone(), &self.meta.hub);
        let (mqtt, events) = shared_net::mqtt::start(settings, &self.identity, &self.wall, &self.work)?;
        let pump = mqtt::pump(events, common.inbox.clone(), Arc::clone(&common.metrics));
        self.work.spawn_vital("messages of nodes", pump);
        Ok(mqtt)
    }

    fn driver(&self, hub: Hub, publisher: Publisher, catalogue: watch::Sender<Arc<Catalogue>>, common: &Common) -> Driver {
        Driver::new(Parts {
            hub,
            me: self.meta.hub.clone(),
            clock: Clock::start(),
            wall: self.wall.clone(),
            node_lifetime: common.node_lifetime,
            store: common.store.clone(),
            publisher,
            revocations: self.revocations.clone(),
            metrics: Arc::clone(&common.metrics),
            tasks: self.work.clone(),
            catalogue,
            inbox: common.inbox.clone(),
            ring: common.ring.clone(),
        })
    }

    fn gate(&self, common: &Common) -> Gate {
        Gate {
            me: self.meta.hub.clone(),
            authority: Arc::clone(&self.authority),
            store: common.store.clone(),
            wall: self.wall.clone(),
            node_lifetime: common.node_lifetime,
            metrics: Arc::clone(&common.metrics),
            inbox: common.inbox.clone(),
            next: AtomicU64::new(1),
        }
    }

    fn chores(&self, endpoint: &Endpoint, broker: &Broker, mqtt: Mqtt, store: &Store) -> Chores {
        Chores {
            hub: self.meta.hub.clone(),
            authority: Arc::clone(&self.authority),
            wall: self.wall.clone(),
            identity: self.identity.clone(),
            endpoint: endpoint.clone(),
            broker: broker.clone(),
            mqtt,
            store: store.clone(),
        }
    }

    fn openai(
        &self,
        socket: TcpListener,
        address: SocketAddr,
        catalogue: watch::Receiver<Arc<Catalogue>>,
        common: &Common,
    ) -> Result<(), StartError> {
        let front = &self.config.http.front;
        let ingress = HubIngress { me: self.meta.hub.clone(), catalogue, inbox: common.inbox.clone() };
        let exposure = if address.ip().is_loopback() { Exposure::Loopback } else { Exposure::Network };
        let counters = Arc::clone(&common.counters);
        let router = router_keyed(front, exposure, ingress, Arc::clone(&counters), axum::Router::new(), &common.ring)?;
        let serving = shared_net::openai::serve(socket, router, front.limits(), counters, self.front.cancelled());
        self.front.spawn_vital("OpenAI API", serving);
        Ok(())
    }

    /// What `init` was told; a port of zero there stands for the one that the endpoint got.
    fn token_address(&self, quic: SocketAddr) -> String {
        match self.meta.address.strip_suffix(":0") {
            Some(host) => format!("{host}:{}", quic.port()),
            None => self.meta.address.clone(),
        }
    }

    fn admin(&self, socket: TcpListener, bound: SocketAddr, address: String, common: Common) -> Result<(), StartError> {
        let admin = Arc::new(Admin {
            inbox: common.inbox,
            store: common.store,
            authority: Arc::clone(&self.authority),
            wall: self.wall.clone(),
            address,
            metrics: common.metrics,
            ring: common.ring,
            key_sha256: Sha256::digest(self.state.admin_key()?.as_bytes()).into(),
            local: bound.ip().is_loopback(),
        });
        if !bound.ip().is_loopback() {
            tracing::warn!(%bound, "the admin key travels in clear text: put TLS in front of this listener");
        }
        let limits = FrontConfig { connections_max: ADMIN_CONNECTIONS_MAX, drain_ms: 1_000, ..FrontConfig::default() }.limits();
        let serving = shared_net::openai::serve(socket, admin::router(admin), limits, Arc::default(), self.front.cancelled());
        self.front.spawn_vital("admin API", serving);
        Ok(())
    }
}

async fn listen(what: &'static str, address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { what, address, source };
    let socket = TcpListener::bind(address).await.map_err(failed)?;
    let bound = socket.local_addr().map_err(failed)?;
    Ok((socket, bound))
}

impl Handle {
    /// Where the hub really listens.
    #[must_use]
    pub const fn addresses(&self) -> &Addresses {
        &self.addresses
    }

    /// Waits until something has ended that the hub cannot do without.
    pub async fn failed(&self) {
        let Some(running) = &self.running else { return };
        let (front, work) = (running.front.cancelled(), running.work.cancelled());
        tokio::select! {
            () = front.cancelled() => {}
            () = work.cancelled() => {}
            () = running.broker.failed() => {}
        }
    }

    /// Whether runtime and store still do their work: the database is read once.
    pub async fn lives(&self) -> bool {
        let Some(running) = &self.running else { return false };
        running.store.call(|db| db.meta().map(drop)).await.is_ok()
    }

    /// Stops: clients first, then agents and core, then broker and store.
    ///
    /// # Errors
    /// [`StopError`] names what hung or failed. Everything has ended all the same.
    pub async fn shutdown(mut self) -> Result<(), StopError> {
        let Some(running) = self.running.take() else { return Ok(()) };
        let front = running.front.stop(running.drain + STOP_TIME_MAX).await;
        let work = running.work.stop(STOP_TIME_MAX).await;
        running.endpoint.close(Code::DONE, "the hub stops", CLOSE_TIME_MAX).await;
        let broker = running.broker.stop(STOP_TIME_MAX).await;
        let now = UnixTime::now(&running.wall);
        let noted = running.store.call(move |db| db.update_meta(|meta| meta.clock = now).map(drop)).await;
        if let Err(error) = noted {
            tracing::warn!(error = &error as &dyn std::error::Error, "the time was not written down");
        }
        drop(running.store);
        let thread = running.store_thread;
        // Fails only when the runtime itself ends.
        drop(tokio::task::spawn_blocking(move || thread.join()).await);
        front.and(work).and(broker).map_err(StopError)
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        if let Some(running) = &self.running {
            running.front.cancel();
            running.work.cancel();
        }
    }
}
