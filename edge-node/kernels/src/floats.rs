//! Matrices of plain numbers, laid out like tiles: sixteen rows side by side.

use crate::Spread;
use crate::columns::{Columns, TILE};
use crate::float::Lanes;
use crate::level::{Level, by_level, level};

/// Rows of the other side that pass a strip at once.
const TOGETHER: usize = 4;

/// A matrix in single precision.
#[derive(Clone)]
pub struct Floats {
    /// Strips of sixteen rows, column by column; what is missing of the last strip is zero.
    lanes: Vec<[f32; TILE]>,
    rows: usize,
    width: usize,
}

impl std::fmt::Debug for Floats {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Floats").field("rows", &self.rows).field("width", &self.width).finish_non_exhaustive()
    }
}

impl Floats {
    /// Lays out rows of `width` numbers.
    ///
    /// # Panics
    /// When the numbers are not whole rows.
    #[must_use]
    pub fn pack(numbers: &[f32], width: usize) -> Self {
        assert!(width > 0 && numbers.len().is_multiple_of(width), "whole rows");
        let rows = numbers.len() / width;
        let mut lanes = vec![[0.0; TILE]; rows.div_ceil(TILE) * width];
        for (row, numbers) in numbers.chunks_exact(width).enumerate() {
            for (lanes, number) in lanes[row / TILE * width..].iter_mut().zip(numbers) {
                lanes[row % TILE] = *number;
            }
        }
        Self { lanes, rows, width }
    }

    /// Memory of such a matrix; saturates.
    #[must_use]
    pub fn packed_bytes(rows: usize, width: usize) -> u64 {
        (rows.div_ceil(TILE) as u64).saturating_mul(width as u64).saturating_mul(4 * TILE as u64)
    }

    /// Rows, which are columns of a product.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Writes row `row`.
    ///
    /// # Panics
    /// When there is no such row, or `numbers` has another width.
    pub fn unpack_row(&self, row: usize, numbers: &mut [f32]) {
        assert!(row < self.rows && numbers.len() == self.width, "a row of the matrix");
        for (number, lanes) in numbers.iter_mut().zip(&self.lanes[row / TILE * self.width..]) {
            *number = lanes[row % TILE];
        }
    }

    /// The product of each row of `numbers` with each row of the matrix; `out` gets a row for each of the former.
    ///
    /// # Panics
    /// When sizes do not fit.
    pub fn multiply(&self, numbers: &[f32], out: &mut [f32], spread: Spread<'_>) {
        self.multiply_at(level(), numbers, out, spread);
    }

    fn multiply_at(&self, level: Level, numbers: &[f32], out: &mut [f32], spread: Spread<'_>) {
        assert!(numbers.len().is_multiple_of(self.width), "rows as wide as the matrix");
        let out = Columns::new(out, numbers.len() / self.width, self.rows);
        spread(self.rows.div_ceil(TILE), &|strips| {
            for strip in strips {
                let mut out = out.take(strip);
                let lanes = &self.lanes[strip * self.width..][..self.width];
                for (index, numbers) in numbers.chunks(TOGETHER * self.width).enumerate() {
                    let mut sums = [[0.0; TILE]; TOGETHER];
                    strip_product(level, lanes, numbers, &mut sums);
                    for (row, sums) in sums[..numbers.len() / self.width].iter().enumerate() {
                        out.put(index * TOGETHER + row, sums);
                    }
                }
            }
        });
    }
}

fn strip_product(level: Level, lanes: &[[f32; TILE]], numbers: &[f32], sums: &mut [[f32; TILE]; TOGETHER]) {
    by_level!(level, strip_inner, (lanes: &[[f32; TILE]], numbers: &[f32], sums: &mut [[f32; TILE]; TOGETHER]));
}

#[inline(always)]
fn strip_inner(lanes: &[[f32; TILE]], numbers: &[f32], sums: &mut [[f32; TILE]; TOGETHER]) {
    let width = lanes.len();
    if numbers.len() == TOGETHER * width {
        let (first, second) = numbers.split_at(2 * width);
        let ((a, b), (c, d)) = (first.split_at(width), second.split_at(width));
        let mut all = [Lanes::ZERO; TOGETHER];
        for ((((lanes, a), b), c), d) in lanes.iter().zip(a).zip(b).zip(c).zip(d) {
            all[0] = all[0].plus(*a, lanes);
            all[1] = all[1].plus(*b, lanes);
            all[2] = all[2].plus(*c, lanes);
            all[3] = all[3].plus(*d, lanes);
        }
        *sums = [all[0].0, all[1].0, all[2].0, all[3].0];
        return;
    }
    for (row, sums) in numbers.chunks_exact(width).zip(sums) {
        let mut sum = Lanes::ZERO;
        for (lanes, number) in lanes.iter().zip(row) {
            sum = sum.plus(*number, lanes);
        }
        *sums = sum.0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alone;

    #[test]
    fn each_row_is_the_exact_product_alone_among_others_and_with_any_instructions() {
        let (rows, width) = (37, 50);
        let matrix: Vec<f32> = (0..rows * width).map(|i| (i as f32 * 0.7).sin()).collect();
        let floats = Floats::pack(&matrix, width);
        let mut row = vec![0.0; width];
        floats.unpack_row(36, &mut row);
        assert_eq!(row, matrix[36 * width..]);
        let input: Vec<f32> = (0..11 * width).map(|i| (i as f32 * 0.3).cos()).collect();
        let run = |level: Level, x: &[f32]| {
            let mut out = vec![f32::NAN; x.len() / width * rows];
            floats.multiply_at(level, x, &mut out, &alone);
            out
        };
        let expected: Vec<f32> = input.chunks(width).flat_map(|row| run(Level::Plain, row)).collect();
        for (x, out) in input.chunks(width).zip(expected.chunks(rows)) {
            for (row, out) in matrix.chunks(width).zip(out) {
                let exact: f64 = x.iter().zip(row).map(|(a, b)| f64::from(*a) * f64::from(*b)).sum();
                assert!((exact - f64::from(*out)).abs() < 1e-4);
            }
        }
        for level in [Level::Plain, Level::Avx2, Level::Avx512].into_iter().filter(|l| *l <= level()) {
            for together in [1, 2, 3, 4, 5, 11] {
                let out: Vec<f32> = input.chunks(together * width).flat_map(|rows| run(level, rows)).collect();
                assert!(out == expected, "{level:?}, {together} at once");
            }
        }
    }
}
