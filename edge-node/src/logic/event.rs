//! What the agent is told, and what it wants done.

use super::{Kind, Persisted, SpoolChange};
use serde::{Deserialize, Serialize};
use shared::fleet::{Fact, Inventory, Machine, ReplicaReport, Survey, Telemetry, Transport, TransportOrder};
use shared::ids::NodeId;
use shared::plan::{Plan, Record};
use shared::request::{Effect, Event};
use shared::units::{Bytes, Celsius, Fraction, Micros, Watts};
use shared::wire::frame::{Goodbye, Hello, Pulse, Welcome};
use shared::wire::mqtt::{PlanAck, Session, Status, ViewMessage};
use shared::work::ClientKey;

/// Names one connection between two agents in one life of this process.
pub type LinkId = u64;

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentEvent {
    /// The driver runs: first effects are wanted.
    Started,
    /// News for the request core.
    Request(Event),
    /// News of the uplink's dial of this number; those of an older one are ignored.
    Uplink(u64, UplinkEvent),
    /// News of the broker connection of this number; those of an older one are ignored.
    Broker(u64, BrokerEvent),
    /// News of a peer.
    Peer(NodeId, PeerEvent),
    /// Records of an earlier life that the hub may not have, with their numbers.
    Spooled(Vec<(u64, Record)>),
    /// What the engines of this node hold now.
    Replicas(Vec<ReplicaReport>),
    /// What the machine is.
    Machine(Machine),
    /// What is known of the machine's accelerators now.
    Surveyed(Box<Survey>),
    /// SHA-256 of the program file that runs.
    Binary(String),
    /// How the machine is.
    Gauges(Gauges),
    /// The process shall end: take nothing new, tell the hub, finish what runs.
    Stop,
    /// What runs has ended, or was given time enough: say goodbye and close everything.
    Leave,
    /// A deadline has come.
    Tick,
}

/// News of the connection to the hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UplinkEvent {
    /// The handshake is done and the hello is on its way.
    Connected,
    /// Hello and welcome went over this transport; told just before the welcome.
    Carried(Transport),
    /// The hub answered.
    Welcomed(Box<Welcome>),
    /// Whether QUIC carries, as [`AgentEffect::Look`] asked; the text says what was wrong.
    Looked(Result<(), String>),
    /// The hub asks for a sign of life.
    Ping(Pulse),
    /// The hub gives a sign of life.
    Pong(Pulse),
    /// So many packets got lost on the way to the hub since the connection began; told before a pong when it has changed.
    Losses(u64),
    /// The connection ended, or could not be had.
    Ended(Ended),
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ended {
    /// It broke; the text says how.
    Broken(String),
    /// The other side said goodbye.
    Goodbye(Goodbye),
}

impl std::fmt::Display for Ended {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Broken(why) => f.write_str(why),
            Self::Goodbye(Goodbye::Replaced) => f.write_str("the other side: a newer instance of this node took over"),
            Self::Goodbye(Goodbye::Cloned) => f.write_str("the other side: another live instance claims this identity"),
            Self::Goodbye(Goodbye::Revoked) => f.write_str("the other side: this node's certificate is revoked"),
            Self::Goodbye(Goodbye::Version) => f.write_str("the other side: no protocol version in common"),
            Self::Goodbye(Goodbye::Shutdown) => f.write_str("the other side shuts down"),
            Self::Goodbye(Goodbye::Protocol(why)) => write!(f, "the other side did not understand: {why}"),
        }
    }
}

/// News of the broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BrokerEvent {
    /// Connected and subscribed.
    Up,
    /// A plan came.
    Plan(Box<Plan>),
    /// A view came.
    View(Box<ViewMessage>),
    /// Not connected any more; the text says why.
    Down(String),
}

/// News of a connection to another agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PeerEvent {
    /// Hello and welcome are exchanged.
    Up {
        /// Which connection.
        link: LinkId,
        /// Round-trip time of the handshake.
        rtt: Micros,
        /// What the peer holds.
        replicas: Vec<ReplicaReport>,
        /// What carries the connection.
        #[serde(default)]
        transport: Option<Transport>,
        /// The advertised address that answered; absent for a caller.
        #[serde(default)]
        address: Option<String>,
    },
    /// No connection could be had.
    Unreachable(String),
    /// The peer asks for a sign of life.
    Ping(LinkId, Pulse),
    /// The peer gives a sign of life.
    Pong(LinkId, Pulse),
    /// So many packets got lost on the way to the peer since the connection began.
    Losses(LinkId, u64),
    /// The peer's replicas changed.
    Replicas(LinkId, Vec<ReplicaReport>),
    /// The peer says nothing more on this connection, and leaves it to the streams that run.
    Retired(LinkId),
    /// A connection ended.
    Lost(LinkId, Ended),
}

/// How the machine is. Unknown is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Gauges {
    /// Busy share of the processors.
    pub cpu: Option<Fraction>,
    /// Memory that could be had.
    pub memory_available: Option<Bytes>,
    /// Load average over one minute.
    pub load_1m: Option<f64>,
    /// Bytes received since boot.
    pub received: Option<Bytes>,
    /// Bytes sent since boot.
    pub sent: Option<Bytes>,
    /// Temperature of its hottest part.
    pub temperature: Option<Celsius>,
    /// Whether it is slowed down for heat or for lack of power.
    pub throttled: Option<bool>,
    /// What it draws.
    pub power: Option<Fact<Watts>>,
}

/// What shall be done.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AgentEffect {
    /// What the request core wants done.
    Request(Effect),
    /// Connect to the hub and say hello. An older connection is to be closed first.
    Dial(u64, TransportOrder, Box<Hello>),
    /// Connect to the hub once more beside the present connection, and say hello there. New streams take the newer one from its
    /// welcome on.
    Move {
        /// Number of this dial.
        number: u64,
        /// With what.
        order: TransportOrder,
        /// What to say.
        hello: Box<Hello>,
        /// Why, for people.
        why: String,
    },
    /// What the last [`Self::Move`] began is not wanted any more.
    StayHere,
    /// The move is done: nothing new goes over the connection before it, which ends with its last stream.
    Retire,
    /// Find out whether QUIC carries to the hub, and tell so under this number.
    Look(u64),
    /// Close the connection to the hub with these words.
    HangUp(Goodbye),
    /// Ask the hub for a sign of life.
    Ping(Pulse),
    /// Give the hub a sign of life.
    Pong(Pulse),
    /// Connect to the broker. An older connection is to be closed first.
    ConnectBroker {
        /// Number of this connection.
        number: u64,
        /// `host:port`; a host of `hub` means the host that was dialled for the uplink.
        address: String,
        /// For the last will.
        session: Session,
    },
    /// Close the connection to the broker, after what was published has left.
    DisconnectBroker,
    /// Publish on the broker, signed with this session.
    Publish(Session, Box<Publication>),
    /// The broker threw this node out for this kind of publication again and again: it is left out for a while. To be told once.
    Quarantined(Kind),
    /// Connect to another agent; the first address that answers counts.
    DialPeer {
        /// Whom.
        node: NodeId,
        /// Where it may be.
        addresses: Vec<String>,
        /// With what.
        order: TransportOrder,
        /// What to say.
        hello: Box<Hello>,
    },
    /// Close a connection to another agent.
    HangUpPeer(NodeId, LinkId, Goodbye),
    /// Of the connections to another agent, new streams take this one.
    UsePeer(NodeId, LinkId),
    /// Nothing new goes over a connection to another agent, which ends with its last stream.
    RetirePeer(NodeId, LinkId),
    /// Ask a peer for a sign of life.
    PingPeer(NodeId, LinkId, Pulse),
    /// Give a peer a sign of life.
    PongPeer(NodeId, LinkId, Pulse),
    /// Tell a peer that this node's replicas changed.
    TellPeer(NodeId, LinkId, Box<Hello>),
    /// From now on these API keys of the fleet are good here, and no others of it.
    Keys(Vec<ClientKey>),
    /// Refuse and close connections of these certificates, by serial number in hex.
    Revoked(Vec<String>),
    /// Keep the records on disk that wait for the hub.
    Spool(SpoolChange),
    /// Keep this for the next start.
    Persist(Box<Persisted>),
}

/// A message for the broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[expect(
    clippy::large_enum_variant,
    reason = "such a value lives for a moment, in one place: a box would cost more than its room"
)]
pub enum Publication {
    /// Birth or goodbye, retained.
    Status(Status),
    /// What the node is, retained.
    Inventory(Inventory),
    /// How the node is.
    Telemetry(Telemetry),
    /// What became of a plan.
    PlanAck(PlanAck),
    /// Requests that are over.
    Records(Vec<Record>),
}
