//! What really happened to a request, beside what was decided.

use super::{Decision, Failure};
use crate::fleet::Origin;
use crate::ids::{NodeId, RequestId, ServiceId, VariantId};
use crate::units::{Joules, MicroDollars, Micros, Moment, Quality, Tokens};
use crate::work::Needs;
use serde::{Deserialize, Serialize};

/// Why generation stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Finish {
    /// The model ended, or a stop text came.
    Stop,
    /// The token limit came.
    Length,
    /// An upstream filtered the content.
    ContentFilter,
    /// The model calls a tool.
    ToolCalls,
}

/// Tokens counted by the executor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Usage {
    /// Of the prompt.
    pub prompt: Tokens,
    /// Generated.
    pub output: Tokens,
    /// Of the prompt, those that needed no computation.
    #[serde(default)]
    pub cached: Tokens,
}

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Outcome {
    /// With a whole answer.
    Answered(Finish),
    /// Without.
    Failed(Failure),
}

/// Measured at the ingress.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Actual {
    /// Arrival (of the attempt: its sending) to the first token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub first_token: Option<Micros>,
    /// Mean time of each further token.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub per_token: Option<Micros>,
    /// Arrival (of the attempt: its sending) to the end.
    pub total: Micros,
    /// Tokens, as far as they are known.
    pub usage: Usage,
    /// Energy; absent where nothing is known of it. Modelled from declared power until it is measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy: Option<Joules>,
    /// How that is known, by the least trusted of its parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub energy_origin: Option<Origin>,
    /// Money; absent where no price is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub money: Option<MicroDollars>,
}

/// One attempt: what was decided, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct AttemptRecord {
    /// The decision.
    pub decision: Decision,
    /// What was measured.
    pub actual: Actual,
    /// How it ended; absent while it runs, and for decisions to wait.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
}

/// The whole story of one request. Never holds its text.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Which request.
    pub request: RequestId,
    /// Where it came in.
    pub ingress: NodeId,
    /// What was asked for.
    pub service: ServiceId,
    /// What was needed.
    #[serde(deserialize_with = "Needs::loosely")]
    pub needs: Needs,
    /// When it came, on the ingress' clock.
    pub arrived: Moment,
    /// Time it waited at the ingress without an attempt.
    pub waited: Micros,
    /// Each decision with its outcome, at most [`Self::ATTEMPTS_MAX`], oldest first.
    pub attempts: Vec<AttemptRecord>,
    /// Who answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub served_by: Option<(NodeId, VariantId)>,
    /// Quality of the variant that answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub quality: Option<Quality>,
    /// From arrival to the end.
    pub actual: Actual,
    /// How it ended.
    pub outcome: Outcome,
    /// Whether the wished times were kept: first token, per token, end to end. Absent where nothing was wished.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attained: Option<bool>,
}

impl Record {
    /// Most decisions kept of one request; the oldest fall out. Retries are few by budget, but a long wait decides often.
    pub const ATTEMPTS_MAX: usize = 8;
}
