//! The routes.

use super::access::{Access, Exposure};
use super::ask::{self, Call, Chance};
use super::config::{BadFront, FrontConfig};
use super::counters::{Endpoint, FrontCounters};
use super::error::{ApiError, ErrorCode, INVALID};
use super::health::{health, readiness};
use super::keys::{Charge, Holder, KeyRing};
use super::progress::Progress;
use super::refusal::{name_capable, of_reason};
use super::shape::Envelope;
use super::stream::EventStream;
use super::waiting::{Gathered, gathered, json_bytes, nobody, while_there};
use super::wire::Peer;
use super::{Answer, Ingress, models};
use crate::tls::CertClock;
use axum::body::{Body, HttpBody};
use axum::extract::rejection::PathRejection;
use axum::extract::{Path, Request, State};
use axum::http::header::{CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE};
use axum::http::request::Parts;
use axum::http::{HeaderMap, HeaderValue, Method, Response, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::IntoResponse;
use axum::routing::{get, post};
use axum::{Json, Router};
use bytes::Bytes;
use http_body_util::{BodyExt, LengthLimitError, Limited};
use serde_json::Value;
use shared::ids::{RequestId, ServiceId};
use shared::plan::{Failure, Reason};
use shared::work::{Capability, PromptKind};
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
    router_keyed(config, exposure, ingress, counters, pages, &KeyRing::new(CertClock::new(0)))
}

/// The same with keys that the host manages, beside those of the configuration.
///
/// # Errors
/// [`BadFront`] for settings that cannot work.
pub fn router_keyed<I: Ingress>(
    config: &FrontConfig,
    exposure: Exposure,
    ingress: I,
    counters: Arc<FrontCounters>,
    pages: Router,
    ring: &KeyRing,
) -> Result<Router, BadFront> {
    config.validate()?;
    let access = Access::new(config, exposure, ring.clone())?;
    counters.show_keys(ring);
    let front = Arc::new(Front { config: config.clone(), access, ingress, counters, started: unix_time_s() });
    Ok(Router::new()
        .route("/healthz", get(health::<I>))
        .route("/readyz", get(readiness::<I>))
        .route("/v1/models", get(list_models::<I>))
        .route("/v1/models/{*name}", get(one_model::<I>))
        .route("/v1/chat/completions", post(chat::<I>))
        .route("/v1/completions", post(completion::<I>))
        .route("/v1/embeddings", post(embedding::<I>))
        .fallback(no_such_path)
        .method_not_allowed_fallback(no_such_method)
        .with_state(Arc::clone(&front))
        .merge(pages)
        .layer(from_fn_with_state(front, outer::<I>)))
}

pub(super) struct Front<I> {
    config: FrontConfig,
    access: Access,
    pub(super) ingress: I,
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
    let access = if endpoint == Endpoint::Health { Ok(None) } else { front.access.check(request.headers(), endpoint) };
    let refused = access.is_err();
    let peer = request.extensions().get::<Arc<Peer>>().cloned();
    let (mut response, holder) = match access {
        Ok(holder) => {
            let extensions = request.extensions_mut();
            extensions.insert(arrival);
            if let Some(holder) = &holder {
                extensions.insert(Arc::clone(holder));
            }
            let mut response = next.run(request).await;
            common_headers(&front.ingress, response.headers_mut());
            (response, holder)
        }
        Err((error, holder)) => {
            let mut response = error.into_response();
            close_after(&request, &mut response);
            (response, holder)
        }
    };
    let headers = response.headers_mut();
    if let Ok(id) = HeaderValue::from_str(&arrival.id.to_string()) {
        headers.insert("x-request-id", id);
    }
    if let Some(holder) = holder.as_ref().filter(|_| endpoint.infers()) {
        holder.headers(headers);
    }
    let status = response.status().as_u16();
    let code = response.extensions().get::<ErrorCode>().map(|code| code.0);
    front.counters.request(endpoint, status);
    if let Some(code) = code {
        front.counters.error(code);
        let of_key = matches!(code, "rate_limit_exceeded" | "insufficient_quota" | "key_scope");
        if let Some(holder) = holder.as_ref().filter(|_| of_key) {
            holder.refused(code);
        }
        if refused || of_key {
            let who = holder.map(|holder| holder.name().to_owned()).or_else(|| peer.map(|peer| peer.who()));
            front.counters.note_refusal(who.as_deref().unwrap_or("somebody"), code);
        }
    }
    let ms = u64::try_from(arrival.at.elapsed().as_millis()).unwrap_or(u64::MAX);
    tracing::debug!(request = %arrival.id, endpoint = endpoint.label(), status, code, ms, "answered");
    response
}

/// A request that was refused before its body was read leaves the connection in the middle of it: no other can follow.
fn close_after(request: &Request, response: &mut Response<Body>) {
    if !request.body().is_end_stream() {
        response.headers_mut().insert(CONNECTION, HeaderValue::from_static("close"));
    }
}

/// What every answer to a known client says. A header that a handler set is left alone.
fn common_headers<I: Ingress>(ingress: &I, headers: &mut HeaderMap) {
    if let Ok(node) = HeaderValue::from_str(ingress.node().as_str()) {
        headers.entry("x-tidegate-node").or_insert(node);
    }
    let degraded = HeaderValue::from_static(if ingress.degraded() { "true" } else { "false" });
    headers.entry("x-tidegate-degraded").or_insert(degraded);
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
    let message = "no such endpoint: want /v1/models, /v1/chat/completions, /v1/completions, /v1/embeddings, /healthz or /readyz";
    ApiError::new(StatusCode::NOT_FOUND, INVALID, "unknown_url", message)
}

async fn no_such_method(method: Method) -> ApiError {
    let message = format!("this endpoint does not take {method}: want POST for completions and GET for the rest");
    ApiError::new(StatusCode::METHOD_NOT_ALLOWED, INVALID, "method_not_allowed", message)
}

async fn chat<I: Ingress>(State(front): State<Arc<Front<I>>>, request: Request) -> Response<Body> {
    front.answer(PromptKind::Chat, request).await
}

async fn completion<I: Ingress>(State(front): State<Arc<Front<I>>>, request: Request) -> Response<Body> {
    front.answer(PromptKind::Completion, request).await
}

async fn embedding<I: Ingress>(State(front): State<Arc<Front<I>>>, request: Request) -> Response<Body> {
    front.answer(PromptKind::Embedding, request).await
}

/// A request on its way through the front.
struct Asked {
    envelope: Envelope,
    progress: Progress,
    answers: mpsc::Receiver<Answer>,
    service: ServiceId,
    peer: Option<Arc<Peer>>,
}

impl<I: Ingress> Front<I> {
    /// Serves one call. Dropping this future, as hyper does when the connection ends, drops the receiver, and so cancels the request.
    async fn answer(&self, kind: PromptKind, request: Request) -> Response<Body> {
        let (parts, mut body) = request.into_parts();
        let arrival = parts.extensions.get().copied();
        let arrival = arrival.unwrap_or_else(|| Arrival { id: RequestId(rand::random()), at: Instant::now() });
        let read = self.read(kind, arrival, &parts, &mut body).await;
        let (call, charge) = match read {
            Ok(read) => read,
            Err(error) => {
                let mut response = error.into_response();
                close_after(&Request::from_parts(parts, body), &mut response);
                return response;
            }
        };
        let (stream, include_usage, service) = (call.ask.request.stream, call.include_usage, call.ask.request.service.clone());
        let envelope = Envelope { kind, id: arrival.id, created: unix_time_s(), model: call.model };
        let progress = Progress::new(arrival.id, arrival.at, charge);
        let answers = match self.ingress.ask(call.ask).await {
            Err(refusal) => return of_reason(&refusal.0, &BTreeMap::new()).in_call(kind).into_response(),
            Ok(answers) => answers,
        };
        let peer = parts.extensions.get::<Arc<Peer>>().cloned();
        let asked = Asked { envelope, progress, answers, service, peer };
        if stream { self.streamed(asked, include_usage).await } else { self.whole(asked).await }
    }

    async fn read(
        &self,
        kind: PromptKind,
        arrival: Arrival,
        parts: &Parts,
        body: &mut Body,
    ) -> Result<(Call, Option<Charge>), ApiError> {
        json_only(&parts.headers)?;
        let bytes = self.body(&parts.headers, body).await?;
        let chance = Chance { id: arrival.id, seed: rand::random() };
        let catalogue = self.ingress.catalogue();
        let call = ask::read(kind, &bytes, &parts.headers, &catalogue, chance)?;
        let request = &call.ask.request;
        self.ingress.residency_allowed(request.needs.residency).map_err(|why| {
            let error = of_reason(&Reason::Residency, &BTreeMap::new());
            ApiError { message: why, ..error }
        })?;
        let holder = parts.extensions.get::<Arc<Holder>>();
        let service = catalogue.service(&request.service);
        let charge = holder.zip(service).map(|(holder, service)| holder.admit(service, request.prompt, request.output_max));
        let charge = charge.transpose()?;
        Ok((call, charge))
    }

    /// The body, within its limits of size and time. One that is announced too large is refused at once; the connection then reads
    /// what still comes, so that the client can read the answer.
    async fn body(&self, headers: &HeaderMap, body: &mut Body) -> Result<Bytes, ApiError> {
        let bytes_max = self.config.body_bytes_max;
        let announced = headers.get(CONTENT_LENGTH).and_then(|length| length.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| usize::try_from(length).map_or(true, |length| length > bytes_max)) {
            return Err(ask::too_large(bytes_max));
        }
        let wait = Duration::from_millis(self.config.body_read_ms);
        match timeout(wait, Limited::new(body, bytes_max).collect()).await {
            Ok(Ok(collected)) => Ok(collected.to_bytes()),
            Ok(Err(error)) if error.is::<LengthLimitError>() => Err(ask::too_large(bytes_max)),
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
    async fn streamed(&self, mut asked: Asked, include_usage: bool) -> Response<Body> {
        let head_by = tokio::time::Instant::now() + Duration::from_millis(self.config.head_hold_ms);
        let first = loop {
            let answer = match timeout_at(head_by, while_there(asked.peer.as_deref(), asked.answers.recv())).await {
                Ok(Some(answer)) => answer,
                Ok(None) => return nobody(),
                Err(_) => break None,
            };
            match answer {
                Some(Answer::Decided(decision)) => asked.progress.decided(decision),
                Some(Answer::Fail(failure)) => return self.failed(&asked, &failure).await,
                Some(answer) => break Some(answer),
                None => {
                    let broken = Failure::Broken(asked.progress.server());
                    return self.failed(&asked, &broken).await;
                }
            }
        };
        let mut explained = HeaderMap::new();
        asked.progress.headers(&mut explained);
        let keep_alive = Duration::from_millis(self.config.keep_alive_ms);
        let (counters, degraded) = (Arc::clone(&self.counters), self.ingress.degraded());
        let Asked { envelope, progress, answers, peer, .. } = asked;
        let stream = EventStream { envelope, progress, include_usage, keep_alive, degraded, counters, answers, first, peer };
        let mut response = stream.into_response();
        response.headers_mut().extend(explained);
        response
    }

    /// A whole answer.
    async fn whole(&self, mut asked: Asked) -> Response<Body> {
        let peer = asked.peer.clone();
        let kind = asked.envelope.kind;
        let Some(gathered) = while_there(peer.as_deref(), gathered(kind, &mut asked.progress, &mut asked.answers)).await else {
            return nobody();
        };
        let answered = gathered.and_then(|(gather, finish, usage)| {
            asked.progress.counted(usage);
            let tidegate = asked.progress.object(Instant::now(), self.ingress.degraded());
            match gather {
                Gathered::Text(gather) => Ok(json_bytes(asked.envelope.whole(&gather.choices(finish), usage, &tidegate))),
                Gathered::Vectors(vectors) => Ok(json_bytes(vectors.body(&asked.envelope, usage, &tidegate)?)),
            }
        });
        match answered {
            Err(failure) => self.failed(&asked, &failure).await,
            Ok(mut response) => {
                asked.progress.headers(response.headers_mut());
                response
            }
        }
    }

    /// A failure before anything was sent. For want of a capability, it says who has it.
    async fn failed(&self, asked: &Asked, failure: &Failure) -> Response<Body> {
        let mut error = asked.progress.refusal(failure);
        if let Failure::Refused(Reason::Capability(name)) = failure
            && let Some(capability) = Capability::parse(name)
        {
            let have = self.ingress.capable(asked.service.clone(), capability).await;
            error = name_capable(error, &asked.service, capability, &have);
        }
        let mut response = error.in_call(asked.envelope.kind).into_response();
        asked.progress.headers(response.headers_mut());
        response
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
