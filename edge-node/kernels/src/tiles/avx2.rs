//! The product with AVX2: half a tile at a time.

use super::{Line, TOGETHER, lines_per_tile};
use crate::activations::{Activations, Block};
use crate::columns::TILE;
use std::arch::x86_64::*;

/// Rows of activations at once: there are half as many registers as with AVX-512.
const ROWS_MAX: usize = 4;

/// As [`super::plain::strip`]. The level says that the instructions are there.
pub(super) fn strip(strip: &[Line], nibbles: bool, activations: &Activations, first: usize, sums: &mut [[f32; TILE]]) {
    const { assert!(TOGETHER.is_multiple_of(ROWS_MAX)) };
    for (index, sums) in sums.chunks_mut(ROWS_MAX).enumerate() {
        let first = first + index * ROWS_MAX;
        // SAFETY: only called at the level that has these instructions.
        #[expect(unsafe_code, reason = "vector instructions, whose presence was checked")]
        unsafe {
            match sums.len() {
                1 => rows::<1>(strip, nibbles, activations, first, sums),
                2 => rows::<2>(strip, nibbles, activations, first, sums),
                3 => rows::<3>(strip, nibbles, activations, first, sums),
                _ => rows::<ROWS_MAX>(strip, nibbles, activations, first, sums),
            }
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
fn rows<const ROWS: usize>(strip: &[Line], nibbles: bool, activations: &Activations, first: usize, sums: &mut [[f32; TILE]]) {
    let rows: [&[Block]; ROWS] = std::array::from_fn(|row| activations.row(first + row));
    for half in 0..2 {
        let totals = if nibbles {
            run::<ROWS, true>(strip, half, &rows, activations.per_row())
        } else {
            run::<ROWS, false>(strip, half, &rows, activations.per_row())
        };
        for (sums, total) in sums.iter_mut().zip(totals) {
            store(&mut sums.as_chunks_mut::<8>().0[half], total);
        }
    }
}

#[target_feature(enable = "avx2,fma,f16c")]
#[inline]
fn run<const ROWS: usize, const NIBBLES: bool>(
    strip: &[Line],
    half: usize,
    rows: &[&[Block]; ROWS],
    count: usize,
) -> [__m256; ROWS] {
    let mut totals = [_mm256_setzero_ps(); ROWS];
    let (low, high) = (_mm256_set1_epi8(0x0f), _mm256_set1_epi8(-128));
    let tiles = strip.chunks_exact(lines_per_tile(NIBBLES));
    for (index, tile) in (0..count).zip(tiles) {
        let blocks: [&Block; ROWS] = std::array::from_fn(|row| &rows[row][index]);
        let (scales, offsets) = (halves(&tile[0], 16 * half), halves(&tile[0], 32 + 16 * half));
        let mut wholes = [_mm256_setzero_si256(); ROWS];
        for (line, packed) in tile[1..].iter().enumerate() {
            let packed = load(packed, 32 * half);
            if NIBBLES {
                let (even, odd) = (_mm256_and_si256(packed, low), _mm256_and_si256(_mm256_srli_epi16::<4>(packed), low));
                for row in 0..ROWS {
                    let quants = &blocks[row].quants;
                    // Two products of four bits and a byte, twice, stay far below the limit of 16 bits.
                    let pairs = _mm256_add_epi16(
                        _mm256_maddubs_epi16(even, _mm256_set1_epi32(quants[2 * line % 8])),
                        _mm256_maddubs_epi16(odd, _mm256_set1_epi32(quants[(2 * line + 1) % 8])),
                    );
                    wholes[row] = _mm256_add_epi32(wholes[row], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                }
            } else {
                let signed = _mm256_xor_si256(packed, high);
                let size = _mm256_abs_epi8(signed);
                for row in 0..ROWS {
                    // Sizes times bytes with the sign of both: 128 * 127, twice, is within 16 bits.
                    let bytes = _mm256_sign_epi8(_mm256_set1_epi32(blocks[row].quants[line % 8]), signed);
                    let pairs = _mm256_maddubs_epi16(size, bytes);
                    wholes[row] = _mm256_add_epi32(wholes[row], _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
                }
            }
        }
        for row in 0..ROWS {
            let whole = _mm256_cvtepi32_ps(wholes[row]);
            let scale = _mm256_mul_ps(scales, _mm256_set1_ps(blocks[row].scale));
            totals[row] = _mm256_fmadd_ps(whole, scale, totals[row]);
            totals[row] = _mm256_fmadd_ps(offsets, _mm256_set1_ps(blocks[row].total), totals[row]);
        }
    }
    totals
}

/// Eight half-precision numbers from a byte of the line on.
#[target_feature(enable = "avx2,f16c")]
#[inline]
fn halves(line: &Line, at: usize) -> __m256 {
    let bytes: &[u8; 16] = line.0[at..].first_chunk().unwrap_or(&[0; 16]);
    // SAFETY: there are sixteen bytes.
    #[expect(unsafe_code, reason = "a vector load from an array of its size")]
    _mm256_cvtph_ps(unsafe { _mm_loadu_si128(bytes.as_ptr().cast()) })
}

#[target_feature(enable = "avx2")]
#[inline]
fn load(line: &Line, at: usize) -> __m256i {
    let bytes: &[u8; 32] = line.0[at..].first_chunk().unwrap_or(&[0; 32]);
    // SAFETY: there are 32 bytes.
    #[expect(unsafe_code, reason = "a vector load from an array of its size")]
    unsafe {
        _mm256_loadu_si256(bytes.as_ptr().cast())
    }
}

#[target_feature(enable = "avx2")]
#[inline]
fn store(sums: &mut [f32; 8], total: __m256) {
    // SAFETY: there are eight numbers.
    #[expect(unsafe_code, reason = "a vector store to an array of its size")]
    unsafe {
        _mm256_storeu_ps(sums.as_mut_ptr(), total);
    }
}
