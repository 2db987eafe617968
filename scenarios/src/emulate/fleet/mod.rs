//! A fleet of real processes on loopback: one hub and its agents, each with a state folder, a log, and a certificate from a
//! real token.
//!
//! ```text
//! FOLDER/hub/{state,hub.toml}  FOLDER/SITE.NAME/{state,agent.toml}  FOLDER/logs/*.log
//! ```

mod agent;
mod error;
mod hub;

pub use agent::{Agent, AgentPlan};
pub use error::FleetError;
pub use hub::{Broker, Hub, HubPlan};

use super::addresses::{COUNT_MAX, SiteNet};
use super::wait::until;
use agent::Place;
use shared::ids::{NodeId, ScopeId};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How long a program may take until it answers. A hub that makes its keys and an agent without a model are there in a
/// fraction of it, also while a compiler has the machine.
const UP_WITHIN: Duration = Duration::from_secs(30);
/// How long a command of a program may take.
const COMMAND_WITHIN: Duration = Duration::from_secs(20);
/// How long a program may take to end when asked to, before it is killed.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// A running fleet. Dropping it kills every process and takes every cable away.
#[derive(Debug)]
pub struct Fleet {
    folder: PathBuf,
    hub: Hub,
    agents: BTreeMap<NodeId, Agent>,
    /// Each site has a network of its own.
    sites: BTreeMap<ScopeId, SiteNet>,
}

impl Fleet {
    /// Makes a hub in `folder`, which is emptied first, and starts it.
    ///
    /// # Errors
    /// [`FleetError`] says what could not be done.
    pub async fn start(folder: &Path, plan: HubPlan) -> Result<Self, FleetError> {
        empty(folder)?;
        let mut hub = Hub::init(folder, plan)?;
        hub.start().await?;
        hub.add_services()?;
        Ok(Self { folder: folder.to_owned(), hub, agents: BTreeMap::new(), sites: BTreeMap::new() })
    }

    /// Lets an agent join with a token of its own, behind a cable if its plan says so, and starts it. Returns as soon as its
    /// API answers; its engines may still be loading.
    ///
    /// # Errors
    /// [`FleetError`] says what could not be done.
    pub async fn join(&mut self, plan: AgentPlan) -> Result<NodeId, FleetError> {
        let place = self.place(&plan.site)?;
        let mut agent = Agent::join(&self.folder, plan, &self.hub, place)?;
        agent.start().await?;
        let node = agent.node().clone();
        self.agents.insert(node.clone(), agent);
        Ok(node)
    }

    /// Addresses for one more agent.
    fn place(&mut self, site: &ScopeId) -> Result<Place, FleetError> {
        let number = u8::try_from(self.agents.len() + 1).ok().filter(|number| *number < COUNT_MAX);
        let next = u8::try_from(self.sites.len()).ok().and_then(SiteNet::new);
        let net = self.sites.get(site).copied().or(next);
        let (Some(number), Some(net)) = (number, net) else { return Err(FleetError::Full(COUNT_MAX)) };
        self.sites.insert(site.clone(), net);
        Ok(Place { number, net })
    }

    /// The hub.
    #[must_use]
    pub fn hub(&self) -> &Hub {
        &self.hub
    }

    /// The hub, to stop and start it.
    pub fn hub_mut(&mut self) -> &mut Hub {
        &mut self.hub
    }

    /// An agent.
    ///
    /// # Errors
    /// [`FleetError::NoAgent`].
    pub fn agent(&self, node: &NodeId) -> Result<&Agent, FleetError> {
        self.agents.get(node).ok_or_else(|| FleetError::NoAgent(node.clone()))
    }

    /// An agent, to stop and start it.
    ///
    /// # Errors
    /// [`FleetError::NoAgent`].
    pub fn agent_mut(&mut self, node: &NodeId) -> Result<&mut Agent, FleetError> {
        self.agents.get_mut(node).ok_or_else(|| FleetError::NoAgent(node.clone()))
    }

    /// All agents.
    pub fn agents(&self) -> impl Iterator<Item = &Agent> {
        self.agents.values()
    }

    /// Where the logs lie.
    #[must_use]
    pub fn logs(&self) -> PathBuf {
        self.folder.join("logs")
    }

    /// Fails when a process that should run does not.
    ///
    /// # Errors
    /// [`FleetError::Process`] with the end of its log.
    pub fn check(&mut self) -> Result<(), FleetError> {
        self.hub.check()?;
        self.agents.values_mut().try_for_each(Agent::check)
    }

    /// Asks every process to end, agents first, and kills those that do not. Returns the names of these.
    pub fn stop(&mut self) -> Vec<String> {
        let mut killed = Vec::new();
        for agent in self.agents.values_mut() {
            if !agent.stop() {
                killed.push(agent.node().to_string());
            }
        }
        if !self.hub.stop() {
            killed.push(self.hub.name().to_string());
        }
        killed
    }
}

fn empty(folder: &Path) -> Result<(), FleetError> {
    let file = |doing, source| FleetError::File { doing, path: folder.to_owned(), source };
    if folder.exists() {
        std::fs::remove_dir_all(folder).map_err(|source| file("emptying", source))?;
    }
    std::fs::create_dir_all(folder.join("logs")).map_err(|source| file("making", source))
}

fn write(path: &Path, text: &str) -> Result<(), FleetError> {
    let file = |source| FleetError::File { doing: "writing", path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        std::fs::create_dir_all(folder).map_err(file)?;
    }
    std::fs::write(path, text).map_err(file)
}

/// Waits until the API at `base` is there.
async fn answers(name: &str, base: &str, mut check: impl FnMut() -> Result<(), FleetError>) -> Result<(), FleetError> {
    let client = super::client::Client::new().map_err(FleetError::Client)?;
    let url = format!("{base}/healthz");
    let up = until(format!("the API of {name}"), UP_WITHIN, || {
        let (client, url) = (client.clone(), url.clone());
        let running = check();
        async move {
            // A process that ended will never answer: that is the value, and the caller's error.
            if running.is_err() {
                return Ok(running);
            }
            match client.http().get(&url).send().await {
                Ok(response) if response.status().is_success() => Ok(Ok(())),
                Ok(response) => Err(response.status().to_string()),
                Err(error) => Err(error.to_string()),
            }
        }
    });
    up.await?.0
}
