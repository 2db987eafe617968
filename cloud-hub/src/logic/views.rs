//! Views: what each node is told about the others. Its granted candidates, and all nodes of its own site, so that a site goes on
//! by itself when the hub is gone.

use super::HubEffect;
use super::epochs::Epochs;
use super::fleet::{Fleet, Member};
use super::keys::Keys;
use super::rounds::Rounds;
use serde::{Deserialize, Serialize};
use shared::fleet::{Hop, NodeState, NodeView};
use shared::ids::{NodeId, SessionEpoch};
use shared::units::{Micros, Moment};
use shared::wire::mqtt::{ViewMessage, ViewNode};
use shared::work::Catalogue;
use std::collections::{BTreeMap, BTreeSet};

/// A view without news is sent again after this time, so that the ages in the reader's hand stay true and it knows that the hub
/// lives.
const REPEAT_AFTER: Micros = Micros::from_secs(2);
/// A changed state is told at once, but not more often than this to one reader: a fleet that flaps would else be all views.
pub(super) const URGENT_EVERY: Micros = Micros::from_millis(100);
/// The catalogue rides on views until this long after a node's subscriptions stand (its first message of the session, or its
/// newest birth), and after each change of it: views are not retained, and one may be lost.
const CATALOGUE_REPEAT: Micros = Micros::from_secs(5);
/// And once in this time in any case: the next round is the retry.
const CATALOGUE_EVERY: Micros = Micros::from_secs(30);
/// Nodes of the reader's site in one view: as many as a node reports peers. In larger sites the first by name are told.
const SITE_NODES_MAX: usize = 256;
/// Replicas of the site's nodes in one view: with half a kilobyte each, a view stays below the largest payload. The nodes after
/// these are left out.
const SITE_REPLICAS_MAX: usize = 512;

/// What views are made from.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) now: Moment,
    pub(super) fleet: &'a Fleet,
    pub(super) rounds: &'a Rounds,
    pub(super) catalogue: &'a Catalogue,
    pub(super) keys: &'a Keys,
    /// When the catalogue or the keys last changed.
    pub(super) catalogue_changed: Moment,
}

/// What a node was last told.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Sent {
    at: Moment,
    /// To which session.
    session: Option<SessionEpoch>,
    /// Without ages and round trips, which change always.
    nodes: Vec<ViewNode>,
    revoked: Vec<String>,
    drain: bool,
    catalogue_at: Option<Moment>,
}

/// What was told to whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Views {
    sent: BTreeMap<NodeId, Sent>,
    /// Those who shall be told before the next tick.
    urgent: BTreeSet<NodeId>,
}

impl Views {
    /// The state of these nodes changed: who may use them, or stands beside them, is told at once; and they themselves.
    pub(super) fn changed(&mut self, changed: &BTreeSet<NodeId>, fleet: &Fleet, rounds: &Rounds) {
        if changed.is_empty() {
            return;
        }
        let sites: BTreeSet<_> = changed.iter().map(NodeId::site).collect();
        for (reader, _) in fleet.members() {
            let concerned = || rounds.targets(reader).into_iter().any(|target| changed.contains(target));
            if sites.contains(&reader.site()) || concerned() {
                self.urgent.insert(reader.clone());
            }
        }
    }

    /// Everybody is told before the next tick.
    pub(super) fn all_urgent(&mut self, fleet: &Fleet) {
        self.urgent.extend(fleet.members().map(|(node, _)| node.clone()));
    }

    /// When somebody is to be told before the next tick.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.urgent.iter().map(|node| self.sent.get(node).map_or(Moment(0), |sent| sent.at + URGENT_EVERY)).min()
    }

    /// Tells those who are urgent and were not told a moment ago.
    pub(super) fn publish_urgent(&mut self, facts: &Facts<'_>, epochs: &mut Epochs, effects: &mut Vec<HubEffect>) {
        let due = |node: &&NodeId| self.sent.get(*node).is_none_or(|sent| facts.now >= sent.at + URGENT_EVERY);
        let nodes: Vec<NodeId> = self.urgent.iter().filter(due).cloned().collect();
        for node in nodes {
            self.urgent.remove(&node);
            self.look(facts, &node, epochs, effects);
        }
    }

    /// Tells everybody for whom there is news, or whose last view grows old.
    pub(super) fn publish_all(&mut self, facts: &Facts<'_>, epochs: &mut Epochs, effects: &mut Vec<HubEffect>) {
        self.urgent.clear();
        let nodes: Vec<NodeId> = facts.fleet.members().map(|(node, _)| node.clone()).collect();
        for node in nodes {
            self.look(facts, &node, epochs, effects);
        }
    }

    fn look(&mut self, facts: &Facts<'_>, reader: &NodeId, epochs: &mut Epochs, effects: &mut Vec<HubEffect>) {
        let Some(member) = facts.fleet.member(reader).filter(|member| reads(member)) else {
            self.sent.remove(reader);
            return;
        };
        let nodes = content(facts, reader);
        let session = member.session.as_ref().map(|live| live.epoch);
        let with_catalogue = self.wants_catalogue(facts, reader, member);
        let last = self.sent.get(reader);
        let fresh = Sent {
            at: facts.now,
            session,
            nodes: nodes.iter().map(lasting).collect(),
            revoked: facts.fleet.revoked().to_vec(),
            drain: member.drained,
            catalogue_at: if with_catalogue { Some(facts.now) } else { last.and_then(|last| last.catalogue_at) },
        };
        let same = last.is_some_and(|last| {
            let news = last.nodes != fresh.nodes || last.revoked != fresh.revoked || last.drain != fresh.drain;
            !news && last.session == session && facts.now.since(last.at) < REPEAT_AFTER
        });
        if same && !with_catalogue {
            return;
        }
        let view = ViewMessage {
            epoch: epochs.view(),
            nodes,
            catalogue: with_catalogue.then(|| facts.catalogue.clone()),
            keys: with_catalogue.then(|| facts.keys.list()),
            revoked: fresh.revoked.clone(),
            drain: fresh.drain,
        };
        self.sent.insert(reader.clone(), fresh);
        effects.push(HubEffect::PublishView { node: reader.clone(), view });
    }

    fn wants_catalogue(&self, facts: &Facts<'_>, reader: &NodeId, member: &Member) -> bool {
        let session = member.session.as_ref();
        let subscribed = session.and_then(|live| live.mqtt_since);
        let settling = |since: Moment| facts.now.since(since) < CATALOGUE_REPEAT;
        let Some(last) = self.sent.get(reader).filter(|last| last.session == session.map(|live| live.epoch)) else { return true };
        subscribed.is_none_or(settling)
            || settling(facts.catalogue_changed)
            || last.catalogue_at.is_none_or(|at| facts.now.since(at) >= CATALOGUE_EVERY)
    }
}

/// Whether a node is there to read.
fn reads(member: &Member) -> bool {
    member.session.is_some() && !member.is_revoked() && (member.link().is_some() || member.shown != NodeState::Offline)
}

fn content(facts: &Facts<'_>, reader: &NodeId) -> Vec<ViewNode> {
    let view = facts.fleet.view();
    let site = reader.site();
    let mut replicas = 0;
    let beside = view.nodes_in(&site).filter(|(node, _)| *node != reader).take(SITE_NODES_MAX).take_while(|(_, entry)| {
        replicas += entry.replicas.len();
        replicas <= SITE_REPLICAS_MAX
    });
    let mut nodes = facts.rounds.targets(reader);
    nodes.extend(beside.map(|(node, _)| node));
    nodes.remove(reader);
    nodes.into_iter().filter_map(|node| Some(row(facts.now, node, view.node(node)?))).collect()
}

fn row(now: Moment, node: &NodeId, entry: &NodeView) -> ViewNode {
    ViewNode {
        node: node.clone(),
        tier: entry.tier,
        state: entry.state,
        costs: entry.costs.clone(),
        addresses: entry.addresses.clone(),
        uplink: entry.paths.get(&Hop::Direct).map(|path| path.value.clone()),
        replicas: entry.replicas.values().map(|replica| replica.value.clone()).collect(),
        age: entry.reported.map(|reported| now.since(reported)),
    }
}

/// What of a row is news when it differs.
fn lasting(row: &ViewNode) -> ViewNode {
    let uplink = row.uplink.clone().map(|path| shared::fleet::PathReport { rtt: None, jitter: None, ..path });
    ViewNode { uplink, age: None, ..row.clone() }
}
