//! What the hub shows this node of the fleet, put beside what this node sees for itself.

use super::{Neighbour, Persisted};
use serde::{Deserialize, Serialize};
use shared::fleet::{FleetDelta, Hop, NodeState, PathReport};
use shared::ids::{NodeId, PlanEpoch};
use shared::units::Micros;
use shared::wire::mqtt::{ViewMessage, ViewNode};
use shared::work::{Catalogue, ClientKey};
use std::collections::{BTreeMap, BTreeSet};

/// Most nodes of a view that are believed. A node may know its site and eight targets a service; more is a fault of the sender,
/// and the rest is ignored.
const NODES_MAX: usize = 1_024;
/// Most revoked certificates that are remembered; the list is for the life of a certificate, and a fleet that revokes more than
/// this within it has other troubles.
const REVOKED_MAX: usize = 10_000;

/// A node that the hub showed.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Shown {
    pub(super) neighbour: Neighbour,
    /// The hub's word; absent for one that is only remembered.
    pub(super) state: Option<NodeState>,
}

/// What the hub showed last.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct View {
    me: NodeId,
    epoch: Option<PlanEpoch>,
    nodes: BTreeMap<NodeId, Shown>,
    catalogue: Option<Catalogue>,
    #[serde(default)]
    keys: Vec<ClientKey>,
    revoked: BTreeSet<String>,
    drain: bool,
    dirty: bool,
}

/// What a view message changed, besides the fleet.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Changes {
    pub(super) deltas: Vec<FleetDelta>,
    pub(super) catalogue: Option<Catalogue>,
    pub(super) keys: Option<Vec<ClientKey>>,
    pub(super) revoked: Option<Vec<String>>,
    pub(super) drain: Option<bool>,
}

impl View {
    pub(super) const fn new(me: NodeId) -> Self {
        Self {
            me,
            epoch: None,
            nodes: BTreeMap::new(),
            catalogue: None,
            keys: Vec::new(),
            revoked: BTreeSet::new(),
            drain: false,
            dirty: false,
        }
    }

    /// Takes back what an earlier life knew.
    pub(super) fn restore(&mut self, persisted: &Persisted) -> Changes {
        let remembered = |neighbour: &Neighbour| Shown { neighbour: neighbour.clone(), state: None };
        self.nodes = persisted.neighbours.iter().map(|(node, known)| (node.clone(), remembered(known))).collect();
        self.catalogue.clone_from(&persisted.catalogue);
        self.keys.clone_from(&persisted.keys);
        self.revoked = persisted.revoked.iter().cloned().collect();
        self.drain = persisted.drain;
        Changes {
            deltas: self.nodes.iter().map(|(node, shown)| node_delta(node, &shown.neighbour)).collect(),
            catalogue: self.catalogue.clone(),
            keys: (!self.keys.is_empty()).then(|| self.keys.clone()),
            revoked: (!self.revoked.is_empty()).then(|| persisted.revoked.clone()),
            drain: self.drain.then_some(true),
        }
    }

    /// A new session has begun: the hub may count its views anew.
    pub(super) const fn new_session(&mut self) {
        self.epoch = None;
    }

    pub(super) const fn nodes(&self) -> &BTreeMap<NodeId, Shown> {
        &self.nodes
    }

    pub(super) const fn drains(&self) -> bool {
        self.drain
    }

    /// Takes in a view. `uplink` is this node's own way to the hub; `direct` says which nodes are connected without it.
    pub(super) fn take(
        &mut self,
        message: ViewMessage,
        uplink: Option<&PathReport>,
        direct: impl Fn(&NodeId) -> bool,
    ) -> Changes {
        let mut changes = Changes::default();
        if self.epoch.is_some_and(|held| message.epoch <= held) {
            return changes;
        }
        self.epoch = Some(message.epoch);
        self.replace_nodes(message.nodes, uplink, direct, &mut changes.deltas);
        if let Some(catalogue) = message.catalogue
            && self.catalogue.as_ref() != Some(&catalogue)
        {
            self.catalogue = Some(catalogue.clone());
            changes.catalogue = Some(catalogue);
        }
        if let Some(keys) = message.keys.filter(|keys| *keys != self.keys) {
            self.keys = keys.into_iter().take(ClientKey::KEYS_MAX).collect();
            changes.keys = Some(self.keys.clone());
        }
        let revoked: BTreeSet<_> = message.revoked.into_iter().take(REVOKED_MAX).collect();
        if revoked != self.revoked {
            changes.revoked = Some(revoked.iter().cloned().collect());
            self.revoked = revoked;
        }
        if message.drain != self.drain {
            self.drain = message.drain;
            changes.drain = Some(message.drain);
        }
        self.dirty |=
            changes.catalogue.is_some() || changes.keys.is_some() || changes.revoked.is_some() || changes.drain.is_some();
        changes
    }

    fn replace_nodes(
        &mut self,
        nodes: Vec<ViewNode>,
        uplink: Option<&PathReport>,
        direct: impl Fn(&NodeId) -> bool,
        deltas: &mut Vec<FleetDelta>,
    ) {
        let before = std::mem::take(&mut self.nodes);
        for node in nodes.into_iter().filter(|node| node.node != self.me).take(NODES_MAX) {
            let neighbour = Neighbour { tier: node.tier, costs: node.costs.clone(), addresses: node.addresses.clone() };
            self.dirty |= before.get(&node.node).is_none_or(|shown| shown.neighbour != neighbour);
            self.nodes.insert(node.node.clone(), Shown { neighbour, state: Some(node.state) });
            let connected = direct(&node.node);
            show(node, connected, uplink, deltas);
        }
        for gone in before.into_keys().filter(|node| !self.nodes.contains_key(node)) {
            self.dirty = true;
            deltas.push(if direct(&gone) {
                FleetDelta::PathLost { node: gone, hop: Hop::Relay }
            } else {
                FleetDelta::Gone { node: gone }
            });
        }
    }

    /// The hub is out of reach: no path leads through it.
    pub(super) fn cut_off(&self) -> Vec<FleetDelta> {
        self.nodes.keys().map(|node| FleetDelta::PathLost { node: node.clone(), hop: Hop::Relay }).collect()
    }

    /// Whether something worth writing down changed since the last call.
    pub(super) fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    pub(super) fn persist(&self, into: &mut Persisted) {
        into.neighbours = self.nodes.iter().map(|(node, shown)| (node.clone(), shown.neighbour.clone())).collect();
        into.catalogue.clone_from(&self.catalogue);
        into.keys.clone_from(&self.keys);
        into.revoked = self.revoked.iter().cloned().collect();
        into.drain = self.drain;
    }
}

/// What a directly connected node is, whatever lease the hub has of it: only an operator's word and a clone stand above what we
/// see ourselves.
pub(super) fn state_when_connected(said: Option<NodeState>) -> NodeState {
    match said {
        Some(state @ (NodeState::Draining | NodeState::Cloned)) => state,
        _ => NodeState::Online,
    }
}

pub(super) fn node_delta(node: &NodeId, known: &Neighbour) -> FleetDelta {
    FleetDelta::Node { node: node.clone(), tier: known.tier, costs: known.costs.clone(), addresses: known.addresses.clone() }
}

fn show(shown: ViewNode, connected: bool, uplink: Option<&PathReport>, deltas: &mut Vec<FleetDelta>) {
    let ViewNode { node, tier, state, costs, addresses, uplink: theirs, replicas, age } = shown;
    deltas.push(FleetDelta::Node { node: node.clone(), tier, costs, addresses });
    let state = if connected { state_when_connected(Some(state)) } else { state };
    deltas.push(FleetDelta::State { node: node.clone(), state });
    // A report with impossible numbers is dropped whole, as the hub does; the node's older facts age.
    if let Some(age) = age
        && replicas.iter().all(|replica| replica.validate().is_ok())
    {
        deltas.push(FleetDelta::Replicas { node: node.clone(), replicas, age });
    }
    deltas.push(match (uplink, theirs) {
        (Some(ours), Some(theirs)) => FleetDelta::Path { node, path: relayed(ours, &theirs) },
        _ => FleetDelta::PathLost { node, hop: Hop::Relay },
    });
}

/// The way through the hub: both halves one after the other; `theirs` is the hub's own path to the node. Of the round trip half of the truth is better than none: a path
/// without one would look instantaneous.
fn relayed(ours: &PathReport, theirs: &PathReport) -> PathReport {
    let both = |a: Option<Micros>, b: Option<Micros>| Some(a? + b?);
    PathReport {
        hop: Hop::Relay,
        rtt: both(ours.rtt, theirs.rtt).or(ours.rtt).or(theirs.rtt),
        jitter: both(ours.jitter, theirs.jitter),
        rate_out: ours.rate_out.zip(theirs.rate_out).map(|(a, b)| if a <= b { a } else { b }),
        rate_in: ours.rate_in.zip(theirs.rate_in).map(|(a, b)| if a <= b { a } else { b }),
        loss: None,
        metered: ours.metered || theirs.metered,
        transport: ours.transport.filter(|_| ours.transport == theirs.transport),
    }
}
