//! The thread that computes: one pass after the other, each with a token for every request that decodes and a piece of one prompt.

use super::LlamaCppConfig;
use super::compute::{BATCH_TOKENS, Passes, Piece};
use super::seat::Seat;
use crate::exec::llm::config::ModelError;
use crate::exec::llm::template::Texts;
use crate::exec::rates::{Learner, Observation};
use crate::exec::{ExecEvent, PROGRESS_EVERY};
use shared::fleet::{Profile, ProfileSource, ReplicaReport};
use shared::plan::{Failure, Reason};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// A piece of a prompt shall take no longer than this, as far as the measured rate tells: a cancel is then acted upon well within its
/// 500 ms, on slow machines too.
const PIECE_ALONE: Duration = Duration::from_millis(300);
/// The same while others decode: a token of theirs then comes every fifteenth of a second or so, which reads as a steady pace.
const PIECE_SHARED: Duration = Duration::from_millis(60);
/// Shorter pieces waste a pass over the weights.
const PIECE_TOKENS_MIN: usize = 8;
/// When all seats wait for their readers, they are looked at again after this: unnoticeable to a reader, no load to speak of.
const PAUSE: Duration = Duration::from_millis(5);

/// Tokens of the measured prompt, and tokens generated after it.
const MEASURED_TOKENS: (usize, usize) = (128, 24);
/// Of the round before, which warms memory and threads and is thrown away.
const WARM_TOKENS: (usize, usize) = (16, 2);

/// The state of the computing thread.
pub(super) struct Worker<'m> {
    pub(super) passes: Passes<'m>,
    pub(super) texts: Arc<Texts>,
    pub(super) config: LlamaCppConfig,
    pub(super) stop: Arc<AtomicBool>,
    pub(super) report: watch::Sender<ReplicaReport>,
    pub(super) learner: Learner,
    /// By their place among the sequences.
    pub(super) seats: Vec<Option<Seat>>,
}

/// What a seat gets in a pass.
struct Share {
    place: usize,
    tokens: usize,
    drawn: bool,
    prefill: bool,
}

impl Worker<'_> {
    /// Works until stopped or until no more seats can come. Seats that are left are failed.
    pub(super) fn run(&mut self, arrivals: &Receiver<Seat>) {
        while !self.stop.load(Ordering::Acquire) {
            if !self.take_in(arrivals) && self.empty() {
                return;
            }
            self.step();
        }
        let draining = || Some(ExecEvent::Failed(Failure::Refused(Reason::Draining)));
        for seat in self.seats.drain(..).flatten().chain(arrivals.try_iter()) {
            seat.leave(draining());
        }
    }

    fn empty(&self) -> bool {
        self.seats.iter().all(Option::is_none)
    }

    /// Seats whoever arrived; waits when there is nothing else to do. False when nobody can arrive any more.
    fn take_in(&mut self, arrivals: &Receiver<Seat>) -> bool {
        let first = if self.empty() {
            arrivals.recv().map_err(|_| RecvTimeoutError::Disconnected)
        } else if self.seats.iter().flatten().all(Seat::paused) {
            arrivals.recv_timeout(PAUSE)
        } else {
            arrivals.try_recv().map_err(|error| match error {
                TryRecvError::Empty => RecvTimeoutError::Timeout,
                TryRecvError::Disconnected => RecvTimeoutError::Disconnected,
            })
        };
        let open = !matches!(first, Err(RecvTimeoutError::Disconnected));
        for seat in first.into_iter().chain(arrivals.try_iter()) {
            // Slots are counted before anybody comes here, so there is a place for each.
            match self.seats.iter_mut().find(|place| place.is_none()) {
                Some(place) => *place = Some(seat),
                None => seat.leave(Some(ExecEvent::Failed(Failure::Refused(Reason::Busy)))),
            }
        }
        open
    }

    /// What waits is delivered, then one pass is computed.
    fn step(&mut self) {
        self.serve_all();
        let shares = self.shares();
        if shares.is_empty() {
            return;
        }
        let pieces: Vec<Piece<'_>> = shares
            .iter()
            .filter_map(|share| {
                let (ids, start) = self.seats.get(share.place)?.as_ref()?.next(share.tokens);
                Some(Piece { place: share.place, ids, start, drawn: share.drawn })
            })
            .collect();
        let mut logits: Vec<(usize, Vec<f32>)> = Vec::new();
        let began = Instant::now();
        let done = self.passes.run(&pieces, |number, values| logits.push((number, values.to_vec())));
        let took = began.elapsed();
        match done {
            Ok(()) => self.passed(&shares, &mut logits, took),
            Err(why) => self.fail(&shares, &why),
        }
        self.serve_all();
    }

    /// A token for each seat that decodes, and a piece for the first that has a prompt.
    fn shares(&self) -> Vec<Share> {
        let seats = || self.seats.iter().enumerate().filter_map(|(place, seat)| Some((place, seat.as_ref()?)));
        let mut shares: Vec<Share> = seats()
            .filter(|(_, seat)| seat.decodes())
            .map(|(place, _)| Share { place, tokens: 1, drawn: true, prefill: false })
            .collect();
        let budget = if shares.is_empty() { PIECE_ALONE } else { PIECE_SHARED };
        if let Some((place, seat)) = seats().find(|(_, seat)| seat.prefills()) {
            let tokens = seat.next(self.piece_tokens(budget, shares.len())).0.len();
            shares.push(Share { place, tokens, drawn: seat.drawn_after(tokens), prefill: true });
        }
        shares
    }

    fn piece_tokens(&self, budget: Duration, others: usize) -> usize {
        let rate = self.learner.profile().map_or(f64::INFINITY, |profile| profile.prompt.get());
        let tokens = (rate * budget.as_secs_f64()) as usize;
        tokens.clamp(PIECE_TOKENS_MIN, BATCH_TOKENS.saturating_sub(others))
    }

    fn passed(&mut self, shares: &[Share], logits: &mut [(usize, Vec<f32>)], took: Duration) {
        // A pass belongs to all who are in it by what each would have taken alone: a prompt's piece by its rate, the rest equally.
        let piece = shares.iter().find(|share| share.prefill).map_or(Duration::ZERO, |share| self.alone(share.tokens, took));
        let decoding = shares.iter().filter(|share| !share.prefill).count();
        let token = took.saturating_sub(if decoding > 0 { piece } else { Duration::ZERO });
        for (number, share) in shares.iter().enumerate() {
            let Some(seat) = self.seats.get_mut(share.place).and_then(Option::as_mut) else { continue };
            // One pass serves all that decode: each would have taken nearly as long alone.
            let own = if !share.prefill {
                token
            } else if decoding == 0 {
                took
            } else {
                piece
            };
            seat.computed(share.tokens, own);
            let drawn = match logits.iter_mut().find(|(of, _)| *of == number) {
                Some((_, values)) => seat.draw(values, &self.texts.tokenizer),
                None => Ok(()),
            };
            if let Err(failure) = drawn {
                self.leave(share.place, Some(ExecEvent::Failed(failure)));
            }
        }
    }

    /// What a prompt's piece would have taken alone, as far as is known; at most the whole pass.
    fn alone(&self, tokens: usize, took: Duration) -> Duration {
        let rate = self.learner.profile().map_or(f64::INFINITY, |profile| profile.prompt.get());
        Duration::try_from_secs_f64(tokens as f64 / rate).unwrap_or_default().min(took)
    }

    fn fail(&mut self, shares: &[Share], why: &str) {
        for share in shares {
            self.leave(share.place, Some(ExecEvent::Failed(Failure::Engine(format!("llama.cpp: {why}")))));
        }
    }

    fn leave(&mut self, place: usize, last: Option<ExecEvent>) {
        let Some(seat) = self.seats.get_mut(place).and_then(Option::take) else { return };
        self.passes.forget(place);
        self.learner.observe(&seat.observation());
        seat.leave(last);
        let profile = self.learner.profile();
        self.report.send_if_modified(|report| std::mem::replace(&mut report.profile, profile.clone()) != profile);
    }

    fn serve_all(&mut self) {
        let now = Instant::now();
        let stall_max = Duration::from_millis(self.config.stall_ms_max);
        for place in 0..self.seats.len() {
            // Told twice as often as promised, so that a long pass in between keeps the promise.
            let served = self
                .seats
                .get_mut(place)
                .and_then(Option::as_mut)
                .and_then(|seat| seat.serve(now, stall_max, PROGRESS_EVERY / 2));
            if let Some(last) = served {
                self.leave(place, last);
            }
        }
    }
}

/// Runs a short sequence and says how fast it was.
pub(super) fn measure(passes: &mut Passes<'_>, context: usize, go_on: &dyn Fn() -> bool) -> Result<Profile, ModelError> {
    round(passes, WARM_TOKENS, context, go_on)?;
    let seen = round(passes, MEASURED_TOKENS, context, go_on)?;
    let mut learner = Learner::default();
    learner.observe(&seen);
    let profile = learner.profile().ok_or_else(|| failed("no time was measured"))?;
    Ok(Profile { source: ProfileSource::WarmUp, ..profile })
}

fn failed(why: impl Into<String>) -> ModelError {
    candle_core::Error::Msg(why.into()).into()
}

fn round(
    passes: &mut Passes<'_>,
    (prompt, decode): (usize, usize),
    context: usize,
    go_on: &dyn Fn() -> bool,
) -> Result<Observation, ModelError> {
    let vocabulary = passes.vocabulary() as usize;
    let id = |position: usize| u32::try_from(position * 7_919 % vocabulary.max(1)).unwrap_or(0);
    let ids: Vec<u32> = (0..prompt.min(context / 2).max(1)).map(id).collect();
    let mut pass = |ids: &[u32], start, drawn| {
        if !go_on() {
            return Err(ModelError::Stopped);
        }
        passes.run(&[Piece { place: 0, ids, start, drawn }], |_, _| {}).map_err(failed)
    };
    let began = Instant::now();
    pass(&ids, 0, true)?;
    let prompt_seconds = began.elapsed().as_secs_f64();
    let began = Instant::now();
    let decoded = decode.min(context.saturating_sub(ids.len()));
    for position in ids.len()..ids.len() + decoded {
        pass(&[id(position)], position, true)?;
    }
    let decode_seconds = began.elapsed().as_secs_f64();
    passes.forget(0);
    Ok(Observation {
        prompt_tokens: u32::try_from(ids.len()).unwrap_or(u32::MAX),
        prompt_seconds,
        decode_tokens: u32::try_from(decoded).unwrap_or(u32::MAX),
        decode_seconds,
        overhead_seconds: Some(0.0),
    })
}
