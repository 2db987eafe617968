//! How a replica gets on with prompts, as its executor sees it: by what came when.

use crate::fleet::{Beside, Profile};
use crate::units::{Moment, Tokens};
use serde::{Deserialize, Serialize};

/// Weight of an answer in what is computed beside answers: the last dozen or two count.
const BESIDE_WEIGHT: f64 = 0.08;
/// Answers of fewer tokens say nothing about what comes while one is made.
const ANSWER_LEAST: u32 = 4;

/// The prompts of one replica.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Prompts {
    /// When the prompt that is being computed was begun.
    pub(super) since: Moment,
    /// Mean tokens of an answer, and of others' prompts that were computed meanwhile.
    means: (f64, f64),
}

impl Prompts {
    /// How many of the tokens of the prompt that is being computed should be done by now.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "at most the prompt")]
    pub(super) fn computed(&self, now: Moment, prompt: Tokens, profile: Option<&Profile>) -> Tokens {
        let Some(pace) = profile.and_then(|profile| profile.pace) else { return Tokens(0) };
        let whole = pace.prefill(0.0, prompt.as_f64(), Beside::default());
        let share = now.since(self.since).as_secs_f64() / whole.max(1e-9);
        Tokens((prompt.as_f64() * share.min(1.0)) as u32)
    }

    /// An answer has ended, after so many tokens, while which so many of others' prompts were computed.
    pub(super) fn learn(&mut self, answer: Tokens, beside: Tokens) {
        if answer.0 >= ANSWER_LEAST {
            self.means.0 += BESIDE_WEIGHT * (answer.as_f64() - self.means.0);
            self.means.1 += BESIDE_WEIGHT * (beside.as_f64() - self.means.1);
        }
    }

    /// Tokens of others' prompts while a hundred tokens of an answer are made.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "float casts saturate")]
    pub(super) fn beside(&self) -> Tokens {
        if self.means.0 > 0.0 { Tokens((100.0 * self.means.1 / self.means.0).round() as u32) } else { Tokens(0) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_came_beside_counts() {
        let mut prompts = Prompts::default();
        assert_eq!(prompts.beside(), Tokens(0));
        (0..50).for_each(|_| prompts.learn(Tokens(20), Tokens(0)));
        assert_eq!(prompts.beside(), Tokens(0), "one after the other");
        (0..100).for_each(|_| prompts.learn(Tokens(20), Tokens(60)));
        assert!((280..=300).contains(&prompts.beside().0), "{:?}", prompts.beside());
        prompts.learn(Tokens(1), Tokens(1_000_000));
        assert!(prompts.beside().0 <= 300, "an answer of one token says nothing");
    }
}
