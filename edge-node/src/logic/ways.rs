//! Which transport is taken to one other end: QUIC while it carries, TCP where it does not, and QUIC again once it does.
//!
//! A path counts by what it carries. Handshakes that succeed prove little: networks exist that let a few datagrams pass and then
//! drop most of them.

use serde::{Deserialize, Serialize};
use shared::backoff::Backoff;
use shared::fleet::{Transport, TransportOrder};
use shared::units::{Micros, Moment};
use std::collections::VecDeque;

/// First window between two looks whether QUIC carries again: a walk from one network into another takes about as long.
const WINDOW_FIRST: Micros = Micros::from_secs(60);
/// Largest window. A site whose firewall drops UDP pays twenty packets each time.
const WINDOW_MAX: Micros = Micros::from_secs(900);
/// Shortest time between two looks, so that a path at the edge of carrying does not swing.
const LOOK_LEAST: Micros = Micros::from_secs(20);

/// Signs of life that are looked back upon.
const SIGNS: usize = 16;
/// So many bad ones among these, and the path does not carry as it should: late answers, or ones before which packets got lost.
/// At 20 % loss a fifth is bad and every second look back finds four, so such a path is found in seconds; at 2 % it takes a day.
const BAD_MAX: usize = 4;
/// What an answer may take beyond twice the best one before it counts as late: less than any retransmission, more than a busy
/// scheduler.
const SLACK: Micros = Micros::from_millis(100);

/// Why QUIC is not taken, and until when.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Avoided {
    why: String,
    look_at: Moment,
}

/// What is known of the transports to one other end.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ways {
    avoided: Option<Avoided>,
    looks: Backoff,
    /// How often QUIC was given up although it had shaken hands.
    demotions: u64,
}

impl Ways {
    pub(super) const fn new(seed: u64) -> Self {
        Self { avoided: None, looks: Backoff::new(seed, WINDOW_FIRST, WINDOW_MAX).at_least(LOOK_LEAST), demotions: 0 }
    }

    /// What to dial with. What was learnt about QUIC is forgotten when it is time to look again.
    pub(super) fn order(&self, now: Moment) -> TransportOrder {
        TransportOrder::prefer(if self.avoids_quic(now) { Transport::Tcp } else { Transport::Quic })
    }

    /// Data went both ways by this transport, before the other one.
    pub(super) fn carried(&mut self, now: Moment, by: Transport) {
        match by {
            Transport::Quic => self.avoided = None,
            Transport::Tcp if !self.avoids_quic(now) => self.avoid(now, Micros::ZERO, "TCP carried sooner".to_owned()),
            Transport::Tcp => {}
        }
    }

    /// QUIC shook hands, was used for `lasted`, and does not carry.
    pub(super) fn demote(&mut self, now: Moment, lasted: Micros, why: String) {
        self.demotions += 1;
        self.avoid(now, lasted, why);
    }

    /// A look found that QUIC does not carry yet.
    pub(super) fn still_bad(&mut self, now: Moment, why: String) {
        self.avoid(now, Micros::ZERO, why);
    }

    /// Trouble is found within a minute or so; only what was good for much longer begins with the smallest window again.
    fn avoid(&mut self, now: Moment, lasted: Micros, why: String) {
        let lasted = if lasted >= WINDOW_MAX { lasted } else { Micros::ZERO };
        let look_at = now + self.looks.after_failure(lasted);
        self.avoided = Some(Avoided { why, look_at });
    }

    /// Whether QUIC is given up for now.
    pub(super) fn avoids_quic(&self, now: Moment) -> bool {
        self.avoided.as_ref().is_some_and(|avoided| now < avoided.look_at)
    }

    /// When QUIC is to be looked at again.
    pub(super) fn look_at(&self) -> Option<Moment> {
        self.avoided.as_ref().map(|avoided| avoided.look_at)
    }

    /// The look is under way, and another is not due before it must have ended.
    pub(super) fn looking(&mut self, now: Moment) {
        if let Some(avoided) = &mut self.avoided {
            avoided.look_at = now + LOOK_LEAST;
        }
    }

    pub(super) fn avoided(&self) -> Option<&str> {
        self.avoided.as_ref().map(|avoided| avoided.why.as_str())
    }

    pub(super) const fn demotions(&self) -> u64 {
        self.demotions
    }
}

/// How good the signs of life of one connection were lately.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Punctuality {
    best: Option<Micros>,
    bad: VecDeque<bool>,
    /// Lost packets, now and at the last sign.
    lost: u64,
    lost_before: u64,
}

impl Punctuality {
    /// So many packets got lost since the beginning.
    pub(super) const fn lost(&mut self, packets: u64) {
        self.lost = packets;
    }

    /// An answer took so long. Says whether there is reason to ask again sooner.
    pub(super) fn answered(&mut self, took: Micros) -> bool {
        let best = self.best.map_or(took, |best| best.min(took));
        self.best = Some(best);
        if self.bad.len() == SIGNS {
            self.bad.pop_front();
        }
        self.bad.push_back(took > best + best + SLACK || self.lost > self.lost_before);
        self.lost_before = self.lost;
        self.bad.contains(&true)
    }

    /// Says why the path is not good enough, if it is not.
    pub(super) fn complaint(&self) -> Option<String> {
        let bad = self.bad.iter().filter(|bad| **bad).count();
        (bad >= BAD_MAX).then(|| format!("{bad} of the last {} answers came late or after losses", self.bad.len()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Moment = Moment(1_000_000);

    fn later(secs: u64) -> Moment {
        START + Micros::from_secs(secs)
    }

    #[test]
    fn what_won_is_remembered_for_a_while_and_quic_is_tried_again() {
        let mut ways = Ways::new(1);
        assert_eq!(ways.order(START), TransportOrder::prefer(Transport::Quic));
        ways.carried(START, Transport::Tcp);
        assert_eq!(ways.order(later(1)), TransportOrder::prefer(Transport::Tcp), "no head start for what does not carry");
        let look = ways.look_at().expect("it is looked at again");
        assert!((later(20)..=later(60)).contains(&look), "{look:?}");
        assert_eq!(ways.order(look), TransportOrder::prefer(Transport::Quic));
        ways.carried(look, Transport::Quic);
        assert_eq!((ways.look_at(), ways.avoided()), (None, None));
    }

    #[test]
    fn looks_become_rare_but_never_end() {
        let mut ways = Ways::new(2);
        ways.demote(START, Micros::ZERO, "lossy".to_owned());
        let mut now = START;
        let mut waits = Vec::new();
        for _ in 0..60 {
            let at = ways.look_at().expect("always");
            waits.push(at.since(now));
            now = at;
            ways.still_bad(now, "lossy".to_owned());
        }
        assert!(waits.iter().all(|wait| (LOOK_LEAST..=WINDOW_MAX).contains(wait)), "{waits:?}");
        assert!(waits.iter().skip(20).any(|wait| *wait > Micros::from_secs(450)), "{waits:?}");
        assert_eq!(ways.demotions(), 1, "a look is no demotion");
    }

    #[test]
    fn a_lossy_path_is_told_from_a_slow_one() {
        let mut slow = Punctuality::default();
        for number in 0..100 {
            slow.answered(Micros::from_millis(600 + number % 7 * 80));
        }
        assert_eq!(slow.complaint(), None, "slow, and steady");
        let mut lossy = Punctuality::default();
        for number in 0..12 {
            lossy.answered(Micros::from_millis(if number % 2 == 0 { 20 } else { 230 }));
        }
        assert!(lossy.complaint().is_some_and(|why| why.contains("6 of the last 12")), "{:?}", lossy.complaint());
        // On a short path what is lost is sent again so soon that no answer is late.
        let mut short = Punctuality::default();
        for packets in [0, 1, 1, 1, 2, 4, 4, 5] {
            short.lost(packets);
            short.answered(Micros::from_millis(20));
        }
        assert!(short.complaint().is_some());
        // One retransmission in a while is no sign.
        let mut good = Punctuality::default();
        for number in 0..100 {
            good.answered(Micros::from_millis(if number % 10 == 0 { 400 } else { 20 }));
        }
        assert_eq!(good.complaint(), None);
    }
}
