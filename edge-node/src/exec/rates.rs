//! Learning a profile from what requests took.

use shared::fleet::{Profile, ProfileSource};
use shared::units::{Fraction, Micros, TokenRate};

/// Least weight of a new observation: after ten, two thirds of the estimate are new. The first few count for more, as in a
/// plain mean, because a warm-up beside other work may be far off.
const WEIGHT_MIN: f64 = 0.1;

/// An observation counts at most as this factor above or below the estimate, so that one request in a stalled machine
/// moves the estimate by a tenth, while a lasting change still comes through in a dozen requests.
const OUTLIER_FACTOR: f64 = 2.0;

/// Fewer tokens than this say more about the clock than about the rate.
const TOKENS_MIN: u32 = 4;

/// Running estimate of an engine's speed. Only time that was spent on the request alone may be fed to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Learner {
    prompt: Rate,
    decode: Rate,
    overhead: Option<f64>,
    given: Option<ProfileSource>,
    samples: u32,
}

#[derive(Clone, Debug, Default)]
struct Rate {
    /// Seconds per token: its mean over requests is what an estimate needs, where the mean of rates would flatter.
    seconds: Option<f64>,
    /// Mean relative deviation.
    deviation: f64,
}

impl Rate {
    fn observe(&mut self, tokens: u32, seconds: f64, weight: f64) -> bool {
        let observed = seconds / f64::from(tokens.max(1));
        if tokens < TOKENS_MIN || !observed.is_finite() || observed <= 0.0 {
            return false;
        }
        let Some(estimate) = self.seconds else {
            self.seconds = Some(observed);
            return true;
        };
        let observed = observed.clamp(estimate / OUTLIER_FACTOR, estimate * OUTLIER_FACTOR);
        self.deviation += weight * ((observed / estimate - 1.0).abs() - self.deviation);
        self.seconds = Some(estimate + weight * (observed - estimate));
        true
    }

    fn rate(&self) -> Option<TokenRate> {
        // An answer that came at once measures as faster than anything is; that is no reason to know nothing.
        TokenRate::new(self.seconds.filter(|s| *s > 0.0)?.recip().min(TokenRate::MAX)).ok()
    }
}

/// What one request took. Zero tokens mean that nothing was observed.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(super) struct Observation {
    pub(super) prompt_tokens: u32,
    pub(super) prompt_seconds: f64,
    pub(super) decode_tokens: u32,
    pub(super) decode_seconds: f64,
    /// Time before the first token that was not the prompt's.
    pub(super) overhead_seconds: Option<f64>,
}

impl Learner {
    /// Starts from a measured or declared profile.
    pub(super) fn from_profile(profile: &Profile) -> Self {
        let rate = |rate: TokenRate| Rate { seconds: Some(rate.get().max(1e-9).recip()), deviation: profile.spread.get() };
        Self {
            prompt: rate(profile.prompt),
            decode: rate(profile.decode),
            overhead: Some(profile.overhead.as_secs_f64()),
            given: Some(profile.source),
            samples: profile.samples,
        }
    }

    /// Takes in one request.
    pub(super) fn observe(&mut self, seen: &Observation) {
        let weight = f64::from(self.samples.saturating_add(1)).recip().max(WEIGHT_MIN);
        let prompt = self.prompt.observe(seen.prompt_tokens, seen.prompt_seconds, weight);
        let decode = self.decode.observe(seen.decode_tokens, seen.decode_seconds, weight);
        if let Some(seconds) = seen.overhead_seconds.filter(|s| s.is_finite() && *s >= 0.0) {
            let estimate = self.overhead.unwrap_or(seconds);
            // An overhead may be next to nothing, so the bound for outliers has a floor of a millisecond.
            let bounded = seconds.min(estimate.max(1e-3) * OUTLIER_FACTOR);
            self.overhead = Some(estimate + weight * (bounded - estimate));
        }
        if prompt || decode {
            self.samples = self.samples.saturating_add(1);
            self.given = None;
        }
    }

    /// The profile so far; absent until both rates were observed.
    pub(super) fn profile(&self) -> Option<Profile> {
        Some(Profile {
            prompt: self.prompt.rate()?,
            decode: self.decode.rate()?,
            overhead: Micros::from_secs_f64(self.overhead.unwrap_or(0.0)),
            spread: Fraction::new(self.prompt.deviation.max(self.decode.deviation).clamp(0.0, 1.0)).unwrap_or_default(),
            source: self.given.unwrap_or(ProfileSource::Requests),
            samples: self.samples,
            pace: None,
            load: None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn seen(prompt_seconds: f64, decode_seconds: f64) -> Observation {
        Observation { prompt_tokens: 100, prompt_seconds, decode_tokens: 10, decode_seconds, overhead_seconds: Some(0.01) }
    }

    #[test]
    fn one_outlier_hardly_moves_the_estimate_and_a_lasting_change_does() {
        let mut learner = Learner::default();
        assert_eq!(learner.profile(), None);
        (0..12).for_each(|_| learner.observe(&seen(1.0, 0.5)));
        let rate = |learner: &Learner| learner.profile().map(|p| p.decode.get()).unwrap_or_default();
        assert!((rate(&learner) - 20.0).abs() < 1e-6);
        learner.observe(&seen(1.0, 500.0));
        assert!(rate(&learner) > 18.0, "{}", rate(&learner));
        for _ in 0..60 {
            learner.observe(&seen(1.0, 5.0));
        }
        assert!((rate(&learner) - 2.0).abs() < 0.2, "{}", rate(&learner));
    }

    #[test]
    fn nonsense_is_not_learned() {
        let mut learner = Learner::default();
        for seconds in [f64::NAN, f64::INFINITY, 0.0, -1.0] {
            learner.observe(&seen(seconds, seconds));
        }
        assert_eq!(learner.profile(), None);
    }

    #[test]
    fn a_declared_profile_stays_declared_until_a_request_was_seen() {
        let declared = Profile {
            prompt: TokenRate::new(100.0).expect("good"),
            decode: TokenRate::new(10.0).expect("good"),
            overhead: Micros(1_000),
            spread: Fraction::default(),
            source: ProfileSource::Declared,
            samples: 0,
            pace: None,
            load: None,
        };
        let mut learner = Learner::from_profile(&declared);
        assert_eq!(learner.profile().map(|p| p.source), Some(ProfileSource::Declared));
        learner.observe(&seen(1.0, 1.0));
        assert!((learner.profile().map_or(0.0, |p| p.decode.get()) - 10.0).abs() < 1e-9, "ten tokens in a second");
        let learned = learner.profile().expect("known");
        assert_eq!((learned.source, learned.samples), (ProfileSource::Requests, 1));
    }
}
