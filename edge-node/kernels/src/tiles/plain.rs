//! The product in plain loops: what the others must equal bit for bit.

use super::{Line, lines_per_tile};
use crate::activations::{Activations, BLOCK};
use crate::columns::TILE;
use crate::half::widen;

/// The number of a row in a column, before scale and offset.
pub(super) fn number(tile: &[Line], lane: usize, column: usize, nibbles: bool) -> i32 {
    let (line, byte) = if nibbles { (column / 8, column % 4) } else { (column / 4, column % 4) };
    let packed = tile[1 + line].0[4 * lane + byte];
    match (nibbles, column % 8 < 4) {
        (true, true) => i32::from(packed & 0x0f),
        (true, false) => i32::from(packed >> 4),
        (false, _) => i32::from((packed ^ 0x80) as i8),
    }
}

/// Products of some rows, from `first` on, with the sixteen rows of a strip.
pub(super) fn strip(strip: &[Line], nibbles: bool, activations: &Activations, first: usize, sums: &mut [[f32; TILE]]) {
    for (row, sums) in sums.iter_mut().enumerate() {
        let blocks = activations.row(first + row);
        for (tile, block) in strip.chunks_exact(lines_per_tile(nibbles)).zip(blocks) {
            let half = |at: usize| widen(u16::from_le_bytes([tile[0].0[at], tile[0].0[at + 1]]));
            for (lane, sum) in sums.iter_mut().enumerate() {
                let whole: i32 = (0..BLOCK)
                    .map(|column| {
                        let byte = block.quants[column / 4].to_le_bytes()[column % 4] as i8;
                        number(tile, lane, column, nibbles) * i32::from(byte)
                    })
                    .sum();
                *sum = (whole as f32).mul_add(half(2 * lane) * block.scale, *sum);
                *sum = half(32 + 2 * lane).mul_add(block.total, *sum);
            }
        }
    }
}
