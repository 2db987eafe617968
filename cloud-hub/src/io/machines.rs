//! The hub's view of each node as gauges for Prometheus. Labels are registered nodes and nothing else; what is not known has no
//! line, and what is known has its age beside it.

use crate::logic::NodeRow;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use shared::units::Micros;
use std::sync::atomic::AtomicU64;

/// Nodes that have lines of their own. With ten lines each, more would make a page of megabytes; the others are counted by state.
const NODES_MAX: usize = 1_000;

type Of = Family<Vec<(&'static str, String)>, Gauge<f64, AtomicU64>>;

/// The lines, without the end mark of a page.
pub(super) fn page(nodes: &[NodeRow]) -> String {
    let mut registry = Registry::with_prefix("tidegate_hub_node");
    for (name, help, of) in GAUGES {
        let family = Of::default();
        for row in nodes.iter().filter(|row| !row.revoked).take(NODES_MAX) {
            if let Some(value) = of(row) {
                family.get_or_create(&vec![("node", row.node.to_string())]).set(value);
            }
        }
        registry.register(name, help, family);
    }
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = encode(&mut text, &registry);
    text.replace("# EOF\n", "")
}

type Read = fn(&NodeRow) -> Option<f64>;

const GAUGES: [(&str, &str, Read); 8] = [
    ("report_age_seconds", "Age of the last report", |row| row.report_age.map(Micros::as_secs_f64)),
    ("heard_age_seconds", "Time since anything was heard", |row| row.heard_ago.map(Micros::as_secs_f64)),
    ("cpu_share", "Busy share of the processors", |row| Some(row.telemetry.as_ref()?.cpu?.get())),
    ("memory_available_bytes", "Memory that could be had", |row| Some(row.telemetry.as_ref()?.memory_available?.as_f64())),
    ("temperature_celsius", "Of the hottest part", |row| Some(row.telemetry.as_ref()?.temperature?.get())),
    ("throttled", "1 while it is slowed down", |row| Some(f64::from(u8::from(row.telemetry.as_ref()?.throttled?)))),
    ("power_watts", "What it draws", |row| Some(row.telemetry.as_ref()?.power.as_ref()?.value.get())),
    ("rtt_seconds", "Round trip of its connection", |row| row.rtt.map(Micros::as_secs_f64)),
];
