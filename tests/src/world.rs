//! A fleet of processes for one story.

use scenarios::emulate::client::{Client, Question, Reply};
use scenarios::emulate::fleet::{AgentPlan, Broker, Fleet, HubPlan};
use scenarios::emulate::relay::{Delays, Relay};
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use shared::ids::{NodeId, ScopeId};
use shared::work::Service;
use std::fs;
use std::path::Path;
use std::thread;
use std::time::Duration;
use tempfile::TempDir;

/// Short, so that stories about silence are short; the programs' own default is 5 s.
pub const HEARTBEAT: Duration = Duration::from_millis(500);
/// How long a condition may take to come, also while a compiler has the machine.
pub const SOON: Duration = Duration::from_secs(30);
/// A cable within a town.
const SHORT: Delays = Delays { up: Duration::from_millis(2), down: Duration::from_millis(2) };
/// How much of each log a failing story shows.
const SHOWN_LOG_BYTES: usize = 4_000;

/// A hub, its agents, and a client.
#[derive(Debug)]
pub struct World {
    /// The fleet, for what has no shorter way here.
    pub fleet: Fleet,
    /// The client.
    pub client: Client,
    folder: Option<TempDir>,
}

impl World {
    /// A hub that serves these services, with further configuration in TOML.
    ///
    /// # Panics
    /// When the hub does not start; the message holds the end of its log.
    pub async fn new(services: Vec<Service>, config: &str) -> Self {
        Self::with(Broker::Embedded, services, config).await
    }

    /// The same with a broker of choice.
    ///
    /// # Panics
    /// When the hub or the broker does not start.
    pub async fn with(broker: Broker, services: Vec<Service>, config: &str) -> Self {
        let folder = tempfile::tempdir().expect("a folder for the fleet");
        let name = NodeId::new("cloud/hub").expect("a hub's name");
        let plan = HubPlan { name, heartbeat: HEARTBEAT, services, broker, config: config.to_owned() };
        let fleet = Fleet::start(&folder.path().join("fleet"), plan).await.unwrap_or_else(|error| panic!("the hub: {error}"));
        Self { fleet, client: Client::new().expect("an HTTP client"), folder: Some(folder) }
    }

    /// An agent beside the hub, without a cable.
    pub async fn agent(&mut self, node: &str, config: &str) -> NodeId {
        self.join(node, None, false, config).await
    }

    /// An agent behind a cable that can be cut.
    pub async fn edge(&mut self, node: &str, config: &str) -> NodeId {
        self.join(node, Some(SHORT), false, config).await
    }

    /// An agent behind a cable on which no datagram passes, from before it joins; streams do.
    pub async fn edge_without_udp(&mut self, node: &str, config: &str) -> NodeId {
        self.join(node, Some(SHORT), true, config).await
    }

    async fn join(&mut self, node: &str, uplink: Option<Delays>, udp_blocked: bool, config: &str) -> NodeId {
        let (site, name) = node.rsplit_once('/').expect("a site and a name");
        let site = ScopeId::new(site).expect("a site's name");
        let plan = AgentPlan { site, name: name.to_owned(), uplink, udp_blocked, config: config.to_owned() };
        self.fleet.join(plan).await.unwrap_or_else(|error| panic!("{node}: {error}"))
    }

    /// The base URL of an agent's or the hub's API.
    #[must_use]
    pub fn base(&self, at: &NodeId) -> String {
        if at == self.fleet.hub().name() {
            return self.fleet.hub().api();
        }
        self.fleet.agent(at).map(|agent| agent.api()).unwrap_or_else(|error| panic!("{error}"))
    }

    /// Asks, and wants the server to be there.
    ///
    /// # Panics
    /// When the connection breaks; an error of the API is a reply.
    pub async fn ask(&self, at: &NodeId, question: &Question) -> Reply {
        self.client.ask(&self.base(at), question).await.unwrap_or_else(|error| panic!("asking {at}: {error}"))
    }

    /// Waits until `at` answers this question.
    ///
    /// # Panics
    /// With the last error when it does not.
    pub async fn until_answered(&self, at: &NodeId, question: &Question) -> Reply {
        let asked = until(format!("an answer at {at}"), SOON, || async {
            match self.client.ask(&self.base(at), question).await {
                Ok(reply) if reply.answered() => Ok(reply),
                Ok(reply) => Err(format!("{:?}", reply.error)),
                Err(error) => Err(error.to_string()),
            }
        });
        asked.await.unwrap_or_else(|late| panic!("{late}")).0
    }

    /// Waits until the node's own engine for `model` serves.
    pub async fn until_ready(&self, at: &NodeId, model: &str) {
        let own = Question::new(model, "ready?", 1).needing(json!({"residency": "node"}));
        self.until_answered(at, &own).await;
    }

    /// Waits until the node says that it is (or is not) cut off from its hub.
    ///
    /// # Panics
    /// When it does not within [`SOON`].
    pub async fn until_degraded(&self, at: &NodeId, degraded: bool) -> Duration {
        let url = format!("{}/healthz", self.base(at));
        let told = until(format!("{at} to say degraded: {degraded}"), SOON, || async {
            let response = self.client.http().get(&url).send().await.map_err(|error| error.to_string())?;
            let health: Value = response.json().await.map_err(|error| error.to_string())?;
            if health.get("degraded") == Some(&Value::Bool(degraded)) { Ok(()) } else { Err(health.to_string()) }
        });
        told.await.unwrap_or_else(|late| panic!("{late}")).1
    }

    /// What an agent says of itself.
    ///
    /// # Panics
    /// When it does not.
    pub async fn status(&self, of: &NodeId) -> Value {
        let url = format!("{}/tidegate/v1/status", self.base(of));
        let response = self.client.http().get(&url).send().await.unwrap_or_else(|error| panic!("the status of {of}: {error}"));
        response.json().await.unwrap_or_else(|error| panic!("the status of {of}: {error}"))
    }

    /// How many requests run on the only engine of a node.
    ///
    /// # Panics
    /// When it does not say.
    pub async fn active(&self, of: &NodeId) -> u64 {
        let status = self.status(of).await;
        let active = status.pointer("/replicas/0/load/active").and_then(Value::as_u64);
        active.unwrap_or_else(|| panic!("no load in the status of {of}: {status}"))
    }

    /// The cable of an edge.
    ///
    /// # Panics
    /// For an agent without one.
    #[must_use]
    pub fn cable(&self, of: &NodeId) -> &Relay {
        self.fleet.agent(of).ok().and_then(|agent| agent.relay()).unwrap_or_else(|| panic!("{of} has no cable"))
    }

    /// Where everything of the fleet lies.
    ///
    /// # Panics
    /// Never: the folder is let go of only when the world ends.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.as_ref().expect("held until the end").path()
    }
}

impl Drop for World {
    /// A failing story keeps its folder and shows the end of every log.
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let logs = self.fleet.logs();
        for entry in fs::read_dir(&logs).into_iter().flatten().flatten() {
            let bytes = fs::read(entry.path()).unwrap_or_default();
            let tail = bytes.get(bytes.len().saturating_sub(SHOWN_LOG_BYTES)..).unwrap_or_default();
            eprintln!("── {}\n{}", entry.path().display(), String::from_utf8_lossy(tail));
        }
        if let Some(folder) = self.folder.take() {
            eprintln!("the fleet's folder stays: {}", folder.keep().display());
        }
    }
}
