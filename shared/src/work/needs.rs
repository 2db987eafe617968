//! What a client needs of an answer.

use super::Residency;
use crate::units::{Joules, MicroDollars, Micros, Quality};
use serde::{Deserialize, Serialize};

/// Order among waiting requests: higher first. 0 is background, 4 is the default, 9 is the most urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "u8", into = "u8")]
pub struct Priority(u8);

impl Priority {
    /// A priority from 0 to 9.
    ///
    /// # Errors
    /// The sentence to show when `level` is above 9.
    pub fn new(level: u8) -> Result<Self, String> {
        if level <= 9 { Ok(Self(level)) } else { Err(format!("priority {level}: want 0 (background) to 9 (most urgent)")) }
    }

    /// The number.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }
}

impl Default for Priority {
    fn default() -> Self {
        Self(4)
    }
}

impl TryFrom<u8> for Priority {
    type Error = String;
    fn try_from(level: u8) -> Result<Self, String> {
        Self::new(level)
    }
}

impl From<Priority> for u8 {
    fn from(priority: Priority) -> Self {
        priority.0
    }
}

/// Service level objective of one request. What is absent is not asked for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Slo {
    /// Wished time from arrival to the first token. Steers the choice; missing it is counted, not punished.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_token: Option<Micros>,
    /// Wished mean time for each further token. Steers the choice.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub per_token: Option<Micros>,
    /// Time from arrival after which the answer is worthless. Hard: the request ends with `deadline_exceeded` wherever it is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub end_to_end: Option<Micros>,
    /// Order among waiting requests.
    pub priority: Priority,
    /// Most energy that the answer may cost. Candidates of unknown energy do not meet it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<Joules>,
    /// Most money that the answer may cost. Candidates of unknown price do not meet it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub money: Option<MicroDollars>,
    /// Least quality of the variant.
    pub min_quality: Quality,
}

/// All that a client can say about how it wants to be served.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Needs {
    /// Times, budgets and quality.
    pub slo: Slo,
    /// Where the text may go.
    pub residency: Residency,
    /// Names a conversation, so that its turns can be kept together. An opaque hash: never the client's own text.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session: Option<u64>,
}
