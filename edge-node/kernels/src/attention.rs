//! Attention of one token over the keys and values before it.
//!
//! Keys lie turned, so that neighbouring numbers belong to neighbouring positions: a score then needs no sum across a vector. A score
//! depends on its position's key alone, so blocks may be filled further than what a token may see.

use crate::float::{LANES, Lanes, exp, total};
use crate::half::widen;
use crate::level::{by_level, level};

/// Positions in a block of keys and values.
pub const BLOCK: usize = 32;

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

/// For each query of `head` numbers, an even count: the mean of the first `seen` values, weighed by how well their keys answer the query.
///
/// # Panics
/// When the spans do not hold `seen` positions, or sizes do not fit.
pub fn attend(queries: &[f32], head: usize, spans: &[Span<'_>], seen: usize, out: &mut [f32], scratch: &mut Scratch) {
    assert!(
        head > 0 && head.is_multiple_of(2) && queries.len().is_multiple_of(head) && queries.len() == out.len(),
        "whole queries"
    );
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
    // Loops, not closures, here and below: what is not inlined would be compiled without the vector instructions.
    for scores in scores.chunks_exact_mut(width) {
        soften(&mut scores[..seen]);
    }
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
    wide.resize(narrow.len(), 0.0);
    for (wide, bits) in wide.iter_mut().zip(narrow) {
        *wide = widen(*bits);
    }
    wide
}

#[inline(always)]
fn score(query: &[f32], keys: &[f32], scale: f32, scores: &mut [f32; BLOCK]) {
    // Two sums for each position, so that one addition need not wait for the one before.
    let mut sums = [[Lanes::ZERO; BLOCK / LANES]; 2];
    let rows = keys.as_chunks::<LANES>().0.as_chunks::<{ BLOCK / LANES }>().0;
    for (rows, numbers) in rows.as_chunks::<2>().0.iter().zip(query.as_chunks::<2>().0) {
        for half in 0..2 {
            for part in 0..BLOCK / LANES {
                sums[half][part] = sums[half][part].plus(numbers[half], &rows[half][part]);
            }
        }
    }
    let [even, odd] = sums;
    for (part, scores) in scores.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
        for ((score, even), odd) in scores.iter_mut().zip(even[part].0).zip(odd[part].0) {
            *score = (even + odd) * scale;
        }
    }
}

/// From scores to weights that add up to 1.
#[inline(always)]
fn soften(scores: &mut [f32]) {
    let mut largest = [f32::MIN; LANES];
    let (chunks, rest) = scores.as_chunks_mut::<LANES>();
    for chunk in &*chunks {
        for lane in 0..LANES {
            largest[lane] = largest[lane].max(chunk[lane]);
        }
    }
    for (largest, score) in largest.iter_mut().zip(&*rest) {
        *largest = largest.max(*score);
    }
    let mut top = f32::MIN;
    for lane in largest {
        top = top.max(lane);
    }
    let mut sums = [0.0; LANES];
    for chunk in &mut *chunks {
        for lane in 0..LANES {
            chunk[lane] = exp(chunk[lane] - top);
            sums[lane] += chunk[lane];
        }
    }
    for (score, sum) in rest.iter_mut().zip(&mut sums) {
        *score = exp(*score - top);
        *sum += *score;
    }
    let scale = total(sums).recip();
    for score in scores {
        *score *= scale;
    }
}

/// Adds values, each by its weight, one position after the other.
#[inline(always)]
fn mix(weights: &[f32], values: &[f32], out: &mut [f32]) {
    let head = out.len();
    let mut from = 0;
    while from < head {
        from += match (head - from) / LANES {
            4.. => mix_lanes::<4>(weights, values, out, from),
            1.. => mix_lanes::<1>(weights, values, out, from),
            0 => {
                for (weight, values) in weights.iter().zip(values.chunks_exact(head)) {
                    for (out, value) in out[from..].iter_mut().zip(&values[from..]) {
                        *out = weight.mul_add(*value, *out);
                    }
                }
                head - from
            }
        };
    }
}

/// The same for some of a head's numbers, as many as registers hold.
#[inline(always)]
fn mix_lanes<const PARTS: usize>(weights: &[f32], values: &[f32], out: &mut [f32], from: usize) -> usize {
    let head = out.len();
    let mut sums: [Lanes; PARTS] = [Lanes::ZERO; PARTS];
    let out = out[from..].as_chunks_mut::<LANES>().0;
    for part in 0..PARTS {
        sums[part] = Lanes(out[part]);
    }
    for (weight, values) in weights.iter().zip(values.chunks_exact(head)) {
        let values = values[from..].as_chunks::<LANES>().0;
        for part in 0..PARTS {
            sums[part] = sums[part].plus(*weight, &values[part]);
        }
    }
    for part in 0..PARTS {
        out[part] = sums[part].0;
    }
    PARTS * LANES
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::half::narrow;

    /// Keys and values, position by position or span by span.
    type Both<K> = (Vec<K>, Vec<K>);

    /// Keys and values of `count` positions by definition, and in spans.
    fn example(head: usize, count: usize) -> (Both<Vec<f32>>, Vec<Both<f32>>) {
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
        ((keys, values), spans)
    }

    #[test]
    fn it_is_the_weighed_mean_and_never_looks_ahead() {
        for (head, count, seen) in [(8, 40, 1), (8, 40, 33), (64, 100, 64), (80, 70, 70)] {
            let ((keys, values), spans) = example(head, count);
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
        let (_, spans) = example(16, 50);
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
