//! The request core: what is known, and which half of it each event concerns.

use super::event::{AttemptEvent, Effect, Event};
use super::executor::{Executor, Heard};
use super::learnt::Learnt;
use super::limits::{LEARNT_MAX, RECONSIDER_EVERY};
use super::retry::{RetryBudget, Suspects};
use super::ticket::Ticket;
use crate::fleet::{FleetDelta, FleetView, Hop, NodeState, PathReport, ReplicaReport, Tier};
use crate::ids::{AttemptId, NodeId, RequestId, ServiceId, VariantId};
use crate::plan::{DispatchSetting, Failure, Grant, Reason, Stage};
use crate::policy::BadPolicy;
use crate::policy::dispatch::{Dispatcher, SplitRules};
use crate::units::{Micros, Moment};
use crate::work::{Catalogue, ExecHeader};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// Who hosts the core, and how it starts.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreConfig {
    /// The host.
    pub me: NodeId,
    /// Its level.
    pub tier: Tier,
    /// The hub through which relayed paths go; absent at the hub itself.
    pub hub: Option<NodeId>,
    /// Whether this host executes requests (agents do, the hub does not).
    pub executes: bool,
    /// What work on this host costs.
    #[serde(default)]
    pub costs: crate::fleet::Costs,
    /// First dispatch policy.
    pub dispatch: DispatchSetting,
    /// Seed for chance.
    pub seed: u64,
    /// Facts older than this are not acted upon: three heartbeats, so that one lost report changes nothing.
    pub stale_after: Micros,
    /// What holds for requests that are split over several nodes.
    #[serde(default)]
    pub splits: SplitRules,
}

/// Admission, queue, dispatch, execution slots, retry and cancel of all requests at one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestCore {
    pub(super) config: CoreConfig,
    pub(super) policy: Dispatcher,
    pub(super) view: FleetView,
    pub(super) grant: Grant,
    pub(super) catalogue: Catalogue,
    pub(super) degraded: bool,
    pub(super) draining: bool,
    pub(super) tickets: BTreeMap<RequestId, Ticket>,
    /// When each ticket must be looked at next; may be too early, never too late.
    timers: BTreeSet<(Moment, RequestId)>,
    pub(super) waiting: BTreeSet<RequestId>,
    reconsider_at: Option<Moment>,
    pub(super) executor: Executor,
    pub(super) suspects: Suspects,
    #[serde(with = "crate::pairs")]
    pub(super) open: BTreeMap<(NodeId, VariantId), u32>,
    pub(super) retries: RetryBudget,
    /// What requests told of their services.
    #[serde(default)]
    pub(super) learnt: BTreeMap<ServiceId, Learnt>,
    /// Something changed that a waiting request may have waited for.
    pub(super) changed: bool,
}

impl RequestCore {
    /// A core that knows nothing yet.
    ///
    /// # Errors
    /// [`BadPolicy`] when the configured policy cannot be had.
    pub fn new(config: CoreConfig) -> Result<Self, BadPolicy> {
        let policy = Dispatcher::new(&config.dispatch)?;
        let mut core = Self {
            config,
            policy,
            view: FleetView::default(),
            grant: Grant::default(),
            catalogue: Catalogue::default(),
            degraded: false,
            draining: false,
            tickets: BTreeMap::new(),
            timers: BTreeSet::new(),
            waiting: BTreeSet::new(),
            reconsider_at: None,
            executor: Executor::default(),
            suspects: Suspects::default(),
            open: BTreeMap::new(),
            retries: RetryBudget::default(),
            learnt: BTreeMap::new(),
            changed: false,
        };
        if core.config.executes {
            core.introduce_myself();
        }
        Ok(core)
    }

    /// Takes in one event and says what shall be done.
    pub fn handle(&mut self, now: Moment, event: Event, effects: &mut Vec<Effect>) {
        self.executor.now = now;
        match event {
            Event::Arrived(request) => self.arrive(now, request, effects),
            Event::ClientGone(request) => self.client_left(now, request, Failure::ClientGone, effects),
            Event::ClientStalled(request) => self.client_left(now, request, Failure::ClientStalled, effects),
            Event::Remote(attempt, event) => self.remote(now, attempt, event, effects),
            Event::Offered { from, header } => self.offered(now, from, header, effects),
            Event::Withdrawn(attempt) => self.executor.cancel(now, attempt, effects),
            Event::Engine(attempt, event) => self.engine(now, attempt, event, effects),
            Event::Fleet(delta) => self.learn(now, delta),
            Event::Replicas(reports) => {
                self.executor_changed(now, effects, |executor, effects| executor.replace(reports, effects))
            }
            Event::Granted(grant) => {
                self.grant = grant;
                self.changed = true;
            }
            Event::Allocated(rows) => self.executor_changed(now, effects, |executor, effects| executor.allocate(rows, effects)),
            Event::Catalogue(catalogue) => {
                self.catalogue = catalogue;
                self.changed = true;
            }
            Event::Policy(setting) => {
                // An unknown policy is answered by whoever received it; here the old one simply stays.
                if let Ok(policy) = Dispatcher::new(&setting) {
                    self.policy = policy;
                    self.changed = true;
                }
            }
            Event::Degraded(degraded) => self.degraded = degraded,
            Event::Drain(drain) => self.drain(drain),
            Event::Tick => self.tick(now, effects),
        }
        self.follow_loads(now, effects);
        self.reconsider(now, effects);
    }

    /// When [`Event::Tick`] is wanted next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        let ticket = self.timers.first().map(|(at, _)| *at);
        [ticket, self.executor.next_deadline(), self.reconsider_at].into_iter().flatten().min()
    }

    /// This host's replicas, with the loads as counted here.
    #[must_use]
    pub fn replicas(&self) -> Vec<ReplicaReport> {
        self.executor.reports()
    }

    /// The fleet as known here.
    #[must_use]
    pub const fn view(&self) -> &FleetView {
        &self.view
    }

    /// What there is to serve.
    #[must_use]
    pub const fn catalogue(&self) -> &Catalogue {
        &self.catalogue
    }

    /// What the slower layers allow.
    #[must_use]
    pub const fn grant(&self) -> &Grant {
        &self.grant
    }

    /// What requests told of their services.
    #[must_use]
    pub const fn learnt(&self) -> &BTreeMap<ServiceId, Learnt> {
        &self.learnt
    }

    /// Begins with what an earlier life had learned. What cannot be reckoned with is left out.
    pub fn recall(&mut self, learnt: BTreeMap<ServiceId, Learnt>) {
        self.learnt = learnt.into_iter().filter(|(_, learnt)| learnt.sound()).take(LEARNT_MAX).collect();
    }

    /// The dispatch policy that runs.
    #[must_use]
    pub fn policy(&self) -> &'static str {
        self.policy.name()
    }

    /// Replicas of served variants that are ready on nodes that are online, here and elsewhere.
    #[must_use]
    pub fn replicas_ready(&self) -> usize {
        let variants = self.catalogue.iter().flat_map(|service| &service.variants);
        variants.map(|variant| self.view.ready(&variant.id).count()).sum()
    }

    /// Requests of clients that are not over.
    #[must_use]
    pub fn requests_open(&self) -> usize {
        self.tickets.len()
    }

    fn introduce_myself(&mut self) {
        let node = self.config.me.clone();
        let state = if self.draining { NodeState::Draining } else { NodeState::Online };
        let (tier, costs) = (self.config.tier, self.config.costs.clone());
        let start = Moment::default();
        self.view.apply(start, FleetDelta::Node { node: node.clone(), tier, costs, addresses: Vec::new() });
        self.view.apply(start, FleetDelta::State { node: node.clone(), state });
        self.view.apply(start, FleetDelta::Path { node, path: PathReport::local() });
    }

    fn learn(&mut self, now: Moment, delta: FleetDelta) {
        match &delta {
            // What others say about this host is older than what it knows itself.
            FleetDelta::Node { node, .. }
            | FleetDelta::State { node, .. }
            | FleetDelta::Replicas { node, .. }
            | FleetDelta::Path { node, .. }
            | FleetDelta::Load { node, .. }
                if self.config.executes && *node == self.config.me =>
            {
                return;
            }
            FleetDelta::State { node, state: NodeState::Online } => {
                let was = self.view.node(node).map(|entry| entry.state);
                if matches!(was, Some(NodeState::Offline | NodeState::Suspect | NodeState::Seen)) {
                    self.suspects.forgive(node);
                }
            }
            FleetDelta::Gone { node } => self.suspects.forgive(node),
            _ => {}
        }
        self.view.apply(now, delta);
        self.changed = true;
    }

    fn drain(&mut self, drain: bool) {
        self.draining = drain;
        if self.config.executes {
            self.introduce_myself();
        }
        self.changed = true;
    }

    fn executor_changed(&mut self, now: Moment, effects: &mut Vec<Effect>, change: impl FnOnce(&mut Executor, &mut Vec<Effect>)) {
        let before = effects.len();
        change(&mut self.executor, effects);
        let replicas = self.executor.reports();
        self.view.apply(now, FleetDelta::Replicas { node: self.config.me.clone(), replicas, age: Micros::ZERO });
        self.own_drops(now, before, effects);
        self.changed = true;
    }

    /// Attempts of the own ingress that the executor dropped fail like any other.
    fn own_drops(&mut self, now: Moment, from: usize, effects: &mut Vec<Effect>) {
        let dropped: Vec<_> = effects[from..]
            .iter()
            .filter_map(|effect| match effect {
                Effect::Drop(attempt, failure) if self.is_live(*attempt) => Some((*attempt, failure.clone())),
                _ => None,
            })
            .collect();
        for (attempt, failure) in dropped {
            effects.retain(|effect| !matches!(effect, Effect::Drop(id, _) if *id == attempt));
            self.attempt_failed(now, attempt, failure, effects);
        }
    }

    fn offered(&mut self, now: Moment, from: NodeId, header: ExecHeader, effects: &mut Vec<Effect>) {
        let attempt = header.attempt;
        if let Err(reason) = self.acceptable(&from, &header) {
            effects.push(Effect::Refuse(attempt, reason, self.executor.load(&header.variant)));
            return;
        }
        let variant = header.variant.clone();
        // Acceptance goes out before anything that running may cause.
        let at = effects.len();
        self.executor.take(now, header, Some(from), effects);
        let load = self.executor.load(&variant).unwrap_or_default();
        effects.insert(at, Effect::Accept(attempt, load));
    }

    /// The executor refuses on its own what breaks a hard constraint, whatever sender and relay thought.
    fn acceptable(&self, from: &NodeId, header: &ExecHeader) -> Result<(), Reason> {
        if header.target != self.config.me {
            return Err(Reason::Unknown);
        }
        if !header.residency.permits(&self.config.me) || !header.stages.iter().all(|stage| self.may_pass(header, stage)) {
            return Err(Reason::Residency);
        }
        // A stage after the first is offered by the stage before it, and by nobody else.
        if header.sender() != Some(from) || header.check_stages().is_err() {
            return Err(Reason::NotGranted);
        }
        if self.draining {
            return Err(Reason::Draining);
        }
        if let Some(remaining) = header.remaining.filter(|remaining| *remaining == Micros::ZERO) {
            return Err(Reason::Deadline { predicted: Micros::ZERO, remaining });
        }
        self.executor.admissible(header)
    }

    /// Whether a stage may see what is computed from the text, and what stands between it and the stage before it, too.
    fn may_pass(&self, header: &ExecHeader, stage: &Stage) -> bool {
        let relay = self.config.hub.as_ref().filter(|_| stage.hop == Hop::Relay);
        header.residency.permits(&stage.node) && relay.is_none_or(|hub| header.residency.permits_relay(hub))
    }

    fn engine(&mut self, now: Moment, attempt: AttemptId, event: AttemptEvent, effects: &mut Vec<Effect>) {
        if self.executor.heard(attempt, &event, effects) == Heard::Own {
            self.attempt_news(now, attempt, event, effects);
        }
    }

    fn tick(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        self.executor.tick(now, effects);
        while let Some((at, request)) = self.timers.first().copied().filter(|(at, _)| *at <= now) {
            self.timers.remove(&(at, request));
            if let Some(ticket) = self.tickets.get_mut(&request) {
                ticket.armed = None;
            }
            self.look_at(now, request, effects);
        }
        if self.reconsider_at.is_some_and(|at| at <= now) {
            self.reconsider_at = None;
            self.changed = true;
        }
    }

    /// Sets the timer of a ticket; an earlier one that is set already stays, and finds nothing to do.
    pub(super) fn arm(&mut self, request: RequestId) {
        let Some(ticket) = self.tickets.get_mut(&request) else { return };
        let Some(due) = ticket.due() else { return };
        if ticket.armed.is_some_and(|armed| armed <= due) {
            return;
        }
        if let Some(late) = ticket.armed.replace(due) {
            self.timers.remove(&(late, request));
        }
        self.timers.insert((due, request));
    }

    pub(super) fn disarm(&mut self, ticket: &Ticket) {
        if let Some(armed) = ticket.armed {
            self.timers.remove(&(armed, ticket.request.id));
        }
    }

    /// The view follows the loads that this host counts itself.
    fn follow_loads(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let mut newest: BTreeMap<VariantId, usize> = BTreeMap::new();
        for (at, effect) in effects.iter().enumerate() {
            if let Effect::LoadChanged(variant, load) = effect {
                let (node, load) = (self.config.me.clone(), *load);
                self.view.apply(now, FleetDelta::Load { node, variant: variant.clone(), load });
                newest.insert(variant.clone(), at);
                self.changed = true;
            }
        }
        let mut at = 0;
        effects.retain(|effect| {
            at += 1;
            !matches!(effect, Effect::LoadChanged(variant, _) if newest.get(variant) != Some(&(at - 1)))
        });
    }

    fn reconsider(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        if std::mem::take(&mut self.changed) && !self.waiting.is_empty() {
            self.dispatch_waiting(now, effects);
            self.changed = false;
        }
        self.reconsider_at =
            if self.waiting.is_empty() { None } else { Some(self.reconsider_at.unwrap_or(now + RECONSIDER_EVERY)) };
    }
}
