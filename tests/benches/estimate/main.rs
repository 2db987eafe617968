//! How near predictions come to what requests take: `make bench-estimate`.
//!
//! A real agent with the model of the quick start, asked like any client asks. Sizes and gaps come from a public trace, scaled down; one
//! half of the requests is for learning, the other for judging, one after the other first and then several at once. What was predicted
//! is what the agent's decision said when the request came; what it took is what the agent measured as ingress.
//!
//! Options: `--trace FILE` (or `TIDEGATE_TRACE`), `--requests N`, `--seed N`, `--out FOLDER`, `--json FILE`.

mod drive;
mod plot;
mod trace;

use drive::{Judged, Subject};
use std::path::{Path, PathBuf};
use tests::report::{Bound, Report, Spread, number, option};

/// Requests of each part, unless told otherwise.
const REQUESTS: usize = 60;
/// Longest prompt and answer, in tokens.
const MOST: (u32, u32) = (512, 64);
/// What errors shall stay below in the median, and what they may where the machine itself repeats no better.
const ERROR_MAX: (f64, f64) = (0.20, 0.30);

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = option("--trace").or_else(|| std::env::var("TIDEGATE_TRACE").ok()).map_or_else(trace::usual, PathBuf::from);
    if !path.is_file() {
        println!("skipped: no trace at {} (--trace FILE or TIDEGATE_TRACE names one)", path.display());
        return Ok(());
    }
    let seed = u64::try_from(number("--seed", 1))?;
    let count = number("--requests", REQUESTS).max(4);
    let one_by_one = trace::draw(&path, seed, count, MOST)?;
    let at_once = trace::draw(&path, seed.wrapping_add(1), count, MOST)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut report = Report::begin("estimate", "predicted beside actual times of a real agent, one computing thread");
    report.note(&format!(
        "sizes from {}, seed {seed}, scaled to {} prompt and {} answer tokens at most",
        path.display(),
        MOST.0,
        MOST.1
    ));
    let (alone, crowded, repeats) = runtime.block_on(measure(&mut report, &one_by_one, &at_once))?;
    tell(&mut report, "one after the other", &alone, &repeats);
    tell(&mut report, "up to four at once", &crowded, &repeats);
    let folder = option("--out").map_or_else(|| PathBuf::from("target/bench-estimate"), PathBuf::from);
    write(&folder, &[("alone", &alone), ("at once", &crowded)])?;
    report.note(&format!(
        "every request is in {}, the plot in {}",
        folder.join("estimate.csv").display(),
        folder.join("estimate.svg").display()
    ));
    report.end()?;
    Ok(())
}

type Found = (Vec<Judged>, Vec<Judged>, [Spread; 2]);

async fn measure(
    report: &mut Report,
    one_by_one: &[trace::Ask],
    at_once: &[trace::Ask],
) -> Result<Found, Box<dyn std::error::Error>> {
    let mut subject = Subject::start().await?;
    let survey = subject.until_surveyed().await?;
    report.note(&format!("measured while idle: {survey}"));
    let (alone, repeats) = subject.one_by_one(one_by_one).await?;
    let mean = alone.iter().map(|judged| judged.total).sum::<f64>() / alone.len().max(1) as f64;
    let crowded = subject.at_once(at_once, mean).await?;
    report.note(&format!("of the lengths of answers: {}", subject.lengths().await));
    Ok((alone, crowded, repeats))
}

/// Table and floors of one part.
fn tell(report: &mut Report, title: &str, all: &[Judged], repeats: &[Spread; 2]) {
    let judged: Vec<_> = all.iter().filter(|one| !one.learning).collect();
    let learned = all.len() - judged.len();
    let errors = |pick: fn(&Judged) -> Option<(f64, f64)>| -> Vec<f64> {
        judged.iter().filter_map(|one| pick(one)).map(|(predicted, actual)| (actual / predicted - 1.0).abs()).collect()
    };
    let parts: [(&str, Vec<f64>); 2] = [("first token", errors(|one| one.first)), ("per token", errors(|one| one.token))];
    let row = |(name, errors): &(&str, Vec<f64>)| {
        vec![
            (*name).to_owned(),
            errors.len().to_string(),
            format!("{:.3}", quantile(errors, 0.5)),
            format!("{:.3}", quantile(errors, 0.9)),
        ]
    };
    report.table(
        &format!("{title}: {learned} for learning, {} for judging", judged.len()),
        &["relative error", "requests", "median", "nine in ten below"],
        &parts.iter().map(row).collect::<Vec<_>>(),
    );
    let within =
        judged.iter().filter(|one| one.first_high.is_some_and(|high| one.first.is_some_and(|(_, actual)| actual <= high)));
    report.note(&format!("first tokens within what nine in ten should keep: {} of {}", within.count(), judged.len()));
    for ((name, errors), repeats) in parts.iter().zip(repeats) {
        let own = (repeats.most - repeats.least) / (2.0 * repeats.median);
        let most = own.clamp(ERROR_MAX.0, ERROR_MAX.1);
        report.note(&format!("the same request repeated: {name} within ± {own:.3} of its middle"));
        report.floor(&format!("{title}: median error of {name}"), Spread::of(errors), Bound::AtMost(most));
    }
}

fn quantile(values: &[f64], share: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let last = sorted.len().saturating_sub(1);
    sorted.get((last as f64 * share).round() as usize).copied().unwrap_or(f64::NAN)
}

fn write(folder: &Path, parts: &[(&str, &Vec<Judged>)]) -> std::io::Result<()> {
    std::fs::create_dir_all(folder)?;
    let mut csv = String::from(
        "part,learning,prompt_tokens,output_tokens,in_flight,first_predicted_s,first_actual_s,token_predicted_s,token_actual_s\n",
    );
    for (part, all) in parts {
        all.iter().for_each(|one| csv += &one.row(part));
    }
    std::fs::write(folder.join("estimate.csv"), csv)?;
    let points = |pick: fn(&Judged) -> Option<(f64, f64)>| {
        let of = |all: &Vec<Judged>| all.iter().filter(|one| !one.learning).filter_map(pick).collect::<Vec<_>>();
        parts.iter().map(|(name, all)| ((*name).to_owned(), of(all))).collect::<Vec<_>>()
    };
    let panels = [("time to first token", points(|one| one.first)), ("time per token", points(|one| one.token))];
    std::fs::write(folder.join("estimate.svg"), plot::svg(&panels))
}
