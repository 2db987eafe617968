//! Whether an upstream lives, and how fast it is when nobody said so.

use super::Shared;
use super::answer::Reader;
use super::managed::Phase;
use crate::exec::rates::Observation;
use crate::exec::sse::Events;
use futures_util::StreamExt;
use shared::fleet::ReplicaState;
use shared::work::Capability;
use std::time::Duration;
use tokio::time::Instant;

/// Longer than this an upstream that lives does not take to list its models.
const CHECK_TIMEOUT: Duration = Duration::from_secs(2);
/// Checks that must fail in a row before a ready upstream counts as failed: one lost answer is no death.
const FAILURES_MAX: u32 = 2;
/// Longest time that the measuring request may take.
const MEASURE_TIMEOUT: Duration = Duration::from_secs(60);
/// Tokens that it asks for: enough for a rate, little to pay for.
const MEASURE_TOKENS: u32 = 16;
/// Its prompt, long enough that the time to the first token says something about the prompt's rate.
const MEASURE_PROMPT: &str = "The harbour lies in the north of the town. At high tide the gate is closed and the water stands \
    still behind it; at low tide it is opened, and the boats go out one after the other. Tell what the keeper of the gate does \
    on a calm day in autumn, from the morning until the lamps are lit.";
/// About its tokens, where the upstream does not count.
const MEASURE_PROMPT_TOKENS: u32 = 64;

impl Shared {
    /// Checks the upstream until stopped.
    pub(super) async fn watch_over(&self) {
        let mut failures = 0;
        let mut pulse = tokio::time::interval(self.health_pause());
        pulse.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                _ = pulse.tick() => {}
            }
            let phase = self.managed.as_ref().map(super::managed::Managed::phase);
            if let Some(Phase::Down(why)) = phase {
                self.become_state(ReplicaState::Failed(why));
                continue;
            }
            let checked = tokio::select! {
                biased;
                () = self.stop.cancelled() => return,
                checked = self.check() => checked,
            };
            failures = if checked.is_ok() { 0 } else { failures + 1 };
            let ready = self.report.borrow().state == ReplicaState::Ready;
            match checked {
                Ok(()) => self.become_state(ReplicaState::Ready),
                Err(_) if phase == Some(Phase::Starting) => self.become_state(ReplicaState::Loading),
                Err(why) if !ready || failures >= FAILURES_MAX => self.become_state(ReplicaState::Failed(why)),
                Err(_) => {}
            }
        }
    }

    /// Keeps the server running, where that is this agent's task.
    pub(super) async fn keep_running(&self) {
        let Some(managed) = &self.managed else { return };
        let healthy = || async {
            match managed.health() {
                Some(url) => self.reach(reqwest::Url::parse(&url).map_err(|error| error.to_string())?).await,
                None => self.reach(self.models()?).await,
            }
        };
        managed.run(&self.stop, self.health_pause(), healthy).await;
    }

    fn health_pause(&self) -> Duration {
        Duration::from_millis(self.config.health_ms.max(10))
    }

    fn models(&self) -> Result<reqwest::Url, String> {
        self.call("models").map_err(|error| error.to_string())
    }

    /// One round trip; once, when the speed is not known, a short request.
    async fn check(&self) -> Result<(), String> {
        self.reach(self.models()?).await?;
        if self.report.borrow().profile.is_some() {
            return Ok(());
        }
        let measured = tokio::time::timeout(MEASURE_TIMEOUT, self.measure()).await.ok().flatten();
        let seen = match measured {
            // One that only gives vectors knows no chats.
            None if Capability::Embeddings.is_among(&self.config.capabilities) => {
                self.measure_vectors(MEASURE_PROMPT, MEASURE_PROMPT_TOKENS).await
            }
            measured => measured,
        };
        let seen = seen.ok_or_else(|| "the upstream did not answer the request that measures its speed".to_owned())?;
        self.observe(&seen);
        if self.report.borrow().profile.is_some() { Ok(()) } else { Err("the upstream's speed could not be measured".to_owned()) }
    }

    /// Whether this URL answers with success.
    async fn reach(&self, url: reqwest::Url) -> Result<(), String> {
        let answer = tokio::time::timeout(CHECK_TIMEOUT, self.authorised(self.client.get(url)).send()).await;
        match answer {
            Ok(Ok(answer)) if answer.status().is_success() => Ok(()),
            Ok(Ok(answer)) => {
                Err(format!("the upstream answers with status {} when asked for its health", answer.status().as_u16()))
            }
            Ok(Err(_)) => Err("the upstream cannot be reached".to_owned()),
            Err(_) => Err(format!("the upstream does not answer within {CHECK_TIMEOUT:?}")),
        }
    }

    async fn measure(&self) -> Option<Observation> {
        let document = serde_json::json!({
            "model": self.config.model, "stream": true, "stream_options": { "include_usage": true }, "max_tokens": MEASURE_TOKENS,
            "messages": [{ "role": "user", "content": MEASURE_PROMPT }],
        });
        let began = Instant::now();
        let url = self.call("chat/completions").ok()?;
        let response = self.authorised(self.client.post(url)).json(&document).send().await.ok()?;
        let mut stream = response.error_for_status().ok()?.bytes_stream();
        let (mut events, mut reader, mut tokens, mut usage) = (Events::default(), Reader::default(), 0, None);
        let (mut first, mut last) = (None, began);
        'answer: while let Some(bytes) = stream.next().await {
            events.space().extend_from_slice(&bytes.ok()?);
            while let Some(data) = events.next().ok()? {
                if events.bytes(&data).trim_ascii() == b"[DONE]" {
                    break 'answer;
                }
                let Some(said) = reader.read(events.bytes(&data)) else { continue };
                usage = said.usage.or(usage);
                if said.batch.is_some() {
                    tokens += 1;
                    last = Instant::now();
                    first.get_or_insert(last);
                }
            }
        }
        let first = first?;
        Some(Observation {
            prompt_tokens: usage.map_or(MEASURE_PROMPT_TOKENS, |usage| usage.prompt.0),
            prompt_seconds: first.duration_since(began).as_secs_f64(),
            decode_tokens: usage.map_or(tokens, |usage| usage.output.0).saturating_sub(1),
            decode_seconds: last.duration_since(first).as_secs_f64(),
            overhead_seconds: Some(0.0),
        })
    }

    fn become_state(&self, state: ReplicaState) {
        let variant = &self.config.variant;
        self.report.send_if_modified(|report| {
            if report.state == state || report.state == ReplicaState::Draining {
                return false;
            }
            if let ReplicaState::Failed(why) = &state {
                tracing::error!(%variant, %why, "the upstream does not serve");
            }
            tracing::info!(%variant, ?state, "the upstream's state changed");
            report.state = state;
            true
        });
    }
}
