//! What an operator says of an embedded model, and what can be wrong with it.

use serde::{Deserialize, Serialize};
use shared::ids::VariantId;
use shared::units::{Bytes, Tokens};
use std::path::{Path, PathBuf};

/// An embedded model.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlmConfig {
    /// What it serves.
    pub variant: VariantId,
    /// The GGUF file.
    pub path: PathBuf,
    /// SHA-256 of the file in hex; checked before anything in it is believed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sha256: Option<String>,
    /// What brings the file, shown when it is missing or damaged, such as `make model`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
    /// Longest prompt and output together; the model's own, at most [`CONTEXT_DEFAULT_MAX`], when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub context: Option<Tokens>,
    /// Requests that run at once. Each reserves the cache of a whole context.
    #[serde(default = "slots_default")]
    pub slots: u32,
    /// Threads that compute, all models of the process together; all cores but one when absent. Takes effect through
    /// [`super::set_threads`], which a program calls before it starts any thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Memory for weights and caches; what the machine has available at loading when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<Bytes>,
    /// Form of the weights in memory.
    #[serde(default)]
    pub weights: WeightForm,
    /// Form of the key-value cache.
    #[serde(default)]
    pub cache: CacheForm,
    /// The layers that this node holds, such as `"0..15"`; all when absent. The others are then held elsewhere, and a request
    /// passes through all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub layers: Option<LayerSpan>,
    /// Whether a prompt that begins like an earlier one is computed only from where they part. It is shared by all who ask this
    /// replica: how fast an answer comes, and the count of cached tokens in it, then tell whether somebody sent the same beginning
    /// before. Where clients must not learn that of each other, switch it off.
    #[serde(default)]
    pub prefix_cache: PrefixCache,
    /// Memory for that, in MiB. When absent a quarter of the slots' caches, but at most half of what memory remains.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_cache_mb: Option<u32>,
    /// A reader that has not drained its sink for so long loses its slot, in milliseconds.
    #[serde(default = "stall_default")]
    pub stall_ms_max: u64,
}

/// Context when none is configured and the model could do more: with caches for it reserved up front, a model's own
/// 128 Ki would often not fit the machine at all.
pub const CONTEXT_DEFAULT_MAX: u32 = 8_192;

const fn slots_default() -> u32 {
    2
}

/// Long enough for a phone in a lift, short enough that a client who never reads does not hold a slot for good.
const fn stall_default() -> u64 {
    30_000
}

/// Form of the matrices in memory. What has another form in the file is converted at loading, which is lossy towards fewer bits:
/// other weights, another variant, another name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum WeightForm {
    /// As in the file where there are fast products for that form, else the next one up that has them.
    #[default]
    Auto,
    /// Eight bits.
    Q8_0,
    /// Four bits: half the memory of eight.
    Q4_0,
    /// Exact.
    F32,
}

/// Layers `from` up to, not including, `to`, counted from 0. Written `"0..15"`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct LayerSpan {
    /// The first.
    pub from: u16,
    /// The one after the last.
    pub to: u16,
}

/// A text that names no layers.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("layers `{0}`: want a range such as `0..15`: the first layer, counted from 0, and the one after the last")]
pub struct BadSpan(String);

impl TryFrom<String> for LayerSpan {
    type Error = BadSpan;

    fn try_from(text: String) -> Result<Self, BadSpan> {
        let ends = text.split_once("..").and_then(|(from, to)| Some((from.trim().parse().ok()?, to.trim().parse().ok()?)));
        match ends {
            Some((from, to)) if from < to => Ok(Self { from, to }),
            _ => Err(BadSpan(text)),
        }
    }
}

impl From<LayerSpan> for String {
    fn from(LayerSpan { from, to }: LayerSpan) -> Self {
        format!("{from}..{to}")
    }
}

/// Whether beginnings of prompts are kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PrefixCache {
    /// They are.
    #[default]
    On,
    /// Each prompt is computed whole.
    Off,
}

/// Form of the key-value cache in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum CacheForm {
    /// Exact.
    #[default]
    F32,
    /// Half the memory; slower on CPUs, which widen it in every step, and slightly lossy.
    F16,
}

impl LlmConfig {
    /// Whether the model's file is there.
    ///
    /// # Errors
    /// [`ModelError::Missing`].
    pub fn check_file(&self) -> Result<(), ModelError> {
        if self.path.is_file() {
            return Ok(());
        }
        Err(ModelError::Missing { path: self.path.clone(), hint: self.hint.clone() })
    }
}

/// Why a model is not loaded.
#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    /// No such file.
    #[error("model file {} is missing{}{}", path.display(), bring(hint), from_where(path))]
    Missing {
        /// Which.
        path: PathBuf,
        /// What brings it.
        hint: Option<String>,
    },
    /// The file cannot be read.
    #[error("model file {} cannot be read: {source}", path.display())]
    Unreadable {
        /// Which.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// The file is not the expected one.
    #[error("model file {} is damaged or another one: its SHA-256 is {actual}, want {expected}{}", path.display(), bring(hint))]
    Hash {
        /// Which.
        path: PathBuf,
        /// Configured.
        expected: String,
        /// Computed.
        actual: String,
        /// What brings the right one.
        hint: Option<String>,
    },
    /// Not a GGUF file, cut off, or contradicting itself.
    #[error("model file {} is damaged: {what}{}", path.display(), bring(hint))]
    Damaged {
        /// Which.
        path: PathBuf,
        /// What is wrong.
        what: String,
        /// What brings a good one.
        hint: Option<String>,
    },
    /// A good file that this engine cannot run.
    #[error("model file {} is not supported: {what}", path.display())]
    Unsupported {
        /// Which.
        path: PathBuf,
        /// What is missing in the engine.
        what: String,
    },
    /// It would not fit.
    #[error(
        "not enough memory: needs {} ({weights} for weights, {cache} for {slots} x {context} of cache, {prefixes} for beginnings of prompts), and {budget} are {origin}; \
         use fewer slots, a shorter context or a smaller model, or let `layers` split it over nodes", *weights + *cache + *prefixes
    )]
    Memory {
        /// For weights, as loaded.
        weights: Bytes,
        /// For all caches.
        cache: Bytes,
        /// For beginnings of prompts, where that was configured.
        prefixes: Bytes,
        /// Requests at once.
        slots: u32,
        /// Of each.
        context: Tokens,
        /// What there is.
        budget: Bytes,
        /// Whether it was configured or found.
        origin: &'static str,
    },
    /// The engine was stopped while loading.
    #[error("stopped while loading")]
    Stopped,
    /// A computation failed.
    #[error("the warm-up failed: {}", first_line(.0))]
    Compute(#[from] candle_core::Error),
}

/// Relative paths surprise whoever starts the agent from elsewhere.
fn from_where(path: &Path) -> String {
    match std::env::current_dir() {
        Ok(here) if path.is_relative() => format!("; the path is relative to the current directory, {}", here.display()),
        _ => String::new(),
    }
}

fn bring(hint: &Option<String>) -> String {
    hint.as_ref().map(|hint| format!("; `{hint}` brings it")).unwrap_or_default()
}

/// What a computation says of its failure, without the stack that it may carry along.
pub(super) fn first_line(error: &candle_core::Error) -> String {
    error.to_string().lines().next().unwrap_or_default().to_owned()
}
