//! Plans and grants.

use crate::fleet::PathReport;
use crate::ids::{NodeId, PlanEpoch, ScopeId, ServiceId, VariantId};
use crate::units::{Fraction, Micros, Moment};
use crate::work::{LayerRange, chained};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// A layer of decisions. Each slower one bounds the faster ones after it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Layer {
    /// Which node holds which replica.
    Placement,
    /// Where an edge may send a service's requests.
    Offload,
    /// How a node divides itself.
    Allocation,
    /// Which policy dispatches requests.
    Dispatch,
}

impl Layer {
    /// All layers, slowest first.
    pub const ALL: [Self; 4] = [Self::Placement, Self::Offload, Self::Allocation, Self::Dispatch];

    /// Its name, as in topics and configuration.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Placement => "placement",
            Self::Offload => "offload",
            Self::Allocation => "allocation",
            Self::Dispatch => "dispatch",
        }
    }
}

impl fmt::Display for Layer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A node holds (or shall hold) a replica.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct PlacementRow {
    /// Where.
    pub node: NodeId,
    /// Of what.
    pub variant: VariantId,
}

/// A place where an edge may send requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Target {
    /// Where.
    pub node: NodeId,
    /// Which replica there.
    pub variant: VariantId,
    /// Advised share of the edge's requests; the shares of one row sum to at most 1.
    pub share: Fraction,
    /// Most requests of this edge that may be open there at once.
    pub open_max: u32,
    /// The nodes that serve one after the other, the first being `node`, which may be the edge itself; empty when `node` does it
    /// all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<StageGrant>,
}

impl Target {
    /// Every node that takes part.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        let whole = self.stages.is_empty().then_some(&self.node);
        whole.into_iter().chain(self.stages.iter().map(|stage| &stage.node))
    }

    /// What is wrong with its stages in themselves, if it has any.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn check_stages(&self) -> Result<(), &'static str> {
        let Some(first) = self.stages.first() else { return Ok(()) };
        if first.node != self.node {
            return Err("the first stage is not at the target's node");
        }
        let nodes: BTreeSet<_> = self.stages.iter().map(|stage| &stage.node).collect();
        if nodes.len() < self.stages.len() {
            return Err("one node in two stages");
        }
        chained(self.stages.iter().map(|stage| stage.layers))
    }
}

/// One stage of a target that is split by layers.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageGrant {
    /// Where.
    pub node: NodeId,
    /// Which layers.
    pub layers: LayerRange,
    /// The path from the stage before it as the planner knows it, the first one's from the edge. It is as old as the plan.
    pub path: PathReport,
}

/// Where one edge may send the requests of one service, besides executing them itself.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OffloadRow {
    /// Who may send.
    pub edge: NodeId,
    /// What.
    pub service: ServiceId,
    /// Where to, best first, at most [`Self::TARGETS_MAX`].
    pub targets: Vec<Target>,
}

impl OffloadRow {
    /// Most targets of one edge and service. Dispatch looks at each of them for each request, so the number bounds its time;
    /// eight choices already give nearly all of the benefit of choosing among everything.
    pub const TARGETS_MAX: usize = 8;
}

/// How much of a node one replica may use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AllocationRow {
    /// Which replica.
    pub variant: VariantId,
    /// Requests that may run at once.
    pub slots: u32,
    /// Requests that may wait on the node; more are refused `busy`.
    pub queue_max: u32,
}

/// Which dispatch policy a node runs, with its configuration.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct DispatchSetting {
    /// Its name in the table.
    pub policy: String,
    /// Its configuration; `null` for the default.
    #[serde(default)]
    pub config: serde_json::Value,
}

/// What one layer decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PlanRows {
    /// Which node holds what.
    Placement(Vec<PlacementRow>),
    /// Who may send where.
    Offload(Vec<OffloadRow>),
    /// How a node divides itself.
    Allocation(Vec<AllocationRow>),
    /// Which policy dispatches.
    Dispatch(DispatchSetting),
}

impl PlanRows {
    /// The layer that such rows belong to.
    #[must_use]
    pub const fn layer(&self) -> Layer {
        match self {
            Self::Placement(_) => Layer::Placement,
            Self::Offload(_) => Layer::Offload,
            Self::Allocation(_) => Layer::Allocation,
            Self::Dispatch(_) => Layer::Dispatch,
        }
    }
}

/// One layer's plan for one scope. Each (layer, scope) has exactly one owner at a time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    /// For what part of the fleet.
    pub scope: ScopeId,
    /// Who decided.
    pub owner: NodeId,
    /// This layer's own epoch.
    pub epoch: PlanEpoch,
    /// Epoch of the slower layer's plan that this one keeps within.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub based_on: Option<PlanEpoch>,
    /// How long the plan is good without being renewed.
    pub valid_for: Micros,
    /// What was decided.
    pub rows: PlanRows,
}

/// What the slower layers allow dispatch to use besides the node itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Grant {
    /// Epoch of the offload plan behind it.
    pub epoch: PlanEpoch,
    /// Where each service's requests may go.
    pub targets: BTreeMap<ServiceId, Vec<Target>>,
    /// When it runs out. A cut-off edge goes on within its last grant, and says so.
    pub expires: Option<Moment>,
}
