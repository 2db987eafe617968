//! How a command reaches the fleet's state: through the running hub, or directly while none runs.

use crate::ca::Authority;
use crate::clock::UnixTime;
use crate::config::Config;
use crate::io::api::{Catalogued, DrainOrder, KeyMade, KeyOrder, KeyRow, RevokeOrder, TokenMade};
use crate::join::{TokenOrder, make_token};
use crate::logic::NodeRow;
use crate::state::{StateDir, StateError};
use crate::store::{CatalogueError, Certified, Db, NodeRow as Registered, StoreError, StoredRecord};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde::Serialize;
use serde::de::DeserializeOwned;
use shared::ids::{KeyName, NodeId, RequestId, ServiceId};
use shared::work::{Catalogue, Service};
use shared_net::host::{StateError as LockError, StateFolder};
use shared_net::tls::CertClock;
use std::time::Duration;

/// A hub on this machine answers at once; one that does not has a problem that the operator should hear of.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(20);

/// Why the hub, or its state, did not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum ReachError {
    /// The state folder cannot be used.
    #[error("using the state folder")]
    State(#[from] StateError),
    /// The database refused.
    #[error("using the hub's database")]
    Store(#[from] StoreError),
    /// The hub holds its folder but does not answer.
    #[error("asking the hub at {address}; it holds its state folder, so it should answer")]
    Unanswered {
        /// Where it was asked.
        address: String,
        /// What went wrong.
        #[source]
        source: reqwest::Error,
    },
    /// It said no.
    #[error("{0}")]
    Refused(String),
}

/// The way to the fleet's state.
pub(super) enum Reach {
    /// Over the admin API.
    Running(AdminClient),
    /// In the folder itself, which is held meanwhile.
    Stopped(Box<Offline>),
}

/// The state of a hub that does not run.
pub(super) struct Offline {
    db: Db,
    authority: Authority,
    now: UnixTime,
    _held: StateFolder,
}

/// Speaks to the running hub.
pub(super) struct AdminClient {
    http: reqwest::Client,
    base: String,
    key: String,
}

impl Reach {
    pub(super) fn find(config: &Config) -> Result<Self, ReachError> {
        let state = StateDir::at(&config.state);
        match state.lock() {
            Ok(held) => {
                let db = Db::open(&state.database(), config.records)?;
                let now = UnixTime::now(&CertClock::new(db.meta()?.clock.0));
                Ok(Self::Stopped(Box::new(Offline { db, authority: state.authority()?, now, _held: held })))
            }
            Err(StateError::Folder(LockError::InUse(_))) => Ok(Self::Running(AdminClient::new(&state)?)),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn token(&mut self, order: TokenOrder) -> Result<String, ReachError> {
        match self {
            Self::Running(hub) => Ok(hub.send::<TokenMade>(Method::POST, "tokens", Some(&order)).await?.token),
            Self::Stopped(state) => make_token(&mut state.db, &state.authority, order, state.now)
                .map(|token| token.to_string())
                .map_err(|error| ReachError::Refused(error.to_string())),
        }
    }

    /// What the hub knows of its nodes; with no hub, only who they are.
    pub(super) async fn nodes(&mut self) -> Result<Result<Vec<Certified<NodeRow>>, Vec<Certified<Registered>>>, ReachError> {
        match self {
            Self::Running(hub) => hub.get("nodes").await.map(Ok),
            Self::Stopped(state) => {
                let expiries = state.db.expiries()?;
                let certified = |node: Registered| Certified { certificate_expires: expiries.get(&node.node).copied(), node };
                Ok(Err(state.db.nodes()?.into_iter().map(certified).collect()))
            }
        }
    }

    pub(super) async fn services(&mut self) -> Result<Catalogue, ReachError> {
        match self {
            Self::Running(hub) => Ok(hub.get::<Catalogued>("services").await?.services),
            Self::Stopped(state) => Ok(state.db.catalogue()?),
        }
    }

    pub(super) async fn put_service(&mut self, service: &Service) -> Result<(), ReachError> {
        match self {
            Self::Running(hub) => hub.send::<serde_json::Value>(Method::PUT, "services", Some(service)).await.map(drop),
            Self::Stopped(state) => match state.db.put_service(service) {
                Ok(_) => Ok(()),
                Err(CatalogueError::Bad(bad)) => Err(ReachError::Refused(bad.to_string())),
                Err(CatalogueError::Store(error)) => Err(error.into()),
            },
        }
    }

    pub(super) async fn remove_service(&mut self, id: &ServiceId) -> Result<(), ReachError> {
        match self {
            Self::Running(hub) => {
                let path = format!("services/{id}");
                hub.send::<serde_json::Value>(Method::DELETE, &path, None::<&()>).await.map(drop)
            }
            Self::Stopped(state) => match state.db.remove_service(id)? {
                Some(_) => Ok(()),
                None => Err(ReachError::Refused(format!("there is no service `{id}`"))),
            },
        }
    }

    pub(super) async fn keys(&mut self) -> Result<Vec<KeyRow>, ReachError> {
        match self {
            Self::Running(hub) => hub.get("keys").await,
            Self::Stopped(state) => Ok(state.db.keys()?.into_iter().map(KeyRow::from).collect()),
        }
    }

    /// The secret of a new key.
    pub(super) async fn add_key(&mut self, order: KeyOrder) -> Result<String, ReachError> {
        match self {
            Self::Running(hub) => Ok(hub.send::<KeyMade>(Method::POST, "keys", Some(&order)).await?.key),
            Self::Stopped(state) => {
                let (key, secret) = order.make(state.now).map_err(ReachError::Refused)?;
                if state.db.add_key(&key)? {
                    return Ok(secret);
                }
                Err(ReachError::Refused(format!(
                    "there is a key `{}` already: revoke it first, or choose another name",
                    key.name
                )))
            }
        }
    }

    pub(super) async fn revoke_key(&mut self, name: &KeyName) -> Result<(), ReachError> {
        match self {
            Self::Running(hub) => {
                hub.send::<serde_json::Value>(Method::DELETE, &format!("keys/{name}"), None::<&()>).await.map(drop)
            }
            Self::Stopped(state) => match state.db.revoke_key(name)? {
                true => Ok(()),
                false => Err(ReachError::Refused(format!("no key is called `{name}`"))),
            },
        }
    }

    pub(super) async fn revoke(&mut self, node: NodeId) -> Result<(), ReachError> {
        match self {
            Self::Running(hub) => {
                hub.send::<serde_json::Value>(Method::POST, "revoke", Some(&RevokeOrder { node })).await.map(drop)
            }
            Self::Stopped(state) => known(state.db.revoke(&node, state.now)?, &node),
        }
    }

    pub(super) async fn drain(&mut self, node: NodeId, drain: bool) -> Result<(), ReachError> {
        match self {
            Self::Running(hub) => {
                hub.send::<serde_json::Value>(Method::POST, "drain", Some(&DrainOrder { node, drain })).await.map(drop)
            }
            Self::Stopped(state) => match state.db.node(&node)? {
                Some(row) if row.revoked.is_some() => Err(ReachError::Refused(crate::logic::revoked(&node))),
                _ => known(state.db.drain(&node, drain)?, &node),
            },
        }
    }

    pub(super) async fn records(&mut self, last: usize) -> Result<Vec<StoredRecord>, ReachError> {
        match self {
            Self::Running(hub) => hub.get(&format!("records?last={last}")).await,
            Self::Stopped(state) => Ok(state.db.last_records(last)?),
        }
    }

    pub(super) async fn record(&mut self, request: RequestId) -> Result<Vec<StoredRecord>, ReachError> {
        match self {
            Self::Running(hub) => hub.get(&format!("records/{request}")).await,
            Self::Stopped(state) => Ok(state.db.record(request)?),
        }
    }
}

fn known(found: bool, node: &NodeId) -> Result<(), ReachError> {
    if found { Ok(()) } else { Err(ReachError::Refused(format!("there is no node `{node}`"))) }
}

impl AdminClient {
    fn new(state: &StateDir) -> Result<Self, ReachError> {
        let address = state.addresses()?.admin;
        // The hub listens on every address of the machine; it is reached over loopback then.
        let host = if address.ip().is_unspecified() { "127.0.0.1".to_owned() } else { address.ip().to_string() };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        let base = format!("http://{host}:{}/admin/v1/", address.port());
        crate::io::use_ring();
        let http = reqwest::Client::builder()
            .timeout(ANSWER_TIME_MAX)
            .no_proxy()
            .build()
            .map_err(|source| ReachError::Unanswered { address: base.clone(), source })?;
        Ok(Self { http, base, key: state.admin_key()? })
    }

    async fn get<T: DeserializeOwned>(&self, path: &str) -> Result<T, ReachError> {
        self.send(Method::GET, path, None::<&()>).await
    }

    async fn send<T: DeserializeOwned>(
        &self,
        method: Method,
        path: &str,
        body: Option<&impl Serialize>,
    ) -> Result<T, ReachError> {
        let request = self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.key);
        let request = match body {
            Some(body) => request.json(body),
            None => request,
        };
        self.answer(request).await
    }

    async fn answer<T: DeserializeOwned>(&self, request: RequestBuilder) -> Result<T, ReachError> {
        let unanswered = |source| ReachError::Unanswered { address: self.base.clone(), source };
        let response = request.send().await.map_err(unanswered)?;
        match response.status() {
            StatusCode::OK => response.json().await.map_err(unanswered),
            status => {
                let problem = response.json::<crate::io::api::Problem>().await;
                Err(ReachError::Refused(problem.map_or_else(|_| format!("the hub answers {status}"), |problem| problem.error)))
            }
        }
    }
}
