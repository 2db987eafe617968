//! The OpenAI-compatible HTTP front of hub and agents: bytes become a typed [`Ask`], [`Answer`]s become bytes again.
//!
//! The front decides nothing. It refuses what is malformed or what nobody could serve, by the name of the parameter; the rest
//! goes to the host behind [`Ingress`], whose request core decides. Text of a request is in the [`Body`] handed over and in
//! the response, and must never be in an error, a header, a counter or a log line of this module.
//!
//! The way of a request: `wire` (refuses what is framed in two ways) → [`router`] (checks the key, names the request) → `ask` (JSON to [`Ask`]) → [`Ingress::ask`] →
//! `gather` (whole answers) or `stream` (server-sent events). [`serve()`] carries the router on sockets, with limits.

mod access;
mod ask;
mod chunks;
mod config;
mod counters;
mod error;
mod front;
mod gather;
mod health;
mod json;
mod keys;
mod models;
mod progress;
mod refusal;
mod serve;
mod shape;
mod stream;
mod vectors;
mod waiting;
mod wire;

pub use access::Exposure;
pub use config::{BadFront, FrontConfig, Limits, key_sha256};
pub use counters::{Endpoint, FrontCounters, FrontSnapshot, OpenGuard};
pub use error::ApiError;
pub use front::{router, router_keyed, router_with};
pub use keys::{KeyCounts, KeyRing, KeySource, KeyUsage, new_secret};
pub use refusal::{of_failure, of_reason};
pub use serve::serve;

use shared::ids::{NodeId, ServiceId, VariantId};
use shared::plan::{Decision, Failure, Finish, Reason, Usage};
use shared::wire::Body;
use shared::wire::frame::TokenBatch;
use shared::work::{Capability, Catalogue, LlmRequest, Residency};
use std::future::Future;
use std::sync::Arc;
use tokio::sync::mpsc;

/// A request that was understood: what decisions see, and the text beside it.
#[derive(Clone, Debug)]
pub struct Ask {
    /// Sizes, features and needs.
    pub request: LlmRequest,
    /// The text and how to draw tokens.
    pub body: Body,
}

/// News for the client. The last two are terminal: nothing comes after them.
#[derive(Clone, Debug)]
pub enum Answer {
    /// Something was decided; the newest decision is what headers and the `tidegate` object show.
    Decided(Box<Decision>),
    /// Content.
    Tokens(TokenBatch),
    /// The answer is whole.
    Finish(Finish, Usage),
    /// There will be no whole answer.
    Fail(Failure),
}

/// The host did not even take the request in: it is stopping, or holds as many as it may.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[error("not taken in: {0}")]
pub struct Refusal(pub Reason);

/// The host behind the front.
pub trait Ingress: Clone + Send + Sync + 'static {
    /// Who answers, for headers.
    fn node(&self) -> NodeId;

    /// What `model` may name.
    fn catalogue(&self) -> Arc<Catalogue>;

    /// Whether a request of this residency may come in here at all. What is refused here is recorded nowhere; a host whose
    /// core refuses and records by itself allows everything.
    ///
    /// # Errors
    /// The sentence to show, saying where to send it instead.
    fn residency_allowed(&self, residency: Residency) -> Result<(), String>;

    /// Takes a request in. The channel is bounded: a client that does not read holds the sender back. A dropped receiver means
    /// that the client is gone, and the request must be cancelled everywhere. A channel that closes without a terminal answer
    /// is shown to the client as a broken connection.
    ///
    /// # Errors
    /// [`Refusal`] when it is not taken in.
    fn ask(&self, ask: Ask) -> impl Future<Output = Result<mpsc::Receiver<Answer>, Refusal>> + Send;

    /// Whether the hub is out of reach.
    fn degraded(&self) -> bool;

    /// Variants of this service that have the capability, as far as is known here: named where a request was refused for want of it.
    fn capable(&self, service: ServiceId, capability: Capability) -> impl Future<Output = Vec<VariantId>> + Send;

    /// How many replicas serve, here or elsewhere, as far as is known here. Without any, no request can be answered.
    fn replicas_ready(&self) -> impl Future<Output = usize> + Send;
}
