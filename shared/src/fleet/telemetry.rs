//! How a node is, as it tells its hub: whole, or what changed.

use super::{Fact, Hardware, PathReport, ReplicaReport, ReportFault};
use crate::ids::{NodeId, VariantId};
use crate::units::{Bytes, Celsius, Fraction, Watts};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

/// A field of [`Telemetry`] that may become unknown.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gauge {
    /// [`Telemetry::cpu`].
    Cpu,
    /// [`Telemetry::memory_available`].
    MemoryAvailable,
    /// [`Telemetry::load_1m`].
    #[serde(rename = "load_1m")]
    Load1m,
    /// [`Telemetry::received`].
    Received,
    /// [`Telemetry::sent`].
    Sent,
    /// [`Telemetry::temperature`].
    Temperature,
    /// [`Telemetry::throttled`].
    Throttled,
    /// [`Telemetry::power`].
    Power,
    /// [`Telemetry::uplink`].
    Uplink,
    /// Another one, of a newer agent.
    #[serde(other)]
    Other,
}

/// How a node is: published each heartbeat and on change.
///
/// A report that is not a delta is whole: what it lacks is not known. A delta tells what changed since the one before: what it
/// lacks is as it was, and what became unknown is named in `unknown`. All values are absolute, so that a lost delta spoils no later
/// one; each session begins with a whole report, and one follows now and then.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Telemetry {
    /// Whose.
    pub node: NodeId,
    /// Busy share of its processors.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Fraction>,
    /// Memory that could be had.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_available: Option<Bytes>,
    /// Load average over one minute.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load_1m: Option<f64>,
    /// Bytes received by all interfaces since boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received: Option<Bytes>,
    /// Bytes sent by all interfaces since boot.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent: Option<Bytes>,
    /// Temperature of its hottest part.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature: Option<Celsius>,
    /// Whether it runs slower than it could, for heat or for lack of power.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub throttled: Option<bool>,
    /// What it draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power: Option<Fact<Watts>>,
    /// Whether this tells only what changed.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub delta: bool,
    /// In a delta: what was known and is no longer.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub unknown: BTreeSet<Gauge>,
    /// In a delta: replicas that are no longer there.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub gone: Vec<VariantId>,
    /// In a delta: nodes to which there is no direct path any more.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub peers_gone: Vec<NodeId>,
    /// What is loaded.
    #[serde(default)]
    pub replicas: Vec<ReplicaReport>,
    /// Its path to the hub.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uplink: Option<PathReport>,
    /// Its direct paths to other nodes.
    #[serde(default)]
    pub peers: BTreeMap<NodeId, PathReport>,
}

impl Telemetry {
    /// Most replicas in one report: more do not fit one machine.
    pub const REPLICAS_MAX: usize = 256;
    /// Most peers in one report: a site's neighbours, not a fleet.
    pub const PEERS_MAX: usize = 256;

    /// Checks what the types cannot: that is, counts, and numbers without a unit type.
    ///
    /// # Errors
    /// [`ReportFault`] names the field.
    pub fn validate(&self) -> Result<(), ReportFault> {
        for (field, count, max) in [
            ("replicas", self.replicas.len(), Self::REPLICAS_MAX),
            ("peers", self.peers.len(), Self::PEERS_MAX),
            ("gone", self.gone.len(), Self::REPLICAS_MAX),
            ("peers_gone", self.peers_gone.len(), Self::PEERS_MAX),
        ] {
            if count > max {
                return Err(ReportFault::TooMany { field, count, max });
            }
        }
        if let Some(load) = self.load_1m
            && !(load.is_finite() && (0.0..1e6).contains(&load))
        {
            return Err(ReportFault::Value { field: "load_1m".to_owned(), why: "want a finite number from 0" });
        }
        if self.power.as_ref().is_some_and(|power| power.by.len() > Hardware::TEXT_MAX) {
            return Err(ReportFault::Value { field: "power.by".to_owned(), why: "want at most 64 characters" });
        }
        self.replicas.iter().try_for_each(ReplicaReport::validate)
    }
}

/// What of `old` is no longer in `new`, and what `new` has that differs by `matters`.
fn changed<T: Clone>(
    old: Option<&T>,
    new: Option<&T>,
    gauge: Gauge,
    unknown: &mut BTreeSet<Gauge>,
    matters: impl Fn(&T, &T) -> bool,
) -> Option<T> {
    match (old, new) {
        (Some(old), Some(new)) => matters(old, new).then(|| new.clone()),
        (None, new) => new.cloned(),
        (Some(_), None) => {
            unknown.insert(gauge);
            None
        }
    }
}

/// Whether a number moved by a twentieth of itself and by more than what is nothing.
fn moved(old: f64, new: f64, least: f64) -> bool {
    (new - old).abs() > least.max(old.abs() / 20.0)
}

fn path_moved(old: &PathReport, new: &PathReport) -> bool {
    let rtt = |path: &PathReport| path.rtt.map(|rtt| rtt.as_millis_f64());
    let same = PathReport { rtt: old.rtt, ..new.clone() } == *old;
    let near = matches!((rtt(old), rtt(new)), (Some(old), Some(new)) if !moved(old, new, 2.0)) || rtt(old) == rtt(new);
    !(same && near)
}

impl Telemetry {
    /// A report of a node that knows nothing of itself.
    #[must_use]
    pub fn of(node: NodeId) -> Self {
        Self {
            node,
            cpu: None,
            memory_available: None,
            load_1m: None,
            received: None,
            sent: None,
            temperature: None,
            throttled: None,
            power: None,
            delta: false,
            unknown: BTreeSet::new(),
            gone: Vec::new(),
            peers_gone: Vec::new(),
            replicas: Vec::new(),
            uplink: None,
            peers: BTreeMap::new(),
        }
    }

    /// What of this whole report is news to one who knows `before`, also whole. Numbers that moved less than a twentieth, or less
    /// than what nobody decides upon, are none: a percent of the processors, 16 MB, a degree, half a watt, 1 MB of traffic.
    #[must_use]
    pub fn since(&self, before: &Self) -> Self {
        let mut unknown = BTreeSet::new();
        let lost = &mut unknown;
        let bytes = |least: f64| move |old: &Bytes, new: &Bytes| moved(old.as_f64(), new.as_f64(), least);
        let cpu = changed(before.cpu.as_ref(), self.cpu.as_ref(), Gauge::Cpu, lost, |a, b| (a.get() - b.get()).abs() >= 0.02);
        let memory_available =
            changed(before.memory_available.as_ref(), self.memory_available.as_ref(), Gauge::MemoryAvailable, lost, bytes(16e6));
        let load_1m = changed(before.load_1m.as_ref(), self.load_1m.as_ref(), Gauge::Load1m, lost, |a, b| moved(*a, *b, 0.1));
        let received = changed(before.received.as_ref(), self.received.as_ref(), Gauge::Received, lost, |a, b| {
            b.0.abs_diff(a.0) > TRAFFIC_LEAST
        });
        let sent = changed(before.sent.as_ref(), self.sent.as_ref(), Gauge::Sent, lost, |a, b| b.0.abs_diff(a.0) > TRAFFIC_LEAST);
        let temperature = changed(before.temperature.as_ref(), self.temperature.as_ref(), Gauge::Temperature, lost, |a, b| {
            (a.get() - b.get()).abs() >= 1.0
        });
        let throttled = changed(before.throttled.as_ref(), self.throttled.as_ref(), Gauge::Throttled, lost, |a, b| a != b);
        let power = changed(before.power.as_ref(), self.power.as_ref(), Gauge::Power, lost, |a, b| {
            a.origin != b.origin || a.by != b.by || moved(a.value.get(), b.value.get(), 0.5)
        });
        let uplink = changed(before.uplink.as_ref(), self.uplink.as_ref(), Gauge::Uplink, lost, path_moved);
        let known = |report: &Self, replica: &ReplicaReport| report.replicas.iter().any(|one| one.variant == replica.variant);
        let stays = |replica: &&ReplicaReport| before.replicas.contains(replica);
        let path_stays = |node: &NodeId, path: &PathReport| before.peers.get(node).is_some_and(|old| !path_moved(old, path));
        Self {
            cpu,
            memory_available,
            load_1m,
            received,
            sent,
            temperature,
            throttled,
            power,
            uplink,
            delta: true,
            gone: before.replicas.iter().filter(|old| !known(self, old)).map(|old| old.variant.clone()).collect(),
            peers_gone: before.peers.keys().filter(|node| !self.peers.contains_key(*node)).cloned().collect(),
            replicas: self.replicas.iter().filter(|replica| !stays(replica)).cloned().collect(),
            peers: self
                .peers
                .iter()
                .filter(|(node, path)| !path_stays(node, path))
                .map(|(node, path)| (node.clone(), path.clone()))
                .collect(),
            unknown,
            ..Self::of(self.node.clone())
        }
    }

    /// What is known after this report, by one who knew `before` (whole). The result is whole.
    #[must_use]
    pub fn merged_into(self, before: &Self) -> Self {
        if !self.delta {
            return Self { unknown: BTreeSet::new(), gone: Vec::new(), peers_gone: Vec::new(), ..self };
        }
        let unknown = &self.unknown;
        let kept = |gauge: Gauge| !unknown.contains(&gauge);
        let mut replicas: Vec<ReplicaReport> = before.replicas.clone();
        replicas.retain(|old| !self.gone.contains(&old.variant) && !self.replicas.iter().any(|new| new.variant == old.variant));
        replicas.extend(self.replicas);
        let mut peers = before.peers.clone();
        peers.retain(|node, _| !self.peers_gone.contains(node));
        peers.extend(self.peers);
        Self {
            cpu: self.cpu.or_else(|| before.cpu.filter(|_| kept(Gauge::Cpu))),
            memory_available: self.memory_available.or_else(|| before.memory_available.filter(|_| kept(Gauge::MemoryAvailable))),
            load_1m: self.load_1m.or_else(|| before.load_1m.filter(|_| kept(Gauge::Load1m))),
            received: self.received.or_else(|| before.received.filter(|_| kept(Gauge::Received))),
            sent: self.sent.or_else(|| before.sent.filter(|_| kept(Gauge::Sent))),
            temperature: self.temperature.or_else(|| before.temperature.filter(|_| kept(Gauge::Temperature))),
            throttled: self.throttled.or_else(|| before.throttled.filter(|_| kept(Gauge::Throttled))),
            power: self.power.or_else(|| before.power.clone().filter(|_| kept(Gauge::Power))),
            uplink: self.uplink.or_else(|| before.uplink.clone().filter(|_| kept(Gauge::Uplink))),
            replicas,
            peers,
            ..Self::of(self.node)
        }
    }
}

/// Traffic below this is what reports and signs of life make themselves.
const TRAFFIC_LEAST: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::Origin;

    fn whole() -> Telemetry {
        let power = Fact {
            value: Watts::new(12.0).expect("power"),
            origin: Origin::Measured,
            by: "rapl".to_owned(),
            age: crate::units::Micros::ZERO,
            confidence: Fraction::new(0.9).expect("share"),
        };
        Telemetry {
            cpu: Fraction::new(0.5).ok(),
            memory_available: Some(Bytes(1 << 30)),
            temperature: Celsius::new(50.0).ok(),
            power: Some(power),
            ..Telemetry::of(NodeId::new("s/a").expect("id"))
        }
    }

    #[test]
    fn what_hardly_moved_is_no_news() {
        let now = Telemetry { cpu: Fraction::new(0.51).ok(), memory_available: Some(Bytes((1 << 30) + 1_000)), ..whole() };
        let news = now.since(&whole());
        assert_eq!(news, Telemetry { delta: true, ..Telemetry::of(whole().node) });
        assert!(serde_json::to_string(&news).expect("json").len() < 80);
        assert_eq!(news.merged_into(&whole()), whole());
    }

    #[test]
    fn what_became_unknown_is_unknown_and_not_as_it_was() {
        let now = Telemetry { temperature: None, power: None, cpu: Fraction::new(0.9).ok(), ..whole() };
        let news = now.since(&whole());
        assert_eq!(news.unknown, BTreeSet::from([Gauge::Temperature, Gauge::Power]));
        let text = serde_json::to_string(&news).expect("json");
        let read: Telemetry = serde_json::from_str(&text).expect("itself");
        assert_eq!(read.merged_into(&whole()), now);
    }

    #[test]
    fn a_whole_report_replaces_all() {
        let empty = Telemetry::of(whole().node);
        assert_eq!(empty.clone().merged_into(&whole()), empty);
    }
}
