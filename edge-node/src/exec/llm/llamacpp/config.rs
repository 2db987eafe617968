//! What an operator says of a model that llama.cpp computes.

use super::super::config::{CONTEXT_DEFAULT_MAX, LlmConfig, ModelError};
use serde::{Deserialize, Serialize};
use serde_json::json;
use shared::ids::VariantId;
use shared::units::{Bytes, Tokens};
use std::path::PathBuf;

/// A model that llama.cpp computes in this process. Programs that were built without the feature `llama-cpp` refuse to start it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LlamaCppConfig {
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
    /// Longest prompt and output together.
    #[serde(default = "context_default")]
    pub context: Tokens,
    /// Requests that run at once. Each reserves the cache of a whole context.
    #[serde(default = "slots_default")]
    pub slots: u32,
    /// Threads that compute this model; all cores but one when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub threads: Option<u32>,
    /// Memory for weights and caches; what the machine has available at loading when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_max: Option<Bytes>,
    /// A reader that has not drained its sink for so long loses its slot, in milliseconds.
    #[serde(default = "stall_default")]
    pub stall_ms_max: u64,
}

const fn context_default() -> Tokens {
    Tokens(CONTEXT_DEFAULT_MAX)
}

/// Requests share each pass over the weights, so four take little longer than one.
const fn slots_default() -> u32 {
    4
}

/// As the other engines do.
const fn stall_default() -> u64 {
    30_000
}

impl LlamaCppConfig {
    /// As the reader of model files wants it. What else that reader knows is left at its defaults.
    pub(super) fn file(&self) -> Result<LlmConfig, ModelError> {
        let file =
            json!({ "variant": self.variant, "path": self.path, "sha256": self.sha256, "hint": self.hint, "slots": self.slots });
        serde_json::from_value(file)
            .map_err(|error| ModelError::Unsupported { path: self.path.clone(), what: format!("its configuration ({error})") })
    }

    /// Whether the model's file is there.
    ///
    /// # Errors
    /// [`ModelError::Missing`].
    pub fn check_file(&self) -> Result<(), ModelError> {
        self.file()?.check_file()
    }
}
