//! Rounds: once a second each layer of each part of the fleet is asked whether its plan shall be made anew, and if so it is, from
//! everything that is known. Then whatever differs from what the node has is published.
//!
//! Level-triggered: a round is told nothing about what happened; the next round is the retry.

use super::config::HubConfig;
use super::epochs::Epochs;
use super::fleet::Fleet;
use super::rows::PlanRow;
use super::{HubEffect, Note};
use serde::{Deserialize, Serialize};
use shared::fleet::NodeState;
use shared::ids::{NodeId, PlanEpoch, ScopeId};
use shared::plan::{DispatchSetting, Grant, Layer, OffloadRow, PlacementRow, Plan, PlanRows, Target, check};
use shared::policy::offload::{self, Offloader};
use shared::policy::placement::{self, Placer};
use shared::policy::timescale::{self, Pace, Pacer};
use shared::policy::{BadPolicy, Budget};
use shared::units::{Micros, Moment};
use shared::wire::mqtt::{AckState, PlanAck};
use shared::work::{Catalogue, ExecHeader};
use std::collections::{BTreeMap, BTreeSet};

/// How long an offload plan is good: twelve rounds. A node whose plan runs out goes on within it and says that it is cut off.
const OFFLOAD_VALID: Micros = Micros::from_secs(60);
/// How long placement and dispatch plans are good: five rounds of the slowest.
const SLOW_VALID: Micros = Micros::from_secs(300);
/// Faults of one plan that are told; the first ones show what is wrong.
const FAULTS_MAX: usize = 8;
/// Characters kept of what a node says about a plan.
const ACK_TEXT_MAX: usize = 200;

/// What a round may know.
#[derive(Clone, Copy, Debug)]
pub(super) struct Around<'a> {
    pub(super) now: Moment,
    pub(super) me: &'a NodeId,
    pub(super) fleet: &'a Fleet,
    pub(super) catalogue: &'a Catalogue,
    /// Rises when nodes, replicas or services come, go or change.
    pub(super) generation: u64,
    pub(super) stale_after: Micros,
    pub(super) seed: u64,
}

/// When and upon what a plan was last made.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
struct Made {
    at: Moment,
    generation: u64,
    /// Version of what the slower layer says.
    upper: u64,
}

/// A published plan.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Held {
    plan: Plan,
    at: Moment,
    ack: Option<AckState>,
    applied: Option<PlanEpoch>,
    /// Rows of the newest plan that the node said is in force; they may be older than `plan`.
    in_force: Option<PlanRows>,
}

/// Policies, and the plans that they made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Rounds {
    pacer: Pacer,
    placer: Placer,
    offloader: Offloader,
    dispatch: DispatchSetting,
    made: BTreeMap<ScopeId, BTreeMap<Layer, Made>>,
    /// The placement in force, by site.
    sites: BTreeMap<ScopeId, Vec<PlacementRow>>,
    /// The same, sorted.
    placed: Vec<PlacementRow>,
    /// Rises when the placement changes, and when the dispatch setting does.
    placed_version: u64,
    dispatch_version: u64,
    plans: BTreeMap<NodeId, BTreeMap<Layer, Held>>,
    /// What the hub grants its own ingress.
    own: Vec<OffloadRow>,
    /// Rounds of slow layers that were held because the hub suspected itself.
    held: u64,
}

impl Rounds {
    /// No plans yet.
    ///
    /// # Errors
    /// [`BadPolicy`] when a policy cannot be had.
    pub(super) fn new(config: &HubConfig, dispatch: DispatchSetting) -> Result<Self, BadPolicy> {
        let (timescale, placement, offload) = (&config.timescale, &config.placement, &config.offload);
        Ok(Self {
            pacer: Pacer::named(&timescale.policy, timescale.config.clone())?,
            placer: Placer::named(&placement.policy, placement.config.clone())?,
            offloader: Offloader::named(&offload.policy, offload.config.clone())?,
            dispatch,
            made: BTreeMap::new(),
            sites: BTreeMap::new(),
            placed: Vec::new(),
            placed_version: 0,
            dispatch_version: 0,
            plans: BTreeMap::new(),
            own: Vec::new(),
            held: 0,
        })
    }

    /// One round of everything. Returns what the hub's own ingress may use, if that was decided anew.
    pub(super) fn round(&mut self, around: &Around<'_>, epochs: &mut Epochs, effects: &mut Vec<HubEffect>) -> Option<Grant> {
        let nodes = planned_for(around.fleet);
        let mut grant = None;
        if around.fleet.suspicion().holds(around.now) {
            self.held += 1;
        } else {
            let sites: BTreeSet<ScopeId> = around.fleet.view().nodes().map(|(node, _)| node.site()).collect();
            self.sites.retain(|site, _| sites.contains(site));
            for site in &sites {
                self.place(around, site);
            }
            for node in &nodes {
                self.publish_placement(around, node, epochs, effects);
                self.offload(around, node, epochs, effects);
            }
            grant = self.grant_own(around, epochs);
        }
        for node in &nodes {
            if self.wants(around, Layer::Dispatch, &node.scope(), self.dispatch_version) {
                // A dispatch setting keeps within whatever is granted, so it waits for no other plan.
                let rows = PlanRows::Dispatch(self.dispatch.clone());
                self.publish(around, node, rows, None, epochs, effects);
            }
        }
        grant
    }

    /// Another dispatch policy for all agents, from the next round on.
    pub(super) fn set_dispatch(&mut self, setting: DispatchSetting) {
        if self.dispatch != setting {
            self.dispatch = setting;
            self.dispatch_version += 1;
        }
    }

    /// A node told what it did with a plan. Returns false for a plan that is not its newest.
    pub(super) fn acked(&mut self, node: &NodeId, ack: PlanAck) -> bool {
        let Some(held) = self.plans.get_mut(node).and_then(|layers| layers.get_mut(&ack.layer)) else { return false };
        if ack.state == AckState::Applied {
            held.applied = held.applied.max(Some(ack.epoch));
        }
        if held.plan.epoch != ack.epoch {
            return false;
        }
        if ack.state == AckState::Applied {
            held.in_force = Some(held.plan.rows.clone());
        }
        let short = |text: String| text.chars().take(ACK_TEXT_MAX).collect();
        held.ack = Some(match ack.state {
            AckState::Failed(why) => AckState::Failed(short(why)),
            AckState::Unsupported(what) => AckState::Unsupported(short(what)),
            known @ (AckState::Received | AckState::Applied) => known,
        });
        true
    }

    /// A node left the fleet for good: its plans go.
    pub(super) fn forget(&mut self, node: &NodeId, effects: &mut Vec<HubEffect>) {
        for layer in self.plans.remove(node).into_iter().flatten().map(|(layer, _)| layer) {
            effects.push(HubEffect::ClearPlan { node: node.clone(), layer });
        }
        self.made.remove(&node.scope());
    }

    /// Whether a node was given a plan in this life of the hub.
    pub(super) fn has_planned_for(&self, node: &NodeId) -> bool {
        self.plans.get(node).is_some_and(|layers| layers.contains_key(&Layer::Offload))
    }

    /// Whether its ingress may have this attempt executed so: by its newest plan, or by the one that it still runs.
    pub(super) fn grants(&self, header: &ExecHeader) -> bool {
        self.granted(&header.ingress)
            .filter(|row| row.service == header.service)
            .flat_map(|row| &row.targets)
            .any(|target| covers(target, header))
    }

    /// Nodes that `edge` may use.
    pub(super) fn targets(&self, edge: &NodeId) -> BTreeSet<&NodeId> {
        self.granted(edge).flat_map(|row| &row.targets).flat_map(Target::nodes).collect()
    }

    /// The plans of one node.
    pub(super) fn rows_of(&self, now: Moment, node: &NodeId) -> Vec<PlanRow> {
        let layers = self.plans.get(node).into_iter().flatten();
        let rows = layers.map(|(layer, held)| PlanRow {
            node: node.clone(),
            layer: *layer,
            plan: held.plan.clone(),
            age: now.since(held.at),
            ack: held.ack.clone(),
            applied: held.applied,
        });
        rows.collect()
    }

    /// All plans.
    pub(super) fn rows(&self, now: Moment) -> Vec<PlanRow> {
        self.plans.keys().flat_map(|node| self.rows_of(now, node)).collect()
    }

    /// Rounds in which the slow layers were held.
    pub(super) const fn held(&self) -> u64 {
        self.held
    }

    fn granted(&self, edge: &NodeId) -> impl Iterator<Item = &OffloadRow> {
        let held = self.plans.get(edge).and_then(|layers| layers.get(&Layer::Offload));
        let rows = held.into_iter().flat_map(|held| std::iter::once(&held.plan.rows).chain(&held.in_force));
        let rows = rows.flat_map(|rows| match rows {
            PlanRows::Offload(rows) => rows.as_slice(),
            PlanRows::Placement(_) | PlanRows::Allocation(_) | PlanRows::Dispatch(_) => &[],
        });
        // The hub's own ingress has no plan; its later stages pass the relay like anybody's.
        rows.chain(self.own.iter().filter(move |row| row.edge == *edge))
    }

    /// Asks the timescale policy, and notes the refresh if it wants one.
    fn wants(&mut self, around: &Around<'_>, layer: Layer, scope: &ScopeId, upper: u64) -> bool {
        let last = self.made.get(scope).and_then(|layers| layers.get(&layer)).copied();
        let scene = timescale::Scene {
            now: around.now,
            layer,
            scope,
            last_refresh: last.map(|made| made.at),
            upper_changed: last.is_some_and(|made| made.upper != upper),
            fleet_changed: last.is_some_and(|made| made.generation != around.generation),
        };
        let refresh = self.pacer.decide(&scene) == Pace::Refresh;
        if refresh {
            let made = Made { at: around.now, generation: around.generation, upper };
            self.made.entry(scope.clone()).or_default().insert(layer, made);
        }
        refresh
    }

    fn place(&mut self, around: &Around<'_>, site: &ScopeId) {
        if !self.wants(around, Layer::Placement, site, 0) {
            return;
        }
        let (now, view, catalogue) = (around.now, around.fleet.view(), around.catalogue);
        let scene = placement::Scene { now, scope: site, view, catalogue, seed: around.seed };
        let held = self.sites.get(site).map_or(&[][..], Vec::as_slice);
        let mut rows = self.placer.round(&scene, held, &mut Budget::default());
        // Sites may nest; a node belongs to the one that it names.
        rows.retain(|row| row.node.site() == *site);
        if self.sites.get(site) != Some(&rows) {
            self.sites.insert(site.clone(), rows);
            self.placed = self.sites.values().flatten().cloned().collect();
            self.placed.sort();
            self.placed_version += 1;
        }
    }

    fn publish_placement(&mut self, around: &Around<'_>, node: &NodeId, epochs: &mut Epochs, effects: &mut Vec<HubEffect>) {
        let planned = self.plans.get(node).is_some_and(|layers| layers.contains_key(&Layer::Placement));
        // A node that drains is not told to hold nothing: it keeps the plan that it has until it works again.
        let drains = around.fleet.view().node(node).is_some_and(|entry| entry.state == NodeState::Draining);
        let wanted = !drains || !planned;
        if !wanted || !self.wants(around, Layer::Placement, &node.scope(), self.placed_version) {
            return;
        }
        let rows = self.placed.iter().filter(|row| row.node == *node).cloned().collect();
        self.publish(around, node, PlanRows::Placement(rows), None, epochs, effects);
    }

    fn offload(&mut self, around: &Around<'_>, edge: &NodeId, epochs: &mut Epochs, effects: &mut Vec<HubEffect>) {
        // Without a placement there is nothing to be bounded by: a node's first offload plan follows its first placement plan.
        let layers = self.plans.get(edge);
        let Some(based_on) = layers.and_then(|layers| layers.get(&Layer::Placement)).map(|held| held.plan.epoch) else { return };
        if !self.wants(around, Layer::Offload, &edge.scope(), self.placed_version) {
            return;
        }
        let layers = self.plans.get(edge);
        let held = layers.and_then(|layers| layers.get(&Layer::Offload)).map(|held| held.plan.rows.clone());
        let held = if let Some(PlanRows::Offload(rows)) = held { rows } else { Vec::new() };
        let rows = self.targets_for(around, edge, &held);
        self.publish(around, edge, PlanRows::Offload(rows), Some(based_on), epochs, effects);
    }

    fn targets_for(&mut self, around: &Around<'_>, edge: &NodeId, held: &[OffloadRow]) -> Vec<OffloadRow> {
        let scene = offload::Scene {
            now: around.now,
            edge,
            me: around.me,
            view: around.fleet.view(),
            catalogue: around.catalogue,
            placed: Some(&self.placed),
            stale_after: around.stale_after,
            seed: around.seed,
        };
        self.offloader.round(&scene, held, &mut Budget::default())
    }

    fn grant_own(&mut self, around: &Around<'_>, epochs: &mut Epochs) -> Option<Grant> {
        if !self.wants(around, Layer::Offload, &around.me.scope(), self.placed_version) {
            return None;
        }
        let held = std::mem::take(&mut self.own);
        let rows = self.targets_for(around, around.me, &held);
        let changed = rows != held;
        self.own = rows;
        changed.then(|| {
            let targets = self.own.iter().map(|row| (row.service.clone(), row.targets.clone())).collect();
            // The hub plans for itself as long as it runs: the grant needs no end.
            Grant { epoch: epochs.plan(around.me), targets, expires: None }
        })
    }

    /// Publishes the rows if they differ from what the node has, or if half of that plan's time is over.
    fn publish(
        &mut self,
        around: &Around<'_>,
        node: &NodeId,
        rows: PlanRows,
        based_on: Option<PlanEpoch>,
        epochs: &mut Epochs,
        effects: &mut Vec<HubEffect>,
    ) {
        let layer = rows.layer();
        let valid_for = if layer == Layer::Offload { OFFLOAD_VALID } else { SLOW_VALID };
        let held = self.plans.get(node).and_then(|layers| layers.get(&layer));
        if held.is_some_and(|held| {
            let fresh = around.now.since(held.at) < valid_for.scale(0.5);
            fresh && held.plan.rows == rows && held.plan.epoch.incarnation == epochs.incarnation()
        }) {
            return;
        }
        let owner = around.me.clone();
        let plan = Plan { scope: node.scope(), owner, epoch: epochs.plan(node), based_on, valid_for, rows };
        let faults = check(&plan, around.fleet.view(), around.catalogue);
        if !faults.is_empty() {
            let faults = faults.iter().take(FAULTS_MAX).map(ToString::to_string).collect();
            effects.push(HubEffect::Note(Note::FaultyPlan { node: node.clone(), layer, faults }));
            return;
        }
        effects.push(HubEffect::PublishPlan { node: node.clone(), plan: plan.clone() });
        let (applied, in_force) = held.map_or((None, None), |held| (held.applied, held.in_force.clone()));
        let fresh = Held { plan, at: around.now, ack: None, applied, in_force };
        self.plans.entry(node.clone()).or_default().insert(layer, fresh);
    }
}

/// Whether a target is what the header asks for: the same nodes with the same layers, however they are reached today.
fn covers(target: &Target, header: &ExecHeader) -> bool {
    let stages = || target.stages.iter().zip(&header.stages).all(|(a, b)| a.node == b.node && a.layers == b.layers);
    target.variant == header.variant
        && target.stages.len() == header.stages.len()
        && if header.stages.is_empty() { target.node == header.target } else { stages() }
}

/// Nodes that plans are made for: those that work. One that is silent or has lost its connection goes on within the plans that it
/// has: what the hub can no longer see of it is no reason to take anything from it. To a cloned identity nothing is planned: who
/// of the two would it be for?
fn planned_for(fleet: &Fleet) -> Vec<NodeId> {
    let works = |state| matches!(state, NodeState::Online | NodeState::Draining);
    fleet.members().filter(|(_, member)| works(member.shown)).map(|(node, _)| node.clone()).collect()
}
