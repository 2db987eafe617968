//! A log that cannot be flooded: one line for each kind of refusal, from each party, in a minute. Counters count them all.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How long the same refusal of the same party stays silent.
const SILENT: Duration = Duration::from_secs(60);
/// Parties and kinds that are remembered. Beyond it nothing is logged until some have been silent long enough.
const REMEMBERED_MAX: usize = 1_024;

/// What was refused at the ports of a program, by port and reason. Both are words of the code, so the counts cannot grow without end.
#[derive(Debug, Default)]
pub struct Refusals {
    counts: Mutex<BTreeMap<(&'static str, &'static str), u64>>,
    quiet: Mutex<Quiet>,
}

impl Refusals {
    /// Counts a refusal at `port`, and logs it unless the same was said of `who` within the last minute.
    pub fn note(&self, port: &'static str, why: &'static str, who: &str) {
        *self.counts.lock().unwrap_or_else(PoisonError::into_inner).entry((port, why)).or_default() += 1;
        if self.quiet.lock().unwrap_or_else(PoisonError::into_inner).is_news(Instant::now(), who, why) {
            tracing::warn!(port, why, who, "refused (said once a minute)");
        }
    }

    /// How many so far, by port and reason.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<(&'static str, &'static str), u64> {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How many so far in all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.counts.lock().unwrap_or_else(PoisonError::into_inner).values().sum()
    }
}

/// What was said lately.
#[derive(Debug, Default)]
pub(crate) struct Quiet(BTreeMap<(String, &'static str), Instant>);

impl Quiet {
    /// Whether this is worth a line.
    pub(crate) fn is_news(&mut self, now: Instant, who: &str, code: &'static str) -> bool {
        if self.0.len() >= REMEMBERED_MAX {
            self.0.retain(|_, said| now.saturating_duration_since(*said) < SILENT);
        }
        let full = self.0.len() >= REMEMBERED_MAX;
        match self.0.get_mut(&(who.to_owned(), code)) {
            Some(said) if now.saturating_duration_since(*said) < SILENT => false,
            Some(said) => {
                *said = now;
                true
            }
            None if full => false,
            None => {
                self.0.insert((who.to_owned(), code), now);
                true
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn once_a_minute_for_each_kind_and_party_and_never_without_end() {
        let (mut quiet, start) = (Quiet::default(), Instant::now());
        assert!(quiet.is_news(start, "a", "x") && !quiet.is_news(start, "a", "x"));
        assert!(quiet.is_news(start, "b", "x") && quiet.is_news(start, "a", "y"));
        assert!(quiet.is_news(start + SILENT, "a", "x"));
        let told = (0..10_000).filter(|i| quiet.is_news(start + SILENT, &i.to_string(), "x")).count();
        assert!(told <= REMEMBERED_MAX && quiet.0.len() <= REMEMBERED_MAX);
        assert!(quiet.is_news(start + SILENT * 3, "late", "x"));
    }
}
