//! One request with a place among the sequences: what was computed for it, what it may still get, and what waits to be read.

use crate::exec::hold::Hold;
use crate::exec::llm::sampling::Sampler;
use crate::exec::llm::stop::Spout;
use crate::exec::llm::tokenizer::Tokenizer;
use crate::exec::outlet::{Offered, Outlet};
use crate::exec::rates::Observation;
use crate::exec::{ExecEvent, WholeJob};
use shared::plan::{Failure, Finish, Usage};
use shared::units::Tokens;
use shared::wire::Body;
use shared::wire::frame::TokenBatch;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// A slot, and the way to whoever wants the answer.
pub(super) struct Claim {
    hold: Hold,
    outlet: Outlet,
    pub(super) cancel: CancellationToken,
    deadline: Option<Instant>,
    told: Instant,
}

impl Claim {
    /// Takes a job apart.
    pub(super) fn new(job: WholeJob, hold: Hold) -> (Self, Arc<Body>, u32) {
        let accepted = Instant::now();
        let remaining = job.header.remaining.map(|remaining| Duration::from_micros(remaining.0));
        let deadline = remaining.and_then(|remaining| accepted.checked_add(remaining));
        let output_max = job.header.output_max.0.min(job.body.sampling.max_tokens);
        let outlet = Outlet::new(job.sink);
        (Self { hold, outlet, cancel: job.cancel, deadline, told: accepted }, job.body, output_max)
    }

    pub(super) fn overdue(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Says that the job lives, unless that was said within `pause`.
    pub(super) fn tell(&mut self, now: Instant, pause: Duration) {
        if now.duration_since(self.told) >= pause {
            self.told = now;
            self.outlet.progress();
        }
    }

    /// Frees the slot, then says how the job ended: whoever reads it can submit the next one at once. Nothing is said to nobody.
    pub(super) fn end(self, last: Option<ExecEvent>) {
        drop(self.hold);
        match last {
            Some(event) => self.outlet.finish(event),
            None => self.outlet.close(),
        }
    }
}

/// A request in execution.
pub(super) struct Seat {
    claim: Claim,
    /// Prompt, then the tokens that the client already has, then each that was drawn.
    ids: Vec<u32>,
    given: usize,
    prompt: u32,
    output: u32,
    output_max: u32,
    computed: usize,
    sampler: Sampler,
    spout: Spout,
    pending: Option<ExecEvent>,
    stalled: Option<Instant>,
    ending: Option<Finish>,
    seen: Observation,
}

impl Seat {
    /// Seats a request whose prompt has these ids, or says why it cannot be.
    pub(super) fn new(
        claim: Claim,
        mut ids: Vec<u32>,
        body: &Body,
        output_max: u32,
        context: u32,
        tokenizer: &Tokenizer,
    ) -> Result<Self, (Claim, Failure)> {
        let prompt = u32::try_from(ids.len()).unwrap_or(u32::MAX);
        if prompt >= context {
            return Err((claim, Failure::PromptTooLong { prompt: Tokens(prompt), context: Tokens(context) }));
        }
        if body.resume.iter().any(|id| *id as usize >= tokenizer.len()) {
            let message = "the stream was begun with another vocabulary".to_owned();
            return Err((claim, Failure::BadRequest { param: Some("resume".to_owned()), message }));
        }
        let ways = Sampler::new(&body.sampling).and_then(|sampler| Ok((sampler, Spout::new(&body.sampling)?)));
        let (mut sampler, mut spout) = match ways {
            Ok(ways) => ways,
            Err(failure) => return Err((claim, failure)),
        };
        sampler.prompted(&ids);
        let mut ending = None;
        for id in &body.resume {
            sampler.generated(*id);
            if spout.pour(tokenizer.bytes(*id)).stopped {
                ending = Some(Finish::Stop);
            }
        }
        let output = u32::try_from(body.resume.len()).unwrap_or(u32::MAX);
        let output_max = output_max.min(context - prompt);
        if output >= output_max {
            ending = ending.or(Some(Finish::Length));
        }
        ids.extend_from_slice(&body.resume);
        let (given, pending, stalled, seen, computed) = (ids.len(), None, None, Observation::default(), 0);
        Ok(Self { claim, ids, given, prompt, output, output_max, computed, sampler, spout, pending, stalled, ending, seen })
    }

    /// Whether its prompt is still to be computed.
    pub(super) fn prefills(&self) -> bool {
        self.ending.is_none() && self.computed < self.given
    }

    /// Whether its next token can be computed: not while the last one waits to be read.
    pub(super) fn decodes(&self) -> bool {
        self.ending.is_none() && self.pending.is_none() && self.computed >= self.given
    }

    /// Whether it waits for its reader, and nothing can be done for it meanwhile.
    pub(super) fn paused(&self) -> bool {
        self.pending.is_some()
    }

    /// What is to be computed next, at most `tokens` of it, and the position of the first.
    pub(super) fn next(&self, tokens: usize) -> (&[u32], usize) {
        let rest = self.ids.get(self.computed..).unwrap_or_default();
        (rest.get(..tokens).unwrap_or(rest), self.computed)
    }

    /// Whether a token can be drawn after `tokens` more.
    pub(super) fn drawn_after(&self, tokens: usize) -> bool {
        self.computed + tokens >= self.ids.len()
    }

    /// Takes note that so many tokens were computed, in so much time that was its own.
    pub(super) fn computed(&mut self, tokens: usize, took: Duration) {
        let count = u32::try_from(tokens).unwrap_or(u32::MAX);
        if self.prefills() {
            self.seen.prompt_tokens += count;
            self.seen.prompt_seconds += took.as_secs_f64();
        } else {
            self.seen.decode_tokens += count;
            self.seen.decode_seconds += took.as_secs_f64();
        }
        self.computed += tokens;
    }

    /// Draws a token from the logits, and puts what it says into the way out.
    pub(super) fn draw(&mut self, logits: &mut [f32], tokenizer: &Tokenizer) -> Result<(), Failure> {
        let Some(id) = self.sampler.draw(logits, u64::from(self.output)) else {
            return Err(Failure::Engine("the model gave no number for any token".to_owned()));
        };
        if tokenizer.is_end(id) {
            self.ending = Some(Finish::Stop);
            let text = self.spout.drain();
            self.pending = (!text.is_empty()).then(|| ExecEvent::Tokens(TokenBatch { text, ..TokenBatch::default() }));
            return Ok(());
        }
        self.output += 1;
        self.sampler.generated(id);
        let mut poured = self.spout.pour(tokenizer.bytes(id));
        if poured.stopped {
            self.ending = Some(Finish::Stop);
        } else if self.output >= self.output_max {
            self.ending = Some(Finish::Length);
            poured.text += &self.spout.drain();
        }
        self.ids.push(id);
        self.pending = Some(ExecEvent::Tokens(TokenBatch { count: 1, ids: vec![id], text: poured.text, delta: None }));
        Ok(())
    }

    /// Delivers what waits. True when the seat becomes free: [`Self::leave`] then says how.
    pub(super) fn serve(&mut self, now: Instant, stall_max: Duration, pause: Duration) -> Option<Option<ExecEvent>> {
        if self.claim.cancel.is_cancelled() {
            return Some(None);
        }
        if self.claim.overdue(now) {
            return Some(Some(ExecEvent::Failed(Failure::DeadlineExceeded)));
        }
        if let Some(event) = self.pending.take() {
            match self.claim.outlet.offer(event) {
                Offered::Sent => self.stalled = None,
                Offered::Gone => return Some(None),
                Offered::Full(event) => {
                    self.pending = Some(event);
                    let since = *self.stalled.get_or_insert(now);
                    let stalled = now.duration_since(since) >= stall_max;
                    return stalled.then_some(Some(ExecEvent::Failed(Failure::ClientStalled)));
                }
            }
        }
        if let Some(finish) = self.ending {
            let usage = Usage { prompt: Tokens(self.prompt), output: Tokens(self.output), cached: Tokens(0) };
            return Some(Some(ExecEvent::End(finish, usage)));
        }
        if self.prefills() {
            self.claim.tell(now, pause);
        }
        None
    }

    /// Ends it.
    pub(super) fn leave(self, last: Option<ExecEvent>) {
        self.claim.end(last);
    }

    /// What was seen of it, for the profile.
    pub(super) const fn observation(&self) -> Observation {
        self.seen
    }
}
