//! Commands about nodes, and the list of policies.

use super::CliError;
use super::reach::Reach;
use crate::clock::UnixTime;
use crate::config::Config;
use crate::logic::{NodeRow, ReplicaRow};
use crate::store::{Certified, NodeRow as Registered};
use comfy_table::{Table, presets::UTF8_FULL_CONDENSED};
use shared::fleet::Transport;
use shared::ids::NodeId;
use shared::policy;
use shared_net::say;
use shared_net::tls::CertClock;
use std::fmt::Write;

pub(super) async fn list(config: &Config, json: bool) -> Result<(), CliError> {
    match Reach::find(config)?.nodes().await? {
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

fn live(rows: &[Certified<NodeRow>]) -> Table {
    let mut table = Table::new();
    table.load_preset(UTF8_FULL_CONDENSED);
    table.set_header([
        "node",
        "tier",
        "state",
        "heard",
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
