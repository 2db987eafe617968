//! The probe's kernels on an open device. Each result is checked before its speed counts: some drivers are fast and wrong.

use super::super::listing::RawRates;
use super::REPEATS;
use super::device::{Bench, Fault, Kernel};
use wgpu::Buffer;

/// How long one sample takes at least: a thousand times what handing it over takes.
const SAMPLE_S: f64 = 0.02;
/// Most work in one sample, as repetitions of the smallest.
const TIMES_MAX: u32 = 1 << 16;
/// Invocations of the kernel of multiply-adds.
const LANES: u32 = 1 << 18;
/// Multiply-adds of one invocation in one round, each two operations.
const OPERATIONS: f64 = 2.0 * 32.0;
/// Bytes of each buffer of the triad, at most: more than the caches of any card. Boards give less.
const TRIAD_MAX: u64 = 256 << 20;
/// Bytes that are sent to and fro.
const TRANSFER: usize = 32 << 20;
/// Bytes of one piece of a pattern.
const PIECE: usize = 4 << 20;
/// Bytes of the places where a large result is looked at.
const LOOK: usize = 4_096;

/// Everything, the most telling first, as long as there is time.
pub(super) fn all(bench: &Bench, rates: &mut RawRates) -> Result<(), Fault> {
    rates.matmul_f32 = matmul(bench, "matmul f32", false)?;
    rates.bandwidth = triad(bench)?;
    rates.fma = fma(bench)?;
    if bench.halves() {
        rates.matmul_f16 = matmul(bench, "matmul f16", true)?;
    }
    transfer(bench, rates)?;
    rates.launch = launch(bench)?;
    Ok(())
}

/// Samples of a kernel that does `each` of something at a time, as rates.
fn sampled(bench: &Bench, kernel: &Kernel<'_>, each: f64) -> Result<Vec<f64>, Fault> {
    let mut times = 1;
    // The first one compiles and wakes up.
    bench.run(kernel, times)?;
    while bench.run(kernel, times)? < SAMPLE_S && times < TIMES_MAX && bench.has_time() {
        times = times.saturating_mul(2);
    }
    let mut samples = Vec::new();
    while samples.len() < REPEATS && (samples.is_empty() || bench.has_time()) {
        samples.push(f64::from(times) * each / bench.run(kernel, times)?);
    }
    Ok(samples)
}

fn fma(bench: &Bench) -> Result<Vec<f64>, Fault> {
    const NAME: &str = "fma";
    if !bench.has_time() {
        return Ok(Vec::new());
    }
    let (pipeline, sums) = (bench.pipeline(include_str!("fma.wgsl")), bench.storage(u64::from(LANES) * 4));
    let bind = |rounds| bench.bind(&pipeline, &[&bench.params([rounds, 0, 0, 0]), &sums]);
    let groups = (LANES / 256, 1);
    // Few rounds, since many end at the same number whatever they began with.
    let few = 97;
    let group = bind(few);
    bench.run(&Kernel { name: NAME, pipeline: &pipeline, group: &group, groups }, 1)?;
    let mut read = vec![0_u8; LOOK];
    bench.read(NAME, &sums, 0, &bench.staging(LOOK as u64), &mut read)?;
    for (lane, bytes) in (0_u16..).zip(read.as_chunks::<4>().0) {
        let (got, want) = (f32::from_le_bytes(*bytes), chain(lane, few));
        let close = (got - want).abs() <= 1e-3 * want.abs();
        if !close {
            return Err(Fault::Wrong(NAME));
        }
    }
    let rounds = 512;
    let group = bind(rounds);
    let kernel = Kernel { name: NAME, pipeline: &pipeline, group: &group, groups };
    sampled(bench, &kernel, f64::from(LANES) * f64::from(rounds) * OPERATIONS)
}

/// What one invocation of the kernel of multiply-adds gives.
fn chain(lane: u16, rounds: u32) -> f32 {
    let start = f32::from(lane % 1_024) / 1_024.0;
    let one = |step: u8| {
        let first = start + f32::from(step / 4) + f32::from(step % 4) / 4.0;
        (0..rounds).fold(first, |x, _| x.mul_add(0.999_023_44, 0.000_976_562_5))
    };
    (0..32).map(one).sum()
}

/// Numbers that both precisions hold exactly, and whose sums do too. By row and column.
fn number(row: usize, column: usize) -> f32 {
    let mixed = (row * 7 + column * 13 + row * column) % 16;
    f32::from(u8::try_from(mixed).unwrap_or_default()) / 8.0 - 1.0
}

fn matmul(bench: &Bench, name: &'static str, halves: bool) -> Result<Vec<f64>, Fault> {
    let mut samples = Vec::new();
    let source = include_str!("matmul.wgsl").replace("NUMBER", if halves { "f16" } else { "f32" });
    let pipeline = bench.pipeline(&if halves { format!("enable f16;\n{source}") } else { source });
    for n in [512_u32, 1_024, 2_048] {
        if !bench.has_time() {
            break;
        }
        let side = n as usize;
        let numbers: Vec<f32> = (0..side * side).map(|at| number(at / side, at % side)).collect();
        let (left, product) = (matrix(bench, &numbers, halves), bench.storage(u64::from(n) * u64::from(n) * 4));
        let group = bench.bind(&pipeline, &[&bench.params([n, 0, 0, 0]), &left, &left, &product]);
        let kernel = Kernel { name, pipeline: &pipeline, group: &group, groups: (n / 64, n / 64) };
        bench.run(&kernel, 1)?;
        let once = bench.run(&kernel, 1)?;
        // Larger ones tell more of fast devices, and would keep slow ones for seconds.
        if n < 2_048 && once < SAMPLE_S / 8.0 {
            continue;
        }
        check_product(bench, name, &product, &numbers, side)?;
        samples = sampled(bench, &kernel, 2.0 * f64::from(n).powi(3))?;
        break;
    }
    Ok(samples)
}

fn matrix(bench: &Bench, numbers: &[f32], halves: bool) -> Buffer {
    let bytes: Vec<u8> = if halves {
        numbers.iter().flat_map(|number| half(*number).to_le_bytes()).collect()
    } else {
        bytemuck::cast_slice(numbers).to_vec()
    };
    let buffer = bench.storage(bytes.len() as u64);
    bench.queue.write_buffer(&buffer, 0, &bytes);
    buffer
}

/// One of our small eighths in half precision.
fn half(number: f32) -> u16 {
    let bits = number.to_bits();
    if number == 0.0 {
        return 0;
    }
    let exponent = ((bits >> 23) & 0xff) as u16;
    ((bits >> 16) as u16 & 0x8000) | (exponent.saturating_sub(112) << 10) | ((bits >> 13) as u16 & 0x3ff)
}

/// The whole product, multiplied by a vector: right only if every row is. Freivalds' check, exact here but for the last bits.
fn check_product(bench: &Bench, name: &'static str, product: &Buffer, numbers: &[f32], side: usize) -> Result<(), Fault> {
    let mut bytes = vec![0_u8; side * side * 4];
    bench.read(name, product, 0, &bench.staging(bytes.len() as u64), &mut bytes)?;
    let signs: Vec<f64> = (0..side).map(|at| if (at * at + at / 3).is_multiple_of(2) { 1.0 } else { -1.0 }).collect();
    let times = |row: &[f32], vector: &[f64]| row.iter().zip(vector).map(|(a, b)| f64::from(*a) * b).sum::<f64>();
    let inner: Vec<f64> = numbers.chunks_exact(side).map(|row| times(row, &signs)).collect();
    let got: &[f32] = &bytes.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect::<Vec<_>>();
    let right = numbers.chunks_exact(side).zip(got.chunks_exact(side)).all(|(row, got)| {
        let (want, got) = (times(row, &inner), times(got, &signs));
        (want - got).abs() <= 0.01 * side as f64
    });
    if right { Ok(()) } else { Err(Fault::Wrong(name)) }
}

fn pattern(bytes: usize) -> Vec<f32> {
    (0_u8..251).cycle().take(bytes / 4).map(f32::from).collect()
}

fn triad(bench: &Bench) -> Result<Vec<f64>, Fault> {
    const NAME: &str = "triad";
    if !bench.has_time() {
        return Ok(Vec::new());
    }
    let limits = bench.device.limits();
    let piece = PIECE as u64;
    let most = TRIAD_MAX.min(limits.max_storage_buffer_binding_size).min(limits.max_buffer_size);
    let bytes = (most / piece).max(1) * piece;
    let [x, y, z] = [(); 3].map(|()| bench.storage(bytes));
    let numbers = pattern(PIECE);
    for at in (0..bytes).step_by(PIECE) {
        bench.queue.write_buffer(&x, at, bytemuck::cast_slice(&numbers));
        bench.queue.write_buffer(&y, at, bytemuck::cast_slice(&numbers));
        // Each write waits in memory of this process until it is handed over.
        bench.queue.submit([]);
        bench.done(NAME)?;
    }
    let pipeline = bench.pipeline(include_str!("triad.wgsl"));
    let vectors = u32::try_from(bytes / 16).unwrap_or(u32::MAX);
    let groups = 4_096;
    let group = bench.bind(&pipeline, &[&bench.params([vectors, groups * 256, 0, 0]), &x, &y, &z]);
    let kernel = Kernel { name: NAME, pipeline: &pipeline, group: &group, groups: (groups, 1) };
    bench.run(&kernel, 1)?;
    let staging = bench.staging(LOOK as u64);
    for at in [0, bytes / 2, bytes - LOOK as u64] {
        let mut read = vec![0_u8; LOOK];
        bench.read(NAME, &z, at, &staging, &mut read)?;
        let first = usize::try_from(at % piece / 4).unwrap_or_default();
        let got = read.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
        if !got.zip(numbers.iter().skip(first)).all(|(got, number)| got == 4.0 * number) {
            return Err(Fault::Wrong(NAME));
        }
    }
    sampled(bench, &kernel, 3.0 * bytes as f64)
}

fn transfer(bench: &Bench, rates: &mut RawRates) -> Result<(), Fault> {
    const NAME: &str = "upload and download";
    let (numbers, buffer) = (pattern(TRANSFER), bench.storage(TRANSFER as u64));
    let (bytes, staging) = (bytemuck::cast_slice::<f32, u8>(&numbers), bench.staging(TRANSFER as u64));
    let mut back = vec![0_u8; TRANSFER];
    // The first one finds nothing allocated.
    for repeat in 0..=REPEATS {
        if !bench.has_time() {
            break;
        }
        let begun = std::time::Instant::now();
        bench.queue.write_buffer(&buffer, 0, bytes);
        bench.queue.submit([]);
        bench.done(NAME)?;
        let sent = begun.elapsed();
        bench.read(NAME, &buffer, 0, &staging, &mut back)?;
        if back != bytes {
            return Err(Fault::Wrong(NAME));
        }
        if repeat > 0 {
            rates.upload.push(TRANSFER as f64 / sent.as_secs_f64());
            rates.download.push(TRANSFER as f64 / (begun.elapsed() - sent).as_secs_f64());
        }
    }
    Ok(())
}

/// The least work there is.
fn launch(bench: &Bench) -> Result<Vec<f64>, Fault> {
    let (pipeline, sums) = (bench.pipeline(include_str!("fma.wgsl")), bench.storage(256 * 4));
    let group = bench.bind(&pipeline, &[&bench.params([1, 0, 0, 0]), &sums]);
    let kernel = Kernel { name: "launch", pipeline: &pipeline, group: &group, groups: (1, 1) };
    let mut samples = Vec::new();
    while samples.len() < 8 * REPEATS && bench.has_time() {
        samples.push(bench.run(&kernel, 1)?);
    }
    // A launch that another program held up is no property of the device: the middle half is kept.
    samples.sort_by(f64::total_cmp);
    let quarter = samples.len() / 4;
    Ok(samples.get(quarter..samples.len() - quarter).unwrap_or_default().to_vec())
}
