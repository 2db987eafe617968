//! Norms, rotations and gates of rows of numbers.

use crate::level::{by_level, level};

/// Sums run in so many lanes, whatever the width of the instructions.
pub(crate) const LANES: usize = 16;

/// Which numbers of a head are rotated together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// Each even one with the one after it.
    Neighbours,
    /// Each of the first half with the one that is half a head further.
    Halves,
}

/// Divides each row by its root mean square, and multiplies it by `weight`, whose length is a row's.
pub fn norm(rows: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    by_level!(level(), norm_inner, (rows: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]));
}

#[inline(always)]
fn norm_inner(rows: &[f32], weight: &[f32], epsilon: f32, out: &mut [f32]) {
    for (row, out) in rows.chunks_exact(weight.len()).zip(out.chunks_exact_mut(weight.len())) {
        let scale = (squares(row) / row.len() as f32 + epsilon).sqrt().recip();
        for ((out, number), weight) in out.iter_mut().zip(row).zip(weight) {
            *out = number * scale * weight;
        }
    }
}

#[inline(always)]
fn squares(row: &[f32]) -> f32 {
    let mut sums = [0.0_f32; LANES];
    let (chunks, rest) = row.as_chunks::<LANES>();
    for chunk in chunks {
        for (sum, number) in sums.iter_mut().zip(chunk) {
            *sum = number.mul_add(*number, *sum);
        }
    }
    for (sum, number) in sums.iter_mut().zip(rest) {
        *sum = number.mul_add(*number, *sum);
    }
    total(sums)
}

/// The sum of all lanes, in pairs.
#[inline(always)]
pub(crate) fn total(mut lanes: [f32; LANES]) -> f32 {
    let mut count = LANES / 2;
    while count > 0 {
        for lane in 0..count {
            lanes[lane] += lanes[lane + count];
        }
        count /= 2;
    }
    lanes[0]
}

/// Rotates the heads of one row by the angles of its position, of which there are half as many as a head has numbers.
pub fn rotate(row: &mut [f32], cos: &[f32], sin: &[f32], pairing: Pairing) {
    for head in row.chunks_exact_mut(2 * cos.len()) {
        match pairing {
            Pairing::Neighbours => {
                for ((pair, cos), sin) in head.as_chunks_mut::<2>().0.iter_mut().zip(cos).zip(sin) {
                    *pair = turned(*pair, *cos, *sin);
                }
            }
            Pairing::Halves => {
                let (first, second) = head.split_at_mut(cos.len());
                for (((a, b), cos), sin) in first.iter_mut().zip(second).zip(cos).zip(sin) {
                    [*a, *b] = turned([*a, *b], *cos, *sin);
                }
            }
        }
    }
}

fn turned([a, b]: [f32; 2], cos: f32, sin: f32) -> [f32; 2] {
    [a * cos - b * sin, a * sin + b * cos]
}

/// `x / (1 + exp(-x)) * up`, in place of `x`.
pub fn gate(numbers: &mut [f32], up: &[f32]) {
    by_level!(level(), gate_inner, (numbers: &mut [f32], up: &[f32]));
}

#[inline(always)]
fn gate_inner(numbers: &mut [f32], up: &[f32]) {
    for (x, up) in numbers.iter_mut().zip(up) {
        *x = *x / (1.0 + exp(-*x)) * up;
    }
}

/// Adds to each number.
pub fn add(numbers: &mut [f32], others: &[f32]) {
    by_level!(level(), add_inner, (numbers: &mut [f32], others: &[f32]));
}

#[inline(always)]
fn add_inner(numbers: &mut [f32], others: &[f32]) {
    for (number, other) in numbers.iter_mut().zip(others) {
        *number += other;
    }
}

/// Numbers that stay in registers: larger arrays were found to be written to memory and read again at each step.
#[derive(Clone, Copy)]
pub(crate) struct Lanes(pub(crate) [f32; LANES]);

impl Lanes {
    pub(crate) const ZERO: Self = Self([0.0; LANES]);

    /// Adds a multiple of other numbers.
    #[inline(always)]
    pub(crate) fn plus(self, factor: f32, others: &[f32; LANES]) -> Self {
        let mut sums = self.0;
        for lane in 0..LANES {
            sums[lane] = factor.mul_add(others[lane], sums[lane]);
        }
        Self(sums)
    }
}

/// The exponential function within two units of the last place, alike on all machines; what would be too small or too large for a
/// normal number is the smallest or largest one.
#[inline(always)]
pub(crate) fn exp(x: f32) -> f32 {
    const MAGIC: f32 = 12_582_912.0;
    const LN2_HIGH: f32 = 0.693_359_4;
    const LN2_LOW: f32 = -2.121_944_4e-4;
    let x = x.clamp(-87.3, 88.3);
    let shifted = x.mul_add(std::f32::consts::LOG2_E, MAGIC);
    let power = shifted - MAGIC;
    let rest = power.mul_add(-LN2_LOW, power.mul_add(-LN2_HIGH, x));
    let mut series = 1.987_569_1e-4_f32;
    for factor in [1.398_199_9e-3, 8.333_452e-3, 4.166_579_6e-2, 0.166_666_65, 0.5] {
        series = series.mul_add(rest, factor);
    }
    let fraction = series.mul_add(rest * rest, rest) + 1.0;
    let exponent = (shifted.to_bits().wrapping_sub(MAGIC.to_bits())) << 23;
    f32::from_bits(fraction.to_bits().wrapping_add(exponent))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_close() {
        for i in -8_700..8_800 {
            let x = i as f32 / 100.0;
            let exact = f64::from(x).exp();
            assert!((f64::from(exp(x)) - exact).abs() <= 3e-7 * exact, "{x}: {} {exact}", exp(x));
        }
        assert!(exp(-1e9) < 1e-37 && exp(1e9) > 1e38);
    }

    #[test]
    fn rows_are_normed_each_for_itself() {
        let rows: Vec<f32> = (0..60).map(|i| (i as f32).sin()).collect();
        let weight: Vec<f32> = (0..20).map(|i| 1.0 + i as f32 / 10.0).collect();
        let mut out = vec![0.0; 60];
        norm(&rows, &weight, 1e-5, &mut out);
        for (row, out) in rows.chunks(20).zip(out.chunks(20)) {
            let mean: f64 = row.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / 20.0;
            for ((x, w), out) in row.iter().zip(&weight).zip(out) {
                assert!((f64::from(*out) - f64::from(*x) / (mean + 1e-5).sqrt() * f64::from(*w)).abs() < 1e-5);
            }
            let mut single = vec![0.0; 20];
            norm_inner(row, &weight, 1e-5, &mut single);
            assert!(single == out, "the same with other instructions");
        }
    }

    #[test]
    fn pairs_are_rotated() {
        let (cos, sin) = ([0.6, 1.0], [0.8, 0.0]);
        let mut row = [1.0, 2.0, 3.0, 4.0];
        rotate(&mut row, &cos, &sin, Pairing::Neighbours);
        assert_eq!(row, [0.6 - 1.6, 0.8 + 1.2, 3.0, 4.0]);
        let mut row = [1.0, 2.0, 3.0, 4.0];
        rotate(&mut row, &cos, &sin, Pairing::Halves);
        assert_eq!(row, [0.6 - 3.0 * 0.8, 2.0, 0.8 + 3.0 * 0.6, 4.0]);
    }

    #[test]
    fn gates_and_sums() {
        let mut numbers = [-30.0, -1.0, 0.0, 2.0, 30.0];
        gate(&mut numbers, &[1.0, 2.0, 3.0, 4.0, 5.0]);
        for (number, expected) in numbers.iter().zip([-2.807_286e-12, -0.537_882_8, 0.0, 7.046_376, 150.0]) {
            assert!((number - expected).abs() <= 1e-5, "{number} {expected}");
        }
        add(&mut numbers, &[1.0; 5]);
        assert_eq!(numbers[4], 151.0);
    }
}
