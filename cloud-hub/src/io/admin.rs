//! The admin API: what operators and their tools ask. Loopback by default; every call needs the admin key.

use super::api::{
    Catalogued, Description, Done, DrainOrder, KeyMade, KeyOrder, KeyRow, Problem, RevokeOrder, TokenMade, TokenOrderSchema,
};
use super::input::{Inbox, Input};
use super::metrics::Metrics;
use crate::ca::Authority;
use crate::clock::UnixTime;
use crate::join;
use crate::logic::{AdminOperation, AdminReply, NodeRow};
use crate::store::{Certified, Store, StoreError};
use axum::body::Bytes;
use axum::extract::{DefaultBodyLimit, Path, Query, Request, State};
use axum::http::{HeaderMap, StatusCode, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{delete, get, post, put};
use axum::{Json, Router};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shared::ids::{KeyName, RequestId, ServiceId};
use shared::plan::DispatchSetting;
use shared::work::{Catalogue, Service};
use shared_net::openai::KeyRing;
use shared_net::tls::CertClock;
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::oneshot;
use utoipa::OpenApi;

/// Largest body of a call: a service with a thousand variants fits.
const BODY_BYTES_MAX: usize = 1024 * 1024;

/// What the handlers work with.
pub(crate) struct Admin {
    pub(crate) inbox: Inbox,
    pub(crate) store: Store,
    pub(crate) authority: Arc<Authority>,
    pub(crate) wall: CertClock,
    /// `host:port` that join tokens carry.
    pub(crate) address: String,
    pub(crate) metrics: Arc<Metrics>,
    /// SHA-256 of the admin key.
    pub(crate) key_sha256: [u8; 32],
    /// API keys, of which some open this API too.
    pub(crate) ring: KeyRing,
    /// Whether only this machine can connect; then metrics need no key.
    pub(crate) local: bool,
}

type Shared = State<Arc<Admin>>;

/// A call that was not carried out.
pub(crate) struct Failed(StatusCode, String);

impl IntoResponse for Failed {
    fn into_response(self) -> Response {
        (self.0, Json(Problem { error: self.1 })).into_response()
    }
}

impl From<StoreError> for Failed {
    fn from(error: StoreError) -> Self {
        tracing::error!(error = &error as &dyn std::error::Error, "an admin call could not use the store");
        Self(StatusCode::INTERNAL_SERVER_ERROR, format!("the hub's store failed while {error}: see the hub's log"))
    }
}

type Answer<T> = Result<Json<T>, Failed>;

/// The API as a router.
pub(crate) fn router(admin: Arc<Admin>) -> Router {
    let keyed = Router::new()
        .route("/admin/v1/nodes", get(nodes))
        .route("/admin/v1/tokens", post(make_token))
        .route("/admin/v1/services", get(services))
        .route("/admin/v1/services", put(put_service))
        .route("/admin/v1/services/{*id}", delete(remove_service))
        .route("/admin/v1/keys", get(keys))
        .route("/admin/v1/keys", post(add_key))
        .route("/admin/v1/keys/{*name}", delete(revoke_key))
        .route("/admin/v1/revoke", post(revoke))
        .route("/admin/v1/drain", post(drain))
        .route("/admin/v1/dispatch", put(set_dispatch))
        .route("/admin/v1/records", get(records))
        .route("/admin/v1/records/{request}", get(record))
        .route("/admin/v1/plans", get(plans))
        .route("/admin/v1/totals", get(totals))
        .route("/admin/v1/counters", get(counters))
        .fallback(nothing_here)
        .method_not_allowed_fallback(wrong_method)
        .route_layer(from_fn_with_state(Arc::clone(&admin), check_key));
    Router::new()
        .route("/openapi.json", get(describe))
        .route("/metrics", get(metrics))
        .route("/healthz", get(|| async { "ok" }))
        .merge(keyed)
        .layer(DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(admin)
}

async fn nothing_here() -> Failed {
    Failed(StatusCode::NOT_FOUND, "nothing here: see /openapi.json".to_owned())
}

async fn wrong_method() -> Failed {
    Failed(StatusCode::METHOD_NOT_ALLOWED, "not with this method: see /openapi.json".to_owned())
}

async fn check_key(State(admin): Shared, request: Request, next: Next) -> Response {
    match admin.knows(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(refused) => {
            let why = if refused.0 == StatusCode::FORBIDDEN { "scope" } else { "key" };
            admin.metrics.refused("admin", why, "a client of the admin API");
            refused.into_response()
        }
    }
}

fn no_key() -> Failed {
    Failed(
        StatusCode::UNAUTHORIZED,
        "want `Authorization: Bearer KEY` with the key in the hub's state folder, `admin.key`".to_owned(),
    )
}

impl Admin {
    /// Whether the admin key was sent, or an API key with the scope `admin`. Hashes are compared, so that the time taken tells nothing
    /// about the key.
    fn knows(&self, headers: &HeaderMap) -> Result<(), Failed> {
        let value = headers.get(header::AUTHORIZATION).map(axum::http::HeaderValue::as_bytes).unwrap_or_default();
        let key = value.strip_prefix(b"Bearer ").filter(|key| key.len() <= 512).ok_or_else(no_key)?;
        let hash: [u8; 32] = Sha256::digest(key).into();
        if hash == self.key_sha256 {
            return Ok(());
        }
        match self.ring.admin(key) {
            Some(Ok(())) => Ok(()),
            Some(Err(why)) => Err(Failed(StatusCode::FORBIDDEN, why)),
            None => Err(no_key()),
        }
    }

    async fn ask(&self, operation: AdminOperation) -> Result<AdminReply, Failed> {
        let stopping = || Failed(StatusCode::SERVICE_UNAVAILABLE, "the hub is stopping".to_owned());
        let (reply, replied) = oneshot::channel();
        self.inbox.send(Input::Admin(operation, reply)).await.map_err(|_| stopping())?;
        match replied.await.map_err(|_| stopping())? {
            AdminReply::Refused(why) => Err(Failed(StatusCode::CONFLICT, why)),
            AdminReply::NotFound(why) => Err(Failed(StatusCode::NOT_FOUND, why)),
            reply => Ok(reply),
        }
    }

    async fn nodes(&self) -> Result<Vec<NodeRow>, Failed> {
        match self.ask(AdminOperation::Nodes).await? {
            AdminReply::Nodes(rows) => Ok(rows),
            other => Err(unexpected(&other)),
        }
    }

    async fn do_it(&self, operation: AdminOperation) -> Answer<Done> {
        self.ask(operation).await?;
        Ok(Json(Done {}))
    }
}

fn parse<T: DeserializeOwned>(body: &Bytes) -> Result<T, Failed> {
    serde_json::from_slice(body).map_err(|error| Failed(StatusCode::BAD_REQUEST, format!("cannot read the body: {error}")))
}

fn unexpected(reply: &AdminReply) -> Failed {
    tracing::error!(?reply, "an admin operation got the wrong kind of answer");
    Failed(StatusCode::INTERNAL_SERVER_ERROR, "the hub gave another answer than was asked for".to_owned())
}

/// All nodes, as the hub sees them now, and when their certificates end.
#[utoipa::path(get, tag = "admin", path = "/admin/v1/nodes", responses((status = 200, body = Vec<serde_json::Value>), (status = 401, body = Problem)))]
pub(super) async fn nodes(State(admin): Shared) -> Result<Json<Vec<Certified<NodeRow>>>, Failed> {
    let rows = admin.nodes().await?;
    let expiries = admin.store.call(|db| db.expiries()).await?;
    let certified = |node: NodeRow| Certified { certificate_expires: expiries.get(&node.node).copied(), node };
    Ok(Json(rows.into_iter().map(certified).collect()))
}

/// Makes a join token.
#[utoipa::path(post, tag = "admin", path = "/admin/v1/tokens", request_body = TokenOrderSchema,
    responses((status = 200, body = TokenMade), (status = 400, body = Problem), (status = 401, body = Problem)))]
pub(super) async fn make_token(State(admin): Shared, body: Bytes) -> Answer<TokenMade> {
    let mut order: join::TokenOrder = parse(&body)?;
    let (authority, now) = (Arc::clone(&admin.authority), UnixTime::now(&admin.wall));
    order.address.get_or_insert_with(|| admin.address.clone());
    match admin.store.call(move |db| join::make_token(db, &authority, order, now)).await {
        Ok(token) => Ok(Json(TokenMade { token: token.to_string() })),
        Err(join::BadTokenOrder::Store(error)) => Err(error.into()),
        Err(bad) => Err(Failed(StatusCode::BAD_REQUEST, bad.to_string())),
    }
}

/// Everything that the fleet serves.
#[utoipa::path(get, tag = "admin", path = "/admin/v1/services", responses((status = 200, body = Catalogued), (status = 401, body = Problem)))]
pub(super) async fn services(State(admin): Shared) -> Answer<Catalogued> {
    match admin.ask(AdminOperation::Services).await? {
        AdminReply::Services(services) => {
            let services = Catalogue::new(services).map_err(|error| {
                Failed(StatusCode::INTERNAL_SERVER_ERROR, format!("the catalogue contradicts itself: {error}"))
            })?;
            Ok(Json(Catalogued { services }))
        }
        other => Err(unexpected(&other)),
    }
}

/// Adds a service, or replaces the one of the same name.
#[utoipa::path(put, tag = "admin", path = "/admin/v1/services", request_body = serde_json::Value,
    responses((status = 200, body = Done), (status = 400, body = Problem), (status = 401, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn put_service(State(admin): Shared, body: Bytes) -> Answer<Done> {
    let service: Service = parse(&body)?;
    admin.do_it(AdminOperation::PutService(service)).await
}

/// Removes a service.
#[utoipa::path(delete, tag = "admin", path = "/admin/v1/services/{id}", params(("id" = String, Path, description = "Name of the service")),
    responses((status = 200, body = Done), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn remove_service(State(admin): Shared, Path(id): Path<String>) -> Answer<Done> {
    let id = ServiceId::new(&id).map_err(|error| Failed(StatusCode::BAD_REQUEST, error.to_string()))?;
    admin.do_it(AdminOperation::RemoveService(id)).await
}

/// All API keys, without their secrets, which are kept nowhere.
#[utoipa::path(get, tag = "admin", path = "/admin/v1/keys", responses((status = 200, body = Vec<KeyRow>), (status = 401, body = Problem)))]
pub(super) async fn keys(State(admin): Shared) -> Answer<Vec<KeyRow>> {
    match admin.ask(AdminOperation::Keys).await? {
        AdminReply::Keys(keys) => Ok(Json(keys.into_iter().map(KeyRow::from).collect())),
        other => Err(unexpected(&other)),
    }
}

/// Makes an API key, good at the hub at once and at every agent with its next view.
#[utoipa::path(post, tag = "admin", path = "/admin/v1/keys", request_body = KeyOrder,
    responses((status = 200, body = KeyMade), (status = 400, body = Problem), (status = 401, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn add_key(State(admin): Shared, body: Bytes) -> Answer<KeyMade> {
    let order: KeyOrder = parse(&body)?;
    let made = order.make(UnixTime::now(&admin.wall));
    let (key, secret) = made.map_err(|why| Failed(StatusCode::BAD_REQUEST, why))?;
    admin.ask(AdminOperation::AddKey(key)).await?;
    Ok(Json(KeyMade { key: secret }))
}

/// Makes an API key worthless, at the hub at once and at every agent with its next view.
#[utoipa::path(delete, tag = "admin", path = "/admin/v1/keys/{name}", params(("name" = String, Path, description = "Name of the key")),
    responses((status = 200, body = Done), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn revoke_key(State(admin): Shared, Path(name): Path<String>) -> Answer<Done> {
    let name = KeyName::new(&name).map_err(|error| Failed(StatusCode::BAD_REQUEST, error.to_string()))?;
    admin.do_it(AdminOperation::RevokeKey(name)).await
}

/// Throws a node out: its certificates are no longer good, and its connections end.
#[utoipa::path(post, tag = "admin", path = "/admin/v1/revoke", request_body = RevokeOrder,
    responses((status = 200, body = Done), (status = 401, body = Problem), (status = 404, body = Problem)))]
pub(super) async fn revoke(State(admin): Shared, body: Bytes) -> Answer<Done> {
    let RevokeOrder { node } = parse(&body)?;
    // The registry first: whatever comes later, no certificate is renewed any more.
    let (name, now) = (node.clone(), UnixTime::now(&admin.wall));
    admin.store.call(move |db| db.revoke(&name, now)).await?;
    admin.do_it(AdminOperation::Revoke(node)).await
}

/// Empties a node, or lets it work again.
#[utoipa::path(post, tag = "admin", path = "/admin/v1/drain", request_body = DrainOrder,
    responses((status = 200, body = Done), (status = 401, body = Problem), (status = 404, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn drain(State(admin): Shared, body: Bytes) -> Answer<Done> {
    let DrainOrder { node, drain } = parse(&body)?;
    admin.do_it(AdminOperation::Drain { node, drain }).await
}

/// Sets the dispatch policy of all agents.
#[utoipa::path(put, tag = "admin", path = "/admin/v1/dispatch", request_body = serde_json::Value,
    responses((status = 200, body = Done), (status = 401, body = Problem), (status = 409, body = Problem)))]
pub(super) async fn set_dispatch(State(admin): Shared, body: Bytes) -> Answer<Done> {
    let setting: DispatchSetting = parse(&body)?;
    admin.do_it(AdminOperation::SetDispatch(setting)).await
}

/// How many records are asked for.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Last {
    #[serde(default = "twenty")]
    last: usize,
}

const fn twenty() -> usize {
    20
}

/// The newest records of requests, newest first. They never hold text.
#[utoipa::path(get, tag = "admin", path = "/admin/v1/records", params(("last" = Option<usize>, Query, description = "How many; 20 unless given")),
    responses((status = 200, body = Vec<serde_json::Value>), (status = 401, body = Problem)))]
pub(super) async fn records(State(admin): Shared, last: Query<Last>) -> Result<impl IntoResponse + use<>, Failed> {
    Ok(Json(admin.store.call(move |db| db.last_records(last.0.last)).await?))
}

/// The record of one request; empty when there is none.
#[utoipa::path(get, tag = "admin", path = "/admin/v1/records/{request}", params(("request" = String, Path, description = "Its id")),
    responses((status = 200, body = Vec<serde_json::Value>), (status = 400, body = Problem), (status = 401, body = Problem)))]
pub(super) async fn record(State(admin): Shared, Path(request): Path<String>) -> Result<impl IntoResponse + use<>, Failed> {
    let request: RequestId =
        request.parse().map_err(|error: shared::ids::BadName| Failed(StatusCode::BAD_REQUEST, error.to_string()))?;
    Ok(Json(admin.store.call(move |db| db.record(request)).await?))
}

/// The plans in force, with what their nodes said about them.
#[utoipa::path(get, tag = "admin", path = "/admin/v1/plans", responses((status = 200, body = Vec<serde_json::Value>), (status = 401, body = Problem)))]
pub(super) async fn plans(State(admin): Shared) -> Result<impl IntoResponse + use<>, Failed> {
    match admin.ask(AdminOperation::Plans).await? {
        AdminReply::Plans(rows) => Ok(Json(rows)),
        other => Err(unexpected(&other)),
    }
}

/// What was done so far, by service, node and outcome.
#[utoipa::path(get, tag = "admin", path = "/admin/v1/totals", responses((status = 200, body = Vec<serde_json::Value>), (status = 401, body = Problem)))]
pub(super) async fn totals(State(admin): Shared) -> Result<impl IntoResponse + use<>, Failed> {
    match admin.ask(AdminOperation::Totals).await? {
        AdminReply::Totals(rows) => Ok(Json(rows)),
        other => Err(unexpected(&other)),
    }
}

/// What went wrong or was held back, by name.
#[utoipa::path(get, tag = "admin", path = "/admin/v1/counters", responses((status = 200, body = BTreeMap<String, u64>), (status = 401, body = Problem)))]
pub(super) async fn counters(State(admin): Shared) -> Answer<BTreeMap<String, u64>> {
    match admin.ask(AdminOperation::Counters).await? {
        AdminReply::Counters(counters) => Ok(Json(counters)),
        other => Err(unexpected(&other)),
    }
}

async fn describe() -> Json<impl Serialize> {
    Json(Description::openapi())
}

async fn metrics(State(admin): Shared, headers: HeaderMap) -> Result<impl IntoResponse, Failed> {
    if !admin.local {
        admin.knows(&headers)?;
    }
    let rows = admin.nodes().await?;
    let counted = counters(State(Arc::clone(&admin))).await?.0;
    let kind = [(header::CONTENT_TYPE, "application/openmetrics-text; version=1.0.0; charset=utf-8")];
    Ok((kind, admin.metrics.page(&rows, &counted)))
}
