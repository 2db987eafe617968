//! Links and connections. A cut link swallows nothing for good: what is sent is delivered when it heals in time, and lost with the
//! connection when it does not, as with QUIC and TCP.

use cloud_hub::logic::{Connection, HubEvent, Stream};
use edge_node::logic::{AgentEvent, LinkId};
use shared::ids::{AttemptId, NodeId};
use shared::units::Micros;
use std::collections::{BTreeMap, BTreeSet};

/// One process of an agent; two may claim one node.
pub(super) type Host = usize;
/// Which life of a process; events for an older one are dropped.
pub(super) type Life = u64;
/// One connection.
pub(super) type PipeId = u64;

/// How long a silent connection lives.
pub(super) const IDLE: Micros = Micros::from_secs(5);

/// One end of a connection.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Party {
    Hub(Life),
    Agent(Host, Life),
}

/// What a connection is for.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Purpose {
    /// An agent's QUIC connection to the hub.
    Uplink { node: NodeId, dial: u64, connection: Connection },
    /// An agent's MQTT connection.
    Broker { node: NodeId, number: u64 },
    /// A connection between agents, with what each calls it.
    Peer { names: [(NodeId, LinkId); 2] },
}

/// What travels.
#[derive(Clone, Debug)]
#[expect(
    clippy::large_enum_variant,
    reason = "such a value lives for a moment, in one place: a box would cost more than its room"
)]
pub(super) enum Parcel {
    ToHub(HubEvent),
    ToAgent(AgentEvent),
    /// A piece of a request stream on its way over this leg.
    Stream(AttemptId, StreamPiece),
}

/// Pieces of a request stream.
#[derive(Clone, Debug)]
pub(super) enum StreamPiece {
    Header,
    Body,
    Reset,
    /// What a stage computed of one token, towards the next stage.
    Hidden,
    /// A token that the last stage drew, towards the first.
    Drawn,
    /// There will be no more hidden states: the next stage ends.
    Close,
    /// News for the ingress; content with the number of its first token.
    News(shared::request::AttemptEvent, u32),
}

/// A connection between two parties; `ends[0]` opened it.
#[derive(Clone, Debug)]
pub(super) struct Pipe {
    pub(super) ends: [Party; 2],
    pub(super) purpose: Purpose,
    pub(super) delay: Micros,
    /// Cutting one of these cuts the connection.
    pub(super) links: Vec<Host>,
    pub(super) held: Vec<(usize, Parcel)>,
}

/// One request stream, over one leg (direct) or two (relay).
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) header: shared::work::ExecHeader,
    /// Who opened it, the ingress or an earlier stage; absent when the hub did.
    pub(super) ingress: Option<Host>,
    pub(super) legs: Vec<PipeId>,
    /// The hub's name for it, when it is relayed.
    pub(super) stream: Option<Stream>,
    /// Who executes, once the header has reached it.
    pub(super) executor: Option<(Host, Life)>,
}

/// All of them.
#[derive(Debug, Default)]
pub(super) struct Net {
    pub(super) pipes: BTreeMap<PipeId, Pipe>,
    pub(super) routes: BTreeMap<AttemptId, Route>,
    /// Hosts whose uplink carries nothing.
    pub(super) cut: BTreeSet<Host>,
    /// Hosts whose site network carries nothing.
    pub(super) isolated: BTreeSet<Host>,
    pub(super) next: PipeId,
}

impl Net {
    pub(super) fn open(&mut self, ends: [Party; 2], purpose: Purpose, delay: Micros, links: Vec<Host>) -> PipeId {
        self.next += 1;
        self.pipes.insert(self.next, Pipe { ends, purpose, delay, links, held: Vec::new() });
        self.next
    }

    pub(super) fn is_cut(&self, pipe: &Pipe) -> bool {
        let cut = if matches!(pipe.purpose, Purpose::Peer { .. }) { &self.isolated } else { &self.cut };
        pipe.links.iter().any(|host| cut.contains(host))
    }

    /// The connections that a party is an end of.
    pub(super) fn of(&self, party: &Party) -> Vec<PipeId> {
        self.pipes.iter().filter(|(_, pipe)| pipe.ends.contains(party)).map(|(id, _)| *id).collect()
    }

    /// The agent's connection of this dial.
    pub(super) fn uplink(&self, party: &Party) -> Option<PipeId> {
        let is = |pipe: &Pipe| pipe.ends[0] == *party && matches!(pipe.purpose, Purpose::Uplink { .. });
        self.pipes.iter().rev().find(|(_, pipe)| is(pipe)).map(|(id, _)| *id)
    }

    pub(super) fn broker(&self, party: &Party) -> Option<PipeId> {
        let is = |pipe: &Pipe| pipe.ends[0] == *party && matches!(pipe.purpose, Purpose::Broker { .. });
        self.pipes.iter().rev().find(|(_, pipe)| is(pipe)).map(|(id, _)| *id)
    }

    pub(super) fn connection(&self, wanted: Connection) -> Option<PipeId> {
        let is = |pipe: &Pipe| matches!(&pipe.purpose, Purpose::Uplink { connection, .. } if *connection == wanted);
        self.pipes.iter().find(|(_, pipe)| is(pipe)).map(|(id, _)| *id)
    }

    /// The peer connection that `party` calls so.
    pub(super) fn peer(&self, party: &Party, wanted: LinkId) -> Option<PipeId> {
        let is = |pipe: &Pipe| match &pipe.purpose {
            Purpose::Peer { names } => (0..2).any(|end| pipe.ends[end] == *party && names[1 - end].1 == wanted),
            _ => false,
        };
        self.pipes.iter().find(|(_, pipe)| is(pipe)).map(|(id, _)| *id)
    }

    /// Any peer connection between a party and a node.
    pub(super) fn to_node(&self, party: &Party, node: &NodeId) -> Option<PipeId> {
        let is = |pipe: &Pipe| match &pipe.purpose {
            Purpose::Peer { names } => (0..2).any(|end| pipe.ends[end] == *party && names[1 - end].0 == *node),
            _ => false,
        };
        self.pipes.iter().rev().find(|(_, pipe)| is(pipe)).map(|(id, _)| *id)
    }
}
