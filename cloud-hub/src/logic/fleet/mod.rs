//! The fleet: which nodes there are, their sessions and states, and the view that decisions read.
//!
//! What a node reported is truth, what was planned for it is not here. States follow from what is known ([`Member::presence`])
//! and are recomputed, never set.

mod admission;
mod member;
mod reports;
mod suspicion;

pub(super) use member::Member;
pub(super) use suspicion::Suspicion;

use super::epochs::Epochs;
use super::{Change, Connection, HubConfig, HubEffect, Note, RestoredNode};
use member::{CLONE_STABLE, Link, PING_SLACK};
use serde::{Deserialize, Serialize};
use shared::fleet::{FleetDelta, FleetView, Hop, NodeState};
use shared::ids::NodeId;
use shared::units::{Micros, Moment};
use shared::wire::frame::Goodbye;
use std::collections::{BTreeMap, BTreeSet};

/// What changed since it was last taken; empty between two events.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct News {
    /// Changes of the view, for the hub's own request core.
    pub(super) deltas: Vec<FleetDelta>,
    /// Nodes whose state changed: those who may use them are told at once.
    pub(super) changed: BTreeSet<NodeId>,
    /// Connections that are over: their relayed streams are, too.
    pub(super) ended: Vec<Connection>,
}

/// All nodes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Fleet {
    me: NodeId,
    broker: String,
    heartbeat: Micros,
    lease: Micros,
    members: BTreeMap<NodeId, Member>,
    connections: BTreeMap<Connection, NodeId>,
    view: FleetView,
    pings: u64,
    /// Rises when nodes or replicas come, go or change state: plans made before may be worth making anew.
    generation: u64,
    suspicion: Suspicion,
    /// Serial numbers of all members' certificates that are no longer good, sorted.
    revoked: Vec<String>,
    news: News,
}

fn revoked_serials(members: &BTreeMap<NodeId, Member>) -> Vec<String> {
    let serials: BTreeSet<&String> = members.values().flat_map(|member| &member.revoked).collect();
    serials.into_iter().cloned().collect()
}

impl Fleet {
    pub(super) fn new(config: &HubConfig, nodes: Vec<RestoredNode>) -> Self {
        let members = nodes.into_iter().map(|stored| (stored.node.clone(), Member::restored(stored))).collect();
        Self {
            revoked: revoked_serials(&members),
            me: config.me.clone(),
            broker: config.broker.clone(),
            heartbeat: config.heartbeat,
            lease: config.lease(),
            members,
            connections: BTreeMap::new(),
            view: FleetView::default(),
            pings: 0,
            generation: 0,
            suspicion: Suspicion::default(),
            news: News::default(),
        }
    }

    /// The view: nodes that were heard of in this life of the hub and are not revoked.
    pub(super) const fn view(&self) -> &FleetView {
        &self.view
    }

    pub(super) const fn generation(&self) -> u64 {
        self.generation
    }

    pub(super) const fn suspicion(&self) -> &Suspicion {
        &self.suspicion
    }

    pub(super) fn members(&self) -> impl Iterator<Item = (&NodeId, &Member)> {
        self.members.iter()
    }

    pub(super) fn member(&self, node: &NodeId) -> Option<&Member> {
        self.members.get(node)
    }

    /// Whose connection it is, if it is the one of the node's session.
    pub(super) fn node_of(&self, connection: Connection) -> Option<&NodeId> {
        let node = self.connections.get(&connection)?;
        self.connection_of(node).filter(|current| *current == connection).map(|_| node)
    }

    /// The connection of the node's session.
    pub(super) fn connection_of(&self, node: &NodeId) -> Option<Connection> {
        self.members.get(node)?.link().map(|link| link.connection)
    }

    /// Serial numbers of all certificates that are no longer good, sorted. Bounded by the store, which drops the expired ones.
    pub(super) fn revoked(&self) -> &[String] {
        &self.revoked
    }

    pub(super) fn take_news(&mut self) -> News {
        std::mem::take(&mut self.news)
    }

    /// When time alone may change something.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.members.values().filter_map(|member| member.deadline(self.lease)).min()
    }

    /// Does what is due: pings, challenges that ran out, flags that fall, states that changed with time.
    pub(super) fn advance(&mut self, now: Moment, epochs: &mut Epochs, effects: &mut Vec<HubEffect>) {
        let nodes: Vec<NodeId> = self.members.keys().cloned().collect();
        for node in &nodes {
            self.settle_contender(now, node, epochs, effects);
            self.bury(now, node, effects);
            if let Some(member) = self.members.get_mut(node) {
                if member.cloned.is_some_and(|seen| now.since(seen) >= CLONE_STABLE) {
                    member.cloned = None;
                }
                if let Some(link) = member.link_mut().filter(|link| now + PING_SLACK >= link.ping_due) {
                    self.pings += 1;
                    link.pinged(now, self.pings);
                    effects.push(HubEffect::Ping { connection: link.connection, number: self.pings });
                }
            }
            self.refresh(now, node, effects);
        }
    }

    /// Looks whether so many nodes vanished at once that the hub should suspect itself.
    pub(super) fn watch(&mut self, now: Moment, effects: &mut Vec<HubEffect>) {
        if self.suspicion.is_worth_a_look() {
            let working = self.working();
            self.suspicion.watch(now, self.heartbeat, working, effects);
        }
    }

    /// A certificate was issued: the first of a node that joins, or a renewed one.
    pub(super) fn enrolled(
        &mut self,
        node: NodeId,
        serial: String,
        labels: BTreeMap<String, String>,
        effects: &mut Vec<HubEffect>,
    ) {
        let fresh = || Member { shown: NodeState::Offline, ..Member::default() };
        let member = self.members.entry(node.clone()).or_insert_with(fresh);
        // Without a good certificate it joins anew: what an operator wished of the one before is over.
        member.drained &= !member.serials.is_subset(&member.revoked);
        member.serials.insert(serial);
        if !labels.is_empty() {
            member.labels = labels;
        }
        effects.push(HubEffect::Persist(Change::Node(member.stored(&node))));
    }

    /// Throws a node out. False if it is not known.
    pub(super) fn revoke(&mut self, now: Moment, node: &NodeId, effects: &mut Vec<HubEffect>) -> bool {
        let Some(member) = self.members.get_mut(node) else { return false };
        member.revoked.extend(member.serials.iter().cloned());
        effects.push(HubEffect::Persist(Change::Node(member.stored(node))));
        member.contender = None;
        (member.cloned, member.heard) = (None, None);
        self.unlink(now, node);
        let all = self.connections.iter().filter(|(_, of)| *of == node).map(|(connection, _)| *connection);
        for connection in all.collect::<Vec<_>>() {
            self.news.ended.push(connection);
            self.close(connection, Goodbye::Revoked, effects);
        }
        if let Some(member) = self.members.get_mut(node) {
            member.session = None;
        }
        self.revoked = revoked_serials(&self.members);
        effects.push(HubEffect::KickMqtt { node: node.clone() });
        self.refresh(now, node, effects);
        self.apply(now, FleetDelta::Gone { node: node.clone() });
        self.generation += 1;
        true
    }

    /// Empties a node, or lets it work again. False if it is not known.
    pub(super) fn drain(&mut self, now: Moment, node: &NodeId, drain: bool, effects: &mut Vec<HubEffect>) -> bool {
        let Some(member) = self.members.get_mut(node) else { return false };
        if member.drained != drain {
            member.drained = drain;
            effects.push(HubEffect::Persist(Change::Node(member.stored(node))));
            // Its own view carries the wish, whatever its state is.
            self.news.changed.insert(node.clone());
        }
        self.refresh(now, node, effects);
        true
    }

    /// Nodes that can be given work or could a moment ago, the drained among them.
    fn working(&self) -> u32 {
        let working = self.members.values().filter(|member| matches!(member.shown, NodeState::Online | NodeState::Draining));
        u32::try_from(working.count()).unwrap_or(u32::MAX)
    }

    /// Makes a changed state known.
    fn refresh(&mut self, now: Moment, node: &NodeId, effects: &mut Vec<HubEffect>) {
        let Some(member) = self.members.get_mut(node) else { return };
        let (from, to) = (member.shown, member.presence(now, self.lease));
        if from == to {
            return;
        }
        member.shown = to;
        self.suspicion.changed(now, node, from, to);
        self.news.changed.insert(node.clone());
        self.generation += 1;
        effects.push(HubEffect::Note(Note::State { node: node.clone(), from, to }));
        self.apply(now, FleetDelta::State { node: node.clone(), state: to });
    }

    /// Takes in one change of the view, and tells it on. Of a revoked node nothing is taken in.
    fn apply(&mut self, now: Moment, delta: FleetDelta) {
        let node = match &delta {
            FleetDelta::Node { node, .. }
            | FleetDelta::State { node, .. }
            | FleetDelta::Machine { node, .. }
            | FleetDelta::Replicas { node, .. }
            | FleetDelta::Peers { node, .. }
            | FleetDelta::Load { node, .. }
            | FleetDelta::Path { node, .. }
            | FleetDelta::PathLost { node, .. } => Some(node),
            FleetDelta::Gone { .. } => None,
        };
        if node.is_some_and(|node| self.members.get(node).is_none_or(Member::is_revoked)) {
            return;
        }
        self.view.apply(now, delta.clone());
        self.news.deltas.push(delta);
    }

    /// Closes a connection and forgets it; its loss, which follows, is then nobody's.
    fn close(&mut self, connection: Connection, goodbye: Goodbye, effects: &mut Vec<HubEffect>) {
        self.connections.remove(&connection);
        effects.push(HubEffect::CloseConnection { connection, goodbye });
    }

    /// Takes the connection off the node's session.
    fn unlink(&mut self, now: Moment, node: &NodeId) -> Option<Connection> {
        let member = self.members.get_mut(node)?;
        member.challenge = None;
        let live = member.session.as_mut()?;
        live.mqtt_after_loss = false;
        let connection = live.link.take()?.connection;
        self.news.ended.push(connection);
        self.apply(now, FleetDelta::PathLost { node: node.clone(), hop: Hop::Direct });
        Some(connection)
    }

    /// Takes the connection off the node's session, but lets what runs on it go on.
    fn supersede(&mut self, now: Moment, node: &NodeId) {
        let before = self.news.ended.len();
        self.unlink(now, node);
        self.news.ended.truncate(before);
    }

    fn link_of(&mut self, connection: Connection) -> Option<(NodeId, &mut Link)> {
        let node = self.connections.get(&connection)?.clone();
        let link = self.members.get_mut(&node)?.link_mut().filter(|link| link.connection == connection)?;
        Some((node, link))
    }
}
