//! One request with a slot: what was computed for it, what it may still get, and what waits to be read.

use super::cache::Cache;
use super::sampling::Sampler;
use super::stop::Spout;
use super::tokenizer::Tokenizer;
use crate::exec::hold::Hold;
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

/// A job that holds a slot and has a way out: all that is needed to end it properly.
#[derive(Debug)]
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
        let outlet = Outlet::new(job.sink);
        let output_max = job.header.output_max.0.min(job.body.sampling.max_tokens);
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

    /// Frees the slot, then says how the job ended: whoever reads it can submit the next one at once.
    pub(super) fn finish(self, event: ExecEvent) {
        drop(self.hold);
        self.outlet.finish(event);
    }

    /// Frees the slot without a word.
    pub(super) fn close(self) {
        drop(self.hold);
        self.outlet.close();
    }
}

/// How a seat becomes free.
#[derive(Debug, PartialEq)]
pub(super) enum Leave {
    /// With a last event.
    Saying(ExecEvent),
    /// Nobody listens.
    Silently,
}

/// A request in execution.
#[derive(Debug)]
pub(super) struct Seat {
    pub(super) claim: Claim,
    /// Prompt, then the tokens that the client already has.
    ids: Vec<u32>,
    prompt: u32,
    output: u32,
    output_max: u32,
    cache: Cache,
    computed: usize,
    next: Option<u32>,
    sampler: Sampler,
    spout: Spout,
    pending: Option<ExecEvent>,
    stalled: Option<Instant>,
    ending: Option<Finish>,
    seen: Observation,
}

/// Tokens to run next, and the position of the first.
pub(super) struct Chunk {
    pub(super) ids: Vec<u32>,
    pub(super) start: usize,
    /// Whether the token after them shall be drawn.
    pub(super) last: bool,
}

impl Seat {
    /// Seats a request whose prompt has these ids, or says why it cannot be.
    pub(super) fn new(
        claim: Claim,
        mut ids: Vec<u32>,
        body: &Body,
        output_max: u32,
        cache: Cache,
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
        let (next, pending, stalled, seen) = (None, None, None, Observation::default());
        let computed = 0;
        Ok(Self { claim, ids, prompt, output, output_max, cache, computed, next, sampler, spout, pending, stalled, ending, seen })
    }

    pub(super) fn cache(&mut self) -> &mut Cache {
        &mut self.cache
    }

    /// Whether its prompt is still to be computed.
    pub(super) fn prefills(&self) -> bool {
        self.ending.is_none() && self.computed < self.ids.len()
    }

    /// Whether its next token can be computed: not while the last one waits to be read.
    pub(super) fn decodes(&self) -> bool {
        self.ending.is_none() && self.pending.is_none() && self.next.is_some()
    }

    /// The next piece of the prompt, at most `tokens` long.
    pub(super) fn prefill_chunk(&self, tokens: usize) -> Chunk {
        let rest = self.ids.get(self.computed..).unwrap_or_default();
        let ids = rest.get(..tokens.min(rest.len())).unwrap_or_default().to_vec();
        Chunk { last: ids.len() == rest.len(), ids, start: self.computed }
    }

    /// The token that was drawn last.
    pub(super) fn decode_chunk(&self) -> Chunk {
        Chunk { ids: self.next.into_iter().collect(), start: self.computed, last: true }
    }

    /// Takes note that a chunk was computed, in so much time.
    pub(super) fn computed(&mut self, chunk: &Chunk, took: Duration) {
        let tokens = u32::try_from(chunk.ids.len()).unwrap_or(u32::MAX);
        if self.prefills() {
            self.seen.prompt_tokens += tokens;
            self.seen.prompt_seconds += took.as_secs_f64();
        } else {
            self.seen.decode_tokens += tokens;
            self.seen.decode_seconds += took.as_secs_f64();
        }
        self.computed += chunk.ids.len();
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
        self.next = Some(id);
        self.pending = Some(ExecEvent::Tokens(TokenBatch { count: 1, ids: vec![id], text: poured.text, delta: None }));
        Ok(())
    }

    /// Whether it waits for its reader, and nothing can be done for it meanwhile.
    pub(super) fn paused(&self) -> bool {
        self.pending.is_some()
    }

    /// Delivers what waits. Says whether the seat becomes free, and how.
    pub(super) fn serve(&mut self, now: Instant, stall_max: Duration, pause: Duration) -> Option<Leave> {
        if self.claim.cancel.is_cancelled() {
            return Some(Leave::Silently);
        }
        if self.claim.overdue(now) {
            return Some(Leave::Saying(ExecEvent::Failed(Failure::DeadlineExceeded)));
        }
        if let Some(event) = self.pending.take() {
            match self.claim.outlet.offer(event) {
                Offered::Sent => self.stalled = None,
                Offered::Gone => return Some(Leave::Silently),
                Offered::Full(event) => {
                    self.pending = Some(event);
                    let since = *self.stalled.get_or_insert(now);
                    let stalled = now.duration_since(since) >= stall_max;
                    return stalled.then_some(Leave::Saying(ExecEvent::Failed(Failure::ClientStalled)));
                }
            }
        }
        if let Some(finish) = self.ending {
            return Some(Leave::Saying(ExecEvent::End(finish, self.usage())));
        }
        if self.prefills() {
            self.claim.tell(now, pause);
        }
        None
    }

    fn usage(&self) -> Usage {
        Usage { prompt: Tokens(self.prompt), output: Tokens(self.output), cached: Tokens(0) }
    }

    /// What was seen of it, for the profile.
    pub(super) fn observation(&self) -> Observation {
        self.seen
    }
}
