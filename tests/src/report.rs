//! What a benchmark prints: the machine, tables, and floors that are held or missed. The same as JSON for programs.
//!
//! Numbers are compared within a round, and rounds alternate between what is compared: whatever else the machine does meets all of
//! them alike. What counts is the median of the ratios of the rounds; the least and the most say how far to believe it.

use serde_json::{Value, json};
use std::fmt::Write as _;
use std::path::PathBuf;

/// The middle of several measurements, and their ends.
#[derive(Clone, Copy, Debug)]
pub struct Spread {
    /// Half lie below.
    pub median: f64,
    /// The least.
    pub least: f64,
    /// The most.
    pub most: f64,
}

impl Spread {
    /// Of at least one measurement.
    #[must_use]
    pub fn of(values: &[f64]) -> Self {
        let mut sorted = values.to_vec();
        sorted.sort_by(f64::total_cmp);
        let at = |index: usize| sorted.get(index).copied().unwrap_or(f64::NAN);
        let half = sorted.len() / 2;
        let median = if sorted.len() % 2 == 1 { at(half) } else { f64::midpoint(at(half.saturating_sub(1)), at(half)) };
        Self { median, least: at(0), most: at(sorted.len().saturating_sub(1)) }
    }

    /// Of the quotients of two rows of measurements, round by round.
    #[must_use]
    pub fn of_ratios(above: &[f64], below: &[f64]) -> Self {
        Self::of(&above.iter().zip(below).map(|(above, below)| above / below).collect::<Vec<_>>())
    }

    /// For a table: the middle and the ends.
    #[must_use]
    pub fn shown(&self, digits: usize) -> String {
        format!("{:.digits$} ({:.digits$}..{:.digits$})", self.median, self.least, self.most)
    }

    fn json(&self) -> Value {
        json!({"median": self.median, "min": self.least, "max": self.most})
    }
}

/// Which side of a floor is the good one.
#[derive(Clone, Copy, Debug)]
pub enum Bound {
    /// What is more misses.
    AtMost(f64),
    /// What is less misses.
    AtLeast(f64),
}

impl Bound {
    fn holds(self, value: f64) -> bool {
        match self {
            Self::AtMost(limit) => value <= limit,
            Self::AtLeast(limit) => value >= limit,
        }
    }

    fn shown(self) -> String {
        match self {
            Self::AtMost(limit) => format!("at most {limit}"),
            Self::AtLeast(limit) => format!("at least {limit}"),
        }
    }
}

/// A report that grows while the benchmark runs.
#[derive(Debug)]
pub struct Report {
    name: &'static str,
    text: String,
    rows: Vec<Value>,
    floors: Vec<Value>,
    missed: usize,
}

impl Report {
    /// Begins with the machine.
    #[must_use]
    pub fn begin(name: &'static str, what: &str) -> Self {
        let machine = machine();
        println!("{name}: {what}\non {machine}");
        Self { name, text: String::new(), rows: vec![json!({"machine": machine})], floors: Vec::new(), missed: 0 }
    }

    /// One table: a head, then rows of as many cells.
    pub fn table(&mut self, title: &str, head: &[&str], rows: &[Vec<String>]) {
        let all = || std::iter::once(head.iter().map(|cell| (*cell).to_owned()).collect()).chain(rows.iter().cloned());
        let width = |column: usize| all().map(|row: Vec<String>| row.get(column).map_or(0, String::len)).max().unwrap_or(0);
        let mut text = format!("\n{title}\n");
        for row in all() {
            for (column, cell) in row.iter().enumerate() {
                let width = width(column);
                // Names to the left, numbers to the right.
                let _ = if column == 0 { write!(text, "  {cell:<width$}") } else { write!(text, "  {cell:>width$}") };
            }
            text.push('\n');
        }
        print!("{text}");
        self.rows.push(json!({"table": title, "head": head, "rows": rows}));
        self.text += &text;
    }

    /// Holds a measurement against a floor.
    pub fn floor(&mut self, what: &str, measured: Spread, bound: Bound) {
        let held = bound.holds(measured.median);
        println!("floor {what}: {}, want {}: {}", measured.shown(3), bound.shown(), if held { "held" } else { "missed" });
        self.missed += usize::from(!held);
        self.floors.push(json!({"floor": what, "measured": measured.json(), "want": bound.shown(), "held": held}));
    }

    /// A sentence that belongs to the numbers.
    pub fn note(&mut self, note: &str) {
        println!("{note}");
        self.rows.push(json!({"note": note}));
    }

    /// Ends the report; writes it where `--json FILE` asked for it.
    ///
    /// # Errors
    /// When that file cannot be written.
    pub fn end(self) -> std::io::Result<()> {
        println!("\n{}: {} floors held, {} missed", self.name, self.floors.len() - self.missed, self.missed);
        if let Some(path) = option("--json").map(PathBuf::from) {
            let whole = json!({"benchmark": self.name, "parts": self.rows, "floors": self.floors});
            std::fs::write(path, format!("{whole:#}\n"))?;
        }
        Ok(())
    }
}

/// The value behind an argument of the command line.
#[must_use]
pub fn option(name: &str) -> Option<String> {
    let mut arguments = std::env::args().skip_while(|argument| argument != name);
    arguments.nth(1)
}

/// The number behind an argument, or what is usual.
#[must_use]
pub fn number(name: &str, usual: usize) -> usize {
    option(name).and_then(|given| given.parse().ok()).unwrap_or(usual)
}

/// The machine in one line.
fn machine() -> String {
    let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
    let field = |text: &str, name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        line.split_once(':').map_or(String::new(), |(_, value)| value.trim().to_owned())
    };
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let memory: u64 = field(&read("/proc/meminfo"), "MemTotal").trim_end_matches(" kB").parse().unwrap_or(0);
    let kernel = read("/proc/sys/kernel/osrelease");
    let load = read("/proc/loadavg").split(' ').next().unwrap_or_default().to_owned();
    let cpu = field(&read("/proc/cpuinfo"), "model name");
    format!("{cores} cores of {cpu}, {} MB, Linux {}, load {load} at the start", memory / 1024, kernel.trim())
}
