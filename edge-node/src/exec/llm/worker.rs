//! The thread that computes: all decoding requests a step, and a small piece of one prompt.
//!
//! It never waits for one request while it could compute for another; when none can go on, it sleeps until a reader has made
//! room, another stage has sent something, or a request has come.

use super::config::{LlmConfig, first_line};
use super::model::Model;
use super::seat::{Chunk, Drawing, Leave, Moment, Rows, Seat, Turn};
use super::template::Texts;
use crate::exec::rates::Learner;
use crate::exec::{ExecEvent, PROGRESS_EVERY};
use shared::fleet::ReplicaReport;
use shared::plan::{Failure, Reason};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Most tokens of a prompt in one step: the kernels gain little from more, and a cancel waits for one step at most.
const CHUNK_TOKENS_MAX: usize = 16;

/// A piece of a prompt shall take no longer than this, as far as the measured rate tells: a cancel is then acted upon well
/// within its 500 ms, on slow machines too.
const CHUNK_ALONE: Duration = Duration::from_millis(250);

/// The same while others decode: a token of theirs then comes every fifteenth of a second or so, which reads as a steady pace.
/// Short pieces cost little: prompts were measured a tenth slower in pieces of four than in pieces of sixteen.
const CHUNK_SHARED: Duration = Duration::from_millis(60);

/// When all seats wait, their cancels and deadlines are looked at again after this: no load to speak of. All else that they wait
/// for wakes the thread at once.
const PAUSE: Duration = Duration::from_millis(10);

/// Wakes the computing thread.
struct Bell(Thread);

impl Wake for Bell {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

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
    pub(super) fn run(&mut self, mut arrivals: mpsc::Receiver<Seat>) {
        let bell = Waker::from(Arc::new(Bell(std::thread::current())));
        let mut cx = Context::from_waker(&bell);
        while !self.stop.load(Ordering::Acquire) {
            if !self.take_in(&mut arrivals, &mut cx) && self.seats.is_empty() {
                return;
            }
            if !self.step(&mut cx) {
                self.rest();
            }
        }
        arrivals.close();
        let late = std::iter::from_fn(|| arrivals.try_recv().ok());
        for seat in self.seats.drain(..).chain(late) {
            seat.claim.finish(ExecEvent::Failed(Failure::Refused(Reason::Draining)));
        }
    }

    /// Seats whoever arrived. False when nobody can arrive any more.
    fn take_in(&mut self, arrivals: &mut mpsc::Receiver<Seat>, cx: &mut Context<'_>) -> bool {
        loop {
            match arrivals.poll_recv(cx) {
                Poll::Ready(Some(seat)) => self.seats.push(seat),
                Poll::Ready(None) => return false,
                Poll::Pending => return true,
            }
        }
    }

    /// Sleeps until something that was waited for has happened. What happened since it was last looked at ends the sleep at once.
    fn rest(&self) {
        if self.seats.is_empty() { std::thread::park() } else { std::thread::park_timeout(PAUSE) }
    }

    /// One step: what waits is delivered, then each decoding request gets a token, then one prompt a piece. False when nothing
    /// could be computed.
    fn step(&mut self, cx: &mut Context<'_>) -> bool {
        self.serve_all(cx);
        let mut worked = false;
        let mut index = 0;
        while let Some(seat) = self.seats.get(index) {
            if seat.turn() == Some(Turn::Decode) {
                worked = true;
                index += usize::from(self.advance(index, 1));
            } else {
                index += 1;
            }
        }
        // Tokens go out before the prompt's piece, and room that a reader made is used.
        if worked {
            self.serve_all(cx);
        }
        if let Some(index) = self.seats.iter().position(|seat| seat.turn() == Some(Turn::Prefill)) {
            worked = true;
            self.advance(index, self.chunk_tokens());
        }
        worked
    }

    /// Length of a prompt's piece in this step.
    fn chunk_tokens(&self) -> usize {
        let decoding = self.seats.iter().any(|seat| seat.turn() == Some(Turn::Decode));
        let budget = if decoding { CHUNK_SHARED } else { CHUNK_ALONE };
        let rate = self.learner.profile().map_or(f64::INFINITY, |profile| profile.prompt.get());
        ((rate * budget.as_secs_f64()) as usize).clamp(1, CHUNK_TOKENS_MAX)
    }

    /// Computes at most so many rows for a request, and draws what follows. False when that ended it.
    fn advance(&mut self, index: usize, rows_max: usize) -> bool {
        let Some(seat) = self.seats.get_mut(index) else { return false };
        match compute(&self.model, &self.texts, seat, rows_max) {
            Ok(()) => true,
            Err(failure) => {
                self.seats.remove(index).claim.finish(ExecEvent::Failed(failure));
                false
            }
        }
    }

    fn serve_all(&mut self, cx: &mut Context<'_>) {
        let mut moment = Moment {
            cx,
            now: Instant::now(),
            stall_max: Duration::from_millis(self.config.stall_ms_max),
            // Told twice as often as promised, so that a long step in between keeps the promise.
            tell_every: PROGRESS_EVERY / 2,
        };
        let mut learned = false;
        let mut index = 0;
        while let Some(seat) = self.seats.get_mut(index) {
            let Some(leave) = seat.serve(&self.texts.tokenizer, &mut moment) else {
                index += 1;
                continue;
            };
            let seat = self.seats.remove(index);
            // Some of the layers say nothing about the speed of all.
            if seat.layers == self.model.layers() {
                self.learner.observe(&seat.observation());
                learned = true;
            }
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

fn compute(model: &Model, texts: &Texts, seat: &mut Seat, rows_max: usize) -> Result<(), Failure> {
    let began = Instant::now();
    let failure = |error: candle_core::Error| Failure::Engine(first_line(&error));
    let Some(chunk) = seat.chunk(rows_max, model.shape().hidden).map_err(failure)? else { return Ok(()) };
    let logits = run(model, seat, &chunk).map_err(failure)?;
    seat.computed(&chunk, began.elapsed());
    match logits {
        Some(mut logits) => seat.draw(&mut logits, &texts.tokenizer),
        None => Ok(()),
    }
}

/// Runs rows through the layers. Gives logits where a token is drawn here; else the next stage gets the rows.
fn run(model: &Model, seat: &mut Seat, chunk: &Chunk) -> candle_core::Result<Option<Vec<f32>>> {
    let hidden = match &chunk.rows {
        Rows::Ids(ids) => model.embed(ids)?,
        Rows::Hidden(hidden) => hidden.clone(),
    };
    let hidden = model.forward(seat.layers.clone(), &hidden, chunk.start, &mut seat.cache)?;
    match &mut seat.drawing {
        Drawing::Beyond(next) => next.take(&hidden, chunk.start, chunk.draw).map(|()| None),
        Drawing::Here(_) if chunk.draw => model.logits(&hidden).map(Some),
        Drawing::Here(_) => Ok(None),
    }
}
