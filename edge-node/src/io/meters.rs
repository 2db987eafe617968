//! What the agent counts, for Prometheus. Labels are names from closed sets or of this node's own replicas; never text of a
//! request, never a name that a client made up.

use super::execute::Engines;
use super::links::Links;
use crate::exec::Reuse;
use crate::logic::NodeStatus;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use shared::fleet::{Load, Transport};
use shared::ids::VariantId;
use shared::plan::{Outcome, Record, Verdict};
use shared_net::host::Refusals;
use shared_net::openai::FrontCounters;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// Upper bounds of the histogram of first tokens, in seconds: from a cached prompt on a server to a long one on a board.
const FIRST_TOKEN_S: [f64; 12] = [0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    outcome: String,
    hop: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TransportLabels {
    transport: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct VariantLabels {
    variant: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FrontLabels {
    endpoint: String,
    status: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KeyLabels {
    key: String,
    what: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DirectionLabels {
    direction: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusalLabels {
    port: &'static str,
    why: &'static str,
}

/// What engines say of the beginnings of prompts that they keep, in the order of [`Meters::reuse`].
const REUSE: [(&str, &str); 5] = [
    ("prefix_hits", "Prompts whose beginning had been computed before"),
    ("prefix_misses", "Prompts whose beginning had not"),
    ("prefix_tokens", "Prompt tokens that needed no computation"),
    ("prefix_evicted", "Kept blocks of tokens that were dropped to make room"),
    ("prefix_blocks", "Kept blocks of tokens"),
];

/// All counters of the agent.
pub(super) struct Meters {
    registry: Mutex<Registry>,
    requests: Family<RequestLabels, Counter>,
    rejected: Family<ReasonLabels, Counter>,
    attempts: Counter,
    prompt_tokens: Counter,
    output_tokens: Counter,
    first_token: Histogram,
    attained: Counter,
    missed: Counter,
    publications_dropped: Counter,
    uplink: Family<TransportLabels, Gauge>,
    uplink_moves: Family<TransportLabels, Counter>,
    quic_demotions: Gauge,
    publications_quarantined: Gauge,
    active: Family<VariantLabels, Gauge>,
    queued: Family<VariantLabels, Gauge>,
    degraded: Gauge,
    open: Gauge,
    peers: Gauge,
    spooled: Gauge,
    spool_dropped: Gauge,
    spool_bytes: Gauge,
    spool_bytes_max: Gauge,
    spool_disk_bytes: Gauge,
    front: Family<FrontLabels, Gauge>,
    connections: Gauge,
    errors: Family<ReasonLabels, Gauge>,
    keys: Family<KeyLabels, Gauge>,
    stage_tokens: Counter,
    stage_bytes: Counter,
    peer_bytes: Family<DirectionLabels, Gauge>,
    reuse: [Family<VariantLabels, Gauge>; REUSE.len()],
    refused: Family<RefusalLabels, Gauge>,
    refusals: OnceLock<Arc<Refusals>>,
    links: Arc<Links>,
    engines: Engines,
}

impl Meters {
    pub(super) fn new(links: Arc<Links>, engines: Engines) -> Self {
        let meters = Self {
            registry: Mutex::new(Registry::with_prefix("tidegate_agent")),
            requests: Family::default(),
            rejected: Family::default(),
            attempts: Counter::default(),
            prompt_tokens: Counter::default(),
            output_tokens: Counter::default(),
            first_token: Histogram::new(FIRST_TOKEN_S),
            attained: Counter::default(),
            missed: Counter::default(),
            publications_dropped: Counter::default(),
            uplink: Family::default(),
            uplink_moves: Family::default(),
            quic_demotions: Gauge::default(),
            publications_quarantined: Gauge::default(),
            active: Family::default(),
            queued: Family::default(),
            degraded: Gauge::default(),
            open: Gauge::default(),
            peers: Gauge::default(),
            spooled: Gauge::default(),
            spool_dropped: Gauge::default(),
            spool_bytes: Gauge::default(),
            spool_bytes_max: Gauge::default(),
            spool_disk_bytes: Gauge::default(),
            front: Family::default(),
            connections: Gauge::default(),
            errors: Family::default(),
            keys: Family::default(),
            stage_tokens: Counter::default(),
            stage_bytes: Counter::default(),
            peer_bytes: Family::default(),
            reuse: Default::default(),
            refused: Family::default(),
            refusals: OnceLock::new(),
            links,
            engines,
        };
        meters.register();
        meters
    }

    fn register(&self) {
        let mut registry = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        registry.register("requests", "Requests of clients that are over", self.requests.clone());
        registry.register("candidates_rejected", "Candidates rejected in decisions, by reason", self.rejected.clone());
        registry.register("attempts", "Attempts to execute a request somewhere", self.attempts.clone());
        registry.register("prompt_tokens", "Prompt tokens of answered requests", self.prompt_tokens.clone());
        registry.register("output_tokens", "Tokens generated for clients", self.output_tokens.clone());
        registry.register("first_token_seconds", "Arrival to first token", self.first_token.clone());
        registry.register("wishes_kept", "Requests whose wished times were kept", self.attained.clone());
        registry.register("wishes_missed", "Requests whose wished times were missed", self.missed.clone());
        registry.register(
            "publications_dropped",
            "Messages that the broker connection did not take",
            self.publications_dropped.clone(),
        );
        registry.register("uplink_up", "1 for the transport that carries the uplink", self.uplink.clone());
        registry.register("uplink_moves", "Moves of the uplink to another transport", self.uplink_moves.clone());
        registry.register("quic_demotions", "QUIC to the hub shook hands and did not carry", self.quic_demotions.clone());
        registry.register(
            "publications_quarantined",
            "Messages left out because the broker closes the connection for them",
            self.publications_quarantined.clone(),
        );
        registry.register("replica_active", "Requests that run", self.active.clone());
        registry.register("replica_queued", "Requests that wait for a slot", self.queued.clone());
        registry.register("degraded", "1 while the hub is out of reach", self.degraded.clone());
        registry.register("requests_open", "Requests of clients that are not over", self.open.clone());
        registry.register("peers_connected", "Agents connected without the hub", self.peers.clone());
        registry.register("spool_bytes", "Size of the records that wait for the hub", self.spool_bytes.clone());
        registry.register("spool_bytes_max", "Most that may wait; more pushes out the oldest", self.spool_bytes_max.clone());
        registry.register("spool_disk_bytes", "What they take on disk", self.spool_disk_bytes.clone());
        registry.register("records_spooled", "Records that wait for the hub", self.spooled.clone());
        registry.register(
            "records_dropped",
            "Records that were dropped because the hub was away too long",
            self.spool_dropped.clone(),
        );
        registry.register("http_answers", "Answers of the HTTP front, by endpoint and status", self.front.clone());
        registry.register("http_errors", "Errors shown to clients, by code", self.errors.clone());
        registry.register("keys", "What API keys did: requests, tokens, and refusals by code", self.keys.clone());
        registry.register("http_connections", "Open HTTP connections", self.connections.clone());
        registry.register("stage_tokens", "Tokens whose hidden states went to a next stage", self.stage_tokens.clone());
        registry.register(
            "stage_bytes",
            "Bytes of the frames in which hidden states went to a next stage",
            self.stage_bytes.clone(),
        );
        registry.register(
            "peer_bytes",
            "Bytes to and from other agents without the hub, as the network sees them",
            self.peer_bytes.clone(),
        );
        registry.register("refusals", "Those refused where other agents connect, by port and reason", self.refused.clone());
        for ((name, help), family) in REUSE.into_iter().zip(&self.reuse) {
            registry.register(name, help, family.clone());
        }
    }

    /// Shows what the port for other agents refuses.
    pub(super) fn show_refusals(&self, of: Arc<Refusals>) {
        // There is one such port: a second call would bring the same.
        drop(self.refusals.set(of));
    }

    fn read_refusals(&self) {
        for ((port, why), count) in self.refusals.get().map(|refusals| refusals.counts()).unwrap_or_default() {
            self.refused.get_or_create(&RefusalLabels { port, why }).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
    }

    fn read_reuse(&self) {
        for (variant, engine) in &*self.engines {
            let Some(Reuse { hits, misses, tokens, evicted, blocks }) = engine.reuse() else { continue };
            for (family, count) in self.reuse.iter().zip([hits, misses, tokens, evicted, blocks]) {
                let labels = VariantLabels { variant: variant.to_string() };
                family.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
    }

    /// Hidden states of so many tokens went to a next stage, in a frame of so many bytes.
    pub(super) fn hidden_sent(&self, tokens: u16, bytes: usize) {
        self.stage_tokens.inc_by(u64::from(tokens));
        self.stage_bytes.inc_by(u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    pub(super) fn publication_dropped(&self) {
        self.publications_dropped.inc();
    }

    pub(super) fn uplink_moved(&self, to: Transport) {
        self.uplink_moves.get_or_create(&TransportLabels { transport: to.name().to_owned() }).inc();
    }

    pub(super) fn load(&self, variant: &VariantId, load: &Load) {
        let labels = VariantLabels { variant: variant.to_string() };
        self.active.get_or_create(&labels).set(i64::from(load.active));
        self.queued.get_or_create(&labels).set(i64::from(load.queued));
    }

    /// A request is over.
    pub(super) fn record(&self, record: &Record) {
        let outcome = match &record.outcome {
            Outcome::Answered(_) => "answered",
            Outcome::Failed(failure) => failure.code(),
        };
        let assigned = |attempt: &shared::plan::AttemptRecord| match &attempt.decision.verdict {
            Verdict::Assign(choice) => Some(choice.candidate.hop),
            Verdict::Wait(_) | Verdict::Refuse(_) => None,
        };
        let hop = record.attempts.iter().rev().find_map(assigned);
        let hop = hop.map_or_else(|| "none".to_owned(), |hop| format!("{hop:?}").to_lowercase());
        self.requests.get_or_create(&RequestLabels { outcome: outcome.to_owned(), hop }).inc();
        for attempt in &record.attempts {
            if assigned(attempt).is_some() {
                self.attempts.inc();
            }
            for (reason, count) in &attempt.decision.counts {
                self.rejected.get_or_create(&ReasonLabels { reason: reason.clone() }).inc_by(u64::from(*count));
            }
        }
        self.prompt_tokens.inc_by(u64::from(record.actual.usage.prompt.0));
        self.output_tokens.inc_by(u64::from(record.actual.usage.output.0));
        if let Some(first) = record.actual.first_token {
            self.first_token.observe(first.as_secs_f64());
        }
        match record.attained {
            Some(true) => {
                self.attained.inc();
            }
            Some(false) => {
                self.missed.inc();
            }
            None => {}
        }
    }

    /// Everything as text, with what is read off the agent at this moment.
    pub(super) fn text(&self, status: &NodeStatus, front: &Arc<FrontCounters>) -> Result<String, std::fmt::Error> {
        let gauge = |gauge: &Gauge, value: usize| {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        };
        gauge(&self.degraded, usize::from(status.degraded));
        gauge(&self.open, status.requests_open);
        gauge(&self.peers, status.peers.iter().filter(|peer| peer.links > 0).count());
        gauge(&self.spooled, status.spool.records);
        gauge(&self.spool_bytes, status.spool.bytes);
        gauge(&self.spool_bytes_max, status.spool.bytes_max);
        self.spool_disk_bytes.set(i64::try_from(status.spool.disk.unwrap_or_default()).unwrap_or(i64::MAX));
        for transport in [Transport::Quic, Transport::Tcp] {
            let up = status.uplink.transport == Some(transport);
            self.uplink.get_or_create(&TransportLabels { transport: transport.name().to_owned() }).set(i64::from(up));
        }
        self.publications_quarantined.set(i64::try_from(status.uplink.publications_held).unwrap_or(i64::MAX));
        self.quic_demotions.set(i64::try_from(status.uplink.demotions).unwrap_or(i64::MAX));
        self.spool_dropped.set(i64::try_from(status.spool.dropped).unwrap_or(i64::MAX));
        for replica in &status.replicas {
            self.load(&replica.variant, &replica.load);
        }
        self.read_reuse();
        self.read_refusals();
        let (sent, received) = self.links.peer_bytes();
        for (direction, bytes) in [("sent", sent), ("received", received)] {
            let labels = DirectionLabels { direction };
            self.peer_bytes.get_or_create(&labels).set(i64::try_from(bytes).unwrap_or(i64::MAX));
        }
        let front = front.snapshot();
        self.connections.set(i64::try_from(front.connections_open).unwrap_or(i64::MAX));
        for ((endpoint, code), count) in front.requests {
            let labels = FrontLabels { endpoint: endpoint.label().to_owned(), status: code.to_string() };
            self.front.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        for (reason, count) in front.errors {
            let labels = ReasonLabels { reason: reason.to_owned() };
            self.errors.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
        }
        // Keys that are gone must not stay here for ever.
        self.keys.clear();
        for (key, counts) in front.keys {
            let totals = [("requests", counts.requests), ("tokens", counts.tokens)];
            for (what, count) in totals.into_iter().chain(counts.refusals) {
                let labels = KeyLabels { key: key.clone(), what };
                self.keys.get_or_create(&labels).set(i64::try_from(count).unwrap_or(i64::MAX));
            }
        }
        let mut text = String::new();
        encode(&mut text, &self.registry.lock().unwrap_or_else(PoisonError::into_inner))?;
        Ok(text)
    }
}
