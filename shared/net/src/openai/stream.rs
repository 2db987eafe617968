//! An answer as server-sent events.

use super::Answer;
use super::chunks::Chunks;
use super::counters::{FrontCounters, OpenGuard};
use super::error::ApiError;
use super::progress::Progress;
use super::shape::{Counted, Envelope, Piece, finish_word};
use super::wire::Peer;
use axum::body::Body;
use axum::http::header::{CACHE_CONTROL, CONTENT_TYPE};
use axum::http::{HeaderValue, Response};
use bytes::Bytes;
use serde_json::{Value, json};
use shared::plan::{Failure, Finish, Usage};
use shared::wire::frame::TokenBatch;
use shared::work::PromptKind;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::mpsc;
use tokio::time::timeout_at;

/// Sent while nothing else comes, so that neither client nor proxy takes the silence for death.
const COMMENT: &[u8] = b": waiting\n\n";

/// One stream, owned by its response body: when the client goes, the body is dropped, and with it the receiver.
#[derive(Debug)]
pub(super) struct EventStream {
    pub(super) envelope: Envelope,
    pub(super) progress: Progress,
    pub(super) include_usage: bool,
    pub(super) keep_alive: Duration,
    pub(super) degraded: bool,
    pub(super) counters: Arc<FrontCounters>,
    pub(super) answers: mpsc::Receiver<Answer>,
    /// The answer that let the head go, if it was not the clock.
    pub(super) first: Option<Answer>,
    /// The client, where it is known.
    pub(super) peer: Option<Arc<Peer>>,
}

/// How often a silent stream looks whether its client has ended its side. One that has may be gone, which shows when something is
/// written: so it gets its comments that often, instead of seldom.
const LOOK_EVERY: Duration = Duration::from_millis(500);

impl EventStream {
    /// The response.
    pub(super) fn into_response(self) -> Response<Body> {
        let guard = self.counters.stream();
        let chunks = Chunks::new(&self.envelope, self.include_usage);
        let writer = Writer { stream: self, chunks, choices: BTreeMap::new(), over: false, _guard: guard };
        let events = futures_util::stream::unfold(writer, |mut writer| async move {
            let bytes = writer.next().await?;
            Some((Ok::<_, Infallible>(bytes), writer))
        });
        let mut response = Response::new(Body::from_stream(events));
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("text/event-stream; charset=utf-8"));
        headers.insert(CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        // Proxies of the nginx family otherwise keep events back until their buffer is full.
        headers.insert("x-accel-buffering", HeaderValue::from_static("no"));
        response
    }
}

struct Writer {
    stream: EventStream,
    chunks: Chunks,
    /// Choices that have begun, and whether each has its finish reason.
    choices: BTreeMap<u64, bool>,
    over: bool,
    _guard: OpenGuard,
}

impl Writer {
    /// The next bytes; none when the stream is over.
    async fn next(&mut self) -> Option<Bytes> {
        if self.over {
            return None;
        }
        let quiet_until = tokio::time::Instant::now() + self.stream.keep_alive;
        loop {
            let answer = match self.stream.first.take() {
                Some(answer) => answer,
                None => match timeout_at(quiet_until.min(tokio::time::Instant::now() + LOOK_EVERY), self.stream.answers.recv())
                    .await
                {
                    Ok(Some(answer)) => answer,
                    Ok(None) => Answer::Fail(Failure::Broken(self.stream.progress.server())),
                    Err(_) if self.comment_due(quiet_until) => return Some(Bytes::from_static(COMMENT)),
                    Err(_) => continue,
                },
            };
            match answer {
                Answer::Decided(decision) => self.stream.progress.decided(decision),
                Answer::Tokens(batch) => {
                    if let Some(bytes) = self.tokens(batch) {
                        return Some(bytes);
                    }
                }
                Answer::Finish(finish, usage) => return Some(self.finish(finish, usage)),
                Answer::Fail(failure) => return Some(self.fail(&failure)),
            }
        }
    }

    fn comment_due(&self, quiet_until: tokio::time::Instant) -> bool {
        tokio::time::Instant::now() >= quiet_until || self.stream.peer.as_ref().is_some_and(|peer| peer.has_ended())
    }

    fn tokens(&mut self, batch: TokenBatch) -> Option<Bytes> {
        self.stream.progress.tokens(batch.count, Instant::now());
        if batch.delta.is_none() {
            if batch.text.is_empty() {
                return None;
            }
            let first = self.choices.insert(0, false).is_none();
            return Some(self.chunks.chunk(&batch.text, first));
        }
        let kind = self.stream.envelope.kind;
        let piece = Piece::of(kind, batch)?;
        let (index, finished) = (piece.index, piece.finish.is_some());
        let first = !self.choices.contains_key(&index);
        *self.choices.entry(index).or_default() |= finished;
        Some(event(&self.chunk(vec![piece.chunk_choice(kind, first)])))
    }

    /// A chunk; with usage asked for, each but the last says that its usage is not known yet.
    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = self.stream.envelope.chunk(choices);
        if self.stream.include_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    /// Finish reasons, usage if asked for, and the end. The very last chunk carries the `tidegate` object.
    fn finish(&mut self, finish: Finish, usage: Usage) -> Bytes {
        self.over = true;
        self.stream.progress.counted(usage);
        let tidegate = json!(self.stream.progress.object(Instant::now(), self.stream.degraded));
        let mut last = self.chunk(self.finish_choices(finish));
        let mut bytes = Vec::new();
        if self.stream.include_usage {
            write_event(&mut bytes, &last);
            last = self.stream.envelope.chunk(Vec::new());
            last["usage"] = json!(Counted::of(usage));
        }
        last["tidegate"] = tidegate;
        write_event(&mut bytes, &last);
        bytes.extend_from_slice(b"data: [DONE]\n\n");
        Bytes::from(bytes)
    }

    /// A finish reason for each choice that has none yet.
    fn finish_choices(&self, finish: Finish) -> Vec<Value> {
        let word = finish_word(finish);
        let last = |index: u64| match self.stream.envelope.kind {
            PromptKind::Chat => {
                let delta =
                    if self.choices.contains_key(&index) { json!({}) } else { json!({"role": "assistant", "content": ""}) };
                json!({"index": index, "delta": delta, "logprobs": null, "finish_reason": word})
            }
            PromptKind::Completion | PromptKind::Embedding => {
                json!({"index": index, "text": "", "logprobs": null, "finish_reason": word})
            }
        };
        if self.choices.is_empty() {
            return vec![last(0)];
        }
        self.choices.iter().filter(|(_, finished)| !**finished).map(|(index, _)| last(*index)).collect()
    }

    /// The head is gone: the error comes as an event, and no `[DONE]` follows it.
    fn fail(&mut self, failure: &Failure) -> Bytes {
        self.over = true;
        let error: ApiError = self.stream.progress.refusal(failure).in_call(self.stream.envelope.kind);
        self.stream.counters.error(error.code);
        event(&error.body())
    }
}

fn event(value: &Value) -> Bytes {
    let mut bytes = Vec::new();
    write_event(&mut bytes, value);
    Bytes::from(bytes)
}

/// JSON has no raw line ends, so one line is one event.
fn write_event(bytes: &mut Vec<u8>, value: &Value) {
    bytes.extend_from_slice(format!("data: {value}\n\n").as_bytes());
}
