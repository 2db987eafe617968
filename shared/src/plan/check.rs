//! Finds faults in a plan, apart from whoever made it.
//!
//! A checker shares no code with the policies: what it finds, they got wrong. It says what is wrong with a plan, never what a
//! better one would be.

use super::{AllocationRow, DispatchSetting, OffloadRow, PlacementRow, Plan, PlanRows, Target};
use crate::fleet::{FleetView, NodeState, NodeView};
use crate::ids::{NodeId, ScopeId, ServiceId, VariantId};
use crate::policy::dispatch::Dispatcher;
use crate::units::{Bytes, Micros};
use crate::work::{Catalogue, EngineKind, LayerRange};
use std::collections::BTreeSet;

/// Rounding that equal shares may leave above 1.
const SHARES_EXCESS_MAX: f64 = 1e-9;

/// Something wrong with a plan.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Fault {
    /// A row outside the plan's scope.
    #[error("{node} lies outside the scope {scope}")]
    OutOfScope {
        /// Of which node the row speaks.
        node: NodeId,
        /// What the plan is for.
        scope: ScopeId,
    },
    /// A row for one node's inside in a plan for something else.
    #[error("the scope {0} is no node of the view: want the one node that is divided")]
    NotOneNode(ScopeId),
    /// An agent decided for others.
    #[error("{owner} owns a plan for {scope}: want a hub, or the scope's own node")]
    Owner {
        /// Who decided.
        owner: NodeId,
        /// For what.
        scope: ScopeId,
    },
    /// Bound by nothing, though a slower layer bounds it.
    #[error("based on no plan of the slower layer")]
    NoBase,
    /// Already over when it is made.
    #[error("good for no time at all")]
    NoTime,
    /// A node that is not in the view.
    #[error("{0} is not known")]
    UnknownNode(NodeId),
    /// A service that is not in the catalogue.
    #[error("the service `{0}` is not known")]
    UnknownService(ServiceId),
    /// A variant that is not in the catalogue, or not one of the row's service.
    #[error("the variant `{0}` is not known, or serves something else")]
    UnknownVariant(VariantId),
    /// A policy that is not in the table, or a configuration that it cannot read.
    #[error("{0}")]
    Policy(String),
    /// A node that may not be given work.
    #[error("{node} is {state:?}")]
    NotOnline {
        /// Which.
        node: NodeId,
        /// How it is.
        state: NodeState,
    },
    /// A replica that its node does not report.
    #[error("{node} reports no replica of `{variant}`")]
    NoReplica {
        /// Where.
        node: NodeId,
        /// Of what.
        variant: VariantId,
    },
    /// The same thing said twice.
    #[error("said twice: {0}")]
    Twice(String),
    /// Rows that are searched by bisection must be in order.
    #[error("placement rows are not sorted")]
    Unsorted,
    /// More memory than the machine has.
    #[error("{node}: replicas of {wanted} on a machine of {memory}")]
    Memory {
        /// Where.
        node: NodeId,
        /// What the placed variants take.
        wanted: Bytes,
        /// What there is.
        memory: Bytes,
    },
    /// More targets than dispatch may look at.
    #[error("{edge}, `{service}`: {count} targets, at most {max}", max = OffloadRow::TARGETS_MAX)]
    TooManyTargets {
        /// Of whom.
        edge: NodeId,
        /// For what.
        service: ServiceId,
        /// How many there are.
        count: usize,
    },
    /// More than everything is given away.
    #[error("{edge}, `{service}`: the shares sum to {sum}")]
    Shares {
        /// Of whom.
        edge: NodeId,
        /// For what.
        service: ServiceId,
        /// What they sum to.
        sum: f64,
    },
    /// An edge needs no grant to execute something alone.
    #[error("{0} is granted itself")]
    ItselfAsTarget(NodeId),
    /// Stages that do not make a split.
    #[error("`{variant}` split from {node} on: {why}")]
    Stages {
        /// Where it would begin.
        node: NodeId,
        /// Of what.
        variant: VariantId,
        /// What is wrong.
        why: &'static str,
    },
    /// A replica that does not hold what is asked of it.
    #[error("{node} holds {held} of `{variant}`, not {wanted}")]
    NotHeld {
        /// Where.
        node: NodeId,
        /// Of what.
        variant: VariantId,
        /// Which layers it reports.
        held: String,
        /// Which were wanted.
        wanted: String,
    },
    /// A row that allows nothing: leave it out instead.
    #[error("{0} is zero")]
    Zero(String),
}

/// All faults of `plan` against what is known. A good plan has none.
#[must_use]
pub fn check(plan: &Plan, view: &FleetView, catalogue: &Catalogue) -> Vec<Fault> {
    let mut checker = Checker { plan, view, catalogue, faults: Vec::new() };
    checker.head();
    match &plan.rows {
        PlanRows::Placement(rows) => checker.placement(rows),
        PlanRows::Offload(rows) => checker.offload(rows),
        PlanRows::Allocation(rows) => checker.allocation(rows),
        PlanRows::Dispatch(setting) => checker.dispatch(setting),
    }
    checker.faults
}

struct Checker<'a> {
    plan: &'a Plan,
    view: &'a FleetView,
    catalogue: &'a Catalogue,
    faults: Vec<Fault>,
}

impl<'a> Checker<'a> {
    fn head(&mut self) {
        let Plan { scope, owner, based_on, valid_for, rows, .. } = self.plan;
        let own = owner.scope() == *scope;
        // A hub executes nothing and so is in no view; whoever is in the view is an agent.
        if !own && self.view.node(owner).is_some() {
            self.faults.push(Fault::Owner { owner: owner.clone(), scope: scope.clone() });
        }
        // An edge that decides for itself may never have met a hub.
        let bound = matches!(rows, PlanRows::Offload(_) | PlanRows::Allocation(_));
        if bound && !own && based_on.is_none() {
            self.faults.push(Fault::NoBase);
        }
        if *valid_for == Micros::ZERO {
            self.faults.push(Fault::NoTime);
        }
    }

    fn placement(&mut self, rows: &[PlacementRow]) {
        if !rows.is_sorted() {
            self.faults.push(Fault::Unsorted);
        }
        let mut said = BTreeSet::new();
        for row in rows {
            self.once(&mut said, (&row.node, &row.variant), || format!("`{}` on {}", row.variant, row.node));
            self.in_scope(&row.node);
            self.online(&row.node);
            if self.catalogue.variant(&row.variant).is_none() {
                self.faults.push(Fault::UnknownVariant(row.variant.clone()));
            }
        }
        for node in rows.iter().map(|row| &row.node).collect::<BTreeSet<_>>() {
            self.memory(node, rows);
        }
    }

    /// What a node holds has shown that it fits; only what would come on top must fit beside it.
    fn memory(&mut self, node: &NodeId, rows: &[PlacementRow]) {
        let Some(entry) = self.view.node(node) else { return };
        let Some(memory) = entry.machine.memory else { return };
        let placed: BTreeSet<_> = rows.iter().filter(|row| row.node == *node).map(|row| &row.variant).collect();
        let held = |variant: &VariantId| entry.replicas.get(variant).map(|replica| &replica.value);
        let mut wanted = Bytes(0);
        for variant in &placed {
            wanted += match held(variant) {
                Some(replica) if matches!(replica.engine, EngineKind::Llm | EngineKind::LlamaCpp) => replica.memory,
                Some(_) => Bytes(0),
                None => self.catalogue.variant(variant).map_or(Bytes(0), |variant| variant.memory),
            };
        }
        let grows = placed.iter().any(|variant| held(variant).is_none());
        if grows && wanted > memory {
            self.faults.push(Fault::Memory { node: node.clone(), wanted, memory });
        }
    }

    fn offload(&mut self, rows: &[OffloadRow]) {
        let mut said = BTreeSet::new();
        for row in rows {
            self.once(&mut said, (&row.edge, &row.service), || format!("`{}` of {}", row.service, row.edge));
            self.in_scope(&row.edge);
            self.known(&row.edge);
            if self.catalogue.service(&row.service).is_none() {
                self.faults.push(Fault::UnknownService(row.service.clone()));
            }
            let count = row.targets.len();
            if count > OffloadRow::TARGETS_MAX {
                self.faults.push(Fault::TooManyTargets { edge: row.edge.clone(), service: row.service.clone(), count });
            }
            let sum: f64 = row.targets.iter().map(|target| target.share.get()).sum();
            if sum > 1.0 + SHARES_EXCESS_MAX {
                self.faults.push(Fault::Shares { edge: row.edge.clone(), service: row.service.clone(), sum });
            }
            self.targets(row);
        }
    }

    fn targets(&mut self, row: &OffloadRow) {
        let mut said = BTreeSet::new();
        for target @ Target { node, variant, open_max, .. } in &row.targets {
            let nodes: Vec<_> = target.nodes().collect();
            self.once(&mut said, (variant, nodes), || format!("`{variant}` on {node} for {}", row.edge));
            if *node == row.edge && target.stages.is_empty() {
                self.faults.push(Fault::ItselfAsTarget(node.clone()));
            }
            if *open_max == 0 {
                self.faults.push(Fault::Zero(format!("open_max of `{variant}` on {node}")));
            }
            let service = self.catalogue.service(&row.service);
            if service.is_some_and(|service| service.variants.iter().all(|other| other.id != *variant)) {
                self.faults.push(Fault::UnknownVariant(variant.clone()));
            }
            if let Err(why) = target.check_stages() {
                self.faults.push(Fault::Stages { node: node.clone(), variant: variant.clone(), why });
            }
            if target.stages.is_empty() {
                self.holds(node, variant, None);
            }
            for stage in &target.stages {
                self.holds(&stage.node, variant, Some(stage.layers));
            }
        }
    }

    /// Whether an online node reports a replica of these layers, or of all.
    fn holds(&mut self, node: &NodeId, variant: &VariantId, layers: Option<LayerRange>) {
        let Some(entry) = self.online(node) else { return };
        self.reported(node, entry, variant);
        let Some(replica) = entry.replicas.get(variant).map(|replica| &replica.value) else { return };
        if layers.map_or_else(|| replica.serves_whole(), |layers| replica.serves_layers(layers)) {
            return;
        }
        let held = replica.layers.map_or_else(|| "no layers alone".to_owned(), |held| format!("layers {}", held.range));
        let wanted = layers.map_or_else(|| "all".to_owned(), |layers| layers.to_string());
        self.faults.push(Fault::NotHeld { node: node.clone(), variant: variant.clone(), held, wanted });
    }

    fn allocation(&mut self, rows: &[AllocationRow]) {
        let scope = &self.plan.scope;
        let node = NodeId::new(scope.as_str()).ok();
        let Some((node, entry)) = node.and_then(|node| self.view.node(&node).map(|entry| (node, entry))) else {
            self.faults.push(Fault::NotOneNode(scope.clone()));
            return;
        };
        let mut said = BTreeSet::new();
        for row in rows {
            self.once(&mut said, &row.variant, || format!("`{}`", row.variant));
            self.reported(&node, entry, &row.variant);
            if row.slots == 0 {
                self.faults.push(Fault::Zero(format!("slots of `{}`", row.variant)));
            }
        }
    }

    fn dispatch(&mut self, setting: &DispatchSetting) {
        if let Err(error) = Dispatcher::new(setting) {
            self.faults.push(Fault::Policy(error.to_string()));
        }
    }

    fn once<K: Ord>(&mut self, said: &mut BTreeSet<K>, key: K, what: impl FnOnce() -> String) {
        if !said.insert(key) {
            self.faults.push(Fault::Twice(what()));
        }
    }

    fn in_scope(&mut self, node: &NodeId) {
        let scope = &self.plan.scope;
        if !scope.contains(node) {
            self.faults.push(Fault::OutOfScope { node: node.clone(), scope: scope.clone() });
        }
    }

    fn known(&mut self, node: &NodeId) -> Option<&'a NodeView> {
        let entry = self.view.node(node);
        if entry.is_none() {
            self.faults.push(Fault::UnknownNode(node.clone()));
        }
        entry
    }

    fn online(&mut self, node: &NodeId) -> Option<&'a NodeView> {
        let entry = self.known(node)?;
        if entry.state != NodeState::Online {
            self.faults.push(Fault::NotOnline { node: node.clone(), state: entry.state });
        }
        Some(entry)
    }

    fn reported(&mut self, node: &NodeId, entry: &NodeView, variant: &VariantId) {
        if !entry.replicas.contains_key(variant) {
            self.faults.push(Fault::NoReplica { node: node.clone(), variant: variant.clone() });
        }
    }
}
