//! The agent's configuration: one struct, a section for each part, defaults that work on one machine. Unknown keys are errors.
//!
//! What the hub decides (the node's name and site, labels of the token) is no configuration once the node has joined.

use crate::exec::EngineConfig;
pub use crate::net::{BadNet, Net};
pub use crate::probe::hardware::MachineSection;
use crate::probe::{BadProbe, ProbeSection};
use serde::{Deserialize, Serialize};
use shared::fleet::{Costs, Tier};
use shared::ids::{NodeId, ServiceId};
use shared::plan::DispatchSetting;
use shared::policy::BadPolicy;
use shared::policy::allocation::Allocator;
use shared::policy::dispatch::{Dispatcher, SplitRules};
use shared::units::{Bytes, Quality};
use shared::work::{BadCatalogue, Catalogue, Service, Variant};
use shared_net::host::LogSettings;
use shared_net::openai::{BadFront, Exposure, FrontConfig};
use std::collections::{BTreeMap, BTreeSet};
use std::net::{Ipv4Addr, SocketAddr};
use std::num::NonZero;
use std::path::PathBuf;

/// Start of the names of environment variables: `TIDEGATE_EDGE__HTTP__LISTEN` sets `http.listen`.
pub const ENVIRONMENT_PREFIX: &str = "TIDEGATE_EDGE";

/// Most threads that carry requests. More than this many would only wake each other up.
pub const THREADS_MAX: usize = 256;

/// Everything that can be configured.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// State folder; made where there is none.
    pub state: PathBuf,
    /// Name of a node that never joined a fleet; afterwards the certificate's counts.
    pub node: String,
    /// Level of the node: `device`, `site`, `region` or `cloud`.
    pub tier: Tier,
    /// Free labels, beside those of the join token.
    pub labels: BTreeMap<String, String>,
    /// What work here costs: `busy` in watts, `prompt_per_million` and `output_per_million` in millionths of a dollar.
    pub costs: Costs,
    /// The OpenAI API and the agent's own pages.
    pub http: HttpSection,
    /// Where other agents connect.
    pub quic: QuicSection,
    /// The hub.
    pub hub: HubSection,
    /// Other agents of which more is known here than they say themselves, by name.
    pub peers: BTreeMap<NodeId, PeerSection>,
    /// What executes requests here.
    pub engines: Vec<EngineConfig>,
    /// What clients can ask for, until a hub says so. Without any, everything that the engines serve is offered as the
    /// service `assistant`.
    pub services: Vec<Service>,
    /// How the agent decides.
    pub policies: PolicySection,
    /// How the machine is measured.
    pub probe: ProbeSection,
    /// Threads that carry requests to and fro. One carries thousands a second, and each with the least delay; more are for a server
    /// that is a gateway to many. Models compute on threads of their own.
    pub threads: NonZero<u32>,
    /// Whether and how often the machine is measured.
    pub machine: MachineSection,
    /// The log.
    pub log: LogSettings,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            state: PathBuf::from("edge-state"),
            node: "local/node".to_owned(),
            tier: Tier::default(),
            labels: BTreeMap::new(),
            costs: Costs::default(),
            http: HttpSection::default(),
            quic: QuicSection::default(),
            hub: HubSection::default(),
            peers: BTreeMap::new(),
            engines: Vec::new(),
            services: Vec::new(),
            policies: PolicySection::default(),
            probe: ProbeSection::default(),
            threads: NonZero::<u32>::MIN,
            machine: MachineSection::default(),
            log: LogSettings::default(),
        }
    }
}

/// The OpenAI API and the agent's own pages.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HttpSection {
    /// TCP address. Anything but loopback needs API keys.
    pub listen: SocketAddr,
    /// Keys and limits.
    pub front: FrontConfig,
}

impl Default for HttpSection {
    fn default() -> Self {
        Self { listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 11_435)), front: FrontConfig::default() }
    }
}

impl HttpSection {
    /// Where the listener can be reached from.
    #[must_use]
    pub fn exposure(&self) -> Exposure {
        if self.listen.ip().is_loopback() { Exposure::Loopback } else { Exposure::Network }
    }
}

/// Where other agents connect.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct QuicSection {
    /// Address for UDP and TCP alike; port 0 takes a free one, and tells the hub which.
    pub listen: SocketAddr,
    /// `host:port` under which other agents reach this one, where that is not an own address (behind NAT, say). Empty: the own
    /// addresses, first the one from which the machine reaches its hub, with the port of `listen`.
    pub advertise: Vec<String>,
    /// Where `advertise` is empty: networks whose own addresses are told, such as `10.0.0.0/8`. Empty: all.
    pub include: Vec<Net>,
    /// Where `advertise` is empty: networks whose own addresses are not told.
    pub exclude: Vec<Net>,
}

impl Default for QuicSection {
    fn default() -> Self {
        Self {
            listen: SocketAddr::from((Ipv4Addr::UNSPECIFIED, 0)),
            advertise: Vec::new(),
            include: Vec::new(),
            exclude: Vec::new(),
        }
    }
}

/// The hub.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct HubSection {
    /// `host:port` of the hub's QUIC endpoint, where it is not the one of the join token. Empty: the token's.
    pub address: String,
}

/// What is known here of another agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PeerSection {
    /// `host:port` where this node reaches it, in place of everything that it advertises: behind a NAT or a shaper, say.
    pub address: Option<String>,
}

/// How the agent decides.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct PolicySection {
    /// Where each request runs, until a plan of the hub names another policy.
    pub dispatch: DispatchSetting,
    /// When a request may be split over several nodes, whichever policy dispatches.
    pub splits: SplitRules,
    /// How the node is divided among its replicas.
    pub allocation: DispatchSetting,
}

impl Default for PolicySection {
    fn default() -> Self {
        let named = |policy: &str| DispatchSetting { policy: policy.to_owned(), config: serde_json::Value::Null };
        Self { dispatch: named("min-latency"), splits: SplitRules::default(), allocation: named("equal") }
    }
}

/// Why a configuration cannot work.
#[derive(Debug, thiserror::Error)]
pub enum BadConfig {
    /// The node's name is none.
    #[error("`node`: {0}")]
    Node(#[from] shared::ids::BadName),
    /// A policy cannot be had.
    #[error("`policies`: {0}")]
    Policy(#[from] BadPolicy),
    /// The services contradict each other.
    #[error("`services`: {0}")]
    Services(#[from] BadCatalogue),
    /// The front cannot start.
    #[error("`http.front`: {0}")]
    Front(#[from] BadFront),
    /// Measuring cannot work so.
    #[error(transparent)]
    Probe(#[from] BadProbe),
    /// No machine needs so many.
    #[error("`threads`: want 1 to {THREADS_MAX}")]
    Threads,
    /// Two engines serve the same.
    #[error("`engines`: `{0}` is served by two engines: give each a variant of its own")]
    EngineTwice(shared::ids::VariantId),
    /// A file that an engine needs is not there.
    #[error("`engines` (`{variant}`): {why}")]
    File {
        /// Which engine.
        variant: shared::ids::VariantId,
        /// What is missing, and what brings it.
        why: String,
    },
}

impl Config {
    /// Checks what the types cannot.
    ///
    /// # Errors
    /// [`BadConfig`] names the section.
    pub fn validate(&self) -> Result<(), BadConfig> {
        NodeId::new(&self.node)?;
        Dispatcher::new(&self.policies.dispatch)?;
        Allocator::named(&self.policies.allocation.policy, self.policies.allocation.config.clone())?;
        self.http.front.validate()?;
        self.probe.validate()?;
        if usize::try_from(self.threads.get()).map_or(true, |threads| threads > THREADS_MAX) {
            return Err(BadConfig::Threads);
        }
        let mut variants = BTreeSet::new();
        if let Some(twice) = self.engines.iter().find(|engine| !variants.insert(engine.variant())) {
            return Err(BadConfig::EngineTwice(twice.variant().clone()));
        }
        self.catalogue().map(|_| ())
    }

    /// Checks that the listener may open. `others` says whether there are API keys beside the configuration, or may be: of the node, or of
    /// the fleet that it has joined.
    ///
    /// # Errors
    /// [`BadConfig::Front`].
    pub fn check_keys(&self, others: bool) -> Result<(), BadConfig> {
        let wanted = self.http.exposure() == Exposure::Network || self.http.front.key_required;
        if wanted && !others && self.http.front.api_keys_sha256.is_empty() {
            return Err(BadFront::NoKeys.into());
        }
        Ok(())
    }

    /// Checks that the files which engines need are there. An agent starts without them all the same, and says so: other nodes
    /// may serve.
    ///
    /// # Errors
    /// [`BadConfig::File`].
    pub fn check_files(&self) -> Result<(), BadConfig> {
        for engine in &self.engines {
            engine.check_files().map_err(|why| BadConfig::File { variant: engine.variant().clone(), why })?;
        }
        Ok(())
    }

    /// What clients can ask for, until a hub says so.
    ///
    /// # Errors
    /// [`BadConfig::Services`].
    pub fn catalogue(&self) -> Result<Catalogue, BadConfig> {
        let services =
            if self.services.is_empty() { self.default_service().into_iter().collect() } else { self.services.clone() };
        Ok(Catalogue::new(services)?)
    }

    /// Everything that the engines serve as one service. Nothing is known of quality, so all are alike.
    fn default_service(&self) -> Option<Service> {
        let variants: Vec<_> = self.engines.iter().map(unrated).collect::<Option<_>>()?;
        let id = ServiceId::new("assistant").ok()?;
        (!variants.is_empty()).then_some(Service { id, aliases: Vec::new(), variants })
    }
}

fn unrated(engine: &EngineConfig) -> Option<Variant> {
    Some(Variant {
        id: engine.variant().clone(),
        weights_sha256: None,
        quantisation: String::new(),
        context: engine.context(),
        memory: Bytes(0),
        quality: Quality::new(0.5).ok()?,
        quality_source: Variant::NOT_RATED.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared_net::host::{ConfigError, Sources, load};

    fn loaded(text: &str) -> Result<Config, ConfigError> {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("edge.toml");
        std::fs::write(&path, text).expect("written");
        let sources = Sources { file: Some(path), prefix: ENVIRONMENT_PREFIX.to_owned(), ..Sources::default() };
        load(&sources).map(|loaded| loaded.value)
    }

    #[test]
    fn the_default_works() {
        let config = loaded("").expect("an empty file is a configuration");
        assert_eq!(config, Config::default());
        config.validate().expect("good");
    }

    #[test]
    fn a_whole_configuration_is_read() {
        let config = loaded(
            r#"
            tier = "cloud"
            [labels]
            rack = "7"
            [costs]
            busy = 30.0
            prompt_per_million = 150000
            [http]
            listen = "127.0.0.1:0"
            [quic]
            include = ["10.0.0.0/8"]
            [peers."eu/site/x"]
            address = "192.0.2.7:7411"
            [[engines]]
            engine = "profiled"
            variant = "small"
            rates = { prompt_per_s = 1000.0, decode_per_s = 100.0 }
            [policies.dispatch]
            policy = "least-loaded"
            "#,
        )
        .expect("good");
        config.validate().expect("good");
        assert_eq!((config.tier, config.engines.len()), (Tier::Cloud, 1));
        assert_eq!(config.labels.get("rack").map(String::as_str), Some("7"));
        let assistant = config.catalogue().expect("good").iter().next().map(|service| service.variants[0].context.0);
        assert_eq!(assistant, Some(8_192), "the engine's own context is offered");
        config.check_files().expect("it needs none");
        assert!(config.catalogue().expect("good").resolve("assistant").is_some());
        assert!(config.catalogue().expect("good").resolve("small").is_some());
    }

    #[cfg(feature = "llm")]
    #[test]
    fn a_model_file_that_is_missing_is_named_with_what_brings_it() {
        let text = "[[engines]]\nengine = \"llm\"\nvariant = \"small\"\npath = \"no/such.gguf\"\nhint = \"make model\"";
        let config = loaded(text).expect("read");
        config.validate().expect("an agent would start");
        let bad = config.check_files().expect_err("missing").to_string();
        for word in ["small", "no/such.gguf", "make model", "current directory"] {
            assert!(bad.contains(word), "{word}: {bad}");
        }
    }

    #[test]
    fn what_is_misspelt_or_cannot_work_is_named() {
        for (text, word) in [
            ("tier = \"clod\"", "`region`"),
            ("[quic]\nexclude = [\"ten\"]", "ten"),
            ("[peers.\"a/b\"]\nadress = \"x:1\"", "adress"),
            ("teir = \"cloud\"", "tier"),
            ("[http]\nlisten_on = \"127.0.0.1:1\"", "http.listen"),
            ("[costs]\nbusy_watts = 3", "busy_watts"),
            (
                "[[engines]]\nengine = \"profiled\"\nvariant = \"a\"\nspeed = 3\nrates = { prompt_per_s = 1.0, decode_per_s = 1.0 }",
                "speed",
            ),
        ] {
            let error = loaded(text).expect_err(text).to_string();
            assert!(error.contains(word), "{text}: {error}");
        }
        let bad = loaded("[policies.dispatch]\npolicy = \"no-such\"").expect("read").validate().expect_err("unknown policy");
        assert!(bad.to_string().contains("min-latency"), "{bad}");
        let open = loaded("[http]\nlisten = \"0.0.0.0:80\"").expect("read");
        open.check_keys(true).expect("keys come from elsewhere");
        let bad = open.check_keys(false).expect_err("no keys");
        assert!(bad.to_string().contains("api_keys_sha256"), "{bad}");
    }
}
