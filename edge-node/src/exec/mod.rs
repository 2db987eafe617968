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
mod kept;
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
use shared::wire::frame::{Drawn, Hidden, TokenBatch};
use shared::wire::{Body, StageBody};
use shared::work::ExecHeader;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
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
    /// What there is to compute on.
    pub input: Input,
    /// Cancelled when nobody wants the answer any more. Looked at in every step.
    pub cancel: CancellationToken,
    /// Where the answer goes; holds at least [`SINK_EVENTS_MIN`] events. While it is full the job pauses.
    pub sink: mpsc::Sender<ExecEvent>,
    /// The stage after this one, when this node computes only some layers and not the last.
    pub next: Option<Downstream>,
}

/// What a job computes on.
pub enum Input {
    /// A text. Shared with whoever may have to try elsewhere: a long one is not copied for each attempt.
    Body(Arc<Body>),
    /// Hidden states of the stage before this one, as they come. The channel closes when the request is over.
    Stage(Box<StageBody>, mpsc::Receiver<Hidden>),
}

/// The way to the next stage. Whoever submits the job has already seen it accepted there.
pub struct Downstream {
    /// Takes what the next stage needs, once, before any hidden states.
    pub body: oneshot::Sender<StageBody>,
    /// Takes hidden states. While it is full the job pauses; closed, the next stage is gone, and `drawn` says why.
    pub hidden: mpsc::Sender<Hidden>,
    /// Tokens that the last stage drew, one for each [`Hidden::draw`]; or why there will be none.
    pub drawn: mpsc::Receiver<Result<Drawn, Failure>>,
}

impl Job {
    /// A request that this node serves from its text to its end.
    #[must_use]
    pub fn whole(
        header: ExecHeader,
        body: impl Into<Arc<Body>>,
        cancel: CancellationToken,
        sink: mpsc::Sender<ExecEvent>,
    ) -> Self {
        Self { header, input: Input::Body(body.into()), cancel, sink, next: None }
    }

    /// The same as what engines take that know nothing of layers.
    ///
    /// # Errors
    /// [`Reason::Capability`] for a part of a split request.
    pub fn into_whole(self) -> Result<WholeJob, Reason> {
        match (self.input, self.next) {
            (Input::Body(body), None) => Ok(WholeJob { header: self.header, body, cancel: self.cancel, sink: self.sink }),
            _ => Err(Reason::Capability("layers".to_owned())),
        }
    }
}

/// A [`Job`] from the text to the end.
pub struct WholeJob {
    /// As in [`Job`].
    pub header: ExecHeader,
    /// The text.
    pub body: Arc<Body>,
    /// As in [`Job`].
    pub cancel: CancellationToken,
    /// As in [`Job`].
    pub sink: mpsc::Sender<ExecEvent>,
}

impl fmt::Debug for WholeJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WholeJob").field("attempt", &self.header.attempt).finish_non_exhaustive()
    }
}

impl fmt::Debug for Input {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Body(_) => "Body(…)",
            Self::Stage(..) => "Stage(…)",
        })
    }
}

impl fmt::Debug for Downstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Downstream")
    }
}

impl fmt::Debug for Job {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Job").field("attempt", &self.header.attempt).finish_non_exhaustive()
    }
}

/// What an engine says of a job.
#[derive(Clone, Debug, PartialEq)]
pub enum ExecEvent {
    /// It waits, or its prompt is being computed.
    Progress,
    /// Generated tokens. A batch with `count` 0 carries text that was held back as a possible stop text.
    Tokens(TokenBatch),
    /// A token that this stage, the last or one before it, passes to the stage before.
    Drawn(Drawn),
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

/// What an engine could take from earlier requests instead of computing it again, counted since its start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Reuse {
    /// Prompts whose beginning was known.
    pub hits: u64,
    /// Prompts whose beginning was not.
    pub misses: u64,
    /// Tokens of them that needed no computation.
    pub tokens: u64,
    /// Blocks that were dropped to make room.
    pub evicted: u64,
    /// Blocks that are held now.
    pub blocks: u64,
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

    /// What it took from earlier requests; absent where the engine does not know.
    fn reuse(&self) -> Option<Reuse> {
        None
    }

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
