//! Other agents that are connected without the hub: whom to dial, who is alive, when to try again.

use super::liveness::Liveness;
use super::peer::{Line, Peer};
use super::view::{Shown, state_when_connected};
use super::{AgentEffect, LinkId, PeerEvent, PeerStatus};
use serde::{Deserialize, Serialize};
use shared::backoff::earliest;
use shared::fleet::{FleetDelta, Hop, Load, NodeState, PathReport, ReplicaReport};
use shared::ids::{NodeId, VariantId};
use shared::units::{Micros, Moment};
use shared::wire::frame::{Goodbye, Hello, Pulse};
use std::collections::BTreeMap;

/// Most agents that this one dials: its site's neighbours and a few granted targets. Every one costs a ping a second on both
/// sides; the rest is reached through the hub.
const DIALLED_MAX: usize = 16;
/// Most agents that are remembered as connected, dialled ones and callers together; a caller beyond it is hung up on.
const PEERS_MAX: usize = 256;
/// Most connections with one agent. Two appear when both dial at once; more are left over from a restart of the other side.
const LINKS_MAX: usize = 4;
/// How long a dial may take.
const DIAL_MAX: Micros = Micros::from_secs(5);
/// Of two agents that know each other the one with the smaller name dials at once, the other only if nothing came by then.
const COURTESY: Micros = Micros::from_secs(2);

/// All other agents.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Peers {
    me: NodeId,
    seed: u64,
    peers: BTreeMap<NodeId, Peer>,
    /// Counts the changes of this node's replicas.
    version: u64,
    /// The process shall end.
    closing: bool,
}

/// What the peers need to know of the rest.
pub(super) struct Surroundings<'a> {
    /// Whom the hub showed.
    pub(super) shown: &'a BTreeMap<NodeId, Shown>,
    /// Whether a node is a granted target.
    pub(super) granted: &'a dyn Fn(&NodeId) -> bool,
    /// Whether the hub is out of reach, and its word on states old.
    pub(super) degraded: bool,
    /// What would be said now.
    pub(super) hello: &'a dyn Fn() -> Hello,
    /// Loads of this node's replicas.
    pub(super) loads: &'a BTreeMap<String, Load>,
    /// Addresses that are known better here than where they are advertised.
    pub(super) known: &'a BTreeMap<NodeId, String>,
}

impl Surroundings<'_> {
    /// Where a node may be.
    fn addresses(&self, node: &NodeId, shown: &Shown) -> Vec<String> {
        self.known.get(node).map_or_else(|| shown.neighbour.addresses.clone(), |known| vec![known.clone()])
    }
}

impl Peers {
    pub(super) const fn new(me: NodeId, seed: u64) -> Self {
        Self { me, seed, peers: BTreeMap::new(), version: 0, closing: false }
    }

    /// This node's replicas changed: connected peers hear it with the next question, since signs of life carry loads only.
    pub(super) const fn replicas_changed(&mut self) {
        self.version += 1;
    }

    pub(super) fn is_connected(&self, node: &NodeId) -> bool {
        self.peers.get(node).is_some_and(|peer| !peer.links.is_empty())
    }

    /// The direct paths, as reported to the hub.
    pub(super) fn paths(&self) -> BTreeMap<NodeId, PathReport> {
        self.peers.iter().filter_map(|(node, peer)| Some((node.clone(), peer.best()?.report()))).collect()
    }

    /// Takes in news of `node`; `shown` is what the hub says of it.
    pub(super) fn on_event(
        &mut self,
        now: Moment,
        node: &NodeId,
        event: PeerEvent,
        around: &Surroundings<'_>,
        deltas: &mut Vec<FleetDelta>,
        out: &mut Vec<AgentEffect>,
    ) {
        match event {
            PeerEvent::Up { link, rtt, replicas, transport, address } => {
                let line = Line::new(now, rtt, transport, address);
                self.up(now, node, (link, line), replicas, around, deltas, out);
            }
            PeerEvent::Unreachable(why) => {
                if let Some(peer) = self.peers.get_mut(node)
                    && peer.dialling.take().is_some()
                {
                    peer.dial_failed(now, why);
                }
            }
            PeerEvent::Ping(link, pulse) => {
                if let Some(life) = self.life(node, link) {
                    life.heard(now);
                    let answer = Pulse { number: pulse.number, loads: around.loads.clone() };
                    out.push(AgentEffect::PongPeer(node.clone(), link, answer));
                    self.alive(node, pulse, deltas);
                }
            }
            PeerEvent::Pong(link, pulse) => {
                if let Some(line) = self.line(node, link) {
                    line.answered(now, pulse.number);
                    self.alive(node, pulse, deltas);
                }
            }
            PeerEvent::Losses(link, packets) => {
                if let Some(line) = self.line(node, link) {
                    line.punctual.lost(packets);
                }
            }
            PeerEvent::Replicas(link, replicas) => {
                if let Some(life) = self.life(node, link) {
                    life.heard(now);
                    push_replicas(node, replicas, deltas);
                }
            }
            PeerEvent::Retired(link) => {
                if let Some(line) = self.line(node, link) {
                    line.retired = true;
                }
            }
            PeerEvent::Lost(link, why) => self.lost(now, node, link, &why.to_string(), around, deltas),
        }
    }

    fn life(&mut self, node: &NodeId, link: LinkId) -> Option<&mut Liveness> {
        self.line(node, link).map(|line| &mut line.life)
    }

    fn line(&mut self, node: &NodeId, link: LinkId) -> Option<&mut Line> {
        self.peers.get_mut(node)?.links.get_mut(&link)
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one event and where its consequences go")]
    fn up(
        &mut self,
        now: Moment,
        node: &NodeId,
        (link, line): (LinkId, Line),
        replicas: Vec<ReplicaReport>,
        around: &Surroundings<'_>,
        deltas: &mut Vec<FleetDelta>,
        out: &mut Vec<AgentEffect>,
    ) {
        if *node == self.me || (self.peers.len() >= PEERS_MAX && !self.peers.contains_key(node)) {
            out.push(AgentEffect::HangUpPeer(node.clone(), link, Goodbye::Protocol("no room for another peer".to_owned())));
            return;
        }
        let seed = self.seed;
        let peer = self.peers.entry(node.clone()).or_insert_with(|| Peer::new(seed, node, now));
        peer.dialling = None;
        // The hello of this connection may be older than the newest change: say it once more rather than never.
        peer.told = 0;
        peer.came_up(now, link, line);
        while peer.links.len() > LINKS_MAX
            && let Some((oldest, _)) = peer.links.pop_first()
        {
            out.push(AgentEffect::HangUpPeer(node.clone(), oldest, Goodbye::Replaced));
        }
        let shown = around.shown.get(node);
        deltas.push(FleetDelta::State { node: node.clone(), state: state_when_connected(shown.and_then(|shown| shown.state)) });
        push_replicas(node, replicas, deltas);
        self.push_path(node, deltas);
    }

    fn alive(&self, node: &NodeId, pulse: Pulse, deltas: &mut Vec<FleetDelta>) {
        for (variant, load) in pulse.loads {
            if let Ok(variant) = VariantId::new(&variant)
                && [load.slots, load.active, load.queued].into_iter().all(|count| count <= ReplicaReport::COUNT_MAX)
            {
                deltas.push(FleetDelta::Load { node: node.clone(), variant, load });
            }
        }
        self.push_path(node, deltas);
    }

    fn push_path(&self, node: &NodeId, deltas: &mut Vec<FleetDelta>) {
        if let Some(line) = self.peers.get(node).and_then(Peer::best) {
            deltas.push(FleetDelta::Path { node: node.clone(), path: line.report() });
        }
    }

    fn lost(
        &mut self,
        now: Moment,
        node: &NodeId,
        link: LinkId,
        why: &str,
        around: &Surroundings<'_>,
        deltas: &mut Vec<FleetDelta>,
    ) {
        let Some(peer) = self.peers.get_mut(node) else { return };
        let Some(line) = peer.links.remove(&link) else { return };
        if !line.retired {
            peer.failed(now, now.since(line.life.since), why.to_owned());
        }
        if !peer.links.is_empty() {
            self.push_path(node, deltas);
            return;
        }
        deltas.push(FleetDelta::PathLost { node: node.clone(), hop: Hop::Direct });
        match around.shown.get(node) {
            Some(shown) => {
                deltas.push(FleetDelta::State { node: node.clone(), state: shown.state.unwrap_or(NodeState::Suspect) })
            }
            // The hub does not speak of it, and we cannot see it any more.
            None => deltas.push(FleetDelta::Gone { node: node.clone() }),
        }
    }

    /// Does what time demands.
    pub(super) fn tick(
        &mut self,
        now: Moment,
        around: &Surroundings<'_>,
        deltas: &mut Vec<FleetDelta>,
        out: &mut Vec<AgentEffect>,
    ) {
        self.end_silent(now, around, deltas, out);
        self.ask(now, around, out);
        self.dial(now, around, out);
        for (node, peer) in &mut self.peers {
            peer.choose(now, node, out);
        }
    }

    fn end_silent(&mut self, now: Moment, around: &Surroundings<'_>, deltas: &mut Vec<FleetDelta>, out: &mut Vec<AgentEffect>) {
        let silent = |(node, peer): (&NodeId, &Peer)| {
            let dead = peer.links.iter().filter(|(_, line)| !line.retired && line.life.is_silent(now));
            dead.map(|(link, _)| (node.clone(), *link)).collect::<Vec<_>>()
        };
        let dead: Vec<_> = self.peers.iter().flat_map(silent).collect();
        for (node, link) in dead {
            out.push(AgentEffect::HangUpPeer(node.clone(), link, Goodbye::Protocol("no sign of life".to_owned())));
            self.lost(now, &node, link, "silent", around, deltas);
        }
        for peer in self.peers.values_mut() {
            if peer.dialling.is_some_and(|deadline| deadline <= now) {
                peer.dialling = None;
                peer.dial_failed(now, format!("no answer within {DIAL_MAX}"));
            }
        }
    }

    fn ask(&mut self, now: Moment, around: &Surroundings<'_>, out: &mut Vec<AgentEffect>) {
        for (node, peer) in &mut self.peers {
            for (link, line) in &mut peer.links {
                if line.retired {
                    continue;
                }
                let Some(number) = line.life.question(now) else { continue };
                if peer.told != self.version {
                    peer.told = self.version;
                    out.push(AgentEffect::TellPeer(node.clone(), *link, Box::new((around.hello)())));
                }
                out.push(AgentEffect::PingPeer(node.clone(), *link, Pulse { number, loads: around.loads.clone() }));
            }
        }
    }

    fn dial(&mut self, now: Moment, around: &Surroundings<'_>, out: &mut Vec<AgentEffect>) {
        if self.closing {
            return self.peers.retain(|_, peer| !peer.links.is_empty());
        }
        let wanted: BTreeMap<_, _> =
            around.shown.iter().filter(|(node, shown)| wanted(&self.me, node, shown, around)).take(DIALLED_MAX).collect();
        self.peers.retain(|node, peer| !peer.links.is_empty() || peer.dialling.is_some() || wanted.contains_key(node));
        for (node, shown) in wanted {
            let (seed, me) = (self.seed, &self.me);
            let peer = self.peers.entry(node.clone()).or_insert_with(|| {
                let courtesy = if me < node { Micros::ZERO } else { COURTESY };
                Peer::new(seed, node, now + courtesy)
            });
            if let Some((addresses, order)) = peer.must_dial(now, &around.addresses(node, shown)) {
                peer.dialling = Some(now + DIAL_MAX);
                out.push(AgentEffect::DialPeer { node: node.clone(), addresses, order, hello: Box::new((around.hello)()) });
            }
        }
    }

    /// The process shall end: dials no more, keeps what is open.
    pub(super) fn close(&mut self) {
        self.closing = true;
        self.peers.retain(|_, peer| !peer.links.is_empty());
    }

    /// The process ends.
    pub(super) fn leave(&mut self, out: &mut Vec<AgentEffect>) {
        for (node, peer) in std::mem::take(&mut self.peers) {
            out.extend(peer.links.into_keys().map(|link| AgentEffect::HangUpPeer(node.clone(), link, Goodbye::Shutdown)));
        }
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        earliest(self.peers.values().map(Peer::deadline))
    }

    pub(super) fn status(&self, now: Moment) -> Vec<PeerStatus> {
        let line = |(node, peer): (&NodeId, &Peer)| PeerStatus {
            node: node.clone(),
            links: peer.links.len(),
            up_for: peer.links.values().map(|line| now.since(line.life.since)).max(),
            rtt: peer.best().and_then(|line| line.life.rtt()),
            last_loss: peer.last_loss.clone(),
            transport: peer.best().and_then(|line| line.by),
            avoids_quic: peer.ways.avoided().map(str::to_owned),
        };
        self.peers.iter().map(line).collect()
    }
}

/// A report with impossible numbers is dropped whole.
fn push_replicas(node: &NodeId, replicas: Vec<ReplicaReport>, deltas: &mut Vec<FleetDelta>) {
    if replicas.iter().all(|replica| replica.validate().is_ok()) {
        deltas.push(FleetDelta::Replicas { node: node.clone(), replicas, age: Micros::ZERO });
    }
}

/// Whether `node` is one to dial: a neighbour at the site or a granted target, with an address, and not known to be dead. While
/// the hub is out of reach its word on who is alive is old, and everybody is tried.
fn wanted(me: &NodeId, node: &NodeId, shown: &Shown, around: &Surroundings<'_>) -> bool {
    let near = me.site().contains(node) || (around.granted)(node);
    let dead = !around.degraded && matches!(shown.state, Some(NodeState::Offline | NodeState::Cloned));
    near && !dead && !around.addresses(node, shown).is_empty()
}
