//! The pace of an engine, learned from its steps and judged by its requests.

use super::fit::Fit;
use crate::fleet::{Pace, Profile, ProfileSource, Step};
use crate::units::{Fraction, Micros, Seconds, TokenRate, Tokens};
use serde::{Deserialize, Serialize};

/// Prompt and context at which the two plain rates of a profile are given, for readers that know no more: a middling chat.
const TYPICAL: f64 = 128.0;
/// Weight of a request in the spreads: the last dozen count.
const SPREAD_WEIGHT: f64 = 0.08;
/// A request that was off by more than this share counts as if it were that far off.
const OFF_MAX: f64 = 1.0;
/// A mean absolute error times this is a standard deviation, where errors are normal.
const MEAN_TO_DEVIATION: f64 = 1.2533;
/// How uncertain a pace is before any request was judged by it.
const SPREAD_FIRST: f64 = 0.15;
/// Weight of a request in its fixed time.
const OVERHEAD_WEIGHT: f64 = 0.1;

/// What is known of an engine before its steps are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Guess {
    /// Seconds of a prompt's token.
    pub prompt: f64,
    /// Seconds of a generated one.
    pub decode: f64,
    /// Most tokens of a prompt in one step, zero where prompts are not cut.
    pub chunk: u32,
}

/// A pace that follows its engine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PaceLearner {
    fit: Fit,
    chunk: u32,
    overhead: Option<f64>,
    prompt_spread: f64,
    decode_spread: f64,
    requests: u32,
}

impl PaceLearner {
    /// Begins with the speed of one request alone. How it divides is a guess: a step costs a good part of its token, attention
    /// little.
    #[must_use]
    pub fn begin(guess: Guess) -> Self {
        let (prompt, decode) = (guess.prompt.max(1e-9), guess.decode.max(1e-9));
        Self {
            fit: Fit::guess([0.5 * decode, prompt, 0.4 * decode, 0.1 * decode / TYPICAL]),
            chunk: guess.chunk,
            overhead: None,
            prompt_spread: SPREAD_FIRST,
            decode_spread: SPREAD_FIRST,
            requests: 0,
        }
    }

    /// Whether it can be reckoned with: one that was read from a disk may not.
    #[must_use]
    pub fn sound(&self) -> bool {
        let share = |spread: f64| (0.0..=OFF_MAX * MEAN_TO_DEVIATION).contains(&spread);
        let overhead = self.overhead.is_none_or(|seconds| seconds.is_finite() && seconds >= 0.0);
        self.fit.sound() && overhead && share(self.prompt_spread) && share(self.decode_spread)
    }

    /// Takes in one step.
    pub fn step(&mut self, step: &Step, seconds: f64) {
        self.fit.observe(&terms(1.0, step), seconds);
    }

    /// Takes in several steps that were timed together.
    pub fn steps(&mut self, count: f64, all: &Step, seconds: f64) {
        if count > 0.0 {
            self.fit.observe(
                &terms(1.0, &Step { prompt: all.prompt / count, decode: all.decode / count, seen: all.seen / count }),
                seconds / count,
            );
        }
    }

    /// Takes in the time before a request's first step.
    pub fn overhead(&mut self, seconds: f64) {
        if !(seconds.is_finite() && seconds >= 0.0) {
            return;
        }
        let known = self.overhead.unwrap_or(seconds);
        // It may be next to nothing, so the bound for outliers has a floor of a millisecond.
        let bounded = seconds.min(2.0 * known.max(1e-3));
        self.overhead = Some(known + OVERHEAD_WEIGHT * (bounded - known));
    }

    /// Judges what was predicted of a request by what it took: seconds predicted and actual, of its prompt and of its answer; absent
    /// where there was none.
    pub fn judge(&mut self, prompt: Option<(f64, f64)>, answer: Option<(f64, f64)>) {
        for (spread, phase) in [(&mut self.prompt_spread, prompt), (&mut self.decode_spread, answer)] {
            let Some((predicted, actual)) = phase.filter(|(predicted, actual)| *predicted > 0.0 && *actual > 0.0) else {
                continue;
            };
            let off = (actual / predicted - 1.0).abs().min(OFF_MAX);
            *spread += SPREAD_WEIGHT * (MEAN_TO_DEVIATION * off - *spread);
        }
        self.requests = self.requests.saturating_add(1);
    }

    /// The pace as it is now.
    #[must_use]
    pub fn pace(&self) -> Pace {
        let [step, prompt, decode, seen] = self.fit.coefficients().map(seconds);
        let spread = |own: f64, of: &Step| {
            // What requests showed, and what the law itself is unsure of.
            let unsure = self.fit.unsure(&terms(1.0, of));
            fraction(own.hypot(unsure))
        };
        Pace {
            step,
            prompt,
            decode,
            seen,
            chunk: Tokens(self.chunk),
            prompt_spread: spread(self.prompt_spread, &Step::of(TYPICAL, f64::from(self.chunk.max(16)), false)),
            decode_spread: spread(self.decode_spread, &Step::of(TYPICAL, 1.0, true)),
        }
    }

    /// The profile that is reported.
    #[must_use]
    pub fn profile(&self, source: ProfileSource) -> Option<Profile> {
        let pace = self.pace();
        let rate = |seconds: f64| TokenRate::new((1.0 / seconds).min(TokenRate::MAX)).ok().filter(|rate| rate.get() > 0.0);
        let alone = crate::fleet::Beside::default();
        Some(Profile {
            prompt: rate(pace.prefill(0.0, TYPICAL, alone) / TYPICAL)?,
            decode: rate(pace.token(TYPICAL, alone))?,
            overhead: Micros::from_secs_f64(self.overhead.unwrap_or(0.0)),
            spread: if pace.decode_spread > pace.prompt_spread { pace.decode_spread } else { pace.prompt_spread },
            source,
            samples: self.requests.max(u32::from(self.fit.samples() > 0)),
            pace: Some(pace),
            load: None,
        })
    }

    /// Requests that it was judged by.
    #[must_use]
    pub const fn requests(&self) -> u32 {
        self.requests
    }

    /// Steps that it was learned from.
    #[must_use]
    pub const fn samples(&self) -> u32 {
        self.fit.samples()
    }

    /// How often the engine's speed changed at once.
    #[must_use]
    pub const fn changes(&self) -> u32 {
        self.fit.changes()
    }

    /// The usual relative error of one step.
    #[must_use]
    pub const fn noise(&self) -> f64 {
        self.fit.noise()
    }

    /// What a step takes, as far as is known.
    #[must_use]
    pub fn seconds(&self, step: &Step) -> f64 {
        self.fit.seconds(&terms(1.0, step))
    }
}

const fn terms(steps: f64, step: &Step) -> [f64; super::fit::TERMS] {
    [steps, step.prompt, step.decode, step.seen]
}

/// Four digits: a report is small, and no measurement is better than that.
fn seconds(value: f64) -> Seconds {
    let value = value.clamp(0.0, Seconds::MAX);
    let digits = format!("{value:.3e}").parse().unwrap_or(value);
    Seconds::new(digits).unwrap_or_default()
}

fn fraction(value: f64) -> Fraction {
    Fraction::new((value.clamp(0.0, 1.0) * 1e4).round() / 1e4).unwrap_or_default()
}
