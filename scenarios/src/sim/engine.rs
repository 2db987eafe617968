//! Executors' truth: engines that emit tokens at a rate of their own, which is not the estimator's.

use serde::{Deserialize, Serialize};
use shared::fleet::{Load, Profile, ProfileSource, ReplicaReport, ReplicaState};
use shared::ids::VariantId;
use shared::units::{Bytes, Fraction, Micros, TokenRate, Tokens};
use shared::work::{EngineKind, ExecHeader};

/// What an engine really does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// Which variant it serves.
    pub variant: VariantId,
    /// Requests at once.
    pub slots: u32,
    /// Time of each prompt token.
    pub per_prompt_token: Micros,
    /// Time of each output token.
    pub per_output_token: Micros,
    /// Tokens after which the model ends by itself.
    pub answer: Tokens,
    /// Why it does not work, if it does not.
    pub broken: Option<String>,
}

impl Truth {
    /// A working engine that generates so many tokens per second, and reads a prompt ten times as fast.
    #[must_use]
    pub fn new(variant: &VariantId, slots: u32, tokens_per_second: u32) -> Self {
        let per_output_token = Micros(1_000_000 / u64::from(tokens_per_second.max(1)));
        Self {
            variant: variant.clone(),
            slots,
            per_prompt_token: per_output_token.scale(0.1),
            per_output_token,
            answer: Tokens(1_000),
            broken: None,
        }
    }

    /// What the node reports of it. The profile is what a warm-up would have found: near the truth, not the truth.
    pub(super) fn report(&self) -> ReplicaReport {
        let rate = |each: Micros| TokenRate::new(0.93 / each.as_secs_f64().max(1e-6)).unwrap_or_default();
        let state = self.broken.clone().map_or(ReplicaState::Ready, ReplicaState::Failed);
        ReplicaReport {
            variant: self.variant.clone(),
            engine: EngineKind::Profiled,
            state,
            load: Load { slots: self.slots, ..Load::default() },
            memory: Bytes(100_000_000),
            context: Tokens(8_192),
            capabilities: Vec::new(),
            profile: Some(Profile {
                prompt: rate(self.per_prompt_token),
                decode: rate(self.per_output_token),
                overhead: Micros::from_millis(1),
                spread: Fraction::new(0.1).unwrap_or_default(),
                source: ProfileSource::WarmUp,
                samples: 3,
            }),
        }
    }

    /// Time until the first token.
    pub(super) fn prefill(&self, header: &ExecHeader) -> Micros {
        self.per_prompt_token.scale((header.prompt + header.resume_from).as_f64())
    }

    /// How many tokens this execution has to emit.
    pub(super) fn to_emit(&self, header: &ExecHeader) -> Tokens {
        header.output_max.min(self.answer) - header.resume_from
    }
}

/// An execution under way.
#[derive(Clone, Debug)]
pub(super) struct Execution {
    pub(super) header: ExecHeader,
    pub(super) emitted: u32,
    pub(super) has_body: bool,
    pub(super) started: bool,
}
