//! What an operator says of an upstream.

use super::managed::{ManagedConfig, filled};
use crate::exec::{Rates, StartError};
use serde::{Deserialize, Serialize};
use shared::fleet::ReplicaReport;
use shared::ids::VariantId;
use shared::units::{Bytes, Tokens};
use std::fmt;

/// A server that speaks the OpenAI API.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct UpstreamConfig {
    /// What it serves.
    pub variant: VariantId,
    /// Base URL of its API as OpenAI clients take it, such as `http://127.0.0.1:8080/v1`. Without a path, `/v1` is meant. A managed
    /// server may leave it out ([`MANAGED_URL`] is meant then), and may have `{port}` in it.
    #[serde(default)]
    pub url: String,
    /// The name under which the upstream knows the model.
    pub model: String,
    /// Its key, if it wants one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_key: Option<Secret>,
    /// Requests that it shall get at once.
    #[serde(default = "slots_default")]
    pub slots: u32,
    /// Longest prompt and output together that it takes.
    #[serde(default = "context_default")]
    pub context: Tokens,
    /// Memory that it holds on this machine; zero where it runs elsewhere.
    #[serde(default)]
    pub memory: Bytes,
    /// Where it computes, such as `["cpu"]` or `["cuda:0"]`; empty where nobody knows. A managed server computes on the CPU unless
    /// told otherwise.
    #[serde(default)]
    pub devices: Vec<String>,
    /// How to start it, where the agent shall: see [`ManagedConfig`].
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed: Option<ManagedConfig>,
    /// What it serves beyond plain text, of `tools`, `json_schema`, `vision`, `embeddings`, `logprobs`. Requests that need more than
    /// this are not sent here.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Its speed; measured by a short request, and then learned, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rates: Option<Rates>,
    /// How often its health is checked, in milliseconds.
    #[serde(default = "health_default")]
    pub health_ms: u64,
    /// An answer of which nothing came for so long has stalled, in milliseconds.
    #[serde(default = "silence_default")]
    pub silence_ms_max: u64,
    /// A reader that has not drained its sink for so long loses its slot, in milliseconds.
    #[serde(default = "stall_default")]
    pub stall_ms_max: u64,
}

/// Base URL of a managed server that names none.
pub const MANAGED_URL: &str = "http://127.0.0.1:{port}/v1";

const fn slots_default() -> u32 {
    4
}

const fn context_default() -> Tokens {
    Tokens(8_192)
}

/// A dead upstream is out of the dispatch within two of these.
const fn health_default() -> u64 {
    2_000
}

/// Longer than a long prompt takes on a slow board.
const fn silence_default() -> u64 {
    60_000
}

const fn stall_default() -> u64 {
    30_000
}

/// A text that is shown to nobody: neither in a log nor in a printed configuration.
#[derive(Clone, PartialEq, Eq, Deserialize)]
#[serde(transparent)]
pub struct Secret(String);

impl Secret {
    /// Hides a text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    pub(super) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Serialize for Secret {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str("(secret)")
    }
}

impl UpstreamConfig {
    /// Its devices as a report tells them.
    pub(super) fn device(&self) -> Result<String, StartError> {
        let word = |name: &String| {
            let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, ':' | '-' | '_' | '.');
            !name.is_empty() && name.chars().all(good)
        };
        let joined = match (self.devices.as_slice(), &self.managed) {
            ([], Some(_)) => "cpu".to_owned(),
            (devices, _) => devices.join("+"),
        };
        if self.devices.iter().all(word) && joined.len() <= ReplicaReport::DEVICE_BYTES_MAX {
            return Ok(joined);
        }
        let why = format!("{:?}: want names such as `cpu`, `cuda:0` or `metal`", self.devices);
        Err(StartError::Value { variant: self.variant.clone(), field: "devices", why })
    }

    /// The URL of a call. `port` is a managed server's.
    pub(super) fn call(&self, path: &str, port: u16) -> Result<reqwest::Url, StartError> {
        let bad = |why: &str| StartError::Value {
            variant: self.variant.clone(),
            field: "url",
            why: format!("{why}: want a base URL such as http://127.0.0.1:8080/v1"),
        };
        let url = match &self.managed {
            Some(_) if self.url.is_empty() => filled(MANAGED_URL, port, &self.model),
            Some(_) => filled(&self.url, port, &self.model),
            None => self.url.clone(),
        };
        let base = reqwest::Url::parse(url.trim_end_matches('/')).map_err(|error| bad(&error.to_string()))?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() || base.query().is_some() {
            return Err(bad("no plain HTTP address"));
        }
        let prefix = if base.path() == "/" { "/v1" } else { base.path() };
        let whole = format!("{prefix}/{path}");
        let mut url = base;
        url.set_path(&whole);
        Ok(url)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(url: &str) -> UpstreamConfig {
        let json = serde_json::json!({ "variant": "v", "url": url, "model": "m", "api_key": "sk-1" });
        serde_json::from_value(json).expect("good")
    }

    #[test]
    fn urls() {
        for (given, called) in [
            ("http://127.0.0.1:1", "http://127.0.0.1:1/v1/models"),
            ("http://127.0.0.1:1/v1/", "http://127.0.0.1:1/v1/models"),
            ("https://host/api/openai/v2", "https://host/api/openai/v2/models"),
        ] {
            assert_eq!(config(given).call("models", 0).map(String::from).ok().as_deref(), Some(called));
        }
        for bad in ["", "host:1", "ftp://host", "http://host/v1?x=1"] {
            assert!(config(bad).call("models", 0).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_managed_server_is_called_at_its_port() {
        let mut config = config("");
        config.managed = serde_json::from_value(serde_json::json!({ "command": "server", "args": ["{port}"] })).ok();
        assert_eq!(config.call("models", 7).map(String::from).ok().as_deref(), Some("http://127.0.0.1:7/v1/models"));
        config.url = "http://localhost:{port}/api/{model}".to_owned();
        assert_eq!(config.call("models", 8).map(String::from).ok().as_deref(), Some("http://localhost:8/api/m/models"));
        assert_eq!(config.device().ok().as_deref(), Some("cpu"));
    }

    #[test]
    fn devices_are_words() {
        let mut config = config("http://127.0.0.1:1");
        assert_eq!(config.device().ok().as_deref(), Some(""));
        config.devices = vec!["cuda:0".to_owned(), "cuda:1".to_owned()];
        assert_eq!(config.device().ok().as_deref(), Some("cuda:0+cuda:1"));
        for bad in ["", "a b", "CUDA", "x".repeat(200).as_str()] {
            config.devices = vec![bad.to_owned()];
            assert!(config.device().is_err(), "{bad}");
        }
    }

    #[test]
    fn the_key_shows_nowhere() {
        let config = config("http://127.0.0.1:1");
        let shown = format!("{config:?}{}", serde_json::to_string(&config).expect("serialises"));
        assert!(!shown.contains("sk-1"), "{shown}");
    }
}
