//! One request with a slot: what was computed for it, what it may still get, and what waits to be read or sent on.
//!
//! A whole request turns text into text. The first of several stages does so too, but has its tokens drawn by the last one; the
//! later stages turn hidden states into hidden states, or into tokens, and know no text.

use super::cache::{Block, Cache};
use super::claim::{Claim, Delivered};
use super::intake::{self, Intake};
use super::model::States;
use super::next::Next;
use super::pacer::Judged;
use super::sampling::Sampler;
use super::stop::Spout;
use super::tokenizer::Tokenizer;
use crate::exec::ExecEvent;
use edge_kernels::BLOCK;
use shared::fleet::{Pace, Step};
use shared::plan::{Failure, Finish, Usage};
use shared::units::Tokens;
use shared::wire::frame::{Drawn, TokenBatch};
use std::ops::Range;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// How a seat becomes free.
#[derive(Debug, PartialEq)]
pub(super) enum Leave {
    /// With a last event.
    Saying(ExecEvent),
    /// Nobody listens.
    Silently,
}

/// What is computed on.
pub(super) enum Feed {
    /// Tokens: the prompt, those that the client already has, then each that is drawn.
    Tokens {
        /// Their ids.
        ids: Vec<u32>,
        /// How many there were at the beginning.
        given: usize,
    },
    /// Hidden states of the stage before.
    Hidden(Intake),
}

/// Who draws tokens.
pub(super) enum Drawing {
    /// This node, which computes the last layers.
    Here(Sampler),
    /// The last stage, beyond the next one.
    Beyond(Next),
}

/// In what form an answer is told.
pub(super) enum Telling {
    /// As text.
    Text {
        /// From bytes to text.
        spout: Spout,
        /// Most tokens to generate.
        output_max: u32,
    },
    /// As token ids, to the stage before.
    Ids,
}

/// A request in execution.
pub(super) struct Seat {
    pub(super) claim: Claim,
    pub(super) layers: Range<usize>,
    pub(super) cache: Cache,
    pub(super) feed: Feed,
    pub(super) drawing: Drawing,
    pub(super) telling: Telling,
    /// Tokens of the prompt; of a later stage, once the first token is asked for.
    pub(super) prompt: u32,
    /// Tokens that the client had already.
    pub(super) resumed: u32,
    /// Tokens drawn, and those that the client had already.
    pub(super) output: u32,
    pub(super) ending: Option<Finish>,
    /// Why it cannot go on; it is removed after the step.
    pub(super) failed: Option<Failure>,
    pub(super) progress: Progress,
}

/// How far a request has come.
#[derive(Debug, Default)]
pub(super) struct Progress {
    computed: usize,
    /// Of these, tokens that had been computed for somebody before.
    cached: usize,
    asked: bool,
    pending: Option<ExecEvent>,
    /// The pace that held when the first pass began: by it the request's own time was to be foretold.
    foretold: Option<Pace>,
    /// How that turned out, for prompt and answer.
    judged: [Judged; 2],
}

/// What a seat waits to have computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Turn {
    /// One token, after which the next is drawn.
    Decode,
    /// Some of the many tokens of a prompt.
    Prefill,
}

/// Rows to run next, and the position of the first.
pub(super) struct Chunk {
    pub(super) rows: Rows,
    pub(super) start: usize,
    pub(super) count: usize,
    /// Whether the token after them shall be drawn.
    pub(super) draw: bool,
    turn: Turn,
}

/// What is known of the rows.
pub(super) enum Rows {
    /// The tokens.
    Ids(Vec<u32>),
    /// Their hidden states before the first layer here.
    Hidden(States),
}

impl Chunk {
    /// What it adds to a step.
    pub(super) fn step(&self) -> Step {
        Step::of(self.start as f64, self.count as f64, self.draw)
    }
}

impl Seat {
    /// What could be computed for it now: nothing while it waits for its reader or for another stage.
    pub(super) fn turn(&self) -> Option<Turn> {
        let blocked = matches!(&self.drawing, Drawing::Beyond(next) if !next.has_room());
        if blocked || self.ending.is_some() || self.progress.pending.is_some() {
            return None;
        }
        match &self.feed {
            Feed::Tokens { ids, given } => match ids.len().saturating_sub(self.progress.computed) {
                0 => None,
                _ if self.progress.computed < *given => Some(Turn::Prefill),
                _ => Some(Turn::Decode),
            },
            Feed::Hidden(intake) => match intake.waiting() {
                0 => None,
                1 => Some(Turn::Decode),
                _ => Some(Turn::Prefill),
            },
        }
    }

    /// The next rows to compute, at most `rows_max`, for hidden states of `width`.
    pub(super) fn chunk(&mut self, rows_max: usize, width: usize) -> Option<Chunk> {
        let turn = self.turn()?;
        let start = self.progress.computed;
        let rows_max = match &self.drawing {
            Drawing::Beyond(next) => rows_max.min(next.rows_max(width)),
            Drawing::Here(_) => rows_max,
        };
        match &mut self.feed {
            Feed::Tokens { ids, .. } => {
                let rest = ids.get(start..).unwrap_or_default();
                let ids = rest.get(..rows_max.min(rest.len())).unwrap_or_default().to_vec();
                Some(Chunk { count: ids.len(), draw: ids.len() == rest.len(), rows: Rows::Ids(ids), start, turn })
            }
            Feed::Hidden(intake) => {
                let intake::Rows { states, draw } = intake.take(rows_max)?;
                Some(Chunk { count: states.rows(), draw, rows: Rows::Hidden(states), start, turn })
            }
        }
    }

    /// The tokens of a whole request of which nothing was computed yet.
    pub(super) fn untouched(&self) -> Option<&[u32]> {
        match (&self.feed, &self.drawing) {
            (Feed::Tokens { ids, .. }, Drawing::Here(_)) if self.progress.computed == 0 => Some(ids),
            _ => None,
        }
    }

    /// Begins with the blocks of a sequence that began alike.
    pub(super) fn adopt(&mut self, blocks: Vec<Arc<Block>>) {
        self.progress.cached = blocks.len() * BLOCK;
        self.progress.computed = self.progress.cached;
        self.cache.adopt(blocks);
    }

    /// The tokens of a whole request that were computed, and the blocks that are full of them.
    pub(super) fn done(&self) -> Option<(&[u32], &[Arc<Block>])> {
        match (&self.feed, &self.drawing) {
            (Feed::Tokens { ids, .. }, Drawing::Here(_)) => {
                Some((ids.get(..self.progress.computed)?, self.cache.full(self.progress.computed)))
            }
            _ => None,
        }
    }

    /// Begins its first pass at this pace. False where it began before.
    pub(super) fn begins(&mut self, pace: &Pace) -> bool {
        let new = self.progress.foretold.is_none();
        self.progress.foretold.get_or_insert(*pace);
        new
    }

    /// Was part of a pass that took so long.
    pub(super) fn passed(&mut self, chunk: &Chunk, step: &Step, took: Duration) {
        let [prompt, answer] = &mut self.progress.judged;
        let phase = if chunk.turn == Turn::Prefill { prompt } else { answer };
        if let Some(pace) = &self.progress.foretold {
            phase.add(pace.seconds(step), took.as_secs_f64());
        }
    }

    /// Takes note that a chunk was computed. True when that was the end of its prompt.
    pub(super) fn computed(&mut self, chunk: &Chunk) -> bool {
        self.progress.computed += chunk.count;
        if !chunk.draw || self.progress.asked {
            return false;
        }
        self.progress.asked = true;
        let computed = u32::try_from(self.progress.computed).unwrap_or(u32::MAX);
        self.prompt = computed.saturating_sub(self.resumed);
        true
    }

    /// Whether the token after this chunk is drawn here.
    pub(super) fn draws_here(&self, chunk: &Chunk) -> bool {
        chunk.draw && matches!(self.drawing, Drawing::Here(_))
    }

    /// Takes the hidden states of a chunk after the last layer here, if the next stage wants them.
    pub(super) fn pass_on(&mut self, chunk: &Chunk, states: impl FnOnce() -> States) -> Result<(), Failure> {
        match &mut self.drawing {
            Drawing::Beyond(next) => next.take(&states(), chunk.start, chunk.draw),
            Drawing::Here(_) => Ok(()),
        }
    }

    /// Draws a token from the logits, and puts what it says into the way out.
    pub(super) fn draw(&mut self, logits: &mut [f32], tokenizer: &Tokenizer) -> Result<(), Failure> {
        let Drawing::Here(sampler) = &mut self.drawing else { return Ok(()) };
        let Some(id) = sampler.draw(logits, u64::from(self.output)) else {
            return Err(Failure::Engine("the model gave no number for any token".to_owned()));
        };
        sampler.generated(id);
        self.drawn(id, tokenizer)
    }

    /// Takes in a token that was drawn here or beyond.
    fn drawn(&mut self, id: u32, tokenizer: &Tokenizer) -> Result<(), Failure> {
        if id as usize >= tokenizer.len() {
            return Err(Failure::Engine("the last stage draws from another vocabulary".to_owned()));
        }
        let Telling::Text { spout, output_max } = &mut self.telling else {
            self.output += 1;
            self.progress.pending = Some(ExecEvent::Drawn(Drawn(id)));
            return Ok(());
        };
        if tokenizer.is_end(id) {
            self.ending = Some(Finish::Stop);
            let text = spout.drain();
            self.progress.pending = (!text.is_empty()).then(|| ExecEvent::Tokens(TokenBatch { text, ..TokenBatch::default() }));
            return Ok(());
        }
        self.output += 1;
        let mut poured = spout.pour(tokenizer.bytes(id));
        if poured.stopped {
            self.ending = Some(Finish::Stop);
        } else if self.output >= *output_max {
            self.ending = Some(Finish::Length);
            poured.text += &spout.drain();
        }
        if let Feed::Tokens { ids, .. } = &mut self.feed {
            ids.push(id);
        }
        self.progress.pending = Some(ExecEvent::Tokens(TokenBatch { count: 1, ids: vec![id], text: poured.text, delta: None }));
        Ok(())
    }

    /// Delivers what waits, and takes in what came. Says whether the seat becomes free, and how. Whatever it waits for wakes the
    /// thread.
    pub(super) fn serve(&mut self, tokenizer: &Tokenizer, moment: &mut Moment<'_, '_>) -> Option<Leave> {
        if self.claim.cancel.is_cancelled() {
            return Some(Leave::Silently);
        }
        if self.claim.overdue(moment.now) {
            return Some(Leave::Saying(ExecEvent::Failed(Failure::DeadlineExceeded)));
        }
        match self.exchange(tokenizer, moment) {
            Ok(None) => {}
            Ok(leave) => return leave,
            Err(failure) => return Some(Leave::Saying(ExecEvent::Failed(failure))),
        }
        if self.output == self.resumed {
            self.claim.tell(moment.now, moment.tell_every);
        }
        None
    }

    fn exchange(&mut self, tokenizer: &Tokenizer, moment: &mut Moment<'_, '_>) -> Result<Option<Leave>, Failure> {
        let end = |seat: &Self, finish| Ok(Some(Leave::Saying(ExecEvent::End(finish, seat.usage()))));
        if let Feed::Hidden(intake) = &mut self.feed
            && let Poll::Ready(more) = intake.poll(moment.cx)
            && !more?
        {
            return end(self, Finish::Stop);
        }
        loop {
            if let Drawing::Beyond(next) = &mut self.drawing {
                next.flush(moment.cx, moment.now, moment.stall_max)?;
            }
            if let Some(event) = self.progress.pending.take() {
                match self.claim.deliver(event, moment.cx, moment.now, moment.stall_max) {
                    Delivered::Sent => {}
                    Delivered::Kept(event) => {
                        self.progress.pending = Some(event);
                        return Ok(None);
                    }
                    Delivered::Stalled => return Err(Failure::ClientStalled),
                    Delivered::Gone => return Ok(Some(Leave::Silently)),
                }
            }
            if let Some(finish) = self.ending {
                return end(self, finish);
            }
            let Drawing::Beyond(next) = &mut self.drawing else { return Ok(None) };
            let Poll::Ready(id) = next.poll_drawn(moment.cx) else { return Ok(None) };
            self.drawn(id?, tokenizer)?;
        }
    }

    fn usage(&self) -> Usage {
        let cached = u32::try_from(self.progress.cached).unwrap_or(u32::MAX).min(self.prompt);
        Usage { prompt: Tokens(self.prompt), output: Tokens(self.output), cached: Tokens(cached) }
    }

    /// How its pace was foretold: of its prompt, and of its answer.
    pub(super) const fn judged(&self) -> [Judged; 2] {
        self.progress.judged
    }
}

/// What a seat is served with.
pub(super) struct Moment<'a, 'b> {
    pub(super) cx: &'a mut Context<'b>,
    pub(super) now: Instant,
    /// A reader who has not drained his sink for so long loses his slot.
    pub(super) stall_max: Duration,
    /// How often a seat that has nothing to say says that it lives.
    pub(super) tell_every: Duration,
}
