//! A server on this machine that the agent starts, watches, takes over after its own restart, and stops.
//!
//! One task a server, with a life of its own: what the engine does with requests does not touch it. It reconciles by what it observes: a
//! process that was started as configured is kept, whoever started it; anything else of ours is ended; nothing that is not ours is touched.

mod config;
mod output;
mod process;
mod record;
mod restarts;

pub use config::ManagedConfig;
pub use record::sweep;

pub(super) use config::filled;

use process::Identity;
use record::{Files, Record};
use restarts::Restarts;
use shared::ids::VariantId;
use std::io;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::{ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::Duration;
use tokio::process::{Child, Command};
use tokio::sync::watch;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// How often a server that is no child of this agent is looked at: the kernel tells only parents.
const LOOK_EVERY: Duration = Duration::from_millis(250);
/// Variables of the agent's environment that its servers do not get: they configure the agent, and may hold keys.
const OWN_VARIABLES: &str = "TIDEGATE_";

/// How the server is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Being started, or taken over: it may answer any moment.
    Starting,
    /// It answered.
    Up,
    /// It does not run; the text says why.
    Down(String),
}

/// A managed server.
#[derive(Debug)]
pub(super) struct Managed {
    config: ManagedConfig,
    variant: VariantId,
    model: String,
    files: Files,
    port: AtomicU16,
    phase: watch::Sender<Phase>,
}

/// A server that runs.
struct Held {
    identity: Identity,
    mark: String,
    /// Absent for one that an earlier agent started.
    child: Option<Child>,
    since: Instant,
}

/// How watching it ended.
enum Outcome {
    Stopped,
    Down(String),
}

impl Managed {
    pub(super) fn new(config: ManagedConfig, variant: VariantId, model: String, state: &Path) -> Self {
        let (files, port) = (Files::of(state, &variant), AtomicU16::new(config.port.unwrap_or(0)));
        Self { config, variant, model, files, port, phase: watch::Sender::new(Phase::Starting) }
    }

    pub(super) fn phase(&self) -> Phase {
        self.phase.borrow().clone()
    }

    /// Where it listens; 0 before it was first started.
    pub(super) fn port(&self) -> u16 {
        self.port.load(Ordering::Acquire)
    }

    /// URL of the configured sign of health.
    pub(super) fn health(&self) -> Option<String> {
        self.config.health.as_ref().map(|url| filled(url, self.port(), &self.model))
    }

    /// Keeps the server running until `stop`. `healthy` asks it once; `every` is how often.
    pub(super) async fn run<F>(&self, stop: &CancellationToken, every: Duration, healthy: impl Fn() -> F)
    where
        F: Future<Output = Result<(), String>>,
    {
        let mut restarts = Restarts::new(&self.config, rand::random());
        let mut found = self.take_over().await;
        loop {
            let started = match found.take() {
                Some(held) => Ok(held),
                None => self.start().await,
            };
            let (why, lasted) = match started {
                Err(why) => (why, Duration::ZERO),
                Ok(mut held) => match self.watch(&mut held, stop, every, &healthy).await {
                    Outcome::Stopped => return self.leave(held).await,
                    Outcome::Down(why) => {
                        self.end(&held).await;
                        (why, held.since.elapsed())
                    }
                },
            };
            let pause = restarts.after(Instant::now(), lasted);
            tracing::error!(variant = %self.variant, %why, pause_ms = pause.as_millis(), failures = restarts.failures(), "the managed server is down");
            self.phase.send_replace(Phase::Down(why));
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            self.phase.send_replace(Phase::Starting);
        }
    }

    /// The server that an earlier agent left, if it was started as this one would start it. Any other of its is ended.
    async fn take_over(&self) -> Option<Held> {
        let record = self.files.read()?;
        let found = record.found();
        match found.filter(|_| record.spec == self.config.hash(&self.model)) {
            Some(identity) => {
                tracing::info!(variant = %self.variant, pid = identity.pid, port = record.port, "took over a running server");
                self.port.store(record.port, Ordering::Release);
                let mark = record.mark.clone();
                self.note(Record { process: Some(identity), ..record });
                Some(Held { identity, mark, child: None, since: Instant::now() })
            }
            None => {
                if let Some(old) = found {
                    tracing::info!(variant = %self.variant, pid = old.pid, "ending a server that was started otherwise");
                }
                if !record.end(self.grace()).await {
                    tracing::error!(variant = %self.variant, "a server that was started otherwise cannot be ended");
                }
                self.files.remove();
                None
            }
        }
    }

    async fn start(&self) -> Result<Held, String> {
        let (mut child, record) =
            self.spawn().map_err(|error| format!("cannot start {}: {error}", self.config.command.display()))?;
        let Some(identity) = child.id().and_then(Identity::of) else {
            // It was faster than we: what has ended and was not collected is no process any more.
            let status = child.wait().await.ok();
            self.files.remove();
            return Err(self.ended(status));
        };
        let (port, mark) = (record.port, record.mark.clone());
        self.note(Record { process: Some(identity), ..record });
        self.port.store(port, Ordering::Release);
        tracing::info!(variant = %self.variant, pid = identity.pid, port, "started a server");
        Ok(Held { identity, mark, child: Some(child), since: Instant::now() })
    }

    /// Starts it, after it was written down.
    fn spawn(&self) -> io::Result<(Child, Record)> {
        let port = match self.config.port {
            Some(port) => port,
            None => TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()?.port(),
        };
        let mark = hex::encode(rand::random::<[u8; 16]>());
        let record = Record {
            variant: self.variant.clone(),
            spec: self.config.hash(&self.model),
            mark: mark.clone(),
            port,
            boot: process::boot(),
            process: None,
        };
        self.files.write(&record)?;
        let child = self.command(port, &mark)?.spawn()?;
        Ok((child, record))
    }

    fn command(&self, port: u16, mark: &str) -> io::Result<Command> {
        let fill = |text: &str| filled(text, port, &self.model);
        let log = output::open(&self.files.log())?;
        let mut command = Command::new(&self.config.command);
        for (name, _) in std::env::vars_os().filter(|(name, _)| name.to_string_lossy().starts_with(OWN_VARIABLES)) {
            command.env_remove(name);
        }
        command.args(self.config.args.iter().map(|arg| fill(arg)));
        command.envs(self.config.env.iter().map(|(name, value)| (name, fill(value.expose()))));
        command.env(process::MARK, mark);
        if let Some(folder) = &self.config.folder {
            command.current_dir(folder);
        }
        // A group of its own: what a terminal sends to the agent is not for its servers.
        #[cfg(unix)]
        command.process_group(0);
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(Stdio::from(log));
        Ok(command)
    }

    async fn watch<F>(&self, held: &mut Held, stop: &CancellationToken, every: Duration, healthy: impl Fn() -> F) -> Outcome
    where
        F: Future<Output = Result<(), String>>,
    {
        let (began, mut well) = (held.since, None);
        let mut pulse = tokio::time::interval(every);
        pulse.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => return Outcome::Stopped,
                status = held.ended() => return Outcome::Down(self.ended(status)),
                _ = pulse.tick() => {}
            }
            if let Err(error) = output::bound(&self.files.log()) {
                tracing::warn!(variant = %self.variant, %error, "the output of the server cannot be bounded");
            }
            let health = tokio::select! {
                biased;
                () = stop.cancelled() => return Outcome::Stopped,
                status = held.ended() => return Outcome::Down(self.ended(status)),
                health = healthy() => health,
            };
            match (health, well) {
                (Ok(()), _) => {
                    well = Some(Instant::now());
                    self.phase.send_if_modified(|phase| std::mem::replace(phase, Phase::Up) != Phase::Up);
                }
                (Err(why), None) if began.elapsed() > Duration::from_millis(self.config.start_ms_max) => {
                    return Outcome::Down(format!("it did not serve within {} ms: {why}", self.config.start_ms_max));
                }
                (Err(why), Some(last)) if last.elapsed() > Duration::from_millis(self.config.hung_ms_max) => {
                    return Outcome::Down(format!("no sign of health for {} ms: {why}", self.config.hung_ms_max));
                }
                (Err(_), _) => {}
            }
        }
    }

    fn ended(&self, status: Option<ExitStatus>) -> String {
        let how = status.map_or_else(|| "it ended".to_owned(), |status| format!("it ended with {status}"));
        format!("{how}; its output is in {}", self.files.log().display())
    }

    /// At a stop of the agent.
    async fn leave(&self, held: Held) {
        if self.config.keep {
            tracing::info!(variant = %self.variant, pid = held.identity.pid, "left the server running");
        } else {
            self.end(&held).await;
        }
    }

    async fn end(&self, held: &Held) {
        if process::end(Some(held.identity), &held.mark, self.grace()).await {
            self.files.remove();
        } else {
            // Its record stays: the next agent tries again.
            tracing::error!(variant = %self.variant, pid = held.identity.pid, "a server cannot be ended");
        }
    }

    fn grace(&self) -> Duration {
        Duration::from_millis(self.config.stop_ms_max)
    }

    fn note(&self, record: Record) {
        if let Err(error) = self.files.write(&record) {
            tracing::warn!(variant = %self.variant, %error, "the next agent will not find this server by its process, only by its mark");
        }
    }
}

impl Held {
    /// Waits until it has ended, and says how if that can be known.
    async fn ended(&mut self) -> Option<ExitStatus> {
        if let Some(child) = &mut self.child {
            return child.wait().await.ok();
        }
        while self.identity.alive() {
            tokio::time::sleep(LOOK_EVERY).await;
        }
        None
    }
}
