//! Engines: run a request and report what it cost.
//!
//! Three engines stand behind one interface. `llm` computes in this process, [`upstream`] asks a server that speaks the
//! OpenAI API, [`profiled`] emits filler at the rates of a profile. None of them decides anything: what runs where is
//! the request core's matter, and so are retries. Request text must never reach a log, an error or a report from here.
//!
//! The life of a [`Job`]: [`Engine::submit`] takes it or refuses it at once; then [`ExecEvent::Progress`] at least every
//! [`PROGRESS_EVERY`] until the first tokens, token batches, and exactly one [`ExecEvent::End`] or [`ExecEvent::Failed`].
//! A cancelled job sends nothing more: its sink closes as soon as its slot is free. A sink that closes without an end and
//! without having been cancelled means that the engine died.

mod config;
mod extras;
mod hold;
#[cfg(feature = "llm")]
pub mod llm;
mod outlet;
pub mod profiled;
mod rates;
mod sse;
pub mod upstream;

pub use config::{EngineConfig, Rates, StartError, start};

use futures_util::future::BoxFuture;
use shared::fleet::{ReplicaReport, ReplicaState};
use shared::ids::VariantId;
use shared::plan::{Failure, Finish, Reason, Usage};
use shared::wire::Body;
use shared::wire::frame::TokenBatch;
use shared::work::ExecHeader;
use std::fmt;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

/// A job that waits or computes its prompt says so this often: half of the shortest time after which anybody on the way
/// calls a silent executor stalled.
pub const PROGRESS_EVERY: Duration = Duration::from_millis(500);

/// Events that a sink must hold at least: one on its way, and one place that is kept for the end, so that even a reader
/// who stalled learns how it ended.
pub const SINK_EVENTS_MIN: usize = 2;

/// Most slots of one engine. More is a mistake in a configuration: each holds a context's worth of memory or a connection.
pub const SLOTS_MAX: u32 = 4_096;

/// One request for an engine.
pub struct Job {
    /// Who asks for what.
    pub header: ExecHeader,
    /// The text.
    pub body: Body,
    /// Cancelled when nobody wants the answer any more. Looked at in every step.
    pub cancel: CancellationToken,
    /// Where the answer goes; holds at least [`SINK_EVENTS_MIN`] events. While it is full the job pauses.
    pub sink: mpsc::Sender<ExecEvent>,
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("attempt", &self.header.attempt).field("body", &self.body).finish_non_exhaustive()
    }
}

/// What an engine says of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecEvent {
    /// It waits, or its prompt is being computed.
    Progress,
    /// Generated tokens. A batch with `count` 0 carries text that was held back as a possible stop text.
    Tokens(TokenBatch),
    /// The answer is whole. The last event.
    End(Finish, Usage),
    /// There will be no whole answer. The last event.
    Failed(Failure),
}

/// An engine that did not end in time.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the engine of `{variant}` did not end within {within:?}")]
pub struct Hung {
    /// Which.
    pub variant: VariantId,
    /// How long it was waited for.
    pub within: Duration,
}

/// One loaded (or loading) variant and whatever executes it.
pub trait Engine: Send + Sync + fmt::Debug {
    /// What it serves.
    fn variant(&self) -> &VariantId;

    /// Its state, slots, memory, context, capabilities and profile. Of the load only `slots` is filled: the request core
    /// counts what it submits.
    fn report(&self) -> ReplicaReport {
        self.watch().borrow().clone()
    }

    /// The report, and when it changes.
    fn watch(&self) -> watch::Receiver<ReplicaReport>;

    /// Takes a job.
    ///
    /// # Errors
    /// Why not: [`Reason::Loading`], [`Reason::ReplicaFailed`], [`Reason::Draining`], or [`Reason::Busy`] when more than
    /// `slots` jobs are open. The job is dropped, and nothing was sent to its sink.
    fn submit(&self, job: Job) -> Result<(), Reason>;

    /// Takes nothing new, ends what runs with [`Reason::Draining`], and frees everything.
    ///
    /// # Errors
    /// [`Hung`] when that took longer than `within`.
    fn shutdown(&self, within: Duration) -> BoxFuture<'_, Result<(), Hung>>;
}

/// Whether an engine in this state takes jobs.
fn check_ready(state: &ReplicaState) -> Result<(), Reason> {
    match state {
        ReplicaState::Ready => Ok(()),
        ReplicaState::Loading => Err(Reason::Loading),
        ReplicaState::Draining => Err(Reason::Draining),
        ReplicaState::Failed(why) => Err(Reason::ReplicaFailed(why.clone())),
    }
}
