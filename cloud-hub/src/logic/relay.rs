//! Which streams the hub carries from one agent to another. The bytes are the driver's; here is only who may.

use super::fleet::Fleet;
use super::rounds::Rounds;
use super::{Connection, HubEffect, Note, Stream};
use serde::{Deserialize, Serialize};
use shared::fleet::NodeState;
use shared::ids::NodeId;
use shared::plan::Reason;
use shared::work::ExecHeader;
use std::collections::BTreeMap;

/// Relayed streams that one node may have open, as sender and as target apart. Each holds a frame's buffer in both directions;
/// 256 are more than the slots of any node. More are refused, and the ingress looks elsewhere.
pub(crate) const RELAYS_OPEN_MAX: u32 = 256;

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Open {
    from: Connection,
    to: Connection,
    /// Who opened it: the ingress, or an earlier stage.
    sender: NodeId,
    target: NodeId,
}

/// The open relayed streams.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Relays {
    open: BTreeMap<Stream, Open>,
    /// Open streams by sender.
    sent: BTreeMap<NodeId, u32>,
    /// Open streams by target.
    received: BTreeMap<NodeId, u32>,
}

impl Relays {
    /// Judges an asked stream.
    pub(super) fn asked(
        &mut self,
        hub: &NodeId,
        fleet: &Fleet,
        rounds: &Rounds,
        (connection, stream): (Connection, Stream),
        header: &ExecHeader,
        effects: &mut Vec<HubEffect>,
    ) {
        match self.judge(hub, fleet, rounds, connection, header) {
            Ok(to) if !self.open.contains_key(&stream) => {
                let sender = header.sender().unwrap_or(&header.ingress).clone();
                let target = header.target.clone();
                *self.sent.entry(sender.clone()).or_default() += 1;
                *self.received.entry(target.clone()).or_default() += 1;
                self.open.insert(stream, Open { from: connection, to, sender, target });
                effects.push(HubEffect::RelayOpen { stream, to });
            }
            // A driver that names a stream twice would lose count of the first.
            Ok(_) => effects.push(HubEffect::RelayRefuse { stream, reason: Reason::Busy }),
            Err(reason) => {
                effects.push(HubEffect::Note(Note::RelayRefused {
                    ingress: header.ingress.clone(),
                    target: header.target.clone(),
                    request: header.attempt.request,
                    code: reason.code().to_owned(),
                }));
                effects.push(HubEffect::RelayRefuse { stream, reason });
            }
        }
    }

    fn judge(
        &self,
        hub: &NodeId,
        fleet: &Fleet,
        rounds: &Rounds,
        connection: Connection,
        header: &ExecHeader,
    ) -> Result<Connection, Reason> {
        // Only the ingress itself may ask, or for a later stage the node of the stage before it, each on the connection of its
        // present session: nobody spends another's grant.
        let sender = header.sender().filter(|sender| fleet.node_of(connection) == Some(*sender)).ok_or(Reason::NotGranted)?;
        // Hidden states are text: whoever sees them must be allowed to, not only this stream's target.
        let stages = header.stages.iter().map(|stage| &stage.node);
        let permitted = stages.chain([&header.target]).all(|node| header.residency.permits(node));
        if !header.residency.permits_relay(hub) || !permitted {
            return Err(Reason::Residency);
        }
        let cloned = |node| fleet.member(node).is_none_or(|member| member.shown == NodeState::Cloned);
        if cloned(sender) || (header.ingress != *hub && cloned(&header.ingress)) {
            return Err(Reason::Cloned);
        }
        let target = fleet.member(&header.target).filter(|target| !target.is_revoked()).ok_or(Reason::Unknown)?;
        match target.shown {
            NodeState::Online => {}
            NodeState::Seen => return Err(Reason::NoPath),
            NodeState::Suspect => return Err(Reason::Suspect),
            NodeState::Draining => return Err(Reason::Draining),
            NodeState::Cloned => return Err(Reason::Cloned),
            NodeState::Offline => return Err(Reason::Offline),
        }
        let to = fleet.connection_of(&header.target).ok_or(Reason::Offline)?;
        if header.target == *sender || header.check_stages().is_err() || !rounds.grants(header) {
            return Err(Reason::NotGranted);
        }
        let full = |counts: &BTreeMap<NodeId, u32>, node| counts.get(node).is_some_and(|open| *open >= RELAYS_OPEN_MAX);
        if full(&self.sent, sender) || full(&self.received, &header.target) {
            return Err(Reason::BoundReached { open_max: RELAYS_OPEN_MAX });
        }
        Ok(to)
    }

    /// A stream has ended.
    pub(super) fn closed(&mut self, stream: Stream) {
        let Some(open) = self.open.remove(&stream) else { return };
        for (counts, node) in [(&mut self.sent, &open.sender), (&mut self.received, &open.target)] {
            if let Some(count) = counts.get_mut(node) {
                *count -= 1;
            }
            counts.retain(|_, count| *count > 0);
        }
    }

    /// Connections are over: so are the streams on them.
    pub(super) fn ended(&mut self, connections: &[Connection], effects: &mut Vec<HubEffect>) {
        if connections.is_empty() {
            return;
        }
        let over = |open: &Open| connections.contains(&open.from) || connections.contains(&open.to);
        let streams: Vec<_> = self.open.iter().filter(|(_, open)| over(open)).map(|(stream, _)| *stream).collect();
        for stream in streams {
            self.closed(stream);
            effects.push(HubEffect::RelayClose { stream });
        }
    }

    /// Streams open from or to a node.
    pub(super) fn open_at(&self, node: &NodeId) -> u32 {
        [&self.sent, &self.received].into_iter().filter_map(|counts| counts.get(node)).sum()
    }
}
