//! What every policy of every layer consists of.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fmt::Debug;

/// Name, configuration and state of a policy.
pub trait Parts: 'static {
    /// Read from configuration; unknown keys are errors, the default works.
    type Config: Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync;
    /// Kept beside the policy, serialised with every capture.
    type State: Clone + Debug + Default + PartialEq + Serialize + DeserializeOwned + Send + Sync;
    /// Its name in the table, in configuration and in records.
    const NAME: &'static str;
    /// One sentence: the idea.
    const SUMMARY: &'static str;
    /// What it claims over other policies of its layer; the conformance suite holds it to that.
    const CLAIMS: &'static [Claim] = &[];
}

/// A dispatch policy with the default configuration never predicts a later end than another one, for requests without wishes, but
/// for this slack.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Claim {
    /// The other policy's name.
    pub never_worse_than: &'static str,
    /// How much later it may be, as a share of the other's prediction.
    pub slack: f64,
}

/// A policy written down: enough to make an equal one elsewhere.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Its name in the table.
    pub policy: String,
    /// Its configuration; `null` for the default.
    #[serde(default)]
    pub config: serde_json::Value,
    /// Its state; `null` for the initial one.
    #[serde(default)]
    pub state: serde_json::Value,
}

/// A policy that cannot be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadPolicy {
    /// No such row in the table.
    #[error("no {layer} policy is called `{name}`: want one of {known}")]
    Unknown {
        /// Of which layer.
        layer: &'static str,
        /// What was asked for.
        name: String,
        /// What there is.
        known: String,
    },
    /// Its configuration or state cannot be read.
    #[error("{what} of the policy `{name}`: {why}")]
    Unreadable {
        /// `config` or `state`.
        what: &'static str,
        /// Which policy.
        name: &'static str,
        /// What the reader said.
        why: String,
    },
}

/// Reads a part, `null` being its default.
pub(super) fn part<T: Default + DeserializeOwned>(
    name: &'static str,
    what: &'static str,
    value: serde_json::Value,
) -> Result<T, BadPolicy> {
    if value.is_null() {
        return Ok(T::default());
    }
    serde_json::from_value(value).map_err(|error| BadPolicy::Unreadable { what, name, why: error.to_string() })
}

/// Writes a part.
pub(super) fn written<T: Serialize>(value: &T) -> serde_json::Value {
    serde_json::to_value(value).unwrap_or_default()
}
