//! What the units of a CPU can do at most: loops out of registers and over memory, for whoever measures a machine.
//!
//! They compute nothing that anybody wants. Each says how much it did; how long that took is the caller's to find out.

use crate::float::LANES;
use crate::level::{Level, by_level, level};
use std::hint::black_box;

/// Chains of multiply-adds at once. A unit needs four or five cycles for one and can begin two a cycle, so ten keep it busy.
const CHAINS: usize = 10;
/// The same where the lanes take two registers each, as in AVX2: as many multiply-adds, and they still fit its sixteen registers.
const CHAINS_NARROW: usize = 5;

/// Multiplies and adds `rounds` times in all lanes of all chains. Says how many operations that were, a multiply-add being two.
#[must_use]
pub fn multiply_adds(rounds: u32) -> f64 {
    let chains = if level() == Level::Avx512 { CHAINS } else { CHAINS_NARROW };
    let residue = by_level!(level(), chained, (rounds: u32) -> f32);
    black_box(residue);
    2.0 * LANES as f64 * chains as f64 * f64::from(rounds)
}

#[inline(always)]
fn chained(rounds: u32) -> f32 {
    match level() {
        Level::Avx512 => chains::<CHAINS, true>(rounds),
        Level::Avx2 => chains::<CHAINS_NARROW, true>(rounds),
        // Without the instruction a fused multiply-add is a call of a library: there, what programs use is the pair.
        Level::Plain if cfg!(any(target_arch = "aarch64", target_feature = "fma")) => chains::<CHAINS_NARROW, true>(rounds),
        Level::Plain => chains::<CHAINS_NARROW, false>(rounds),
    }
}

#[inline(always)]
fn chains<const COUNT: usize, const FUSED: bool>(rounds: u32) -> f32 {
    // Towards a fixed point: neither too large nor too small for a normal number, however long it runs.
    let (factor, summand) = (black_box(0.999_f32), black_box(0.001_f32));
    let mut sums = [[1.5_f32; LANES]; COUNT];
    for (chain, lanes) in sums.iter_mut().enumerate() {
        *lanes = [1.0 + chain as f32; LANES];
    }
    for _ in 0..rounds {
        for lanes in &mut sums {
            for lane in lanes {
                *lane = if FUSED { lane.mul_add(factor, summand) } else { *lane * factor + summand };
            }
        }
    }
    sums.iter().flatten().sum()
}

/// Multiplies bytes and sums them in 32 bits, `rounds` times in all lanes. Says how many operations that were, a product with its
/// sum being two.
#[must_use]
pub fn byte_products(rounds: u32) -> f64 {
    #[cfg(target_arch = "x86_64")]
    match level() {
        // SAFETY: the level says that this CPU has the instructions.
        #[expect(unsafe_code, reason = "vector instructions, whose presence was checked")]
        Level::Avx512 => return unsafe { x86::wide(rounds) },
        // SAFETY: as above.
        #[expect(unsafe_code, reason = "vector instructions, whose presence was checked")]
        Level::Avx2 => return unsafe { x86::middle(rounds) },
        Level::Plain => {}
    }
    plain_products(rounds)
}

fn plain_products(rounds: u32) -> f64 {
    const LONG: usize = 1_024;
    let (left, right) = (black_box([3_i8; LONG]), black_box([-5_i8; LONG]));
    let mut sum = 0_i32;
    for _ in 0..rounds.div_ceil(16) {
        let products = black_box(&left).iter().zip(&right).map(|(a, b)| i32::from(*a) * i32::from(*b));
        sum = sum.wrapping_add(products.fold(0, i32::wrapping_add));
    }
    black_box(sum);
    2.0 * LONG as f64 * f64::from(rounds.div_ceil(16))
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::*;
    use std::hint::black_box;

    const CHAINS: usize = 10;

    #[target_feature(enable = "avx512f,avx512bw,avx512vnni")]
    pub(super) fn wide(rounds: u32) -> f64 {
        let (left, right) = (_mm512_set1_epi8(black_box(3)), _mm512_set1_epi8(black_box(-5)));
        let mut sums = [_mm512_setzero_si512(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                *sum = _mm512_dpbusd_epi32(*sum, left, right);
            }
        }
        let all = sums.into_iter().fold(_mm512_setzero_si512(), |all, one| _mm512_add_epi32(all, one));
        black_box(_mm512_reduce_add_epi32(all));
        2.0 * 64.0 * CHAINS as f64 * f64::from(rounds)
    }

    #[target_feature(enable = "avx2")]
    pub(super) fn middle(rounds: u32) -> f64 {
        const CHAINS: usize = 6;
        let (mut left, ones) = (_mm256_set1_epi8(black_box(3)), _mm256_set1_epi16(1));
        let right = _mm256_set1_epi8(black_box(-5));
        let mut sums = [_mm256_setzero_si256(); CHAINS];
        for _ in 0..rounds {
            for sum in &mut sums {
                // One bit changes each time, or the compiler computes the product once.
                left = _mm256_xor_si256(left, ones);
                let pairs = _mm256_maddubs_epi16(left, right);
                *sum = _mm256_add_epi32(*sum, _mm256_madd_epi16(pairs, ones));
            }
        }
        let all = sums.into_iter().fold(_mm256_setzero_si256(), |all, one| _mm256_add_epi32(all, one));
        black_box(_mm256_extract_epi32::<0>(all));
        2.0 * 32.0 * CHAINS as f64 * f64::from(rounds)
    }
}

/// `a = b + 3 * c`. Says how many bytes the three take, as far as they are equally long.
pub fn triad(a: &mut [f32], b: &[f32], c: &[f32]) -> f64 {
    by_level!(level(), triad_inner, (a: &mut [f32], b: &[f32], c: &[f32]));
    let long = a.len().min(b.len()).min(c.len());
    (3 * size_of::<f32>() * long) as f64
}

#[inline(always)]
fn triad_inner(a: &mut [f32], b: &[f32], c: &[f32]) {
    for ((a, b), c) in a.iter_mut().zip(b).zip(c) {
        *a = 3.0_f32 * c + b;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_grows_with_rounds() {
        assert!((multiply_adds(2_000) / multiply_adds(1_000) - 2.0).abs() < 1e-9);
        assert!((byte_products(3_200) / byte_products(1_600) - 2.0).abs() < 1e-9);
        assert!((plain_products(3_200) / plain_products(1_600) - 2.0).abs() < 1e-9);
    }

    #[test]
    fn the_triad_is_one() {
        let (mut a, b, c) = (vec![0.0; 100], vec![1.0; 100], vec![2.0; 100]);
        assert!((triad(&mut a, &b, &c) - 1_200.0).abs() < 1e-9);
        assert!(a.iter().all(|number| (number - 7.0).abs() < 1e-6));
    }
}
