//! llama.cpp behind a small interface: token ids in, logits out. Nothing here knows of requests or texts.

use super::LlamaCppConfig;
use crate::exec::llm::config::ModelError;
use llama_cpp_2::LogOptions;
use llama_cpp_2::context::LlamaContext;
use llama_cpp_2::context::params::LlamaContextParams;
use llama_cpp_2::llama_backend::LlamaBackend;
use llama_cpp_2::llama_batch::LlamaBatch;
use llama_cpp_2::model::LlamaModel;
use llama_cpp_2::model::params::LlamaModelParams;
use llama_cpp_2::token::LlamaToken;
use shared::units::{Bytes, Tokens};
use std::num::NonZeroU32;
use std::sync::OnceLock;

/// Most tokens of one pass, all requests together: as many as llama.cpp computes at once by default. More would not be faster.
pub(super) const BATCH_TOKENS: usize = 512;

/// The library's own state, of which a process has one.
fn backend() -> Option<&'static LlamaBackend> {
    static BACKEND: OnceLock<Option<LlamaBackend>> = OnceLock::new();
    let begin = || {
        // It logs every tensor that it loads; what goes wrong it returns as well.
        llama_cpp_2::send_logs_to_tracing(LogOptions::default().with_logs_enabled(false));
        LlamaBackend::init().ok()
    };
    BACKEND.get_or_init(begin).as_ref()
}

/// What the library was compiled for, and this machine lacks. See `.cargo/config.toml`.
fn missing() -> Option<&'static str> {
    #[cfg(target_arch = "x86_64")]
    {
        let has = std::arch::is_x86_feature_detected!("avx2")
            && std::arch::is_x86_feature_detected!("fma")
            && std::arch::is_x86_feature_detected!("f16c")
            && std::arch::is_x86_feature_detected!("bmi2");
        if !has {
            return Some(
                "this CPU lacks AVX2, FMA, F16C or BMI2, for which this program's llama.cpp was compiled: use the engine `llm`",
            );
        }
    }
    None
}

fn unsupported(config: &LlamaCppConfig, what: impl Into<String>) -> ModelError {
    ModelError::Unsupported { path: config.path.clone(), what: what.into() }
}

/// Loads the weights.
pub(super) fn load(config: &LlamaCppConfig) -> Result<LlamaModel, ModelError> {
    if let Some(missing) = missing() {
        return Err(unsupported(config, missing));
    }
    let backend = backend().ok_or_else(|| unsupported(config, "llama.cpp cannot begin"))?;
    let model = LlamaModel::load_from_file(backend, &config.path, &LlamaModelParams::default().with_n_gpu_layers(0))
        .map_err(|error| unsupported(config, format!("llama.cpp refuses it ({error})")))?;
    let trained = model.n_ctx_train();
    if config.context.0 == 0 || config.context.0 > trained {
        return Err(unsupported(config, format!("a context of {}: the model was trained for 1 to {trained}", config.context.0)));
    }
    Ok(model)
}

/// Memory that weights and the caches of all slots take.
pub(super) fn footprint(model: &LlamaModel, config: &LlamaCppConfig) -> Result<Bytes, ModelError> {
    let heads = u64::from(model.n_head()).max(1);
    let width = u64::try_from(model.n_embd()).unwrap_or(0) / heads * u64::from(model.n_head_kv());
    // Keys and values in 16 bits each.
    let cache = [u64::from(model.n_layer()), width, u64::from(config.context.0), u64::from(config.slots), 4];
    let cache = Bytes(cache.iter().fold(1, |product: u64, size| product.saturating_mul(*size)));
    let weights = Bytes(model.size());
    let (budget, origin) = match config.memory_max {
        Some(configured) => (configured, "configured"),
        None => (crate::exec::llm::load::memory_available(), "available"),
    };
    if weights + cache <= budget {
        return Ok(weights + cache);
    }
    let (slots, context) = (config.slots, config.context);
    let prefixes = Bytes(0);
    Err(ModelError::Memory { weights, cache, prefixes, slots, context, budget, origin })
}

/// Tokens of one request for the next pass.
pub(super) struct Piece<'a> {
    /// The request's place.
    pub(super) place: usize,
    pub(super) ids: &'a [u32],
    /// Position of the first.
    pub(super) start: usize,
    /// Whether the logits after the last are wanted.
    pub(super) drawn: bool,
}

/// The caches of all places, and what computes them.
pub(super) struct Passes<'m> {
    context: LlamaContext<'m>,
    batch: LlamaBatch<'static>,
    vocabulary: u32,
}

impl<'m> Passes<'m> {
    pub(super) fn new(model: &'m LlamaModel, config: &LlamaCppConfig) -> Result<Self, ModelError> {
        let backend = backend().ok_or_else(|| unsupported(config, "llama.cpp cannot begin"))?;
        let threads = i32::try_from(threads(config)).unwrap_or(i32::MAX);
        let total = config.context.0.saturating_mul(config.slots);
        let params = LlamaContextParams::default()
            .with_n_ctx(NonZeroU32::new(total))
            .with_n_seq_max(config.slots)
            .with_n_batch(BATCH_TOKENS as u32)
            .with_n_ubatch(BATCH_TOKENS as u32)
            .with_n_threads(threads)
            .with_n_threads_batch(threads);
        let context = model
            .new_context(backend, params)
            .map_err(|error| unsupported(config, format!("llama.cpp gives no context ({error})")))?;
        let vocabulary = u32::try_from(model.n_vocab()).unwrap_or(0);
        Ok(Self { context, batch: LlamaBatch::new(BATCH_TOKENS, 1), vocabulary })
    }

    /// Computes these pieces in one pass and hands the wanted logits to `take`, with the piece's number.
    pub(super) fn run(&mut self, pieces: &[Piece<'_>], mut take: impl FnMut(usize, &[f32])) -> Result<(), String> {
        self.batch.clear();
        let mut wanted = Vec::new();
        for (number, piece) in pieces.iter().enumerate() {
            let place = i32::try_from(piece.place).map_err(|error| error.to_string())?;
            for (offset, id) in piece.ids.iter().enumerate() {
                if *id >= self.vocabulary {
                    return Err(format!("token {id} is outside the vocabulary of {}", self.vocabulary));
                }
                let token = LlamaToken(i32::try_from(*id).map_err(|error| error.to_string())?);
                let position = i32::try_from(piece.start + offset).map_err(|error| error.to_string())?;
                let drawn = piece.drawn && offset + 1 == piece.ids.len();
                if drawn {
                    wanted.push((number, self.batch.n_tokens()));
                }
                self.batch.add(token, position, &[place], drawn).map_err(|error| error.to_string())?;
            }
        }
        self.context.decode(&mut self.batch).map_err(|error| error.to_string())?;
        for (number, index) in wanted {
            take(number, self.context.get_logits_ith(index));
        }
        // Without wanted logits nobody would wait for the computation, and its time would be counted to the next.
        self.context.synchronize();
        Ok(())
    }

    /// Forgets a place's sequence.
    pub(super) fn forget(&mut self, place: usize) {
        // Whole sequences can always be forgotten, and there are fewer than 2^31 places.
        drop(self.context.clear_kv_cache_seq(u32::try_from(place).ok(), None, None));
    }

    /// Tokens that the model knows.
    pub(super) const fn vocabulary(&self) -> u32 {
        self.vocabulary
    }
}

fn threads(config: &LlamaCppConfig) -> u32 {
    let cores = || std::thread::available_parallelism().map_or(1, |cores| u32::try_from(cores.get()).unwrap_or(1));
    config.threads.unwrap_or_else(|| cores().saturating_sub(1)).max(1)
}

/// The context as a report tells it.
pub(super) const fn context(config: &LlamaCppConfig) -> Tokens {
    config.context
}
