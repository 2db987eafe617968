//! The process that touches the hardware: `edge-node probe-child`, started by the agent and by `edge-node probe` alone.
//!
//! It writes one line of JSON for each thing that it saw, so that what was seen before a crash, and where it happened, is known. It
//! makes itself small before the first driver is loaded: lowest priority, no core dump, a bound on its memory, first in line when the
//! machine runs out of it, and dead when its parent is.

use super::listing::{Adapter, Listing, Measured, RawRates, Signs, VendorReading};
use super::run::Drill;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Bytes of private, writable memory that the child may map. Its own buffers are some hundred megabytes at most; drivers with their
/// compilers and threads want up to a gigabyte. What wants more fails to get it, and the child ends.
const MEMORY_MAX: u64 = 4 << 30;

/// One line of the child.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Line {
    /// What is done next, for the reason of a failure.
    Doing(String),
    /// What the system shows.
    Signs(Signs),
    /// A back end listed something.
    Adapter(Adapter),
    /// A vendor's library said something.
    Vendor(VendorReading),
    /// An adapter was measured, or given up.
    Measured(Measured),
    /// The CPU was measured.
    Cpu(RawRates),
    /// All is done. The most memory that was held, in bytes.
    Ended(Option<u64>),
}

impl Line {
    /// Adds what the line says to a listing; true when it was the last.
    pub(super) fn add_to(self, listing: &mut Listing) -> bool {
        match self {
            Self::Doing(_) => {}
            Self::Signs(signs) => listing.signs = signs,
            Self::Adapter(adapter) => listing.adapters.push(adapter),
            Self::Vendor(reading) => listing.vendor.push(reading),
            Self::Measured(measured) => listing.measured.push(measured),
            Self::Cpu(rates) => listing.cpu = Some(rates),
            Self::Ended(peak) => {
                listing.peak_memory = peak;
                return true;
            }
        }
        false
    }
}

/// Where lines go, and what they added up to.
pub(super) struct Told<'a> {
    out: &'a mut dyn Write,
    pub(super) listing: Listing,
}

impl Told<'_> {
    /// Writes a line down. Nobody reads on when the parent is gone, and then there is nothing left to do.
    pub(super) fn line(&mut self, line: Line) {
        let text = serde_json::to_string(&line).unwrap_or_default();
        if writeln!(self.out, "{text}").and_then(|()| self.out.flush()).is_err() {
            std::process::exit(1);
        }
        line.add_to(&mut self.listing);
    }

    pub(super) fn doing(&mut self, what: impl Into<String>) {
        self.line(Line::Doing(what.into()));
    }
}

/// What the child is to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Task {
    /// How long it has; it plans its measurements by that.
    pub time: Duration,
    /// Measure the CPU even where nothing is to be compared with it.
    pub always_cpu: bool,
    /// How to go wrong.
    pub drill: Drill,
}

/// Does it all, and writes to `out`.
pub fn run(task: Task, out: &mut dyn Write) {
    make_small();
    let mut told = Told { out, listing: Listing::default() };
    if task.drill != Drill::Off {
        task.drill.go_wrong(&mut told);
    }
    look(task, &mut told);
    told.line(Line::Ended(peak_memory()));
}

#[cfg(feature = "wgpu")]
fn look(task: Task, told: &mut Told<'_>) {
    super::measure::all(task, told);
}

#[cfg(not(feature = "wgpu"))]
fn look(_task: Task, told: &mut Told<'_>) {
    told.line(Line::Signs(Signs::read(Path::new("/"))));
}

/// None of this can be had everywhere, and the look is worth having without.
fn make_small() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Resource, Rlimit, Signal, nice, set_parent_process_death_signal, setrlimit};
        let limit = |most| Rlimit { current: Some(most), maximum: Some(most) };
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
        let _ = nice(19);
        let _ = setrlimit(Resource::Core, limit(0));
        let _ = setrlimit(Resource::Data, limit(MEMORY_MAX));
        let _ = fs::write("/proc/self/oom_score_adj", "1000");
    }
}

fn peak_memory() -> Option<u64> {
    let text = fs::read_to_string(Path::new("/proc/self/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()?.checked_mul(1_024)
}

impl Drill {
    /// Goes wrong as an operator or a test wishes.
    fn go_wrong(self, told: &mut Told<'_>) {
        told.doing(format!("a drill: {}", self.name()));
        match self {
            Self::Off => {}
            Self::Hang => {
                // With a process of its own, which must not be left behind either.
                let mut own = Command::new("/proc/self/exe");
                let own = own.args(["probe-child", "--drill", "hang-alone"]).stdout(Stdio::null()).spawn();
                told.doing(format!("a drill: hang, with the process {}", own.map_or(0, |child| child.id())));
                hang()
            }
            Self::HangAlone => hang(),
            Self::Crash => std::process::abort(),
            Self::Flood => loop {
                told.doing("x".repeat(1_000));
            },
        }
    }
}

fn hang() -> ! {
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}
