//! What the operator can ask of the program.

mod asking;
mod joining;
mod keys;
mod probing;
mod settings;

use crate::config::{Config, THREADS_MAX};
use crate::doctor;
use crate::io::store::StoreError;
use crate::io::{Running, StartError, capture};
use crate::logic::NodeStatus;
use crate::pages;
use crate::release::{self, Upgraded};
use asking::ask;
use clap::{Parser, Subcommand};
use settings::Settings;
use shared::ids::RequestId;
use shared::plan::Record;
use shared::policy::{allocation, dispatch};
use shared_net::host::{ConfigError, Loaded, NotStopped, ServiceManager, StateError, init_tracing, shutdown_signal};
use shared_net::join::JoinError;
use shared_net::say;
use shared_net::tls::TlsError;
use std::num::NonZero;
use std::path::PathBuf;
use tokio_util::sync::CancellationToken;

/// The agent of a Tidegate fleet: answers the applications beside it, here or where it is best, hub or no hub.
#[derive(Debug, Parser)]
#[command(name = "edge-node", version, about)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Join a fleet with the token that `cloud-hub token` printed
    Join {
        /// The whole line
        token: String,
        /// Last part of the node's name; the site comes from the token. The host's name where it is left out
        #[arg(long)]
        name: Option<String>,
        /// Forget an earlier membership in this state folder; the agent must not run
        #[arg(long)]
        replace: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Run the agent
    Run {
        /// Write everything that the agent is told to this file, for `replay`; no text of a request is in it
        #[arg(long, value_name = "FILE")]
        capture: Option<PathBuf>,
        #[command(flatten)]
        settings: Settings,
    },
    /// Show how the running agent is
    Status {
        /// As JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Show why a request ran where it ran, and what was predicted
    Explain {
        /// Its id, as in the header `x-request-id`
        request: RequestId,
        /// As JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Measure this machine: its accelerators, and what was listed and is none. Needs no configuration, and no agent
    Probe {
        #[command(flatten)]
        wishes: probing::Wishes,
        #[command(flatten)]
        settings: Settings,
    },
    /// The process that touches the hardware: started by the probe, of no use by itself
    #[command(hide = true)]
    ProbeChild(probing::ChildTask),
    /// Change who may ask this node: API keys beside those of the fleet
    Key {
        #[command(subcommand)]
        command: keys::KeyCommand,
        #[command(flatten)]
        settings: Settings,
    },
    /// Install another release beside the present one; the next start runs it, and takes it back if it does not work
    Upgrade {
        /// An archive of a release, its unpacked folder, or a program file
        from: PathBuf,
        /// Where releases are installed
        #[arg(long, value_name = "FOLDER", default_value = "/opt/tidegate")]
        root: PathBuf,
    },
    /// Look at everything that the agent stands on, and say what to do about what is wrong
    Doctor {
        /// As JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        settings: Settings,
    },
    /// Check or show the configuration
    Config {
        #[command(subcommand)]
        what: ConfigCommand,
    },
    /// List the policies that can be configured
    Policies,
    /// Make the decisions of a capture again, and compare
    Replay {
        /// What `run --capture` wrote
        file: PathBuf,
    },
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Say whether it can work
    Check {
        #[command(flatten)]
        settings: Settings,
    },
    /// Each value with its origin
    Show {
        #[command(flatten)]
        settings: Settings,
    },
}

/// Why a command failed.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// The configuration cannot be read.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The configuration cannot work.
    #[error("the configuration cannot work")]
    BadConfig(#[from] crate::config::BadConfig),
    /// `--set` without a value.
    #[error("`--set {0}`: want KEY=VALUE, such as `--set tier=cloud`")]
    Set(String),
    /// Logging cannot start.
    #[error(transparent)]
    Log(#[from] shared_net::host::LogError),
    /// The agent does not start.
    #[error("the agent does not start")]
    Start(#[from] StartError),
    /// The agent did not stop well.
    #[error(transparent)]
    Stop(#[from] NotStopped),
    /// A part has ended without which the agent is none.
    #[error("the agent stopped by itself: the log says why")]
    Failed,
    /// Signals cannot be watched.
    #[error("watching for signals")]
    Signals(#[source] std::io::Error),
    /// The token is none.
    #[error(transparent)]
    Token(#[from] shared::wire::BadToken),
    /// The node has joined before.
    #[error(
        "this node is `{0}` already: run it, give another `--state` folder to join as another, or forget this membership with `join --replace`"
    )]
    Joined(shared::ids::NodeId),
    /// Joining failed.
    #[error("joining the fleet")]
    Join(#[from] JoinError),
    /// The state folder cannot be used.
    #[error(transparent)]
    State(#[from] StateError),
    /// A file in it cannot be used.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The identity cannot be used.
    #[error("the node's identity")]
    Identity(#[from] TlsError),
    /// No agent answers.
    #[error("no agent answers at {0}: is it running? `--state` or `--config` says which one is meant")]
    NoAgent(String, #[source] reqwest::Error),
    /// The agent answered with an error.
    #[error("the agent says: {0}")]
    Answer(String),
    /// The release was not installed.
    #[error("nothing was changed")]
    Release(#[from] release::ReleaseError),
    /// The machine was not measured.
    #[error("the probe failed; what it was doing is printed")]
    Probe,
    /// Something is wrong; all that is known of it is printed.
    #[error("{0} checks failed; the line below each says what to do")]
    Unwell(usize),
    /// The capture does not replay.
    #[error(transparent)]
    Replay(#[from] capture::CaptureError),
    /// A key cannot be made, or is none.
    #[error("{0}")]
    Key(String),
    /// The answer cannot be shown.
    #[error("showing the answer as JSON")]
    Json(#[from] serde_json::Error),
    /// The number of computing threads cannot be set.
    #[cfg(feature = "llm")]
    #[error(transparent)]
    Threads(#[from] crate::exec::llm::TooLate),
}

/// Carries out a command. `before_threads` is still true when no thread but this one runs.
///
/// # Errors
/// [`CommandError`], for people.
pub fn run(cli: Cli) -> Result<(), CommandError> {
    match cli.command {
        Command::Join { token, name, replace, settings } => {
            let config = settings.load()?.value;
            init_tracing(&config.log)?;
            let token = token.parse()?;
            let joined = wait(joining::join_fleet(&config, &token, name, replace))?;
            say!("joined as {} at hub {}; now: edge-node run{}", joined.identity.node(), joined.hub, settings.arguments());
            Ok(())
        }
        Command::Run { capture, settings } => {
            let config = settings.load()?.value;
            config.validate()?;
            size_threads(&config)?;
            init_tracing(&config.log)?;
            let threads = config.threads;
            wait_with(threads, run_agent(config, capture, &settings.arguments()))
        }
        Command::Status { json, settings } => {
            let status: NodeStatus = wait(ask(&settings.load()?.value, "status"))?;
            show(json, &status, pages::status(&status))
        }
        Command::Explain { request, json, settings } => {
            let record: Record = wait(ask(&settings.load()?.value, &format!("requests/{request}")))?;
            show(json, &record, pages::explain(&record))
        }
        Command::Probe { wishes, settings } => probing::probe(wishes, &settings),
        Command::ProbeChild(task) => {
            task.run();
            Ok(())
        }
        Command::Key { command, settings } => keys::run(&settings.load()?.value.state, command),
        Command::Upgrade { from, root } => {
            match release::upgrade(&from, &root)? {
                Upgraded::Installed(hash) => say!("{hash} is installed; to run it: systemctl restart tidegate-agent"),
                Upgraded::Already(hash) => say!("{hash} is the present release already"),
            }
            Ok(())
        }
        Command::Doctor { json, settings } => wait(diagnose(json, &settings)),
        Command::Config { what: ConfigCommand::Check { settings } } => {
            let config = settings.load()?.value;
            config.validate()?;
            config.check_keys(keys::are_elsewhere(&config.state)?)?;
            config.check_files()?;
            say!("the configuration is good");
            Ok(())
        }
        Command::Config { what: ConfigCommand::Show { settings } } => {
            for line in settings.load()?.shown {
                say!("{} = {}    # {}", line.key, line.value, line.origin);
            }
            Ok(())
        }
        Command::Policies => {
            list_policies();
            Ok(())
        }
        Command::Replay { file } => {
            say!("{} events, the same effects", capture::replay(&file)?);
            Ok(())
        }
    }
}

/// The runtime begins only here: before it, the process has one thread, and its environment may still be changed.
fn wait<T>(command: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    wait_with(NonZero::<u32>::MIN, command)
}

/// The same with so many threads. One needs no other to wake up for each step of a request: on a board that is a third of the time
/// that a request takes here, and some memory.
fn wait_with<T>(threads: NonZero<u32>, command: impl Future<Output = Result<T, CommandError>>) -> Result<T, CommandError> {
    let mut builder = match usize::try_from(threads.get()) {
        Ok(1) => tokio::runtime::Builder::new_current_thread(),
        threads => {
            let mut builder = tokio::runtime::Builder::new_multi_thread();
            builder.worker_threads(threads.unwrap_or(THREADS_MAX));
            builder
        }
    };
    builder.enable_all().build().map_err(CommandError::Signals)?.block_on(command)
}

#[cfg(feature = "llm")]
fn size_threads(config: &Config) -> Result<(), CommandError> {
    let models: Vec<_> = config
        .engines
        .iter()
        .filter_map(|engine| match engine {
            crate::exec::EngineConfig::Llm(llm) => Some(llm.threads),
            _ => None,
        })
        .collect();
    let wanted = models.iter().flatten().copied().max();
    match crate::exec::llm::set_threads(wanted) {
        // Where nobody asked for a number, the pools' own default will do.
        Err(late) if !models.is_empty() && wanted.is_some() => Err(late.into()),
        _ => Ok(()),
    }
}

#[cfg(not(feature = "llm"))]
fn size_threads(_config: &Config) -> Result<(), CommandError> {
    Ok(())
}

async fn run_agent(config: Config, capture: Option<PathBuf>, arguments: &str) -> Result<(), CommandError> {
    let running = Running::start(&config, capture).await?;
    if running.quic_address().is_none() {
        let state = config.state.display();
        tracing::warn!(%state, "not joined: serves alone; to join, stop it and: edge-node join TOKEN{arguments}");
    }
    running.watch_accelerators(&config.probe);
    let (manager, lives) = (ServiceManager::from_environment(), || async { running.handle().look(|_, _| ()).await.is_ok() });
    manager.ready();
    let failed = tokio::select! {
        biased;
        // Never ends before the rest: it only tells that the agent still decides.
        () = manager.report(lives, CancellationToken::new()) => true,
        signal = shutdown_signal() => {
            tracing::info!(signal = signal.map_err(CommandError::Signals)?, "stopping");
            false
        }
        () = running.failed() => true,
    };
    manager.stopping();
    running.shutdown().await?;
    if failed { Err(CommandError::Failed) } else { Ok(()) }
}

/// Prints what `doctor` finds; a failed check is a failed command.
async fn diagnose(json: bool, settings: &Settings) -> Result<(), CommandError> {
    let checkup = match settings.load() {
        Ok(Loaded { value, .. }) => {
            let origin = settings.config.as_ref().map_or_else(|| "the default".to_owned(), |file| file.display().to_string());
            doctor::examine(&value, ask(&value, "status").await.ok(), &origin).await
        }
        Err(error) => doctor::unreadable(&error),
    };
    show(json, &checkup, checkup.to_string())?;
    if checkup.failed() == 0 { Ok(()) } else { Err(CommandError::Unwell(checkup.failed())) }
}

fn show<T: serde::Serialize>(json: bool, value: &T, page: String) -> Result<(), CommandError> {
    if json {
        say!("{}", serde_json::to_string_pretty(value)?);
    } else {
        say!("{page}");
    }
    Ok(())
}

fn list_policies() {
    say!("dispatch (where each request runs):");
    for row in dispatch::TABLE {
        say!("  {:<16} {}", row.name, row.summary);
    }
    say!("allocation (how the node is divided):");
    for row in allocation::TABLE {
        say!("  {:<16} {}", row.name, row.summary);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_next_command_repeats_what_this_one_was_given() {
        let cli = Cli::parse_from(["edge-node", "run", "--config", "my file.toml", "--state", "s", "--set", "tier=cloud"]);
        let Command::Run { settings, .. } = cli.command else { panic!("run") };
        assert_eq!(settings.arguments(), " --config 'my file.toml' --state s --set tier=cloud");
    }
}
