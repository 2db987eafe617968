//! The CPU at the same kernels, with all the threads that this process may have. What is faster than this is an accelerator.
//!
//! Each thread counts by the time that it ran, not by the clock on the wall: beside other work a process of lowest priority runs seldom,
//! and a CPU that is busy is no slow one.

use super::super::listing::RawRates;
use super::REPEATS;
use crate::probe::ran::Ran;
use edge_kernels::{Floats, alone};
use std::thread;
use std::time::{Duration, Instant};

/// Side of the matrices that each thread multiplies: they fit the cache of one core.
const SIDE: usize = 256;
/// Numbers in each of three buffers, 16 MiB each: together more than most caches.
const NUMBERS: usize = 4 << 20;
/// How long each thread runs for one repetition: so much more than one call takes that the clock's steps are nothing beside it.
const RUN: Duration = Duration::from_millis(25);
/// And how long that may last on the wall.
const WALL_MAX: Duration = Duration::from_millis(150);

/// Measures. About half a second, and at most two.
pub(super) fn rates() -> RawRates {
    RawRates { matmul_f32: matmul(), bandwidth: triad(), ..RawRates::default() }
}

fn threads() -> usize {
    thread::available_parallelism().map_or(1, std::num::NonZero::get)
}

/// The rate of one thread that does `each` of something at a time.
fn alone_rate(each: f64, mut once: impl FnMut()) -> f64 {
    // The first one finds caches cold.
    once();
    let (begun, ran, mut done) = (Instant::now(), Ran::begin(), 0.0);
    loop {
        once();
        done += each;
        let so_far = ran.so_far();
        if so_far >= RUN || begun.elapsed() >= WALL_MAX {
            return done / so_far.as_secs_f64().max(1e-9);
        }
    }
}

fn matmul() -> Vec<f64> {
    let numbers: Vec<f32> = (0_u8..251).cycle().take(SIDE * SIDE).map(|n| f32::from(n % 16) / 8.0 - 1.0).collect();
    let matrix = Floats::pack(&numbers, SIDE);
    let one = || {
        let mut out = vec![0.0; SIDE * SIDE];
        alone_rate(2.0 * (SIDE * SIDE * SIDE) as f64, || matrix.multiply(&numbers, &mut out, &alone))
    };
    let sample = |_| {
        thread::scope(|scope| {
            let running: Vec<_> = (0..threads()).map(|_| scope.spawn(one)).collect();
            running.into_iter().filter_map(|thread| thread.join().ok()).sum()
        })
    };
    (0..REPEATS).map(sample).collect()
}

fn triad() -> Vec<f64> {
    let (x, y, mut z) = (vec![1.5_f32; NUMBERS], vec![0.25_f32; NUMBERS], vec![0.0_f32; NUMBERS]);
    let each = NUMBERS.div_ceil(threads());
    let mut sample = |_| {
        thread::scope(|scope| {
            let parts = z.chunks_mut(each).zip(x.chunks(each)).zip(y.chunks(each));
            let running: Vec<_> = parts.map(|((z, x), y)| scope.spawn(move || add(z, x, y))).collect();
            running.into_iter().filter_map(|thread| thread.join().ok()).sum()
        })
    };
    (0..REPEATS).map(&mut sample).collect()
}

/// One thread's part of z = 3 x + y.
fn add(z: &mut [f32], x: &[f32], y: &[f32]) -> f64 {
    alone_rate((3 * 4 * z.len()) as f64, || {
        edge_kernels::triad(z, y, x);
    })
}
