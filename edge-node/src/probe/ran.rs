//! How long a thread ran: a machine that does other things too is no slow one.

use std::fs;
use std::time::{Duration, Instant};

/// How long this thread has run, as the kernel counts it; the time on the wall where it does not.
#[derive(Clone, Copy, Debug)]
pub(super) struct Ran(Instant, Option<Duration>);

impl Ran {
    /// From now on.
    pub(super) fn begin() -> Self {
        Self(Instant::now(), counted())
    }

    /// Until now, by the thread that began.
    pub(super) fn so_far(&self) -> Duration {
        self.1.zip(counted()).map_or_else(|| self.0.elapsed(), |(before, now)| now.saturating_sub(before))
    }
}

fn counted() -> Option<Duration> {
    let text = fs::read_to_string("/proc/thread-self/schedstat").ok()?;
    text.split_ascii_whitespace().next()?.parse().ok().map(Duration::from_nanos)
}
