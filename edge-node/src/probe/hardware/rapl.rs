//! Counters of energy in processors, as the kernel shows them: millionths of a joule that wrap around.

use super::root::{Root, number, text};
use shared::units::Joules;
use std::path::{Path, PathBuf};

/// Most domains: sockets with their memories.
const DOMAINS_MAX: usize = 32;

/// One counter.
#[derive(Clone, Debug)]
pub(super) struct Domain {
    counter: PathBuf,
    /// Where it wraps around.
    range: f64,
    last: Option<f64>,
}

/// Processors, and their memories where these are counted apart. Not what lies within a processor: it is counted there.
pub(super) fn domains(root: &Root) -> Vec<Domain> {
    let mut domains = Vec::new();
    for folder in root.entries("sys/class/powercap") {
        let name = text(&folder.join("name")).unwrap_or_default();
        if (name.starts_with("package") || name == "dram")
            && let Some(domain) = Domain::at(&folder)
            && domains.len() < DOMAINS_MAX
        {
            domains.push(domain);
        }
    }
    domains
}

impl Domain {
    fn at(folder: &Path) -> Option<Self> {
        let range = number(&folder.join("max_energy_range_uj")).filter(|range| *range > 0.0)?;
        Some(Self { counter: folder.join("energy_uj"), range, last: None })
    }

    /// What it rose since it was last read; absent at the first look, and where it cannot be read (often only root may).
    pub(super) fn risen(&mut self) -> Option<Joules> {
        let now = number(&self.counter).filter(|now| (0.0..=self.range).contains(now));
        let last = std::mem::replace(&mut self.last, now)?;
        let now = now?;
        let risen = if now >= last { now - last } else { now + (self.range - last) };
        Joules::new(risen / 1e6).ok()
    }
}
