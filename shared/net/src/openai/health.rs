//! Whether the host lives, and whether it can answer.

use super::Ingress;
use super::front::Front;
use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::header::RETRY_AFTER;
use axum::http::{HeaderValue, Response, StatusCode};
use axum::response::IntoResponse;
use serde_json::{Value, json};
use std::sync::Arc;

/// Whether the process lives, and what it knows of the fleet. Always 200: who wants to route by it asks `/readyz`.
pub(super) async fn health<I: Ingress>(State(front): State<Arc<Front<I>>>) -> Json<Value> {
    let ready = front.ingress.replicas_ready().await;
    Json(json!({"status": "ok", "degraded": front.ingress.degraded(), "replicas_ready": ready}))
}

/// Whether requests can be answered at all.
pub(super) async fn readiness<I: Ingress>(State(front): State<Arc<Front<I>>>) -> Response<Body> {
    let ready = front.ingress.replicas_ready().await;
    let status = if ready > 0 { "ready" } else { "no replica serves, here or elsewhere" };
    let mut response =
        Json(json!({"status": status, "degraded": front.ingress.degraded(), "replicas_ready": ready})).into_response();
    if ready == 0 {
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        response.headers_mut().insert(RETRY_AFTER, HeaderValue::from(READY_RETRY_S));
    }
    response
}

/// A model loads, or a heartbeat brings news of one, within about this many seconds.
const READY_RETRY_S: u32 = 5;
