//! What travels on the admin API, and its description in OpenAPI.

use serde::{Deserialize, Serialize};
use shared::ids::NodeId;
use shared::work::Catalogue;
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
