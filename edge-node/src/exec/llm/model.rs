//! The forward pass of a llama-family model over any range of its layers, for any number of sequences at once.
//!
//! Hidden states are f32, one row a token. Weights stay in the form in which they were loaded. The rows of all sequences go through
//! each product together; attention is computed row by row. A row's result depends on its own sequence alone, bit for bit: rounded
//! activations would turn a last bit into a tenth of a logit some layers on, so an answer would depend on how its prompt was cut
//! into pieces and on who else was served, and a resumed or split stream would not be the unbroken one. There must be no knowledge
//! of requests, texts or sampling here.

use super::cache::Cache;
use super::family::Family;
use super::matrix::{Matrix, Operand, spread};
use candle_core::Result;
use edge_kernels::{Pairing, Scratch, Span, add, attend, gate, norm, rotate};
use shared::work::LayerRange;
use std::cell::RefCell;
use std::ops::Range;
use std::sync::Mutex;

/// Multiplications of attention in a layer below which one thread computes them all: waking others takes longer.
const ALONE_MAX: usize = 1 << 18;

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
    pub(super) attention_norm: Vec<f32>,
    pub(super) query: Matrix,
    pub(super) key: Matrix,
    pub(super) value: Matrix,
    pub(super) traits: Traits,
    pub(super) output: Matrix,
    pub(super) inner_norm: Vec<f32>,
    pub(super) gate: Matrix,
    pub(super) up: Matrix,
    pub(super) down: Matrix,
}

/// What some families have and others have not.
pub(super) struct Traits {
    /// Added to queries, keys and values.
    pub(super) biases: Option<[Vec<f32>; 3]>,
    /// Norms of each head's query and key, before they are rotated.
    pub(super) head_norms: Option<[Vec<f32>; 2]>,
}

impl Traits {
    /// Adds to each row of a product what the family adds.
    fn bias(&self, rows: &mut [f32], which: usize) {
        if let Some(bias) = self.biases.as_ref().and_then(|biases| biases.get(which)) {
            rows.chunks_exact_mut(bias.len()).for_each(|row| add(row, bias));
        }
    }

    /// Norms each head of queries or keys where the family does.
    fn norm(&self, heads: &mut Vec<f32>, which: usize, epsilon: f32) {
        if let Some(weight) = self.head_norms.as_ref().and_then(|norms| norms.get(which)) {
            let mut normed = vec![0.0; heads.len()];
            norm(heads, weight, epsilon, &mut normed);
            *heads = normed;
        }
    }
}

/// What follows the last layer.
pub(super) struct Head {
    pub(super) norm: Vec<f32>,
    pub(super) product: Matrix,
}

/// A loaded model, or some layers of it.
pub struct Model {
    pub(super) shape: Shape,
    pub(super) held: LayerRange,
    /// With the first layer only.
    pub(super) embedding: Option<Matrix>,
    pub(super) layers: Vec<Layer>,
    /// With the last layer only.
    pub(super) head: Option<Head>,
    pub(super) rotation: Rotation,
}

impl std::fmt::Debug for Model {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Model").field("shape", &self.shape).field("held", &self.held).finish_non_exhaustive()
    }
}

/// Hidden states of some tokens, one row each.
#[derive(Clone, Debug, PartialEq)]
pub struct States {
    numbers: Vec<f32>,
    width: usize,
}

impl States {
    /// Rows of `width` numbers; what is no whole row is dropped.
    pub(super) fn new(mut numbers: Vec<f32>, width: usize) -> Self {
        numbers.truncate(numbers.len() - numbers.len() % width.max(1));
        Self { numbers, width: width.max(1) }
    }

    /// How many.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.numbers.len() / self.width
    }

    /// All rows, one after the other.
    pub(super) fn numbers(&self) -> &[f32] {
        &self.numbers
    }

    /// Some of the rows.
    pub(super) fn part(&self, rows: Range<usize>) -> Self {
        let numbers = self.numbers.get(rows.start * self.width..rows.end * self.width).unwrap_or_default().to_vec();
        Self { numbers, width: self.width }
    }

    /// Adds rows at the end.
    pub(super) fn extend(&mut self, other: &Self) {
        self.numbers.extend_from_slice(&other.numbers);
    }
}

/// The rows of one sequence in a pass.
pub(super) struct Run<'a> {
    pub(super) cache: &'a mut Cache,
    /// Position of the first.
    pub(super) start: usize,
    /// How many.
    pub(super) rows: usize,
}

/// Cosines and sines for all positions of the context.
pub(super) struct Rotation {
    cos: Vec<f32>,
    sin: Vec<f32>,
    half: usize,
    pairing: Pairing,
}

impl Rotation {
    /// For `context` positions. `factors` divide the frequencies one by one (long-context models bring them); `scale`
    /// divides positions.
    pub(super) fn new(context: usize, head: usize, base: f64, factors: Option<&[f32]>, scale: f64, pairing: Pairing) -> Self {
        let half = head / 2;
        let mut turned = Self { cos: Vec::with_capacity(context * half), sin: Vec::with_capacity(context * half), half, pairing };
        for position in 0..context {
            for i in 0..half {
                let factor = factors.and_then(|factors| factors.get(i)).map_or(1.0, |factor| f64::from(*factor));
                let frequency = base.powf(-2.0 * i as f64 / head as f64) / factor;
                let (sin, cos) = (position as f64 / scale * frequency).sin_cos();
                turned.cos.push(cos as f32);
                turned.sin.push(sin as f32);
            }
        }
        turned
    }

    /// Rotates rows of heads that stand at position `start` and after.
    fn apply(&self, rows: &mut [f32], width: usize, start: usize) {
        let angles = self.cos.chunks_exact(self.half).zip(self.sin.chunks_exact(self.half)).skip(start);
        for (row, (cos, sin)) in rows.chunks_exact_mut(width).zip(angles) {
            rotate(row, cos, sin, self.pairing);
        }
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

    /// Tokens to hidden states.
    ///
    /// # Errors
    /// An id outside the vocabulary; a model without its first layer.
    pub fn embed(&self, ids: &[u32]) -> Result<States> {
        let Some(embedding) = &self.embedding else {
            candle_core::bail!("layers {} turn no tokens into hidden states", self.held)
        };
        let width = self.shape.hidden;
        let mut numbers = vec![0.0; ids.len() * width];
        for (id, row) in ids.iter().zip(numbers.chunks_exact_mut(width)) {
            if *id as usize >= self.shape.vocabulary {
                candle_core::bail!("token {id} is outside the vocabulary of {}", self.shape.vocabulary)
            }
            embedding.unpack_row(*id as usize, row)?;
        }
        Ok(States::new(numbers, width))
    }

    /// Runs a range of layers on the hidden states of tokens that stand at position `start` and after. The cache must hold
    /// exactly the `start` positions before them in each of these layers, and holds the new ones afterwards.
    ///
    /// # Errors
    /// Whatever the computation says; layers that do not exist; positions that do not fit cache or context.
    pub fn forward(&self, layers: Range<usize>, states: &States, start: usize, cache: &mut Cache) -> Result<States> {
        let rows = states.rows();
        self.forward_all(layers, states.clone(), &mut [Run { cache, start, rows }])
    }

    /// The same for several sequences, whose rows follow each other. Each has its own layers' caches.
    pub(super) fn forward_all(&self, layers: Range<usize>, mut states: States, runs: &mut [Run<'_>]) -> Result<States> {
        let first = usize::from(self.held.from);
        let within = layers.start.checked_sub(first).zip(layers.end.checked_sub(first));
        let Some(chosen) = within.and_then(|(from, to)| self.layers.get(from..to)) else {
            candle_core::bail!("layers {layers:?}, but {} are held", self.held)
        };
        if runs.iter().map(|run| run.rows).sum::<usize>() != states.rows() || states.width != self.shape.hidden {
            candle_core::bail!("{} rows of hidden states for other sequences", states.rows())
        }
        for (index, layer) in layers.zip(chosen) {
            let normed = self.normed(&states.numbers, &layer.attention_norm);
            add(&mut states.numbers, &self.attend(layer, index, &normed, runs)?);
            let normed = self.normed(&states.numbers, &layer.inner_norm);
            let mut gated = layer.gate.multiply(&normed)?;
            gate(&mut gated, &layer.up.multiply(&normed)?);
            add(&mut states.numbers, &layer.down.multiply(&Operand::new(gated, self.shape.inner))?);
        }
        Ok(states)
    }

    fn normed(&self, numbers: &[f32], weight: &[f32]) -> Operand {
        let mut normed = vec![0.0; numbers.len()];
        norm(numbers, weight, self.shape.epsilon, &mut normed);
        Operand::new(normed, self.shape.hidden)
    }

    fn attend(&self, layer: &Layer, index: usize, x: &Operand, runs: &mut [Run<'_>]) -> Result<Vec<f32>> {
        let Shape { heads, kv_heads, head, .. } = self.shape;
        let (mut queries, mut keys, mut values) = (layer.query.multiply(x)?, layer.key.multiply(x)?, layer.value.multiply(x)?);
        let (width, kv_width) = (heads * head, kv_heads * head);
        layer.traits.bias(&mut queries, 0);
        layer.traits.bias(&mut keys, 1);
        layer.traits.bias(&mut values, 2);
        layer.traits.norm(&mut queries, 0, self.shape.epsilon);
        layer.traits.norm(&mut keys, 1, self.shape.epsilon);
        let mut row = 0;
        for run in &mut *runs {
            let next = row + run.rows;
            run.cache.reserve(index, run.start, run.rows)?;
            let (Some(queries), Some(keys), Some(values)) = (
                queries.get_mut(row * width..next * width),
                keys.get_mut(row * kv_width..next * kv_width),
                values.get(row * kv_width..next * kv_width),
            ) else {
                candle_core::bail!("a product has too few rows")
            };
            self.rotation.apply(queries, width, run.start);
            self.rotation.apply(keys, kv_width, run.start);
            run.cache.append(index, keys, values);
            row = next;
        }
        layer.output.multiply(&Operand::new(self.mixed(index, &queries, runs), width))
    }

    /// Attention of each row's heads; those that share keys are computed together.
    fn mixed(&self, layer: usize, queries: &[f32], runs: &[Run<'_>]) -> Vec<f32> {
        let Shape { heads, kv_heads, head, .. } = self.shape;
        let mut out = vec![0.0; queries.len()];
        let spans: Vec<Vec<Span<'_>>> =
            runs.iter().flat_map(|run| (0..kv_heads).map(|kv_head| run.cache.spans(layer, kv_head))).collect();
        let rows =
            runs.iter().enumerate().flat_map(|(run, Run { start, rows, .. })| (1..=*rows).map(move |row| (run, start + row)));
        let shared = heads / kv_heads * head;
        let mut work = 0;
        let mut pieces = Vec::new();
        let mut places = queries.chunks_exact(shared).zip(out.chunks_exact_mut(shared));
        for (run, seen) in rows {
            work += 2 * seen * heads * head;
            for (kv_head, (queries, out)) in (0..kv_heads).zip(&mut places) {
                let spans = spans.get(run * kv_heads + kv_head).map_or(&[][..], Vec::as_slice);
                pieces.push(Mutex::new((queries, spans, seen, out)));
            }
        }
        let compute = |range: Range<usize>| {
            SCRATCH.with_borrow_mut(|scratch| {
                for piece in pieces.get(range).unwrap_or_default() {
                    // Nobody else has this piece: the lock is how the compiler learns it.
                    if let Ok(mut piece) = piece.lock() {
                        let (queries, spans, seen, out) = &mut *piece;
                        attend(queries, head, spans, *seen, out, scratch);
                    }
                }
            });
        };
        if work < ALONE_MAX {
            compute(0..pieces.len())
        } else {
            spread(pieces.len(), &compute)
        }
        drop(pieces);
        out
    }

    /// Logits of the token after the last of these hidden states.
    ///
    /// # Errors
    /// Whatever the computation says; a model without its last layer.
    pub fn logits(&self, states: &States) -> Result<Vec<f32>> {
        let rows = states.rows();
        self.logits_all(&states.part(rows.saturating_sub(1)..rows))
    }

    /// Logits of the token after each of these hidden states, one row each.
    pub(super) fn logits_all(&self, states: &States) -> Result<Vec<f32>> {
        let Some(head) = &self.head else { candle_core::bail!("layers {} draw no tokens", self.held) };
        head.product.multiply(&self.normed(&states.numbers, &head.norm))
    }
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
}
