//! Requests as a public trace has them, scaled down to what a small model on a processor can do.

use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tests::report::option;

/// One request to make.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    /// Tokens of the prompt, about.
    pub(crate) prompt: u32,
    /// Most tokens of the answer.
    pub(crate) output: u32,
    /// Seconds after the one before it, as in the trace.
    pub(crate) gap: f64,
    /// The text.
    pub(crate) text: String,
}

/// Words that the vocabulary of the quick start's model has whole, so that a prompt has about the tokens that it should.
const WORDS: &str = "the tide comes in over sand and goes out again while boats wait for wind near old stone walls where people \
    sell fish bread salt rope paper lamps clocks maps letters books chairs tables doors windows paint glass iron wood silver copper \
    water fire earth light night morning summer winter river lake forest field road bridge market station school garden kitchen";

/// Where the trace of the design lies beside a checkout.
pub(crate) fn usual() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or_else(|| Path::new("."));
    root.join("../shared/traces/azure-llm-2023/AzureLLMInferenceTrace_conv.csv.gz")
}

/// So many requests that follow each other in the trace, from a place that the seed draws. The sizes that one in a hundred exceeds
/// become the largest, and what exceeds them is cut.
pub(crate) fn draw(path: &Path, seed: u64, count: usize, most: (u32, u32)) -> Result<Vec<Ask>, Box<dyn Error>> {
    let rows = read(path)?;
    if rows.len() < count + 1 {
        return Err(format!("{} has {} requests, want more than {count}", path.display(), rows.len()).into());
    }
    let scale = |of: fn(&Row) -> u32, most: u32| {
        let mut sizes: Vec<u32> = rows.iter().map(of).collect();
        sizes.sort_unstable();
        f64::from(most) / f64::from(sizes.get(sizes.len() * 99 / 100).copied().unwrap_or(1).max(1))
    };
    let (prompts, outputs) = (scale(|row| row.prompt, most.0), scale(|row| row.output, most.1));
    let mut dice = Dice(seed ^ 0x9e37_79b9_7f4a_7c15);
    let start = dice.below(rows.len() - count);
    let scaled = |size: u32, by: f64, most: u32, least: u32| ((f64::from(size) * by).round() as u32).clamp(least, most);
    let mut asks = Vec::new();
    for pair in rows.get(start..=start + count).unwrap_or_default().windows(2) {
        let [before, row] = pair else { continue };
        let prompt = scaled(row.prompt, prompts, most.0, 8);
        let output = scaled(row.output, outputs, most.1, 4);
        if option("--verbose").is_some() {
            println!("prompt {prompt}, answer {output}, {:.3} s after the one before", row.at - before.at);
        }
        asks.push(Ask { prompt, output, gap: (row.at - before.at).max(0.0), text: text(prompt, &mut dice) });
    }
    let sizes: Vec<String> = asks.iter().map(|ask| format!("{}/{}", ask.prompt, ask.output)).collect();
    println!("prompt/answer tokens from request {start} on: {}", sizes.join(" "));
    Ok(asks)
}

struct Row {
    at: f64,
    prompt: u32,
    output: u32,
}

fn read(path: &Path) -> Result<Vec<Row>, Box<dyn Error>> {
    let bytes = if path.extension().is_some_and(|ending| ending == "gz") {
        let read = Command::new("gzip").arg("-dc").arg(path).stdin(Stdio::null()).output()?;
        if !read.status.success() {
            return Err(format!("gzip cannot read {}: {}", path.display(), String::from_utf8_lossy(&read.stderr)).into());
        }
        read.stdout
    } else {
        std::fs::read(path)?
    };
    let text = String::from_utf8(bytes)?;
    let row = |line: &str| {
        let mut cells = line.trim().split(',');
        let at = seconds(cells.next()?)?;
        Some(Row { at, prompt: cells.next()?.parse().ok()?, output: cells.next()?.parse().ok()? })
    };
    Ok(text.lines().skip(1).filter_map(row).collect())
}

/// Seconds since midnight of `2023-11-16 18:15:46.6805900`. The trace is of one hour of one day.
fn seconds(stamp: &str) -> Option<f64> {
    let mut parts = stamp.split(' ').nth(1)?.split(':').map(str::parse::<f64>);
    let mut next = || parts.next()?.ok();
    Some(next()? * 3_600.0 + next()? * 60.0 + next()?)
}

/// Words that begin like no others, so that no prefix of theirs is known.
fn text(tokens: u32, dice: &mut Dice) -> String {
    let words: Vec<&str> = WORDS.split_whitespace().collect();
    let mut text = String::new();
    for _ in 0..tokens.max(1) {
        text += words.get(dice.below(words.len())).copied().unwrap_or("tide");
        text.push(' ');
    }
    text
}

/// Numbers that a seed determines.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: usize) -> usize {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % end.max(1) as u64) as usize
    }
}
