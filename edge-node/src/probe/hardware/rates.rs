//! How fast the processor computes and reaches memory: by one thread, and by all that may be used. Each thread counts by the time that
//! it ran, since it gives way to all others; under a quota by the clock on the wall, since then waiting is what limits it.

use super::root::{Root, text};
use crate::probe::ran::Ran;
use shared::units::Fraction;
use std::sync::Barrier;
use std::time::{Duration, Instant};

/// Each rate is measured so often; its value is the middle one.
const REPEATS: usize = 5;
/// How long each measurement runs: long against the clock of a scheduler, and five times seven of them are three seconds.
const WINDOW: Duration = Duration::from_millis(80);
/// The same where a quota gives less than all processors: it is filled up each 100 ms, and a shorter look sees none of it.
const WINDOW_QUOTA: Duration = Duration::from_millis(300);
/// How much longer than its window a measurement may last on the wall, where others have the processors.
const WALL_FACTOR: u32 = 4;
/// Multiply-adds between two looks at the clock: some microseconds of them.
const ROUNDS: u32 = 20_000;
/// Numbers of each array between two looks at the clock: 1 MB of the three together would still fit no first-level cache.
const BLOCK: usize = 256 * 1024;
/// Memory that the triad uses at most, and at least: below, caches would be measured.
const MEMORY_MAX: u64 = 384 << 20;
const MEMORY_MIN: u64 = 12 << 20;
/// Taken for the last-level cache where the system does not say.
const CACHE_USUAL: u64 = 8 << 20;
/// Threads beyond this add nothing to what a machine has of memory or of bounded power.
const THREADS_MAX: usize = 256;

/// A rate per second and how far to trust it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rate {
    /// The middle of the repeats.
    pub value: f64,
    /// One less their relative spread.
    pub confidence: Fraction,
}

/// Rates by one thread and by all.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// By one thread.
    pub thread: Option<Rate>,
    /// By all usable ones.
    pub all: Option<Rate>,
}

/// How to measure.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    /// Threads of `all`.
    pub threads: usize,
    /// Whether a quota gives less than that many processors.
    pub quota: bool,
    /// Memory that could be had, in bytes.
    pub available: Option<u64>,
    /// Size of the last-level cache, in bytes.
    pub cache: Option<u64>,
}

impl Plan {
    /// For this machine.
    #[must_use]
    pub fn of(root: &Root) -> Self {
        let usable = super::cores::usable(root).map(|(cores, _)| cores.get());
        let processors = super::cores::affinity(root);
        // A quota of two and a half needs three threads.
        let wanted = usable.or(processors).unwrap_or(1.0).ceil().max(1.0);
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a small whole number; casts saturate")]
        let threads = (wanted as usize).min(THREADS_MAX);
        Self {
            threads,
            quota: usable.zip(processors).is_some_and(|(usable, processors)| usable < processors),
            available: super::cores::memory_available(root).map(|(bytes, _)| bytes.0),
            cache: cache(root),
        }
    }

    fn window(&self) -> Duration {
        if self.quota { WINDOW_QUOTA } else { WINDOW }
    }

    /// Multiply-adds in single precision, as operations per second.
    #[must_use]
    pub fn f32(&self, go_on: &dyn Fn() -> bool) -> Rates {
        self.compute(go_on, |()| edge_kernels::multiply_adds(ROUNDS))
    }

    /// Products of bytes, as operations per second.
    #[must_use]
    pub fn int8(&self, go_on: &dyn Fn() -> bool) -> Rates {
        self.compute(go_on, |()| edge_kernels::byte_products(ROUNDS))
    }

    fn compute(&self, go_on: &dyn Fn() -> bool, step: impl Fn(&mut ()) -> f64 + Sync) -> Rates {
        let run = |threads: usize| repeated(go_on, || together(vec![(); threads], self, &step));
        Rates { thread: run(1), all: run(self.threads) }
    }

    /// The triad over memory, in bytes per second: those of the three arrays, as the benchmark STREAM counts them.
    #[must_use]
    pub fn memory(&self, go_on: &dyn Fn() -> bool) -> Rates {
        let Some(length) = self.length() else { return Rates::default() };
        let (mut a, b, c) = (vec![0.5_f32; length], vec![1.5_f32; length], vec![2.5_f32; length]);
        let mut run = |threads: usize| {
            let share = length.div_ceil(threads);
            repeated(go_on, || {
                let parts = a.chunks_mut(share).zip(b.chunks(share)).zip(c.chunks(share));
                let parts = parts.map(|((a, b), c)| Part { a, b, c, at: 0 }).collect();
                together(parts, self, &Part::step)
            })
        };
        Rates { thread: run(1), all: run(self.threads) }
    }

    /// Numbers in each array: each four times as long as the last cache, as far as memory allows.
    fn length(&self) -> Option<usize> {
        let wanted = self.cache.unwrap_or(CACHE_USUAL).saturating_mul(12).clamp(4 * MEMORY_MIN, MEMORY_MAX);
        let bytes = wanted.min(self.available.unwrap_or(MEMORY_MAX) / 8);
        (bytes >= MEMORY_MIN).then(|| usize::try_from(bytes / 12).ok()).flatten()
    }
}

/// What one thread has of the three arrays.
struct Part<'a> {
    a: &'a mut [f32],
    b: &'a [f32],
    c: &'a [f32],
    at: usize,
}

impl Part<'_> {
    fn step(&mut self) -> f64 {
        let end = (self.at + BLOCK).min(self.a.len());
        let range = self.at..end;
        self.at = if end == self.a.len() { 0 } else { end };
        let (Some(a), Some(b), Some(c)) = (self.a.get_mut(range.clone()), self.b.get(range.clone()), self.c.get(range)) else {
            return 0.0;
        };
        edge_kernels::triad(a, b, c)
    }
}

/// The size of the largest cache of the first processor.
fn cache(root: &Root) -> Option<u64> {
    let sizes = root.entries("sys/devices/system/cpu/cpu0/cache").into_iter().filter_map(|index| {
        let text = text(&index.join("size"))?;
        text.strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
    });
    sizes.max().filter(|bytes| *bytes > 0)
}

/// Does the same with each item on a thread of its own, all at once, for a window. Gives the sum of their rates.
fn together<T: Send>(items: Vec<T>, plan: &Plan, step: &(impl Fn(&mut T) -> f64 + Sync)) -> Option<f64> {
    let barrier = Barrier::new(items.len());
    let run = |mut item: T| {
        barrier.wait();
        let (begin, ran, mut done) = (Instant::now(), Ran::begin(), 0.0);
        loop {
            done += step(&mut item);
            let passed = if plan.quota { begin.elapsed() } else { ran.so_far() };
            if passed >= plan.window() || begin.elapsed() >= plan.window() * WALL_FACTOR {
                return done / passed.as_secs_f64();
            }
        }
    };
    let rates = std::thread::scope(|scope| {
        let run = &run;
        let threads: Vec<_> = items.into_iter().map(|item| scope.spawn(move || run(item))).collect();
        threads.into_iter().map(|thread| thread.join().ok()).collect::<Option<Vec<f64>>>()
    });
    rates.map(|rates| rates.into_iter().sum()).filter(|rate: &f64| rate.is_finite() && *rate > 0.0)
}

fn repeated(go_on: &dyn Fn() -> bool, mut once: impl FnMut() -> Option<f64>) -> Option<Rate> {
    let mut rates = Vec::new();
    // The first one wakes the clock up.
    once()?;
    for _ in 0..REPEATS {
        if !go_on() {
            return None;
        }
        rates.push(once()?);
    }
    rates.sort_by(f64::total_cmp);
    let (least, middle, most) = (*rates.first()?, *rates.get(rates.len() / 2)?, *rates.last()?);
    let confidence = Fraction::new((1.0 - (most - least) / middle).clamp(0.0, 1.0)).ok()?;
    Some(Rate { value: middle, confidence })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_stopped_is_absent_and_what_runs_is_more_than_nothing() {
        let plan = Plan { threads: 2, quota: false, available: Some(1 << 30), cache: Some(1 << 20) };
        assert_eq!(plan.f32(&|| false), Rates::default());
        let rates = plan.memory(&|| true);
        assert!(rates.thread.is_some_and(|rate| rate.value > 1e6), "{rates:?}");
    }

    #[test]
    fn a_machine_without_memory_to_spare_is_not_filled() {
        let plan = Plan { threads: 1, quota: false, available: Some(64 << 20), cache: None };
        assert_eq!(plan.length(), None);
        let plan = Plan { available: Some(1 << 30), ..plan };
        assert!(plan.length().is_some_and(|length| length * 12 <= (128 << 20)));
    }
}
