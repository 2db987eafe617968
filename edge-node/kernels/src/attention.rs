//! Attention of one token over the keys and values before it.
//!
//! Keys lie turned, so that neighbouring numbers belong to neighbouring positions: a score then needs no sum across a vector. A score
//! depends on its position's key alone, so blocks may be filled further than what a token may see.

use crate::float::{exp, total};
use crate::half::widen;
use crate::level::{by_level, level};

/// Positions in a block of keys and values.
pub const BLOCK: usize = 32;

/// Lanes of sums over positions.
const LANES: usize = 16;

/// The keys and values of one head in a block: keys as `head` rows of [`BLOCK`] positions, values as [`BLOCK`] rows of `head` numbers.
#[derive(Clone, Copy, Debug)]
pub enum Span<'a> {
    /// As computed.
    Wide {
        /// Keys.
        keys: &'a [f32],
        /// Values.
        values: &'a [f32],
    },
    /// In half precision.
    Narrow {
        /// Keys.
        keys: &'a [u16],
        /// Values.
        values: &'a [u16],
    },
}

/// Room for numbers in between, to be used again.
#[derive(Debug, Default)]
pub struct Scratch {
    scores: Vec<f32>,
    wide: Vec<f32>,
}

/// For each query of `head` numbers: the mean of the first `seen` values, weighed by how well their keys answer the query.
///
/// # Panics
/// When the spans do not hold `seen` positions, or sizes do not fit.
pub fn attend(queries: &[f32], head: usize, spans: &[Span<'_>], seen: usize, out: &mut [f32], scratch: &mut Scratch) {
    assert!(head > 0 && queries.len().is_multiple_of(head) && queries.len() == out.len(), "whole queries");
    assert!(seen > 0 && seen <= spans.len() * BLOCK, "positions that there are");
    by_level!(
        level(), attend_inner,
        (queries: &[f32], head: usize, spans: &[Span<'_>], seen: usize, out: &mut [f32], scratch: &mut Scratch)
    );
}

#[inline(always)]
fn attend_inner(queries: &[f32], head: usize, spans: &[Span<'_>], seen: usize, out: &mut [f32], scratch: &mut Scratch) {
    let Scratch { scores, wide } = scratch;
    let spans = &spans[..seen.div_ceil(BLOCK)];
    let width = spans.len() * BLOCK;
    let scale = (head as f32).sqrt().recip();
    scores.clear();
    scores.resize(queries.len() / head * width, 0.0);
    for (index, span) in spans.iter().enumerate() {
        let keys = match span {
            Span::Wide { keys, .. } => keys,
            Span::Narrow { keys, .. } => widened(keys, wide),
        };
        for (query, scores) in queries.chunks_exact(head).zip(scores.chunks_exact_mut(width)) {
            if let Some(scores) = scores[index * BLOCK..].first_chunk_mut() {
                score(query, keys, scale, scores);
            }
        }
    }
    scores.chunks_exact_mut(width).for_each(|scores| soften(&mut scores[..seen]));
    out.fill(0.0);
    for (index, span) in spans.iter().enumerate() {
        let values = match span {
            Span::Wide { values, .. } => values,
            Span::Narrow { values, .. } => widened(values, wide),
        };
        let count = (seen - index * BLOCK).min(BLOCK);
        for (out, scores) in out.chunks_exact_mut(head).zip(scores.chunks_exact(width)) {
            mix(&scores[index * BLOCK..][..count], values, out);
        }
    }
}

#[inline(always)]
fn widened<'a>(narrow: &[u16], wide: &'a mut Vec<f32>) -> &'a [f32] {
    wide.clear();
    wide.extend(narrow.iter().map(|bits| widen(*bits)));
    wide
}

#[inline(always)]
fn score(query: &[f32], keys: &[f32], scale: f32, scores: &mut [f32; BLOCK]) {
    // Two sums, so that one addition need not wait for the one before.
    let mut sums = [[0.0_f32; BLOCK]; 2];
    for (numbers, keys) in query.chunks(2).zip(keys.chunks(2 * BLOCK)) {
        for ((number, keys), sums) in numbers.iter().zip(keys.as_chunks::<BLOCK>().0).zip(&mut sums) {
            for lane in 0..BLOCK {
                sums[lane] = number.mul_add(keys[lane], sums[lane]);
            }
        }
    }
    for lane in 0..BLOCK {
        scores[lane] = (sums[0][lane] + sums[1][lane]) * scale;
    }
}

/// From scores to weights that add up to 1.
#[inline(always)]
fn soften(scores: &mut [f32]) {
    let largest = scores.iter().fold(f32::MIN, |a, b| a.max(*b));
    let mut sums = [0.0; LANES];
    for chunk in scores.chunks_mut(LANES) {
        for (score, sum) in chunk.iter_mut().zip(&mut sums) {
            *score = exp(*score - largest);
            *sum += *score;
        }
    }
    let scale = total(sums).recip();
    scores.iter_mut().for_each(|score| *score *= scale);
}

/// Adds values, each by its weight, one position after the other.
#[inline(always)]
fn mix(weights: &[f32], values: &[f32], out: &mut [f32]) {
    let head = out.len();
    let (chunks, rest) = out.as_chunks_mut::<BLOCK>();
    for (at, out) in chunks.iter_mut().enumerate() {
        let mut sums = *out;
        for (weight, values) in weights.iter().zip(values.chunks_exact(head)) {
            if let Some(values) = values[at * BLOCK..].first_chunk::<BLOCK>() {
                for lane in 0..BLOCK {
                    sums[lane] = weight.mul_add(values[lane], sums[lane]);
                }
            }
        }
        *out = sums;
    }
    let from = head - rest.len();
    for (weight, values) in weights.iter().zip(values.chunks_exact(head)) {
        for (out, value) in rest.iter_mut().zip(&values[from..]) {
            *out = weight.mul_add(*value, *out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::half::narrow;

    /// Keys and values of `count` positions by definition, and in spans.
    fn example(head: usize, count: usize) -> (Vec<Vec<f32>>, Vec<Vec<f32>>, Vec<(Vec<f32>, Vec<f32>)>) {
        let rows = |seed: f32| -> Vec<Vec<f32>> {
            (0..count).map(|p| (0..head).map(|i| ((p * head + i) as f32 * seed).sin()).collect()).collect()
        };
        let (keys, values) = (rows(0.37), rows(0.91));
        let spans = (0..count.div_ceil(BLOCK)).map(|span| {
            let (mut turned, mut plain) = (vec![9e9; head * BLOCK], vec![9e9; head * BLOCK]);
            for p in span * BLOCK..count.min((span + 1) * BLOCK) {
                for i in 0..head {
                    turned[i * BLOCK + p % BLOCK] = keys[p][i];
                    plain[p % BLOCK * head + i] = values[p][i];
                }
            }
            (turned, plain)
        });
        let spans = spans.collect();
        (keys, values, spans)
    }

    #[test]
    fn it_is_the_weighed_mean_and_never_looks_ahead() {
        for (head, count, seen) in [(8, 40, 1), (8, 40, 33), (64, 100, 64), (80, 70, 70)] {
            let (keys, values, spans) = example(head, count);
            let spans: Vec<Span<'_>> = spans.iter().map(|(keys, values)| Span::Wide { keys, values }).collect();
            let queries: Vec<f32> = (0..3 * head).map(|i| (i as f32 * 0.13).cos() * 2.0).collect();
            let mut out = vec![0.0; 3 * head];
            attend(&queries, head, &spans, seen, &mut out, &mut Scratch::default());
            for (query, out) in queries.chunks(head).zip(out.chunks(head)) {
                let dot = |key: &[f32]| query.iter().zip(key).map(|(a, b)| f64::from(a * b)).sum::<f64>();
                let weights: Vec<f64> = keys[..seen].iter().map(|key| (dot(key) / (head as f64).sqrt()).exp()).collect();
                let sum: f64 = weights.iter().sum();
                for (i, out) in out.iter().enumerate() {
                    let expected: f64 = weights.iter().zip(&values).map(|(w, v)| w / sum * f64::from(v[i])).sum();
                    assert!((expected - f64::from(*out)).abs() < 1e-5, "{head} {seen}: {expected} {out}");
                }
            }
            let mut same = vec![0.0; 3 * head];
            attend_inner(&queries, head, &spans, seen, &mut same, &mut Scratch::default());
            assert!(same == out, "the same with other instructions");
        }
    }

    #[test]
    fn half_precision_is_widened() {
        let (_, _, spans) = example(16, 50);
        let halves: Vec<(Vec<u16>, Vec<u16>)> = spans
            .iter()
            .map(|(keys, values)| (keys.iter().map(|x| narrow(*x)).collect(), values.iter().map(|x| narrow(*x)).collect()))
            .collect();
        let rounded: Vec<(Vec<f32>, Vec<f32>)> = halves
            .iter()
            .map(|(keys, values)| (keys.iter().map(|x| widen(*x)).collect(), values.iter().map(|x| widen(*x)).collect()))
            .collect();
        let narrow: Vec<Span<'_>> = halves.iter().map(|(keys, values)| Span::Narrow { keys, values }).collect();
        let wide: Vec<Span<'_>> = rounded.iter().map(|(keys, values)| Span::Wide { keys, values }).collect();
        let query: Vec<f32> = (0..16).map(|i| i as f32 / 16.0).collect();
        let (mut a, mut b) = (vec![0.0; 16], vec![0.0; 16]);
        attend(&query, 16, &narrow, 50, &mut a, &mut Scratch::default());
        attend(&query, 16, &wide, 50, &mut b, &mut Scratch::default());
        assert!(a == b);
    }
}
