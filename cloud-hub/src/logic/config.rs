//! What the hub is told at its start, and the clocks and limits that it keeps.

use serde::{Deserialize, Serialize};
use shared::ids::NodeId;
use shared::plan::DispatchSetting;
use shared::policy::dispatch::SplitRules;
use shared::units::Micros;
use shared::work::{ClientKey, Service};
use std::collections::{BTreeMap, BTreeSet};

/// Who the hub is and how it decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct HubConfig {
    /// The hub's own id.
    pub me: NodeId,
    /// `host:port` of the MQTT broker, as `Welcome` tells it; a host of `hub` means the host that was dialled for QUIC.
    pub broker: String,
    /// How often nodes report. 5 s unless a test or scenario wants otherwise.
    pub heartbeat: Micros,
    /// Dispatch policy of the agents.
    pub dispatch: DispatchSetting,
    /// Dispatch policy of the hub's own ingress.
    pub ingress_dispatch: DispatchSetting,
    /// What holds for requests of that ingress that are split over several nodes.
    #[serde(default)]
    pub splits: SplitRules,
    /// When each layer's plans are made anew.
    pub timescale: PolicyChoice,
    /// Which node holds which replica.
    pub placement: PolicyChoice,
    /// Where an edge may send its requests.
    pub offload: PolicyChoice,
    /// Seed for chance.
    pub seed: u64,
}

/// A policy of a round layer by its name in the layer's table.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyChoice {
    /// Its name.
    pub policy: String,
    /// Its configuration; `null` for the default.
    #[serde(default)]
    pub config: serde_json::Value,
}

impl PolicyChoice {
    /// The policy of this name with its default configuration.
    #[must_use]
    pub fn named(policy: &str) -> Self {
        Self { policy: policy.to_owned(), config: serde_json::Value::Null }
    }
}

impl HubConfig {
    /// A node that is silent on every way for so many heartbeats has lost its lease: one lost report, and one late, change
    /// nothing.
    pub const LEASE_HEARTBEATS: u64 = 3;

    /// How long a lease runs, and how old a fact may be to be acted upon.
    #[must_use]
    pub const fn lease(&self) -> Micros {
        Micros(self.heartbeat.0.saturating_mul(Self::LEASE_HEARTBEATS))
    }

    /// The usual configuration of a hub of this name.
    #[must_use]
    pub fn new(me: NodeId) -> Self {
        let min_latency = DispatchSetting { policy: "min-latency".to_owned(), config: serde_json::Value::Null };
        Self {
            me,
            broker: "hub:8883".to_owned(),
            heartbeat: Micros::from_secs(5),
            dispatch: min_latency.clone(),
            ingress_dispatch: min_latency,
            splits: SplitRules::default(),
            timescale: PolicyChoice::named("fixed"),
            placement: PolicyChoice::named("declared"),
            offload: PolicyChoice::named("all-with-replica"),
            seed: 0,
        }
    }
}

/// What the store remembers.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Restored {
    /// Incarnation of the last life, 0 for a new fleet.
    pub incarnation: u64,
    /// Highest session epoch issued so far.
    pub session_epoch: u64,
    /// All nodes that ever joined, the revoked among them.
    pub nodes: Vec<RestoredNode>,
    /// All services.
    pub services: Vec<Service>,
    /// All API keys.
    #[serde(default)]
    pub keys: Vec<ClientKey>,
    /// The dispatch policy that an operator set last; it stands before the configured one.
    pub dispatch: Option<DispatchSetting>,
}

/// What the store remembers of one node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RestoredNode {
    /// Which.
    pub node: NodeId,
    /// Labels from its join token.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// Serial numbers of its certificates that have not expired, hex. The store drops the expired ones, which bounds the set.
    #[serde(default)]
    pub serials: BTreeSet<String>,
    /// Those of them that are no longer good.
    #[serde(default)]
    pub revoked: BTreeSet<String>,
    /// Whether an operator wants it empty.
    #[serde(default)]
    pub drained: bool,
}
