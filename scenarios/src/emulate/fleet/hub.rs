//! The fleet's hub as a process.

use super::super::ports;
use super::super::process::{Process, ProcessError, Program, beside};
use super::{COMMAND_WITHIN, FleetError, STOP_WITHIN, UP_WITHIN, answers, until, write};
use shared::ids::{NodeId, ScopeId, ServiceId};
use shared::wire::JoinToken;
use shared::work::Service;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where systems put Mosquitto.
const MOSQUITTO: [&str; 4] =
    ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto", "/usr/bin/mosquitto", "/opt/homebrew/sbin/mosquitto"];

/// Which broker carries telemetry and plans.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Broker {
    /// The hub's own.
    #[default]
    Embedded,
    /// Mosquitto, with the files that the hub writes for it.
    Mosquitto,
}

/// What kind of hub.
#[derive(Clone, Debug)]
pub struct HubPlan {
    /// Its name.
    pub name: NodeId,
    /// How often nodes report.
    pub heartbeat: Duration,
    /// What the fleet serves.
    pub services: Vec<Service>,
    /// Which broker.
    pub broker: Broker,
    /// Further configuration, as TOML tables.
    pub config: String,
}

/// The hub.
#[derive(Debug)]
pub struct Hub {
    name: NodeId,
    folder: PathBuf,
    services: Vec<Service>,
    cli: Program,
    serve: Program,
    process: Option<Process>,
    broker: Option<Process>,
    quic: SocketAddr,
    mqtt: SocketAddr,
    http: SocketAddr,
    admin: SocketAddr,
}

impl Hub {
    /// Makes the hub's state, with ports that it finds again after a restart.
    pub(super) fn init(fleet: &Path, plan: HubPlan) -> Result<Self, FleetError> {
        let folder = fleet.join("hub");
        let port = || ports::free().map_err(|source| FleetError::Network { doing: "finding a port for the hub", source });
        let (quic, mqtt, http, admin) = (port()?, port()?, port()?, port()?);
        let config = folder.join("hub.toml");
        let state = folder.join("state");
        let broker = if plan.broker == Broker::Embedded { "listen" } else { "external" };
        let text = format!(
            "state = {state:?}\n\n[quic]\nlisten = \"{quic}\"\n\n[mqtt]\n{broker} = \"{mqtt}\"\n\n[http]\nlisten = \"{http}\"\n\n\
             [admin]\nlisten = \"{admin}\"\n\n[policies]\nheartbeat_ms = {}\n\n{}\n",
            plan.heartbeat.as_millis(),
            plan.config
        );
        write(&config, &text)?;
        let path = beside("cloud-hub")?;
        let cli = Program::new("cloud-hub", path.clone(), fleet.join("logs/hub-commands.log"));
        let serve = Program::new("the hub", path, fleet.join("logs/hub.log")).arg("serve").arg("--config").arg(&config);
        cli.clone()
            .args(["init", "--name", plan.name.as_str(), "--address", &quic.to_string(), "--state"])
            .arg(&state)
            .run(COMMAND_WITHIN)?;
        let (name, services) = (plan.name, plan.services);
        let mut hub = Self { name, folder, services, cli, serve, process: None, broker: None, quic, mqtt, http, admin };
        if plan.broker == Broker::Mosquitto {
            hub.broker = Some(hub.mosquitto(fleet)?);
        }
        Ok(hub)
    }

    /// Starts Mosquitto with the fleet's certificates and rights.
    fn mosquitto(&self, fleet: &Path) -> Result<Process, FleetError> {
        let (folder, listen) = (self.folder.join("mosquitto"), self.mqtt.to_string());
        self.command(&["mosquitto-conf", "--dir", &folder.to_string_lossy(), "--listen", &listen])?;
        let file = folder.join("mosquitto.conf");
        let conf = std::fs::read_to_string(&file);
        let mut conf = conf.map_err(|source| FleetError::File { doing: "reading", path: file.clone(), source })?;
        if !conf.lines().any(|line| line.starts_with("user ")) {
            // Started by root it would become a user that may not read the fleet's folder; started by anybody else it ignores this.
            conf += "user root\n";
        }
        write(&file, &conf)?;
        let path = MOSQUITTO.iter().map(PathBuf::from).find(|path| path.is_file());
        let path = path.ok_or_else(|| ProcessError::Missing { name: "mosquitto", looked: MOSQUITTO.join(", ") })?;
        Ok(Program::new("mosquitto", path, fleet.join("logs/mosquitto.log")).arg("-c").arg(file).start()?)
    }

    /// Starts it and waits until it answers.
    ///
    /// # Errors
    /// [`FleetError`] with the end of its log.
    pub async fn start(&mut self) -> Result<(), FleetError> {
        // Where the last life listened; its commands look here, so wait for this life's.
        let addresses = self.state().join("addresses.json");
        let _ = std::fs::remove_file(&addresses);
        self.process = Some(self.serve.start()?);
        let (name, api) = (self.name.to_string(), self.api());
        answers(&name, &api, || self.check()).await?;
        let written = until(format!("the addresses of {name}"), UP_WITHIN, || async {
            if addresses.is_file() { Ok(()) } else { Err(format!("no {}", addresses.display())) }
        });
        Ok(written.await.map(drop)?)
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
        self.broker.as_mut().map_or(Ok(()), Process::check)?;
        Ok(self.process.as_mut().map_or(Ok(()), Process::check)?)
    }

    /// Runs one of its commands, such as `["nodes"]`, and returns what it printed.
    ///
    /// # Errors
    /// [`FleetError::Process`] when it fails.
    pub fn command(&self, arguments: &[&str]) -> Result<String, FleetError> {
        Ok(self.cli.clone().args(arguments).arg("--state").arg(self.state()).run(COMMAND_WITHIN)?)
    }

    /// A token for one node at `site`, which will reach the hub at `address`.
    ///
    /// # Errors
    /// [`FleetError`] when the hub prints none.
    pub fn token(&self, site: &ScopeId, address: SocketAddr) -> Result<JoinToken, FleetError> {
        let printed = self.command(&["token", "--site", site.as_str(), "--address", &address.to_string()])?;
        let line = printed.lines().map(str::trim).find(|line| line.starts_with("tidegate")).unwrap_or_default();
        Ok(line.parse()?)
    }

    /// Tells it what the fleet serves.
    pub(super) fn add_services(&self) -> Result<(), FleetError> {
        for service in &self.services {
            let file = self.folder.join(format!("{}.toml", service.id));
            write(&file, &as_toml(service))?;
            self.command(&["service", "add", "--file", &file.to_string_lossy()])?;
        }
        Ok(())
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &NodeId {
        &self.name
    }

    /// Where its OpenAI API is.
    #[must_use]
    pub fn api(&self) -> String {
        format!("http://{}", self.http)
    }

    /// Where its admin API is.
    #[must_use]
    pub fn admin(&self) -> String {
        format!("http://{}", self.admin)
    }

    /// The key of the admin API.
    ///
    /// # Errors
    /// [`FleetError::File`].
    pub fn admin_key(&self) -> Result<String, FleetError> {
        let path = self.state().join("admin.key");
        let read = std::fs::read_to_string(&path).map(|key| key.trim().to_owned());
        read.map_err(|source| FleetError::File { doing: "reading", path, source })
    }

    /// Its state folder.
    #[must_use]
    pub fn state(&self) -> PathBuf {
        self.folder.join("state")
    }

    /// Where agents reach it without a cable between.
    #[must_use]
    pub fn quic(&self) -> SocketAddr {
        self.quic
    }

    /// Where its broker listens.
    #[must_use]
    pub fn mqtt(&self) -> SocketAddr {
        self.mqtt
    }
}

/// A service as the hub's command reads it. Names and sources hold nothing that TOML would write differently from Rust.
fn as_toml(service: &Service) -> String {
    let aliases: Vec<&str> = service.aliases.iter().map(ServiceId::as_str).collect();
    let mut text = format!("id = {:?}\naliases = {aliases:?}\n", service.id.as_str());
    for variant in &service.variants {
        text += &format!(
            "\n[[variants]]\nid = {:?}\nquantisation = {:?}\ncontext = {}\nmemory = {}\nquality = {}\nquality_source = {:?}\n",
            variant.id.as_str(),
            variant.quantisation,
            variant.context.0,
            variant.memory.0,
            variant.quality.get(),
            variant.quality_source
        );
        if let Some(hash) = &variant.weights_sha256 {
            text += &format!("weights_sha256 = {hash:?}\n");
        }
    }
    text
}
