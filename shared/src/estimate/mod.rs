//! What a candidate would cost: predicted time, energy and money, with how sure that is. Profiles are the only source of speed.

mod learn;
mod predict;
mod split;

pub use learn::{Guess, Lengths, LengthsReport, PaceLearner};
pub use predict::{predict, price};
pub use split::{StageFacts, predict_split, price_parts};

use crate::units::{Fraction, Joules, MicroDollars, Micros, Quality, Tokens};
use serde::{Deserialize, Serialize};

/// Times that nine requests in ten should keep within.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct High {
    /// As [`Estimate::first_token`].
    pub first_token: Micros,
    /// As [`Estimate::per_token`].
    pub per_token: Micros,
    /// As [`Estimate::total`], with an answer as long as nine in ten are not.
    pub total: Micros,
}

/// Predicted cost of one request on one candidate, counted from now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Until the first token reaches the ingress: travel, waiting and prompt.
    pub first_token: Micros,
    /// Of that, waiting for a slot.
    pub wait: Micros,
    /// Mean time of each further token.
    pub per_token: Micros,
    /// Until the last token, if the answer becomes as long as is likely; where nothing is known of that, as long as it may.
    pub total: Micros,
    /// Relative uncertainty of the times.
    pub spread: Fraction,
    /// Tokens of the answer that were reckoned with; absent when those are all that it may have.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output: Option<Tokens>,
    /// Times that nine requests in ten should keep within; absent where the uncertainty is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub high: Option<High>,
    /// Energy; absent where nothing is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Joules>,
    /// Money; absent where no price is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<MicroDollars>,
    /// Quality of the variant.
    pub quality: Quality,
}
