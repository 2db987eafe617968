//! Quantised matrices, laid out so that one load brings four columns of sixteen rows.
//!
//! A tile holds sixteen rows of a block of 32 columns: sixteen scales and sixteen offsets in half precision, then the numbers, four
//! neighbouring columns of each row in turn. A weight is `scale * number + offset`, the number being four bits without a sign or a
//! byte with one. Each quantised format with blocks of 32 is held exactly.

#[cfg(target_arch = "x86_64")]
mod avx2;
#[cfg(target_arch = "x86_64")]
mod avx512;
mod plain;

use crate::Spread;
use crate::activations::{Activations, BLOCK};
use crate::columns::{Column, Columns, TILE};
use crate::half::{narrow, widen};
use crate::level::{Level, level};
use std::ops::Range;

/// Rows of activations that pass a tile at once: so many accumulators, and the tile's numbers, fit the registers.
const TOGETHER: usize = 8;

/// Quantised formats that tiles hold: blocks of 32 numbers, as GGUF files store them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocks {
    /// Four bits and a scale.
    Q4_0,
    /// Four bits, a scale and an offset.
    Q4_1,
    /// Five bits and a scale.
    Q5_0,
    /// Five bits, a scale and an offset.
    Q5_1,
    /// Bytes and a scale.
    Q8_0,
}

/// Bytes that are no matrix of this shape.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{bytes} bytes for {rows} rows of {width} numbers, want {wanted} and a width in blocks of 32")]
pub struct Malformed {
    bytes: usize,
    rows: usize,
    width: usize,
    wanted: usize,
}

/// A cache line, so that no load crosses two.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
pub(crate) struct Line(pub(crate) [u8; 64]);

/// A quantised matrix.
#[derive(Clone)]
pub struct Tiles {
    lines: Vec<Line>,
    rows: usize,
    width: usize,
    nibbles: bool,
}

impl std::fmt::Debug for Tiles {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tiles").field("rows", &self.rows).field("width", &self.width).finish_non_exhaustive()
    }
}

impl Blocks {
    /// Bytes of a block.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::Q4_0 => 18,
            Self::Q4_1 => 20,
            Self::Q5_0 => 22,
            Self::Q5_1 => 24,
            Self::Q8_0 => 34,
        }
    }

    const fn nibbles(self) -> bool {
        matches!(self, Self::Q4_0 | Self::Q4_1)
    }

    /// Memory of a matrix in tiles; saturates.
    #[must_use]
    pub fn tiled_bytes(self, rows: usize, width: usize) -> u64 {
        let tiles = (rows.div_ceil(TILE) as u64).saturating_mul(width.div_ceil(BLOCK) as u64);
        tiles.saturating_mul(64 * lines_per_tile(self.nibbles()) as u64)
    }

    /// Scale, offset and numbers of a block.
    fn unpack(self, block: &[u8]) -> (u16, u16, [u8; BLOCK]) {
        let half = |at: usize| u16::from_le_bytes([block[at], block[at + 1]]);
        let scale = half(0);
        let mut numbers = [0; BLOCK];
        let (offset, quants) = match self {
            // The offset is a power of two times the scale, and so exact.
            Self::Q4_0 => (narrow(widen(scale) * -8.0), &block[2..]),
            Self::Q4_1 | Self::Q5_1 => (half(2), &block[4..]),
            Self::Q5_0 | Self::Q8_0 => (0, &block[2..]),
        };
        match self {
            Self::Q4_0 | Self::Q4_1 => nibbles(quants, &mut numbers),
            Self::Q5_0 | Self::Q5_1 => {
                nibbles(&quants[4..], &mut numbers);
                let high = u32::from_le_bytes([quants[0], quants[1], quants[2], quants[3]]);
                let middle = if self == Self::Q5_0 { 16 } else { 0 };
                for (i, number) in numbers.iter_mut().enumerate() {
                    *number = (*number | ((high >> i & 1) as u8) << 4).wrapping_sub(middle);
                }
            }
            Self::Q8_0 => numbers.copy_from_slice(&quants[..BLOCK]),
        }
        (scale, offset, numbers)
    }
}

/// The first half of a block is in the low bits.
fn nibbles(packed: &[u8], numbers: &mut [u8; BLOCK]) {
    for (i, byte) in packed.iter().take(BLOCK / 2).enumerate() {
        numbers[i] = byte & 0x0f;
        numbers[i + BLOCK / 2] = byte >> 4;
    }
}

/// One line of scales and offsets, then the numbers.
const fn lines_per_tile(nibbles: bool) -> usize {
    if nibbles { 5 } else { 9 }
}

impl Tiles {
    /// Lays out a matrix of `rows` rows from the blocks of a file.
    ///
    /// # Errors
    /// [`Malformed`] when the bytes are not those of such a matrix.
    pub fn pack(form: Blocks, bytes: &[u8], rows: usize, width: usize) -> Result<Self, Malformed> {
        let wanted = rows.saturating_mul(width / BLOCK).saturating_mul(form.bytes());
        if width == 0 || !width.is_multiple_of(BLOCK) || bytes.len() != wanted {
            return Err(Malformed { bytes: bytes.len(), rows, width, wanted });
        }
        let (per_row, nibbles) = (width / BLOCK, form.nibbles());
        let lines = vec![Line([0; 64]); rows.div_ceil(TILE) * per_row * lines_per_tile(nibbles)];
        let mut tiles = Self { lines, rows, width, nibbles };
        for (index, block) in bytes.chunks_exact(form.bytes()).enumerate() {
            let (scale, offset, numbers) = form.unpack(block);
            tiles.put(index / per_row, index % per_row, scale, offset, &numbers);
        }
        Ok(tiles)
    }

    fn put(&mut self, row: usize, block: usize, scale: u16, offset: u16, numbers: &[u8; BLOCK]) {
        let (nibbles, lane) = (self.nibbles, row % TILE);
        let tile = self.tile_mut(row / TILE, block);
        tile[0].0[2 * lane..][..2].copy_from_slice(&scale.to_le_bytes());
        tile[0].0[32 + 2 * lane..][..2].copy_from_slice(&offset.to_le_bytes());
        for (line, numbers) in numbers.chunks_exact(if nibbles { 8 } else { 4 }).enumerate() {
            let place = &mut tile[1 + line].0[4 * lane..][..4];
            for (i, byte) in place.iter_mut().enumerate() {
                // Signed bytes are moved up by 128, for an instruction that multiplies unsigned by signed ones.
                *byte = if nibbles { numbers[i] | numbers[i + 4] << 4 } else { numbers[i] ^ 0x80 };
            }
        }
    }

    fn tile_mut(&mut self, tile: usize, block: usize) -> &mut [Line] {
        let size = lines_per_tile(self.nibbles);
        &mut self.lines[(tile * (self.width / BLOCK) + block) * size..][..size]
    }

    /// The tiles of sixteen rows.
    fn strip(&self, tile: usize) -> &[Line] {
        let size = lines_per_tile(self.nibbles) * (self.width / BLOCK);
        &self.lines[tile * size..][..size]
    }

    /// Rows, which are columns of a product.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Numbers of each row.
    #[must_use]
    pub fn width(&self) -> usize {
        self.width
    }

    /// Bytes that it takes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.lines.len() * 64
    }

    /// Writes row `row` as numbers.
    ///
    /// # Panics
    /// When there is no such row, or `numbers` has another width.
    pub fn unpack_row(&self, row: usize, numbers: &mut [f32]) {
        assert!(row < self.rows && numbers.len() == self.width, "a row of the matrix");
        let (size, lane) = (lines_per_tile(self.nibbles), row % TILE);
        for (tile, numbers) in self.strip(row / TILE).chunks_exact(size).zip(numbers.as_chunks_mut::<BLOCK>().0) {
            let half = |at: usize| widen(u16::from_le_bytes([tile[0].0[at], tile[0].0[at + 1]]));
            let (scale, offset) = (half(2 * lane), half(32 + 2 * lane));
            for (column, number) in numbers.iter_mut().enumerate() {
                *number = plain::number(tile, lane, column, self.nibbles) as f32 * scale + offset;
            }
        }
    }

    /// The product of each row of `activations` with each row of the matrix; `out` gets a row for each of the former.
    ///
    /// # Panics
    /// When widths or sizes do not fit.
    pub fn multiply(&self, activations: &Activations, out: &mut [f32], spread: Spread<'_>) {
        self.multiply_at(level(), activations, out, spread);
    }

    fn multiply_at(&self, level: Level, activations: &Activations, out: &mut [f32], spread: Spread<'_>) {
        assert!(activations.per_row() * BLOCK == self.width, "rows as wide as the matrix");
        let out = Columns::new(out, activations.rows(), self.rows);
        spread(self.rows.div_ceil(TILE), &|tiles: Range<usize>| {
            for tile in tiles {
                let mut out = out.take(tile);
                for first in (0..activations.rows()).step_by(TOGETHER) {
                    self.strip_product(level, tile, activations, first, &mut out);
                }
            }
        });
    }

    fn strip_product(&self, level: Level, tile: usize, activations: &Activations, first: usize, out: &mut Column<'_>) {
        let strip = self.strip(tile);
        let count = (activations.rows() - first).min(TOGETHER);
        let mut sums = [[0.0; TILE]; TOGETHER];
        let kernel = match level {
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => avx512::strip,
            #[cfg(target_arch = "x86_64")]
            Level::Avx2 => avx2::strip,
            _ => plain::strip,
        };
        kernel(strip, self.nibbles, activations, first, &mut sums[..count]);
        for (row, sums) in sums[..count].iter().enumerate() {
            out.put(first + row, sums);
        }
    }
}

#[cfg(test)]
mod tests;
