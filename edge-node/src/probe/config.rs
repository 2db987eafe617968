//! The section `probe` of the configuration.

use super::accelerator::Drill;
use serde::{Deserialize, Serialize};
use std::num::NonZero;
use std::time::Duration;

/// Longest that a look may take. It computes on all processors for some of that time, if at low priority.
const LIMIT_MAX: Duration = Duration::from_secs(60);
/// Shortest pause between two looks: a device that works is hindered by each.
const PERIOD_MIN: Duration = Duration::from_secs(60);

/// How the machine is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ProbeSection {
    /// Whether accelerators are looked for. Without, this node has none.
    pub enabled: bool,
    /// Seconds between two looks; they also come at the start, and when devices come or go.
    pub period_s: NonZero<u32>,
    /// Milliseconds that a look may take; then it is killed, and has failed.
    pub limit_ms: NonZero<u32>,
    /// `off`, or how each look shall go wrong, to see that the agent goes on: `hang`, `crash` or `flood`.
    pub drill: Drill,
}

/// A section that cannot work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadProbe {
    /// Too often.
    #[error("`probe.period_s`: want at least {}", PERIOD_MIN.as_secs())]
    Period,
    /// Too long.
    #[error("`probe.limit_ms`: want at most {}", LIMIT_MAX.as_millis())]
    Limit,
}

impl Default for ProbeSection {
    fn default() -> Self {
        Self {
            enabled: true,
            // What changes without a device coming or going is a driver's version, or what other programs hold: once a day will do.
            period_s: NonZero::new(86_400).unwrap_or(NonZero::<u32>::MAX),
            // With starting and killing, less than ten seconds in all.
            limit_ms: NonZero::new(9_000).unwrap_or(NonZero::<u32>::MAX),
            drill: Drill::Off,
        }
    }
}

impl ProbeSection {
    /// Time between two looks.
    #[must_use]
    pub fn period(&self) -> Duration {
        Duration::from_secs(self.period_s.get().into())
    }

    /// How long a look may take.
    #[must_use]
    pub fn limit(&self) -> Duration {
        Duration::from_millis(self.limit_ms.get().into())
    }

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// [`BadProbe`] names the key.
    pub fn validate(&self) -> Result<(), BadProbe> {
        if self.period() < PERIOD_MIN {
            return Err(BadProbe::Period);
        }
        if self.limit() > LIMIT_MAX { Err(BadProbe::Limit) } else { Ok(()) }
    }
}
