//! The thread that computes: all decoding requests a step, and a small piece of one prompt.

use super::config::{LlmConfig, first_line};
use super::model::Model;
use super::seat::{Leave, Seat};
use super::template::Texts;
use crate::exec::rates::Learner;
use crate::exec::{ExecEvent, PROGRESS_EVERY};
use shared::fleet::ReplicaReport;
use shared::plan::{Failure, Reason};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// Most tokens of a prompt in one step: the kernels gain little from more, and a cancel waits for one step at most.
const CHUNK_TOKENS_MAX: usize = 16;

/// A piece of a prompt shall take no longer than this, as far as the measured rate tells: a cancel is then acted upon well
/// within its 500 ms, on slow machines too.
const CHUNK_ALONE: Duration = Duration::from_millis(250);

/// The same while others decode: a token of theirs then comes every fifteenth of a second or so, which reads as a steady pace.
/// Short pieces cost little: prompts were measured a tenth slower in pieces of four than in pieces of sixteen.
const CHUNK_SHARED: Duration = Duration::from_millis(60);

/// When all seats wait for their readers, they are looked at again after this: unnoticeable to a reader, no load to speak of.
const PAUSE: Duration = Duration::from_millis(5);

/// The state of the computing thread.
pub(super) struct Worker {
    pub(super) model: Model,
    pub(super) texts: Arc<Texts>,
    pub(super) config: LlmConfig,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) report: watch::Sender<ReplicaReport>,
    pub(super) learner: Learner,
    pub(super) seats: Vec<Seat>,
}

impl Worker {
    /// Works until stopped or until no more seats can come. Seats that are left are failed.
    pub(super) fn run(&mut self, arrivals: &Receiver<Seat>) {
        while !self.stop.load(Ordering::Acquire) {
            if !self.take_in(arrivals) && self.seats.is_empty() {
                return;
            }
            self.step();
        }
        for seat in self.seats.drain(..).chain(arrivals.try_iter()) {
            seat.claim.finish(ExecEvent::Failed(Failure::Refused(Reason::Draining)));
        }
    }

    /// Seats whoever arrived; waits when there is nothing else to do. False when nobody can arrive any more.
    fn take_in(&mut self, arrivals: &Receiver<Seat>) -> bool {
        let first = if self.seats.is_empty() {
            arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else if self.seats.iter().all(Seat::paused) {
            arrivals.recv_timeout(PAUSE)
        } else {
            arrivals.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            })
        };
        let open = !matches!(first, Err(RecvTimeoutError::Disconnected));
        self.seats.extend(first);
        self.seats.extend(arrivals.try_iter());
        open
    }

    /// One step: what waits is delivered, then each decoding request gets a token, then one prompt a piece.
    fn step(&mut self) {
        self.serve_all();
        for index in 0..self.seats.len() {
            if self.seats.get(index).is_some_and(Seat::decodes) {
                self.advance(index, None);
            }
        }
        // Tokens go out before the prompt's piece, and room that a reader made is used.
        self.serve_all();
        if let Some(index) = self.seats.iter().position(Seat::prefills) {
            self.advance(index, Some(self.chunk_tokens()));
        }
    }

    /// Length of a prompt's piece in this step.
    fn chunk_tokens(&self) -> usize {
        let budget = if self.seats.iter().any(Seat::decodes) { CHUNK_SHARED } else { CHUNK_ALONE };
        let rate = self.learner.profile().map_or(f64::INFINITY, |profile| profile.prompt.get());
        ((rate * budget.as_secs_f64()) as usize).clamp(1, CHUNK_TOKENS_MAX)
    }

    /// Computes a piece of a prompt, or else one token, and draws what follows.
    fn advance(&mut self, index: usize, prefill: Option<usize>) {
        let Some(seat) = self.seats.get_mut(index) else { return };
        let chunk = prefill.map_or_else(|| seat.decode_chunk(), |tokens| seat.prefill_chunk(tokens));
        let began = Instant::now();
        let logits = compute(&self.model, seat, &chunk);
        seat.computed(&chunk, began.elapsed());
        let drawn = logits.map_err(|error| Failure::Engine(first_line(&error))).and_then(|logits| match logits {
            Some(mut logits) => seat.draw(&mut logits, &self.texts.tokenizer),
            None => Ok(()),
        });
        if let Err(failure) = drawn {
            self.seats.remove(index).claim.finish(ExecEvent::Failed(failure));
        }
    }

    fn serve_all(&mut self) {
        let now = Instant::now();
        let stall_max = Duration::from_millis(self.config.stall_ms_max);
        let mut learned = false;
        let mut index = 0;
        while let Some(seat) = self.seats.get_mut(index) {
            // Told twice as often as promised, so that a long step in between keeps the promise.
            let Some(leave) = seat.serve(now, stall_max, PROGRESS_EVERY / 2) else {
                index += 1;
                continue;
            };
            let seat = self.seats.remove(index);
            self.learner.observe(&seat.observation());
            learned = true;
            match leave {
                Leave::Saying(event) => seat.claim.finish(event),
                Leave::Silently => seat.claim.close(),
            }
        }
        if learned {
            let profile = self.learner.profile();
            self.report.send_if_modified(|report| std::mem::replace(&mut report.profile, profile.clone()) != profile);
        }
    }
}

fn compute(model: &Model, seat: &mut Seat, chunk: &super::seat::Chunk) -> candle_core::Result<Option<Vec<f32>>> {
    let hidden = model.embed(&chunk.ids)?;
    let hidden = model.forward(0..model.shape().layers, &hidden, chunk.start, seat.cache())?;
    if chunk.last { model.logits(&hidden).map(Some) } else { Ok(None) }
}
