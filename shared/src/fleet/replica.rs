//! A variant loaded on a node, as reported by it.

use super::{Pace, ReportFault};
use crate::ids::VariantId;
use crate::units::{Bytes, Fraction, Micros, TokenRate, Tokens};
use crate::work::{EngineKind, HeldLayers, LayerRange};
use serde::{Deserialize, Serialize};

/// What a replica can do now.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ReplicaState {
    /// Being loaded or warmed up.
    Loading,
    /// Serves.
    Ready,
    /// Finishes what it has and takes nothing new.
    Draining,
    /// Does not serve; the text says why.
    Failed(String),
}

/// Where the rates of a profile come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ProfileSource {
    /// Written in a configuration.
    Declared,
    /// Measured by a warm-up on this node.
    WarmUp,
    /// Learned from real requests on this node.
    Requests,
}

/// Measured rates of (engine, device, variant): the only source of speed for a candidate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Prompt tokens per second of one request alone. Never zero.
    pub prompt: TokenRate,
    /// Generated tokens per second of one request alone. Never zero.
    pub decode: TokenRate,
    /// Fixed time of a request before its first token beyond the prompt's.
    pub overhead: Micros,
    /// Relative spread of the rates.
    pub spread: Fraction,
    /// Where the figures come from.
    pub source: ProfileSource,
    /// How many observations stand behind them.
    pub samples: u32,
    /// The same by batch and context, where that was measured: then the rates above are its values for one middling request alone,
    /// and `spread` the larger of its spreads.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pace: Option<Pace>,
    /// How long loading took, where this engine loads anything.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub load: Option<Micros>,
}

/// How busy a replica is. Small, because it rides on every answer and ping.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Load {
    /// Requests that can run at once.
    pub slots: u32,
    /// Requests that run.
    pub active: u32,
    /// Requests that wait here for a slot.
    pub queued: u32,
    /// Requests that may wait here; more are refused `busy`.
    #[serde(default)]
    pub queue_max: u32,
    /// Tokens that the running and waiting ones may still generate, with their prompts.
    pub backlog: Tokens,
    /// Prompt tokens of those that have no token yet; absent from those who do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts: Option<Tokens>,
    /// Tokens of others' prompts that were computed lately while a hundred tokens of an answer were: who decodes among many waits for
    /// those who come. Absent from those who do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prompts_beside: Option<Tokens>,
    /// Tokens that the running ones look back to, all together; absent from those who do not tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Tokens>,
}

/// One replica in a node's report.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct ReplicaReport {
    /// What is loaded.
    pub variant: VariantId,
    /// By which engine.
    pub engine: EngineKind,
    /// Where it computes, such as `cpu` or `cuda:0`, several joined by `+`; empty where nobody said (an upstream elsewhere).
    /// Rates belong to (engine, device, variant): a replica that moves to another device is measured anew.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub device: String,
    /// What it can do now.
    pub state: ReplicaState,
    /// How busy it is.
    pub load: Load,
    /// Memory it holds.
    pub memory: Bytes,
    /// Longest prompt and output together, as loaded.
    pub context: Tokens,
    /// SHA-256 of the weights file as the engine read it, in hex; absent where the weights are out of reach (an upstream).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_sha256: Option<String>,
    /// The layers that it holds, where the engine can compute some of them alone; absent where it can only serve whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<HeldLayers>,
    /// Names of API features that it serves beyond plain text, such as `tools`.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Its speed; absent until measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<Profile>,
}

impl Load {
    /// Whether there is neither a slot nor room to wait.
    #[must_use]
    pub const fn full(&self) -> bool {
        self.active >= self.slots && self.queued >= self.queue_max
    }
}

impl ReplicaReport {
    /// Whether it holds the whole model, as far as anybody knows.
    #[must_use]
    pub fn serves_whole(&self) -> bool {
        self.layers.is_none_or(|held| held.range.is_whole())
    }

    /// Whether it can compute these layers alone.
    #[must_use]
    pub fn serves_layers(&self, layers: LayerRange) -> bool {
        self.layers.is_some_and(|held| held.range.holds(layers))
    }

    /// More slots, running or waiting requests than this on one replica is a broken report.
    pub const COUNT_MAX: u32 = 100_000;

    /// Longest name of a device, in bytes: room for every accelerator of a large machine. More is a broken report.
    pub const DEVICE_BYTES_MAX: usize = 128;

    /// Checks what the types cannot.
    ///
    /// # Errors
    /// [`ReportFault`] names the field.
    pub fn validate(&self) -> Result<(), ReportFault> {
        let field = |name: &str| format!("replicas[{}].{name}", self.variant);
        for (name, count) in [("slots", self.load.slots), ("active", self.load.active), ("queued", self.load.queued)] {
            if count > Self::COUNT_MAX {
                return Err(ReportFault::Value { field: field(name), why: "want at most 100000" });
            }
        }
        if self.device.len() > Self::DEVICE_BYTES_MAX {
            return Err(ReportFault::Value { field: field("device"), why: "want at most 128 bytes" });
        }
        if self.layers.is_some_and(|held| !held.range.valid() || held.hidden == Bytes(0)) {
            return Err(ReportFault::Value {
                field: field("layers"),
                why: "want at least one layer, none beyond the model, and a size",
            });
        }
        if let Some(profile) = &self.profile
            && (profile.prompt.get() <= 0.0 || profile.decode.get() <= 0.0)
        {
            return Err(ReportFault::Value {
                field: field("profile"),
                why: "want rates above zero; leave the profile out when unknown",
            });
        }
        if self.profile.as_ref().and_then(|profile| profile.pace).is_some_and(|pace| !pace.is_some_time()) {
            return Err(ReportFault::Value { field: field("profile.pace"), why: "want steps that take some time" });
        }
        Ok(())
    }
}
