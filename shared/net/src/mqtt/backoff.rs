//! How long to wait before the next attempt.

use std::time::Duration;

/// Longest wait after the first failure.
const FIRST: Duration = Duration::from_millis(250);
/// Longest wait at all. Below one heartbeat, so that a hub that comes back has its nodes back within one; with 2,000 nodes it
/// then sees about a thousand handshakes a second, which one core carries.
const LONGEST: Duration = Duration::from_secs(4);
/// A connection that lasted so long was a good one: the next failure starts from the beginning. Without it, a broker that
/// accepts and drops would be hammered.
const STABLE: Duration = Duration::from_secs(10);

/// Exponential back-off with full jitter: each wait is drawn from zero to a limit that doubles, so that a fleet that lost its
/// broker at one instant does not come back at one instant.
#[derive(Debug, Default)]
pub(super) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after a connection that lasted `lasted` (zero for an attempt that failed), given a draw from 0 to 1.
    pub(super) fn next(&mut self, lasted: Duration, draw: f64) -> Duration {
        if lasted >= STABLE {
            self.failures = 0;
        }
        let limit = FIRST.saturating_mul(1 << self.failures.min(16)).min(LONGEST);
        self.failures = self.failures.saturating_add(1);
        limit.mul_f64(draw.clamp(0.0, 1.0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_grow_to_a_limit_and_only_a_stable_connection_resets_them() {
        let mut backoff = Backoff::default();
        let mut waits: Vec<_> = (0..100).map(|_| backoff.next(Duration::ZERO, 1.0)).collect();
        assert_eq!(waits.first(), Some(&FIRST));
        assert_eq!(waits.last(), Some(&LONGEST));
        assert!(waits.is_sorted());
        waits = vec![backoff.next(STABLE / 2, 1.0), backoff.next(STABLE, 1.0), backoff.next(Duration::ZERO, 1.0)];
        assert_eq!(waits, [LONGEST, FIRST, FIRST * 2]);
        assert_eq!(backoff.next(Duration::ZERO, 0.0), Duration::ZERO);
    }
}
