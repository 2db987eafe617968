//! The thread that turns text into tokens and seats requests.

use super::cache::Cache;
use super::claim::Claim;
use super::config::LlmConfig;
use super::intake::Intake;
use super::model::Shape;
use super::next::Next;
use super::sampling::Sampler;
use super::seat::{Drawing, Feed, Progress, Seat, Telling};
use super::stop::Spout;
use super::template::Texts;
use crate::exec::extras::refuse_extras;
use crate::exec::hold::Hold;
use crate::exec::{Downstream, ExecEvent, Input, Job, PROGRESS_EVERY};
use shared::plan::{Failure, Finish, Reason};
use shared::units::Tokens;
use shared::wire::body::Sampling;
use shared::wire::frame::Hidden;
use shared::wire::{Body, StageBody};
use shared::work::Precision;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Receiver;
use std::time::Instant;
use tokio::sync::mpsc;

/// What is needed to seat requests.
pub(super) struct Reception {
    pub(super) texts: Arc<Texts>,
    pub(super) config: LlmConfig,
    pub(super) shape: Shape,
    /// The layers that are held.
    pub(super) layers: Range<usize>,
    pub(super) stop: Arc<AtomicBool>,
}

/// Why a request is not seated.
enum Unseated {
    /// For a reason.
    Failed(Failure),
    /// Nobody wants it any more.
    Cancelled,
}

impl From<Failure> for Unseated {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

/// What a seat is made of, besides its claim and its cache.
struct Parts {
    feed: Feed,
    drawing: Drawing,
    telling: Telling,
    prompt: u32,
    resumed: u32,
    ending: Option<Finish>,
}

/// Where in the chain of stages a job stands.
struct Place {
    precision: Precision,
    output_max: u32,
    next: Option<Downstream>,
}

impl Reception {
    /// Seats whoever comes, until nobody can come any more.
    pub(super) fn run(&self, jobs: &Receiver<(Job, Hold)>, seats: &mpsc::Sender<Seat>) {
        for (job, hold) in jobs {
            if let Some(seat) = self.seat(job, hold) {
                // There is a place for each slot; a failed send means that the computing thread is gone, and drops the seat,
                // which says so to its reader.
                let _ = seats.try_send(seat);
            }
        }
    }

    fn seat(&self, job: Job, hold: Hold) -> Option<Seat> {
        let Job { header, input, cancel, sink, next } = job;
        let mut claim = Claim::new(&header, sink, cancel, hold);
        let layers = header.stage().map_or_else(|| self.layers.clone(), |stage| stage.layers.from.into()..stage.layers.to.into());
        let place = Place { precision: header.precision, output_max: header.output_max.0, next };
        let parts = match input {
            Input::Body(body) => self.answering(&body, place, &mut claim),
            Input::Stage(body, inbox) => self.staged(*body, inbox, place).map_err(Unseated::Failed),
        };
        match parts {
            Ok(Parts { feed, drawing, telling, prompt, resumed, ending }) => {
                let cache = Cache::new(&self.shape, layers.clone(), self.config.cache);
                let (output, progress) = (resumed, Progress::default());
                Some(Seat {
                    claim,
                    layers,
                    cache,
                    feed,
                    drawing,
                    telling,
                    prompt,
                    resumed,
                    output,
                    ending,
                    failed: None,
                    progress,
                })
            }
            Err(Unseated::Cancelled) => {
                claim.close();
                None
            }
            Err(Unseated::Failed(failure)) => {
                claim.finish(ExecEvent::Failed(failure));
                None
            }
        }
    }

    /// A request that begins with its text here.
    fn answering(&self, body: &Body, place: Place, claim: &mut Claim) -> Result<Parts, Unseated> {
        let mut ids = self.encode(body, claim)?;
        let (prompt, context) = (count(ids.len()), self.context());
        if prompt >= context {
            return Err(Failure::PromptTooLong { prompt: Tokens(prompt), context: Tokens(context) }.into());
        }
        self.check_resume(&body.resume)?;
        let mut sampler = Sampler::new(&body.sampling)?;
        let mut spout = Spout::new(&body.sampling)?;
        let mut ending = None;
        for id in &body.resume {
            if spout.pour(self.texts.tokenizer.bytes(*id)).stopped {
                ending = Some(Finish::Stop);
            }
        }
        let resumed = count(body.resume.len());
        let output_max = place.output_max.min(body.sampling.max_tokens).min(context - prompt);
        if resumed >= output_max {
            ending = ending.or(Some(Finish::Length));
        }
        let drawing = match place.next {
            None => {
                sampler.prompted(&ids);
                body.resume.iter().for_each(|id| sampler.generated(*id));
                Drawing::Here(sampler)
            }
            Some(next) => {
                let sampling = Sampling { stop: Vec::new(), ..body.sampling.clone() };
                let prompt_ids = if sampler.needs_prompt() { ids.clone() } else { Vec::new() };
                let length_max = prompt + output_max;
                let stage = StageBody { sampling, prompt: prompt_ids, resume: body.resume.clone(), length_max };
                Drawing::Beyond(self.open(next, stage, place.precision)?)
            }
        };
        ids.extend_from_slice(&body.resume);
        let feed = Feed::Tokens { given: ids.len(), ids };
        Ok(Parts { feed, drawing, telling: Telling::Text { spout, output_max }, prompt, resumed, ending })
    }

    /// A later stage.
    fn staged(&self, body: StageBody, inbox: mpsc::Receiver<Hidden>, place: Place) -> Result<Parts, Failure> {
        let context = self.context();
        if body.length_max > context {
            let (wanted, context) = (Tokens(body.length_max), Tokens(context));
            return Err(Failure::Refused(Reason::Context { wanted, context }));
        }
        self.check_resume(&body.resume)?;
        let mut sampler = Sampler::new(&body.sampling)?;
        let resumed = count(body.resume.len());
        let intake = Intake::new(inbox, body.length_max as usize, self.shape.hidden, place.precision);
        let drawing = match place.next {
            None => {
                sampler.prompted(&body.prompt);
                body.resume.iter().for_each(|id| sampler.generated(*id));
                Drawing::Here(sampler)
            }
            Some(next) => Drawing::Beyond(self.open(next, body, place.precision)?),
        };
        Ok(Parts { feed: Feed::Hidden(intake), drawing, telling: Telling::Ids, prompt: 0, resumed, ending: None })
    }

    fn open(&self, next: Downstream, body: StageBody, precision: Precision) -> Result<Next, Failure> {
        if super::hidden::rows_max(self.shape.hidden, precision) == 0 {
            return Err(Failure::Engine(format!("hidden states of {} numbers do not fit a frame", self.shape.hidden)));
        }
        Ok(Next::open(next, body, precision))
    }

    fn check_resume(&self, resume: &[u32]) -> Result<(), Failure> {
        if resume.iter().all(|id| (*id as usize) < self.texts.tokenizer.len()) {
            return Ok(());
        }
        let message = "the stream was begun with another vocabulary".to_owned();
        Err(Failure::BadRequest { param: Some("resume".to_owned()), message })
    }

    fn encode(&self, body: &Body, claim: &mut Claim) -> Result<Vec<u32>, Unseated> {
        refuse_extras(body, &[])?;
        let mut go_on = || {
            let now = Instant::now();
            claim.tell(now, PROGRESS_EVERY / 2);
            !self.stop.load(Ordering::Acquire) && !claim.cancel.is_cancelled() && !claim.overdue(now)
        };
        match self.texts.encode(&body.prompt, &mut go_on)? {
            Some(ids) => Ok(ids),
            None if claim.cancel.is_cancelled() => Err(Unseated::Cancelled),
            None if claim.overdue(Instant::now()) => Err(Failure::DeadlineExceeded.into()),
            None => Err(Failure::Refused(Reason::Draining).into()),
        }
    }

    fn context(&self) -> u32 {
        count(self.shape.context)
    }
}

fn count(tokens: usize) -> u32 {
    u32::try_from(tokens).unwrap_or(u32::MAX)
}
