//! What an ingress learns of a service from the requests that it saw end: how its texts become tokens, and how long its answers become.
//!
//! Each ingress owns what it learned; nobody counts for another.

use crate::estimate::Lengths;
use crate::plan::Usage;
use crate::units::Tokens;
use crate::work::{Likely, PromptKind};
use serde::{Deserialize, Serialize};

/// Prompts estimated longer than this teach nothing about what a chat template adds: the error of the estimate itself is larger. They
/// teach how many tokens their text has.
const TEMPLATE_LEARNT_BELOW: u32 = 128;
/// Least weight of a prompt in that: texts of one service are alike, so the last ten tell enough.
const RATIO_WEIGHT_MIN: f64 = 0.1;
/// Tokens for one that was estimated from the text's length are within this: from words of one token to rare scripts.
const RATIO: (f64, f64) = (0.2, 5.0);
/// Weight of a request in the share of prompts that engines had already.
const CACHED_WEIGHT: f64 = 0.1;
/// Smaller shares than this are not worth a doubt.
const CACHED_LEAST: f64 = 0.02;

/// What is known of one service.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Learnt {
    /// Tokens that the template of chat prompts adds.
    template: u32,
    /// Tokens counted for one that was estimated from a text's length.
    ratio: f64,
    ratio_samples: u32,
    /// Share of prompts that engines had from earlier requests.
    cached: f64,
    lengths: Lengths,
}

impl Default for Learnt {
    fn default() -> Self {
        Self { template: 0, ratio: 1.0, ratio_samples: 0, cached: 0.0, lengths: Lengths::default() }
    }
}

impl Learnt {
    /// Tokens of a prompt that was estimated from its text's length.
    #[must_use]
    pub(super) fn prompt(&self, guessed: Tokens, kind: PromptKind) -> Tokens {
        let template = if kind == PromptKind::Chat { self.template } else { 0 };
        scaled(guessed, self.ratio) + Tokens(template)
    }

    /// What is likely of a request with such a prompt.
    #[must_use]
    pub(super) fn likely(&self, prompt: Tokens) -> Likely {
        Likely {
            output: self.lengths.quantile(prompt, 0.5),
            output_most: self.lengths.quantile(prompt, 0.9),
            cached: Some(scaled(prompt, self.cached)).filter(|_| self.cached >= CACHED_LEAST),
        }
    }

    /// Takes in an answered request.
    pub(super) fn learn(&mut self, guessed: Tokens, kind: PromptKind, usage: &Usage) {
        if usage.prompt.0 == 0 {
            return;
        }
        let share = (usage.cached.as_f64() / usage.prompt.as_f64()).min(1.0);
        self.cached += CACHED_WEIGHT * (share - self.cached);
        if guessed.0 > TEMPLATE_LEARNT_BELOW {
            self.learn_ratio(guessed, kind, usage.prompt);
        } else if kind == PromptKind::Chat {
            self.learn_template(guessed, usage.prompt);
        }
    }

    /// Takes in how long its answer became, cut short or not, and what had been foretold.
    pub(super) fn answered(&mut self, prompt: Tokens, output: Tokens, cut: bool, likely: &Likely) {
        self.lengths.observe(prompt, output, cut, (likely.output, likely.output_most));
    }

    /// How long answers become.
    #[must_use]
    pub const fn lengths(&self) -> &Lengths {
        &self.lengths
    }

    /// Whether it can be reckoned with: one that was read from a disk may not.
    #[must_use]
    pub fn sound(&self) -> bool {
        (RATIO.0..=RATIO.1).contains(&self.ratio) && (0.0..=1.0).contains(&self.cached) && self.lengths.sound()
    }

    /// Chat templates add a fixed number of tokens, which shows in short prompts: there the estimate from the text's length is
    /// nearly right. Each such answer corrects the number by a quarter of what was still missing.
    fn learn_template(&mut self, guessed: Tokens, counted: Tokens) {
        let (wanted, known) = (counted - scaled(guessed, self.ratio), self.template);
        self.template =
            if wanted.0 > known { known + (wanted.0 - known).div_ceil(4) } else { known - (known - wanted.0).div_ceil(4) };
    }

    fn learn_ratio(&mut self, guessed: Tokens, kind: PromptKind, counted: Tokens) {
        let template = if kind == PromptKind::Chat { self.template } else { 0 };
        let seen = (counted - Tokens(template)).as_f64() / guessed.as_f64();
        self.ratio_samples = self.ratio_samples.saturating_add(1);
        let weight = f64::from(self.ratio_samples).recip().max(RATIO_WEIGHT_MIN);
        // One odd text may move it by a few hundredths only, once something is known.
        let bounded = if self.ratio_samples == 1 { seen } else { seen.clamp(self.ratio / 1.5, self.ratio * 1.5) };
        self.ratio = (self.ratio + weight * (bounded - self.ratio)).clamp(RATIO.0, RATIO.1);
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
fn scaled(tokens: Tokens, factor: f64) -> Tokens {
    Tokens((tokens.as_f64() * factor).round() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_and_template_are_told_apart() {
        let mut learnt = Learnt::default();
        // 0.8 tokens for an estimated one, and 30 for the template.
        for number in 0..120_u32 {
            let guessed = Tokens(20 + number * 37 % 480);
            let counted = scaled(guessed, 0.8) + Tokens(30);
            learnt.learn(guessed, PromptKind::Chat, &Usage { prompt: counted, ..Usage::default() });
        }
        for guessed in [20, 100, 500] {
            let (own, wanted) = (learnt.prompt(Tokens(guessed), PromptKind::Chat).as_f64(), f64::from(guessed) * 0.8 + 30.0);
            assert!((own / wanted - 1.0).abs() < 0.05, "{own} for {wanted}: {learnt:?}");
        }
        assert_eq!(learnt.likely(Tokens(100)), Likely::default(), "nothing is known of answers");
    }

    #[test]
    fn what_engines_had_already_is_expected_again() {
        let mut learnt = Learnt::default();
        for _ in 0..60 {
            let usage = Usage { prompt: Tokens(1_000), cached: Tokens(900), ..Usage::default() };
            learnt.learn(Tokens(1_000), PromptKind::Completion, &usage);
        }
        let cached = learnt.likely(Tokens(500)).cached.expect("some");
        assert!((440..=450).contains(&cached.0), "{cached}");
    }
}
