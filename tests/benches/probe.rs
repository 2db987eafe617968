//! What the agent measures of processor and memory, beside likwid-bench: `make bench-probe`.
//!
//! Both compute the same: fused multiply-adds in single precision (`peakflops_sp_*`, two operations each, one load for many of
//! them), and the triad in single precision over arrays far beyond the last cache (`stream_sp_*`, twelve bytes for each element,
//! with ordinary stores). They take turns. Numbers mean something on a machine that does nothing else.

#[path = "kit/process.rs"]
#[expect(dead_code, reason = "this benchmark uses a part of it")]
mod process;

use edge_node::probe::hardware::Root;
use edge_node::probe::hardware::rates::{Plan, Rates};
use process::theirs;
use std::io;
use std::process::Command;
use tests::report::{Bound, Report, Spread, number};

/// How far from the other tool is near enough, unless the repeats of both lie further apart.
const NEAR: f64 = 0.15;

struct Row {
    what: &'static str,
    ours: Vec<f64>,
    theirs: Vec<f64>,
}

fn main() -> io::Result<()> {
    let mut report = Report::begin("probe", "what an agent measures of a machine, beside likwid-bench");
    let (plan, rounds) = (Plan::of(&Root::live()), number("--rounds", 5));
    let level = level();
    let mut rows = ["f32 GFLOP/s, one thread", "f32 GFLOP/s, all", "triad GB/s, one thread", "triad GB/s, all"].map(|what| Row {
        what,
        ours: Vec::new(),
        theirs: Vec::new(),
    });
    for _ in 0..rounds {
        let (compute, memory) = (plan.f32(&|| true), plan.memory(&|| true));
        for (row, threads, rate, kernel, size, field) in [
            (0, 1, thread(compute), format!("peakflops_sp_{level}"), 16, "MFlops/s:"),
            (1, plan.threads, all(compute), format!("peakflops_sp_{level}"), 16 * plan.threads, "MFlops/s:"),
            (2, 1, thread(memory), format!("stream_sp_{level}"), 384 << 10, "MByte/s:"),
            (3, plan.threads, all(memory), format!("stream_sp_{level}"), 384 << 10, "MByte/s:"),
        ] {
            let Some(row) = rows.get_mut::<usize>(row) else { continue };
            row.ours.push(rate);
            row.theirs.push(likwid(&kernel, size, threads, field)? / 1e3);
        }
    }
    show(&mut report, &rows);
    report.end()
}

fn thread(rates: Rates) -> f64 {
    rates.thread.map_or(f64::NAN, |rate| rate.value / 1e9)
}

fn all(rates: Rates) -> f64 {
    rates.all.map_or(f64::NAN, |rate| rate.value / 1e9)
}

/// The kernels of likwid-bench for the instructions that this processor has.
fn level() -> &'static str {
    let flags = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    match (flags.contains("avx512f"), flags.contains(" fma")) {
        (true, _) => "avx512_fma",
        (false, true) => "avx_fma",
        _ => "sse",
    }
}

/// One measurement, of a second, with the working set in kilobytes.
fn likwid(kernel: &str, kilobytes: usize, threads: usize, field: &str) -> io::Result<f64> {
    let work = format!("S0:{kilobytes}kB:{threads}");
    let output = Command::new(theirs("likwid-bench")?).args(["-t", kernel, "-w", &work, "-s", "1"]).output()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let found = text.lines().find_map(|line| line.strip_prefix(field)?.trim().parse().ok());
    found.ok_or_else(|| io::Error::other(format!("likwid-bench -t {kernel} -w {work} did not say {field}")))
}

fn show(report: &mut Report, rows: &[Row]) {
    let cells = rows.iter().map(|row| {
        let ratio = Spread::of_ratios(&row.ours, &row.theirs);
        vec![row.what.to_owned(), Spread::of(&row.ours).shown(1), Spread::of(&row.theirs).shown(1), ratio.shown(3)]
    });
    let cells: Vec<_> = cells.collect();
    report.table("medians of rounds that take turns", &["", "agent", "likwid-bench", "ratio"], &cells);
    for row in rows {
        let width = |values: &[f64]| {
            let spread = Spread::of(values);
            (spread.most - spread.least) / spread.median
        };
        let allowed = NEAR.max(width(&row.ours)).max(width(&row.theirs));
        let off: Vec<_> = row.ours.iter().zip(&row.theirs).map(|(ours, theirs)| (ours / theirs - 1.0).abs()).collect();
        report.floor(&format!("{}: off by", row.what), Spread::of(&off), Bound::AtMost(allowed));
    }
}
