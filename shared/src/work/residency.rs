//! Where a request's text may go. A hard constraint, refused by sender, relay and executor each on its own.

use crate::ids::{NodeId, ScopeId};
use serde::{Deserialize, Serialize};

/// What a client asks for, relative to the ingress that it asked. The later the stricter.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Residency {
    /// Any node may see the text.
    #[default]
    Anywhere,
    /// Only nodes of the ingress' site may see it. A hub's relay is outside the site.
    Site,
    /// Only the ingress itself may see it.
    Node,
}

/// A residency resolved by the ingress to absolute names, as it travels in the header.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ResidencyBound {
    /// Any node.
    Anywhere,
    /// Nodes inside this scope, reached without leaving it.
    Within(ScopeId),
    /// This node.
    Exactly(NodeId),
}

impl Residency {
    /// What this means for a request that came in at `ingress`.
    #[must_use]
    pub fn resolve(self, ingress: &NodeId) -> ResidencyBound {
        match self {
            Self::Anywhere => ResidencyBound::Anywhere,
            Self::Site => ResidencyBound::Within(ingress.site()),
            Self::Node => ResidencyBound::Exactly(ingress.clone()),
        }
    }
}

impl ResidencyBound {
    /// Whether `node` may see the request's text.
    #[must_use]
    pub fn permits(&self, node: &NodeId) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Within(scope) => scope.contains(node),
            Self::Exactly(only) => only == node,
        }
    }

    /// Whether the text may pass through a relay that stands at `relay`.
    #[must_use]
    pub fn permits_relay(&self, relay: &NodeId) -> bool {
        match self {
            Self::Anywhere => true,
            Self::Within(scope) => scope.contains(relay),
            Self::Exactly(_) => false,
        }
    }
}
