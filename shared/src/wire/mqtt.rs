//! Topics and JSON payloads on MQTT.

use crate::fleet::{Costs, Inventory, NodeState, PathReport, ReplicaReport, Telemetry, Tier};
use crate::ids::{Instance, NodeId, PlanEpoch, SessionEpoch};
use crate::plan::{Layer, Plan, Record};
use crate::units::Micros;
use crate::work::{Catalogue, ClientKey};
use serde::{Deserialize, Serialize};

/// All topics of this version begin so.
pub const PREFIX: &str = "tidegate/v1";

/// Largest payload that is accepted. A view of eight candidates a service with 256 replicas fits well; more is refused.
pub const PAYLOAD_BYTES_MAX: usize = 512 * 1024;

/// A topic of the protocol.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Topic {
    /// Birth and last will of a node, retained.
    Status(NodeId),
    /// What a node is, retained.
    Inventory(NodeId),
    /// How a node is.
    Telemetry(NodeId),
    /// What a node did with a plan.
    PlanAck(NodeId),
    /// Requests that a node took in and that are over.
    Records(NodeId),
    /// A plan for a node, retained.
    Plan(NodeId, Layer),
    /// What a node may know of the fleet.
    View(NodeId),
}

impl Topic {
    /// The topic's name.
    #[must_use]
    pub fn name(&self) -> String {
        match self {
            Self::Status(node) => format!("{PREFIX}/nodes/{}/status", node.topic_level()),
            Self::Inventory(node) => format!("{PREFIX}/nodes/{}/inventory", node.topic_level()),
            Self::Telemetry(node) => format!("{PREFIX}/nodes/{}/telemetry", node.topic_level()),
            Self::PlanAck(node) => format!("{PREFIX}/nodes/{}/plan-ack", node.topic_level()),
            Self::Records(node) => format!("{PREFIX}/nodes/{}/records", node.topic_level()),
            Self::Plan(node, layer) => format!("{PREFIX}/plans/{}/{layer}", node.topic_level()),
            Self::View(node) => format!("{PREFIX}/views/{}", node.topic_level()),
        }
    }

    /// The topic of this name, if it is one of ours.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        let mut levels = name.strip_prefix(PREFIX)?.strip_prefix('/')?.split('/');
        let (kind, node) = (levels.next()?, NodeId::from_topic_level(levels.next()?).ok()?);
        let last = levels.next();
        if levels.next().is_some() {
            return None;
        }
        match (kind, last) {
            ("nodes", Some("status")) => Some(Self::Status(node)),
            ("nodes", Some("inventory")) => Some(Self::Inventory(node)),
            ("nodes", Some("telemetry")) => Some(Self::Telemetry(node)),
            ("nodes", Some("plan-ack")) => Some(Self::PlanAck(node)),
            ("nodes", Some("records")) => Some(Self::Records(node)),
            ("plans", Some(layer)) => Layer::ALL.into_iter().find(|l| l.name() == layer).map(|layer| Self::Plan(node, layer)),
            ("views", None) => Some(Self::View(node)),
            _ => None,
        }
    }

    /// Whether the node itself may publish here.
    #[must_use]
    pub const fn from_node(&self) -> bool {
        matches!(self, Self::Status(_) | Self::Inventory(_) | Self::Telemetry(_) | Self::PlanAck(_) | Self::Records(_))
    }

    /// Whose topic it is.
    #[must_use]
    pub const fn node(&self) -> &NodeId {
        match self {
            Self::Status(node)
            | Self::Inventory(node)
            | Self::Telemetry(node)
            | Self::PlanAck(node)
            | Self::Records(node)
            | Self::Plan(node, _)
            | Self::View(node) => node,
        }
    }
}

/// Every message of a node says which session it belongs to; the hub drops those of an older one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Session {
    /// Issued by the hub.
    pub epoch: SessionEpoch,
    /// Drawn by the process.
    pub instance: Instance,
}

/// A message of a node with its session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Signed<T> {
    /// Which session. Not flattened: messages have epochs of their own.
    pub session: Session,
    /// The message.
    #[serde(flatten)]
    pub message: T,
}

/// Payload of `status`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// True in the birth message, false in the last will and the goodbye.
    pub online: bool,
}

/// Payload of `plan-ack`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlanAck {
    /// Of which layer.
    pub layer: Layer,
    /// Which plan.
    pub epoch: PlanEpoch,
    /// What became of it.
    pub state: AckState,
}

/// Payload of `records`: at most [`Self::RECORDS_MAX`], oldest first. A node keeps what was not acknowledged and sends it
/// again, so the hub takes each request once.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Records {
    /// The records.
    pub records: Vec<Record>,
}

impl Records {
    /// Most records in one message: with their eight decisions each they stay far below [`PAYLOAD_BYTES_MAX`] in the usual case;
    /// a message of more is refused whole.
    pub const RECORDS_MAX: usize = 64;
}

/// What a node did with a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum AckState {
    /// It came, and waits for the slower layer's plan that it is based on.
    Received,
    /// It is in force.
    Applied,
    /// It cannot be applied; the older plan stays in force.
    Failed(String),
    /// It names a policy that this node does not know; the older plan stays in force.
    Unsupported(String),
}

/// Payload of `plans/{node}/{layer}`.
pub type PlanMessage = Plan;

/// Payload of `inventory`.
pub type InventoryMessage = Signed<Inventory>;
/// Payload of `telemetry`.
pub type TelemetryMessage = Signed<Telemetry>;
/// Payload of `records`.
pub type RecordsMessage = Signed<Records>;
/// Payload of `status`.
pub type StatusMessage = Signed<Status>;
/// Payload of `plan-ack`.
pub type PlanAckMessage = Signed<PlanAck>;

/// Payload of `views/{node}`: the granted candidates, with ages.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewMessage {
    /// Rises with each view of one hub life; an older one is ignored.
    pub epoch: PlanEpoch,
    /// Candidates, peers of the site among them.
    pub nodes: Vec<ViewNode>,
    /// What there is to serve, when it changed or the node is new.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub catalogue: Option<Catalogue>,
    /// API keys that the reader's clients may use: hashes and limits only. Comes with the catalogue; absent is no news.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub keys: Option<Vec<ClientKey>>,
    /// Certificates that are no longer good, by serial number in hex.
    #[serde(default)]
    pub revoked: Vec<String>,
    /// Whether the node that reads this shall become empty.
    #[serde(default)]
    pub drain: bool,
}

/// One node in a view.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ViewNode {
    /// Which.
    pub node: NodeId,
    /// Its level.
    pub tier: Tier,
    /// Whether it may be given work.
    pub state: NodeState,
    /// What work on it costs.
    #[serde(default, deserialize_with = "Costs::loosely")]
    pub costs: Costs,
    /// Where its QUIC endpoint listens.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// The hub's path to it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<PathReport>,
    /// Its replicas.
    pub replicas: Vec<ReplicaReport>,
    /// How old that report was at sending; absent when the node never reported.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub age: Option<Micros>,
}
