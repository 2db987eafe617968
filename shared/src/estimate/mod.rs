//! What a candidate would cost: predicted time, energy and money, with how sure that is. Profiles are the only source of speed.

mod predict;
mod split;

pub use predict::{predict, price};
pub use split::{StageFacts, predict_split, price_parts};

use crate::units::{Fraction, Joules, MicroDollars, Micros, Quality};
use serde::{Deserialize, Serialize};

/// Predicted cost of one request on one candidate, counted from now.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Until the first token reaches the ingress: travel, waiting and prompt.
    pub first_token: Micros,
    /// Of that, waiting for a slot.
    pub wait: Micros,
    /// Mean time of each further token.
    pub per_token: Micros,
    /// Until the last token, if the request uses all the tokens it may.
    pub total: Micros,
    /// Relative uncertainty of the times.
    pub spread: Fraction,
    /// Energy; absent where nothing is known of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Joules>,
    /// Money; absent where no price is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<MicroDollars>,
    /// Quality of the variant.
    pub quality: Quality,
}
