//! The thread that computes: each step takes all decoding requests, and a small piece of one prompt, through the model together.
//!
//! It never waits for one request while it could compute for another; when none can go on, it sleeps until a reader has made
//! room, another stage has sent something, or a request has come.

use super::config::{LlmConfig, first_line};
use super::model::{Model, Run, States};
use super::pacer::Pacer;
use super::prefix::Prefixes;
use super::seat::{Chunk, Leave, Moment, Rows, Seat, Turn};
use super::survey::Survey;
use super::template::Texts;
use crate::exec::{ExecEvent, PROGRESS_EVERY};
use shared::fleet::{ReplicaReport, Step};
use shared::plan::{Failure, Reason};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::thread::Thread;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Most tokens of a prompt in one step: weights are read once for all of them, which made prompts a fifth faster than sixteen did;
/// more gained little, and a cancel waits for one step at most.
pub(super) const CHUNK_TOKENS_MAX: usize = 32;

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
    pub(super) pacer: Pacer,
    /// What is still to be measured while nobody wants anything.
    pub(super) survey: Option<Survey>,
    pub(super) prefixes: Prefixes,
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
            if !self.step(&mut cx) && !self.survey() {
                self.pacer.keep(false);
                self.rest();
            }
        }
        self.pacer.keep(true);
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
                Poll::Ready(Some(seat)) => {
                    self.seats.push(seat);
                    self.survey.iter_mut().for_each(Survey::give_way);
                }
                Poll::Ready(None) => return false,
                Poll::Pending => return true,
            }
        }
    }

    /// Sleeps until something that was waited for has happened. What happened since it was last looked at ends the sleep at once.
    fn rest(&self) {
        if self.seats.is_empty() { std::thread::park() } else { std::thread::park_timeout(PAUSE) }
    }

    /// Measures a little, if there is something left to measure and nobody is here. False when there was nothing.
    fn survey(&mut self) -> bool {
        let rows_max = self.chunk_tokens(false);
        let Some(survey) = self.survey.as_mut().filter(|_| self.seats.is_empty()) else { return false };
        match survey.pass(&self.model, self.config.cache, rows_max) {
            Ok(Some((step, took))) => {
                self.pacer.step(&step, took);
                return true;
            }
            Ok(None) => {}
            Err(error) => tracing::warn!(variant = %self.config.variant, why = first_line(&error), "measuring was given up"),
        }
        self.survey = None;
        self.pacer.keep(true);
        self.report_profile();
        let pace = self.pacer.pace();
        tracing::info!(
            variant = %self.config.variant, step_ms = pace.step.get() * 1e3, prompt_ms = pace.prompt.get() * 1e3,
            decode_ms = pace.decode.get() * 1e3, seen_us = pace.seen.get() * 1e6, "model measured"
        );
        true
    }

    fn report_profile(&self) {
        let profile = self.pacer.profile();
        self.report.send_if_modified(|report| std::mem::replace(&mut report.profile, profile.clone()) != profile);
    }

    /// One step: what waits is delivered, then each decoding request gets a token, and one prompt a piece, in one pass through the
    /// model. False when nothing could be computed.
    fn step(&mut self, cx: &mut Context<'_>) -> bool {
        let began = Instant::now();
        self.serve_all(cx);
        let mut rest = self.choose();
        let mut passes = Vec::new();
        // Requests whose layers differ (stages beside whole ones) share no pass.
        while let Some((first, _)) = rest.first() {
            let layers = self.seats.get(*first).map(|seat| seat.layers.clone()).unwrap_or_default();
            let (group, others) =
                rest.into_iter().partition(|(index, _)| self.seats.get(*index).is_some_and(|seat| seat.layers == layers));
            // Some of the layers say nothing about the speed of all.
            let whole = layers == self.model.layers();
            passes.push(self.pass(layers, group).filter(|_| whole));
            rest = others;
        }
        if let [Some(step)] = passes.as_slice() {
            self.pacer.step(step, began.elapsed());
        }
        self.remove_failed();
        !passes.is_empty()
    }

    /// Which seats get how many rows in this step.
    fn choose(&mut self) -> Vec<(usize, usize)> {
        let turns = || self.seats.iter().map(Seat::turn).enumerate();
        let decoding = turns().filter(|(_, turn)| *turn == Some(Turn::Decode)).map(|(index, _)| (index, 1));
        let mut chosen: Vec<(usize, usize)> = decoding.collect();
        let prefilling = turns().find(|(_, turn)| *turn == Some(Turn::Prefill));
        if let Some((index, _)) = prefilling {
            self.reuse(index);
            chosen.push((index, self.chunk_tokens(!chosen.is_empty())));
        }
        // In the order of seats, in which a pass collects them.
        chosen.sort_unstable();
        chosen
    }

    /// Takes what is known of a prompt that begins now: not when it came, since the one before it may have been like it.
    fn reuse(&mut self, index: usize) {
        let whole = self.model.layers();
        let Some(seat) = self.seats.get_mut(index).filter(|seat| seat.layers == whole) else { return };
        let Some(ids) = seat.untouched() else { return };
        let blocks = self.prefixes.longest(ids);
        if !blocks.is_empty() {
            seat.adopt(blocks);
        }
    }

    /// Length of a prompt's piece in this step.
    fn chunk_tokens(&self, beside_others: bool) -> usize {
        let budget = if beside_others { CHUNK_SHARED } else { CHUNK_ALONE };
        let rest = budget.as_secs_f64() - self.pacer.pace().step.get();
        ((rest / self.pacer.pace().prompt.get()) as usize).clamp(1, CHUNK_TOKENS_MAX)
    }

    /// Takes rows of several seats through the layers together, and draws what follows. Says what was computed.
    fn pass(&mut self, layers: Range<usize>, chosen: Vec<(usize, usize)>) -> Option<Step> {
        let began = Instant::now();
        let width = self.model.shape().hidden;
        let alone = self.seats.len() == 1;
        let mut wanted = chosen.into_iter().peekable();
        let mut members = Vec::new();
        for (index, seat) in self.seats.iter_mut().enumerate() {
            let Some((_, rows_max)) = wanted.next_if(|(wanted, _)| *wanted == index) else { continue };
            if let Some(chunk) = seat.chunk(rows_max, width) {
                if seat.begins(self.pacer.pace()) && alone {
                    self.pacer.overhead(began.duration_since(seat.claim.accepted));
                }
                members.push((seat, chunk));
            }
        }
        let step = members.iter().fold(Step::default(), |step, (_, chunk)| step.and(chunk.step()));
        let outcome = compute(&self.model, layers, &mut members).map_err(|error| Failure::Engine(first_line(&error)));
        let mut results = match outcome {
            Ok(results) => results,
            Err(failure) => {
                members.iter_mut().for_each(|(seat, _)| seat.failed = Some(failure.clone()));
                return None;
            }
        };
        let mut logits = results.logits.chunks_exact_mut(self.model.shape().vocabulary.max(1));
        let whole = self.model.layers();
        let mut row = 0;
        for (seat, chunk) in &mut members {
            if seat.computed(chunk) && seat.layers == whole {
                seat.done().into_iter().for_each(|(ids, blocks)| self.prefixes.keep(ids, blocks));
            }
            let rows = row..row + chunk.count;
            row = rows.end;
            let drawn = match if seat.draws_here(chunk) { logits.next() } else { None } {
                Some(logits) => seat.draw(logits, &self.texts.tokenizer),
                None => seat.pass_on(chunk, || results.states.part(rows)),
            };
            seat.failed = drawn.err();
        }
        let took = began.elapsed();
        members.iter_mut().for_each(|(seat, chunk)| seat.passed(chunk, &step, took));
        Some(step)
    }

    fn remove_failed(&mut self) {
        let mut index = 0;
        while let Some(seat) = self.seats.get_mut(index) {
            let Some(failure) = seat.failed.take() else {
                index += 1;
                continue;
            };
            self.seats.remove(index).claim.finish(ExecEvent::Failed(failure));
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
                seat.done().into_iter().for_each(|(ids, blocks)| self.prefixes.keep(ids, blocks));
                let [prompt, answer] = seat.judged();
                self.pacer.judge(prompt, answer);
                learned = true;
            }
            match leave {
                Leave::Saying(event) => seat.claim.finish(event),
                Leave::Silently => seat.claim.close(),
            }
        }
        if learned {
            self.report_profile();
        }
    }
}

/// What a pass gives.
struct Results {
    /// After the last layer, all rows.
    states: States,
    /// A row for each member that draws here.
    logits: Vec<f32>,
}

/// Runs the chunks of several seats through the layers.
fn compute(model: &Model, layers: Range<usize>, members: &mut [(&mut Seat, Chunk)]) -> candle_core::Result<Results> {
    let mut states = States::new(Vec::new(), model.shape().hidden);
    for (_, chunk) in &*members {
        match &chunk.rows {
            Rows::Ids(ids) => states.extend(&model.embed(ids)?),
            Rows::Hidden(rows) => states.extend(rows),
        }
    }
    let mut runs: Vec<Run<'_>> =
        members.iter_mut().map(|(seat, chunk)| Run { cache: &mut seat.cache, start: chunk.start, rows: chunk.count }).collect();
    let states = model.forward_all(layers, states, &mut runs)?;
    let mut last = States::new(Vec::new(), model.shape().hidden);
    let mut row = 0;
    for (seat, chunk) in &*members {
        row += chunk.count;
        if seat.draws_here(chunk) {
            last.extend(&states.part(row - 1..row));
        }
    }
    let logits = if last.rows() == 0 { Vec::new() } else { model.logits_all(&last)? };
    Ok(Results { states, logits })
}
