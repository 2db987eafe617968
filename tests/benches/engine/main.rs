//! The engines beside llama.cpp itself: the same file, the same number of threads, one and four requests.
//!
//! Each of the three is a process of its own that answers only when it is its turn, so that they never compute at once, and the number
//! of threads, which is a process's, can be another for each. Options: `--model FILE`, `--rounds N`, `--threads N` (that many only),
//! `--json FILE`.

mod ask;
mod peer;
mod worker;

use std::path::PathBuf;
use tests::report::{Bound, Report, Spread, number, option};
use worker::{Kind, Measure, Workers};

/// Rounds unless told otherwise: an odd number, so that the median is one of them.
const ROUNDS: usize = 7;
/// How many requests at once.
const CROWDS: [usize; 2] = [1, 4];

/// All rounds of one measurement.
#[derive(Clone, Debug)]
struct Series {
    threads: usize,
    kind: Kind,
    measure: Measure,
    crowd: usize,
    rates: Vec<f64>,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let model = option("--model").map_or_else(tests::model, PathBuf::from);
    if let Some(kind) = option("--worker") {
        return worker::serve(kind.parse()?, &model, number("--threads", 1));
    }
    let rounds = number("--rounds", ROUNDS).max(1);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let counts = match option("--threads").and_then(|given| given.parse().ok()) {
        Some(only) => vec![only],
        None if cores >= 2 => vec![1, 2],
        None => vec![1],
    };
    let name = model.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let mut report = Report::begin("bench-engine", &format!("{name}, {rounds} rounds, tokens per second"));
    report.note(
        "llama.cpp computes the file as it is, compiled for x86-64-v3 (AVX2, FMA) on such machines; the engine `llm` holds weights of \
         types without a fast kernel (Q4_1 among them) as Q8_0, made at loading",
    );
    let series = measure(&model, &counts, rounds)?;
    for threads in counts {
        table(&mut report, &series, threads);
        floors(&mut report, &series, threads);
    }
    report.end()?;
    Ok(())
}

/// All measurements, in rounds that alternate between the engines.
fn measure(model: &std::path::Path, counts: &[usize], rounds: usize) -> Result<Vec<Series>, Box<dyn std::error::Error>> {
    let mut all = Vec::new();
    for threads in counts {
        let mut workers = Workers::start(model, *threads)?;
        let mut series: Vec<Series> = Vec::new();
        for measure in Measure::ALL {
            for crowd in CROWDS {
                for kind in Kind::ALL {
                    series.push(Series { threads: *threads, kind, measure, crowd, rates: Vec::new() });
                }
            }
        }
        for round in 0..rounds {
            for block in series.chunks_mut(Kind::ALL.len()) {
                // Whoever is first in one round is last in another.
                let turn = round % block.len();
                block.rotate_left(turn);
                for one in block.iter_mut() {
                    one.rates.push(workers.ask(one.kind, one.measure, one.crowd, round)?);
                }
                block.rotate_right(turn);
            }
        }
        all.append(&mut series);
    }
    Ok(all)
}

fn rates(series: &[Series], threads: usize, kind: Kind, measure: Measure, crowd: usize) -> &[f64] {
    let wanted = |one: &&Series| (one.threads, one.kind, one.measure, one.crowd) == (threads, kind, measure, crowd);
    series.iter().find(wanted).map_or(&[], |one| one.rates.as_slice())
}

fn table(report: &mut Report, series: &[Series], threads: usize) {
    let mut rows = Vec::new();
    for kind in Kind::ALL {
        let mut row = vec![kind.name().to_owned()];
        for measure in Measure::ALL {
            for crowd in CROWDS {
                row.push(Spread::of(rates(series, threads, kind, measure, crowd)).shown(1));
            }
        }
        rows.push(row);
    }
    let head = ["", "prompt, 1 request", "prompt, 4 requests", "decode, 1 request", "decode, 4 requests"];
    report.table(&format!("{threads} thread(s)"), &head, &rows);
}

fn floors(report: &mut Report, series: &[Series], threads: usize) {
    let of = |kind, measure, crowd| rates(series, threads, kind, measure, crowd);
    for (kind, measure, floor) in [
        (Kind::Candle, Measure::Decode, 0.5),
        (Kind::Candle, Measure::Prompt, 0.35),
        (Kind::Speed, Measure::Decode, 0.95),
        (Kind::Speed, Measure::Prompt, 0.95),
    ] {
        for crowd in CROWDS {
            let ratio = Spread::of_ratios(of(kind, measure, crowd), of(Kind::Peer, measure, crowd));
            let what = format!("{} beside llama.cpp, {}, {crowd} request(s), {threads} thread(s)", kind.name(), measure.name());
            report.floor(&what, ratio, Bound::AtLeast(floor));
        }
    }
    for kind in [Kind::Candle, Kind::Speed] {
        let ratio = Spread::of_ratios(of(kind, Measure::Decode, 4), of(kind, Measure::Decode, 1));
        report.floor(&format!("{}, four requests over one, {threads} thread(s)", kind.name()), ratio, Bound::AtLeast(1.8));
    }
    let peer = Spread::of_ratios(of(Kind::Peer, Measure::Decode, 4), of(Kind::Peer, Measure::Decode, 1));
    report.note(&format!("llama.cpp itself, four requests over one: {}", peer.shown(2)));
}
