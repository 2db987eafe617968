//! One node as the hub knows it: what the store remembers, its session, and the state that follows from both.

use crate::logic::{Connection, RestoredNode};
use serde::{Deserialize, Serialize};
use shared::fleet::{Aged, Hop, Inventory, NodeState, PathReport, Telemetry, Transport};
use shared::ids::{Instance, SessionEpoch};
use shared::units::{Micros, Moment};
use shared::wire::frame::Hello;
use std::collections::{BTreeMap, BTreeSet};

/// Each connection is pinged so often. It is the fleet's pulse: loads ride on the answers.
pub(crate) const PING_EVERY: Micros = Micros::from_secs(1);
/// Pings due within this time are sent together, so that a large fleet wakes the hub ten times a second, not once a node.
pub(super) const PING_SLACK: Micros = Micros::from_millis(100);
/// A connection silent for so long makes its node suspect: two lost pings change nothing, and it comes before the transport's
/// own idle timeout of 5 s.
pub(crate) const SUSPECT_AFTER: Micros = Micros::from_secs(3);
/// The old connection of an identity must answer a challenge within this time when a new one claims it. It carries a ping over
/// the worst links that are usable at all, and it is shorter than the two seconds that an agent waits for its welcome.
pub(crate) const CHALLENGE_WITHIN: Micros = Micros::from_millis(1_500);
/// The flag of a cloned identity falls when no second instance was seen for so long. Longer than an agent that was turned away
/// waits before it tries again, so that the flag does not flap while both live.
pub(crate) const CLONE_STABLE: Micros = Micros::from_secs(60);
/// Pings whose answer is still awaited, for the round-trip time. At one a second and three seconds to suspicion, more than
/// these are never of use; the oldest falls out.
const PINGS_OPEN_MAX: usize = 8;
/// Different fields of one node whose faults are counted apart. A report has about twenty; what exceeds this goes to `other`.
const FAULT_FIELDS_MAX: usize = 32;
/// Characters kept of the text of a fault.
const FAULT_TEXT_MAX: usize = 200;

/// The work connection of a session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Link {
    pub(crate) connection: Connection,
    /// The last sign of life; absent until the first pong proves that the path carries data.
    pub(crate) heard: Option<Moment>,
    pub(super) ping_due: Moment,
    pings: Vec<(u64, Moment)>,
    /// Round-trip time by our own pings, smoothed.
    rtt: Option<Micros>,
    /// What the transport measured.
    pub(super) measured: Option<PathReport>,
    /// What the node says of its uplink: its way out is our way in.
    pub(super) told: Option<PathReport>,
}

impl Link {
    pub(super) fn new(connection: Connection, now: Moment) -> Self {
        Self { connection, heard: None, ping_due: now, pings: Vec::new(), rtt: None, measured: None, told: None }
    }

    pub(super) fn pinged(&mut self, now: Moment, number: u64) {
        if self.pings.len() >= PINGS_OPEN_MAX {
            self.pings.remove(0);
        }
        self.pings.push((number, now));
        self.ping_due = now + PING_EVERY;
    }

    /// Takes in a pong: a sign of life, and a sample of the round trip if it answers a ping of ours.
    pub(super) fn ponged(&mut self, now: Moment, number: u64) {
        self.heard = Some(now);
        let Some(place) = self.pings.iter().position(|(sent, _)| *sent == number) else { return };
        let sample = now.since(self.pings[place].1);
        self.pings.drain(..=place);
        // Smoothed as TCP does: an eighth of the new sample.
        let smoothed = self.rtt.map_or(sample, |rtt| Micros(rtt.0.saturating_mul(7).saturating_add(sample.0) / 8));
        self.rtt = Some(smoothed);
    }

    pub(crate) const fn rtt(&self) -> Option<Micros> {
        self.rtt
    }

    /// What carries it, as the driver measured.
    pub(crate) fn transport(&self) -> Option<Transport> {
        self.measured.as_ref().and_then(|path| path.transport)
    }

    /// The path, seen from the hub: what was measured here first, what the node says where nothing was. Only the node knows
    /// whether bytes cost money.
    pub(super) fn path(&self) -> PathReport {
        PathReport {
            hop: Hop::Direct,
            rtt: self.rtt.or_else(|| self.either(|path| path.rtt, |path| path.rtt)),
            jitter: self.either(|path| path.jitter, |path| path.jitter),
            rate_out: self.either(|path| path.rate_out, |path| path.rate_in),
            rate_in: self.either(|path| path.rate_in, |path| path.rate_out),
            loss: self.either(|path| path.loss, |path| path.loss),
            metered: [&self.measured, &self.told].into_iter().flatten().any(|path| path.metered),
            transport: self.either(|path| path.transport, |path| path.transport),
        }
    }

    fn either<T>(&self, measured: fn(&PathReport) -> Option<T>, told: fn(&PathReport) -> Option<T>) -> Option<T> {
        self.measured.as_ref().and_then(measured).or_else(|| self.told.as_ref().and_then(told))
    }
}

/// A session: from its admission until the next one of the same node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Live {
    pub(crate) epoch: SessionEpoch,
    pub(crate) instance: Instance,
    /// Absent once the connection is lost.
    pub(crate) link: Option<Link>,
    /// The last will or a goodbye came on MQTT, and nothing has contradicted it.
    pub(super) goodbye: bool,
    /// A message came on MQTT since the connection was lost.
    pub(super) mqtt_after_loss: bool,
    /// When the first message of this session came on MQTT, or the newest birth: from then on its subscriptions stand.
    pub(crate) mqtt_since: Option<Moment>,
}

/// A hello that waits until the connection it would replace has proved dead or alive.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Contender {
    pub(super) connection: Connection,
    pub(super) hello: Hello,
}

/// The question whether the process behind the session's connection still lives, after a hello of another instance or a last
/// will. It stands until it is answered or the
/// connection is over, whoever waits for the answer: an agent that restarts faster than its challenge runs must not start it anew.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Challenge {
    pub(super) number: u64,
    pub(super) until: Moment,
}

/// Reports that were dropped.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Faults {
    pub(crate) by_field: BTreeMap<String, u64>,
    pub(crate) last: Option<String>,
}

/// What a fault is shown as.
pub(super) fn shortened(field: &str, why: &str) -> String {
    format!("{field}: {why}").chars().take(FAULT_TEXT_MAX).collect()
}

impl Faults {
    /// Counts one, and returns its shortened text.
    pub(super) fn add(&mut self, field: &str, why: &str) -> String {
        let text = shortened(field, why);
        let known = self.by_field.len() < FAULT_FIELDS_MAX || self.by_field.contains_key(field);
        let field = if known { field } else { "other" };
        *self.by_field.entry(field.to_owned()).or_default() += 1;
        self.last = Some(text.clone());
        text
    }
}

/// One node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Member {
    pub(crate) labels: BTreeMap<String, String>,
    pub(crate) serials: BTreeSet<String>,
    pub(crate) revoked: BTreeSet<String>,
    pub(crate) drained: bool,
    pub(crate) inventory: Option<Inventory>,
    /// When that came.
    #[serde(default)]
    pub(crate) inventory_at: Moment,
    /// How it is, as it last said: without replicas and peers, which the view holds.
    pub(crate) told: Option<Aged<Telemetry>>,
    pub(crate) session: Option<Live>,
    pub(super) challenge: Option<Challenge>,
    pub(super) contender: Option<Contender>,
    /// When a second live instance was last seen.
    pub(super) cloned: Option<Moment>,
    /// When it was last heard of, by whatever way; absent after a goodbye.
    pub(crate) heard: Option<Moment>,
    /// The state that was last made known; [`Self::presence`] is the present one.
    pub(crate) shown: NodeState,
    pub(crate) faults: Faults,
}

impl Member {
    pub(super) fn restored(stored: RestoredNode) -> Self {
        Self {
            labels: stored.labels,
            serials: stored.serials,
            revoked: stored.revoked,
            drained: stored.drained,
            shown: NodeState::Offline,
            ..Self::default()
        }
    }

    pub(super) fn stored(&self, node: &shared::ids::NodeId) -> RestoredNode {
        RestoredNode {
            node: node.clone(),
            labels: self.labels.clone(),
            serials: self.serials.clone(),
            revoked: self.revoked.clone(),
            drained: self.drained,
        }
    }

    /// Whether it was thrown out and has not joined again since.
    pub(crate) fn is_revoked(&self) -> bool {
        !self.revoked.is_empty() && self.serials.is_subset(&self.revoked)
    }

    /// Whether a certificate of this serial number is good. A store that was restored may have forgotten serial numbers, so an
    /// unknown one (the CA's signature was checked) is good, unless the node was ever thrown out: then only those known to be
    /// issued afterwards are.
    pub(super) fn accepts(&self, serial: &str) -> bool {
        !self.revoked.contains(serial) && (self.revoked.is_empty() || self.serials.contains(serial))
    }

    pub(crate) fn link(&self) -> Option<&Link> {
        self.session.as_ref().and_then(|live| live.link.as_ref())
    }

    pub(super) fn link_mut(&mut self) -> Option<&mut Link> {
        self.session.as_mut().and_then(|live| live.link.as_mut())
    }

    /// The state that follows from all that is known.
    pub(super) fn presence(&self, now: Moment, lease: Micros) -> NodeState {
        if self.cloned.is_some() {
            return NodeState::Cloned;
        }
        if self.heard.is_none_or(|heard| now.since(heard) >= lease) {
            return NodeState::Offline;
        }
        let Some(live) = &self.session else { return NodeState::Seen };
        let Some(link) = &live.link else {
            return if live.mqtt_after_loss && !live.goodbye { NodeState::Seen } else { NodeState::Offline };
        };
        let Some(heard) = link.heard else { return NodeState::Seen };
        // A hello of another instance says that this one is probably dead, and if it is not, the identity is cloned: either way
        // it is given nothing until that is clear.
        if live.goodbye || self.contender.is_some() || now.since(heard) >= SUSPECT_AFTER {
            return NodeState::Suspect;
        }
        if self.drained { NodeState::Draining } else { NodeState::Online }
    }

    fn has_said_goodbye(&self) -> bool {
        self.session.as_ref().is_some_and(|live| live.goodbye)
    }

    /// When time alone may change something about it.
    pub(super) fn deadline(&self, lease: Micros) -> Option<Moment> {
        let working = matches!(self.shown, NodeState::Online | NodeState::Draining);
        let link = self.link();
        [
            link.map(|link| link.ping_due),
            link.and_then(|link| link.heard).filter(|_| working).map(|heard| heard + SUSPECT_AFTER),
            self.challenge.filter(|_| self.contender.is_some() || self.has_said_goodbye()).map(|challenge| challenge.until),
            self.cloned.map(|seen| seen + CLONE_STABLE),
            self.heard.filter(|_| self.shown != NodeState::Offline && self.cloned.is_none()).map(|heard| heard + lease),
        ]
        .into_iter()
        .flatten()
        .min()
    }
}
