//! The page of `edge-node probe` for people, section by section.

use super::hardware::{MachineReport, section};
use super::report::ProbeReport;
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{ContentArrangement, Table};
use shared::fleet::{Accelerator, Backend, DeviceRates, Dropped, Fact, ProbeState};
use shared::units::Bytes;

/// The whole page.
#[must_use]
pub fn page(report: &ProbeReport) -> String {
    let mut sections = vec![machine(report)];
    sections.push(accelerators(report));
    sections.extend(dropped(&report.dropped));
    sections.extend(hints(&report.hints));
    sections.extend(cost(report));
    sections.join("\n\n")
}

fn machine(report: &ProbeReport) -> String {
    let ProbeReport { machine, temperature, throttled, power, .. } = report.clone();
    let more = |name: &str, value: Option<String>| format!("  {name:<18} {}", value.as_deref().unwrap_or("not known"));
    let system = [more("memory", machine.memory.map(size)), more("system", machine.os.clone())].join("\n");
    format!("{}{system}", section(&MachineReport { machine, temperature, throttled, power }))
}

fn accelerators(report: &ProbeReport) -> String {
    let head = match (&report.probe, report.accelerators.len()) {
        (ProbeState::Failed(why), _) => format!("Accelerators: the probe failed: {why}"),
        (_, 0) => "Accelerators: none. Work runs on the processor.".to_owned(),
        (_, 1) => "Accelerators: one".to_owned(),
        (_, count) => format!("Accelerators: {count}"),
    };
    let mut lines = vec![head];
    lines.extend(report.accelerators.iter().map(described));
    lines.extend(rates(report));
    lines.join("\n")
}

/// What one is, and how much memory it gives, by whom.
pub(crate) fn described(one: &Accelerator) -> String {
    let seen: Vec<_> = one.backends.iter().map(|backend| backend.name()).collect();
    let memory = one.memory.as_ref().map_or_else(
        || "memory unknown".to_owned(),
        |fact| format!("{} of memory for work ({}, trusted {:.0} %)", size(fact.value.bytes()), fact.by, percent(fact)),
    );
    format!("  {}  {}, {}; {memory}; seen by {}", one.id, one.name, one.kind.name(), seen.join(", "))
}

/// Everything measured, side by side: the kernel, and what each made of it.
fn rates(report: &ProbeReport) -> Option<String> {
    let measured: Vec<(&str, &DeviceRates)> = report
        .accelerators
        .iter()
        .map(|one| (one.id.as_str(), &one.rates))
        .chain(report.cpu.iter().map(|cpu| ("CPU, all its threads", cpu)))
        .collect();
    if measured.is_empty() {
        return None;
    }
    let mut table = table();
    table.set_header(std::iter::once("measured").chain(measured.iter().map(|(name, _)| *name)));
    for (what, cell) in KERNELS {
        if measured.iter().any(|(_, rates)| cell(rates).is_some()) {
            let cells = measured.iter().map(|(_, rates)| cell(rates).unwrap_or_else(|| "–".to_owned()));
            table.add_row(std::iter::once(what.to_owned()).chain(cells));
        }
    }
    Some(table.to_string())
}

type Cell = fn(&DeviceRates) -> Option<String>;

const KERNELS: [(&str, Cell); 7] = [
    ("multiply-adds", |rates| rates.fma.as_ref().map(|fact| told(fact, fact.value.get(), "FLOP/s"))),
    ("matrix product, f32", |rates| rates.matmul_f32.as_ref().map(|fact| told(fact, fact.value.get(), "FLOP/s"))),
    ("matrix product, f16", |rates| rates.matmul_f16.as_ref().map(|fact| told(fact, fact.value.get(), "FLOP/s"))),
    ("its own memory", |rates| rates.bandwidth.as_ref().map(|fact| told(fact, fact.value.get(), "B/s"))),
    ("upload", |rates| rates.upload.as_ref().map(|fact| told(fact, fact.value.get(), "B/s"))),
    ("download", |rates| rates.download.as_ref().map(|fact| told(fact, fact.value.get(), "B/s"))),
    ("launch", |rates| rates.launch.as_ref().map(|fact| format!("{} µs ±{:.0} %", fact.value.0, 100.0 - percent(fact)))),
];

fn told<T>(fact: &Fact<T>, value: f64, unit: &str) -> String {
    let (value, prefix) = match value {
        value if value >= 1e12 => (value / 1e12, "T"),
        value if value >= 1e9 => (value / 1e9, "G"),
        value => (value / 1e6, "M"),
    };
    format!("{value:.1} {prefix}{unit} ±{:.0} %", 100.0 - percent(fact))
}

fn percent<T>(fact: &Fact<T>) -> f64 {
    fact.confidence.get() * 100.0
}

fn dropped(dropped: &[Dropped]) -> Option<String> {
    let mut table = table();
    table.set_header(["listed, but no accelerator", "by", "because"]);
    for one in dropped {
        table.add_row([one.name.as_str(), Backend::name(one.backend), one.reason.as_str()]);
    }
    (!dropped.is_empty()).then(|| table.to_string())
}

fn hints(hints: &[String]) -> Option<String> {
    let lines = hints.iter().map(|hint| format!("  * {hint}"));
    (!hints.is_empty()).then(|| format!("What could be done\n{}", lines.collect::<Vec<_>>().join("\n")))
}

fn cost(report: &ProbeReport) -> Option<String> {
    let wall = report.cost.wall?;
    let memory = report.cost.memory.map(|memory| format!(" and {} of memory", size(memory))).unwrap_or_default();
    Some(format!("The probe took {wall}{memory}, in a process of its own that has ended."))
}

pub(crate) fn size(bytes: Bytes) -> String {
    match bytes.as_f64() {
        bytes if bytes >= 1e9 => format!("{:.1} GB", bytes / 1e9),
        bytes => format!("{:.0} MB", bytes / 1e6),
    }
}

fn table() -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_HORIZONTAL_ONLY).set_content_arrangement(ContentArrangement::Dynamic);
    table
}
