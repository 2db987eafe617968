//! How long an engine's steps take, by what is in them.

use crate::units::{Fraction, Seconds, Tokens};
use serde::{Deserialize, Serialize};

/// What one step of an engine computes: the rows of all requests that take part in it.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Step {
    /// Tokens of prompts after which no token is drawn.
    pub prompt: f64,
    /// Tokens after which one is drawn: one for each request that decodes, and the last one of a prompt.
    pub decode: f64,
    /// Positions that all these tokens look back to, together.
    pub seen: f64,
}

impl Step {
    /// Tokens of one sequence that follow `start` others, the last of them with a token drawn after it where `draws`.
    #[must_use]
    pub fn of(start: f64, tokens: f64, draws: bool) -> Self {
        let decode = if draws { 1.0_f64.min(tokens) } else { 0.0 };
        Self { prompt: tokens - decode, decode, seen: tokens * start + tokens * (tokens + 1.0) / 2.0 }
    }

    /// Both together.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { prompt: self.prompt + other.prompt, decode: self.decode + other.decode, seen: self.seen + other.seen }
    }
}

/// Measured times of an engine's steps on one device: a step takes `step`, and for each thing in it so much more. Four numbers fit
/// what batching engines do: weights are read once a step however many tokens go through them, each token is computed, each drawn
/// one has its vocabulary judged, and attention grows with what is looked back to.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Pace {
    /// Each step, whatever is in it.
    pub step: Seconds,
    /// Each token of a prompt.
    pub prompt: Seconds,
    /// Each request that gets a token.
    pub decode: Seconds,
    /// Each position that a token looks back to.
    pub seen: Seconds,
    /// Most tokens of a prompt in one step; a longer prompt takes several. Zero where the engine does not cut prompts.
    #[serde(default)]
    pub chunk: Tokens,
    /// Relative uncertainty of a prompt's time, one standard deviation.
    #[serde(default)]
    pub prompt_spread: Fraction,
    /// Relative uncertainty of the time of an answer's tokens, one standard deviation.
    #[serde(default)]
    pub decode_spread: Fraction,
}

/// Who is computed for beside a request.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Beside {
    /// How many others get a token in each step.
    pub requests: f64,
    /// Positions that they look back to, together.
    pub seen: f64,
}

impl Pace {
    /// Seconds of one step.
    #[must_use]
    pub fn seconds(&self, step: &Step) -> f64 {
        self.step.get() + self.of_rows(step)
    }

    fn of_rows(&self, step: &Step) -> f64 {
        self.prompt.get() * step.prompt + self.decode.get() * step.decode + self.seen.get() * step.seen
    }

    /// Seconds until a prompt of so many tokens after `start` known ones is computed and its first token is drawn.
    #[must_use]
    pub fn prefill(&self, start: f64, tokens: f64, beside: Beside) -> f64 {
        let own = self.of_rows(&Step::of(start, tokens, true));
        // A prompt of no tokens at all still takes the step that draws.
        let steps = if self.chunk.0 == 0 { 1.0 } else { (tokens / self.chunk.as_f64()).ceil().max(1.0) };
        own + steps * self.shared(beside)
    }

    /// Seconds from one token to the next at this context.
    #[must_use]
    pub fn token(&self, context: f64, beside: Beside) -> f64 {
        self.of_rows(&Step::of(context, 1.0, true)) + self.shared(beside)
    }

    /// What each step takes beside a request's own rows.
    fn shared(&self, beside: Beside) -> f64 {
        self.seconds(&Step { prompt: 0.0, decode: beside.requests, seen: beside.seen })
    }

    /// Whether it is one that can be reckoned with: some step takes some time.
    #[must_use]
    pub fn is_some_time(&self) -> bool {
        self.step.get() + self.decode.get() > 0.0 && self.step.get() + self.prompt.get() > 0.0
    }
}
