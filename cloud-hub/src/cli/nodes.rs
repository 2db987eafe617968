//! Commands about nodes, and the list of policies.

use super::CliError;
use super::reach::Reach;
use crate::clock::UnixTime;
use crate::config::Config;
use crate::logic::{NodeRow, ReplicaRow};
use crate::store::{Certified, NodeRow as Registered};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use shared::fleet::{Fact, Telemetry, Transport};
use shared::ids::NodeId;
use shared::policy;
use shared::units::Bytes;
use shared_net::say;
use shared_net::tls::CertClock;
use std::fmt::Write;

pub(super) async fn list(config: &Config, name: Option<&NodeId>, json: bool) -> Result<(), CliError> {
    match Reach::find(config)?.nodes().await? {
        Ok(rows) if name.is_some() => match rows.into_iter().find(|row| Some(&row.node.node) == name) {
            Some(row) if json => say!("{}", serde_json::to_string_pretty(&row).unwrap_or_default()),
            Some(row) => say!("{}", detail(&row.node)),
            None => {
                return Err(CliError::Flag { flag: "NAME", want: "one of the nodes that `cloud-hub nodes` lists".to_owned() });
            }
        },
        Ok(rows) if json => say!("{}", serde_json::to_string_pretty(&rows).unwrap_or_default()),
        Ok(rows) => say!("{}", live(&rows)),
        Err(rows) if json => say!("{}", serde_json::to_string_pretty(&rows).unwrap_or_default()),
        Err(rows) => {
            eprintln!("No hub runs on this state folder: these are the registered nodes, and nothing is known of their state.");
            say!("{}", registered(&rows));
        }
    }
    Ok(())
}

fn labels<'a>(labels: impl IntoIterator<Item = (&'a String, &'a String)>) -> String {
    labels.into_iter().map(|(key, value)| format!("{key}={value}")).collect::<Vec<_>>().join(" ")
}

/// How long the certificate is good: nodes renew by themselves at two thirds, so few days left tell of a node that does not.
fn left(expires: Option<UnixTime>) -> String {
    let Some(expires) = expires else { return "–".to_owned() };
    match UnixTime::now(&CertClock::new(0)).until(expires).as_secs() {
        0 => "expired".to_owned(),
        seconds if seconds < 3_600 => format!("{} min", seconds / 60),
        seconds if seconds < 2 * 86_400 => format!("{} h", seconds / 3_600),
        seconds => format!("{} d", seconds / 86_400),
    }
}

fn replica(row: &ReplicaRow) -> String {
    let part = row.layers.filter(|layers| !layers.is_whole()).map(|layers| format!(", layers {layers}")).unwrap_or_default();
    format!("{} {}/{}{part}", row.variant, row.load.active, row.load.slots)
}

/// Version and hash of what really runs, which after an upgrade is not always what was installed.
fn binary(row: &NodeRow) -> String {
    let Some(inventory) = &row.inventory else { return String::new() };
    let hash: String = inventory.binary_sha256.chars().take(12).collect();
    format!("{} {hash}", inventory.version)
}

/// What a node said of itself; a dash where it did not.
fn told(row: &NodeRow, of: impl Fn(&Telemetry) -> Option<String>) -> String {
    row.telemetry.as_ref().and_then(of).unwrap_or_else(|| "–".to_owned())
}

fn gigabytes(bytes: Bytes) -> String {
    format!("{:.1} GB", bytes.as_f64() / 1e9)
}

/// All that is known of one node's machine, with where it comes from and its age.
fn detail(row: &NodeRow) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(["what", "value", "by", "age"]);
    let report = row.report_age.map_or_else(|| "–".to_owned(), |age| age.to_string());
    let mut line = |what: &str, value: Option<String>, by: &str, age: &str| {
        table.add_row([what, value.as_deref().unwrap_or("not known"), by, age]);
    };
    line("node", Some(row.node.to_string()), "", "");
    line("state", Some(format!("{:?}", row.state).to_lowercase()), "hub", "");
    let known = row.telemetry.clone().unwrap_or_else(|| Telemetry::of(row.node.clone()));
    line("cpu", known.cpu.map(|cpu| format!("{:.0} %", 100.0 * cpu.get())), "system", &report);
    line("load", known.load_1m.map(|load| format!("{load:.2}")), "system", &report);
    line("memory free", known.memory_available.map(gigabytes), "system", &report);
    line("temperature", known.temperature.map(|one| one.to_string()), "sensors", &report);
    line("throttled", known.throttled.map(|one| one.to_string()), "sensors", &report);
    let by = known.power.as_ref().map(|power| format!("{} by {}", power.origin.name(), power.by)).unwrap_or_default();
    line("power", known.power.map(|power| format!("{:.1} W", power.value.get())), &by, &report);
    let Some(inventory) = &row.inventory else { return table };
    line("processor", inventory.machine.cpu.clone(), "system", "");
    line("memory", inventory.machine.memory.map(gigabytes), "system", "");
    let hardware = &inventory.machine.hardware;
    let giga = |value: f64, unit: &str| format!("{:.1} G{unit}", value / 1e9);
    fact(&mut table, "usable cores", hardware.usable.as_ref(), |one| format!("{:.2}", one.get()));
    fact(&mut table, "f32, one thread", hardware.f32_thread.as_ref(), |one| giga(one.get(), "FLOP/s"));
    fact(&mut table, "f32, all", hardware.f32_all.as_ref(), |one| giga(one.get(), "FLOP/s"));
    fact(&mut table, "int8, one thread", hardware.int8_thread.as_ref(), |one| giga(one.get(), "op/s"));
    fact(&mut table, "int8, all", hardware.int8_all.as_ref(), |one| giga(one.get(), "op/s"));
    fact(&mut table, "memory, one thread", hardware.memory_thread.as_ref(), |one| giga(one.get(), "B/s"));
    fact(&mut table, "memory, all", hardware.memory_all.as_ref(), |one| giga(one.get(), "B/s"));
    fact(&mut table, "disk, cold reads", hardware.disk_read.as_ref(), |one| giga(one.get(), "B/s"));
    fact(&mut table, "power mode", hardware.power_mode.as_ref(), Clone::clone);
    table
}

fn fact<T>(table: &mut Table, what: &str, fact: Option<&Fact<T>>, value: impl Fn(&T) -> String) {
    let Some(fact) = fact else {
        table.add_row([what, "not known", "", ""]);
        return;
    };
    let by = format!("{} by {}, trust {:.0} %", fact.origin.name(), fact.by, 100.0 * fact.confidence.get());
    table.add_row([what.to_owned(), value(&fact.value), by, fact.age.to_string()]);
}

fn live(rows: &[Certified<NodeRow>]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header([
        "node",
        "tier",
        "state",
        "heard",
        "cpu",
        "temp",
        "power",
        "memory free",
        "report age",
        "rtt",
        "over",
        "replicas",
        "labels",
        "cert left",
        "binary",
        "last fault",
    ]);
    for Certified { node: row, certificate_expires } in rows {
        let state = if row.revoked { "revoked".to_owned() } else { format!("{:?}", row.state).to_lowercase() };
        let replicas: Vec<_> = row.replicas.iter().map(replica).collect();
        table.add_row([
            row.node.to_string(),
            row.tier.map_or_else(|| "–".to_owned(), |tier| format!("{tier:?}").to_lowercase()),
            state,
            row.heard_ago.map_or_else(|| "never".to_owned(), |ago| format!("{ago} ago")),
            told(row, |told| told.cpu.map(|cpu| format!("{:.0} %", 100.0 * cpu.get()))),
            told(row, |told| told.temperature.map(|one| one.to_string())),
            told(row, |told| told.power.as_ref().map(|power| format!("{:.1} W", power.value.get()))),
            told(row, |told| told.memory_available.map(gigabytes)),
            row.report_age.map_or_else(|| "–".to_owned(), |age| age.to_string()),
            row.rtt.map_or_else(String::new, |rtt| rtt.to_string()),
            row.transport.map_or("", Transport::name).to_owned(),
            replicas.join("\n"),
            labels(&row.labels),
            left(*certificate_expires),
            binary(row),
            row.last_fault.clone().unwrap_or_default(),
        ]);
    }
    table
}

fn registered(rows: &[Certified<Registered>]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED).set_header(["node", "registered as", "labels", "cert left"]);
    for Certified { node: row, certificate_expires } in rows {
        let state = match (row.revoked, row.drained) {
            (Some(_), _) => "revoked",
            (None, true) => "draining",
            (None, false) => "member",
        };
        table.add_row([row.node.to_string(), state.to_owned(), labels(&row.labels), left(*certificate_expires)]);
    }
    table
}

pub(super) async fn revoke(config: &Config, node: NodeId) -> Result<(), CliError> {
    Reach::find(config)?.revoke(node.clone()).await?;
    say!("`{node}` is no longer in the fleet. It may join again with a fresh token.");
    Ok(())
}

pub(super) async fn drain(config: &Config, node: NodeId, drain: bool) -> Result<(), CliError> {
    Reach::find(config)?.drain(node.clone(), drain).await?;
    say!("{}", if drain { format!("`{node}` gets nothing new.") } else { format!("`{node}` works again.") });
    Ok(())
}

/// One line for each policy of each layer.
pub(super) fn policies() -> String {
    let mut text = String::new();
    let mut line = |layer: &str, name: &str, summary: &str| {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{layer:<11} {name:<18} {summary}");
    };
    policy::timescale::TABLE.iter().for_each(|row| line("timescale", row.name, row.summary));
    policy::placement::TABLE.iter().for_each(|row| line("placement", row.name, row.summary));
    policy::offload::TABLE.iter().for_each(|row| line("offload", row.name, row.summary));
    policy::allocation::TABLE.iter().for_each(|row| line("allocation", row.name, row.summary));
    policy::dispatch::TABLE.iter().for_each(|row| line("dispatch", row.name, row.summary));
    text
}
