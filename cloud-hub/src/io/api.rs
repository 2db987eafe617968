//! What travels on the admin API, and its description in OpenAPI.

use crate::clock::UnixTime;
use serde::{Deserialize, Serialize};
use shared::ids::{KeyName, NodeId, ServiceId};
use shared::work::{Catalogue, ClientKey, KeyHash, KeyScope};
use utoipa::openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme};
use utoipa::{Modify, OpenApi, ToSchema};

/// A join token as it is printed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TokenMade {
    /// One line for `edge-node join`. Shown once: the hub keeps a hash of its secret only.
    pub token: String,
}

/// Everything that the fleet serves.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Catalogued {
    /// By name.
    #[schema(value_type = Object)]
    pub services: Catalogue,
}

/// How an API key shall be. What is left out is not limited.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct KeyOrder {
    /// Its name, in logs, metrics and errors.
    #[schema(value_type = String, example = "kiosk-7")]
    pub name: KeyName,
    /// `inference`, or `admin`: that, the agents' pages and this API.
    #[serde(default)]
    #[schema(value_type = String, example = "inference")]
    pub scope: KeyScope,
    /// Services that it may ask for, by name or alias; empty for all.
    #[serde(default)]
    #[schema(value_type = Vec<String>)]
    pub services: Vec<ServiceId>,
    /// Requests a minute at one ingress.
    #[serde(default)]
    pub rate_per_minute: Option<u32>,
    /// Tokens of prompts and answers a day (UTC) at one ingress.
    #[serde(default)]
    pub tokens_per_day: Option<u64>,
    /// For how long, in seconds.
    #[serde(default)]
    pub lifetime_s: Option<u64>,
}

/// An API key as it is printed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyMade {
    /// What clients send as `Authorization: Bearer …`. Shown once: the hub keeps its hash only.
    pub key: String,
}

/// An API key as it is listed.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct KeyRow {
    /// Its name.
    #[schema(value_type = String)]
    pub name: KeyName,
    /// `inference` or `admin`.
    #[schema(value_type = String)]
    pub scope: KeyScope,
    /// Services that it may ask for; empty for all.
    #[schema(value_type = Vec<String>)]
    pub services: Vec<ServiceId>,
    /// Requests a minute at one ingress, if that is limited.
    pub rate_per_minute: Option<u32>,
    /// Tokens a day at one ingress, if they are limited.
    pub tokens_per_day: Option<u64>,
    /// When it ends, in seconds since the Unix epoch, if it does.
    pub expires: Option<u64>,
}

impl KeyOrder {
    /// The key, and its secret for whoever asked.
    ///
    /// # Errors
    /// The sentence to show.
    pub(crate) fn make(self, now: UnixTime) -> Result<(ClientKey, String), String> {
        if self.lifetime_s == Some(0) {
            return Err("want a lifetime of at least one second, or none for ever".to_owned());
        }
        let secret = shared_net::openai::new_secret();
        let key = ClientKey {
            name: self.name,
            sha256: KeyHash::of(secret.as_bytes()),
            scope: self.scope,
            services: self.services,
            rate_per_minute: self.rate_per_minute,
            tokens_per_day: self.tokens_per_day,
            expires: self.lifetime_s.map(|span| now.0.saturating_add(span)),
        };
        key.validate()?;
        Ok((key, secret))
    }
}

impl From<ClientKey> for KeyRow {
    fn from(key: ClientKey) -> Self {
        let ClientKey { name, scope, services, rate_per_minute, tokens_per_day, expires, .. } = key;
        Self { name, scope, services, rate_per_minute, tokens_per_day, expires }
    }
}

/// Which node is thrown out.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RevokeOrder {
    /// Its name.
    #[schema(value_type = String, example = "eu/site-7/node-2")]
    pub node: NodeId,
}

/// Which node is emptied, or let work again.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainOrder {
    /// Its name.
    #[schema(value_type = String, example = "eu/site-7/node-2")]
    pub node: NodeId,
    /// Whether it shall become empty.
    pub drain: bool,
}

/// Nothing more to say.
#[derive(Clone, Debug, Default, Serialize, Deserialize, ToSchema)]
pub struct Done {}

/// Why it was not done.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct Problem {
    /// A sentence that says what would be right.
    pub error: String,
}

/// How the join token shall be; the schema of [`crate::join::TokenOrder`].
#[derive(Debug, ToSchema)]
#[expect(dead_code, reason = "only its schema is used: the identifiers behind the real one know nothing of OpenAPI")]
pub(super) struct TokenOrderSchema {
    /// Where nodes that join with it stand.
    #[schema(example = "eu/site-7")]
    site: String,
    /// Labels that they get.
    labels: std::collections::BTreeMap<String, String>,
    /// How many nodes may join with it.
    count: u32,
    /// For how long, in seconds.
    lifetime_s: u64,
    /// `host:port` at which these nodes reach the hub.
    address: Option<String>,
}

struct AdminKey;

impl Modify for AdminKey {
    fn modify(&self, openapi: &mut utoipa::openapi::OpenApi) {
        let scheme = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).description(Some("The key in STATE/admin.key")).build();
        openapi.components.get_or_insert_default().add_security_scheme("admin_key", SecurityScheme::Http(scheme));
    }
}

/// The description of the admin API.
#[derive(Debug, OpenApi)]
#[openapi(
    info(title = "Tidegate hub: admin API", description = "What `cloud-hub` commands and dashboards use."),
    modifiers(&AdminKey),
    security(("admin_key" = [])),
    paths(
        super::admin::nodes,
        super::admin::make_token,
        super::admin::services,
        super::admin::put_service,
        super::admin::remove_service,
        super::admin::keys,
        super::admin::add_key,
        super::admin::revoke_key,
        super::admin::revoke,
        super::admin::drain,
        super::admin::set_dispatch,
        super::admin::records,
        super::admin::record,
        super::admin::plans,
        super::admin::totals,
        super::admin::counters,
    )
)]
pub struct Description;
