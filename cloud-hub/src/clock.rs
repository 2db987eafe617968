//! Wall-clock time, for certificates, token expiry and display only. Never for deciding: rounds and requests use the monotonic
//! clock that the driver hands to the core.

use serde::{Deserialize, Serialize};
use shared_net::tls::CertClock;
use std::time::Duration;

/// Seconds since 1970, UTC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnixTime(pub u64);

impl UnixTime {
    /// What the clock of certificates shows.
    #[must_use]
    pub fn now(clock: &CertClock) -> Self {
        Self(clock.secs())
    }

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
