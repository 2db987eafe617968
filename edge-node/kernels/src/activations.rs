//! Rows of numbers, rounded to bytes in blocks of 32 with a scale each: one side of a product with a quantised matrix.

use crate::level::{Level, by_level, level};

/// Numbers in a block. The quantised formats that tiles hold have the same.
pub(crate) const BLOCK: usize = 32;

/// A block of a row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
#[repr(C)]
pub(crate) struct Block {
    /// Four bytes each.
    pub(crate) quants: [i32; BLOCK / 4],
    /// Multiplies the bytes.
    pub(crate) scale: f32,
    /// Sum of the bytes, scaled.
    pub(crate) total: f32,
    /// Sum of the bytes.
    pub(crate) sum: i32,
}

/// Quantised rows.
#[derive(Clone, Debug)]
pub struct Activations {
    blocks: Vec<Block>,
    rows: usize,
    per_row: usize,
}

impl Activations {
    /// Rounds rows of `width` numbers, a multiple of 32.
    ///
    /// # Panics
    /// When the numbers are not whole rows of such a width.
    #[must_use]
    pub fn new(numbers: &[f32], width: usize) -> Self {
        assert!(width > 0 && width.is_multiple_of(BLOCK) && numbers.len().is_multiple_of(width), "rows of blocks");
        let mut blocks = vec![Block::default(); numbers.len() / BLOCK];
        round_all(level(), numbers, &mut blocks);
        Self { blocks, rows: numbers.len() / width, per_row: width / BLOCK }
    }

    /// How many rows.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Blocks of each row.
    pub(crate) fn per_row(&self) -> usize {
        self.per_row
    }

    /// The blocks of a row.
    pub(crate) fn row(&self, row: usize) -> &[Block] {
        &self.blocks[row * self.per_row..][..self.per_row]
    }
}

fn round_all(level: Level, numbers: &[f32], blocks: &mut [Block]) {
    by_level!(level, round_all_inner, (numbers: &[f32], blocks: &mut [Block]));
}

#[inline(always)]
fn round_all_inner(numbers: &[f32], blocks: &mut [Block]) {
    for (numbers, block) in numbers.as_chunks::<BLOCK>().0.iter().zip(blocks) {
        *block = round(numbers);
    }
}

#[inline(always)]
fn round(numbers: &[f32; BLOCK]) -> Block {
    let mut largest = [0.0_f32; 16];
    for i in 0..16 {
        largest[i] = numbers[i].abs().max(numbers[i + 16].abs());
    }
    let mut top = 0.0_f32;
    for lane in largest {
        top = top.max(lane);
    }
    let largest = top;
    let scale = largest / 127.0;
    let inverse = if scale > 0.0 { 127.0 / largest } else { 0.0 };
    // Adding this number leaves the nearest integer in the last bits.
    const MAGIC: f32 = 12_582_912.0;
    let mut bytes = [0_i8; BLOCK];
    let mut sum = 0_i32;
    for i in 0..BLOCK {
        let whole = ((numbers[i] * inverse + MAGIC).to_bits() as i32).wrapping_sub(MAGIC.to_bits() as i32);
        bytes[i] = whole as i8;
        sum += i32::from(whole as i8);
    }
    let mut quants = [0; BLOCK / 4];
    for (quad, bytes) in quants.iter_mut().zip(bytes.as_chunks::<4>().0) {
        let [a, b, c, d] = *bytes;
        *quad = i32::from_le_bytes([a as u8, b as u8, c as u8, d as u8]);
    }
    Block { quants, scale, total: scale * sum as f32, sum }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_rounded_to_a_127th_of_the_largest() {
        let numbers: Vec<f32> = (0..64).map(|i| (i as f32 * 0.7).sin() * 3.0).collect();
        let rows = Activations::new(&numbers, 64);
        assert_eq!((rows.rows(), rows.per_row()), (1, 2));
        for (block, numbers) in rows.row(0).iter().zip(numbers.chunks(BLOCK)) {
            let bytes: Vec<i8> = block.quants.iter().flat_map(|quad| quad.to_le_bytes()).map(|byte| byte as i8).collect();
            assert_eq!(block.sum, bytes.iter().map(|byte| i32::from(*byte)).sum::<i32>());
            for (byte, number) in bytes.iter().zip(numbers) {
                assert!((f32::from(*byte) * block.scale - number).abs() <= block.scale * 0.5001);
            }
        }
    }

    #[test]
    fn all_levels_round_alike_and_zeros_stay_zeros() {
        let numbers: Vec<f32> = (0..256).map(|i| (i as f32 * 1.3).cos() * 1e-3 * i as f32).collect();
        let rounded = |level: Level| {
            let mut blocks = vec![Block::default(); numbers.len() / BLOCK];
            round_all(level, &numbers, &mut blocks);
            blocks
        };
        assert!(rounded(level()) == rounded(Level::Plain));
        assert_eq!(round(&[0.0; BLOCK]), Block::default());
    }
}
