//! One request to an upstream, from the first byte to the last.

use super::answer::{Reader, Said};
use super::line::Exchange;
use super::{Calls, Shared, ask};
use crate::exec::hold::Hold;
use crate::exec::outlet::{Lost, Outlet};
use crate::exec::rates::Observation;
use crate::exec::sse::Events;
use crate::exec::{ExecEvent, PROGRESS_EVERY, WholeJob};
use bytes::Bytes;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use shared::plan::{Failure, Finish, Reason, Usage};
use shared::units::{Micros, Tokens};
use shared::wire::Body;
use shared::wire::frame::TokenBatch;
use shared::work::{ExecHeader, PromptKind};
use std::error::Error;
use std::pin::{Pin, pin};
use std::time::Duration;
use tokio::time::{Instant, interval_at, timeout};

/// So much of an error answer is read; the message is at its beginning.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Why a request ends without an answer.
pub(super) enum Broken {
    Failed(Failure),
    /// Nobody listens any more.
    Gone,
}

impl From<Failure> for Broken {
    fn from(failure: Failure) -> Self {
        Self::Failed(failure)
    }
}

impl From<Lost> for Broken {
    fn from(lost: Lost) -> Self {
        match lost {
            Lost::Stalled => Self::Failed(Failure::ClientStalled),
            Lost::Gone => Self::Gone,
        }
    }
}

/// An answer of the upstream, as it comes.
#[expect(clippy::large_enum_variant, reason = "there is one for each request that runs: a box would cost each of them")]
pub(super) enum Reply {
    Near(Exchange),
    Far(reqwest::Response),
}

impl Reply {
    fn status(&self) -> u16 {
        match self {
            Self::Near(exchange) => exchange.status(),
            Self::Far(response) => response.status().as_u16(),
        }
    }

    fn content_type(&self) -> Option<&str> {
        match self {
            Self::Near(exchange) => exchange.content_type(),
            Self::Far(response) => response.headers().get(CONTENT_TYPE)?.to_str().ok(),
        }
    }

    /// Appends what has come; false when there is no more.
    async fn read(&mut self, into: &mut Vec<u8>) -> Result<bool, ()> {
        match self {
            Self::Near(exchange) => exchange.read(into).await.map_err(|_| ()),
            Self::Far(response) => {
                let bytes = response.chunk().await.map_err(|_| ())?;
                into.extend_from_slice(bytes.as_deref().unwrap_or_default());
                Ok(bytes.is_some())
            }
        }
    }

    /// After the last word, the connection may serve the next request.
    async fn settle(self) {
        if let Self::Near(exchange) = self {
            exchange.settle().await;
        }
    }
}

/// What is known of an answer so far.
pub(super) struct Answer {
    pub(super) began: Instant,
    pub(super) first: Option<Instant>,
    pub(super) last: Instant,
    pub(super) tokens: u32,
    pub(super) finish: Option<Finish>,
    pub(super) usage: Option<Usage>,
    pub(super) malformed: u32,
}

impl Shared {
    /// Executes a job. Dropping the response closes the connection, which is how an upstream is told to stop.
    pub(super) async fn execute(&self, job: WholeJob, hold: Hold, sharers: u32) {
        let WholeJob { header, body, cancel, sink } = job;
        let outlet = Outlet::new(sink);
        let deadline = header.remaining.and_then(|left| Instant::now().checked_add(Duration::from_micros(left.0)));
        let overdue = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let outcome = tokio::select! {
            biased;
            () = cancel.cancelled() => Err(Broken::Gone),
            () = self.stop.cancelled() => Err(Failure::Refused(Reason::Draining).into()),
            () = overdue => Err(Failure::DeadlineExceeded.into()),
            outcome = self.answer(&header, &body, &outlet) => outcome,
        };
        if let Ok((answer, _)) = &outcome {
            self.learn(&header, answer, sharers);
        }
        drop(hold);
        match outcome {
            Ok((answer, reply)) => {
                outlet.finish(ExecEvent::End(answer.finish.unwrap_or(Finish::Stop), answer.usage(&header)));
                if let Some(reply) = reply {
                    reply.settle().await;
                }
            }
            Err(Broken::Failed(failure)) => outlet.finish(ExecEvent::Failed(failure)),
            Err(Broken::Gone) => outlet.close(),
        }
    }

    async fn answer(&self, header: &ExecHeader, body: &Body, outlet: &Outlet) -> Result<(Answer, Option<Reply>), Broken> {
        if !body.resume.is_empty() {
            let message = "an upstream cannot continue a stream that was begun elsewhere".to_owned();
            return Err(Failure::BadRequest { param: Some("resume".to_owned()), message }.into());
        }
        if header.kind == PromptKind::Embedding {
            // On the heap: what it needs would be copied with every other request.
            return Box::pin(self.embed(header, body, outlet)).await.map(|answer| (answer, None));
        }
        let began = Instant::now();
        let mut reply = self.alive(outlet, pin!(self.ask(header, body))).await?;
        let mut answer = Answer { began, first: None, last: began, tokens: 0, finish: None, usage: None, malformed: 0 };
        let (mut events, mut reader) = (Events::default(), Reader::default());
        loop {
            let space = events.space();
            if answer.first.is_none() {
                self.alive(outlet, pin!(self.next(&mut reply, space))).await?;
            } else {
                self.next(&mut reply, space).await?;
            }
            // What came together goes on together.
            let (mut batches, mut done) = (Batches::default(), false);
            let long = |error| Failure::Engine(format!("the upstream sent {error}"));
            while let Some(data) = events.next().map_err(long)? {
                let data = events.bytes(&data);
                if data.trim_ascii() == b"[DONE]" {
                    done = true;
                    break;
                }
                if let Some(batch) = self.take(reader.read(data), &mut answer)? {
                    batches.add(batch);
                }
            }
            for batch in batches.0 {
                outlet.send(ExecEvent::Tokens(batch), Duration::from_millis(self.config.stall_ms_max)).await?;
            }
            if done {
                return Ok((answer, Some(reply)));
            }
        }
    }

    /// The next bytes; a stream that ends before it said so is broken.
    async fn next(&self, reply: &mut Reply, into: &mut Vec<u8>) -> Result<(), Failure> {
        match timeout(self.silence_max(), reply.read(into)).await {
            Ok(Ok(true)) => Ok(()),
            Ok(Ok(false) | Err(())) => Err(self.broken()),
            Err(_) => Err(self.stalled()),
        }
    }

    fn take(&self, said: Option<Said>, answer: &mut Answer) -> Result<Option<TokenBatch>, Failure> {
        let Some(said) = said else {
            answer.malformed += 1;
            tracing::warn!(variant = %self.config.variant, count = answer.malformed, "skipped a malformed event of the upstream");
            return Ok(None);
        };
        if said.failed {
            return Err(Failure::Engine("the upstream gave up in mid-stream".to_owned()));
        }
        answer.finish = said.finish.or(answer.finish);
        answer.usage = said.usage.or(answer.usage);
        if let Some(batch) = &said.batch {
            answer.last = Instant::now();
            answer.first.get_or_insert(answer.last);
            answer.tokens += batch.count;
        }
        Ok(said.batch)
    }

    /// Sends the request, and judges the head of the answer.
    async fn ask(&self, header: &ExecHeader, body: &Body) -> Result<Reply, Failure> {
        let document = Bytes::from(ask::document(&self.config, header, body)?);
        let calls = self.calls().map_err(|error| Failure::Engine(error.to_string()))?;
        let mut reply = match timeout(self.silence_max(), self.post(&calls, header.kind, document)).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(())) => return Err(self.broken()),
            Err(_) => return Err(self.stalled()),
        };
        let status = reply.status();
        if !(200..300).contains(&status) {
            let answer = self.beginning(&mut reply).await;
            return Err(ask::refusal(status, &answer, header, body, &self.config));
        }
        if reply.content_type().is_some_and(|kind| kind.starts_with("text/event-stream")) {
            Ok(reply)
        } else {
            Err(Failure::Engine("the upstream does not stream its answers".to_owned()))
        }
    }

    async fn post(&self, calls: &Calls, kind: PromptKind, document: Bytes) -> Result<Reply, ()> {
        let url = if kind == PromptKind::Chat { &calls.chat } else { &calls.completion };
        let note = |error: &dyn Error| tracing::debug!(variant = %self.config.variant, %error, "no answer of the upstream");
        if let Some(lines) = &calls.lines {
            return lines.post(url.path(), document).await.map(Reply::Near).map_err(|error| note(&error));
        }
        let request = self.client.post(url.clone()).header(CONTENT_TYPE, JSON).body(document);
        // On the heap, as above.
        Box::pin(self.authorised(request).send()).await.map(Reply::Far).map_err(|error| note(&error))
    }

    pub(super) async fn beginning(&self, reply: &mut Reply) -> Vec<u8> {
        let mut answer = Vec::new();
        while answer.len() < REFUSAL_BYTES_MAX && self.next(reply, &mut answer).await.is_ok() {}
        answer
    }

    /// Does something that may take long, and says meanwhile that the job lives.
    ///
    /// The work stays where it is: given by value, it would be in this future twice.
    pub(super) async fn alive<T>(
        &self,
        outlet: &Outlet,
        mut work: Pin<&mut impl Future<Output = Result<T, Failure>>>,
    ) -> Result<T, Failure> {
        let every = PROGRESS_EVERY / 2;
        let mut pulse = interval_at(Instant::now() + every, every);
        loop {
            tokio::select! {
                biased;
                done = &mut work => return done,
                _ = pulse.tick() => outlet.progress(),
            }
        }
    }

    fn learn(&self, header: &ExecHeader, answer: &Answer, sharers: u32) {
        let Some(first) = answer.first else { return };
        // Estimates assume that requests share an engine equally: so what one took among several is scaled back.
        let alone = |span: Duration| span.as_secs_f64() / f64::from(sharers.max(1));
        let usage = answer.usage(header);
        self.observe(&Observation {
            prompt_tokens: usage.prompt.0.saturating_sub(usage.cached.0),
            prompt_seconds: alone(first.duration_since(answer.began)),
            decode_tokens: usage.output.0.saturating_sub(1),
            decode_seconds: alone(answer.last.duration_since(first)),
            overhead_seconds: None,
        });
    }

    pub(super) fn silence_max(&self) -> Duration {
        Duration::from_millis(self.config.silence_ms_max)
    }

    pub(super) fn broken(&self) -> Failure {
        Failure::Broken(format!("the upstream of `{}`", self.config.variant))
    }

    pub(super) fn stalled(&self) -> Failure {
        Failure::Stalled(Micros::from_millis(self.config.silence_ms_max))
    }
}

/// Batches in their order, plain text joined: each batch costs a wakeup at every station on its way, and a write to the client.
#[derive(Default)]
struct Batches(Vec<TokenBatch>);

impl Batches {
    fn add(&mut self, batch: TokenBatch) {
        match self.0.last_mut() {
            Some(last) if last.delta.is_none() && batch.delta.is_none() => {
                last.count += batch.count;
                last.text.push_str(&batch.text);
            }
            _ => self.0.push(batch),
        }
    }
}

impl Answer {
    /// The upstream's count; ours, of events and the header's estimate, where it gave none.
    fn usage(&self, header: &ExecHeader) -> Usage {
        self.usage.unwrap_or(Usage { prompt: header.prompt, output: Tokens(self.tokens), cached: Tokens(0) })
    }
}
