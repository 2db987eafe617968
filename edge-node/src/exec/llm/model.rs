//! The forward pass of a llama-family model over any range of its layers.
//!
//! Hidden states are f32, one row a token. Weights stay in the form in which they were loaded. There must be no knowledge
//! of requests, texts or sampling here.

use super::cache::Cache;
use super::family::Family;
use candle_core::quantized::QMatMul;
use candle_core::{Device, Module, Result, Tensor};
use shared::work::LayerRange;
use std::ops::Range;

/// Sizes of a model.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Shape {
    /// Which kind of model.
    pub family: Family,
    /// Transformer layers of the whole model, whether held here or not.
    pub layers: usize,
    /// Width of a hidden state.
    pub hidden: usize,
    /// Query heads.
    pub heads: usize,
    /// Key and value heads; divides `heads`.
    pub kv_heads: usize,
    /// Width of a head; even.
    pub head: usize,
    /// Width inside the feed-forward part.
    pub inner: usize,
    /// Tokens known.
    pub vocabulary: usize,
    /// Longest sequence, as loaded.
    pub context: usize,
    /// Added to the mean square before its root.
    pub epsilon: f32,
}

/// One transformer layer.
pub(super) struct Layer {
    pub(super) attention_norm: Tensor,
    pub(super) query: QMatMul,
    pub(super) key: QMatMul,
    pub(super) value: QMatMul,
    pub(super) traits: Traits,
    pub(super) output: QMatMul,
    pub(super) inner_norm: Tensor,
    pub(super) gate: QMatMul,
    pub(super) up: QMatMul,
    pub(super) down: QMatMul,
}

/// What follows the last layer.
pub(super) struct Head {
    pub(super) norm: Tensor,
    pub(super) product: QMatMul,
}

/// A loaded model, or some layers of it.
pub struct Model {
    pub(super) shape: Shape,
    pub(super) held: LayerRange,
    /// With the first layer only.
    pub(super) embedding: Option<QMatMul>,
    pub(super) layers: Vec<Layer>,
    /// With the last layer only.
    pub(super) head: Option<Head>,
    pub(super) rotation: Rotation,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("shape", &self.shape).finish_non_exhaustive()
    }
}

/// What some families have and others have not.
pub(super) struct Traits {
    /// Added to queries, keys and values.
    pub(super) biases: Option<[Tensor; 3]>,
    /// Norms of each head's query and key, before they are rotated.
    pub(super) head_norms: Option<[Tensor; 2]>,
}

/// Cosines and sines of all positions of the context: (context, head / 2) each.
pub(super) struct Rotation {
    cos: Tensor,
    sin: Tensor,
    /// Whether the numbers that are rotated together lie next to each other, else half a head apart.
    neighbours: bool,
}

impl Rotation {
    /// For all positions of the context. `factors` divide the frequencies one by one (long-context models bring them); `scale`
    /// divides positions.
    pub(super) fn new(shape: &Shape, base: f64, factors: Option<&[f32]>, scale: f64) -> Result<Self> {
        let Shape { family, context, head, .. } = *shape;
        let half = head / 2;
        let mut angles = Vec::with_capacity(context * half);
        for position in 0..context {
            for i in 0..half {
                let factor = factors.and_then(|factors| factors.get(i)).map_or(1.0, |factor| f64::from(*factor));
                let frequency = base.powf(-2.0 * i as f64 / head as f64) / factor;
                angles.push((position as f64 / scale * frequency) as f32);
            }
        }
        let angles = Tensor::from_vec(angles, (context, half), &Device::Cpu)?;
        Ok(Self { cos: angles.cos()?, sin: angles.sin()?, neighbours: family.rotates_neighbours() })
    }

    /// Rotates (heads, tokens, head) from position `start` on.
    fn apply(&self, x: &Tensor, start: usize) -> Result<Tensor> {
        let tokens = x.dim(1)?;
        let (cos, sin) = (self.cos.narrow(0, start, tokens)?, self.sin.narrow(0, start, tokens)?);
        let rotate = if self.neighbours { candle_nn::rotary_emb::rope_i } else { candle_nn::rotary_emb::rope };
        rotate(&x.unsqueeze(0)?.contiguous()?, &cos, &sin)?.squeeze(0)
    }
}

impl Model {
    /// Its sizes.
    #[must_use]
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The layers that it holds.
    #[must_use]
    pub fn held(&self) -> LayerRange {
        self.held
    }

    /// The same, as indices.
    pub(super) fn layers(&self) -> Range<usize> {
        usize::from(self.held.from)..usize::from(self.held.to)
    }

    /// An empty cache for one sequence.
    #[must_use]
    pub fn cache(&self, form: super::CacheForm) -> Cache {
        Cache::new(&self.shape, self.layers(), form)
    }

    /// Tokens to hidden states, (tokens, hidden).
    ///
    /// # Errors
    /// Whatever the computation says; an id outside the vocabulary; a model without its first layer.
    pub fn embed(&self, ids: &[u32]) -> Result<Tensor> {
        if let Some(id) = ids.iter().find(|id| **id as usize >= self.shape.vocabulary) {
            candle_core::bail!("token {id} is outside the vocabulary of {}", self.shape.vocabulary)
        }
        let Some(embedding) = &self.embedding else {
            candle_core::bail!("layers {} turn no tokens into hidden states", self.held)
        };
        embedding.embedding(&Tensor::new(ids, &Device::Cpu)?)
    }

    /// Runs a range of layers on the hidden states of tokens that stand at position `start` and after. The cache must hold
    /// exactly the `start` positions before them in each of these layers, and holds the new ones afterwards.
    ///
    /// # Errors
    /// Whatever the computation says; layers that do not exist; positions that do not fit cache or context.
    pub fn forward(&self, layers: Range<usize>, hidden: &Tensor, start: usize, cache: &mut Cache) -> Result<Tensor> {
        let tokens = hidden.dim(0)?;
        let first = usize::from(self.held.from);
        let within = layers.start.checked_sub(first).zip(layers.end.checked_sub(first));
        let Some(chosen) = within.and_then(|(from, to)| self.layers.get(from..to)) else {
            candle_core::bail!("layers {layers:?}, but {} are held", self.held)
        };
        if start + tokens > self.shape.context {
            candle_core::bail!("{tokens} tokens after position {start} exceed the context of {}", self.shape.context)
        }
        let mut hidden = hidden.clone();
        for (index, layer) in layers.zip(chosen) {
            let normed = candle_nn::ops::rms_norm(&hidden, &layer.attention_norm, self.shape.epsilon)?;
            hidden = (hidden + self.attend(layer, index, &normed, start, cache)?)?;
            let normed = candle_nn::ops::rms_norm(&hidden, &layer.inner_norm, self.shape.epsilon)?;
            let gated = (candle_nn::ops::silu(&layer.gate.forward(&normed)?)? * layer.up.forward(&normed)?)?;
            hidden = (hidden + layer.down.forward(&gated)?)?;
        }
        Ok(hidden)
    }

    /// Attention is computed token by token, in the very shapes of decoding. Quantised products round activations, which
    /// turns a last bit into a tenth of a logit some layers on; so an answer would depend on how its prompt was cut into
    /// pieces, and a resumed stream would not be the unbroken one.
    fn attend(&self, layer: &Layer, index: usize, x: &Tensor, start: usize, cache: &mut Cache) -> Result<Tensor> {
        let Shape { heads, kv_heads, head, .. } = self.shape;
        let tokens = x.dim(0)?;
        let split = |x: Tensor, heads: usize| x.reshape((tokens, heads, head))?.transpose(0, 1)?.contiguous();
        let Traits { biases, head_norms } = &layer.traits;
        let project = |product: &QMatMul, which: usize| {
            let y = product.forward(x)?;
            match biases.as_ref().and_then(|biases| biases.get(which)) {
                Some(bias) => y.broadcast_add(bias),
                None => Ok(y),
            }
        };
        let normed = |x: Tensor, which: usize| match head_norms.as_ref().and_then(|norms| norms.get(which)) {
            Some(norm) => candle_nn::ops::rms_norm(&x, norm, self.shape.epsilon),
            None => Ok(x),
        };
        let query = self.rotation.apply(&normed(split(project(&layer.query, 0)?, heads)?, 0)?, start)?;
        let query = (query * (head as f64).sqrt().recip())?;
        let key = self.rotation.apply(&normed(split(project(&layer.key, 1)?, kv_heads)?, 1)?, start)?;
        let value = split(project(&layer.value, 2)?, kv_heads)?;
        let (keys, values) = cache.append(index, start, &key, &value)?;

        let mut mixed = Vec::with_capacity(tokens);
        for token in 0..tokens {
            let seen = start + token + 1;
            // The query heads that share a key head lie next to each other, so that they become rows of one product.
            let query = query.narrow(1, token, 1)?.reshape((kv_heads, heads / kv_heads, head))?;
            let scores = query.matmul(&keys.narrow(1, 0, seen)?.transpose(1, 2)?)?;
            let weights = candle_nn::ops::softmax_last_dim(&scores)?;
            mixed.push(weights.matmul(&values.narrow(1, 0, seen)?)?.reshape((1, heads * head))?);
        }
        layer.output.forward(&Tensor::cat(&mixed, 0)?)
    }

    /// Logits of the token after the last of these hidden states.
    ///
    /// # Errors
    /// Whatever the computation says; a model without its last layer.
    pub fn logits(&self, hidden: &Tensor) -> Result<Vec<f32>> {
        let Some(head) = &self.head else { candle_core::bail!("layers {} draw no tokens", self.held) };
        let last = hidden.narrow(0, hidden.dim(0)?.saturating_sub(1), 1)?;
        let normed = candle_nn::ops::rms_norm(&last.contiguous()?, &head.norm, self.shape.epsilon)?;
        head.product.forward(&normed)?.flatten_all()?.to_vec1()
    }
}
