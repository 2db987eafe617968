//! The commands. They speak to the running hub through its admin API; where that makes sense they work on the state folder
//! itself while no hub runs. Nothing is decided here.

mod copies;
mod doctor;
mod explain;
mod key;
mod node;
mod nodes;
mod reach;
mod serve;
mod service;
mod token;

use crate::config::{Config, ConfigError};
use crate::io::mosquitto::{self, Settings};
use crate::state::{StateDir, StateError};
use crate::store::Db;
use clap::{Args, Parser, Subcommand};
use shared::ids::{NodeId, RequestId};
use shared_net::host::{Loaded, Sources, load};
use shared_net::say;
use std::path::PathBuf;

pub use reach::ReachError;

/// Environment variables begin so: `TIDEGATE_HUB__QUIC__LISTEN` sets `quic.listen`.
const PREFIX: &str = "TIDEGATE_HUB";

/// The hub of a Tidegate fleet: certificate authority, slow scheduling rounds, relay, ledger.
#[derive(Debug, Parser)]
#[command(name = "cloud-hub", version, about)]
pub struct Arguments {
    #[command(flatten)]
    place: Place,
    #[command(subcommand)]
    command: Command,
}

/// Where configuration and state are.
#[derive(Debug, Args)]
struct Place {
    /// Configuration file (TOML).
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    /// State folder.
    #[arg(long, global = true, value_name = "DIR")]
    state: Option<PathBuf>,
    /// Sets one configuration key, such as `--set quic.listen=[::]:7443`. May be given more than once.
    #[arg(long, global = true, value_name = "KEY=VALUE")]
    set: Vec<String>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Makes the state folder: fleet authority, admin key, empty database.
    Init {
        /// The hub's name.
        #[arg(long, default_value = "cloud/hub", value_name = "REGION/NAME")]
        name: NodeId,
        /// Address of the QUIC endpoint that join tokens carry. Port 0 stands for whichever the running hub has.
        #[arg(long, default_value = "127.0.0.1:7443", value_name = "HOST:PORT")]
        address: String,
    },
    /// Prints a join token.
    Token(token::TokenArguments),
    /// Runs the hub.
    Serve(serve::ServeArguments),
    /// Lists the nodes of the fleet, or tells what is known of one: its machine and its accelerators.
    Nodes {
        /// Only this one.
        #[arg(value_name = "NAME")]
        node: Option<NodeId>,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Changes what the fleet serves.
    Service {
        #[command(subcommand)]
        action: service::ServiceAction,
    },
    /// Changes who may ask: API keys of the whole fleet.
    Key {
        #[command(subcommand)]
        action: key::KeyAction,
    },
    /// Throws a node out: its certificates are no longer good.
    Revoke {
        /// Which.
        node: NodeId,
    },
    /// Empties a node: it finishes what it has and gets nothing new.
    Drain {
        /// Which.
        node: NodeId,
        /// Lets it work again.
        #[arg(long)]
        undo: bool,
    },
    /// Lists the newest requests.
    Records {
        /// How many.
        #[arg(long, default_value_t = 20)]
        last: usize,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Tells why a request was executed where it was.
    Explain {
        /// Its id, as in the response header `x-request-id`.
        request: RequestId,
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Looks at everything that the hub stands on, and says what to do about what is wrong.
    Doctor {
        /// As JSON.
        #[arg(long)]
        json: bool,
    },
    /// Writes the whole hub to one file, while it runs: database, authority, keys.
    Backup {
        /// A new file. Whoever reads it can pose as the hub.
        file: PathBuf,
    },
    /// Makes a fresh state folder from a backup.
    Restore {
        /// What `backup` wrote.
        file: PathBuf,
    },
    /// Looks at the configuration.
    Config {
        #[command(subcommand)]
        action: ConfigAction,
    },
    /// Lists the policies of every layer.
    Policies,
    /// Writes the files with which Mosquitto serves as the fleet's broker.
    MosquittoConf {
        /// Folder to write to.
        #[arg(long, value_name = "DIR")]
        dir: PathBuf,
        /// Where Mosquitto shall listen.
        #[arg(long, default_value = "0.0.0.0:8883", value_name = "ADDRESS:PORT")]
        listen: std::net::SocketAddr,
        /// User that the broker becomes when root starts it; the files must be readable by that user.
        #[arg(long, value_name = "NAME")]
        user: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigAction {
    /// Says whether it can be used.
    Check,
    /// Shows each value with its origin.
    Show,
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CliError {
    /// The configuration cannot be read.
    #[error("reading the configuration")]
    Load(#[from] shared_net::host::ConfigError),
    /// The configuration cannot be used.
    #[error("checking the configuration")]
    Config(#[from] ConfigError),
    /// A flag cannot be used.
    #[error("{flag}: want {want}")]
    Flag {
        /// Which.
        flag: &'static str,
        /// What would be right.
        want: String,
    },
    /// The state folder cannot be used.
    #[error("using the state folder")]
    State(#[from] StateError),
    /// The hub, or its state, did not do what was asked.
    #[error(transparent)]
    Reach(#[from] ReachError),
    /// There is no backup, or none was put back.
    #[error(transparent)]
    Backup(#[from] crate::backup::BackupError),
    /// There is no such node.
    #[error("no node is called `{0}`: `cloud-hub nodes` lists them")]
    NoNode(NodeId),
    /// The hub does not run.
    #[error("no hub runs on this state folder, so nothing is known of a node's machine: `cloud-hub serve` starts it")]
    NoHub,
    /// Something is wrong; all that is known of it is printed.
    #[error("{0} checks failed; the line below each says what to do")]
    Unwell(usize),
    /// The log cannot be started.
    #[error("starting the log")]
    Log(#[from] shared_net::host::LogError),
    /// The hub did not start.
    #[error("starting the hub")]
    Start(#[from] crate::StartError),
    /// Some task of the hub failed.
    #[error("the hub did not stop cleanly")]
    Stop(#[from] crate::StopError),
    /// A file or a signal.
    #[error("{doing}")]
    Io {
        /// What was being done.
        doing: String,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
}

impl Place {
    fn load(&self, mut flags: Vec<(String, String)>) -> Result<Loaded<Config>, CliError> {
        for set in &self.set {
            let (key, value) =
                set.split_once('=').ok_or_else(|| CliError::Flag { flag: "--set", want: "KEY=VALUE".to_owned() })?;
            flags.push((key.to_owned(), value.to_owned()));
        }
        if let Some(state) = &self.state {
            let text = state.to_str().ok_or_else(|| CliError::Flag { flag: "--state", want: "a path in UTF-8".to_owned() })?;
            flags.push(("state".to_owned(), text.to_owned()));
        }
        let sources = Sources { file: self.config.clone(), prefix: PREFIX.to_owned(), flags, ..Sources::default() };
        let loaded = load::<Config>(&sources.with_process_environment())?;
        loaded.value.validate()?;
        Ok(loaded)
    }
}

/// Carries out one command. What it prints on standard output is its answer; everything else goes to standard error.
///
/// # Errors
/// [`CliError`] says what was being done and what would be right.
pub async fn run(arguments: Arguments) -> Result<(), CliError> {
    let place = &arguments.place;
    let plain = || Ok::<_, CliError>(place.load(Vec::new())?.value);
    match arguments.command {
        Command::Init { name, address } => init(&plain()?, &name, &address),
        Command::Token(token) => token.run(&plain()?).await,
        Command::Serve(serve) => serve.run(place.load(serve.flags())?.value).await,
        Command::Nodes { node, json } => {
            nodes::list(&plain()?, node.as_ref(), json).await?;
            match node.filter(|_| !json) {
                Some(node) => node::show(&plain()?, &node, false).await,
                None => Ok(()),
            }
        }
        Command::Service { action } => action.run(&plain()?).await,
        Command::Key { action } => action.run(&plain()?).await,
        Command::Revoke { node } => nodes::revoke(&plain()?, node).await,
        Command::Drain { node, undo } => nodes::drain(&plain()?, node, !undo).await,
        Command::Records { last, json } => explain::records(&plain()?, last, json).await,
        Command::Explain { request, json } => explain::explain(&plain()?, request, json).await,
        Command::Doctor { json } => doctor::diagnose(place, json).await,
        Command::Backup { file } => copies::back_up(&plain()?, &file),
        Command::Restore { file } => copies::restore(&plain()?, &file),
        Command::Config { action } => show_config(&place.load(Vec::new())?, &action),
        Command::Policies => {
            say!("{}", nodes::policies().trim_end());
            Ok(())
        }
        Command::MosquittoConf { dir, listen, user } => write_mosquitto(&plain()?, &dir, &Settings { listen, user }),
    }
}

fn init(config: &Config, name: &NodeId, address: &str) -> Result<(), CliError> {
    if !crate::config::is_host_and_port(address) {
        return Err(CliError::Flag { flag: "--address", want: "HOST:PORT at which agents reach this machine".to_owned() });
    }
    let state = StateDir::at(&config.state);
    let now = crate::clock::UnixTime::now(&shared_net::tls::CertClock::new(0));
    let kept = state.admin_key().is_ok();
    let authority = state.init(name, address, now)?;
    if kept {
        say!(
            "The authority in {} is kept, and its database made anew. Nodes are known again when they next connect.",
            state.path().display()
        );
        say!("Services, tokens, drains and revocations are forgotten: add them again, and revoke again whom you had revoked.");
        return Ok(());
    }
    say!("Made the fleet of {name} in {}.", state.path().display());
    say!("Authority (SHA-256): {}", authority.fingerprint());
    say!("Next: `cloud-hub serve --state {0}`, then `cloud-hub token --state {0} --site SITE`.", state.path().display());
    Ok(())
}

fn show_config(loaded: &Loaded<Config>, action: &ConfigAction) -> Result<(), CliError> {
    match action {
        ConfigAction::Check => {
            loaded.value.validate_to_serve()?;
            say!("The configuration can be used.");
        }
        ConfigAction::Show => {
            for line in &loaded.shown {
                say!("{} = {}  # {}", line.key, line.value, line.origin);
            }
        }
    }
    Ok(())
}

fn write_mosquitto(config: &Config, dir: &std::path::Path, settings: &Settings) -> Result<(), CliError> {
    let state = StateDir::at(&config.state);
    let meta = state.read_meta()?;
    let now = crate::clock::UnixTime::now(&shared_net::tls::CertClock::new(meta.clock.0));
    let nodes = Db::open(&state.database(), config.records).and_then(|db| db.nodes()).map_err(StateError::Store)?;
    let revoked: Vec<NodeId> = nodes.into_iter().filter(|row| row.revoked.is_some()).map(|row| row.node).collect();
    mosquitto::write(dir, &state.authority()?, (&meta.hub, &revoked), settings, now)
        .map_err(|source| CliError::Io { doing: format!("writing Mosquitto's files to {}", dir.display()), source })?;
    say!("Start the broker: mosquitto -c {}", dir.join("mosquitto.conf").display());
    say!("Tell the hub: cloud-hub serve --set mqtt.external=HOST:{}", settings.listen.port());
    say!("This broker learns of no revocation by itself: after `cloud-hub revoke`, and after a revoked node has joined again,");
    say!("run this command again and restart the broker. Meanwhile the hub ignores whatever a revoked node publishes.");
    Ok(())
}
