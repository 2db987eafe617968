//! The hub's configuration: one struct, a section for each part, defaults that work on one machine. Unknown keys are errors.
//!
//! Who the hub is (its name, the address in join tokens) is no configuration: `init` writes it into the state folder, and
//! every node relies on it.

use crate::logic::{BadStart, Hub, HubConfig, PolicyChoice, Restored};
use crate::state::StateDir;
use crate::store::{Db, RecordLimits};
use serde::{Deserialize, Serialize};
use shared::ids::NodeId;
use shared::plan::DispatchSetting;
use shared::policy::dispatch::SplitRules;
use shared::units::Micros;
use shared_net::host::LogSettings;
use shared_net::openai::{BadFront, FrontConfig};
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// State folder, made by `cloud-hub init`.
    pub state: PathBuf,
    /// Where agents connect.
    pub quic: QuicSection,
    /// The OpenAI API.
    pub http: HttpSection,
    /// Admin API and metrics.
    pub admin: AdminSection,
    /// Telemetry and plans.
    pub mqtt: MqttSection,
    /// Certificates.
    pub certificates: CertificateSection,
    /// Records of requests.
    pub records: RecordLimits,
    /// How the hub decides.
    pub policies: PolicySection,
    /// The log.
    pub log: LogSettings,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state: PathBuf::from("hub-state"),
            quic: QuicSection::default(),
            http: HttpSection::default(),
            admin: AdminSection::default(),
            mqtt: MqttSection::default(),
            certificates: CertificateSection::default(),
            records: RecordLimits::default(),
            policies: PolicySection::default(),
            // The broker's crate tells of every client at this level, and so do we.
            log: LogSettings { filter: "info,mqtt5=warn".to_owned(), ..LogSettings::default() },
        }
    }
}

/// Where agents connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuicSection {
    /// UDP address of the QUIC endpoint.
    pub listen: SocketAddr,
}

impl Default for QuicSection {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 7443)) }
    }
}

/// The OpenAI API.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSection {
    /// TCP address of the API. Anything but loopback needs API keys.
    pub listen: SocketAddr,
    /// Keys and limits.
    pub front: FrontConfig,
}

impl Default for HttpSection {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 8080)), front: FrontConfig::default() }
    }
}

/// Admin API and metrics.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdminSection {
    /// TCP address. The admin key travels in clear text, so anything but loopback belongs behind a proxy with TLS.
    pub listen: SocketAddr,
}

impl Default for AdminSection {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 7444)) }
    }
}

/// Telemetry and plans.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MqttSection {
    /// TCP address of the embedded broker; not used with an external one.
    pub listen: SocketAddr,
    /// `host:port` of an external broker, such as Mosquitto with the files of `cloud-hub mosquitto-conf`. Empty: the hub
    /// runs its own.
    pub external: String,
    /// `host:port` that agents are told. Empty: the host at which they reach the hub, and the broker's port.
    pub advertise: String,
}

impl Default for MqttSection {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 8883)), external: String::new(), advertise: String::new() }
    }
}

/// Certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CertificateSection {
    /// How long a node's certificate lives, in seconds. Nodes renew at two thirds; one that is switched off for longer than
    /// the last third must join again.
    pub node_lifetime_s: u64,
}

impl Default for CertificateSection {
    fn default() -> Self {
        Self { node_lifetime_s: 30 * 24 * 3600 }
    }
}

/// How the hub decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySection {
    /// Dispatch policy of the agents.
    pub dispatch: DispatchSetting,
    /// Dispatch policy of the hub's own API.
    pub ingress_dispatch: DispatchSetting,
    /// When a request of the hub's own API may be split over several nodes.
    pub splits: SplitRules,
    /// When each layer's plans are made anew.
    pub timescale: PolicyChoice,
    /// Which node holds which replica.
    pub placement: PolicyChoice,
    /// Where an edge may send its requests.
    pub offload: PolicyChoice,
    /// How often nodes report, in milliseconds.
    pub heartbeat_ms: u64,
    /// Seed for chance.
    pub seed: u64,
}

impl Default for PolicySection {
    fn default() -> Self {
        let min_latency = DispatchSetting { policy: "min-latency".to_owned(), config: serde_json::Value::Null };
        Self {
            dispatch: min_latency.clone(),
            ingress_dispatch: min_latency,
            splits: SplitRules::default(),
            timescale: PolicyChoice::named("fixed"),
            placement: PolicyChoice::named("declared"),
            offload: PolicyChoice::named("all-with-replica"),
            heartbeat_ms: 5_000,
            seed: 0,
        }
    }
}

/// A value that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A value outside what makes sense.
    #[error("`{key}`: want {want}")]
    Value {
        /// Which, as in the file.
        key: &'static str,
        /// What would be right.
        want: String,
    },
    /// The HTTP front refuses its section.
    #[error("`http.front`")]
    Front(#[from] BadFront),
    /// The core refuses its policies.
    #[error("`policies`")]
    Core(#[from] BadStart),
}

impl Config {
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// [`ConfigError`] names the key.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let fail = |key, want: &str| Err(ConfigError::Value { key, want: want.to_owned() });
        if !(60..=10 * 365 * 86_400).contains(&self.certificates.node_lifetime_s) {
            return fail("certificates.node_lifetime_s", "60 seconds to ten years");
        }
        if !(20..=600_000).contains(&self.policies.heartbeat_ms) {
            return fail("policies.heartbeat_ms", "20 to 600000");
        }
        if self.records.bytes_max < 1024 * 1024 || self.records.count_max < 100 {
            return fail("records", "at least 1 MiB and 100 records, or none of them would last");
        }
        for (key, value) in [("mqtt.external", &self.mqtt.external), ("mqtt.advertise", &self.mqtt.advertise)] {
            if !value.is_empty() && !is_host_and_port(value) {
                return fail(key, "`host:port`, or nothing");
            }
        }
        self.http.front.validate()?;
        for (key, setting) in
            [("policies.dispatch", &self.policies.dispatch), ("policies.ingress_dispatch", &self.policies.ingress_dispatch)]
        {
            shared::policy::dispatch::Dispatcher::new(setting)
                .map_err(|error| ConfigError::Value { key, want: format!("a known policy ({error})") })?;
        }
        Ok(())
    }

    /// Checks what a hub that serves needs beyond [`Self::validate`], and commands do not.
    ///
    /// # Errors
    /// [`ConfigError`] names the key.
    pub fn validate_to_serve(&self) -> Result<(), ConfigError> {
        self.validate()?;
        let keys_wanted = !self.http.listen.ip().is_loopback() || self.http.front.key_required;
        if keys_wanted && self.http.front.api_keys_sha256.is_empty() && !self.has_keys() {
            return Err(ConfigError::Front(BadFront::NoKeys));
        }
        let name = NodeId::new("cloud/hub").map_err(|error| ConfigError::Value { key: "policies", want: error.to_string() })?;
        // The core itself says whether it takes its policies; under which name it asks does not matter.
        Hub::new(self.core(&name, ""), Restored::default())?;
        Ok(())
    }

    /// Whether there is an API key in the hub's database. One that cannot be read has none.
    fn has_keys(&self) -> bool {
        let path = StateDir::at(&self.state).database();
        Db::open(&path, self.records).and_then(|db| db.keys()).is_ok_and(|keys| !keys.is_empty())
    }

    /// What the core is told; `broker` is the address that agents are told.
    pub(crate) fn core(&self, me: &NodeId, broker: &str) -> HubConfig {
        let policies = self.policies.clone();
        HubConfig {
            me: me.clone(),
            broker: broker.to_owned(),
            heartbeat: Micros::from_millis(policies.heartbeat_ms),
            dispatch: policies.dispatch,
            ingress_dispatch: policies.ingress_dispatch,
            splits: policies.splits,
            timescale: policies.timescale,
            placement: policies.placement,
            offload: policies.offload,
            seed: policies.seed,
        }
    }
}

/// Whether a text is a host (name, IPv4, or IPv6 in brackets) and a port.
#[must_use]
pub fn is_host_and_port(text: &str) -> bool {
    if text.len() > 300 {
        return false;
    }
    if text.parse::<SocketAddr>().is_ok() {
        return true;
    }
    let Some((host, port)) = text.rsplit_once(':') else { return false };
    let letters = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '.' || c == '_';
    !host.is_empty() && host.chars().all(letters) && port.parse::<u16>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn defaults_work_and_unknown_keys_do_not() {
        Config::default().validate().expect("defaults work");
        let error = serde_json::from_str::<Config>(r#"{"quic": {"lisen": "[::]:1"}}"#).expect_err("unknown key");
        assert!(error.to_string().contains("lisen"), "{error}");
    }

    #[test]
    fn the_commented_example_holds_every_default() {
        let file = PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../deploy/hub.toml"));
        let sources = shared_net::host::Sources { file: Some(file), ..Default::default() };
        let loaded = shared_net::host::load::<Config>(&sources).expect("the example can be read");
        assert_eq!(loaded.value, Config::default());
        // TOML has no null: a policy's own settings are a table, where there are any.
        let left_out = |line: &&shared_net::host::Shown| line.value != "null" && !line.origin.to_string().contains("hub.toml");
        let missing: Vec<_> = loaded.shown.iter().filter(left_out).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

    #[test]
    fn bad_values_are_named() {
        let mut config = Config::default();
        config.policies.dispatch.policy = "guess".to_owned();
        let error = config.validate().expect_err("no such policy").to_string();
        assert!(error.contains("policies.dispatch") && error.contains("min-latency"), "{error}");
        let config =
            Config { mqtt: MqttSection { external: "broker".to_owned(), ..MqttSection::default() }, ..Config::default() };
        assert!(config.validate().expect_err("no port").to_string().contains("mqtt.external"));
    }

    #[test]
    fn what_serve_would_refuse_is_found_before() {
        Config::default().validate_to_serve().expect("defaults work");
        let mut open = Config::default();
        open.http.listen = SocketAddr::from((Ipv4Addr::UNSPECIFIED, 80));
        assert!(matches!(open.validate_to_serve(), Err(ConfigError::Front(BadFront::NoKeys))));
        open.http.front.api_keys_sha256 = vec!["ab".repeat(32)];
        open.validate_to_serve().expect("a key is enough");
        let mut config = Config::default();
        config.policies.placement = PolicyChoice::named("guess");
        assert!(matches!(config.validate_to_serve(), Err(ConfigError::Core(_))));
    }

    #[test]
    fn hosts_and_ports() {
        for good in ["h:1", "127.0.0.1:7443", "[::1]:7443", "hub.example.org:65535", "my_host:1"] {
            assert!(is_host_and_port(good), "{good}");
        }
        for bad in ["", "h", "h:", ":1", "h:65536", "h:x", "::1", "a b:1", "http://h:1"] {
            assert!(!is_host_and_port(bad), "{bad}");
        }
    }
}
