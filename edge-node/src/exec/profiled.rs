//! An engine that computes nothing: it emits filler at the rates of a profile, for fleets larger than the machine.
//!
//! Requests that run at once share the rates equally, as estimates assume. The text is fixed filler: nothing of a request
//! is in it.

use super::config::{Rates, StartError, check_slots};
use super::extras::refuse_extras;
use super::hold::Hold;
use super::outlet::{Lost, Offered, Outlet};
use super::{Engine, ExecEvent, Hung, Job, PROGRESS_EVERY, WholeJob, check_ready};
use futures_util::future::BoxFuture;
use serde::{Deserialize, Serialize};
use shared::fleet::{Load, Profile, ReplicaReport, ReplicaState};
use shared::ids::VariantId;
use shared::plan::{Failure, Finish, Reason, Usage};
use shared::units::{Bytes, Tokens};
use shared::wire::Body;
use shared::wire::frame::TokenBatch;
use shared::work::{EngineKind, ExecHeader};
use std::sync::atomic::AtomicU32;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::{Notify, watch};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

/// An engine at declared rates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfiledConfig {
    /// What it serves.
    pub variant: VariantId,
    /// How fast.
    pub rates: Rates,
    /// Requests that run at once.
    #[serde(default = "slots_default")]
    pub slots: u32,
    /// Longest prompt and output together.
    #[serde(default = "context_default")]
    pub context: Tokens,
    /// Memory that it claims to hold.
    #[serde(default)]
    pub memory: Bytes,
    /// API features that it claims to serve; it ignores them.
    #[serde(default)]
    pub capabilities: Vec<String>,
    /// Answers end by themselves after so many tokens; only at their limit when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Tokens>,
    /// Each token's time varies by this fraction both ways.
    #[serde(default)]
    pub jitter: f64,
    /// Where the jitter comes from.
    #[serde(default)]
    pub seed: u64,
    /// A reader that has not drained its sink for so long loses its slot, in milliseconds.
    #[serde(default = "stall_default")]
    pub stall_ms_max: u64,
}

const fn slots_default() -> u32 {
    4
}

const fn context_default() -> Tokens {
    Tokens(8_192)
}

const fn stall_default() -> u64 {
    30_000
}

/// An engine that computes nothing.
#[derive(Debug)]
pub struct Profiled {
    shared: Arc<Shared>,
    open: Arc<AtomicU32>,
    tasks: TaskTracker,
    runtime: tokio::runtime::Handle,
    report: watch::Sender<ReplicaReport>,
}

#[derive(Debug)]
struct Shared {
    config: ProfiledConfig,
    profile: Profile,
    meter: Meter,
    stop: CancellationToken,
}

impl Profiled {
    /// Starts the engine, which is ready at once. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`StartError::Value`] for slots, rates or a jitter that cannot be.
    pub fn start(config: ProfiledConfig) -> Result<Self, StartError> {
        check_slots(&config.variant, config.slots)?;
        let profile = config.rates.profile(&config.variant)?;
        if !(0.0..1.0).contains(&config.jitter) {
            let why = format!("{}: want 0 up to, but not including, 1", config.jitter);
            return Err(StartError::Value { variant: config.variant, field: "jitter", why });
        }
        let report = watch::Sender::new(ReplicaReport {
            variant: config.variant.clone(),
            engine: EngineKind::Profiled,
            device: String::new(),
            state: ReplicaState::Ready,
            load: Load { slots: config.slots, ..Load::default() },
            memory: config.memory,
            context: config.context,
            weights_sha256: None,
            layers: None,
            capabilities: config.capabilities.clone(),
            profile: Some(profile.clone()),
        });
        let shared = Arc::new(Shared { config, profile, meter: Meter::new(), stop: CancellationToken::new() });
        let runtime = tokio::runtime::Handle::current();
        Ok(Self { shared, open: Arc::default(), tasks: TaskTracker::new(), runtime, report })
    }
}

impl Engine for Profiled {
    fn variant(&self) -> &VariantId {
        &self.shared.config.variant
    }

    fn watch(&self) -> watch::Receiver<ReplicaReport> {
        self.report.subscribe()
    }

    fn submit(&self, job: Job) -> Result<(), Reason> {
        check_ready(&self.report.borrow().state)?;
        let job = job.into_whole()?;
        let hold = Hold::take(&self.open, self.shared.config.slots).ok_or(Reason::Busy)?;
        let shared = Arc::clone(&self.shared);
        self.tasks.spawn_on(async move { shared.execute(job, hold).await }, &self.runtime);
        Ok(())
    }

    fn shutdown(&self, within: Duration) -> BoxFuture<'_, Result<(), Hung>> {
        Box::pin(async move {
            self.report.send_modify(|report| report.state = ReplicaState::Draining);
            self.shared.stop.cancel();
            self.tasks.close();
            let hung = |_| Hung { variant: self.variant().clone(), within };
            tokio::time::timeout(within, self.tasks.wait()).await.map_err(hung)?;
            self.report.send_modify(|report| report.state = ReplicaState::Failed("stopped".to_owned()));
            Ok(())
        })
    }
}

impl Drop for Profiled {
    fn drop(&mut self) {
        self.shared.stop.cancel();
    }
}

impl Shared {
    async fn execute(&self, job: WholeJob, hold: Hold) {
        let WholeJob { header, body, cancel, sink } = job;
        let outlet = Outlet::new(sink);
        let deadline = header.remaining.and_then(|left| Instant::now().checked_add(Duration::from_micros(left.0)));
        let overdue = async {
            match deadline {
                Some(deadline) => tokio::time::sleep_until(deadline).await,
                None => std::future::pending().await,
            }
        };
        let last = tokio::select! {
            biased;
            () = cancel.cancelled() => None,
            () = self.stop.cancelled() => Some(ExecEvent::Failed(Failure::Refused(Reason::Draining))),
            () = overdue => Some(ExecEvent::Failed(Failure::DeadlineExceeded)),
            last = self.answer(&header, &body, &outlet) => last,
        };
        drop(hold);
        match last {
            Some(event) => outlet.finish(event),
            None => outlet.close(),
        }
    }

    /// Emits the answer, and says how it ended; nothing when nobody listens.
    async fn answer(&self, header: &ExecHeader, body: &Body, outlet: &Outlet) -> Option<ExecEvent> {
        let (prompt, context) = (header.prompt, self.config.context);
        if let Err(failure) = refuse_extras(body, &self.config.capabilities) {
            return Some(ExecEvent::Failed(failure));
        }
        if prompt >= context {
            return Some(ExecEvent::Failed(Failure::PromptTooLong { prompt, context }));
        }
        let limit = header.output_max.min(Tokens(body.sampling.max_tokens)).min(context - prompt);
        let (end, finish) = match self.config.answer {
            Some(answer) if answer < limit => (answer.0, Finish::Stop),
            _ => (limit.0, Finish::Length),
        };
        let begun = u32::try_from(body.resume.len()).unwrap_or(u32::MAX);
        self.with_progress(outlet, tokio::time::sleep(Duration::from_micros(self.profile.overhead.0))).await;
        let mut share = self.meter.enter();
        let mut due = share.now() + (prompt.as_f64() + f64::from(begun)) / self.profile.prompt.get();
        self.with_progress(outlet, share.reach(due)).await;
        for index in begun..end {
            if index > begun {
                due += self.token_seconds(header, index);
                share.reach(due).await;
            }
            let batch = TokenBatch { count: 1, ids: vec![index], text: filler(index), delta: None };
            if let Offered::Full(event) = outlet.offer(ExecEvent::Tokens(batch)) {
                // While its reader does not read, it leaves its share to the others.
                drop(share);
                match outlet.send(event, Duration::from_millis(self.config.stall_ms_max)).await {
                    Ok(()) => {}
                    Err(Lost::Stalled) => return Some(ExecEvent::Failed(Failure::ClientStalled)),
                    Err(Lost::Gone) => return None,
                }
                share = self.meter.enter();
                due = share.now();
            }
        }
        Some(ExecEvent::End(finish, Usage { prompt, output: Tokens(end.max(begun)), cached: Tokens(0) }))
    }

    async fn with_progress(&self, outlet: &Outlet, work: impl Future<Output = ()>) {
        let mut pulse = tokio::time::interval(PROGRESS_EVERY / 2);
        tokio::pin!(work);
        loop {
            tokio::select! {
                biased;
                () = &mut work => return,
                _ = pulse.tick() => outlet.progress(),
            }
        }
    }

    fn token_seconds(&self, header: &ExecHeader, index: u32) -> f64 {
        let request = header.attempt.request.0;
        let mixed = mix(self.config.seed ^ request as u64 ^ mix((request >> 64) as u64) ^ mix(u64::from(index)));
        let both_ways = (mixed >> 11) as f64 / (1_u64 << 52) as f64 - 1.0;
        (1.0 + self.config.jitter * both_ways) / self.profile.decode.get()
    }
}

/// A clock that runs the slower the more requests share it: by its time each of them has the engine to itself.
#[derive(Debug)]
struct Meter {
    state: Mutex<MeterState>,
    changed: Notify,
}

#[derive(Debug)]
struct MeterState {
    seconds: f64,
    at: Instant,
    sharers: u32,
}

/// Takes part in a meter until dropped.
#[derive(Debug)]
struct Share<'a>(&'a Meter);

impl Meter {
    fn new() -> Self {
        Self { state: Mutex::new(MeterState { seconds: 0.0, at: Instant::now(), sharers: 0 }), changed: Notify::new() }
    }

    /// The state as of now.
    fn read(&self) -> MutexGuard<'_, MeterState> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        state.seconds += now.duration_since(state.at).as_secs_f64() / f64::from(state.sharers.max(1));
        state.at = now;
        state
    }

    fn enter(&self) -> Share<'_> {
        self.read().sharers += 1;
        self.changed.notify_waiters();
        Share(self)
    }
}

impl Share<'_> {
    fn now(&self) -> f64 {
        self.0.read().seconds
    }

    /// Waits until the meter shows `due`.
    async fn reach(&self, due: f64) {
        loop {
            let changed = self.0.changed.notified();
            let left = {
                let state = self.0.read();
                (due - state.seconds) * f64::from(state.sharers.max(1))
            };
            if left <= 0.0 {
                return;
            }
            tokio::select! {
                () = tokio::time::sleep(Duration::try_from_secs_f64(left).unwrap_or(Duration::MAX)) => {}
                () = changed => {}
            }
        }
    }
}

impl Drop for Share<'_> {
    fn drop(&mut self) {
        let mut state = self.0.read();
        state.sharers = state.sharers.saturating_sub(1);
        drop(state);
        self.0.changed.notify_waiters();
    }
}

/// Word number `index` of every answer.
fn filler(index: u32) -> String {
    const WORDS: [&str; 16] = [
        "water", "stone", "harbour", "wind", "and", "tide", "lamp", "gate", "north", "the", "sail", "rope", "of", "shore", "low",
        "bell",
    ];
    let word = WORDS.get((mix(u64::from(index)) % WORDS.len() as u64) as usize).copied().unwrap_or("tide");
    if index == 0 { word.to_owned() } else { format!(" {word}") }
}

fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}
