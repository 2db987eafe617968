//! How long to wait before the next try: exponential windows with full jitter, so that a fleet does not return as one wave.
//!
//! The one rule for everything that is tried again: connections to the hub, the broker and peers, and looks whether a transport
//! carries again. A connection that was had and did not last is a failure like one that was not had.

use crate::units::{Micros, Moment};
use serde::{Deserialize, Serialize};

/// Waiting times of one thing that is tried again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Backoff {
    seed: u64,
    draws: u64,
    failures: u32,
    /// Shortest wait.
    #[serde(default = "least")]
    least: Micros,
    first: Micros,
    cap: Micros,
}

const fn least() -> Micros {
    Backoff::LEAST
}

impl Backoff {
    /// Never less than this between two tries: a peer that answers and throws us out at once must not be hammered.
    pub const LEAST: Micros = Micros::from_millis(50);
    /// What lasted this long was no failure: the next loss starts again with the smallest window. Two of the longest pauses of a
    /// broker that restarts and throws out whoever comes while it loads.
    pub const STABLE: Micros = Micros::from_secs(30);

    /// Windows that start at `first` and double up to `cap`; `seed` decides where in the window a try falls.
    #[must_use]
    pub const fn new(seed: u64, first: Micros, cap: Micros) -> Self {
        Self { seed, draws: 0, failures: 0, least: Self::LEAST, first, cap }
    }

    /// The same with a longer shortest wait.
    #[must_use]
    pub const fn at_least(self, least: Micros) -> Self {
        Self { least, ..self }
    }

    /// Something failed, or ended after it had worked for `lasted`. Says how long to wait.
    pub fn after_failure(&mut self, lasted: Micros) -> Micros {
        if lasted >= Self::STABLE {
            self.failures = 0;
        }
        let doublings = self.failures.min(20);
        let window = Micros(self.first.0.saturating_mul(1 << doublings).min(self.cap.0));
        self.failures = self.failures.saturating_add(1);
        self.draws += 1;
        self.least + (window - self.least).scale(unit(mix(self.seed, self.draws)))
    }

    /// Failures in a row.
    #[must_use]
    pub const fn failures(&self) -> u32 {
        self.failures
    }
}

/// Spreads two numbers over all numbers (the finaliser of splitmix64): equal inputs, equal output.
#[must_use]
pub const fn mix(seed: u64, stream: u64) -> u64 {
    let mut z = seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// A number of `mix` as a fraction below 1.
fn unit(bits: u64) -> f64 {
    f64::from((bits >> 32) as u32) / (f64::from(u32::MAX) + 1.0)
}

/// When the earliest of some optional moments is.
#[must_use]
pub fn earliest(moments: impl IntoIterator<Item = Option<Moment>>) -> Option<Moment> {
    moments.into_iter().flatten().min()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_double_up_to_the_cap_and_reset_after_stability() {
        let mut backoff = Backoff::new(7, Micros::from_millis(250), Micros::from_millis(2_500));
        let waits: Vec<_> = (0..50).map(|_| backoff.after_failure(Micros::ZERO)).collect();
        assert!(waits[0] <= Micros::from_millis(250), "{}", waits[0]);
        assert!(waits.iter().all(|wait| (Backoff::LEAST..=Micros::from_millis(2_500)).contains(wait)), "{waits:?}");
        assert!(waits.iter().skip(10).any(|wait| *wait > Micros::from_millis(1_250)), "the window has grown: {waits:?}");
        // A success that does not last is a failure like any other.
        assert_eq!(backoff.failures(), 50);
        backoff.after_failure(Micros::from_secs(29));
        assert_eq!(backoff.failures(), 51);
        assert!(backoff.after_failure(Backoff::STABLE) <= Micros::from_millis(250));
    }

    #[test]
    fn the_shortest_wait_can_be_longer() {
        let (least, cap) = (Micros::from_secs(30), Micros::from_secs(600));
        let mut backoff = Backoff::new(3, Micros::from_secs(60), cap).at_least(least);
        assert!((0..100).map(|_| backoff.after_failure(Micros::ZERO)).all(|wait| (least..=cap).contains(&wait)));
    }

    #[test]
    fn nodes_do_not_move_as_one() {
        let first = |seed| Backoff::new(seed, Micros::from_secs(2), Micros::from_secs(2)).after_failure(Micros::ZERO);
        let waits: std::collections::BTreeSet<_> = (0..200).map(|node| first(mix(node, 1)).0 / 100_000).collect();
        assert!(waits.len() > 15, "two hundred nodes fill the tenths of the window: {waits:?}");
    }
}
