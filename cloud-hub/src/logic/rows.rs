//! Rows for people and their tools: what the admin API shows. Rendered when read, never kept.

use serde::{Deserialize, Serialize};
use shared::fleet::{Inventory, Load, NodeState, ReplicaState, Telemetry, Tier, Transport};
use shared::ids::{Instance, NodeId, PlanEpoch, ServiceId, SessionEpoch, VariantId};
use shared::plan::{Layer, Plan};
use shared::units::{Joules, MicroDollars, Micros};
use shared::wire::mqtt::AckState;
use shared::work::LayerRange;
use std::collections::BTreeMap;

/// One node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeRow {
    /// Which.
    pub node: NodeId,
    /// Its level, if it said so in this life of the hub.
    pub tier: Option<Tier>,
    /// Its state, the operator's wish included.
    pub state: NodeState,
    /// Whether an operator wants it empty.
    pub draining: bool,
    /// Whether its certificates were revoked.
    pub revoked: bool,
    /// Labels from its join token and inventory.
    pub labels: BTreeMap<String, String>,
    /// What it said it is, if it said so in this life of the hub.
    pub inventory: Option<Inventory>,
    /// Epoch of its session, if it has one.
    pub session: Option<SessionEpoch>,
    /// The process behind the session.
    pub instance: Option<Instance>,
    /// Time since anything was heard of it.
    pub heard_ago: Option<Micros>,
    /// Age of its last full report.
    pub report_age: Option<Micros>,
    /// How it is, as it last said, without replicas and peers. As old as its report.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub telemetry: Option<Telemetry>,
    /// Round-trip time of its connection.
    pub rtt: Option<Micros>,
    /// What carries its connection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// What is loaded there.
    pub replicas: Vec<ReplicaRow>,
    /// What it did with each layer's plan.
    pub plans: Vec<PlanRow>,
    /// How many of its reports were dropped, by field.
    pub faults: BTreeMap<String, u64>,
    /// What was wrong with the last one of its session.
    pub last_fault: Option<String>,
    /// Relayed streams that it has open.
    pub relays_open: u32,
}

/// One replica of a node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaRow {
    /// What is loaded.
    pub variant: VariantId,
    /// What it can do now.
    pub state: ReplicaState,
    /// How busy it is.
    pub load: Load,
    /// The layers that it holds, where it can compute some alone; where these are not all, it serves only as a stage of splits.
    #[serde(default)]
    pub layers: Option<LayerRange>,
    /// Prompt tokens per second, if measured.
    pub prompt_rate: Option<f64>,
    /// Generated tokens per second, if measured.
    pub decode_rate: Option<f64>,
    /// Age of the newest fact about it.
    pub age: Micros,
}

/// One layer's plan for one node, with what became of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PlanRow {
    /// For whom.
    pub node: NodeId,
    /// Of which layer.
    pub layer: Layer,
    /// The newest published.
    pub plan: Plan,
    /// Time since it was published.
    pub age: Micros,
    /// What the node said about it.
    pub ack: Option<AckState>,
    /// The newest epoch that the node applied.
    pub applied: Option<PlanEpoch>,
}

/// What was done for one service by one node with one outcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct TotalRow {
    /// What was asked for.
    pub service: ServiceId,
    /// Who answered; absent where nobody did.
    pub node: Option<NodeId>,
    /// `answered`, or the code of the failure.
    pub outcome: String,
    /// The sums.
    pub totals: Totals,
}

/// Sums over requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Totals {
    /// How many.
    pub requests: u64,
    /// Prompt tokens.
    pub prompt_tokens: u64,
    /// Generated tokens.
    pub output_tokens: u64,
    /// Energy of those where it is known; absent while it is known of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Joules>,
    /// Money of those where it is known; absent while it is known of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<MicroDollars>,
    /// How many wished for times.
    pub wished: u64,
    /// How many of those got them.
    pub attained: u64,
}
