//! What the hub was told of this node, so that it is told only what changed since, within a budget of bytes.

use serde::{Deserialize, Serialize};
use shared::fleet::Telemetry;
use shared::units::{Micros, Moment};
use shared::wire::mqtt::Session;

/// Bytes a second that reports may take in the mean: a link of 64 kbit/s keeps three quarters of itself for work. Below the two
/// thousand that are promised, because a report that is due may be the first of a window.
const RATE: u64 = 1_600;
/// What is counted for a report beside itself: its session, its topic, and the frames around it.
const AROUND: u64 = 250;
/// A whole report comes at least so often: a lost delta misleads nobody for longer.
const WHOLE_EVERY: Micros = Micros::from_secs(60);
/// Of the budget, whole reports may take this part: a node with hundreds of replicas sends them more seldom.
const WHOLE_PART: u64 = 4;

/// The last that the hub knows.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Told {
    /// By which session, and what a reader of all reports knows now.
    known: Option<(Session, Telemetry)>,
    /// When a whole report is due.
    whole_at: Moment,
    /// When what was sent is paid for.
    room_at: Moment,
}

impl Told {
    /// Whoever reads from now on knows nothing.
    pub(super) fn forget(&mut self) {
        self.known = None;
    }

    /// When there is room for news.
    pub(super) const fn room_at(&self) -> Moment {
        self.room_at
    }

    /// Whether there is room for news. There always is for the first report of a session.
    pub(super) fn has_room(&self, now: Moment) -> bool {
        self.known.is_none() || now >= self.room_at
    }

    /// The report to send now, given how the node is.
    pub(super) fn next(&mut self, now: Moment, session: Session, is: Telemetry) -> Telemetry {
        let known = self.known.take().filter(|(told, _)| *told == session);
        let report = match &known {
            Some((_, before)) if now < self.room_at => Telemetry { delta: true, ..Telemetry::of(before.node.clone()) },
            Some((_, before)) if now < self.whole_at => is.since(before),
            _ => is,
        };
        let bytes = serde_json::to_vec(&report).map_or(0, |text| text.len());
        let pause =
            Micros::from_millis((u64::try_from(bytes).unwrap_or(u64::MAX).saturating_add(AROUND)).saturating_mul(1_000) / RATE);
        self.room_at = self.room_at.max(now) + pause;
        if !report.delta {
            self.whole_at = now + WHOLE_EVERY.max(Micros(pause.0.saturating_mul(WHOLE_PART)));
        }
        let before = known.map_or_else(|| Telemetry::of(report.node.clone()), |(_, before)| before);
        self.known = Some((session, report.clone().merged_into(&before)));
        report
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::ids::NodeId;
    use shared::units::{Bytes, Fraction};

    fn is(cpu: f64, received: u64) -> Telemetry {
        let node = NodeId::new("s/a").expect("id");
        Telemetry { cpu: Fraction::new(cpu).ok(), received: Some(Bytes(received)), ..Telemetry::of(node) }
    }

    #[test]
    fn a_reader_of_all_reports_knows_how_it_is() {
        let (mut told, session) = (Told::default(), Session::default());
        let first = told.next(Moment(0), session, is(0.5, 0));
        assert!(!first.delta);
        let mut known = first.merged_into(&is(0.0, 0));
        for second in 1..50_u32 {
            let now = Moment(u64::from(second) * 1_000_000);
            // It creeps: each step is below what is told, all of them are not.
            let cpu = 0.5 + f64::from(second) / 200.0;
            let report = told.next(now, session, is(cpu, 0));
            assert!(report.delta);
            known = report.merged_into(&known);
            let off = known.cpu.map(|known| (known.get() - cpu).abs());
            assert!(off.is_some_and(|off| off < 0.02 + 1e-9), "{second}: {off:?}");
        }
        assert!(!told.next(Moment(61_000_000), session, is(0.5, 0)).delta, "whole now and then");
    }

    #[test]
    fn without_room_there_is_a_sign_of_life_and_the_news_come_later() {
        let (mut told, session) = (Told::default(), Session::default());
        told.next(Moment(0), session, is(0.5, 0));
        let at_once = told.next(Moment(1_000), session, is(0.9, 0));
        assert!(at_once.delta && at_once.cpu.is_none());
        assert!(told.next(Moment(2_000_000), session, is(0.9, 0)).cpu.is_some());
    }
}
