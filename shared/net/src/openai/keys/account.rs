//! What a key has used: requests of the last minute, tokens of the day. Pure: time is an argument.

use std::time::{Duration, Instant};

/// Seconds of a day. Days are those of UTC, so that all ingresses turn over at once.
pub(super) const DAY_S: u64 = 24 * 3_600;

/// A bucket of requests that fills evenly, up to a minute's worth: a client that was quiet may send them at once.
#[derive(Debug)]
struct Bucket {
    /// Requests that may come now.
    level: f64,
    at: Instant,
}

/// Tokens of one day.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Day {
    number: u64,
    used: u64,
}

/// What one key has used at this ingress.
#[derive(Debug, Default)]
pub(super) struct Account {
    bucket: Option<Bucket>,
    day: Day,
    /// Tokens that open requests may still use.
    reserved: u64,
}

/// Where a limit stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Standing {
    /// What is left of it.
    pub(super) left: u64,
    /// Until all of it is there again.
    pub(super) reset: Duration,
}

impl Account {
    /// Takes one request out of the bucket. An error is the time after which there is one again.
    pub(super) fn request(&mut self, now: Instant, per_minute: u32) -> Result<(), Duration> {
        let bucket = self.filled(now, per_minute);
        if bucket.level >= 1.0 {
            bucket.level -= 1.0;
            return Ok(());
        }
        Err(Duration::from_secs_f64((1.0 - bucket.level) * 60.0 / f64::from(per_minute)))
    }

    fn filled(&mut self, now: Instant, per_minute: u32) -> &mut Bucket {
        let most = f64::from(per_minute);
        let bucket = self.bucket.get_or_insert(Bucket { level: most, at: now });
        let earned = now.saturating_duration_since(bucket.at).as_secs_f64() * most / 60.0;
        bucket.level = (bucket.level + earned).min(most);
        bucket.at = now;
        bucket
    }

    pub(super) fn requests(&mut self, now: Instant, per_minute: u32) -> Standing {
        let level = self.filled(now, per_minute).level;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between zero and the limit")]
        let left = level.max(0.0) as u64;
        let reset = Duration::from_secs_f64((f64::from(per_minute) - level).max(0.0) * 60.0 / f64::from(per_minute));
        Standing { left, reset }
    }

    /// Sets tokens aside for a request that begins. Whatever it may use, it is let in while anything is left: so the last request of
    /// a day may exceed the budget by its own size, and many at once by no more. An error is the time to the end of the day.
    pub(super) fn reserve(&mut self, unix_s: u64, per_day: u64, tokens: u64) -> Result<(), Duration> {
        let standing = self.tokens(unix_s, per_day);
        if standing.left == 0 {
            return Err(standing.reset);
        }
        self.reserved = self.reserved.saturating_add(tokens);
        Ok(())
    }

    /// The request is over: what was set aside is given back, and what it used is counted.
    pub(super) fn settle(&mut self, unix_s: u64, reserved: u64, used: u64) {
        self.reserved = self.reserved.saturating_sub(reserved);
        self.turn_over(unix_s);
        self.day.used = self.day.used.saturating_add(used);
    }

    pub(super) fn tokens(&mut self, unix_s: u64, per_day: u64) -> Standing {
        self.turn_over(unix_s);
        let left = per_day.saturating_sub(self.day.used.saturating_add(self.reserved));
        Standing { left, reset: Duration::from_secs(DAY_S - unix_s % DAY_S) }
    }

    fn turn_over(&mut self, unix_s: u64) {
        let today = unix_s / DAY_S;
        if today > self.day.number {
            self.day = Day { number: today, used: 0 };
        }
    }

    /// The day and the tokens used in it.
    pub(super) const fn used(&self) -> (u64, u64) {
        (self.day.number, self.day.used)
    }

    /// Takes back what an earlier life counted, where that is more.
    pub(super) fn restore(&mut self, day: u64, used: u64) {
        if day > self.day.number {
            self.day = Day { number: day, used };
        } else if day == self.day.number {
            self.day.used = self.day.used.max(used);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bucket_gives_a_minutes_worth_and_says_truly_when_the_next_comes() {
        let (mut account, start) = (Account::default(), Instant::now());
        assert!((0..6).all(|_| account.request(start, 6).is_ok()));
        let wait = account.request(start, 6).expect_err("empty");
        assert_eq!(wait, Duration::from_secs(10));
        assert!(account.request(start + wait / 2, 6).is_err());
        assert_eq!(account.request(start + wait, 6), Ok(()));
        let later = start + Duration::from_secs(3_600);
        assert_eq!(account.requests(later, 6), Standing { left: 6, reset: Duration::ZERO }, "it does not overflow");
    }

    #[test]
    fn a_day_has_a_budget_and_an_end() {
        let (mut account, noon) = (Account::default(), 1_000 * DAY_S + DAY_S / 2);
        assert_eq!(account.reserve(noon, 100, 80), Ok(()));
        assert_eq!(account.reserve(noon, 100, 80), Ok(()), "something is left");
        let until = account.reserve(noon, 100, 1).expect_err("all is set aside");
        assert_eq!(until, Duration::from_secs(DAY_S / 2));
        account.settle(noon, 80, 10);
        account.settle(noon, 80, 10);
        assert_eq!(account.tokens(noon, 100).left, 80);
        account.settle(noon, 0, 90);
        assert!(account.reserve(noon, 100, 1).is_err());
        assert_eq!(account.reserve(noon + DAY_S / 2, 100, 1), Ok(()), "a new day");
    }

    #[test]
    fn what_was_used_is_used_after_a_restart() {
        let mut account = Account::default();
        account.restore(7, 90);
        account.restore(7, 40);
        account.restore(6, 1_000);
        assert_eq!(account.used(), (7, 90));
        assert_eq!(account.tokens(7 * DAY_S, 100).left, 10);
        assert_eq!(account.tokens(8 * DAY_S, 100).left, 100);
    }
}
