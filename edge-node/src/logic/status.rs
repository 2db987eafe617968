//! How the agent is, for the people who operate it: the content of the status page.

use super::Kind;
use serde::{Deserialize, Serialize};
use shared::estimate::{Lengths, LengthsReport};
use shared::fleet::{ReplicaReport, Survey, Tier, Transport};
use shared::ids::{NodeId, PlanEpoch, ServiceId, SessionEpoch};
use shared::plan::{Layer, Target};
use shared::units::{Micros, Tokens};
use std::collections::BTreeMap;

/// The whole page.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct NodeStatus {
    /// Which node.
    pub node: NodeId,
    /// Its level.
    pub tier: Tier,
    /// Version of the agent.
    pub version: String,
    /// Its hub, if it joined one.
    pub hub: Option<NodeId>,
    /// Whether the hub is out of reach.
    pub degraded: bool,
    /// Whether an operator wants the node empty, or it is shutting down.
    pub draining: bool,
    /// How long the node's certificate is still good. Filled in by the host: a decision has no calendar.
    #[serde(default)]
    pub certificate_expires_in: Option<Micros>,
    /// The connection to the hub.
    pub uplink: UplinkStatus,
    /// What is loaded.
    pub replicas: Vec<ReplicaReport>,
    /// The services that clients can ask for.
    pub services: Vec<ServiceId>,
    /// The dispatch policy that runs.
    pub dispatch: String,
    /// The plans held.
    pub plans: Vec<PlanStatus>,
    /// Where requests may go besides here.
    pub targets: BTreeMap<ServiceId, Vec<Target>>,
    /// The agents that are connected without the hub, or tried.
    pub peers: Vec<PeerStatus>,
    /// Requests of clients that are not over.
    pub requests_open: usize,
    /// Records that wait for the hub.
    pub spool: SpoolStatus,
    /// The machine's accelerators.
    #[serde(default, skip_serializing_if = "Survey::is_unset")]
    pub survey: Survey,
    /// How long the answers of services become, as this node has seen.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub learnt: BTreeMap<ServiceId, LearntStatus>,
}

/// How long the answers of a service become.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct LearntStatus {
    /// Tokens that half of the answers to middling prompts do not exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub half: Option<Tokens>,
    /// Tokens that nine in ten do not exceed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<Tokens>,
    /// How well lengths were foretold.
    pub report: LengthsReport,
}

impl LearntStatus {
    /// A prompt of middling length.
    const PROMPT: Tokens = Tokens(256);

    pub(super) fn of(lengths: &Lengths) -> Self {
        let within = |share| lengths.quantile(Self::PROMPT, share);
        Self { half: within(0.5), most: within(0.9), report: *lengths.report() }
    }
}

/// The connection to the hub.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct UplinkStatus {
    /// `off`, `waiting`, `dialling` or `up`.
    pub state: String,
    /// How long it has been up.
    pub up_for: Option<Micros>,
    /// The session.
    pub session: Option<SessionEpoch>,
    /// Round-trip time to the hub.
    pub rtt: Option<Micros>,
    /// Whether the broker is connected.
    pub broker: bool,
    /// Failures in a row.
    pub failures: u32,
    /// Why it was lost the last time.
    pub last_loss: Option<String>,
    /// Whether the hub said that this node's certificate is no longer good.
    #[serde(default)]
    pub revoked: bool,
    /// What carries it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Why QUIC is not taken at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avoids_quic: Option<String>,
    /// How often QUIC was given up although it had shaken hands.
    #[serde(default)]
    pub demotions: u64,
    /// What is not published, because the broker throws this node out for it.
    #[serde(default)]
    pub quarantined: Vec<Kind>,
    /// How many publications were left out for that.
    #[serde(default)]
    pub publications_held: u64,
}

/// A plan that is held.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanStatus {
    /// Of which layer.
    pub layer: Layer,
    /// Which.
    pub epoch: PlanEpoch,
    /// Who decided.
    pub owner: NodeId,
    /// How long ago it came (or was read from disk).
    pub age: Micros,
    /// Whether it has run out without being renewed.
    pub expired: bool,
    /// Whether it waits for the slower layer's plan.
    pub pending: bool,
}

/// Another agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PeerStatus {
    /// Which.
    pub node: NodeId,
    /// Connections with it.
    pub links: usize,
    /// How long it has been connected.
    pub up_for: Option<Micros>,
    /// Round-trip time.
    pub rtt: Option<Micros>,
    /// Why it was lost the last time.
    pub last_loss: Option<String>,
    /// What carries the best of the connections.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
    /// Why QUIC is not taken at present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub avoids_quic: Option<String>,
}

/// Records that wait for the hub.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpoolStatus {
    /// How many.
    pub records: usize,
    /// Their size as JSON.
    pub bytes: usize,
    /// How many did not fit, or were too old, and were dropped, oldest first.
    pub dropped: u64,
    /// The most that may be kept, in bytes.
    #[serde(default)]
    pub bytes_max: usize,
    /// Age of the oldest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub oldest: Option<Micros>,
    /// What it takes on disk, in bytes. Filled in by the host.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub disk: Option<u64>,
}
