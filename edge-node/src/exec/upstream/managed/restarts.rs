//! When a server that ended is started again.

use super::ManagedConfig;
use shared::backoff::Backoff;
use shared::units::Micros;
use std::collections::VecDeque;
use std::time::Duration;
use tokio::time::Instant;

/// Longest pause between two tries within the budget.
const PAUSE_MAX: Micros = Micros::from_secs(60);
/// Failed starts are counted over this time.
const WINDOW: Duration = Duration::from_secs(600);

/// Pauses with full jitter, and a budget of failures: a server that dies again and again gets longer and longer rests, and never none.
#[derive(Debug)]
pub(super) struct Restarts {
    backoff: Backoff,
    failed: VecDeque<Instant>,
    failures_max: usize,
}

impl Restarts {
    pub(super) fn new(config: &ManagedConfig, seed: u64) -> Self {
        let first = Micros::from_millis(config.pause_ms);
        let first = if first < Backoff::LEAST { Backoff::LEAST } else { first };
        Self {
            backoff: Backoff::new(seed, first, PAUSE_MAX),
            failed: VecDeque::new(),
            failures_max: usize::try_from(config.crashes_max).unwrap_or(usize::MAX),
        }
    }

    /// It ended now, after it had run for `lasted`: how long to wait.
    pub(super) fn after(&mut self, now: Instant, lasted: Duration) -> Duration {
        let lasted = Micros(u64::try_from(lasted.as_micros()).unwrap_or(u64::MAX));
        let pause = Duration::from_micros(self.backoff.after_failure(lasted).0);
        self.failed.push_back(now);
        self.failed.retain(|at| now.duration_since(*at) < WINDOW);
        if self.failed.len() <= self.failures_max {
            return pause;
        }
        // Only as many are kept as the budget holds: the oldest of them says when there is room again.
        self.failed.pop_front();
        let oldest = self.failed.front().map_or(now, |oldest| *oldest);
        pause.max(WINDOW.saturating_sub(now.duration_since(oldest)))
    }

    pub(super) const fn failures(&self) -> u32 {
        self.backoff.failures()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn restarts() -> Restarts {
        let config = serde_json::json!({ "command": "server", "crashes_max": 3, "pause_ms": 1_000 });
        Restarts::new(&serde_json::from_value(config).expect("good"), 7)
    }

    #[test]
    fn pauses_stay_in_their_windows_until_the_budget_is_spent() {
        let (mut restarts, mut now) = (restarts(), Instant::now());
        for window in [1, 2, 4] {
            let pause = restarts.after(now, Duration::ZERO);
            assert!(pause <= Duration::from_secs(window), "{pause:?}");
            now += pause;
        }
        let rest = restarts.after(now, Duration::ZERO);
        assert!(rest > WINDOW - Duration::from_secs(8), "{rest:?}");
        // Never for good, and never as if nothing had been.
        now += rest;
        assert!(restarts.after(now, Duration::ZERO) <= WINDOW);
    }

    #[test]
    fn one_that_dies_now_and_then_is_started_at_once_and_again() {
        let (mut restarts, mut now) = (restarts(), Instant::now());
        for _ in 0..20 {
            now += WINDOW / 3;
            let pause = restarts.after(now, WINDOW / 3);
            assert!(pause <= Duration::from_secs(1), "{pause:?}");
        }
    }
}
