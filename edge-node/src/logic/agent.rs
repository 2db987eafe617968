//! The agent: its parts, and how an event goes through them.

mod showing;

use super::peers::{Peers, Surroundings};
use super::plans::Plans;
use super::shares::Shares;
use super::telemetry::{HEARTBEAT, Own, Reports};
use super::uplink::Uplink;
use super::view::View;
use super::{AgentEffect, AgentEvent, Persisted};
use serde::{Deserialize, Serialize};
use shared::backoff::earliest;
use shared::fleet::{Costs, FleetDelta, Inventory, Load, ReplicaReport, Tier};
use shared::ids::{Instance, NodeId, SessionEpoch};
use shared::plan::DispatchSetting;
use shared::policy::BadPolicy;
use shared::policy::dispatch::SplitRules;
use shared::request::{CoreConfig, Effect, Event, RequestCore};
use shared::units::{Micros, Moment};
use shared::wire::frame::Hello;
use shared::wire::{VERSION_MAX, VERSION_MIN};
use shared::work::Catalogue;
use std::collections::BTreeMap;

/// Facts older than this are not acted upon: three heartbeats, so that one lost report changes nothing.
const STALE_AFTER: Micros = Micros::from_secs(15);
/// State is written to disk at most this often; what changed in between is sent again by the hub after a crash.
const PERSIST_EVERY: Micros = Micros::from_secs(1);
/// What requests taught is written at most this often where nothing else changes, and when the agent stops: a crash costs a minute of
/// learning.
const LEARNT_EVERY: Micros = Micros::from_secs(60);
/// Heartbeats that a hub may ask for, shortest and longest: outside, it would be a storm or a lost lease.
const HEARTBEATS: (Micros, Micros) = (Micros::from_millis(20), Micros::from_secs(60));

/// Who the agent is, and how it starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AgentConfig {
    /// Which node.
    pub node: NodeId,
    /// Its level.
    pub tier: Tier,
    /// Its hub; absent for a node that never joined one.
    pub hub: Option<NodeId>,
    /// This life of the process.
    pub instance: Instance,
    /// Free labels.
    pub labels: BTreeMap<String, String>,
    /// What work here costs.
    pub costs: Costs,
    /// Addresses (`host:port`) where other agents reach this one.
    pub addresses: Vec<String>,
    /// Where this node reaches other agents, in place of what they advertise.
    #[serde(default)]
    pub peer_addresses: BTreeMap<NodeId, String>,
    /// Version of the agent.
    pub version: String,
    /// The dispatch policy, until a plan names another.
    pub dispatch: DispatchSetting,
    /// What holds for requests that are split over several nodes.
    #[serde(default)]
    pub splits: SplitRules,
    /// The allocation policy.
    pub allocation: DispatchSetting,
    /// What there is to serve, until a hub says so.
    pub catalogue: Catalogue,
    /// Seed for chance.
    pub seed: u64,
}

/// The agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Agent {
    config: AgentConfig,
    pub(super) core: RequestCore,
    pub(super) uplink: Uplink,
    pub(super) plans: Plans,
    pub(super) view: View,
    pub(super) peers: Peers,
    pub(super) shares: Shares,
    pub(super) reports: Reports,
    pub(super) session_seen: SessionEpoch,
    persisted_at: Option<Moment>,
    /// Answers behind what was learned when it was last written.
    #[serde(default)]
    learnt_persisted: u64,
    pub(super) dirty: bool,
    pub(super) stopping: bool,
    left: bool,
    /// What an earlier life left, until [`AgentEvent::Started`].
    restored: Option<Box<Persisted>>,
}

impl Agent {
    /// An agent that does nothing before [`AgentEvent::Started`]; `restored` is what an earlier life left.
    ///
    /// # Errors
    /// [`BadPolicy`] when a configured policy cannot be had.
    pub fn new(config: AgentConfig, restored: Option<Persisted>) -> Result<Self, BadPolicy> {
        let core = RequestCore::new(CoreConfig {
            me: config.node.clone(),
            tier: config.tier,
            hub: config.hub.clone(),
            executes: true,
            costs: config.costs.clone(),
            dispatch: config.dispatch.clone(),
            seed: config.seed,
            stale_after: STALE_AFTER,
            splits: config.splits,
        })?;
        let inventory = Inventory {
            node: config.node.clone(),
            tier: config.tier,
            labels: config.labels.clone(),
            machine: shared::fleet::Machine::default(),
            costs: config.costs.clone(),
            addresses: config.addresses.clone(),
            version: config.version.clone(),
            binary_sha256: String::new(),
            survey: shared::fleet::Survey::default(),
        };
        let mut uplink = Uplink::new(config.instance, config.seed, config.hub.is_some());
        uplink.recall_broker(restored.as_ref().map_or("", |restored| &restored.broker));
        Ok(Self {
            core,
            uplink,
            plans: Plans::new(config.node.clone(), config.hub.clone()),
            view: View::new(config.node.clone()),
            peers: Peers::new(config.node.clone(), config.seed),
            shares: Shares::new(config.node.clone(), config.seed, &config.allocation)?,
            reports: Reports::new(inventory),
            session_seen: restored.as_ref().map(|restored| restored.session_epoch_seen).unwrap_or_default(),
            persisted_at: None,
            learnt_persisted: 0,
            dirty: false,
            stopping: false,
            left: false,
            restored: restored.map(Box::new),
            config,
        })
    }

    /// Takes in one event and says what shall be done, in this order.
    pub fn handle(&mut self, now: Moment, event: AgentEvent, out: &mut Vec<AgentEffect>) {
        let published = self.uplink.publishing().is_some();
        if self.take_in(now, event, out) {
            self.do_what_is_due(now, out);
        }
        if published && self.uplink.publishing().is_none() {
            self.reports.lost(now);
        }
        out.extend(self.reports.spool_changes().into_iter().map(AgentEffect::Spool));
    }

    /// Says whether there may be something due beside the core.
    fn take_in(&mut self, now: Moment, event: AgentEvent, out: &mut Vec<AgentEffect>) -> bool {
        match event {
            AgentEvent::Started => self.start(now, out),
            AgentEvent::Request(event) => {
                // The many events of requests change nothing that the parts beside the core act upon, but loads.
                let before = out.len();
                self.tell_core(now, event, out);
                let busy = out[before..].iter().any(|effect| match effect {
                    AgentEffect::Request(Effect::LoadChanged(variant, load)) => self.reports.stirred_by(variant, load),
                    _ => false,
                });
                return busy || self.next_deadline().is_some_and(|at| at <= now);
            }
            AgentEvent::Uplink(..) | AgentEvent::Broker(..) | AgentEvent::Peer(..) if self.left => {}
            AgentEvent::Uplink(dial, event) => {
                let change = self.uplink.on_uplink(now, dial, event, out);
                self.follow_uplink(now, change, out);
            }
            AgentEvent::Broker(number, event) => self.broker(now, number, event, out),
            AgentEvent::Peer(node, event) => self.peer(now, &node, event, out),
            AgentEvent::Spooled(records) => self.reports.restore(now, records),
            AgentEvent::Replicas(replicas) => {
                if self.shares.engines(&replicas) {
                    self.peers.replicas_changed();
                }
                self.tell_core(now, Event::Replicas(replicas), out);
            }
            AgentEvent::Surveyed(survey) => self.reports.survey(now, *survey),
            AgentEvent::Binary(sha256) => self.reports.binary(sha256),
            AgentEvent::Machine(machine) => {
                self.reports.machine(machine);
                self.shares.hurry();
            }
            AgentEvent::Gauges(gauges) => self.reports.gauges(gauges),
            AgentEvent::Stop => self.stop(now, out),
            AgentEvent::Leave => self.leave(out),
            AgentEvent::Tick => {}
        }
        true
    }

    /// When [`AgentEvent::Tick`] is wanted next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        if self.left {
            return self.core.next_deadline();
        }
        let publishing = !self.stopping && self.uplink.publishing().is_some();
        let reports = if publishing { self.reports.deadline(self.heartbeat()) } else { None };
        let persist = if self.dirty { self.persisted_at.map(|at| at + PERSIST_EVERY) } else { None };
        let rest = [self.uplink.deadline(), self.plans.deadline(), self.peers.deadline(), Some(self.shares.deadline())];
        earliest([self.core.next_deadline(), reports, persist].into_iter().chain(rest))
    }

    /// The request core.
    #[must_use]
    pub const fn core(&self) -> &RequestCore {
        &self.core
    }

    /// Whether the hub is out of reach.
    #[must_use]
    pub const fn degraded(&self) -> bool {
        self.uplink.session().is_none()
    }

    /// Who the agent is.
    #[must_use]
    pub const fn config(&self) -> &AgentConfig {
        &self.config
    }

    /// What would be said to another agent, or to the hub, now.
    #[must_use]
    pub fn hello(&self) -> Hello {
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            node: self.config.node.clone(),
            instance: self.config.instance,
            plan_epoch_seen: self.plans.seen(),
            session_epoch_seen: self.session_seen,
            replicas: self.core.replicas(),
        }
    }

    fn start(&mut self, now: Moment, out: &mut Vec<AgentEffect>) {
        self.tell_core(now, Event::Catalogue(self.config.catalogue.clone()), out);
        self.tell_core(now, Event::Degraded(true), out);
        if let Some(mut restored) = self.restored.take() {
            self.core.recall(std::mem::take(&mut restored.learnt));
            let changes = self.view.restore(&restored);
            self.follow_view(now, changes, out);
            let in_force = self.plans.restore(now, &restored);
            self.follow_plans(now, in_force, out);
        }
    }

    fn stop(&mut self, now: Moment, out: &mut Vec<AgentEffect>) {
        if std::mem::replace(&mut self.stopping, true) {
            return;
        }
        self.tell_core(now, Event::Drain(true), out);
        self.reports.stop(now, self.uplink.publishing(), out);
        self.peers.close();
        self.uplink.close(out);
    }

    fn leave(&mut self, out: &mut Vec<AgentEffect>) {
        if std::mem::replace(&mut self.left, true) {
            return;
        }
        self.peers.leave(out);
        self.uplink.leave(out);
        out.push(AgentEffect::Persist(Box::new(self.persisted())));
    }

    fn do_what_is_due(&mut self, now: Moment, out: &mut Vec<AgentEffect>) {
        if self.core.next_deadline().is_some_and(|at| at <= now) {
            self.tell_core(now, Event::Tick, out);
        }
        if self.left {
            return;
        }
        if self.uplink.must_dial(now) {
            let hello = self.hello();
            self.uplink.dial(now, hello, out);
        }
        let change = self.uplink.tick(now, out);
        self.follow_uplink(now, change, out);
        if self.uplink.must_move() {
            let hello = self.hello();
            self.uplink.begin_move(now, hello, out);
        }
        let acks = self.plans.tick(now);
        self.reports.acks(acks);
        let mut deltas = Vec::new();
        self.with_peers(|peers, around| peers.tick(now, around, &mut deltas, out));
        self.tell_deltas(now, deltas, out);
        if let Some(rows) = self.shares.tick(now, self.reports.cores(), self.plans.bounds()) {
            self.tell_core(now, Event::Allocated(rows), out);
        }
        self.report(now, out);
        self.persist(now, out);
    }

    fn report(&mut self, now: Moment, out: &mut Vec<AgentEffect>) {
        let heartbeat = self.heartbeat();
        let (replicas, peers) = (self.core.replicas(), &self.peers);
        let own = Own { replicas: &replicas, uplink: self.uplink.path(), peers: &|| peers.paths() };
        // A node that stops has said its last to the broker.
        let publishing = if self.stopping { None } else { self.uplink.publishing() };
        self.reports.tick(now, publishing, heartbeat, &own, out);
    }

    fn persist(&mut self, now: Moment, out: &mut Vec<AgentEffect>) {
        let (plans, view) = (self.plans.take_dirty(), self.view.take_dirty());
        let learnt: u64 = self.core.learnt().values().map(|learnt| learnt.lengths().report().answers).sum();
        let grown = learnt != self.learnt_persisted && self.persisted_at.is_none_or(|at| now.since(at) >= LEARNT_EVERY);
        self.dirty |= plans || view || grown;
        if self.dirty && self.persisted_at.is_none_or(|at| now.since(at) >= PERSIST_EVERY) {
            self.dirty = false;
            self.persisted_at = Some(now);
            self.learnt_persisted = learnt;
            out.push(AgentEffect::Persist(Box::new(self.persisted())));
        }
    }

    fn persisted(&self) -> Persisted {
        let broker = self.uplink.broker_address().to_owned();
        let learnt = self.core.learnt().clone();
        let mut persisted = Persisted { session_epoch_seen: self.session_seen, broker, learnt, ..Persisted::default() };
        self.plans.persist(&mut persisted);
        self.view.persist(&mut persisted);
        persisted
    }

    fn heartbeat(&self) -> Micros {
        self.uplink.heartbeat().filter(|wished| *wished > Micros::ZERO).unwrap_or(HEARTBEAT).clamp(HEARTBEATS.0, HEARTBEATS.1)
    }

    /// Lends the peers what they need to know of the rest.
    pub(super) fn with_peers(&mut self, act: impl FnOnce(&mut Peers, &Surroundings<'_>)) {
        let mut peers = std::mem::replace(&mut self.peers, Peers::new(self.config.node.clone(), self.config.seed));
        let loads = loads(&self.core.replicas());
        let plans = &self.plans;
        act(
            &mut peers,
            &Surroundings {
                shown: self.view.nodes(),
                granted: &|node| plans.targets().any(|target| target.nodes().any(|one| one == node)),
                degraded: self.degraded(),
                hello: &|| self.hello(),
                loads: &loads,
                known: &self.config.peer_addresses,
            },
        );
        self.peers = peers;
    }

    pub(super) fn tell_deltas(&mut self, now: Moment, deltas: Vec<FleetDelta>, out: &mut Vec<AgentEffect>) {
        for delta in deltas {
            self.tell_core(now, Event::Fleet(delta), out);
        }
    }

    pub(super) fn tell_core(&mut self, now: Moment, event: Event, out: &mut Vec<AgentEffect>) {
        let mut effects = Vec::new();
        self.core.handle(now, event, &mut effects);
        for effect in effects {
            // A node that never joined has nobody to tell.
            if let Effect::Record(record) = &effect
                && self.config.hub.is_some()
            {
                self.reports.record(now, (**record).clone());
            }
            out.push(AgentEffect::Request(effect));
        }
    }
}

/// The loads of these replicas, as they ride on signs of life.
fn loads(replicas: &[ReplicaReport]) -> BTreeMap<String, Load> {
    replicas.iter().map(|replica| (replica.variant.to_string(), replica.load)).collect()
}
