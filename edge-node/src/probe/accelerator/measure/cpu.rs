//! The CPU at the same kernels, with all the threads that this process may have. What is faster than this is an accelerator.

use super::super::listing::RawRates;
use super::REPEATS;
use edge_kernels::Floats;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

/// Side of the matrices: what fits the caches of a board in its tiles, and keeps sixteen cores busy.
const SIDE: usize = 512;
/// Numbers in each of three buffers, 16 MiB each: more than most caches together.
const NUMBERS: usize = 4 << 20;
/// How long one repetition takes at least, so that the clock and starting threads are nothing beside it.
const AT_LEAST: Duration = Duration::from_millis(30);

/// Measures. About half a second.
pub(super) fn rates() -> RawRates {
    RawRates { matmul_f32: matmul(), bandwidth: triad(), ..RawRates::default() }
}

/// Repeats something that returns how much it did; rates in that unit per second.
fn repeated(mut once: impl FnMut() -> f64) -> Vec<f64> {
    // The first one finds caches cold and cores asleep.
    once();
    let sample = |_| {
        let (begun, mut done) = (Instant::now(), 0.0);
        while begun.elapsed() < AT_LEAST {
            done += once();
        }
        done / begun.elapsed().as_secs_f64()
    };
    (0..REPEATS).map(sample).collect()
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

fn spread(count: usize, piece: &(dyn Fn(Range<usize>) + Sync)) {
    let each = count.div_ceil(threads()).max(1);
    thread::scope(|scope| {
        for begin in (0..count).step_by(each) {
            scope.spawn(move || piece(begin..(begin + each).min(count)));
        }
    });
}

fn matmul() -> Vec<f64> {
    let numbers: Vec<f32> = (0_u8..251).cycle().take(SIDE * SIDE).map(|n| f32::from(n % 16) / 8.0 - 1.0).collect();
    let (matrix, mut out) = (Floats::pack(&numbers, SIDE), vec![0.0; SIDE * SIDE]);
    repeated(|| {
        matrix.multiply(&numbers, &mut out, &spread);
        2.0 * (SIDE * SIDE * SIDE) as f64
    })
}

fn triad() -> Vec<f64> {
    let (x, y, mut z) = (vec![1.5_f32; NUMBERS], vec![0.25_f32; NUMBERS], vec![0.0_f32; NUMBERS]);
    let each = NUMBERS.div_ceil(threads());
    repeated(|| {
        thread::scope(|scope| {
            for ((z, x), y) in z.chunks_mut(each).zip(x.chunks(each)).zip(y.chunks(each)) {
                scope.spawn(move || z.iter_mut().zip(x).zip(y).for_each(|((z, x), y)| *z = 3.0 * x + y));
            }
        });
        std::hint::black_box(&z);
        (3 * 4 * NUMBERS) as f64
    })
}
