//! Signs of life on one connection: when to ask, how long the way takes, when to give up.

use serde::{Deserialize, Serialize};
use shared::fleet::{Hop, PathReport};
use shared::units::{Micros, Moment};

/// What is known of the life of one connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Liveness {
    /// When it came up.
    pub(super) since: Moment,
    heard: Moment,
    asked: Option<(u64, Moment)>,
    next: Moment,
    number: u64,
    rtt: Option<Micros>,
    jitter: Option<Micros>,
}

impl Liveness {
    /// How often we ask.
    const EVERY: Micros = Micros::from_secs(1);
    /// How soon we ask while the last answers came late.
    const HURRY: Micros = Micros::from_millis(250);
    /// Silence after which the connection is given up: three questions unanswered. Shorter than the transport's own idle timeout
    /// of five seconds, since a path that swallows everything is worse than none.
    const SILENCE_MAX: Micros = Micros::from_secs(3);

    /// What is left of the silence once something else spoke against the other end: an answer to the question that is then asked at
    /// once takes one round trip, and no usable path takes longer than this.
    const DOUBT_MAX: Micros = Micros::from_millis(1_500);

    pub(super) fn new(now: Moment, rtt: Option<Micros>) -> Self {
        Self { since: now, heard: now, asked: None, next: now, number: 0, rtt, jitter: None }
    }

    /// Something came from the other end.
    pub(super) fn heard(&mut self, now: Moment) {
        self.heard = now;
    }

    /// Something else says that the other end may be dead: ask at once, and wait less long.
    pub(super) fn doubt(&mut self, now: Moment) {
        self.heard = self.heard.min(now.before(Self::SILENCE_MAX - Self::DOUBT_MAX));
        self.next = now;
    }

    /// The last answers raise a question: ask the next one sooner, so that a bad path is found in seconds.
    pub(super) fn hurry(&mut self, now: Moment) {
        self.next = self.next.min(now + Self::HURRY);
    }

    /// The answer to question `number` came. Says how long it took, if it is the one that is timed.
    pub(super) fn answered(&mut self, now: Moment, number: u64) -> Option<Micros> {
        self.heard(now);
        let (_, at) = self.asked.take_if(|(asked, _)| *asked == number)?;
        let took = now.since(at);
        self.sample(took);
        Some(took)
    }

    /// Smooths as RFC 6298 does: an eighth of the news for the mean, a quarter for the deviation.
    fn sample(&mut self, rtt: Micros) {
        let Some(mean) = self.rtt else {
            self.rtt = Some(rtt);
            return;
        };
        let deviation = (rtt - mean) + (mean - rtt);
        self.jitter = Some(self.jitter.map_or(Micros(deviation.0 / 2), |old| Micros(old.0 - old.0 / 4 + deviation.0 / 4)));
        self.rtt = Some(Micros(mean.0 - mean.0 / 8 + rtt.0 / 8));
    }

    /// The number of the question to ask now, if it is time. An unanswered one stays the one that is timed, so that a slow answer
    /// still counts.
    pub(super) fn question(&mut self, now: Moment) -> Option<u64> {
        if now < self.next {
            return None;
        }
        self.next = now + Self::EVERY;
        self.number += 1;
        if self.asked.is_none_or(|(_, at)| now.since(at) >= Self::SILENCE_MAX) {
            self.asked = Some((self.number, now));
        }
        Some(self.number)
    }

    pub(super) fn is_silent(&self, now: Moment) -> bool {
        now.since(self.heard) >= Self::SILENCE_MAX
    }

    pub(super) const fn rtt(&self) -> Option<Micros> {
        self.rtt
    }

    pub(super) fn report(&self, hop: Hop) -> PathReport {
        PathReport { hop, rtt: self.rtt, jitter: self.jitter, ..PathReport::local() }
    }

    pub(super) fn deadline(&self) -> Moment {
        self.next.min(self.heard + Self::SILENCE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_are_spaced_answers_are_timed_silence_is_noticed() {
        let second = |s: u64| Moment(s * 1_000_000);
        let mut life = Liveness::new(second(0), None);
        assert_eq!(life.question(second(0)), Some(1));
        assert_eq!(life.question(Moment(10)), None, "once a second is enough");
        life.answered(Moment(80_000), 1);
        assert_eq!(life.rtt(), Some(Micros(80_000)));
        assert_eq!(life.question(second(1)), Some(2));
        life.answered(Moment(1_160_000), 2);
        assert_eq!(life.rtt(), Some(Micros(90_000)), "an eighth of the news");
        assert!(!life.is_silent(second(4)));
        assert!(life.is_silent(Moment(4_160_000)));
    }

    #[test]
    fn doubt_asks_at_once_and_an_answer_ends_it() {
        let (start, later) = (Moment(10_000_000), |ms: u64| Moment(10_000_000 + ms * 1_000));
        let mut life = Liveness::new(start, None);
        assert!(life.question(start).is_some());
        life.answered(later(10), 1);
        life.doubt(later(100));
        let asked = life.question(later(100)).expect("at once");
        assert!(!life.is_silent(later(1_599)));
        assert!(life.is_silent(later(1_600)));
        life.answered(later(150), asked);
        assert!(!life.is_silent(later(3_000)));
    }
}
