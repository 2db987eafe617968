//! Executions on engines of this node: those of the own ingress here, those of others in `offered`.

use super::driver::Handle;
use super::remote::{Unwanted, deliver};
use super::stage::{self, Onward, Reach};
use crate::exec::{Downstream, Engine, ExecEvent, Input, Job, SINK_EVENTS_MIN};
use shared::ids::{AttemptId, VariantId};
use shared::plan::Failure;
use shared::request::{AttemptEvent, Event};
use shared::wire::Body;
use shared::work::ExecHeader;
use shared_net::openai::Answer;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// The engines of this node by what they serve.
pub(super) type Engines = Arc<BTreeMap<VariantId, Arc<dyn Engine>>>;

/// Events of one job that wait for their reader. Small: what waits here was computed before anybody could want it cancelled.
pub(super) const SINK_EVENTS: usize = 2 + SINK_EVENTS_MIN;

/// How long a cancelled job may take to close its sink before it is no longer waited for. Engines promise half a second; after
/// this the core gives the slot to the next anyway.
const ABORT_MAX: Duration = Duration::from_secs(5);

/// An execution for the own ingress.
pub(super) struct Own {
    pub(super) handle: Handle,
    pub(super) reach: Reach,
    pub(super) engine: Arc<dyn Engine>,
    pub(super) header: ExecHeader,
    pub(super) body: Arc<Body>,
    pub(super) answers: mpsc::Sender<Answer>,
    pub(super) cancel: CancellationToken,
}

/// Runs it to its end. Whatever happens, the core hears one last event, since only that frees the slot.
pub(super) async fn own(run: Own) {
    let (last, onward) = match run.onward().await {
        Ok((next, mut onward)) => {
            let last = run.execute(next, &mut onward).await;
            (last, Some(onward))
        }
        Err(last) => (last, None),
    };
    tracing::debug!(?last, "ended");
    // Fails only when the agent has stopped.
    drop(run.handle.tell_core(Event::Engine(run.header.attempt, last)).await);
    if let Some(onward) = onward.filter(|_| !run.cancel.is_cancelled()) {
        onward.part().await;
    }
}

impl Own {
    /// The way to the next stage, where there is one.
    async fn onward(&self) -> Result<(Option<Downstream>, Onward), AttemptEvent> {
        let opened = tokio::select! {
            biased;
            () = self.cancel.cancelled() => Err(Failure::ClientGone),
            opened = stage::open(&self.reach, &self.header, Duration::ZERO) => opened,
        };
        opened.map_err(AttemptEvent::Failed)
    }

    async fn execute(&self, next: Option<Downstream>, onward: &mut Onward) -> AttemptEvent {
        let (sink, mut events) = mpsc::channel(SINK_EVENTS);
        let input = Input::Body(Arc::clone(&self.body));
        let job = Job { header: self.header.clone(), input, cancel: self.cancel.clone(), sink, next };
        if let Err(reason) = self.engine.submit(job) {
            return AttemptEvent::Refused(reason, None);
        }
        let ended = tokio::select! {
            biased;
            never = onward.carry() => match never {},
            ended = self.pump(&mut events) => ended,
        };
        match ended {
            Ok(last) => last,
            Err(Unwanted) => {
                self.cancel.cancel();
                onward.cut();
                closed(&mut events).await
            }
        }
    }

    async fn pump(&self, events: &mut mpsc::Receiver<ExecEvent>) -> Result<AttemptEvent, Unwanted> {
        let attempt = self.header.attempt;
        loop {
            let event = tokio::select! {
                biased;
                () = self.cancel.cancelled() => return Err(Unwanted),
                event = events.recv() => event,
            };
            match event {
                Some(ExecEvent::Progress) => self.tell(attempt, AttemptEvent::Progress).await?,
                Some(ExecEvent::Tokens(batch)) => tokio::select! {
                    biased;
                    () = self.cancel.cancelled() => return Err(Unwanted),
                    delivered = deliver(&self.handle, &self.answers, |news| Event::Engine(attempt, news), batch) => delivered?,
                },
                // Only a job for a stage after the first passes these on, and the own ingress' client waits for no such.
                Some(ExecEvent::Drawn(_)) => self.tell(attempt, AttemptEvent::Progress).await?,
                Some(ExecEvent::End(finish, usage)) => return Ok(AttemptEvent::Ended(finish, usage)),
                Some(ExecEvent::Failed(failure)) => return Ok(AttemptEvent::Failed(failure)),
                None => return Ok(AttemptEvent::Failed(died())),
            }
        }
    }

    async fn tell(&self, attempt: AttemptId, news: AttemptEvent) -> Result<(), Unwanted> {
        self.handle.tell_core(Event::Engine(attempt, news)).await.map_err(|_| Unwanted)
    }
}

/// Waits until a cancelled job is off its engine. What it still says is nobody's concern.
pub(super) async fn closed(events: &mut mpsc::Receiver<ExecEvent>) -> AttemptEvent {
    let drained = async { while events.recv().await.is_some() {} };
    if tokio::time::timeout(ABORT_MAX, drained).await.is_err() {
        tracing::warn!("an engine did not end a cancelled job in time");
    }
    AttemptEvent::Failed(Failure::ClientGone)
}

/// What an engine that closed its sink without a word is called.
pub(super) fn died() -> Failure {
    Failure::Engine("it ended without an answer".to_owned())
}
