//! Vectors of texts: one call, one answer, whole.

use super::run::{Answer, Broken, Reply};
use super::{Shared, ask};
use crate::exec::ExecEvent;
use crate::exec::outlet::Outlet;
use crate::exec::rates::Observation;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};
use shared::plan::{Failure, Finish, Usage};
use shared::units::Tokens;
use shared::wire::Body;
use shared::wire::body::Prompt;
use shared::wire::frame::{FRAME_BYTES_MAX, TokenBatch};
use shared::work::{ExecHeader, PromptKind};
use std::pin::pin;
use std::time::Duration;
use tokio::time::Instant;

/// Largest answer that is read: two thousand vectors of some thousand numbers.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;
/// Longest vector as text: it must travel in one frame.
const VECTOR_BYTES_MAX: usize = FRAME_BYTES_MAX - 1_024;

#[derive(Deserialize)]
struct Vectors<'a> {
    #[serde(borrow)]
    data: Vec<&'a RawValue>,
    #[serde(default)]
    usage: Option<Counted>,
}

#[derive(Deserialize)]
struct Counted {
    prompt_tokens: u32,
}

impl Shared {
    pub(super) async fn embed(&self, header: &ExecHeader, body: &Body, outlet: &Outlet) -> Result<Answer, Broken> {
        let Prompt::Inputs(texts) = &body.prompt else { return Err(ask::vectors_only().into()) };
        let began = Instant::now();
        let mut document = match &body.passthrough {
            Some(extras) => members(extras)?,
            None => Map::new(),
        };
        document.insert("model".to_owned(), self.config.model.clone().into());
        document.insert("input".to_owned(), json!(texts));
        let bytes = self.alive(outlet, pin!(self.vectors(&Value::Object(document), header, body))).await?;
        let vectors: Vectors<'_> = serde_json::from_slice(&bytes).map_err(|_| strange("no vectors"))?;
        if vectors.data.len() != texts.len() {
            return Err(strange("another number of vectors than of texts").into());
        }
        let first = Instant::now();
        for vector in vectors.data {
            if vector.get().len() > VECTOR_BYTES_MAX {
                return Err(strange("a vector that is too long").into());
            }
            let batch = TokenBatch { count: 0, ids: Vec::new(), text: String::new(), delta: Some(vector.get().to_owned()) };
            outlet.send(ExecEvent::Tokens(batch), Duration::from_millis(self.config.stall_ms_max)).await?;
        }
        let prompt = vectors.usage.map_or(header.prompt, |counted| Tokens(counted.prompt_tokens));
        let usage = Some(Usage { prompt, output: Tokens(0), cached: Tokens(0) });
        let (finish, last) = (Some(Finish::Stop), first);
        Ok(Answer { began, first: Some(first), last, tokens: 0, finish, usage, malformed: 0 })
    }

    /// The whole body of a good answer.
    async fn vectors(&self, document: &Value, header: &ExecHeader, body: &Body) -> Result<Vec<u8>, Failure> {
        let response = self.post_vectors(document).await?;
        let status = response.status();
        if !status.is_success() {
            let answer = self.beginning(&mut Reply::Far(response)).await;
            return Err(ask::refusal(status.as_u16(), &answer, header, body, &self.config));
        }
        self.whole(response).await
    }

    async fn post_vectors(&self, document: &Value) -> Result<reqwest::Response, Failure> {
        let url = self.call(ask::path(PromptKind::Embedding)).map_err(|error| Failure::Engine(error.to_string()))?;
        let request = self.authorised(self.client.post(url)).json(document).send();
        match tokio::time::timeout(self.silence_max(), request).await {
            Ok(Ok(response)) => Ok(response),
            Ok(Err(_)) => Err(self.broken()),
            Err(_) => Err(self.stalled()),
        }
    }

    async fn whole(&self, mut response: reqwest::Response) -> Result<Vec<u8>, Failure> {
        let mut answer = Vec::new();
        loop {
            match tokio::time::timeout(self.silence_max(), response.chunk()).await {
                Ok(Ok(Some(bytes))) if answer.len() + bytes.len() <= ANSWER_BYTES_MAX => answer.extend_from_slice(&bytes),
                Ok(Ok(Some(_))) => return Err(strange("an answer that is too long")),
                Ok(Ok(None)) => return Ok(answer),
                Ok(Err(_)) => return Err(self.broken()),
                Err(_) => return Err(self.stalled()),
            }
        }
    }

    /// The speed of an upstream that gives vectors. It generates nothing, so that its prompt rate stands for both.
    pub(super) async fn measure_vectors(&self, text: &str, tokens: u32) -> Option<Observation> {
        let began = Instant::now();
        let response = self.post_vectors(&json!({"model": self.config.model, "input": [text]})).await.ok()?;
        let bytes = self.whole(response.error_for_status().ok()?).await.ok()?;
        let vectors: Vectors<'_> = serde_json::from_slice(&bytes).ok()?;
        let (seconds, counted) = (began.elapsed().as_secs_f64(), vectors.usage.map_or(tokens, |counted| counted.prompt_tokens));
        Some(Observation {
            prompt_tokens: counted,
            prompt_seconds: seconds,
            decode_tokens: counted,
            decode_seconds: seconds,
            overhead_seconds: Some(0.0),
        })
    }
}

fn members(extras: &str) -> Result<Map<String, Value>, Failure> {
    let bad = || Failure::BadRequest { param: None, message: "further parameters must be a JSON object".to_owned() };
    serde_json::from_str(extras).map_err(|_| bad())
}

fn strange(what: &str) -> Failure {
    Failure::Engine(format!("the upstream sent {what}"))
}
