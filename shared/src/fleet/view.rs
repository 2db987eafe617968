//! What a decision maker knows of the fleet: kept incrementally, indexed, each fact with the moment it was true.

use super::{Costs, Hop, Load, Machine, NodeState, PathReport, ReplicaReport, ReplicaState, Tier};
use crate::ids::{NodeId, ScopeId, VariantId};
use crate::units::{Micros, Moment};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A fact and the moment, on the viewer's clock, at which it was true.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Aged<T> {
    /// What was true.
    pub value: T,
    /// When.
    pub at: Moment,
}

impl<T> Aged<T> {
    /// How old the fact is.
    pub fn age(&self, now: Moment) -> Micros {
        now.since(self.at)
    }
}

/// One node, as the viewer knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeView {
    /// Its level.
    pub tier: Tier,
    /// Whether it may be given work.
    pub state: NodeState,
    /// What work on it costs.
    pub costs: Costs,
    /// What the machine is, as far as it is known here.
    #[serde(default)]
    pub machine: Machine,
    /// What is loaded there.
    pub replicas: BTreeMap<VariantId, Aged<ReplicaReport>>,
    /// How the viewer reaches it, best first in the order of [`Hop`]. A path that does not carry data is not here.
    pub paths: BTreeMap<Hop, Aged<PathReport>>,
    /// Where its QUIC endpoint listens for other agents.
    pub addresses: Vec<String>,
    /// Its direct paths to other nodes, as it reported them.
    pub peers: BTreeMap<NodeId, PathReport>,
    /// The moment of its last full report.
    pub reported: Option<Moment>,
}

impl NodeView {
    fn new(tier: Tier) -> Self {
        Self {
            tier,
            state: NodeState::Seen,
            costs: Costs::default(),
            machine: Machine::default(),
            replicas: BTreeMap::new(),
            paths: BTreeMap::new(),
            addresses: Vec::new(),
            peers: BTreeMap::new(),
            reported: None,
        }
    }
}

/// One change of a view. Deltas are idempotent, and older facts never replace newer ones.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "such a value lives for a moment, in one place: a box would cost more than its room"
)]
pub enum FleetDelta {
    /// What the node is.
    Node {
        /// Which.
        node: NodeId,
        /// Its level.
        tier: Tier,
        /// What work on it costs.
        costs: Costs,
        /// Where its QUIC endpoint listens.
        addresses: Vec<String>,
    },
    /// What the node's machine is, where the viewer plans for it.
    Machine {
        /// Which.
        node: NodeId,
        /// Its cores and memory.
        machine: Machine,
    },
    /// Whether the node may be given work.
    State {
        /// Which.
        node: NodeId,
        /// Its state.
        state: NodeState,
    },
    /// All replicas of a node; those not named are gone.
    Replicas {
        /// Which.
        node: NodeId,
        /// What it reported.
        replicas: Vec<ReplicaReport>,
        /// How old the report was when it arrived.
        age: Micros,
    },
    /// The node's direct paths to other nodes; those not named are gone.
    Peers {
        /// Which node reported.
        node: NodeId,
        /// How it reaches others.
        peers: BTreeMap<NodeId, PathReport>,
    },
    /// The load of one replica, as it rides on answers and pings.
    Load {
        /// Which node.
        node: NodeId,
        /// Which replica.
        variant: VariantId,
        /// Its load.
        load: Load,
    },
    /// A path carries data.
    Path {
        /// To which node.
        node: NodeId,
        /// What is known of it.
        path: PathReport,
    },
    /// A path no longer carries data.
    PathLost {
        /// To which node.
        node: NodeId,
        /// Which way.
        hop: Hop,
    },
    /// The node left the fleet, or left what this viewer is shown.
    Gone {
        /// Which.
        node: NodeId,
    },
}

/// The fleet as one decision maker knows it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct FleetView {
    nodes: BTreeMap<NodeId, NodeView>,
    /// Which nodes report a replica of the variant, in whatever state.
    holders: BTreeMap<VariantId, BTreeSet<NodeId>>,
}

impl FleetView {
    /// Takes in one change.
    pub fn apply(&mut self, now: Moment, delta: FleetDelta) {
        match delta {
            FleetDelta::Node { node, tier, costs, addresses } => {
                let entry = self.entry(node);
                entry.tier = tier;
                entry.costs = costs;
                entry.addresses = addresses;
            }
            FleetDelta::Machine { node, machine } => self.entry(node).machine = machine,
            FleetDelta::State { node, state } => self.entry(node).state = state,
            FleetDelta::Replicas { node, replicas, age } => self.replace_replicas(node, replicas, now.before(age)),
            FleetDelta::Peers { node, peers } => self.entry(node).peers = peers,
            FleetDelta::Load { node, variant, load } => {
                if let Some(replica) = self.nodes.get_mut(&node).and_then(|entry| entry.replicas.get_mut(&variant)) {
                    replica.value.load = load;
                    replica.at = now;
                }
            }
            FleetDelta::Path { node, path } => {
                self.entry(node).paths.insert(path.hop, Aged { value: path, at: now });
            }
            FleetDelta::PathLost { node, hop } => {
                if let Some(entry) = self.nodes.get_mut(&node) {
                    entry.paths.remove(&hop);
                }
            }
            FleetDelta::Gone { node } => {
                if let Some(entry) = self.nodes.remove(&node) {
                    for variant in entry.replicas.keys() {
                        self.unindex(variant, &node);
                    }
                }
            }
        }
    }

    /// The node, if it is known.
    #[must_use]
    pub fn node(&self, node: &NodeId) -> Option<&NodeView> {
        self.nodes.get(node)
    }

    /// All known nodes in the order of their ids.
    pub fn nodes(&self) -> impl Iterator<Item = (&NodeId, &NodeView)> {
        self.nodes.iter()
    }

    /// Known nodes inside a scope, in the order of their ids.
    pub fn nodes_in<'a>(&'a self, scope: &'a ScopeId) -> impl Iterator<Item = (&'a NodeId, &'a NodeView)> {
        self.nodes.iter().filter(|(node, _)| scope.contains(node))
    }

    /// Nodes that report a replica of this variant, in whatever state, in the order of their ids.
    pub fn holders(&self, variant: &VariantId) -> impl Iterator<Item = &NodeId> {
        self.holders.get(variant).into_iter().flatten()
    }

    /// All reports of replicas of this variant, in whatever state and however old.
    pub fn replicas_of(&self, variant: &VariantId) -> impl Iterator<Item = &ReplicaReport> {
        self.holders(variant).filter_map(|node| Some(&self.nodes.get(node)?.replicas.get(variant)?.value))
    }

    /// Nodes that are online and serve this variant, as far as is known.
    pub fn ready(&self, variant: &VariantId) -> impl Iterator<Item = &NodeId> {
        let serves = |node: &&NodeId| {
            let entry = self.nodes.get(*node).filter(|entry| entry.state == NodeState::Online);
            let replica = entry.and_then(|entry| entry.replicas.get(variant));
            replica.is_some_and(|replica| replica.value.state == ReplicaState::Ready)
        };
        self.holders(variant).filter(serves)
    }

    fn entry(&mut self, node: NodeId) -> &mut NodeView {
        self.nodes.entry(node).or_insert_with(|| NodeView::new(Tier::default()))
    }

    fn replace_replicas(&mut self, node: NodeId, replicas: Vec<ReplicaReport>, at: Moment) {
        let entry = self.entry(node.clone());
        if entry.reported.is_some_and(|newest| newest > at) {
            return;
        }
        entry.reported = Some(at);
        let held = std::mem::take(&mut entry.replicas);
        let fresh = replicas.into_iter().map(|mut report| {
            // A load that rode on an answer may be newer than the report.
            let newer = held.get(&report.variant).filter(|old| old.at > at);
            if let Some(old) = newer {
                report.load = old.value.load;
            }
            let at = newer.map_or(at, |old| old.at);
            (report.variant.clone(), Aged { value: report, at })
        });
        let fresh = fresh.collect();
        self.install(node, &held, fresh);
    }

    fn install(
        &mut self,
        node: NodeId,
        held: &BTreeMap<VariantId, Aged<ReplicaReport>>,
        fresh: BTreeMap<VariantId, Aged<ReplicaReport>>,
    ) {
        for variant in held.keys().filter(|variant| !fresh.contains_key(*variant)) {
            self.unindex(variant, &node);
        }
        for variant in fresh.keys().filter(|variant| !held.contains_key(*variant)) {
            self.holders.entry(variant.clone()).or_default().insert(node.clone());
        }
        self.entry(node).replicas = fresh;
    }

    fn unindex(&mut self, variant: &VariantId, node: &NodeId) {
        if let Some(holders) = self.holders.get_mut(variant) {
            holders.remove(node);
            if holders.is_empty() {
                self.holders.remove(variant);
            }
        }
    }
}
