//! An engine elsewhere: any server that speaks the OpenAI API, reached by its base URL.
//!
//! It may be [managed](ManagedConfig): a server on this machine that the agent starts, watches, takes over and stops.
//!
//! It always streams, and a request is cancelled by closing its connection. Retrying is not its business. It has no token
//! ids, so a stream that was begun elsewhere cannot be continued here.

mod answer;
mod ask;
mod config;
mod document;
mod embed;
mod health;
mod line;
mod managed;
mod probe;
mod run;

pub use config::{MANAGED_URL, Secret, UpstreamConfig};
pub use managed::{ManagedConfig, sweep};
pub use probe::{ProbeError, probe};

use super::config::{StartError, check_slots};
use super::hold::Hold;
use super::rates::{Learner, Observation};
use super::{Engine, Hung, Job, check_ready};
use futures_util::future::BoxFuture;
use line::Lines;
use managed::Managed;
use shared::fleet::{Load, ReplicaReport, ReplicaState};
use shared::ids::VariantId;
use shared::plan::Reason;
use shared::work::{Capability, EngineKind, PromptKind};
use std::path::Path;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// Longest time to a connection: a listening server accepts within a round trip.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);

/// An upstream as an engine.
#[derive(Debug)]
pub struct Upstream {
    shared: Arc<Shared>,
    open: Arc<AtomicU32>,
    tasks: TaskTracker,
    runtime: tokio::runtime::Handle,
}

#[derive(Debug)]
struct Shared {
    config: UpstreamConfig,
    calls: Mutex<Option<Arc<Calls>>>,
    client: reqwest::Client,
    learner: Mutex<Learner>,
    report: watch::Sender<ReplicaReport>,
    stop: CancellationToken,
    managed: Option<Managed>,
}

/// Where requests go, as long as the server keeps its port.
#[derive(Debug)]
struct Calls {
    /// Zero for a server that is not managed.
    port: u16,
    chat: reqwest::Url,
    completion: reqwest::Url,
    /// The short way; absent for an upstream behind TLS.
    lines: Option<Arc<Lines>>,
}

impl Upstream {
    /// Starts watching the upstream, and the server itself where it is managed; it is ready when it answers. Needs a tokio runtime.
    /// What is to be known of a managed server after this agent's end is kept in the folder `state`.
    ///
    /// # Errors
    /// [`StartError`] for slots, rates, devices, a URL or a server that cannot be.
    pub fn start(config: UpstreamConfig, state: &Path) -> Result<Self, StartError> {
        check_slots(&config.variant, config.slots)?;
        if let Some(managed) = &config.managed {
            managed.check(&config.variant, &config.url)?;
        }
        config.call("models", 0)?;
        let device = config.device()?;
        if let Some(strange) = config.capabilities.iter().find(|name| Capability::parse(name).is_none()) {
            let known: Vec<&str> = Capability::ALL.iter().map(|capability| capability.name()).collect();
            let why = format!("`{strange}` is none: want of {}", known.join(", "));
            return Err(StartError::Value { variant: config.variant, field: "capabilities", why });
        }
        let profile = config.rates.map(|rates| rates.profile(&config.variant)).transpose()?;
        // Another provider may be installed already; any will do.
        let _ = rustls::crypto::ring::default_provider().install_default();
        // Redirects and proxies would carry text and key to places that nobody configured.
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT)
            .redirect(reqwest::redirect::Policy::none())
            .no_proxy()
            .build()
            .map_err(|source| StartError::Client { variant: config.variant.clone(), source })?;
        let report = watch::Sender::new(ReplicaReport {
            variant: config.variant.clone(),
            engine: EngineKind::Upstream,
            device,
            state: ReplicaState::Loading,
            load: Load { slots: config.slots, ..Load::default() },
            memory: config.memory,
            context: config.context,
            weights_sha256: None,
            layers: None,
            capabilities: config.capabilities.clone(),
            profile: profile.clone(),
        });
        let learner = Mutex::new(profile.as_ref().map(Learner::from_profile).unwrap_or_default());
        let managed = config.managed.clone();
        let managed = managed.map(|managed| Managed::new(managed, config.variant.clone(), config.model.clone(), state));
        let shared = Arc::new(Shared {
            config,
            calls: Mutex::default(),
            client,
            learner,
            report,
            stop: CancellationToken::new(),
            managed,
        });
        let (tasks, runtime) = (TaskTracker::new(), tokio::runtime::Handle::current());
        let watcher = Arc::clone(&shared);
        tasks.spawn_on(async move { watcher.watch_over().await }, &runtime);
        let keeper = Arc::clone(&shared);
        tasks.spawn_on(async move { keeper.keep_running().await }, &runtime);
        Ok(Self { shared, open: Arc::default(), tasks, runtime })
    }
}

impl Engine for Upstream {
    fn variant(&self) -> &VariantId {
        &self.shared.config.variant
    }

    fn watch(&self) -> watch::Receiver<ReplicaReport> {
        self.shared.report.subscribe()
    }

    fn submit(&self, job: Job) -> Result<(), Reason> {
        check_ready(&self.shared.report.borrow().state)?;
        let job = job.into_whole()?;
        let hold = Hold::take(&self.open, self.shared.config.slots).ok_or(Reason::Busy)?;
        let sharers = self.open.load(Ordering::Acquire);
        let shared = Arc::clone(&self.shared);
        // On the heap at once: a task is moved several times in its life.
        self.tasks.spawn_on(Box::pin(async move { shared.execute(job, hold, sharers).await }), &self.runtime);
        Ok(())
    }

    fn shutdown(&self, within: Duration) -> BoxFuture<'_, Result<(), Hung>> {
        Box::pin(async move {
            self.shared.report.send_modify(|report| report.state = ReplicaState::Draining);
            self.shared.stop.cancel();
            self.tasks.close();
            let hung = |_| Hung { variant: self.variant().clone(), within };
            tokio::time::timeout(within, self.tasks.wait()).await.map_err(hung)?;
            self.shared.report.send_modify(|report| report.state = ReplicaState::Failed("stopped".to_owned()));
            Ok(())
        })
    }
}

impl Drop for Upstream {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    /// The URL of a call.
    fn call(&self, path: &str) -> Result<reqwest::Url, StartError> {
        self.config.call(path, self.port())
    }

    fn port(&self) -> u16 {
        self.managed.as_ref().map_or(0, Managed::port)
    }

    /// Where requests go now.
    fn calls(&self) -> Result<Arc<Calls>, StartError> {
        let port = self.port();
        let mut calls = self.calls.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(calls) = calls.as_ref().filter(|calls| calls.port == port) {
            return Ok(Arc::clone(calls));
        }
        let chat = self.call(ask::path(PromptKind::Chat))?;
        let completion = self.call(ask::path(PromptKind::Completion))?;
        let idle_max = usize::try_from(self.config.slots).unwrap_or(usize::MAX);
        let lines = Lines::to(&chat, self.config.api_key.as_ref().map(Secret::expose), idle_max);
        Ok(Arc::clone(calls.insert(Arc::new(Calls { port, chat, completion, lines }))))
    }

    fn authorised(&self, request: reqwest::RequestBuilder) -> reqwest::RequestBuilder {
        match &self.config.api_key {
            Some(key) => request.bearer_auth(key.expose()),
            None => request,
        }
    }

    /// Takes in what a request took, and reports the profile that follows.
    fn observe(&self, seen: &Observation) {
        let profile = {
            let mut learner = self.learner.lock().unwrap_or_else(PoisonError::into_inner);
            learner.observe(seen);
            learner.profile()
        };
        self.report.send_if_modified(|report| std::mem::replace(&mut report.profile, profile.clone()) != profile);
    }
}
