//! The host's monotonic clock: the only place that reads it.

use shared::units::Moment;
use std::time::{Duration, Instant};

/// Microseconds since this program started, as the cores count time. Clones show the same time.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
}

impl Clock {
    /// What a clock shows when it starts. Facts may be older than this process, and there are no moments before zero: a day is
    /// more than the age of any fact that is acted upon.
    const EPOCH: Duration = Duration::from_secs(24 * 60 * 60);

    /// Starts at a day, not at zero: facts may be older than this process. A program starts one clock and hands out clones.
    #[must_use]
    pub fn start() -> Self {
        Self { start: Instant::now() }
    }

    /// Now.
    #[must_use]
    pub fn now(&self) -> Moment {
        Moment(u64::try_from((Self::EPOCH + self.start.elapsed()).as_micros()).unwrap_or(u64::MAX))
    }

    /// Sleeps until a moment; for ever for one beyond the clock's range, such as `Moment(u64::MAX)`.
    pub async fn sleep_until(&self, moment: Moment) {
        match self.start.checked_add(Duration::from_micros(moment.0).saturating_sub(Self::EPOCH)) {
            Some(instant) => tokio::time::sleep_until(instant.into()).await,
            None => std::future::pending().await,
        }
    }

    /// Sleeps until a core's next deadline; for ever when it has none.
    pub async fn sleep_until_some(&self, moment: Option<Moment>) {
        match moment {
            Some(moment) => self.sleep_until(moment).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::units::Micros;

    #[tokio::test]
    async fn moments_come_in_order() {
        let clock = Clock::start();
        let until = clock.now() + Micros(500);
        clock.sleep_until(until).await;
        assert!(clock.now() >= until);
        clock.sleep_until_some(Some(Moment(0))).await;
    }
}
