//! One LLM call as the decision sees it: sizes and wishes, never the text.

use super::Needs;
use crate::ids::{RequestId, ServiceId, VariantId};
use crate::units::{Bytes, Tokens};
use serde::{Deserialize, Serialize};

/// Which of the API's calls it was.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PromptKind {
    /// `/v1/chat/completions`: messages, put through the model's chat template.
    Chat,
    /// `/v1/completions`: plain text.
    Completion,
}

/// Properties of the request that some engines lack or that bear on whether a broken stream may be continued.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts about a request, each named in the API")]
pub struct Features {
    /// Output bound to a grammar or JSON schema.
    pub constrained: bool,
    /// More than one answer asked for.
    pub many: bool,
    /// Log-probabilities asked for.
    pub logprobs: bool,
    /// Frequency, presence or repetition penalty not neutral.
    pub penalties: bool,
    /// Stop texts given.
    pub stop: bool,
    /// Tools offered to the model.
    pub tools: bool,
    /// Neither temperature zero nor a seed: another node would draw other tokens. Continuing is still correct.
    pub unseeded: bool,
}

/// One LLM request at its ingress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct LlmRequest {
    /// Its id, everywhere the same.
    pub id: RequestId,
    /// The service asked for.
    pub service: ServiceId,
    /// Set when the client named a variant instead of a service: only that one will do.
    pub pinned: Option<VariantId>,
    /// Which call.
    pub kind: PromptKind,
    /// Tokens of the prompt, estimated by the ingress from its length; the executor counts exactly.
    pub prompt: Tokens,
    /// Most tokens to generate.
    pub output_max: Tokens,
    /// What is asked of the engine.
    pub features: Features,
    /// Whether the client reads a stream.
    pub stream: bool,
    /// Size of the body that would travel.
    pub body: Bytes,
    /// What the client needs.
    pub needs: Needs,
}
