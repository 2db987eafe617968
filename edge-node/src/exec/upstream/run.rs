//! One request to an upstream, from the first byte to the last.

use super::{Shared, answer, ask};
use crate::exec::hold::Hold;
use crate::exec::outlet::{Lost, Outlet};
use crate::exec::rates::Observation;
use crate::exec::sse::Events;
use crate::exec::{ExecEvent, PROGRESS_EVERY, WholeJob};
use futures_util::StreamExt;
use shared::plan::{Failure, Finish, Reason, Usage};
use shared::units::{Micros, Tokens};
use shared::wire::Body;
use shared::work::ExecHeader;
use std::time::Duration;
use tokio::time::Instant;

/// So much of an error answer is read; the message is at its beginning.
const REFUSAL_BYTES_MAX: usize = 64 * 1024;

/// Why a request ends without an answer.
enum Broken {
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

/// What is known of an answer so far.
struct Answer {
    began: Instant,
    first: Option<Instant>,
    last: Instant,
    tokens: u32,
    finish: Option<Finish>,
    usage: Option<Usage>,
    malformed: u32,
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
        if let Ok(answer) = &outcome {
            self.learn(&header, answer, sharers);
        }
        drop(hold);
        match outcome {
            Ok(answer) => outlet.finish(ExecEvent::End(answer.finish.unwrap_or(Finish::Stop), answer.usage(&header))),
            Err(Broken::Failed(failure)) => outlet.finish(ExecEvent::Failed(failure)),
            Err(Broken::Gone) => outlet.close(),
        }
    }

    async fn answer(&self, header: &ExecHeader, body: &Body, outlet: &Outlet) -> Result<Answer, Broken> {
        if !body.resume.is_empty() {
            let message = "an upstream cannot continue a stream that was begun elsewhere".to_owned();
            return Err(Failure::BadRequest { param: Some("resume".to_owned()), message }.into());
        }
        let began = Instant::now();
        let response = self.alive(outlet, self.ask(header, body)).await?;
        let mut answer = Answer { began, first: None, last: began, tokens: 0, finish: None, usage: None, malformed: 0 };
        let mut events = Events::default();
        let mut stream = response.bytes_stream();
        loop {
            let bytes = if answer.first.is_none() {
                self.alive(outlet, self.next(&mut stream)).await?
            } else {
                self.next(&mut stream).await?
            };
            let found = events.feed(&bytes).map_err(|error| Failure::Engine(format!("the upstream sent {error}")))?;
            for data in found {
                if data.trim_ascii() == b"[DONE]" {
                    return Ok(answer);
                }
                self.take(&data, &mut answer, outlet).await?;
            }
        }
    }

    /// The next bytes; a stream that ends before it said so is broken.
    async fn next<S>(&self, stream: &mut S) -> Result<bytes::Bytes, Failure>
    where
        S: futures_util::Stream<Item = reqwest::Result<bytes::Bytes>> + Unpin,
    {
        match tokio::time::timeout(self.silence_max(), stream.next()).await {
            Ok(Some(Ok(bytes))) => Ok(bytes),
            Ok(Some(Err(_)) | None) => Err(self.broken()),
            Err(_) => Err(self.stalled()),
        }
    }

    async fn take(&self, data: &[u8], answer: &mut Answer, outlet: &Outlet) -> Result<(), Broken> {
        let Some(said) = answer::read(data) else {
            answer.malformed += 1;
            tracing::warn!(variant = %self.config.variant, count = answer.malformed, "skipped a malformed event of the upstream");
            return Ok(());
        };
        if said.failed {
            return Err(Failure::Engine("the upstream gave up in mid-stream".to_owned()).into());
        }
        answer.finish = said.finish.or(answer.finish);
        answer.usage = said.usage.or(answer.usage);
        if let Some(batch) = said.batch {
            answer.last = Instant::now();
            answer.first.get_or_insert(answer.last);
            answer.tokens += batch.count;
            outlet.send(ExecEvent::Tokens(batch), Duration::from_millis(self.config.stall_ms_max)).await?;
        }
        Ok(())
    }

    /// Sends the request, and judges the head of the answer.
    async fn ask(&self, header: &ExecHeader, body: &Body) -> Result<reqwest::Response, Failure> {
        let document = ask::document(&self.config, header, body)?;
        let url = self.config.call(ask::path(header.kind)).map_err(|error| Failure::Engine(error.to_string()))?;
        let request = self.authorised(self.client.post(url)).json(&document).send();
        let response = match tokio::time::timeout(self.silence_max(), request).await {
            Ok(Ok(response)) => response,
            Ok(Err(_)) => return Err(self.broken()),
            Err(_) => return Err(self.stalled()),
        };
        let status = response.status();
        if !status.is_success() {
            let answer = self.beginning(response).await;
            return Err(ask::refusal(status.as_u16(), &answer, header, body, &self.config));
        }
        let kind = response.headers().get(reqwest::header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
        if kind.is_some_and(|kind| kind.starts_with("text/event-stream")) {
            Ok(response)
        } else {
            Err(Failure::Engine("the upstream does not stream its answers".to_owned()))
        }
    }

    async fn beginning(&self, response: reqwest::Response) -> Vec<u8> {
        let mut stream = response.bytes_stream();
        let mut answer = Vec::new();
        while answer.len() < REFUSAL_BYTES_MAX
            && let Ok(bytes) = self.next(&mut stream).await
        {
            answer.extend_from_slice(&bytes);
        }
        answer
    }

    /// Does something that may take long, and says meanwhile that the job lives.
    async fn alive<T>(&self, outlet: &Outlet, work: impl Future<Output = Result<T, Failure>>) -> Result<T, Failure> {
        let mut pulse = tokio::time::interval(PROGRESS_EVERY / 2);
        tokio::pin!(work);
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

    fn silence_max(&self) -> Duration {
        Duration::from_millis(self.config.silence_ms_max)
    }

    fn broken(&self) -> Failure {
        Failure::Broken(format!("the upstream of `{}`", self.config.variant))
    }

    fn stalled(&self) -> Failure {
        Failure::Stalled(Micros::from_millis(self.config.silence_ms_max))
    }
}

impl Answer {
    /// The upstream's count; ours, of events and the header's estimate, where it gave none.
    fn usage(&self, header: &ExecHeader) -> Usage {
        self.usage.unwrap_or(Usage { prompt: header.prompt, output: Tokens(self.tokens), cached: Tokens(0) })
    }
}
