//! Keys and values of one sequence, for any set of layers, in chunks that grow with the sequence.

use super::config::CacheForm;
use super::model::Shape;
use candle_core::{DType, Device, Result, Tensor};
use std::ops::Range;

/// A cache grows by half, and at least by this many positions: small enough that a short chat holds little, large enough
/// that copying on growth stays a small part of the work.
const GROWTH_MIN: usize = 256;

/// Keys and values of one sequence.
#[derive(Debug)]
pub struct Cache {
    /// Which layer the first of `layers` is.
    first: usize,
    layers: Vec<LayerCache>,
    kv_heads: usize,
    head: usize,
    context: usize,
    dtype: DType,
}

#[derive(Debug, Default)]
struct LayerCache {
    /// Keys and values, (kv heads, capacity, head) each.
    store: Option<(Tensor, Tensor)>,
    capacity: usize,
    length: usize,
}

impl Cache {
    /// An empty one for these layers.
    pub(super) fn new(shape: &Shape, layers: Range<usize>, form: CacheForm) -> Self {
        let (first, dtype) = (layers.start, form.dtype());
        let layers = layers.map(|_| LayerCache::default()).collect();
        Self { first, layers, kv_heads: shape.kv_heads, head: shape.head, context: shape.context, dtype }
    }

    /// Bytes that a full context takes in so many layers.
    pub(super) fn bytes_max(shape: &Shape, layers: usize, form: CacheForm) -> u64 {
        let sizes = [layers, 2, shape.kv_heads, shape.head, shape.context, form.dtype().size_in_bytes()];
        sizes.iter().fold(1, |product, size| product.saturating_mul(*size as u64))
    }

    /// Bytes that it holds now.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let positions: usize = self.layers.iter().map(|layer| layer.capacity).sum();
        (2 * positions * self.kv_heads * self.head * self.dtype.size_in_bytes()) as u64
    }

    /// Adds (kv heads, tokens, head) of keys and values at position `start`, and returns all up to there, in f32.
    pub(super) fn append(&mut self, layer: usize, start: usize, key: &Tensor, value: &Tensor) -> Result<(Tensor, Tensor)> {
        let (kv_heads, tokens, head) = key.dims3()?;
        let (dtype, context) = (self.dtype, self.context);
        let Some(layer) = layer.checked_sub(self.first).and_then(|at| self.layers.get_mut(at)) else {
            candle_core::bail!("no cache for layer {layer}")
        };
        if layer.length != start || start + tokens > context {
            candle_core::bail!("cache holds {} of {context} positions, {tokens} more came at {start}", layer.length)
        }
        let length = start + tokens;
        if length > layer.capacity {
            layer.grow(length.max(layer.capacity * 3 / 2).next_multiple_of(GROWTH_MIN).min(context), (kv_heads, head), dtype)?;
        }
        let Some((keys, values)) = &layer.store else { candle_core::bail!("cache without store") };
        keys.slice_set(&key.to_dtype(dtype)?.contiguous()?, 1, start)?;
        values.slice_set(&value.to_dtype(dtype)?.contiguous()?, 1, start)?;
        layer.length = length;
        let widen = |all: &Tensor| all.narrow(1, 0, length)?.to_dtype(DType::F32);
        Ok((widen(keys)?, widen(values)?))
    }
}

impl LayerCache {
    fn grow(&mut self, capacity: usize, (kv_heads, head): (usize, usize), dtype: DType) -> Result<()> {
        let larger = |old: Option<&Tensor>| {
            let new = Tensor::zeros((kv_heads, capacity, head), dtype, &Device::Cpu)?;
            if let Some(old) = old {
                new.slice_set(&old.narrow(1, 0, self.length)?.contiguous()?, 1, 0)?;
            }
            Ok::<_, candle_core::Error>(new)
        };
        let old = self.store.as_ref();
        let (keys, values) = (larger(old.map(|(keys, _)| keys))?, larger(old.map(|(_, values)| values))?);
        self.store = Some((keys, values));
        self.capacity = capacity;
        Ok(())
    }
}

impl CacheForm {
    pub(super) fn dtype(self) -> DType {
        match self {
            Self::F32 => DType::F32,
            Self::F16 => DType::F16,
        }
    }
}
