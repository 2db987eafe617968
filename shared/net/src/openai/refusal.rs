//! What a reason or a failure is in HTTP: one table, total over both enums.

use super::error::{ApiError, INVALID, PERMISSION, RATE, SERVER};
use axum::http::StatusCode;
use shared::ids::{ServiceId, VariantId};
use shared::plan::{Failure, Reason};
use shared::work::Capability;
use std::collections::BTreeMap;

/// Seconds after which a busy fleet is asked again: about the time in which a short answer frees its slot.
const BUSY_RETRY_S: u32 = 1;
/// Seconds after which a fleet without a usable candidate is asked again: one heartbeat, in which nodes come back.
const ABSENT_RETRY_S: u32 = 5;

/// What the client sees of a request that was refused for `reason`; `counts` are the rejected candidates by reason code.
#[must_use]
pub fn of_reason(reason: &Reason, counts: &BTreeMap<String, u32>) -> ApiError {
    let message = format!("the request cannot be served: {reason}{}", counted(counts));
    let code = reason.code();
    let client = |code, param: &str| ApiError::new(StatusCode::BAD_REQUEST, INVALID, code, message.as_str()).at(param);
    let unavailable =
        || ApiError::new(StatusCode::SERVICE_UNAVAILABLE, SERVER, code, message.as_str()).retry_after(ABSENT_RETRY_S);
    match reason {
        Reason::Context { .. } => client("context_length_exceeded", "messages"),
        Reason::Capability(name) => client("unsupported_parameter", member_of(name)),
        Reason::Quality { .. } => client(code, "tidegate.min_quality"),
        Reason::Energy(_) => client(code, "tidegate.energy_joules"),
        Reason::Money(_) => client(code, "tidegate.money_microdollars"),
        Reason::Residency => {
            let message = format!("{message}; what must stay at a site is asked of an agent there, not of the hub");
            ApiError::new(StatusCode::FORBIDDEN, PERMISSION, code, message).at("tidegate.residency")
        }
        Reason::Deadline { .. } => {
            ApiError::new(StatusCode::GATEWAY_TIMEOUT, SERVER, "deadline_exceeded", message.as_str()).no_retry()
        }
        Reason::Busy | Reason::BoundReached { .. } | Reason::QueueFull => {
            ApiError::new(StatusCode::TOO_MANY_REQUESTS, RATE, code, message.as_str()).retry_after(BUSY_RETRY_S)
        }
        Reason::Stale { .. }
        | Reason::Unknown
        | Reason::Offline
        | Reason::Suspect
        | Reason::Draining
        | Reason::Cloned
        | Reason::NoPath
        | Reason::NotGranted
        | Reason::NoReplica
        | Reason::Loading
        | Reason::ReplicaFailed(_)
        | Reason::Weights
        | Reason::NoProfile
        | Reason::NotPinned
        | Reason::Tried
        | Reason::NotResumable(_)
        | Reason::Policy(_)
        | Reason::RetryBudget
        | Reason::Part(_)
        | Reason::SplitMargin { .. }
        | Reason::NoCandidate => unavailable(),
    }
}

/// The parameter that asks for a capability.
fn member_of(capability: &str) -> &str {
    match Capability::parse(capability) {
        Some(Capability::JsonSchema) => "response_format",
        Some(Capability::Vision) => "messages",
        Some(Capability::Embeddings) => "model",
        _ => capability,
    }
}

/// The same refusal with what would be right: `have` are the service's variants that have what is lacking.
pub(super) fn name_capable(error: ApiError, service: &ServiceId, capability: Capability, have: &[VariantId]) -> ApiError {
    let name = capability.name();
    let message = if have.is_empty() {
        let message = &error.message;
        format!(
            "{message}; no variant of `{service}` has the capability `{name}`: leave out what needs it, or ask for another model"
        )
    } else {
        let have: Vec<&str> = have.iter().map(VariantId::as_str).collect();
        format!("{}; the capability `{name}` of `{service}` is with: {}", error.message, have.join(", "))
    };
    ApiError { message, ..error }
}

/// What the client sees of a request that failed.
#[must_use]
pub fn of_failure(failure: &Failure, counts: &BTreeMap<String, u32>) -> ApiError {
    let code = failure.code();
    let message = format!("the request failed: {failure}{}", counted(counts));
    match failure {
        Failure::Broken(_) | Failure::Stalled(_) | Failure::Engine(_) => {
            ApiError::new(StatusCode::BAD_GATEWAY, SERVER, code, message).retry_after(BUSY_RETRY_S)
        }
        Failure::PromptTooLong { .. } => ApiError::new(StatusCode::BAD_REQUEST, INVALID, code, message).at("messages"),
        Failure::BadRequest { param, message } => {
            let error = ApiError::new(StatusCode::BAD_REQUEST, INVALID, code, message.as_str());
            ApiError { param: param.clone(), ..error }
        }
        Failure::DeadlineExceeded => ApiError::new(StatusCode::GATEWAY_TIMEOUT, SERVER, code, message).no_retry(),
        // Nobody is there to read these two; they exist for the counters and for a half-closed peer.
        Failure::ClientGone | Failure::ClientStalled => ApiError::new(StatusCode::REQUEST_TIMEOUT, INVALID, code, message),
        Failure::Refused(reason) => of_reason(reason, counts),
        // What a stage says is about the request or about its node: either way it reads as if there were but one node.
        Failure::Stage { failure, .. } => of_failure(failure, counts),
    }
}

/// How many candidates fell to which reason, as words.
fn counted(counts: &BTreeMap<String, u32>) -> String {
    if counts.is_empty() {
        return String::new();
    }
    let parts: Vec<String> = counts.iter().map(|(code, count)| format!("{count} {code}")).collect();
    format!(" (candidates rejected: {})", parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::units::{Joules, MicroDollars, Micros, Quality, Tokens};
    use shared::work::LayerRange;

    fn quality(value: f64) -> Quality {
        Quality::new(value).expect("good")
    }

    fn reasons() -> Vec<(Reason, u16)> {
        vec![
            (Reason::Stale { age: Micros(1) }, 503),
            (Reason::Unknown, 503),
            (Reason::Offline, 503),
            (Reason::Suspect, 503),
            (Reason::Draining, 503),
            (Reason::Cloned, 503),
            (Reason::NoPath, 503),
            (Reason::NotGranted, 503),
            (Reason::BoundReached { open_max: 3 }, 429),
            (Reason::NoReplica, 503),
            (Reason::Part(LayerRange { from: 0, to: 15, of: 30 }), 503),
            (Reason::SplitMargin { split: Micros(2), whole: Micros(1) }, 503),
            (Reason::Loading, 503),
            (Reason::ReplicaFailed("no memory".to_owned()), 503),
            (Reason::NoProfile, 503),
            (Reason::Residency, 403),
            (Reason::Quality { has: quality(0.1), wanted: quality(0.9) }, 400),
            (Reason::Context { wanted: Tokens(9), context: Tokens(8) }, 400),
            (Reason::Capability("tools".to_owned()), 400),
            (Reason::NotPinned, 503),
            (Reason::Weights, 503),
            (Reason::Busy, 429),
            (Reason::Deadline { predicted: Micros(2), remaining: Micros(1) }, 504),
            (Reason::Energy(Joules::new(1.0).expect("good")), 400),
            (Reason::Money(MicroDollars(1)), 400),
            (Reason::Tried, 503),
            (Reason::NotResumable("other weights".to_owned()), 503),
            (Reason::Policy("edge-only".to_owned()), 503),
            (Reason::RetryBudget, 503),
            (Reason::QueueFull, 429),
            (Reason::NoCandidate, 503),
        ]
    }

    #[test]
    fn every_reason_has_a_status_and_says_why() {
        let counts = BTreeMap::from([("stale".to_owned(), 2), ("busy".to_owned(), 1)]);
        for (reason, status) in reasons() {
            let error = of_reason(&reason, &counts);
            assert_eq!(error.status.as_u16(), status, "{reason:?}");
            assert!(error.message.contains(&reason.to_string()), "{error}");
            assert!(error.message.contains("1 busy, 2 stale"), "{error}");
            assert_eq!(error.retry_after_s.is_some(), matches!(status, 429 | 503), "{reason:?}");
            assert_eq!(of_failure(&Failure::Refused(reason), &counts), error, "one table");
        }
    }

    #[test]
    fn every_failure_has_a_status() {
        let failures = [
            (Failure::Broken("eu/b/n".to_owned()), 502),
            (Failure::Stalled(Micros(1)), 502),
            (Failure::Engine("no memory".to_owned()), 502),
            (Failure::PromptTooLong { prompt: Tokens(9), context: Tokens(8) }, 400),
            (Failure::BadRequest { param: Some("stop".to_owned()), message: "want less".to_owned() }, 400),
            (Failure::DeadlineExceeded, 504),
            (Failure::ClientGone, 408),
            (Failure::ClientStalled, 408),
        ];
        for (failure, status) in failures {
            let error = of_failure(&failure, &BTreeMap::new());
            assert_eq!((error.status.as_u16(), error.code), (status, failure.code()), "{failure:?}");
        }
    }

    #[test]
    fn the_parameter_at_fault_is_named() {
        let param = |reason: Reason| of_reason(&reason, &BTreeMap::new()).param;
        assert_eq!(param(Reason::Capability("tools".to_owned())).as_deref(), Some("tools"));
        assert_eq!(param(Reason::Residency).as_deref(), Some("tidegate.residency"));
        let failure = Failure::BadRequest { param: Some("stop".to_owned()), message: "want less".to_owned() };
        assert_eq!(of_failure(&failure, &BTreeMap::new()).param.as_deref(), Some("stop"));
    }
}
