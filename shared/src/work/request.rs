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
    /// `/v1/embeddings`: a vector for each text, and no token is generated.
    Embedding,
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
    /// Images among the parts of messages.
    #[serde(skip_serializing_if = "is_not")]
    pub vision: bool,
    /// Vectors asked for, instead of text.
    #[serde(skip_serializing_if = "is_not")]
    pub embeddings: bool,
    /// Neither temperature zero nor a seed: another node would draw other tokens. Continuing is still correct.
    pub unseeded: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_not(asked: &bool) -> bool {
    !*asked
}

/// Something that a request may ask for and not every engine has. Replicas report theirs by name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Capability {
    /// Output bound to a JSON schema, or to JSON.
    JsonSchema,
    /// Several answers.
    Many,
    /// Log-probabilities.
    Logprobs,
    /// Tools.
    Tools,
    /// Images.
    Vision,
    /// Vectors.
    Embeddings,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 6] = [Self::JsonSchema, Self::Many, Self::Logprobs, Self::Tools, Self::Vision, Self::Embeddings];

    /// Its name, in configurations, reports and refusals.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::JsonSchema => "json_schema",
            Self::Many => "n",
            Self::Logprobs => "logprobs",
            Self::Tools => "tools",
            Self::Vision => "vision",
            Self::Embeddings => "embeddings",
        }
    }

    /// The capability of this name; `response_format` is the older name of `json_schema`.
    #[must_use]
    pub fn parse(name: &str) -> Option<Self> {
        if name == "response_format" {
            return Some(Self::JsonSchema);
        }
        Self::ALL.into_iter().find(|capability| capability.name() == name)
    }

    /// Whether it is among these names.
    #[must_use]
    pub fn is_among(self, names: &[String]) -> bool {
        names.iter().any(|name| Self::parse(name) == Some(self))
    }
}

impl Features {
    /// What an engine must have to serve a request with these features.
    pub fn needed(self) -> impl Iterator<Item = Capability> {
        let asked = [
            (self.constrained, Capability::JsonSchema),
            (self.many, Capability::Many),
            (self.logprobs, Capability::Logprobs),
            (self.tools, Capability::Tools),
            (self.vision, Capability::Vision),
            (self.embeddings, Capability::Embeddings),
        ];
        asked.into_iter().filter_map(|(asked, capability)| asked.then_some(capability))
    }

    /// What a request with these features needs and an engine with these capabilities lacks.
    #[must_use]
    pub fn lacks(self, capabilities: &[String]) -> Option<Capability> {
        self.needed().find(|capability| !capability.is_among(capabilities))
    }
}

/// What is likely of a request, as far as earlier ones of its service tell. What nothing is known of is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Likely {
    /// Tokens of the answer that half of such answers do not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<Tokens>,
    /// Tokens of the answer that nine in ten of such answers do not exceed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_most: Option<Tokens>,
    /// Tokens of the prompt that an engine has from earlier requests and need not compute.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cached: Option<Tokens>,
}

impl Likely {
    /// Whether nothing is known.
    #[must_use]
    pub fn is_nothing(&self) -> bool {
        *self == Self::default()
    }
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
    /// What earlier requests of the service tell of it; filled in by the core of the ingress.
    #[serde(default, skip_serializing_if = "Likely::is_nothing")]
    pub likely: Likely,
}

impl LlmRequest {
    /// Tokens of the answer that are reckoned with: what is likely, or else all that it may have.
    #[must_use]
    pub fn output_likely(&self) -> Tokens {
        self.likely.output.map_or(self.output_max, |likely| likely.min(self.output_max))
    }

    /// The same for one that becomes long: nine in ten do not exceed it.
    #[must_use]
    pub fn output_most(&self) -> Tokens {
        self.likely.output_most.map_or(self.output_max, |most| most.min(self.output_max)).max(self.output_likely())
    }

    /// Tokens of the prompt that are to be computed where its beginning may be known.
    #[must_use]
    pub fn prompt_new(&self) -> Tokens {
        self.prompt - self.likely.cached.unwrap_or_default()
    }
}
