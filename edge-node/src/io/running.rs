//! What an agent is made of, in which order it starts, and in which order it stops.

use super::capture::{Capture, CaptureError};
use super::driver::{self, Driver, Handle};
use super::execute::Engines;
use super::hands::Hands;
use super::health::confirm_health;
use super::http::{AgentIngress, Pages, pages};
use super::joined::Joined;
use super::keys::Keeper;
use super::links::Links;
use super::machine::{Watch, watch_machine};
use super::meters::Meters;
use super::mqtt::Broker;
use super::offered::Host;
use super::renewal::Renewal;
use super::replicas::watch_engines;
use super::stage::Reach;
use super::store::{self, StoreError};
use super::{peers, spool};
use crate::config::{BadConfig, Config, PeerSection};
use crate::exec::{self, Engine};
use crate::logic::{Agent, AgentConfig, AgentEvent};
use crate::probe::ProbeSection;
use crate::probe::accelerator::watch::Watch as AcceleratorWatch;
use shared::ids::{Instance, NodeId};
use shared::units::Moment;
use shared_net::host::{Clock, NotStopped, StateError, StateFolder, Tasks};
use shared_net::link::{Code, Endpoint, LinkError, ResetSecretError};
use shared_net::openai::{BadFront, FrontCounters, KeyRing, router_keyed, serve};
use shared_net::tls::{CertClock, TlsError};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::Notify;

/// How long running requests may take to end at a stop; then they are cut off. Service managers allow ten seconds and more.
const DRAIN_MAX: Duration = Duration::from_secs(5);
/// How long tasks may take to end after that.
const TASKS_MAX: Duration = Duration::from_secs(3);
/// How long engines may take to end after that.
const ENGINES_MAX: Duration = Duration::from_secs(3);
/// How long goodbyes may take to leave.
const GOODBYE_MAX: Duration = Duration::from_millis(500);

/// Why an agent does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The configuration cannot work.
    #[error("the configuration cannot work")]
    Config(#[from] BadConfig),
    /// The HTTP front cannot start.
    #[error("`http.front`")]
    Front(#[from] BadFront),
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// A file in it cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is a certificate without the rest of a membership, or the other way round.
    #[error("the state folder holds half a membership: join again with a fresh token (`edge-node join --replace`)")]
    HalfMember,
    /// The certificate cannot be used.
    #[error("the node's identity")]
    Identity(#[from] TlsError),
    /// The reset secret cannot be kept.
    #[error(transparent)]
    Secret(#[from] ResetSecretError),
    /// The QUIC endpoint cannot be opened.
    #[error("`quic.listen`")]
    Quic(#[from] LinkError),
    /// The HTTP listener cannot be opened.
    #[error("listening on TCP {address} (`http.listen`): want a free port of an own address")]
    Listen {
        /// The wanted address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// An engine cannot begin to start.
    #[error("`engines`")]
    Engine(#[from] exec::StartError),
    /// The capture cannot begin.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// A policy cannot be had.
    #[error("`policies`: {0}")]
    Policy(#[from] shared::policy::BadPolicy),
}

/// A running agent. Stop it with [`Self::shutdown`]; dropping it cuts everything off.
#[derive(Debug)]
pub struct Running {
    handle: Handle,
    tasks: Tasks,
    front: Tasks,
    engines: Engines,
    endpoint: Option<Endpoint>,
    http: SocketAddr,
    /// Rung when an operator wants accelerators looked for.
    probe_wanted: Arc<Notify>,
    /// Held as long as the agent runs: its lock keeps a second one out.
    folder: Arc<StateFolder>,
}

impl Running {
    /// Starts an agent. With `capture`, everything that it is told goes to that file.
    ///
    /// # Errors
    /// [`StartError`] says what is in the way.
    pub async fn start(config: &Config, capture: Option<PathBuf>) -> Result<Self, StartError> {
        Self::begin(config, None, capture).await
    }

    /// Starts an agent with these engines instead of the configured ones, for a program that brings its own.
    ///
    /// # Errors
    /// [`StartError`] says what is in the way.
    pub async fn start_with(config: &Config, engines: Vec<Arc<dyn Engine>>) -> Result<Self, StartError> {
        let engines = engines.into_iter().map(|engine| (engine.variant().clone(), engine)).collect();
        Self::begin(config, Some(Arc::new(engines)), None).await
    }

    async fn begin(config: &Config, engines: Option<Engines>, capture: Option<PathBuf>) -> Result<Self, StartError> {
        config.validate()?;
        // Upstream engines talk TLS through the process's provider; a second installation finds the first, which is this one.
        drop(rustls::crypto::ring::default_provider().install_default());
        let folder = Arc::new(StateFolder::open(&config.state)?);
        let joined = Joined::open(config, folder.path()).await?;
        config.check_keys(joined.is_some() || !super::keys::load(folder.path())?.is_empty())?;
        let (tasks, front, clock) = (Tasks::new(), Tasks::new(), Clock::start());
        let engines = match engines {
            Some(engines) => engines,
            None => start_engines(config, folder.path()).await?,
        };
        let agent = Agent::new(agent_config(config, joined.as_ref())?, store::load_agent(folder.path())?)?;
        let capture = capture.map(|path| Capture::begin(&path, &agent)).transpose()?;
        let (listener, http) = listen(config.http.listen).await?;
        let ring = key_ring(joined.as_ref(), folder.path());
        tasks.spawn("API keys", Keeper::start(Arc::clone(&folder), ring.clone())?.run(tasks.cancelled()));
        let (handle, inbox) = driver::channel(&agent, clock);
        let links = Arc::new(Links::default());
        let meters = Arc::new(Meters::new(Arc::clone(&links), Arc::clone(&engines)));
        let reach = Reach { links: Arc::clone(&links), meters: Arc::clone(&meters) };
        let host = Host { handle: handle.clone(), engines: Arc::clone(&engines), reach };
        let network = joined.as_ref().map(|joined| joined.network(config, host, &tasks));
        let (store, book) = store::open(&folder, &tasks);
        let (spool, spooled) = spool::open(&folder, &tasks).map_err(|source| StoreError::File {
            doing: "opening",
            path: folder.join(spool::FILE),
            source,
        })?;
        let broker = Broker::new(agent.config().node.clone(), joined.as_ref().map(|joined| joined.membership.clone()));
        let (engines_of, links_of, meters_of) = (Arc::clone(&engines), Arc::clone(&links), Arc::clone(&meters));
        let hands = Hands::new(
            handle.clone(),
            tasks.clone(),
            engines_of,
            links_of,
            network.clone(),
            broker,
            (store, spool.clone()),
            meters_of,
            ring.clone(),
        );
        let driver = Driver { agent, inbox, handle: handle.clone(), hands, capture, clients_at: Moment::default() };
        tasks.spawn_vital("driver", driver.run(tasks.cancelled()));
        // The inbox of a driver that just began has room.
        drop(handle.tell(AgentEvent::Spooled(spooled)).await);
        watch_engines(&engines, &handle, &tasks);
        tasks.spawn("probe", watch_machine(Watch::new(config), handle.clone(), tasks.clone()));
        tasks.spawn("health", confirm_health(handle.clone(), Arc::clone(&folder), tasks.cancelled()));

        let endpoint = joined.as_ref().map(|joined| joined.endpoint.clone());
        let membership = joined.as_ref().map(|joined| joined.membership.clone());
        if let (Some(joined), Some(network)) = (joined, network) {
            meters.show_refusals(joined.endpoint.refusals());
            let acceptor = joined.endpoint.acceptor();
            tasks.spawn_vital("peer acceptor", peers::accept(acceptor, network, handle.clone(), Arc::clone(&links)));
            let Joined { membership, member, endpoint, .. } = joined;
            tasks.spawn(
                "renewal",
                Renewal { membership, member, endpoint, links, folder: Arc::clone(&folder) }.run(tasks.cancelled()),
            );
        }
        let counters = Arc::new(FrontCounters::default());
        let probe_wanted = Arc::new(Notify::new());
        let probing = Arc::clone(&probe_wanted);
        let beside =
            pages(Pages { handle: handle.clone(), book, meters, front: Arc::clone(&counters), membership, spool, probing });
        let (settings, ingress) = (&config.http, AgentIngress(handle.clone()));
        let router = router_keyed(&settings.front, settings.exposure(), ingress, Arc::clone(&counters), beside, &ring)?;
        front.spawn_vital("http", serve(listener, router, settings.front.limits(), counters, front.cancelled()));
        store::note_http_address(folder.path(), http)?;
        tracing::info!(node = %handle.node(), %http, joined = endpoint.is_some(), "agent started");
        Ok(Self { handle, tasks, front, engines, endpoint, http, probe_wanted, folder })
    }

    /// Looks for accelerators from now on, in processes of its own. Only for the program `edge-node` itself, which has the command that
    /// such a process is.
    pub fn watch_accelerators(&self, section: &ProbeSection) {
        let (handle, folder, wanted) = (self.handle.clone(), Arc::clone(&self.folder), Arc::clone(&self.probe_wanted));
        let watch = AcceleratorWatch { section: section.clone(), handle, folder, wanted };
        self.tasks.spawn("accelerators", watch.run(self.tasks.cancelled()));
    }

    /// Where the HTTP API listens.
    #[must_use]
    pub const fn http_address(&self) -> SocketAddr {
        self.http
    }

    /// Where other agents connect, for a node that joined a fleet.
    #[must_use]
    pub fn quic_address(&self) -> Option<SocketAddr> {
        self.endpoint.as_ref().and_then(|endpoint| endpoint.local_addr().ok())
    }

    /// The way to the agent.
    #[must_use]
    pub const fn handle(&self) -> &Handle {
        &self.handle
    }

    /// Waits until a part has ended without which the agent is none. Then only [`Self::shutdown`] is left to do.
    pub async fn failed(&self) {
        let (tasks, front) = (self.tasks.cancelled(), self.front.cancelled());
        tokio::select! {
            () = tasks.cancelled() => {}
            () = front.cancelled() => {}
        }
    }

    /// Stops: tells the hub, takes nothing new, lets what runs end for a while, and closes everything.
    ///
    /// # Errors
    /// [`NotStopped`] names the tasks that hung or failed.
    pub async fn shutdown(self) -> Result<(), NotStopped> {
        // An agent that has stopped already has nothing to be told.
        drop(self.handle.tell(AgentEvent::Stop).await);
        self.front.cancel();
        drop(tokio::time::timeout(DRAIN_MAX, self.idle()).await);
        drop(self.handle.tell(AgentEvent::Leave).await);
        // Answered after it: goodbyes are on their way and the state is on its way to the disk before anything is cancelled.
        drop(self.handle.look(|_, _| ()).await);
        let front = self.front.stop(GOODBYE_MAX).await;
        let tasks = self.tasks.stop(TASKS_MAX).await;
        for engine in self.engines.values() {
            if let Err(hung) = engine.shutdown(ENGINES_MAX).await {
                tracing::warn!(%hung, "an engine was left behind");
            }
        }
        if let Some(endpoint) = &self.endpoint {
            endpoint.close(Code::DONE, "shutdown", GOODBYE_MAX).await;
        }
        store::forget_http_address(self.folder.path());
        front.and(tasks)
    }

    /// Waits until nothing runs any more, for nobody.
    async fn idle(&self) {
        let busy = |agent: &Agent, _| {
            let running = agent.core().replicas().iter().any(|replica| replica.load.active + replica.load.queued > 0);
            running || agent.core().requests_open() > 0
        };
        while self.handle.look(busy).await == Ok(true) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Tasks hold clones of their group, so it does not end by itself.
        self.front.cancel();
        self.tasks.cancel();
    }
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), StartError> {
    let failed = |source| StartError::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(failed)?;
    let bound = listener.local_addr().map_err(failed)?;
    Ok((listener, bound))
}

/// API keys, by the clock of certificates.
fn key_ring(joined: Option<&Joined>, folder: &Path) -> KeyRing {
    let ring = KeyRing::new(joined.map_or_else(|| CertClock::load(folder), |joined| joined.membership.clock.clone()));
    if joined.is_some() {
        // The hub may have some, now or later.
        ring.expect_keys();
    }
    ring
}

/// Where other agents are, as the configuration says.
fn overrides(config: &Config) -> BTreeMap<NodeId, String> {
    let known = |(node, peer): (&NodeId, &PeerSection)| Some((node.clone(), peer.address.clone()?));
    config.peers.iter().filter_map(known).collect()
}

fn agent_config(config: &Config, joined: Option<&Joined>) -> Result<AgentConfig, BadConfig> {
    let (node, hub) = match joined {
        Some(joined) => {
            let identity = joined.membership.identity.read().unwrap_or_else(std::sync::PoisonError::into_inner);
            (identity.node().clone(), Some(joined.member.hub.clone()))
        }
        None => (NodeId::new(&config.node)?, None),
    };
    let mut labels = joined.map(|joined| joined.member.labels.clone()).unwrap_or_default();
    labels.extend(config.labels.clone());
    Ok(AgentConfig {
        node,
        tier: config.tier,
        hub,
        instance: Instance(rand::random()),
        labels,
        costs: config.costs.clone(),
        addresses: joined.map(|joined| joined.advertised.clone()).unwrap_or_default(),
        peer_addresses: overrides(config),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        dispatch: config.policies.dispatch.clone(),
        splits: config.policies.splits,
        allocation: config.policies.allocation.clone(),
        catalogue: config.catalogue()?,
        seed: rand::random(),
    })
}

async fn start_engines(config: &Config, state: &Path) -> Result<Engines, StartError> {
    let managed = config.engines.iter().filter(|engine| engine.managed()).map(|engine| engine.variant().clone());
    exec::upstream::sweep(state, &managed.collect()).await;
    let mut engines = BTreeMap::new();
    for engine in &config.engines {
        engines.insert(engine.variant().clone(), exec::start(engine.clone(), state)?);
    }
    Ok(Arc::new(engines))
}
