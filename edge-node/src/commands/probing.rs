//! `edge-node probe`, and the process that it starts.

use super::asking::order;
use super::{CommandError, Settings, show, wait};
use crate::probe::accelerator::{Drill, Orders, child};
use crate::probe::page::page;
use crate::probe::report::{ProbeReport, SCHEMA};
use clap::Args;
use shared::fleet::ProbeState;
use shared_net::say;
use std::path::PathBuf;
use std::time::Duration;

/// What may be wished of `probe`.
#[derive(Debug, Args)]
pub(super) struct Wishes {
    /// As JSON
    #[arg(long)]
    json: bool,
    /// Print the description of that JSON (JSON Schema), and do nothing else
    #[arg(long)]
    schema: bool,
    /// Let the running agent look again, also after failures, and do nothing else
    #[arg(long)]
    renew: bool,
}

/// The arguments of the probe's own process.
#[derive(Debug, Args)]
pub(super) struct ChildTask {
    /// Milliseconds in which to measure
    #[arg(long, default_value_t = 5_000)]
    time_ms: u64,
    /// Measure the CPU even where nothing is to be compared with it
    #[arg(long)]
    always_cpu: bool,
    /// How to go wrong
    #[arg(long, default_value = "off")]
    drill: Drill,
}

impl ChildTask {
    /// Does it.
    pub(super) fn run(self) {
        let task = child::Task { time: Duration::from_millis(self.time_ms), always_cpu: self.always_cpu, drill: self.drill };
        child::run(task, &mut std::io::stdout().lock());
    }
}

/// Measures, and prints what was found. A probe that failed is a failed command.
pub(super) fn probe(wishes: Wishes, settings: &Settings) -> Result<(), CommandError> {
    if wishes.schema {
        say!("{}", SCHEMA.trim_end());
        return Ok(());
    }
    let config = settings.load()?.value;
    if wishes.renew {
        wait(order(&config, "probe"))?;
        say!("the agent looks again; in some seconds: edge-node status{}", settings.arguments());
        return Ok(());
    }
    let models = crate::io::models_folder(&config);
    // Before the first run there is no such folder: then the disk of this one is measured.
    let models = if models.is_dir() { models } else { PathBuf::from(".") };
    let section = config.probe;
    let orders = Orders { program: Orders::own_program(), limit: section.limit(), always_cpu: true, drill: section.drill };
    let report = wait(async { Ok(ProbeReport::make(&orders, models).await) })?;
    show(wishes.json, &report, page(&report))?;
    if matches!(report.probe, ProbeState::Failed(_)) { Err(CommandError::Probe) } else { Ok(()) }
}
