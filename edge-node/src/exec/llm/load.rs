//! From a GGUF file to a model in memory, with its size accounted before any weight is read.

use super::cache::Cache;
use super::config::{CONTEXT_DEFAULT_MAX, LlmConfig, ModelError, PrefixCache, WeightForm, first_line};
use super::family::Family;
use super::gguf::Gguf;
use super::matrix::{Form, Matrix};
use super::model::{Head, Layer, Model, Rotation, Shape, Traits};
use candle_core::Device;
use shared::units::{Bytes, Tokens};
use shared::work::LayerRange;

/// No dimension of a model that one machine runs is larger: above it, the file is damaged, and products would overflow.
const SIZE_MAX: usize = 1 << 22;

/// What a model takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Footprint {
    pub(super) weights: Bytes,
    pub(super) cache: Bytes,
    /// For beginnings of prompts.
    pub(super) prefixes: Bytes,
}

/// Of the memory of the slots' caches, the part that beginnings of prompts get when nobody says otherwise: enough for some
/// conversations, and no surprise beside the rest.
const PREFIX_SHARE: u64 = 4;

impl Footprint {
    fn new(gguf: &Gguf, shape: &Shape, held: LayerRange, config: &LlmConfig) -> Self {
        let tied = !gguf.has(HEAD);
        let tensors = gguf.tensors().filter(|(name, _)| needed(name, held, tied));
        let tensors: u64 = tensors
            .map(|(name, info)| Form::of(config.weights, name, info.ggml_dtype).bytes(info.shape.dims()))
            .fold(0, u64::saturating_add);
        let rotation = (shape.context as u64).saturating_mul(shape.head as u64).saturating_mul(4);
        let layers = usize::from(held.count());
        let cache = Cache::bytes_max(shape, layers, config.cache).saturating_mul(u64::from(config.slots));
        let prefixes = match (config.prefix_cache, config.prefix_cache_mb) {
            // Stages have nothing to gain: each would need the same beginning.
            _ if !held.is_whole() => 0,
            (PrefixCache::Off, _) => 0,
            (PrefixCache::On, Some(mb)) => u64::from(mb) << 20,
            (PrefixCache::On, None) => cache / PREFIX_SHARE,
        };
        Self { weights: Bytes(tensors.saturating_add(rotation)), cache: Bytes(cache), prefixes: Bytes(prefixes) }
    }

    pub(super) fn total(&self) -> Bytes {
        Bytes(self.weights.0.saturating_add(self.cache.0).saturating_add(self.prefixes.0))
    }

    /// Keeps it within the budget. What nobody asked for by name gives way.
    fn fit(self, shape: &Shape, config: &LlmConfig) -> Result<Self, ModelError> {
        let (budget, origin) = match config.memory_max {
            Some(configured) => (configured, "configured"),
            None => (memory_available(), "available"),
        };
        let Self { weights, cache, prefixes } = self;
        let asked = Self { prefixes: if config.prefix_cache_mb.is_some() { prefixes } else { Bytes(0) }, ..self };
        if asked.total() <= budget {
            let spare = (budget.0 - asked.total().0) / 2;
            return Ok(Self { prefixes: asked.prefixes.max(prefixes.min(Bytes(spare))), ..self });
        }
        let context = Tokens(u32::try_from(shape.context).unwrap_or(u32::MAX));
        let (prefixes, slots) = (asked.prefixes, config.slots);
        Err(ModelError::Memory { weights, cache, prefixes, slots, context, budget, origin })
    }
}

/// The tensor that turns tokens into hidden states.
pub(super) const EMBEDDING: &str = "token_embd.weight";
/// The one that turns hidden states into logits; the embedding where it is absent.
const HEAD: &str = "output.weight";
/// The norm before it.
const HEAD_NORM: &str = "output_norm.weight";

/// Whether a tensor is needed for these layers.
fn needed(name: &str, held: LayerRange, tied: bool) -> bool {
    match name {
        EMBEDDING => held.is_first() || (held.is_last() && tied),
        HEAD | HEAD_NORM => held.is_last(),
        _ => {
            let layer = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')).and_then(|(layer, _)| layer.parse().ok());
            layer.is_none_or(|layer: u16| (held.from..held.to).contains(&layer))
        }
    }
}

/// The layers that are to be held.
fn held(gguf: &Gguf, shape: &Shape, config: &LlmConfig) -> Result<LayerRange, ModelError> {
    let of = u16::try_from(shape.layers).map_err(|_| gguf.damaged(format!("{} layers", shape.layers)))?;
    let Some(span) = config.layers else { return Ok(LayerRange::whole(of)) };
    let held = LayerRange { from: span.from, to: span.to, of };
    if held.valid() {
        return Ok(held);
    }
    Err(gguf.unsupported(format!("layers {}..{}: the model has {of}, want a range within 0..{of}", span.from, span.to)))
}

/// Memory that programs can still take, within the limit of the control group if there is one. Where the system does not
/// tell, nothing is refused: unknown is not zero.
pub(super) fn memory_available() -> Bytes {
    let Ok(mut system) = sysinfo::System::new() else { return Bytes(u64::MAX) };
    system.refresh_memory();
    let free = system.available_memory();
    Bytes(system.cgroup_limits().map_or(free, |limits| free.min(limits.free_memory)))
}

/// Reads the sizes of the model from the metadata.
pub(super) fn shape(gguf: &Gguf, config: &LlmConfig) -> Result<Shape, ModelError> {
    let architecture = gguf.text("general.architecture")?;
    let family = Family::named(architecture).ok_or_else(|| {
        let known = Family::ALL.map(Family::name).join(", ");
        gguf.unsupported(format!("architecture `{architecture}`, want one of {known}"))
    })?;
    let key = |name: &str| family.key(name);
    if gguf.count_maybe(&key("expert_count"))?.unwrap_or(0) > 0 {
        return Err(gguf.unsupported("a mixture of experts"));
    }
    let heads = gguf.count(&key("attention.head_count"))?;
    let hidden = gguf.count(&key("embedding_length"))?;
    let kv_heads = gguf.count_maybe(&key("attention.head_count_kv"))?.unwrap_or(heads);
    let head = gguf.count_maybe(&key("attention.key_length"))?.unwrap_or_else(|| hidden / heads.max(1));
    if heads == 0 || kv_heads == 0 || heads % kv_heads != 0 || head == 0 || head % 2 != 0 {
        return Err(gguf.damaged(format!("{heads} heads, {kv_heads} key heads of width {head} cannot be")));
    }
    if gguf.count_maybe(&key("rope.dimension_count"))?.is_some_and(|width| width != head) {
        return Err(gguf.unsupported("rotation of a part of each head"));
    }
    let context = context(gguf, family, config)?;
    let vocabulary = gguf.texts("tokenizer.ggml.tokens")?.len();
    let (layers, inner) = (gguf.count(&key("block_count"))?, gguf.count(&key("feed_forward_length"))?);
    if [layers, hidden, heads, head, inner, context].iter().any(|size| *size > SIZE_MAX) {
        return Err(gguf.damaged(format!("a size above {SIZE_MAX}")));
    }
    Ok(Shape {
        family,
        layers,
        hidden,
        heads,
        kv_heads,
        head,
        inner,
        vocabulary,
        context,
        epsilon: gguf.real(&key("attention.layer_norm_rms_epsilon"))? as f32,
    })
}

fn context(gguf: &Gguf, family: Family, config: &LlmConfig) -> Result<usize, ModelError> {
    let trained = gguf.count(&family.key("context_length"))?;
    let wanted = config.context.map_or_else(|| trained.min(CONTEXT_DEFAULT_MAX as usize), |context| context.0 as usize);
    if wanted == 0 || wanted > trained {
        return Err(gguf.unsupported(format!("a context of {wanted}: the model was trained for 1 to {trained}")));
    }
    Ok(wanted)
}

/// What the model, or the configured layers of it, would take; an error when it would not fit.
pub(super) fn measure(gguf: &Gguf, config: &LlmConfig) -> Result<Footprint, ModelError> {
    let shape = shape(gguf, config)?;
    Footprint::new(gguf, &shape, held(gguf, &shape, config)?, config).fit(&shape, config)
}

/// Loads the model, or the configured layers of it, after its memory was found to fit.
pub(super) fn load(gguf: &mut Gguf, config: &LlmConfig, go_on: &dyn Fn() -> bool) -> Result<(Model, Footprint), ModelError> {
    let shape = shape(gguf, config)?;
    let held = held(gguf, &shape, config)?;
    let footprint = Footprint::new(gguf, &shape, held, config).fit(&shape, config)?;

    let mut layers = Vec::new();
    for index in held.from..held.to {
        if !go_on() {
            return Err(ModelError::Stopped);
        }
        layers.push(layer(gguf, &shape, config.weights, index)?);
    }
    let table = [shape.vocabulary, shape.hidden];
    let tied = !gguf.has(HEAD);
    let embedding = if needed(EMBEDDING, held, tied) { Some(product(gguf, config.weights, EMBEDDING, &table)?) } else { None };
    let head = match &embedding {
        _ if !held.is_last() => None,
        // Tied weights: the head is the embedding, in the same memory.
        Some(embedding) if tied => Some(embedding.clone()),
        _ => Some(product(gguf, config.weights, HEAD, &table)?),
    };
    let head =
        head.map(|product| Ok::<_, ModelError>(Head { norm: norm(gguf, HEAD_NORM, shape.hidden)?, product })).transpose()?;
    let embedding = embedding.filter(|_| held.is_first());
    let model = Model { rotation: rotation(gguf, &shape)?, shape, held, embedding, layers, head };
    Ok((model, footprint))
}

fn layer(gguf: &mut Gguf, shape: &Shape, wish: WeightForm, index: u16) -> Result<Layer, ModelError> {
    let Shape { hidden, heads, kv_heads, head, inner, .. } = *shape;
    let name = |part: &str| format!("blk.{index}.{part}.weight");
    Ok(Layer {
        attention_norm: norm(gguf, &name("attn_norm"), hidden)?,
        query: product(gguf, wish, &name("attn_q"), &[heads * head, hidden])?,
        key: product(gguf, wish, &name("attn_k"), &[kv_heads * head, hidden])?,
        value: product(gguf, wish, &name("attn_v"), &[kv_heads * head, hidden])?,
        traits: traits(gguf, shape, index)?,
        output: product(gguf, wish, &name("attn_output"), &[hidden, heads * head])?,
        inner_norm: norm(gguf, &name("ffn_norm"), hidden)?,
        gate: product(gguf, wish, &name("ffn_gate"), &[inner, hidden])?,
        up: product(gguf, wish, &name("ffn_up"), &[inner, hidden])?,
        down: product(gguf, wish, &name("ffn_down"), &[hidden, inner])?,
    })
}

/// What sets a family's layer apart. Its tensors are there exactly where the family has them.
fn traits(gguf: &mut Gguf, shape: &Shape, index: u16) -> Result<Traits, ModelError> {
    let name = |part: &str| format!("blk.{index}.{part}");
    let Shape { family, heads, kv_heads, head, .. } = *shape;
    let biases = if family.has_biases() {
        let query = norm(gguf, &name("attn_q.bias"), heads * head)?;
        let key = norm(gguf, &name("attn_k.bias"), kv_heads * head)?;
        Some([query, key, norm(gguf, &name("attn_v.bias"), kv_heads * head)?])
    } else if gguf.has(&name("attn_q.bias")) {
        return Err(gguf.unsupported("biases in a model of this family"));
    } else {
        None
    };
    let head_norms = if family.has_head_norms() {
        Some([norm(gguf, &name("attn_q_norm.weight"), head)?, norm(gguf, &name("attn_k_norm.weight"), head)?])
    } else {
        None
    };
    Ok(Traits { biases, head_norms })
}

fn rotation(gguf: &mut Gguf, shape: &Shape) -> Result<Rotation, ModelError> {
    let base = gguf.real_maybe(&shape.family.key("rope.freq_base"))?.unwrap_or(10_000.0);
    let scale = match gguf.text_maybe(&shape.family.key("rope.scaling.type")) {
        None | Some("none") => 1.0,
        Some("linear") => gguf.real_maybe(&shape.family.key("rope.scaling.factor"))?.unwrap_or(1.0),
        Some(other) => return Err(gguf.unsupported(format!("`{other}` scaling of positions"))),
    };
    let factors = if gguf.has("rope_freqs.weight") {
        let tensor = gguf.tensor("rope_freqs.weight", &[shape.head / 2])?;
        let factors: Vec<f32> = tensor.dequantize(&Device::Cpu)?.to_vec1()?;
        if factors.iter().any(|factor| !factor.is_finite() || *factor <= 0.0) {
            return Err(gguf.damaged("`rope_freqs.weight` has factors that are not positive"));
        }
        Some(factors)
    } else {
        None
    };
    Ok(Rotation::new(shape.context, shape.head, base, factors.as_deref(), scale, shape.family.pairing()))
}

fn norm(gguf: &mut Gguf, name: &str, width: usize) -> Result<Vec<f32>, ModelError> {
    Ok(gguf.tensor(name, &[width])?.dequantize(&Device::Cpu)?.to_vec1()?)
}

fn product(gguf: &mut Gguf, wish: WeightForm, name: &str, shape: &[usize]) -> Result<Matrix, ModelError> {
    let stored = gguf.tensor(name, shape)?;
    let form = Form::of(wish, name, stored.dtype());
    Matrix::new(stored, form).map_err(|error| gguf.unsupported(format!("`{name}`: {}", first_line(&error))))
}
