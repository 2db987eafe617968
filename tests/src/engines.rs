//! Engines and services for stories, as configuration.

use shared::ids::{ServiceId, VariantId};
use shared::units::{Bytes, Quality, Tokens};
use shared::work::{Service, Variant};
use std::path::{Path, PathBuf};

/// Longest prompt and output together of every engine here.
const CONTEXT: u32 = 2_048;

/// How fast a profiled engine is.
#[derive(Clone, Copy, Debug)]
pub struct Pace {
    /// Prompt tokens per second.
    pub prompt_per_s: u32,
    /// Generated tokens per second.
    pub decode_per_s: u32,
    /// Requests at once.
    pub slots: u32,
}

impl Default for Pace {
    /// A token every 10 ms: slow enough to be interrupted, fast enough for a test.
    fn default() -> Self {
        Self { prompt_per_s: 2_000, decode_per_s: 100, slots: 2 }
    }
}

/// An engine that keeps time and computes nothing.
#[must_use]
pub fn profiled(variant: &str, pace: Pace) -> String {
    let Pace { prompt_per_s, decode_per_s, slots } = pace;
    format!(
        "[[engines]]\nengine = \"profiled\"\nvariant = \"{variant}\"\nslots = {slots}\ncontext = {CONTEXT}\n\
         rates = {{ prompt_per_s = {prompt_per_s}.0, decode_per_s = {decode_per_s}.0 }}\n"
    )
}

/// The model of the quick start in the agent's own process.
#[must_use]
pub fn llm(variant: &str, slots: u32) -> String {
    let path = model();
    format!(
        "[[engines]]\nengine = \"llm\"\nvariant = \"{variant}\"\npath = {path:?}\nhint = \"make model\"\nslots = {slots}\n\
         context = {CONTEXT}\nthreads = 1\n"
    )
}

/// Where `make model` puts the model of the quick start.
///
/// # Panics
/// When it is not there: the stories about real inference cannot be told without it.
#[must_use]
pub fn model() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."));
    let path = root.join(".cache/models/SmolLM2-135M-Instruct.Q4_1.gguf");
    assert!(path.is_file(), "no model at {}: `make model` brings it", path.display());
    path
}

/// A service with these variants, each with its quality in hundredths.
///
/// # Panics
/// When a name is none.
#[must_use]
pub fn service(id: &str, variants: &[(&str, u32)]) -> Service {
    let variant = |(name, hundredths): &(&str, u32)| Variant {
        id: VariantId::new(name).expect("a variant's name"),
        weights_sha256: None,
        quantisation: String::new(),
        context: Tokens(CONTEXT),
        memory: Bytes(0),
        quality: Quality::new(f64::from(*hundredths) / 100.0).expect("a quality"),
        quality_source: "declared by the test".to_owned(),
    };
    Service {
        id: ServiceId::new(id).expect("a service's name"),
        aliases: Vec::new(),
        variants: variants.iter().map(variant).collect(),
    }
}
