//! What outlives the process, so that a node that boots without its hub knows what it was granted, and whom it can reach.

use serde::{Deserialize, Serialize};
use shared::fleet::{Costs, Tier};
use shared::ids::{NodeId, PlanEpoch, ServiceId, SessionEpoch};
use shared::plan::{Layer, Plan};
use shared::request::Learnt;
use shared::work::{Catalogue, ClientKey};
use std::collections::BTreeMap;

/// Another node, as far as that lasts.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Neighbour {
    /// Its level.
    pub tier: Tier,
    /// What work on it costs.
    pub costs: Costs,
    /// Where its QUIC endpoint listens.
    pub addresses: Vec<String>,
}

/// The part of the agent's state that is kept on disk. No moment is in it: clocks start anew with the process.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Persisted {
    /// The plan in force of each layer.
    pub plans: BTreeMap<Layer, Plan>,
    /// Highest plan epoch seen in any layer.
    pub plan_epoch_seen: PlanEpoch,
    /// Highest session epoch held.
    pub session_epoch_seen: SessionEpoch,
    /// What the hub said that there is to serve; absent when it never did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub catalogue: Option<Catalogue>,
    /// The fleet's API keys: hashes and limits.
    pub keys: Vec<ClientKey>,
    /// Whom the last view showed.
    pub neighbours: BTreeMap<NodeId, Neighbour>,
    /// Certificates that are no longer good, by serial number in hex.
    pub revoked: Vec<String>,
    /// `host:port` of the broker that the hub named last; a host `hub` is the hub's own.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub broker: String,
    /// Whether an operator wants this node empty.
    pub drain: bool,
    /// What requests told of their services.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub learnt: BTreeMap<ServiceId, Learnt>,
}
