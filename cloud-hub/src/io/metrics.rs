//! What the hub counts, as Prometheus reads it. Labels are closed sets or registered nodes, so that nobody can fill the memory.

use crate::logic::{NodeRow, Note};
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use shared::ids::PlanEpoch;
use shared::plan::Layer;
use shared_net::host::Refusals;
use shared_net::openai::FrontCounters;
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, PoisonError};

type Labels = Vec<(&'static str, String)>;
type Counters = Family<Labels, Counter>;
type Gauges = Family<Labels, Gauge<i64>>;

/// The hub's own counters.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    nodes: Gauges,
    faults: Counters,
    notes: Counters,
    relay_bytes: Counters,
    relay_streams: Counter,
    relay_open: Gauge,
    joins: Counters,
    requests: Counters,
    plan_epochs: Family<Labels, Gauge<u64, AtomicU64>>,
    mqtt_received: Counter,
    mqtt_published: Counters,
    mqtt_connected: Gauge,
    mqtt_turned_away: Gauges,
    records_dropped: Counter,
    write_failures: Counter,
    front: Arc<FrontCounters>,
    /// What joining and the admin API refused.
    refusals: Arc<Refusals>,
    /// What others refused who count for themselves.
    others: Mutex<Vec<Arc<Refusals>>>,
}

impl Metrics {
    /// All at zero.
    #[must_use]
    pub fn new(front: Arc<FrontCounters>) -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix("tidegate_hub"),
            nodes: Family::default(),
            faults: Family::default(),
            notes: Family::default(),
            relay_bytes: Family::default(),
            relay_streams: Counter::default(),
            relay_open: Gauge::default(),
            joins: Family::default(),
            requests: Family::default(),
            plan_epochs: Family::default(),
            mqtt_received: Counter::default(),
            mqtt_published: Family::default(),
            mqtt_connected: Gauge::default(),
            mqtt_turned_away: Gauges::default(),
            records_dropped: Counter::default(),
            write_failures: Counter::default(),
            front,
            refusals: Arc::default(),
            others: Mutex::default(),
        };
        metrics.register();
        metrics
    }

    fn register(&mut self) {
        let registry = &mut self.registry;
        registry.register("nodes", "Nodes by state", self.nodes.clone());
        registry.register("report_faults", "Reports that were dropped, by node and field", self.faults.clone());
        registry.register("notes", "Things worth noting, by kind", self.notes.clone());
        registry.register("relay_bytes", "Bytes relayed between agents, by direction", self.relay_bytes.clone());
        registry.register("relay_streams", "Request streams relayed", self.relay_streams.clone());
        registry.register("relay_open", "Request streams being relayed", self.relay_open.clone());
        registry.register("joins", "Joins and renewals by result", self.joins.clone());
        registry.register("requests", "Requests of the hub's own API by outcome", self.requests.clone());
        registry.register("plan_epoch", "Newest plan epoch by layer and part", self.plan_epochs.clone());
        registry.register("mqtt_received", "Messages received from the broker", self.mqtt_received.clone());
        registry.register("mqtt_published", "Messages for the broker by result", self.mqtt_published.clone());
        registry.register("mqtt_connected", "Whether the hub is connected to its broker", self.mqtt_connected.clone());
        let turned_away = self.mqtt_turned_away.clone();
        registry.register("mqtt_turned_away", "What the embedded broker refused since it started, by what it was", turned_away);
        registry.register("records_dropped", "Records lost because the store was behind", self.records_dropped.clone());
        registry.register("store_failures", "Changes of state that could not be written", self.write_failures.clone());
    }

    /// Shows what a part with a port of its own refuses.
    pub(crate) fn show_refusals(&self, of: Arc<Refusals>) {
        self.others.lock().unwrap_or_else(PoisonError::into_inner).push(of);
    }

    /// Somebody was refused by the hub itself.
    pub(crate) fn refused(&self, port: &'static str, why: &'static str, who: &str) {
        self.refusals.note(port, why, who);
    }

    pub(crate) fn join(&self, result: &'static str) {
        self.joins.get_or_create(&vec![("result", result.to_owned())]).inc();
    }

    pub(crate) fn request_ended(&self, outcome: &'static str) {
        self.requests.get_or_create(&vec![("outcome", outcome.to_owned())]).inc();
    }

    pub(crate) fn relay_opened(&self) {
        self.relay_streams.inc();
        self.relay_open.inc();
    }

    pub(crate) fn relay_closed(&self, forth: u64, back: u64) {
        self.relay_open.dec();
        self.relay_bytes.get_or_create(&vec![("direction", "forth".to_owned())]).inc_by(forth);
        self.relay_bytes.get_or_create(&vec![("direction", "back".to_owned())]).inc_by(back);
    }

    pub(crate) fn plan(&self, layer: Layer, epoch: PlanEpoch) {
        let part = |part: &str| vec![("layer", layer.name().to_owned()), ("part", part.to_owned())];
        self.plan_epochs.get_or_create(&part("incarnation")).set(epoch.incarnation);
        self.plan_epochs.get_or_create(&part("sequence")).set(epoch.sequence);
    }

    pub(crate) fn mqtt_received(&self) {
        self.mqtt_received.inc();
    }

    pub(crate) fn mqtt_published(&self, sent: bool) {
        let result = if sent { "sent" } else { "not_sent" };
        self.mqtt_published.get_or_create(&vec![("result", result.to_owned())]).inc();
    }

    pub(crate) fn mqtt_connected(&self, connected: bool) {
        self.mqtt_connected.set(i64::from(connected));
    }

    /// What the embedded broker counted: connections that did not come about, and publications and subscriptions beyond rights.
    pub(crate) fn mqtt_turned_away(&self, connections: u64, forbidden: u64) {
        for (what, count) in [("connection", connections), ("topic", forbidden)] {
            self.mqtt_turned_away.get_or_create(&vec![("what", what.to_owned())]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    pub(crate) fn record_dropped(&self) {
        self.records_dropped.inc();
    }

    pub(crate) fn write_failed(&self) {
        self.write_failures.inc();
    }

    pub(crate) fn note(&self, note: &Note) {
        let kind = match note {
            Note::State { .. } => "state",
            Note::HelloRefused { .. } => "hello_refused",
            Note::BadReport { node, field, .. } => {
                let labels = vec![("node", node.to_string()), ("field", plain_field(field))];
                self.faults.get_or_create(&labels).inc();
                "bad_report"
            }
            Note::StaleMessage { .. } => "stale_message",
            Note::FaultyPlan { .. } => "faulty_plan",
            Note::PlanRejected { .. } => "plan_rejected",
            Note::SelfSuspicion { .. } => "self_suspicion",
            Note::EpochJump { .. } => "epoch_jump",
            Note::RelayRefused { .. } => "relay_refused",
        };
        self.notes.get_or_create(&vec![("kind", kind.to_owned())]).inc();
    }

    /// The page that Prometheus reads.
    #[must_use]
    pub fn page(&self, nodes: &[NodeRow], counters: &BTreeMap<String, u64>) -> String {
        self.nodes.clear();
        for row in nodes {
            let state = if row.revoked { "revoked".to_owned() } else { format!("{:?}", row.state).to_lowercase() };
            self.nodes.get_or_create(&vec![("state", state)]).inc();
        }
        let mut page = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut page, &self.registry);
        let ends = page.rfind("# EOF").unwrap_or(page.len());
        page.truncate(ends);
        page.push_str(&self.rest(counters));
        page.push_str("# EOF\n");
        page
    }

    /// Counters that others keep, taken over as they are now.
    fn rest(&self, counters: &BTreeMap<String, u64>) -> String {
        let mut registry = Registry::with_prefix("tidegate_hub");
        let logic = Counters::default();
        for (name, count) in counters {
            logic.get_or_create(&vec![("name", name.clone())]).inc_by(*count);
        }
        registry.register("logic", "What the hub's logic counted, by name", logic);
        let refusals = Counters::default();
        let others = self.others.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for part in others.iter().chain([&self.refusals]) {
            for ((port, why), count) in part.counts() {
                refusals.get_or_create(&vec![("port", port.to_owned()), ("why", why.to_owned())]).inc_by(count);
            }
        }
        registry.register("refusals", "Clients refused at a port other than the OpenAI API's, by port and reason", refusals);
        let front = self.front.snapshot();
        let http = Counters::default();
        for ((endpoint, status), count) in &front.requests {
            http.get_or_create(&vec![("endpoint", endpoint.label().to_owned()), ("status", status.to_string())]).inc_by(*count);
        }
        registry.register("http_requests", "Requests to the OpenAI API by endpoint and status", http);
        let errors = Counters::default();
        for (code, count) in &front.errors {
            errors.get_or_create(&vec![("code", (*code).to_owned())]).inc_by(*count);
        }
        registry.register("http_errors", "Errors shown to clients by code", errors);
        let open = Gauges::default();
        for (what, count) in [("connections", front.connections_open), ("streams", front.streams_open)] {
            open.get_or_create(&vec![("what", what.to_owned())]).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        let (requests, tokens, refusals) = (Counters::default(), Counters::default(), Counters::default());
        for (key, counts) in &front.keys {
            let of = || vec![("key", key.clone())];
            requests.get_or_create(&of()).inc_by(counts.requests);
            tokens.get_or_create(&of()).inc_by(counts.tokens);
            for (code, count) in &counts.refusals {
                refusals.get_or_create(&vec![("key", key.clone()), ("code", (*code).to_owned())]).inc_by(*count);
            }
        }
        registry.register("key_requests", "Requests that came with an API key, by its name", requests);
        registry.register("key_tokens", "Tokens that they used", tokens);
        registry.register("key_refusals", "Those that were refused because of the key, by code", refusals);
        registry.register("http_open", "Open connections and streams of the OpenAI API", open);
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &registry);
        text.replace("# EOF\n", "")
    }
}

/// A field without what a node chose itself: `replicas[anything].slots` is `replicas.slots`.
fn plain_field(field: &str) -> String {
    let mut plain = String::new();
    let mut inside = false;
    for c in field.chars().take(200) {
        match c {
            '[' => inside = true,
            ']' => inside = false,
            c if !inside && (c.is_ascii_alphanumeric() || c == '.' || c == '_' || c == '-') && plain.len() < 60 => plain.push(c),
            _ => {}
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::ids::NodeId;

    #[test]
    fn the_page_is_whole_and_labels_are_tame() {
        let metrics = Metrics::new(Arc::new(FrontCounters::default()));
        metrics.join("joined");
        let node = NodeId::new("eu/n").expect("good");
        let field = "replicas[\"\n evil].slots".to_owned();
        metrics.note(&Note::BadReport { node, field, why: "x".to_owned() });
        let page = metrics.page(&[], &BTreeMap::from([("ticks".to_owned(), 3)]));
        assert!(page.contains(r#"tidegate_hub_joins_total{result="joined"} 1"#), "{page}");
        assert!(page.contains(r#"tidegate_hub_report_faults_total{node="eu/n",field="replicas.slots"} 1"#), "{page}");
        assert!(page.contains(r#"tidegate_hub_logic_total{name="ticks"} 3"#), "{page}");
        assert_eq!(page.matches("# EOF").count(), 1);
        assert!(page.ends_with("# EOF\n"));
    }
}
