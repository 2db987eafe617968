//! The wall clock, for certificates, token expiry and display only. Never for deciding: rounds and requests use the monotonic
//! clock that the driver hands to the core.

use serde::{Deserialize, Serialize};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// This long after it.
    #[must_use]
    pub fn plus(self, span: Duration) -> Self {
        Self(self.0.saturating_add(span.as_secs()))
    }

    /// This long before it.
    #[must_use]
    pub fn minus(self, span: Duration) -> Self {
        Self(self.0.saturating_sub(span.as_secs()))
    }

    /// How long it is until then, zero if that has passed.
    #[must_use]
    pub fn until(self, later: Self) -> Duration {
        Duration::from_secs(later.0.saturating_sub(self.0))
    }
}

/// When this program was built, as the build script saw it.
fn build_time() -> u64 {
    env!("TIDEGATE_BUILD_TIME").parse().unwrap_or(0)
}

/// The largest of system clock, last persisted time and build time: a board whose battery died at the hub's place must not issue
/// certificates of 1970, and a clock that was set back must not revive what had expired.
#[derive(Debug)]
pub struct WallClock {
    floor: AtomicU64,
}

impl WallClock {
    /// A clock that never shows less than `persisted`.
    #[must_use]
    pub fn new(persisted: UnixTime) -> Self {
        Self { floor: AtomicU64::new(persisted.0.max(build_time())) }
    }

    /// Now, never before any earlier answer.
    pub fn now(&self) -> UnixTime {
        let system = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
        UnixTime(self.floor.fetch_max(system, Ordering::Relaxed).max(system))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_clock_never_goes_back() {
        let system = WallClock::new(UnixTime(0)).now();
        assert!(system.0 >= build_time());
        let ahead = system.plus(Duration::from_secs(1_000_000));
        assert_eq!(WallClock::new(ahead).now(), ahead, "a persisted time ahead of the system's wins");
    }
}
