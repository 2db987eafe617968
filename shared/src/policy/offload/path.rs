//! How one node would reach another, as far as whoever decides for an edge can know.

use super::Scene;
use crate::fleet::{Hop, NodeView, PathReport};
use crate::ids::NodeId;
use crate::units::{ByteRate, Micros};

/// Round-trip time that is assumed where a path carries data but was not measured yet: that of a poor link, so that the
/// unmeasured is not preferred to the measured.
const RTT_UNKNOWN: Micros = Micros::from_millis(100);

/// The path from `from` to `to`: between the two, if one of them reports it; else through the hub, if it is the hub that decides.
#[must_use]
pub(super) fn between(scene: &Scene<'_>, from: &NodeId, to: &NodeId) -> Option<PathReport> {
    let deciding = |node: &NodeId| node == scene.me && node == scene.edge;
    let path = if deciding(from) {
        own(scene, to)
    } else if deciding(to) {
        own(scene, from).map(PathReport::reversed)
    } else if deciding(scene.edge) && scene.view.node(scene.me).is_some() {
        // An agent that is cut off: what it reaches itself makes no way between two others.
        direct(scene, from, to)
    } else {
        direct(scene, from, to).or_else(|| relayed(scene, from, to))
    };
    path.map(|path| PathReport { rtt: path.rtt.or(Some(RTT_UNKNOWN)), ..path })
}

/// Who decides knows its own paths.
fn own(scene: &Scene<'_>, node: &NodeId) -> Option<PathReport> {
    fresh(scene, scene.view.node(node)?)
}

/// As one end reports it, or, seen from there, the other.
fn direct(scene: &Scene<'_>, from: &NodeId, to: &NodeId) -> Option<PathReport> {
    let reported = |from: &NodeId, to: &NodeId| {
        let entry = scene.view.node(from)?;
        let fresh = entry.reported.is_some_and(|at| scene.now.since(at) <= scene.stale_after);
        entry.peers.get(to).filter(|_| fresh).cloned()
    };
    reported(from, to).or_else(|| reported(to, from).map(PathReport::reversed))
}

/// Up one uplink and down another; the hub's paths to both are theirs seen from the other end.
fn relayed(scene: &Scene<'_>, from: &NodeId, to: &NodeId) -> Option<PathReport> {
    let up = own(scene, from)?;
    let down = own(scene, to)?;
    let rtt = |path: &PathReport| path.rtt.unwrap_or(RTT_UNKNOWN);
    Some(PathReport {
        hop: Hop::Relay,
        rtt: Some(rtt(&up) + rtt(&down)),
        jitter: None,
        rate_out: slower(up.rate_in, down.rate_out),
        rate_in: slower(up.rate_out, down.rate_in),
        loss: None,
        metered: up.metered || down.metered,
        transport: up.transport.filter(|_| up.transport == down.transport),
    })
}

/// The viewer's best path to a node that is not itself, unless it is too old to count on.
fn fresh(scene: &Scene<'_>, entry: &NodeView) -> Option<PathReport> {
    let usable = entry.paths.values().find(|path| path.value.hop != Hop::Local && path.age(scene.now) <= scene.stale_after);
    usable.map(|path| path.value.clone())
}

/// The rate of two paths one after the other, as far as it is known.
fn slower(a: Option<ByteRate>, b: Option<ByteRate>) -> Option<ByteRate> {
    match (a, b) {
        (Some(a), Some(b)) => Some(if a.get() < b.get() { a } else { b }),
        (known, None) | (None, known) => known,
    }
}
