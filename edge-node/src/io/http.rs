//! The HTTP front: the OpenAI API in front of the agent, and the agent's own pages beside it.

use super::driver::{Handle, Message, Stopped};
use super::meters::Meters;
use super::mqtt::Membership;
use super::spool::Spool;
use super::store::{RecordBook, chain};
use crate::logic::NodeStatus;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::http::header::CONTENT_TYPE;
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use serde_json::{Value, json};
use shared::ids::{NodeId, RequestId, ServiceId, VariantId};
use shared::plan::Reason;
use shared::work::{Capability, Catalogue, Residency};
use shared_net::openai::{Answer, Ask, FrontCounters, Ingress, Refusal};
use std::sync::Arc;
use tokio::sync::{Notify, mpsc};

/// Answers that wait for a client. A few seconds of a fast stream: enough that a hiccup of the network does not hold the engine
/// back, little enough that one that does not read is noticed.
const ANSWERS_MAX: usize = 64;

/// The agent as the front sees it.
#[derive(Clone, Debug)]
pub(super) struct AgentIngress(pub(super) Handle);

impl Ingress for AgentIngress {
    fn node(&self) -> NodeId {
        self.0.node().clone()
    }

    fn catalogue(&self) -> Arc<Catalogue> {
        self.0.catalogue()
    }

    fn residency_allowed(&self, _residency: Residency) -> Result<(), String> {
        // A client of an agent stands at the agent's site.
        Ok(())
    }

    async fn ask(&self, ask: Ask) -> Result<mpsc::Receiver<Answer>, Refusal> {
        let (answers, receiver) = mpsc::channel(ANSWERS_MAX);
        let message = Message::Asked { request: Box::new(ask.request), body: Arc::new(ask.body), answers };
        self.0.send(message).await.map_err(|_| Refusal(Reason::Draining))?;
        Ok(receiver)
    }

    fn degraded(&self) -> bool {
        self.0.degraded()
    }

    async fn capable(&self, service: ServiceId, capability: Capability) -> Vec<VariantId> {
        self.0.look(move |agent, _| agent.core().variants_with(&service, capability)).await.unwrap_or_default()
    }

    async fn replicas_ready(&self) -> usize {
        self.0.look(|agent, _| agent.core().replicas_ready()).await.unwrap_or_default()
    }
}

/// What the pages are made of.
#[derive(Clone)]
pub(super) struct Pages {
    pub(super) handle: Handle,
    pub(super) book: RecordBook,
    pub(super) meters: Arc<Meters>,
    pub(super) front: Arc<FrontCounters>,
    /// Absent for a node that never joined.
    pub(super) membership: Option<Membership>,
    pub(super) spool: Spool,
    /// Rung when accelerators shall be looked for.
    pub(super) probing: Arc<Notify>,
}

impl Pages {
    /// What the logic says, and what only the host knows.
    async fn look(&self) -> Result<NodeStatus, Stopped> {
        let mut status = self.handle.status().await?;
        status.certificate_expires_in = self.membership.as_ref().map(Membership::expires_in);
        status.spool.disk = Some(self.spool.bytes());
        Ok(status)
    }
}

/// The agent's own pages, to be put behind the same keys as the API.
pub(super) fn pages(pages: Pages) -> Router {
    Router::new()
        .route("/tidegate/v1/status", get(status))
        .route("/tidegate/v1/requests/{id}", get(request))
        .route("/tidegate/v1/metrics", get(metrics))
        .route("/tidegate/v1/probe", post(probe))
        .with_state(pages)
}

async fn status(State(pages): State<Pages>) -> Response {
    match pages.look().await {
        Ok(status) => Json(status).into_response(),
        Err(stopped) => refuse(StatusCode::SERVICE_UNAVAILABLE, "draining", &stopped.to_string()),
    }
}

/// Lets accelerators be looked for again, whatever failed before. The status page tells what came of it.
async fn probe(State(pages): State<Pages>) -> Response {
    pages.probing.notify_one();
    (StatusCode::ACCEPTED, Json(json!({"probing": true}))).into_response()
}

async fn request(State(pages): State<Pages>, Path(id): Path<String>) -> Response {
    let id: RequestId = match id.parse() {
        Ok(id) => id,
        Err(bad) => return refuse(StatusCode::BAD_REQUEST, "bad_request_id", &format!("{bad}")),
    };
    match pages.book.find(id).await {
        Ok(Some(record)) => Json(record).into_response(),
        Ok(None) => {
            let message = "no record of this request here: it is not over yet, too long ago, or came in at another node";
            refuse(StatusCode::NOT_FOUND, "unknown_request", message)
        }
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "store", &chain(&error)),
    }
}

async fn metrics(State(pages): State<Pages>) -> Response {
    let Ok(status) = pages.look().await else {
        return refuse(StatusCode::SERVICE_UNAVAILABLE, "draining", "the agent has stopped");
    };
    match pages.meters.text(&status, &pages.front) {
        Ok(text) => ([(CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")], text).into_response(),
        Err(error) => refuse(StatusCode::INTERNAL_SERVER_ERROR, "metrics", &error.to_string()),
    }
}

fn refuse(status: StatusCode, code: &str, message: &str) -> Response {
    let body: Value = json!({"error": {"message": message, "type": "tidegate_error", "param": null, "code": code}});
    (status, Json(body)).into_response()
}
