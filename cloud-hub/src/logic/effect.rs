//! What the hub's logic wants done. The driver carries effects out in their order.

use super::event::{Connection, ReplyToken, Stream};
use super::rows::{NodeRow, PlanRow, TotalRow};
use serde::{Deserialize, Serialize};
use shared::ids::{KeyName, NodeId, RequestId, ServiceId, VariantId};
use shared::plan::{DispatchSetting, Layer, Plan, Reason, Record};
use shared::request::Effect;
use shared::wire::frame::{Goodbye, Welcome};
use shared::wire::mqtt::ViewMessage;
use shared::work::{ClientKey, ExecHeader, Service};
use std::collections::BTreeMap;

/// What shall be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum HubEffect {
    /// Write to the store, before any later effect is carried out: what follows must not outrun what is kept.
    Persist(Change),
    /// Answer a hello.
    Welcome {
        /// On which connection.
        connection: Connection,
        /// The answer.
        welcome: Welcome,
    },
    /// Send a ping (no loads: the hub executes nothing).
    Ping {
        /// On which connection.
        connection: Connection,
        /// Its number, which the pong repeats.
        number: u64,
    },
    /// Answer a ping.
    Pong {
        /// On which connection.
        connection: Connection,
        /// The number of the ping.
        number: u64,
    },
    /// Send a ping that decides whether the process at the other end still lives. The answer is a
    /// [`Pong`](super::HubEvent::Pong) like any other.
    Challenge {
        /// On which connection.
        connection: Connection,
        /// Its number, which the pong repeats.
        number: u64,
    },
    /// Say goodbye and close. [`ConnectionLost`](super::HubEvent::ConnectionLost) follows.
    CloseConnection {
        /// Which.
        connection: Connection,
        /// Why.
        goodbye: Goodbye,
    },
    /// Publish a plan, retained.
    PublishPlan {
        /// For whom.
        node: NodeId,
        /// The plan.
        plan: Plan,
    },
    /// Remove the retained plan of a node that left the fleet.
    ClearPlan {
        /// Whose.
        node: NodeId,
        /// Of which layer.
        layer: Layer,
    },
    /// Publish a view, not retained.
    PublishView {
        /// For whom.
        node: NodeId,
        /// The view.
        view: ViewMessage,
    },
    /// From now on these API keys are good at the hub's own API, and no others of the fleet.
    Keys(Vec<ClientKey>),
    /// End the node's MQTT sessions and refuse its certificates.
    KickMqtt {
        /// Whose.
        node: NodeId,
    },
    /// Open a stream to the target, send it the header, and copy frames both ways until both sides are done; then tell
    /// [`RelayClosed`](super::HubEvent::RelayClosed).
    RelayOpen {
        /// The asking stream.
        stream: Stream,
        /// The target's connection.
        to: Connection,
    },
    /// Answer the asking stream `Refused`, and forget it.
    RelayRefuse {
        /// The asking stream.
        stream: Stream,
        /// Why.
        reason: Reason,
    },
    /// Reset both sides of a relayed stream, and forget it.
    RelayClose {
        /// The asking stream.
        stream: Stream,
    },
    /// One of the hub's own requests: open a stream on this connection and send the header.
    Send {
        /// The executor's connection.
        to: Connection,
        /// What to send.
        header: ExecHeader,
    },
    /// What the hub's own request core wants, besides [`Effect::Send`] and [`Effect::Record`], which have their own effects.
    Request(Effect),
    /// Keep a record of a request.
    StoreRecord(Box<Record>),
    /// Answer an admin operation.
    Reply {
        /// Where to.
        token: ReplyToken,
        /// The answer.
        reply: AdminReply,
    },
    /// For the log and the metrics.
    Note(Note),
}

/// A change of what must survive the process.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Incarnation of the plan epochs.
    Incarnation(u64),
    /// Highest session epoch issued.
    SessionEpoch(u64),
    /// A node is known: by enrolment, or because it came with a good certificate that the store had forgotten.
    Node(super::RestoredNode),
    /// A service, new or replaced.
    Service(Service),
    /// A service is gone.
    ServiceRemoved(ServiceId),
    /// Another dispatch policy for all agents.
    Dispatch(DispatchSetting),
    /// A new API key.
    Key(ClientKey),
    /// An API key is worthless.
    KeyRevoked(KeyName),
}

/// The answer to an admin operation.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AdminReply {
    /// Done.
    Done,
    /// It cannot be done; the text says why, and what would be right.
    Refused(String),
    /// There is no such thing.
    NotFound(String),
    /// All services.
    Services(Vec<Service>),
    /// All API keys.
    Keys(Vec<ClientKey>),
    /// All nodes.
    Nodes(Vec<NodeRow>),
    /// The plans in force.
    Plans(Vec<PlanRow>),
    /// Totals.
    Totals(Vec<TotalRow>),
    /// Counters by name.
    Counters(BTreeMap<String, u64>),
    /// How many.
    Count(usize),
    /// Which.
    Variants(Vec<VariantId>),
}

/// Something that an operator may want to know, as a value: the driver logs and counts it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Note {
    /// A node's state changed.
    State {
        /// Whose.
        node: NodeId,
        /// From what.
        from: shared::fleet::NodeState,
        /// To what.
        to: shared::fleet::NodeState,
    },
    /// A hello was turned away.
    HelloRefused {
        /// Whose.
        node: NodeId,
        /// Why.
        why: Goodbye,
    },
    /// A report was dropped whole.
    BadReport {
        /// Whose.
        node: NodeId,
        /// The field or topic.
        field: String,
        /// What is wrong.
        why: String,
    },
    /// A message of an older session, or of another instance, was ignored.
    StaleMessage {
        /// Whose.
        node: NodeId,
        /// Which kind.
        kind: String,
    },
    /// A plan had faults and was not published.
    FaultyPlan {
        /// For whom.
        node: NodeId,
        /// Of which layer.
        layer: Layer,
        /// The faults, shortened.
        faults: Vec<String>,
    },
    /// A node could not or would not apply a plan; its older one stays in force.
    PlanRejected {
        /// Whose.
        node: NodeId,
        /// Of which layer.
        layer: Layer,
        /// What it said, shortened.
        why: String,
    },
    /// The hub holds its slow layers because too many nodes vanished at once.
    SelfSuspicion {
        /// How many vanished.
        vanished: u32,
        /// Of how many.
        of: u32,
    },
    /// The incarnation jumped, because a node had seen a higher one.
    EpochJump {
        /// Who had seen it.
        node: NodeId,
        /// The new incarnation.
        incarnation: u64,
    },
    /// A relay was refused.
    RelayRefused {
        /// Who asked.
        ingress: NodeId,
        /// Towards whom.
        target: NodeId,
        /// For which request.
        request: RequestId,
        /// Code of the reason.
        code: String,
    },
}
