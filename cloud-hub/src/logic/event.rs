//! What the hub's logic is told. Payload bodies stay with the driver, which names streams and connections by handles.

use serde::{Deserialize, Serialize};
use shared::fleet::{Inventory, PathReport, Telemetry};
use shared::ids::{AttemptId, KeyName, NodeId, RequestId, ServiceId};
use shared::plan::DispatchSetting;
use shared::request::AttemptEvent;
use shared::wire::frame::{Hello, Pulse};
use shared::wire::mqtt::{PlanAck, Records, Session, Status};
use shared::work::{ClientKey, ExecHeader, LlmRequest, Service};
use std::collections::BTreeMap;

macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(pub u64);
    };
}

handle!(
    /// One connection of an agent. Chosen by the driver, never used twice in one life of the hub.
    Connection
);
handle!(
    /// One relayed request stream. Chosen by the driver, never used twice in one life of the hub.
    Stream
);
handle!(
    /// Where the answer to an admin operation goes. Chosen by the driver.
    ReplyToken
);

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HubEvent {
    /// The CA issued a certificate to a node: a first one, or a renewal.
    Enrolled {
        /// To whom.
        node: NodeId,
        /// Serial number of the certificate, hex.
        serial: String,
        /// Labels from the join token; empty at a renewal, which keeps the old ones.
        labels: BTreeMap<String, String>,
    },
    /// An agent opened its control stream. The driver has checked that `hello.node` equals the certificate's name.
    HelloReceived {
        /// On which connection.
        connection: Connection,
        /// Whose certificate.
        node: NodeId,
        /// Serial number of that certificate, hex.
        serial: String,
        /// What it said.
        hello: Hello,
    },
    /// The agent answered a ping or a challenge.
    Pong {
        /// On which connection.
        connection: Connection,
        /// The number of the ping, and the agent's loads.
        pulse: Pulse,
    },
    /// The agent asks whether the hub is there.
    Pinged {
        /// On which connection.
        connection: Connection,
        /// Its number, and the agent's loads.
        pulse: Pulse,
    },
    /// The transport measured the path of a connection.
    PathMeasured {
        /// Which.
        connection: Connection,
        /// Rates, loss and round trip; its `hop` is taken as `direct`.
        path: PathReport,
    },
    /// A connection is gone, by whoever's doing. Exactly one for each connection that said hello.
    ConnectionLost {
        /// Which.
        connection: Connection,
    },
    /// A node's message came over MQTT. The node is the topic's.
    Mqtt {
        /// Whose topic.
        node: NodeId,
        /// The session that the message belongs to.
        session: Session,
        /// The message.
        message: NodeMessage,
    },
    /// A payload on a node's topic, or a frame on its connection, that is no message.
    BadPayload {
        /// Whose.
        node: NodeId,
        /// Which topic or frame, such as `telemetry`.
        topic: String,
        /// What the decoder said.
        why: String,
    },
    /// An agent opened a request stream towards another node.
    RelayAsked {
        /// On which connection.
        connection: Connection,
        /// The stream.
        stream: Stream,
        /// What it asks.
        header: ExecHeader,
    },
    /// A relayed stream has ended on both sides.
    RelayClosed {
        /// Which.
        stream: Stream,
    },
    /// A client of the hub's own API asks.
    Arrived(LlmRequest),
    /// That client went away.
    ClientGone(RequestId),
    /// That client has not read for too long.
    ClientStalled(RequestId),
    /// News from the executor of one of the hub's own requests.
    Remote(AttemptId, AttemptEvent),
    /// An operator wants something.
    Admin {
        /// Where the answer goes.
        token: ReplyToken,
        /// What is wanted.
        operation: AdminOperation,
    },
    /// A deadline has come.
    Tick,
}

/// A node's message on MQTT.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "such a value lives for a moment, in one place: a box would cost more than its room"
)]
pub enum NodeMessage {
    /// Birth, last will or goodbye.
    Status(Status),
    /// What it is.
    Inventory(Box<Inventory>),
    /// How it is.
    Telemetry(Telemetry),
    /// What it did with a plan.
    PlanAck(PlanAck),
    /// Requests that it took in and that are over.
    Records(Records),
}

impl NodeMessage {
    /// Its kind, as in its topic.
    #[must_use]
    pub const fn kind(&self) -> &'static str {
        match self {
            Self::Status(_) => "status",
            Self::Inventory(_) => "inventory",
            Self::Telemetry(_) => "telemetry",
            Self::PlanAck(_) => "plan-ack",
            Self::Records(_) => "records",
        }
    }
}

/// What an operator can ask for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminOperation {
    /// All services.
    Services,
    /// Adds a service, or replaces the one of the same id.
    PutService(Service),
    /// Removes a service.
    RemoveService(ServiceId),
    /// All API keys.
    Keys,
    /// Makes an API key good, from now on and everywhere.
    AddKey(ClientKey),
    /// Makes an API key worthless.
    RevokeKey(KeyName),
    /// All nodes.
    Nodes,
    /// Makes a node's certificates worthless and throws it out.
    Revoke(NodeId),
    /// Empties a node, or lets it work again.
    Drain {
        /// Which.
        node: NodeId,
        /// Whether it shall be empty.
        drain: bool,
    },
    /// The plans in force.
    Plans,
    /// Another dispatch policy for all agents.
    SetDispatch(DispatchSetting),
    /// What was done so far: totals by service, node and outcome.
    Totals,
    /// What went wrong or was held back, by name.
    Counters,
    /// How many replicas serve.
    Ready,
    /// Which variants of a service have this capability.
    Capable(ServiceId, String),
}
