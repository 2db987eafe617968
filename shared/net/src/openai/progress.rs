//! What is known of one request while it is served: the newest decision, and what the client has seen so far, timed at the front.

use super::error::ApiError;
use super::keys::Charge;
use super::refusal::of_failure;
use axum::http::{HeaderMap, HeaderName, HeaderValue};
use serde::Serialize;
use shared::fleet::Hop;
use shared::ids::RequestId;
use shared::plan::{Choice, Decision, Failure, Reason, Usage, Verdict};
use shared::units::Micros;
use std::collections::BTreeMap;
use std::time::Instant;

/// Headers of a usual answer, those of the front and of its protocol among them.
const HEADERS: usize = 16;

/// The story of one request as its client may see it.
#[derive(Debug)]
pub(super) struct Progress {
    id: RequestId,
    arrived: Instant,
    decision: Option<Box<Decision>>,
    /// The last decision that chose somebody: a later one to wait does not change who serves.
    chosen: Option<Choice>,
    first_token: Option<Instant>,
    last_token: Option<Instant>,
    tokens: u64,
    /// What the client's key owes for it.
    charge: Option<Charge>,
}

impl Progress {
    pub(super) const fn new(id: RequestId, arrived: Instant, charge: Option<Charge>) -> Self {
        Self { id, arrived, decision: None, chosen: None, first_token: None, last_token: None, tokens: 0, charge }
    }

    /// The executor has counted.
    pub(super) fn counted(&mut self, usage: Usage) {
        if let Some(charge) = &mut self.charge {
            charge.counted(usage);
        }
    }

    /// What the request waits for, if its newest decision says so.
    pub(super) fn awaited(&self) -> Option<&Reason> {
        match &self.decision.as_ref()?.verdict {
            Verdict::Wait(reason) => Some(reason),
            _ => None,
        }
    }

    pub(super) fn decided(&mut self, decision: Box<Decision>) {
        if let Verdict::Assign(choice) = &decision.verdict {
            self.chosen = Some(choice.clone());
        }
        self.decision = Some(decision);
    }

    pub(super) fn tokens(&mut self, count: u32, now: Instant) {
        if let Some(charge) = &mut self.charge {
            charge.tokens(count);
        }
        if count > 0 {
            self.first_token.get_or_insert(now);
            self.last_token = Some(now);
            self.tokens = self.tokens.saturating_add(u64::from(count));
        }
    }

    /// Rejected candidates of the newest decision, by reason code.
    pub(super) fn counts(&self) -> BTreeMap<String, u32> {
        self.decision.as_ref().map(|decision| decision.counts.clone()).unwrap_or_default()
    }

    /// What the client sees of a failure. A deadline that passed while the request waited says for what.
    pub(super) fn refusal(&self, failure: &Failure) -> ApiError {
        let error = of_failure(failure, &self.counts());
        match (failure, self.awaited()) {
            (Failure::DeadlineExceeded, Some(reason)) => {
                ApiError { message: format!("{}; it waited, because: {reason}", error.message), ..error }
            }
            _ => error,
        }
    }

    /// Who serves or served it, for messages.
    pub(super) fn server(&self) -> String {
        self.chosen.as_ref().map_or_else(|| "the executor".to_owned(), |choice| choice.candidate.node.to_string())
    }

    /// The headers that explain the newest decision.
    pub(super) fn headers(&self, headers: &mut HeaderMap) {
        headers.reserve(HEADERS);
        let mut set = |name: &'static str, value: &str| {
            // Names and codes are plain ASCII; what is not says nothing rather than breaking the response.
            if let Ok(value) = HeaderValue::from_str(value) {
                headers.insert(HeaderName::from_static(name), value);
            }
        };
        if let Some(Choice { candidate, estimate, .. }) = &self.chosen {
            set("x-tidegate-node", candidate.node.as_str());
            set("x-tidegate-variant", candidate.variant.as_str());
            set("x-tidegate-hop", hop(candidate.hop));
            set("x-tidegate-predicted-first-token-ms", &in_ms(estimate.first_token));
            set("x-tidegate-predicted-per-token-ms", &in_ms(estimate.per_token));
        }
        if let Some(decision) = &self.decision {
            set("x-tidegate-policy", &decision.policy);
            set("x-tidegate-attempt", &decision.attempt.number.to_string());
            let rejected: Vec<String> = decision.counts.iter().map(|(code, count)| format!("{code}={count}")).collect();
            if !rejected.is_empty() {
                set("x-tidegate-rejected", &rejected.join(","));
            }
        }
    }

    /// The `tidegate` object of an answer: who served it, and predicted beside actual times.
    pub(super) fn object(&self, now: Instant, degraded: bool) -> Story<'_> {
        let (chosen, decision) = (self.chosen.as_ref(), self.decision.as_deref());
        Story {
            request: self.id.to_string(),
            node: chosen.map(|choice| choice.candidate.node.as_str()),
            variant: chosen.map(|choice| choice.candidate.variant.as_str()),
            hop: chosen.map(|choice| hop(choice.candidate.hop)),
            quality: chosen.map(|choice| choice.estimate.quality.get()),
            policy: decision.map(|decision| decision.policy.as_str()),
            rejected: decision.map(|decision| &decision.counts).unwrap_or(&NONE_REJECTED),
            attempts: decision.map(|decision| u32::from(decision.attempt.number) + 1),
            degraded,
            predicted: chosen.map(|Choice { estimate, .. }| Times {
                first_token_ms: Some(millis(estimate.first_token)),
                per_token_ms: Some(millis(estimate.per_token)),
                total_ms: millis(estimate.total),
                first_token_high_ms: estimate.high.map(|high| millis(high.first_token)),
                total_high_ms: estimate.high.map(|high| millis(high.total)),
            }),
            actual: Times {
                first_token_ms: self.first_token.map(|first| millis(between(self.arrived, first))),
                per_token_ms: self.per_token().map(millis),
                total_ms: millis(between(self.arrived, now)),
                first_token_high_ms: None,
                total_high_ms: None,
            },
        }
    }

    /// Mean time of each token after the first.
    fn per_token(&self) -> Option<Micros> {
        let (first, last) = (self.first_token?, self.last_token?);
        between(first, last).0.checked_div(self.tokens.checked_sub(1)?).map(Micros)
    }
}

static NONE_REJECTED: BTreeMap<String, u32> = BTreeMap::new();

/// The `tidegate` object. What is not known is null.
#[derive(Debug, Serialize)]
pub(super) struct Story<'a> {
    request: String,
    node: Option<&'a str>,
    variant: Option<&'a str>,
    hop: Option<&'static str>,
    quality: Option<f64>,
    policy: Option<&'a str>,
    rejected: &'a BTreeMap<String, u32>,
    attempts: Option<u32>,
    degraded: bool,
    predicted: Option<Times>,
    actual: Times,
}

#[derive(Debug, Serialize)]
struct Times {
    first_token_ms: Option<f64>,
    per_token_ms: Option<f64>,
    total_ms: f64,
    /// What nine in ten should keep within; of predictions only, where their uncertainty is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    first_token_high_ms: Option<f64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    total_high_ms: Option<f64>,
}

fn between(from: Instant, to: Instant) -> Micros {
    Micros(u64::try_from(to.saturating_duration_since(from).as_micros()).unwrap_or(u64::MAX))
}

/// Milliseconds, exact to the microsecond.
fn millis(time: Micros) -> f64 {
    (time.as_millis_f64() * 1e3).round() / 1e3
}

fn in_ms(time: Micros) -> String {
    format!("{:.1}", time.as_millis_f64())
}

const fn hop(hop: Hop) -> &'static str {
    match hop {
        Hop::Local => "local",
        Hop::Direct => "direct",
        Hop::Relay => "relay",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_means_over_the_tokens_after_the_first() {
        let start = Instant::now();
        let mut progress = Progress::new(RequestId(7), start, None);
        assert_eq!(progress.per_token(), None);
        progress.tokens(0, start + Duration::from_millis(5));
        progress.tokens(1, start + Duration::from_millis(100));
        assert_eq!(progress.per_token(), None, "one token has no distance");
        progress.tokens(4, start + Duration::from_millis(140));
        let object = serde_json::to_value(progress.object(start + Duration::from_millis(150), true)).expect("texts and numbers");
        assert_eq!(object["actual"]["first_token_ms"], 100.0);
        assert_eq!(object["actual"]["per_token_ms"], 10.0);
        assert_eq!(object["actual"]["total_ms"], 150.0);
        assert_eq!(object["degraded"], true);
        assert_eq!(object["node"], serde_json::Value::Null, "unknown is not empty");
    }
}
