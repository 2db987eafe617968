//! The header of a forwarded request: travels first, alone, so that a refusal costs no text.

use super::{Features, LlmRequest, Precision, PromptKind, ResidencyBound, chained};
use crate::ids::{AttemptId, NodeId, ServiceId, VariantId};
use crate::plan::Stage;
use crate::units::{Bytes, Micros, Tokens};
use crate::work::Priority;
use serde::{Deserialize, Serialize};

/// Everything that relay and executor need to judge a request before its body comes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ExecHeader {
    /// Which try of which request. The request id is the trace id on every hop.
    pub attempt: AttemptId,
    /// Who took the request in.
    pub ingress: NodeId,
    /// Who shall execute it. A forwarded request is never dispatched again.
    pub target: NodeId,
    /// The service asked for.
    pub service: ServiceId,
    /// The variant that shall serve it.
    pub variant: VariantId,
    /// Which call.
    pub kind: PromptKind,
    /// Tokens of the prompt as the ingress estimates them.
    pub prompt: Tokens,
    /// Most tokens to generate in all, those already delivered included.
    pub output_max: Tokens,
    /// Tokens of the answer that are likely, where the ingress knows: what a queue reckons with.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_likely: Option<Tokens>,
    /// What is asked of the engine.
    pub features: Features,
    /// Size of the body that follows acceptance.
    pub body: Bytes,
    /// Where the text may go, in absolute names.
    pub residency: ResidencyBound,
    /// Order among waiting requests.
    pub priority: Priority,
    /// Time left until the answer is worthless, at sending.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remaining: Option<Micros>,
    /// Tokens that the client already has from an earlier attempt; their ids come with the body.
    #[serde(default)]
    pub resume_from: Tokens,
    /// The nodes that serve this try one after the other, each with its layers; empty when `target` does it all. `target` is the
    /// node of the stage that `attempt.stage` counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub stages: Vec<Stage>,
    /// How hidden states travel between them.
    #[serde(default, skip_serializing_if = "Precision::is_default")]
    pub precision: Precision,
    /// Span of the sender, for traces (W3C parent id).
    #[serde(default)]
    pub parent_span: u64,
}

impl ExecHeader {
    /// The header for an attempt of `request` at `target`.
    #[must_use]
    pub fn new(request: &LlmRequest, attempt: AttemptId, ingress: NodeId, target: NodeId, variant: VariantId) -> Self {
        Self {
            attempt,
            residency: request.needs.residency.resolve(&ingress),
            ingress,
            target,
            service: request.service.clone(),
            variant,
            kind: request.kind,
            prompt: request.prompt,
            output_max: request.output_max,
            output_likely: request.likely.output,
            features: request.features,
            body: request.body,
            priority: request.needs.slo.priority,
            remaining: None,
            resume_from: Tokens(0),
            stages: Vec::new(),
            precision: Precision::default(),
            parent_span: 0,
        }
    }

    /// The stage that this header opens; absent when the target does it all.
    #[must_use]
    pub fn stage(&self) -> Option<&Stage> {
        self.stages.get(usize::from(self.attempt.stage))
    }

    /// Who sends this header: the ingress, or the node of the stage before. Absent when there is no such stage, or `target` is
    /// not its node.
    #[must_use]
    pub fn sender(&self) -> Option<&NodeId> {
        let number = usize::from(self.attempt.stage);
        if !(number == 0 && self.stages.is_empty()) && self.stages.get(number)?.node != self.target {
            return None;
        }
        match number.checked_sub(1) {
            Some(before) => self.stages.get(before).map(|stage| &stage.node),
            None => Some(&self.ingress),
        }
    }

    /// What is wrong with its stages in themselves, if it has any.
    ///
    /// # Errors
    /// Says what is wrong.
    pub fn check_stages(&self) -> Result<(), &'static str> {
        if self.stages.is_empty() {
            return if self.attempt.stage == 0 { Ok(()) } else { Err("a later stage of none") };
        }
        chained(self.stages.iter().map(|stage| stage.layers))
    }

    /// The header for the stage after this one; absent at the last.
    #[must_use]
    pub fn next_stage(&self) -> Option<Self> {
        let number = self.attempt.stage.checked_add(1)?;
        let next = self.stages.get(usize::from(number))?;
        Some(Self { attempt: self.attempt.at_stage(number), target: next.node.clone(), ..self.clone() })
    }
}
