//! A log that cannot be flooded: one line for each kind of refusal, from each party, in a minute. Counters count them all.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How long the same refusal of the same party stays silent.
const SILENT: Duration = Duration::from_secs(60);
/// Parties and kinds that are remembered. Beyond it nothing is logged until some have been silent long enough.
const REMEMBERED_MAX: usize = 1_024;

/// What was said lately.
#[derive(Debug, Default)]
pub(super) struct Quiet(BTreeMap<(String, &'static str), Instant>);

impl Quiet {
    /// Whether this is worth a line.
    pub(super) fn is_news(&mut self, now: Instant, who: &str, code: &'static str) -> bool {
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
