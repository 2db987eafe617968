//! What is started, and in which order it stops.

use crate::ca::{Authority, CaError};
use crate::clock::UnixTime;
use crate::config::{Config, ConfigError};
use crate::io::admin::{self, Admin};
use crate::io::driver::{Driver, Parts};
use crate::io::ingress::HubIngress;
use crate::io::input::{INBOX_MAX, Inbox};
use crate::io::links::{self, Gate};
use crate::io::metrics::Metrics;
use crate::io::mqtt::{self, Publisher};
use crate::logic::{Hub, HubConfig, Restored};
use crate::state::{Addresses, StateDir, StateError};
use crate::store::{Db, Meta, Store, StoreError, StoreThread};
use sha2::{Digest, Sha256};
use shared::policy::BadPolicy;
use shared::units::Micros;
use shared_net::host::{Clock, NotStopped, StateFolder, Tasks};
use shared_net::mqtt::MqttError;
use shared_net::openai::{BadFront, Exposure, FrontCounters, Limits};
use shared_net::quic::{Code, Endpoint, QuicError, ResetSecret, ResetSecretError};
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
/// How often the wall clock is written down, and certificates of the hub itself are looked at.
const CHORES_EVERY: Duration = Duration::from_secs(3600);

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
    /// A policy cannot be had.
    #[error("making the hub's policies")]
    Policy(#[from] BadPolicy),
    /// The QUIC endpoint cannot be opened.
    #[error("opening the endpoint for agents")]
    Quic(#[from] QuicError),
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
    /// This build has no broker.
    #[error("this build has no embedded broker: set `mqtt.external` to the address of one")]
    NoBroker,
}

/// Something did not stop as it should.
#[derive(Debug, thiserror::Error)]
#[error("stopping the hub")]
pub struct StopError(#[from] NotStopped);

/// A running hub.
#[derive(Debug)]
pub struct Handle {
    addresses: Addresses,
    /// Where strangers come in: stopped first, so that nothing new begins.
    front: Tasks,
    /// Everything else.
    work: Tasks,
    endpoint: Endpoint,
    store: Store,
    store_thread: StoreThread,
    _folder: StateFolder,
}

/// Everything that is known before the first socket is opened.
struct Ground {
    config: Config,
    state: StateDir,
    folder: StateFolder,
    authority: Arc<Authority>,
    meta: Meta,
    wall: CertClock,
    identity: Identity,
}

/// Starts a hub: store, endpoint, broker, core, listeners. Returns when all of them listen.
///
/// # Errors
/// [`StartError`] says what could not be started; nothing is left running then.
pub async fn start(config: Config) -> Result<Handle, StartError> {
    config.validate()?;
    crate::io::use_ring();
    let state = StateDir::at(&config.state);
    let folder = state.lock()?;
    let db = Db::open(&state.database(), config.records)?;
    let meta = db.meta()?;
    let wall = CertClock::new(meta.clock.0);
    let authority = Arc::new(state.authority()?);
    let identity = authority.issue_hub(&meta.hub, &[], UnixTime::now(&wall))?.identity;
    let ground = Ground { config, state, folder, authority, meta, wall, identity };
    ground.start(db).await
}

impl Ground {
    async fn start(self, mut db: Db) -> Result<Handle, StartError> {
        let restored = self.restore(&mut db)?;
        let catalogue = db.catalogue()?;
        let admin_key = self.state.admin_key()?;
        let secret = ResetSecret::load(self.state.path())?;
        let (http, admin) = (&self.config.http, &self.config.admin);
        let (http_socket, http_address) = listen("the OpenAI API", http.listen).await?;
        let (admin_socket, admin_address) = listen("the admin API", admin.listen).await?;
        let endpoint = Endpoint::bind(self.config.quic.listen, &self.identity, Admit::MembersAndJoiners, &self.wall, &secret)?;
        let (front, work) = (Tasks::new(), Tasks::new());
        let broker = self.broker().await?;
        let hub = Hub::new(self.hub_config(&broker.advertised), restored)?;
        let (store, store_thread) = Store::start(db)?;
        let counters = Arc::new(FrontCounters::default());
        let metrics = Arc::new(Metrics::new(Arc::clone(&counters)));
        let (inbox, inputs) = mpsc::channel(INBOX_MAX);
        let (catalogue, catalogue_seen) = watch::channel(Arc::new(catalogue));

        let settings = mqtt::settings(broker.local.clone(), &self.meta.hub);
        let (client, events) = shared_net::mqtt::start(settings, &self.identity, &self.wall, &work)?;
        work.spawn_vital("messages of nodes", mqtt::pump(events, inbox.clone(), Arc::clone(&metrics)));
        let publisher = Publisher::new(client, Arc::clone(&metrics), broker.kick);
        let node_lifetime = Duration::from_secs(self.config.certificates.node_lifetime_s);
        let driver = Driver::new(Parts {
            hub,
            me: self.meta.hub.clone(),
            clock: Clock::start(),
            wall: self.wall.clone(),
            node_lifetime,
            store: store.clone(),
            publisher,
            metrics: Arc::clone(&metrics),
            tasks: work.clone(),
            catalogue,
            inbox: inbox.clone(),
        });
        work.spawn_vital("core", driver.run(inputs, work.cancelled()));
        let gate = self.gate(&store, &metrics, &inbox, node_lifetime);
        work.spawn_vital("agents", links::accept(Arc::new(gate), endpoint.acceptor(), work.clone()));
        let ingress = HubIngress { me: self.meta.hub.clone(), catalogue: catalogue_seen, inbox: inbox.clone() };
        let exposure = if http_address.ip().is_loopback() { Exposure::Loopback } else { Exposure::Network };
        let router = shared_net::openai::router(&http.front, exposure, ingress, Arc::clone(&counters))?;
        let serving = shared_net::openai::serve(http_socket, router, http.front.limits(), counters, front.cancelled());
        front.spawn_vital("OpenAI API", serving);
        let admin = Arc::new(Admin {
            inbox,
            store: store.clone(),
            authority: Arc::clone(&self.authority),
            wall: self.wall.clone(),
            metrics,
            key_sha256: Sha256::digest(admin_key.as_bytes()).into(),
            local: admin_address.ip().is_loopback(),
        });
        let limits = admin_limits();
        let serving = shared_net::openai::serve(admin_socket, admin::router(admin), limits, Arc::default(), front.cancelled());
        front.spawn_vital("admin API", serving);

        let quic = endpoint.local_addr()?;
        let addresses =
            Addresses { quic, http: http_address, admin: admin_address, broker: broker.local, pid: std::process::id() };
        self.state.write_addresses(&addresses)?;
        Ok(Handle { addresses, front, work, endpoint, store, store_thread, _folder: self.folder })
    }
}
