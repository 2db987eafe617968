//! Join tokens: everything that a machine needs to find its fleet and be sure that it is the right one, on one line.

use crate::ids::ScopeId;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// What a join token says. Expiry, labels and count stay at the hub, which knows the secret.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct JoinToken {
    /// `host:port` of the hub's QUIC endpoint.
    pub address: String,
    /// SHA-256 of the fleet CA's certificate (DER), in hex: the joining node trusts nothing else.
    pub authority_sha256: String,
    /// Proves the right to join, in hex.
    pub secret: String,
    /// Where the node will stand; shown to the operator, decided by the hub.
    pub site: ScopeId,
}

/// A text that is no join token.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("not a join token ({why}): want the whole line that `cloud-hub token` printed, starting with `{PREFIX}`")]
pub struct BadToken {
    /// What is wrong.
    pub why: String,
}

const PREFIX: &str = "tidegate1.";

impl fmt::Display for JoinToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let json = serde_json::to_vec(self).map_err(|_| fmt::Error)?;
        write!(f, "{PREFIX}{}", hex::encode(json))
    }
}

impl FromStr for JoinToken {
    type Err = BadToken;
    fn from_str(text: &str) -> Result<Self, BadToken> {
        let bad = |why: String| BadToken { why };
        let hexed = text.trim().strip_prefix(PREFIX).ok_or_else(|| bad("wrong start".to_owned()))?;
        let json = hex::decode(hexed).map_err(|error| bad(error.to_string()))?;
        serde_json::from_slice(&json).map_err(|error| bad(error.to_string()))
    }
}
