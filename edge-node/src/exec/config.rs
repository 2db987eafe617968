//! What an operator says of an engine, and how it is started.

#[cfg(feature = "llm")]
use super::llm::llamacpp::LlamaCppConfig;
use super::profiled::{Profiled, ProfiledConfig};
use super::upstream::{Upstream, UpstreamConfig};
use super::{Engine, SLOTS_MAX};
use serde::{Deserialize, Serialize};
use shared::fleet::{Profile, ProfileSource};
use shared::ids::VariantId;
use shared::units::{Fraction, Micros, NotAQuantity, TokenRate, Tokens};
use std::path::Path;
use std::sync::Arc;

/// One engine of a node, told apart by `engine`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "engine", rename_all = "lowercase")]
#[expect(clippy::large_enum_variant, reason = "a handful at start: a box would only be in the way")]
pub enum EngineConfig {
    /// Computed in this process from a GGUF file.
    #[cfg(feature = "llm")]
    Llm(super::llm::LlmConfig),
    /// The same by llama.cpp, where the program was built with the feature `llama-cpp`.
    #[cfg(feature = "llm")]
    #[serde(rename = "llama-cpp")]
    LlamaCpp(LlamaCppConfig),
    /// A server that speaks the OpenAI API.
    Upstream(UpstreamConfig),
    /// Filler at the rates of a profile.
    Profiled(ProfiledConfig),
}

/// Why an engine cannot even begin to start. What goes wrong later (a missing file, too little memory, a dead server)
/// shows in the state of its report.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A value that cannot be.
    #[error("engine `{variant}`: {field}: {why}")]
    Value {
        /// Which engine.
        variant: VariantId,
        /// Which field.
        field: &'static str,
        /// What would be right.
        why: String,
    },
    /// An engine that this program was built without.
    #[error(
        "engine `{variant}`: this program was built without `{engine}`: build it with `--features {feature}`, or use the engine `llm`"
    )]
    NotBuilt {
        /// Which engine.
        variant: VariantId,
        /// What it is called in configurations.
        engine: &'static str,
        /// The feature of `edge-node` that brings it.
        feature: &'static str,
    },
    /// The operating system gave no thread.
    #[error("engine `{variant}`: cannot start its thread")]
    Thread {
        /// Which engine.
        variant: VariantId,
        /// What the system said.
        source: std::io::Error,
    },
    /// The HTTP client cannot be made.
    #[error("engine `{variant}`: cannot make an HTTP client")]
    Client {
        /// Which engine.
        variant: VariantId,
        /// What the client said.
        source: reqwest::Error,
    },
}

impl EngineConfig {
    /// The variant that the engine serves.
    #[must_use]
    pub fn variant(&self) -> &VariantId {
        match self {
            #[cfg(feature = "llm")]
            Self::Llm(config) => &config.variant,
            #[cfg(feature = "llm")]
            Self::LlamaCpp(config) => &config.variant,
            Self::Upstream(config) => &config.variant,
            Self::Profiled(config) => &config.variant,
        }
    }
}

impl EngineConfig {
    /// The file of its model, where this process reads one.
    #[must_use]
    pub fn file(&self) -> Option<&Path> {
        match self {
            #[cfg(feature = "llm")]
            Self::Llm(config) => Some(&config.path),
            #[cfg(feature = "llm")]
            Self::LlamaCpp(config) => Some(&config.path),
            Self::Upstream(_) | Self::Profiled(_) => None,
        }
    }

    /// Whether it has a server that the agent starts.
    #[must_use]
    pub const fn managed(&self) -> bool {
        matches!(self, Self::Upstream(UpstreamConfig { managed: Some(_), .. }))
    }

    /// Longest prompt and output together that it is configured for. A model may turn out to hold less: its replica's report says.
    #[must_use]
    pub fn context(&self) -> Tokens {
        match self {
            #[cfg(feature = "llm")]
            Self::Llm(config) => config.context.unwrap_or(Tokens(super::llm::CONTEXT_DEFAULT_MAX)),
            #[cfg(feature = "llm")]
            Self::LlamaCpp(config) => config.context,
            Self::Upstream(config) => config.context,
            Self::Profiled(config) => config.context,
        }
    }

    /// Whether the files that it needs are there.
    ///
    /// # Errors
    /// What is missing, and what brings it.
    pub fn check_files(&self) -> Result<(), String> {
        match self {
            #[cfg(feature = "llm")]
            Self::Llm(config) => config.check_file().map_err(|error| error.to_string()),
            #[cfg(feature = "llm")]
            Self::LlamaCpp(config) => config.check_file().map_err(|error| error.to_string()),
            _ => Ok(()),
        }
    }
}

/// Starts an engine and returns at once; it becomes ready later, which its watch shows. Needs a tokio runtime. What an engine has to
/// know of itself at the next start is kept in the folder `state`.
///
/// # Errors
/// [`StartError`] for a configuration that cannot work.
pub fn start(config: EngineConfig, state: &Path) -> Result<Arc<dyn Engine>, StartError> {
    match config {
        #[cfg(feature = "llm")]
        EngineConfig::Llm(config) => Ok(Arc::new(super::llm::Llm::start_in(config, Some(state.to_owned()))?)),
        #[cfg(feature = "llama-cpp")]
        EngineConfig::LlamaCpp(config) => Ok(Arc::new(super::llm::llamacpp::LlamaCpp::start(config)?)),
        #[cfg(all(feature = "llm", not(feature = "llama-cpp")))]
        EngineConfig::LlamaCpp(config) => {
            Err(StartError::NotBuilt { variant: config.variant, engine: "llama-cpp", feature: "llama-cpp" })
        }
        EngineConfig::Upstream(config) => Ok(Arc::new(Upstream::start(config, state)?)),
        EngineConfig::Profiled(config) => Ok(Arc::new(Profiled::start(config)?)),
    }
}

/// Checks a number of slots.
pub(super) fn check_slots(variant: &VariantId, slots: u32) -> Result<(), StartError> {
    if (1..=SLOTS_MAX).contains(&slots) {
        return Ok(());
    }
    Err(StartError::Value { variant: variant.clone(), field: "slots", why: format!("{slots}: want 1 to {SLOTS_MAX}") })
}

/// Rates as an operator declares them.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Rates {
    /// Prompt tokens per second of one request alone.
    pub prompt_per_s: f64,
    /// Generated tokens per second of one request alone.
    pub decode_per_s: f64,
    /// Fixed time before the first token beyond the prompt's, in milliseconds.
    #[serde(default)]
    pub overhead_ms: f64,
    /// Relative spread of the rates, 0 to 1.
    #[serde(default)]
    pub spread: f64,
}

impl Rates {
    /// As a declared profile.
    ///
    /// # Errors
    /// [`StartError::Value`] unless the rates are above zero and all figures are finite.
    pub(super) fn profile(&self, variant: &VariantId) -> Result<Profile, StartError> {
        let bad = |field, why: String| StartError::Value { variant: variant.clone(), field, why };
        let quantity = |field| move |error: NotAQuantity| bad(field, error.to_string());
        if self.prompt_per_s <= 0.0 || self.decode_per_s <= 0.0 {
            return Err(bad("rates", "want prompt_per_s and decode_per_s above zero".to_owned()));
        }
        Ok(Profile {
            prompt: TokenRate::new(self.prompt_per_s).map_err(quantity("rates.prompt_per_s"))?,
            decode: TokenRate::new(self.decode_per_s).map_err(quantity("rates.decode_per_s"))?,
            overhead: Micros::from_secs_f64(self.overhead_ms / 1e3),
            spread: Fraction::new(self.spread).map_err(quantity("rates.spread"))?,
            source: ProfileSource::Declared,
            samples: 0,
            pace: None,
            load: None,
        })
    }
}
