//! The routes.

use super::access::{Access, Exposure};
use super::ask::{self, Call, Chance};
use super::config::{BadFront, FrontConfig};
use super::counters::{Endpoint, FrontCounters};
use super::error::{ApiError, ErrorCode, INVALID};
use super::gather::Gather;
use super::progress::Progress;
use super::refusal::{of_failure, of_reason};
use super::shape::Envelope;
use super::stream::EventStream;
use super::{Answer, Ingress, models};
use axum::body::Body;
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT};
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Extension, Json, Router};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::{Value, json};
use shared::ids::RequestId;
use shared::plan::{Failure, Finish, Usage};
use shared::work::PromptKind;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::mpsc;
use tokio::time::{timeout, timeout_at};

/// The API as a router: OpenAI's endpoints, `/healthz`, and typed errors for everything else.
///
/// # Errors
/// [`BadFront`] for settings that cannot work, above all a listener beyond loopback without a key.
pub fn router<I: Ingress>(
    config: &FrontConfig,
    exposure: Exposure,
    ingress: I,
    counters: Arc<FrontCounters>,
) -> Result<Router, BadFront> {
    router_with(config, exposure, ingress, counters, Router::new())
}

/// The same with pages of the host beside it, behind the same keys.
///
/// # Errors
/// [`BadFront`] for settings that cannot work.
pub fn router_with<I: Ingress>(
    config: &FrontConfig,
    exposure: Exposure,
    ingress: I,
    counters: Arc<FrontCounters>,
    pages: Router,
) -> Result<Router, BadFront> {
    config.validate()?;
    let access = Access::new(config, exposure)?;
    let front = Arc::new(Front { config: config.clone(), access, ingress, counters, started: unix_time_s() });
    Ok(Router::new()
        .route("/healthz", get(health::<I>))
        .route("/v1/models", get(list_models::<I>))
        .route("/v1/models/{*name}", get(one_model::<I>))
        .route("/v1/chat/completions", post(chat::<I>))
        .route("/v1/completions", post(completion::<I>))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(Arc::clone(&front))
        .merge(pages)
        .layer(from_fn_with_state(front, outer::<I>)))
}

struct Front<I> {
    config: FrontConfig,
    access: Access,
    ingress: I,
    counters: Arc<FrontCounters>,
    /// Unix time in seconds, for display.
    started: u64,
}

/// When and as what a request came in.
#[derive(Clone, Copy, Debug)]
struct Arrival {
    id: RequestId,
    at: Instant,
}

fn unix_time_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Around every request: its name, the key, common headers, counters, one line of log.
async fn outer<I: Ingress>(State(front): State<Arc<Front<I>>>, mut request: Request, next: Next) -> Response<Body> {
    let arrival = Arrival { id: RequestId(rand::random()), at: Instant::now() };
    let endpoint = Endpoint::of_path(request.uri().path());
    let access = if endpoint == Endpoint::Health { Ok(()) } else { front.access.check(request.headers()) };
    let mut response = match access {
        Ok(()) => {
            request.extensions_mut().insert(arrival);
            let mut response = next.run(request).await;
            common_headers(&front.ingress, response.headers_mut());
            response
        }
        Err(error) => error.into_response(),
    };
    if let Ok(id) = HeaderValue::from_str(&arrival.id.to_string()) {
        response.headers_mut().insert("x-request-id", id);
    }
    let status = response.status().as_u16();
    let code = response.extensions().get::<ErrorCode>().map(|code| code.0);
    front.counters.request(endpoint, status);
    if let Some(code) = code {
        front.counters.error(code);
    }
    let ms = u64::try_from(arrival.at.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::debug!(request = %arrival.id, endpoint = endpoint.label(), status, code, ms, "answered");
    response
}

/// What every answer to a known client says. A header that a handler set is left alone.
fn common_headers<I: Ingress>(ingress: &I, headers: &mut HeaderMap) {
    if let Ok(node) = HeaderValue::from_str(ingress.node().as_str()) {
        headers.entry("x-tidegate-node").or_insert(node);
    }
    let degraded = HeaderValue::from_static(if ingress.degraded() { "true" } else { "false" });
    headers.entry("x-tidegate-degraded").or_insert(degraded);
}

async fn health<I: Ingress>(State(front): State<Arc<Front<I>>>) -> Json<Value> {
    Json(json!({"status": "ok", "degraded": front.ingress.degraded()}))
}

async fn list_models<I: Ingress>(State(front): State<Arc<Front<I>>>) -> Json<Value> {
    Json(models::list(&front.ingress.catalogue(), front.started))
}

async fn one_model<I: Ingress>(
    State(front): State<Arc<Front<I>>>,
    name: Result<Path<String>, PathRejection>,
) -> Result<Json<Value>, ApiError> {
    // A name that is no text names nothing.
    let Path(name) = name.unwrap_or_else(|_| Path(String::new()));
    let found = models::one(&front.ingress.catalogue(), &name, front.started);
    found.map(Json).ok_or_else(|| ask::unknown_model(&name))
}

async fn no_such_path() -> ApiError {
    let message = "no such endpoint: want /v1/models, /v1/chat/completions, /v1/completions or /healthz";
    ApiError::new(StatusCode::NOT_FOUND, INVALID, "unknown_url", message)
}

async fn no_such_method(method: Method) -> ApiError {
    let message = format!("this endpoint does not take {method}: want POST for completions and GET for the rest");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed", message)
}

async fn chat<I: Ingress>(
    State(front): State<Arc<Front<I>>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Response<Body> {
    front.answer(PromptKind::Chat, arrival, request).await
}

async fn completion<I: Ingress>(
    State(front): State<Arc<Front<I>>>,
    Extension(arrival): Extension<Arrival>,
    request: Request,
) -> Response<Body> {
    front.answer(PromptKind::Completion, arrival, request).await
}

impl<I: Ingress> Front<I> {
    /// Serves one call. Dropping this future, as hyper does when the client goes, drops the receiver, and so cancels the request.
    async fn answer(&self, kind: PromptKind, arrival: Arrival, request: Request) -> Response<Body> {
        let call = match self.read(kind, arrival, request).await {
            Ok(call) => call,
            Err(error) => return error.into_response(),
        };
        let stream = call.ask.request.stream;
        let envelope = Envelope { kind, id: arrival.id, created: unix_time_s(), model: call.model };
        let progress = Progress::new(arrival.id, arrival.at);
        match self.ingress.ask(call.ask).await {
            Err(refusal) => of_reason(&refusal.0, &BTreeMap::new()).in_call(kind).into_response(),
            Ok(answers) if stream => self.streamed(envelope, progress, answers, call.include_usage).await,
            Ok(answers) => self.whole(envelope, progress, answers).await,
        }
    }

    async fn read(&self, kind: PromptKind, arrival: Arrival, request: Request) -> Result<Call, ApiError> {
        let (parts, body) = request.into_parts();
        json_only(&parts.headers)?;
        let bytes = self.body(&parts.headers, body).await?;
        let chance = Chance { id: arrival.id, seed: rand::random() };
        let call = ask::read(kind, &bytes, &parts.headers, &self.ingress.catalogue(), chance)?;
        let residency = call.ask.request.needs.residency;
        self.ingress.residency_allowed(residency).map_err(|why| {
            let error = of_reason(&shared::plan::Reason::Residency, &BTreeMap::new());
            ApiError { message: why, ..error }
        })?;
        Ok(call)
    }

    /// The body, within its limits of size and time.
    async fn body(&self, headers: &HeaderMap, mut body: Body) -> Result<Bytes, ApiError> {
        let bytes_max = self.config.body_bytes_max;
        let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| usize::try_from(length).map_or(true, |length| length > bytes_max)) {
            if !headers.contains_key(EXPECT) {
                discard(body).await;
            }
            return Err(ask::too_large(bytes_max));
        }
        let wait = Duration::from_millis(self.config.body_read_ms);
        match timeout(wait, Limited::new(&mut body, bytes_max).collect()).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => {
                discard(body).await;
                Err(ask::too_large(bytes_max))
            }
            Ok(Err(_)) => {
                let message = "the request body ended early or was garbled on its way";
                Err(ApiError::new(StatusCode::BAD_REQUEST, INVALID, "incomplete_body", message))
            }
            Err(_) => {
                let message = format!("the request body did not arrive within {} ms", wait.as_millis());
                Err(ApiError::new(StatusCode::REQUEST_TIMEOUT, INVALID, "body_timeout", message))
            }
        }
    }

    /// A stream. Its head is held back until there is something to say, so that an early failure keeps its status code.
    async fn streamed(
        &self,
        envelope: Envelope,
        mut progress: Progress,
        mut answers: mpsc::Receiver<Answer>,
        include_usage: bool,
    ) -> Response<Body> {
        let head_by = tokio::time::Instant::now() + Duration::from_millis(self.config.head_hold_ms);
        let first = loop {
            match timeout_at(head_by, answers.recv()).await {
                Ok(Some(Answer::Decided(decision))) => progress.decided(decision),
                Ok(Some(Answer::Fail(failure))) => return failed(envelope.kind, &progress, &failure),
                Ok(Some(answer)) => break Some(answer),
                Ok(None) => return failed(envelope.kind, &progress, &Failure::Broken(progress.server())),
                Err(_) => break None,
            }
        };
        let mut explained = HeaderMap::new();
        progress.headers(&mut explained);
        let keep_alive = Duration::from_millis(self.config.keep_alive_ms);
        let (counters, degraded) = (Arc::clone(&self.counters), self.ingress.degraded());
        let stream = EventStream { envelope, progress, include_usage, keep_alive, degraded, counters, answers, first };
        let mut response = stream.into_response();
        response.headers_mut().extend(explained);
        response
    }

    /// A whole answer.
    async fn whole(&self, envelope: Envelope, mut progress: Progress, mut answers: mpsc::Receiver<Answer>) -> Response<Body> {
        let kind = envelope.kind;
        match gathered(kind, &mut progress, &mut answers).await {
            Err(failure) => failed(kind, &progress, &failure),
            Ok((gather, finish, usage)) => {
                let tidegate = progress.object(Instant::now(), self.ingress.degraded());
                let mut response = Json(envelope.whole(gather.choices(finish), usage, tidegate)).into_response();
                progress.headers(response.headers_mut());
                response
            }
        }
    }
}

async fn gathered(
    kind: PromptKind,
    progress: &mut Progress,
    answers: &mut mpsc::Receiver<Answer>,
) -> Result<(Gather, Finish, Usage), Failure> {
    let mut gather = Gather::new(kind);
    loop {
        match answers.recv().await {
            Some(Answer::Decided(decision)) => progress.decided(decision),
            Some(Answer::Tokens(batch)) => {
                progress.tokens(batch.count, Instant::now());
                gather.add(batch)?;
            }
            Some(Answer::Finish(finish, usage)) => return Ok((gather, finish, usage)),
            Some(Answer::Fail(failure)) => return Err(failure),
            None => return Err(Failure::Broken(progress.server())),
        }
    }
}

/// A failure before anything was sent.
fn failed(kind: PromptKind, progress: &Progress, failure: &Failure) -> Response<Body> {
    let mut response = of_failure(failure, &progress.counts()).in_call(kind).into_response();
    progress.headers(response.headers_mut());
    response
}

/// Most that is read of a body that is too large, and how long. Closing on a client that still writes resets the connection, and most
/// clients then never see the answer; a client that goes on beyond this is not worth more.
const DISCARD_BYTES_MAX: usize = 64 * 1024 * 1024;
const DISCARD_TIME: Duration = Duration::from_secs(5);

async fn discard(body: Body) {
    let mut rest = Limited::new(body, DISCARD_BYTES_MAX);
    let all = async { while let Some(Ok(_)) = rest.frame().await {} };
    if timeout(DISCARD_TIME, all).await.is_err() {
        tracing::debug!("a body that is too large was not read to its end");
    }
}

/// Only JSON that says so: a page of the web can post anything else without asking first.
fn json_only(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or_default();
    let essence = kind.split(';').next().unwrap_or_default().trim();
    let plain = headers.get(CONTENT_ENCODING).is_none_or(|encoding| encoding.as_bytes().eq_ignore_ascii_case(b"identity"));
    if essence.eq_ignore_ascii_case("application/json") && plain {
        return Ok(());
    }
    let message = "want a JSON body with `Content-Type: application/json`, not compressed";
    Err(ApiError::new(StatusCode::UNSUPPORTED_MEDIA_TYPE, INVALID, "unsupported_media_type", message))
}
