//! The product with AVX-512: one instruction multiplies four columns of sixteen rows.

use super::{Line, TOGETHER, lines_per_tile};
use crate::activations::{Activations, Block};
use crate::columns::TILE;
use std::arch::x86_64::*;

/// As [`super::plain::strip`]. The level says that the instructions are there.
pub(super) fn strip(strip: &[Line], nibbles: bool, activations: &Activations, first: usize, sums: &mut [[f32; TILE]]) {
    // SAFETY: only called at the level that has these instructions.
    #[expect(unsafe_code, reason = "vector instructions, whose presence was checked")]
    unsafe {
        match sums.len() {
            1 => rows::<1>(strip, nibbles, activations, first, sums),
            2 => rows::<2>(strip, nibbles, activations, first, sums),
            3 => rows::<3>(strip, nibbles, activations, first, sums),
            4 => rows::<4>(strip, nibbles, activations, first, sums),
            5 => rows::<5>(strip, nibbles, activations, first, sums),
            6 => rows::<6>(strip, nibbles, activations, first, sums),
            7 => rows::<7>(strip, nibbles, activations, first, sums),
            _ => rows::<TOGETHER>(strip, nibbles, activations, first, sums),
        }
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
fn rows<const ROWS: usize>(strip: &[Line], nibbles: bool, activations: &Activations, first: usize, sums: &mut [[f32; TILE]]) {
    let rows: [&[Block]; ROWS] = std::array::from_fn(|row| activations.row(first + row));
    let totals = if nibbles {
        run::<ROWS, true>(strip, &rows, activations.per_row())
    } else {
        run::<ROWS, false>(strip, &rows, activations.per_row())
    };
    for (sums, total) in sums.iter_mut().zip(totals) {
        store(sums, total);
    }
}

#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx2,fma,f16c")]
#[inline]
fn run<const ROWS: usize, const NIBBLES: bool>(strip: &[Line], rows: &[&[Block]; ROWS], count: usize) -> [__m512; ROWS] {
    let mut totals = [_mm512_setzero_ps(); ROWS];
    let low = _mm512_set1_epi8(0x0f);
    let tiles = strip.chunks_exact(lines_per_tile(NIBBLES));
    for (index, tile) in (0..count).zip(tiles) {
        let blocks: [&Block; ROWS] = std::array::from_fn(|row| &rows[row][index]);
        let head = load(&tile[0]);
        let scales = _mm512_cvtph_ps(_mm512_castsi512_si256(head));
        let offsets = _mm512_cvtph_ps(_mm512_extracti64x4_epi64::<1>(head));
        // Bytes are stored 128 too high: what that adds is taken away beforehand.
        let mut wholes: [__m512i; ROWS] =
            std::array::from_fn(|row| if NIBBLES { _mm512_setzero_si512() } else { _mm512_set1_epi32(-128 * blocks[row].sum) });
        for (line, packed) in tile[1..].iter().enumerate() {
            let packed = load(packed);
            if NIBBLES {
                let (even, odd) = (_mm512_and_si512(packed, low), _mm512_and_si512(_mm512_srli_epi16::<4>(packed), low));
                for row in 0..ROWS {
                    let quants = &blocks[row].quants;
                    wholes[row] = _mm512_dpbusd_epi32(wholes[row], even, _mm512_set1_epi32(quants[2 * line % 8]));
                    wholes[row] = _mm512_dpbusd_epi32(wholes[row], odd, _mm512_set1_epi32(quants[(2 * line + 1) % 8]));
                }
            } else {
                for row in 0..ROWS {
                    wholes[row] = _mm512_dpbusd_epi32(wholes[row], packed, _mm512_set1_epi32(blocks[row].quants[line % 8]));
                }
            }
        }
        for row in 0..ROWS {
            let whole = _mm512_cvtepi32_ps(wholes[row]);
            let scale = _mm512_mul_ps(scales, _mm512_set1_ps(blocks[row].scale));
            totals[row] = _mm512_fmadd_ps(whole, scale, totals[row]);
            totals[row] = _mm512_fmadd_ps(offsets, _mm512_set1_ps(blocks[row].total), totals[row]);
        }
    }
    totals
}

#[target_feature(enable = "avx512f")]
#[inline]
fn load(line: &Line) -> __m512i {
    // SAFETY: a line has 64 bytes.
    #[expect(unsafe_code, reason = "a vector load from a line of its size")]
    unsafe {
        _mm512_load_si512(line.0.as_ptr().cast())
    }
}

#[target_feature(enable = "avx512f")]
#[inline]
fn store(sums: &mut [f32; TILE], total: __m512) {
    // SAFETY: there are sixteen numbers.
    #[expect(unsafe_code, reason = "a vector store to an array of its size")]
    unsafe {
        _mm512_storeu_ps(sums.as_mut_ptr(), total);
    }
}
