//! What an operator says of a server that the agent starts.

use crate::exec::StartError;
use crate::exec::upstream::Secret;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shared::ids::VariantId;
use std::collections::BTreeMap;
use std::path::PathBuf;

/// A server on this machine that the agent starts, watches and stops.
///
/// `{port}` and `{model}` in `args`, in values of `env` and in `health` are replaced by the server's port and by the engine's `model`.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ManagedConfig {
    /// The program: a path, or a name that is looked up in `PATH`.
    pub command: PathBuf,
    /// Its arguments. Every user of the machine can read them in the list of processes: keys belong into `env`.
    #[serde(default)]
    pub args: Vec<String>,
    /// Environment variables beside the agent's own, of which those that configure the agent are left out.
    #[serde(default)]
    pub env: BTreeMap<String, Secret>,
    /// The folder that it is started in; the agent's own when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub folder: Option<PathBuf>,
    /// The port that it shall listen on; a free one of the loopback interface, chosen at each start, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// URL that answers with success as soon as it can serve, such as `http://127.0.0.1:{port}/health`; the list of models of its
    /// API when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<String>,
    /// Longest time from its start until it can serve, in milliseconds; then it is ended and started again.
    #[serde(default = "start_default")]
    pub start_ms_max: u64,
    /// A server that could serve and then gives no sign of health for so long is ended and started again, in milliseconds.
    #[serde(default = "hung_default")]
    pub hung_ms_max: u64,
    /// Time to end when asked to, in milliseconds; then it is killed.
    #[serde(default = "stop_default")]
    pub stop_ms_max: u64,
    /// Longest first pause before it is started again, in milliseconds; it doubles with each further failure, up to a minute.
    #[serde(default = "pause_default")]
    pub pause_ms: u64,
    /// Starts that may fail within ten minutes. After more, the next one waits until the oldest is so long ago.
    #[serde(default = "crashes_default")]
    pub crashes_max: u32,
    /// Whether it goes on when the agent stops. The next agent takes it over.
    #[serde(default)]
    pub keep: bool,
}

/// A model of some gigabytes from a slow card.
const fn start_default() -> u64 {
    180_000
}

/// Longer than a swapping machine hesitates.
const fn hung_default() -> u64 {
    30_000
}

/// Below what an agent gives its engines to end.
const STOP_MS_MAX: u64 = 2_500;

const fn stop_default() -> u64 {
    2_000
}

const fn pause_default() -> u64 {
    1_000
}

/// A server that crashes at each request would otherwise load its model over and over.
const fn crashes_default() -> u32 {
    5
}

const PORT: &str = "{port}";
const MODEL: &str = "{model}";

impl ManagedConfig {
    /// Checks what the types cannot. `url` is the engine's.
    pub(in crate::exec::upstream) fn check(&self, variant: &VariantId, url: &str) -> Result<(), StartError> {
        let bad = |field, why: &str| Err(StartError::Value { variant: variant.clone(), field, why: why.to_owned() });
        if self.command.as_os_str().is_empty() {
            return bad("managed.command", "want a program");
        }
        if self.port == Some(0) {
            return bad("managed.port", "0: want a port, or none for one that is free");
        }
        let told = self.args.iter().any(|arg| arg.contains(PORT)) || self.env.values().any(|value| value.expose().contains(PORT));
        if self.port.is_none() && !(told && (url.is_empty() || url.contains(PORT))) {
            return bad("managed.port", "want a port, or `{port}` both in `url` and in `args` or `env`");
        }
        if self.stop_ms_max > STOP_MS_MAX {
            return bad("managed.stop_ms_max", "want at most 2500: an agent does not wait longer for its engines");
        }
        if self.crashes_max == 0 {
            return bad("managed.crashes_max", "0: want at least 1");
        }
        Ok(())
    }

    /// Whether there is such a program.
    pub(in crate::exec::upstream) fn found(&self) -> bool {
        if self.command.components().count() > 1 {
            return self.folder.as_ref().map_or_else(|| self.command.clone(), |folder| folder.join(&self.command)).is_file();
        }
        let paths = std::env::var_os("PATH").unwrap_or_default();
        std::env::split_paths(&paths).any(|folder| folder.join(&self.command).is_file())
    }

    /// What tells this server from one that was started otherwise: all of what it is started with.
    pub(super) fn hash(&self, model: &str) -> String {
        let mut hash = Sha256::new();
        let mut add = |bytes: &[u8]| {
            hash.update((bytes.len() as u64).to_le_bytes());
            hash.update(bytes);
        };
        add(self.command.as_os_str().as_encoded_bytes());
        add(&(self.args.len() as u64).to_le_bytes());
        self.args.iter().for_each(|arg| add(arg.as_bytes()));
        for (name, value) in &self.env {
            add(name.as_bytes());
            add(value.expose().as_bytes());
        }
        add(self.folder.as_ref().map_or(&[], |folder| folder.as_os_str().as_encoded_bytes()));
        add(&self.port.unwrap_or(0).to_le_bytes());
        add(model.as_bytes());
        hex::encode(hash.finalize())
    }
}

/// A text with its places filled.
pub(in crate::exec::upstream) fn filled(text: &str, port: u16, model: &str) -> String {
    text.replace(PORT, &port.to_string()).replace(MODEL, model)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn config(more: serde_json::Value) -> ManagedConfig {
        let mut json = json!({ "command": "server", "args": ["--port", "{port}"], "env": { "KEY": "sk-1" } });
        if let (Some(json), serde_json::Value::Object(more)) = (json.as_object_mut(), more) {
            json.extend(more);
        }
        serde_json::from_value(json).expect("good")
    }

    #[test]
    fn whatever_it_is_started_with_changes_the_hash_and_how_it_is_watched_does_not() {
        let hash = config(json!({})).hash("m");
        for more in [
            json!({ "command": "other" }),
            json!({ "args": ["--port{port}"] }),
            json!({ "env": { "KEY": "sk-2" } }),
            json!({ "folder": "/srv" }),
            json!({ "port": 8080 }),
        ] {
            assert_ne!(config(more.clone()).hash("m"), hash, "{more}");
        }
        assert_ne!(config(json!({})).hash("n"), hash);
        assert_eq!(config(json!({ "keep": true, "hung_ms_max": 1, "health": "http://127.0.0.1:{port}/" })).hash("m"), hash);
    }

    #[test]
    fn what_cannot_work_is_named() {
        let variant = VariantId::new("v").expect("good");
        config(json!({})).check(&variant, "").expect("good");
        config(json!({ "port": 1, "args": [] })).check(&variant, "http://127.0.0.1:1").expect("good");
        for (more, url, field) in [
            (json!({ "args": [] }), "", "managed.port"),
            (json!({}), "http://127.0.0.1:1", "managed.port"),
            (json!({ "port": 0 }), "", "managed.port"),
            (json!({ "command": "" }), "", "managed.command"),
            (json!({ "stop_ms_max": 60_000 }), "", "managed.stop_ms_max"),
            (json!({ "crashes_max": 0 }), "", "managed.crashes_max"),
        ] {
            let error = config(more).check(&variant, url).expect_err(field).to_string();
            assert!(error.contains(field), "{error}");
        }
    }

    #[test]
    fn programs_are_found_by_path_or_name() {
        for (command, found) in [("sh", true), ("/bin/sh", true), ("no-such-server", false), ("/no/such/server", false)] {
            assert_eq!(config(json!({ "command": command })).found(), found, "{command}");
        }
    }

    #[test]
    fn values_of_the_environment_show_nowhere() {
        let config = config(json!({}));
        let shown = format!("{config:?}{}", serde_json::to_string(&config).expect("serialises"));
        assert!(!shown.contains("sk-1"), "{shown}");
    }
}
