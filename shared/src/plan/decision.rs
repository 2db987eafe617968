//! What dispatch did with one request, and why.

use super::Reason;
use crate::estimate::Estimate;
use crate::fleet::{Hop, Transport};
use crate::ids::{AttemptId, NodeId, PlanEpoch, VariantId};
use crate::units::{Micros, Moment};
use crate::work::LayerRange;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// How the work of one request is divided.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Split {
    /// One node does it all.
    #[default]
    Whole,
    /// Several nodes, each with some of the model's layers: at least two stages, which follow each other without gap from the
    /// first layer to the last. The first stage's node is the candidate's node.
    Layers(Vec<Stage>),
}

/// One node's part in a request that is split by layers.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stage {
    /// Who.
    pub node: NodeId,
    /// How it is reached from the stage before it, the first one from the ingress.
    pub hop: Hop,
    /// Its layers.
    pub layers: LayerRange,
}

/// One way to serve a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Candidate {
    /// Who.
    pub node: NodeId,
    /// How it is reached.
    pub hop: Hop,
    /// With what.
    pub variant: VariantId,
    /// In which division.
    #[serde(default)]
    pub split: Split,
}

impl Candidate {
    /// Every node that takes part.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        self.parts().map(|(node, _)| node)
    }

    /// Every node that takes part, with its share of the layers; the shares sum to 1.
    pub fn parts(&self) -> impl Iterator<Item = (&NodeId, f64)> {
        let (whole, stages) = match &self.split {
            Split::Whole => (Some((&self.node, 1.0)), &[][..]),
            Split::Layers(stages) => (None, stages.as_slice()),
        };
        whole.into_iter().chain(stages.iter().map(|stage| (&stage.node, stage.layers.share())))
    }

    /// Its stages; none where one node does it all.
    #[must_use]
    pub fn stages(&self) -> &[Stage] {
        match &self.split {
            Split::Whole => &[],
            Split::Layers(stages) => stages,
        }
    }
}

/// A candidate with what it would cost.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Choice {
    /// The candidate.
    pub candidate: Candidate,
    /// What it would cost.
    pub estimate: Estimate,
    /// What carries the way there, where one transport does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
}

/// A candidate that could not be used. The estimate is there where one could be made.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rejected {
    /// Who; of a split, the node that stands in the way.
    pub node: NodeId,
    /// With what.
    pub variant: VariantId,
    /// The nodes of the split that it would have been, first stage first; empty where one node would do it all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<NodeId>,
    /// Why not.
    pub reason: Reason,
}

impl Rejected {
    /// Every node that would have taken part.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeId> {
        let whole = self.stages.is_empty().then_some(&self.node);
        whole.into_iter().chain(&self.stages)
    }
}

/// What was decided.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Execute it so.
    Assign(Choice),
    /// Keep it at the ingress until something changes.
    Wait(Reason),
    /// Nobody can or may serve it.
    Refuse(Reason),
}

/// One decision about one attempt of one request. Never holds text of the request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Decision {
    /// About what.
    pub attempt: AttemptId,
    /// When, on the ingress' clock.
    pub at: Moment,
    /// By which policy.
    pub policy: String,
    /// What was decided.
    pub verdict: Verdict,
    /// The best others, at most [`Self::OTHERS_MAX`], best first.
    pub others: Vec<Choice>,
    /// The rejected, at most [`Self::OTHERS_MAX`], in the order in which they were looked at.
    pub rejected: Vec<Rejected>,
    /// How many candidates fell to each reason, by code.
    pub counts: BTreeMap<String, u32>,
    /// Hash of everything that went into the decision: equal inputs, equal fingerprint.
    pub fingerprint: u64,
    /// Epoch of the offload plan that it kept within.
    pub grant: PlanEpoch,
    /// Age of the oldest fact about the chosen candidate.
    pub age: Micros,
    /// Whether the hub was out of reach.
    pub degraded: bool,
}

impl Decision {
    /// Most other candidates that a record keeps. More would make records larger than answers.
    pub const OTHERS_MAX: usize = 8;
}
