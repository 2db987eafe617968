//! What the front counts, for the host's metrics.

use super::keys::{KeyCounts, KeyRing};
use crate::host::Quiet;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Instant;

/// Where a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Endpoint {
    /// `/v1/chat/completions`.
    Chat,
    /// `/v1/completions`.
    Completions,
    /// `/v1/embeddings`.
    Embeddings,
    /// `/v1/models` and one of them.
    Models,
    /// `/healthz` and `/readyz`.
    Health,
    /// Pages of the host, below `/tidegate/`.
    Pages,
    /// Anything else.
    Other,
}

impl Endpoint {
    /// The endpoint of a path.
    #[must_use]
    pub fn of_path(path: &str) -> Self {
        match path {
            "/v1/chat/completions" => Self::Chat,
            "/v1/completions" => Self::Completions,
            "/v1/embeddings" => Self::Embeddings,
            "/healthz" | "/readyz" => Self::Health,
            _ if path.starts_with("/tidegate/") => Self::Pages,
            _ if path == "/v1/models" || path.starts_with("/v1/models/") => Self::Models,
            _ => Self::Other,
        }
    }

    /// Whether requests there cost what keys limit.
    pub(super) const fn infers(self) -> bool {
        matches!(self, Self::Chat | Self::Completions | Self::Embeddings)
    }

    /// The label of the metric.
    #[must_use]
    pub const fn label(self) -> &'static str {
        match self {
            Self::Chat => "chat",
            Self::Completions => "completions",
            Self::Embeddings => "embeddings",
            Self::Models => "models",
            Self::Health => "health",
            Self::Pages => "pages",
            Self::Other => "other",
        }
    }
}

/// Counters of one front. Both keys are small closed sets, so the maps cannot grow without end.
#[derive(Debug, Default)]
pub struct FrontCounters {
    requests: Mutex<BTreeMap<(Endpoint, u16), u64>>,
    errors: Mutex<BTreeMap<&'static str, u64>>,
    streams_open: AtomicU64,
    connections_open: AtomicU64,
    connections_refused: AtomicU64,
    clients_stalled: AtomicU64,
    quiet: Mutex<Quiet>,
    ring: OnceLock<KeyRing>,
}

/// The counters at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FrontSnapshot {
    /// Requests answered, by endpoint and status.
    pub requests: BTreeMap<(Endpoint, u16), u64>,
    /// Errors shown to clients, also those in the middle of a stream, by code.
    pub errors: BTreeMap<&'static str, u64>,
    /// Streams being written.
    pub streams_open: u64,
    /// Connections open.
    pub connections_open: u64,
    /// Connections refused because too many were open.
    pub connections_refused: u64,
    /// Connections dropped because the client did not read.
    pub clients_stalled: u64,
    /// What each API key did, by its name.
    pub keys: BTreeMap<String, KeyCounts>,
}

/// Counts one open thing for as long as it lives.
#[derive(Debug)]
pub struct OpenGuard {
    counters: Arc<FrontCounters>,
    which: fn(&FrontCounters) -> &AtomicU64,
}

impl OpenGuard {
    fn new(counters: &Arc<FrontCounters>, which: fn(&FrontCounters) -> &AtomicU64) -> Self {
        which(counters).fetch_add(1, Ordering::Relaxed);
        Self { counters: Arc::clone(counters), which }
    }
}

impl Drop for OpenGuard {
    fn drop(&mut self) {
        (self.which)(&self.counters).fetch_sub(1, Ordering::Relaxed);
    }
}

impl FrontCounters {
    /// All numbers as they are now.
    #[must_use]
    pub fn snapshot(&self) -> FrontSnapshot {
        FrontSnapshot {
            requests: locked(&self.requests).clone(),
            errors: locked(&self.errors).clone(),
            streams_open: self.streams_open.load(Ordering::Relaxed),
            connections_open: self.connections_open.load(Ordering::Relaxed),
            connections_refused: self.connections_refused.load(Ordering::Relaxed),
            clients_stalled: self.clients_stalled.load(Ordering::Relaxed),
            keys: self.ring.get().map(KeyRing::counts).unwrap_or_default(),
        }
    }

    pub(super) fn request(&self, endpoint: Endpoint, status: u16) {
        *locked(&self.requests).entry((endpoint, status)).or_default() += 1;
    }

    pub(super) fn error(&self, code: &'static str) {
        *locked(&self.errors).entry(code).or_default() += 1;
    }

    /// A refusal before anything was served: counted always, and logged once a minute for each kind and party.
    pub(super) fn refused(&self, who: &str, code: &'static str) {
        self.error(code);
        self.note_refusal(who, code);
    }

    /// The line of a refusal that is counted elsewhere.
    pub(super) fn note_refusal(&self, who: &str, code: &'static str) {
        if locked(&self.quiet).is_news(Instant::now(), who, code) {
            tracing::warn!(who, code, "refused a client (said once a minute)");
        }
    }

    /// Whose counts belong to these.
    pub(super) fn show_keys(&self, ring: &KeyRing) {
        // One front has one ring: a second call brings the same.
        drop(self.ring.set(ring.clone()));
    }

    pub(super) fn stream(self: &Arc<Self>) -> OpenGuard {
        OpenGuard::new(self, |counters| &counters.streams_open)
    }

    pub(super) fn connection(self: &Arc<Self>) -> OpenGuard {
        OpenGuard::new(self, |counters| &counters.connections_open)
    }

    pub(super) fn connection_refused(&self) {
        self.connections_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn client_stalled(&self) {
        self.clients_stalled.fetch_add(1, Ordering::Relaxed);
    }
}

/// A panic elsewhere leaves a counter at worst one behind: counting goes on.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_and_guards() {
        let counters = Arc::new(FrontCounters::default());
        counters.request(Endpoint::Chat, 200);
        counters.request(Endpoint::Chat, 200);
        counters.error("busy");
        let guard = counters.stream();
        assert_eq!(counters.snapshot().streams_open, 1);
        drop(guard);
        let snapshot = counters.snapshot();
        assert_eq!(snapshot.streams_open, 0);
        assert_eq!(snapshot.requests.get(&(Endpoint::Chat, 200)), Some(&2));
        assert_eq!(snapshot.errors.get("busy"), Some(&1));
    }

    #[test]
    fn paths_have_endpoints() {
        assert_eq!(Endpoint::of_path("/v1/models/a/b"), Endpoint::Models);
        assert_eq!(Endpoint::of_path("/v1/modelsx"), Endpoint::Other);
    }
}
