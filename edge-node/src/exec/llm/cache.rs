//! Keys and values of one sequence, for any set of layers, in blocks that are added as the sequence grows.
//!
//! A block that is full never changes again, so sequences that begin alike can share it.

use super::config::CacheForm;
use super::model::Shape;
use candle_core::Result;
use edge_kernels::{BLOCK, Span, narrow};
use std::ops::Range;
use std::sync::Arc;

/// Keys and values of one sequence.
#[derive(Debug)]
pub struct Cache {
    /// Which layer the first is.
    first: usize,
    /// Positions held in each layer.
    lengths: Vec<usize>,
    blocks: Vec<Arc<Block>>,
    sizes: Sizes,
    context: usize,
}

#[derive(Clone, Copy, Debug)]
struct Sizes {
    layers: usize,
    kv_heads: usize,
    head: usize,
    form: CacheForm,
}

/// Keys and values of [`BLOCK`] positions in all layers: for each layer and head the keys, turned, and then the values.
#[derive(Clone, Debug)]
pub(super) enum Block {
    Wide(Vec<f32>),
    Narrow(Vec<u16>),
}

impl Sizes {
    /// Numbers of a block.
    fn block(self) -> usize {
        2 * self.layers * self.kv_heads * self.head * BLOCK
    }

    fn block_bytes(self) -> u64 {
        (self.block() * self.form.bytes()) as u64
    }

    /// Where the keys of a head begin; the values follow.
    fn keys(self, layer: usize, kv_head: usize) -> usize {
        2 * (layer * self.kv_heads + kv_head) * self.head * BLOCK
    }
}

impl Cache {
    /// An empty one for these layers.
    pub(super) fn new(shape: &Shape, layers: Range<usize>, form: CacheForm) -> Self {
        let sizes = Sizes { layers: layers.len(), kv_heads: shape.kv_heads, head: shape.head, form };
        let lengths = vec![0; sizes.layers];
        Self { first: layers.start, lengths, blocks: Vec::new(), sizes, context: shape.context }
    }

    /// Bytes that a full context takes in so many layers.
    pub(super) fn bytes_max(shape: &Shape, layers: usize, form: CacheForm) -> u64 {
        let sizes = [layers, 2, shape.kv_heads, shape.head, shape.context.next_multiple_of(BLOCK), form.bytes()];
        sizes.iter().fold(1, |product, size| product.saturating_mul(*size as u64))
    }

    /// Bytes that it holds now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.blocks.len() as u64 * self.sizes.block_bytes()
    }

    /// Bytes of a block of these layers.
    pub(super) fn block_bytes(shape: &Shape, layers: usize, form: CacheForm) -> u64 {
        Sizes { layers, kv_heads: shape.kv_heads, head: shape.head, form }.block_bytes()
    }

    /// Begins with the blocks of a sequence that began alike, in all layers.
    pub(super) fn adopt(&mut self, blocks: Vec<Arc<Block>>) {
        self.lengths.fill(blocks.len() * BLOCK);
        self.blocks = blocks;
    }

    /// The blocks that hold all layers' keys and values of the first `length` positions, as far as they are full.
    pub(super) fn full(&self, length: usize) -> &[Arc<Block>] {
        let length = self.lengths.iter().fold(length, |length, held| length.min(*held));
        self.blocks.get(..length / BLOCK).unwrap_or_default()
    }

    /// Makes room for `rows` more positions from `start` on in a layer, which must hold exactly those before.
    pub(super) fn reserve(&mut self, layer: usize, start: usize, rows: usize) -> Result<()> {
        let (end, context) = (start + rows, self.context);
        let length = layer.checked_sub(self.first).and_then(|layer| self.lengths.get(layer));
        let Some(length) = length else { candle_core::bail!("no cache for layer {layer}") };
        if *length != start || end > context {
            candle_core::bail!("cache holds {length} of {context} positions, {rows} more came at {start}")
        }
        while self.blocks.len() * BLOCK < end {
            self.blocks.push(Arc::new(Block::new(self.sizes)));
        }
        Ok(())
    }

    /// Adds keys and values, a row for each position, in the order of heads. [`Self::reserve`] came first.
    pub(super) fn append(&mut self, layer: usize, keys: &[f32], values: &[f32]) {
        let sizes = self.sizes;
        let layer = layer.saturating_sub(self.first);
        let Some(length) = self.lengths.get_mut(layer) else { return };
        let width = sizes.kv_heads * sizes.head;
        for (keys, values) in keys.chunks_exact(width).zip(values.chunks_exact(width)) {
            let Some(block) = self.blocks.get_mut(*length / BLOCK) else { return };
            // Only the last block is written, and it is nobody else's: no copy is made.
            Arc::make_mut(block).put(sizes, layer, *length % BLOCK, keys, values);
            *length += 1;
        }
    }

    /// Keys and values of a head in a layer.
    pub(super) fn spans(&self, layer: usize, kv_head: usize) -> Vec<Span<'_>> {
        let layer = layer.saturating_sub(self.first);
        let count = self.lengths.get(layer).map_or(0, |length| length.div_ceil(BLOCK));
        self.blocks.iter().take(count).filter_map(|block| block.span(self.sizes, layer, kv_head)).collect()
    }
}

impl Block {
    fn new(sizes: Sizes) -> Self {
        match sizes.form {
            CacheForm::F32 => Self::Wide(vec![0.0; sizes.block()]),
            CacheForm::F16 => Self::Narrow(vec![0; sizes.block()]),
        }
    }

    fn put(&mut self, sizes: Sizes, layer: usize, position: usize, keys: &[f32], values: &[f32]) {
        for kv_head in 0..sizes.kv_heads {
            let (from, of_head) = (sizes.keys(layer, kv_head), kv_head * sizes.head..(kv_head + 1) * sizes.head);
            let (Some(keys), Some(values)) = (keys.get(of_head.clone()), values.get(of_head)) else { return };
            match self {
                Self::Wide(numbers) => put(numbers, from, position, keys, values, |number| number),
                Self::Narrow(numbers) => put(numbers, from, position, keys, values, narrow),
            }
        }
    }

    fn span(&self, sizes: Sizes, layer: usize, kv_head: usize) -> Option<Span<'_>> {
        let (from, size) = (sizes.keys(layer, kv_head), sizes.head * BLOCK);
        let (keys, values) = (from..from + size, from + size..from + 2 * size);
        Some(match self {
            Self::Wide(numbers) => Span::Wide { keys: numbers.get(keys)?, values: numbers.get(values)? },
            Self::Narrow(numbers) => Span::Narrow { keys: numbers.get(keys)?, values: numbers.get(values)? },
        })
    }
}

/// Writes a position's keys and values of one head.
fn put<T>(numbers: &mut [T], from: usize, position: usize, keys: &[f32], values: &[f32], convert: impl Fn(f32) -> T) {
    let (head, size) = (keys.len(), keys.len() * BLOCK);
    let turned = numbers.iter_mut().skip(from + position).step_by(BLOCK);
    turned.zip(keys).for_each(|(place, key)| *place = convert(*key));
    let rows = numbers.iter_mut().skip(from + size + position * head);
    rows.zip(values).for_each(|(place, value)| *place = convert(*value));
}

impl CacheForm {
    /// Bytes of a number.
    const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}
