//! Publications that the broker throws us out for.
//!
//! A broker that dislikes one message closes the connection, and says no more. Published again at once on the next connection, that one
//! message would keep all others from ever arriving. So after such a loss the kinds go out one at a time, each with a moment to
//! be disliked in, and the first moment with nothing at all; the kind for which we are thrown out again and again is left out for a
//! while, counted and shown.

use super::Publication;
use serde::{Deserialize, Serialize};
use shared::units::{Micros, Moment};
use std::collections::{BTreeMap, BTreeSet};

/// A connection that lives so long after a message was not closed for it: brokers decide when they read.
const SETTLE: Micros = Micros::from_secs(1);
/// Thrown out so often for the same kind, alone and in a row, and it is left out. Twice may be a broker that restarts.
const STRIKES_MAX: u32 = 3;
/// A connection that lives so long shows that nothing published on it is disliked: by then every kind had its turn.
const CALM: Micros = Micros::from_secs(30);
/// How long a kind is left out; then it has one more chance, since brokers are mended and what is published changes.
const HELD_FOR: Micros = Micros::from_secs(600);

/// What is published, by what brokers tell apart: the topic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Birth and goodbye.
    Status,
    /// What the node is.
    Inventory,
    /// How the node is.
    Telemetry,
    /// What became of plans.
    PlanAck,
    /// Requests that are over.
    Records,
}

impl Kind {
    /// As people and metrics call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Status => "status",
            Self::Inventory => "inventory",
            Self::Telemetry => "telemetry",
            Self::PlanAck => "plan-ack",
            Self::Records => "records",
        }
    }
}

impl Publication {
    /// Its kind.
    #[must_use]
    pub const fn kind(&self) -> Kind {
        match self {
            Self::Status(_) => Kind::Status,
            Self::Inventory(_) => Kind::Inventory,
            Self::Telemetry(_) => Kind::Telemetry,
            Self::PlanAck(_) => Kind::PlanAck,
            Self::Records(_) => Kind::Records,
        }
    }
}

/// Whether something may be published.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Go,
    /// Another kind is being tried.
    Wait(Moment),
    /// It is left out until then.
    Held(Moment),
}

/// What is known of the broker's dislikes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Quarantine {
    /// Published on this connection and not survived yet.
    open: BTreeMap<Kind, Moment>,
    /// Survived on this connection.
    cleared: BTreeSet<Kind>,
    strikes: BTreeMap<Kind, u32>,
    held: BTreeMap<Kind, Moment>,
    /// One kind at a time.
    careful: bool,
    /// When the connection began.
    begun: Option<Moment>,
    /// How many publications were left out.
    dropped: u64,
}

impl Quarantine {
    /// To be asked before each publication; what may go counts as published.
    pub(super) fn ask(&mut self, now: Moment, kind: Kind) -> Verdict {
        self.settle(now);
        if let Some(until) = self.held.get(&kind) {
            if *until > now {
                self.dropped += 1;
                return Verdict::Held(*until);
            }
            self.held.remove(&kind);
            // One more time is enough to be left out again.
            self.strikes.insert(kind, STRIKES_MAX - 1);
            self.careful = true;
        }
        // Whom it throws out for nothing it throws out for everything: nothing is to blame for that.
        let silent = self.begun.map(|at| at + SETTLE).filter(|at| self.careful && *at > now);
        if let Some(until) = silent {
            return Verdict::Wait(until);
        }
        let tried = self.open.iter().filter(|(other, _)| **other != kind).map(|(_, at)| *at + SETTLE).max();
        match tried {
            Some(until) if self.careful && !self.cleared.contains(&kind) => Verdict::Wait(until),
            _ => {
                if !self.cleared.contains(&kind) {
                    self.open.insert(kind, now);
                }
                Verdict::Go
            }
        }
    }

    /// The connection lives: what was published long enough ago was not disliked.
    pub(super) fn settle(&mut self, now: Moment) {
        let survived: Vec<_> = self.open.iter().filter(|(_, at)| now.since(**at) >= SETTLE).map(|(kind, _)| *kind).collect();
        for kind in survived {
            self.open.remove(&kind);
            self.strikes.remove(&kind);
            self.cleared.insert(kind);
        }
        let calm = self.open.is_empty() && self.strikes.is_empty() && self.begun.is_none_or(|at| now.since(at) >= CALM);
        self.careful &= !calm;
    }

    /// A connection begins.
    pub(super) fn begin(&mut self, now: Moment) {
        self.begun = Some(now);
        self.open.clear();
        self.cleared.clear();
    }

    /// The broker closed the connection, or it broke. Says which kind is left out from now on.
    pub(super) fn lost(&mut self, now: Moment) -> Option<Kind> {
        self.settle(now);
        let open = std::mem::take(&mut self.open);
        self.careful |= !open.is_empty();
        let [kind] = open.into_keys().collect::<Vec<_>>()[..] else { return None };
        let strikes = self.strikes.entry(kind).or_default();
        *strikes += 1;
        if *strikes < STRIKES_MAX {
            return None;
        }
        self.strikes.remove(&kind);
        self.held.insert(kind, now + HELD_FOR);
        Some(kind)
    }

    /// The kinds that are left out.
    pub(super) fn held(&self, now: Moment) -> Vec<Kind> {
        self.held.iter().filter(|(_, until)| **until > now).map(|(kind, _)| *kind).collect()
    }

    pub(super) const fn dropped(&self) -> u64 {
        self.dropped
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Connects again and again to a broker that dislikes one kind; returns how often it was thrown out before it no longer was.
    fn thrown_out(quarantine: &mut Quarantine, now: &mut Moment, dislikes: Kind) -> u32 {
        let kinds = [Kind::Status, Kind::Inventory, Kind::PlanAck, Kind::Telemetry, Kind::Records];
        for kicks in 0..100 {
            quarantine.begin(*now);
            let mut waiting: Vec<_> = kinds.into();
            let kicked = loop {
                let mut gone = Vec::new();
                waiting.retain(|kind| match quarantine.ask(*now, *kind) {
                    Verdict::Go => {
                        gone.push(*kind);
                        false
                    }
                    Verdict::Held(_) => false,
                    Verdict::Wait(_) => true,
                });
                if gone.contains(&dislikes) {
                    break true;
                }
                if waiting.is_empty() {
                    break false;
                }
                *now = *now + SETTLE;
            };
            if !kicked {
                return kicks;
            }
            *now = *now + Micros::from_millis(20);
            quarantine.lost(*now);
            *now = *now + Micros::from_secs(2);
        }
        panic!("thrown out for ever");
    }

    #[test]
    fn whatever_is_disliked_is_found_and_left_out() {
        for dislikes in [Kind::Status, Kind::Inventory, Kind::PlanAck, Kind::Telemetry, Kind::Records] {
            let (mut quarantine, mut now) = (Quarantine::default(), Moment(1));
            let kicks = thrown_out(&mut quarantine, &mut now, dislikes);
            assert!(kicks <= STRIKES_MAX + 1, "{dislikes:?}: {kicks}");
            assert_eq!(quarantine.held(now), [dislikes]);
            assert!(quarantine.dropped() > 0);
            // After a while it has one more chance, and one only.
            now = now + HELD_FOR;
            assert_eq!(thrown_out(&mut quarantine, &mut now, dislikes), 1);
        }
    }

    #[test]
    fn a_broker_that_restarts_makes_nothing_suspect_for_long() {
        let (mut quarantine, mut now) = (Quarantine::default(), Moment(1));
        for _ in 0..20 {
            quarantine.begin(now);
            for kind in [Kind::Status, Kind::Inventory, Kind::Telemetry] {
                while let Verdict::Wait(until) = quarantine.ask(now, kind) {
                    now = until;
                }
            }
            now = now + Micros::from_secs(40);
            assert_eq!(quarantine.lost(now), None);
        }
        assert_eq!((quarantine.held(now), quarantine.dropped()), (Vec::new(), 0));
    }
}
