//! An agent of the fleet as a process.

use super::super::addresses::{SiteNet, uplink};
use super::super::ports;
use super::super::process::{Process, Program, beside};
use super::super::relay::{Delays, Gate, Relay};
use super::{COMMAND_WITHIN, FleetError, Hub, STOP_WITHIN, answers, write};
use shared::ids::{NodeId, ScopeId};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

/// What kind of agent.
#[derive(Clone, Debug)]
pub struct AgentPlan {
    /// Where it stands.
    pub site: ScopeId,
    /// Its name there.
    pub name: String,
    /// Length of its uplink; absent for an agent beside the hub, which then cannot be cut off.
    pub uplink: Option<Delays>,
    /// Whether no datagram passes to or from it, from before it joins; streams do.
    pub udp_blocked: bool,
    /// Its engines and further configuration, as TOML.
    pub config: String,
}

/// Where an agent stands in the networks of a fleet.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    /// Unlike that of every other agent.
    pub(super) number: u8,
    /// Its site's.
    pub(super) net: SiteNet,
}

/// An agent. Neighbours at its site reach it directly, everybody else through the hub.
#[derive(Debug)]
pub struct Agent {
    node: NodeId,
    folder: PathBuf,
    cli: Program,
    run: Program,
    process: Option<Process>,
    http: SocketAddr,
    relay: Option<Relay>,
    gate: Gate,
    quic: SocketAddr,
}

impl Agent {
    /// Joins with a token of its own.
    pub(super) fn join(fleet: &Path, plan: AgentPlan, hub: &Hub, place: Place) -> Result<Self, FleetError> {
        let node = NodeId::new(&format!("{}/{}", plan.site, plan.name))?;
        let folder = fleet.join(node.topic_level());
        let network = |doing| move |source| FleetError::Network { doing, source };
        let relay = plan.uplink.map(|delays| Relay::lay(&plan.name, uplink(place.number).into(), hub.quic(), hub.mqtt(), delays));
        let relay = relay.transpose().map_err(network("laying a cable"))?;
        if let Some(relay) = &relay {
            relay.block_datagrams(plan.udp_blocked);
        }
        let token = hub.token(&plan.site, relay.as_ref().map_or_else(|| hub.quic(), Relay::quic))?;
        let port = || ports::free().map_err(network("finding a port for an agent"));
        let (http, quic) = (port()?, SocketAddr::from((place.net.node(place.number), port()?.port())));
        let gate = SocketAddr::from((place.net.gate(place.number), quic.port()));
        let gate = Gate::open(&plan.name, gate, quic, place.net).map_err(network("opening a gate"))?;
        gate.block_datagrams(plan.udp_blocked);
        let (state, config) = (folder.join("state"), folder.join("agent.toml"));
        let text = format!(
            "state = {state:?}\n\n{}\n\n[http]\nlisten = \"{http}\"\n\n[quic]\nlisten = \"{quic}\"\nadvertise = [\"{}\"]\n\n\
             [machine]\nmeasure = false\n",
            plan.config,
            gate.address()
        );
        write(&config, &text)?;
        let path = beside("edge-node")?;
        let log = |kind| fleet.join(format!("logs/{}{kind}.log", node.topic_level()));
        let cli = Program::new("edge-node", path.clone(), log("-commands"));
        let run = Program::new(node.as_str(), path, log("")).arg("run").arg("--config").arg(&config);
        cli.clone().args(["join", &token.to_string(), "--name", &plan.name, "--state"]).arg(&state).run(COMMAND_WITHIN)?;
        Ok(Self { node, folder, cli, run, process: None, http, relay, gate, quic })
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// [`FleetError`] with the end of its log.
    pub async fn start(&mut self) -> Result<(), FleetError> {
        self.process = Some(self.run.start()?);
        let (name, api) = (self.node.to_string(), self.api());
        answers(&name, &api, || self.check()).await
    }

    /// Kills it with -9.
    pub fn kill(&mut self) {
        self.process = None;
    }

    /// Asks it to end; false when it had to be killed.
    pub fn stop(&mut self) -> bool {
        self.process.take().is_none_or(|mut process| process.stop(STOP_WITHIN).is_some())
    }

    /// Fails when it should run and does not.
    ///
    /// # Errors
    /// [`FleetError::Process`] with the end of its log.
    pub fn check(&mut self) -> Result<(), FleetError> {
        Ok(self.process.as_mut().map_or(Ok(()), Process::check)?)
    }

    /// Runs one of its commands, such as `["explain", id]`, and returns what it printed.
    ///
    /// # Errors
    /// [`FleetError::Process`] when it fails.
    pub fn command(&self, arguments: &[&str]) -> Result<String, FleetError> {
        let config = self.folder.join("agent.toml");
        Ok(self.cli.clone().args(arguments).arg("--config").arg(config).run(COMMAND_WITHIN)?)
    }

    /// Its id.
    #[must_use]
    pub fn node(&self) -> &NodeId {
        &self.node
    }

    /// Where its OpenAI API is.
    #[must_use]
    pub fn api(&self) -> String {
        format!("http://{}", self.http)
    }

    /// Its uplink, where it has one.
    #[must_use]
    pub fn relay(&self) -> Option<&Relay> {
        self.relay.as_ref()
    }

    /// Where it listens for other agents itself, behind its gate.
    #[must_use]
    pub const fn quic(&self) -> SocketAddr {
        self.quic
    }

    /// The way into it from its own site.
    #[must_use]
    pub fn gate(&self) -> &Gate {
        &self.gate
    }

    /// Its folder: configuration and state.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}
