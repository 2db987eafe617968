//! The engine around the computing thread: takes jobs, counts slots, turns text into tokens beside the computation.

use super::LlamaCppConfig;
use super::compute::{Passes, context, footprint, load};
use super::seat::{Claim, Seat};
use super::worker::{Worker, measure};
use crate::exec::config::check_slots;
use crate::exec::extras::refuse_extras;
use crate::exec::hold::Hold;
use crate::exec::llm::config::ModelError;
use crate::exec::llm::gguf::Gguf;
use crate::exec::llm::template::Texts;
use crate::exec::llm::thread_name;
use crate::exec::rates::Learner;
use crate::exec::{Engine, ExecEvent, Hung, Job, PROGRESS_EVERY, StartError, WholeJob, check_ready};
use futures_util::future::BoxFuture;
use shared::fleet::{Load, ReplicaReport, ReplicaState};
use shared::ids::VariantId;
use shared::plan::{Failure, Reason};
use shared::units::Bytes;
use shared::wire::Body;
use shared::work::EngineKind;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};
use tokio_util::task::TaskTracker;

/// A model that llama.cpp computes, as an engine.
#[derive(Debug)]
pub struct LlamaCpp {
    config: LlamaCppConfig,
    open: Arc<AtomicU32>,
    /// Absent once the engine shuts down.
    seats: Mutex<Option<SyncSender<Seat>>>,
    texts: Arc<OnceLock<Arc<Texts>>>,
    readers: TaskTracker,
    runtime: tokio::runtime::Handle,
    stop: Arc<AtomicBool>,
    ended: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
    report: watch::Sender<ReplicaReport>,
}

impl LlamaCpp {
    /// Starts loading, and returns at once. Needs a tokio runtime.
    ///
    /// # Errors
    /// [`StartError`] for slots that cannot be, or when no thread can be had. What is wrong with the file shows later, as
    /// [`ReplicaState::Failed`].
    pub fn start(config: LlamaCppConfig) -> Result<Self, StartError> {
        check_slots(&config.variant, config.slots)?;
        let report = watch::Sender::new(ReplicaReport {
            variant: config.variant.clone(),
            engine: EngineKind::LlamaCpp,
            device: "cpu".to_owned(),
            state: ReplicaState::Loading,
            load: Load { slots: config.slots, ..Load::default() },
            memory: Bytes(0),
            context: context(&config),
            weights_sha256: None,
            layers: None,
            capabilities: Vec::new(),
            profile: None,
        });
        // As many places as slots: whoever holds a slot always finds one.
        let (sender, arrivals) = sync_channel(config.slots as usize);
        let (stop, ended, texts) = (Arc::new(AtomicBool::new(false)), CancellationToken::new(), Arc::default());
        let thread = Thread {
            config: config.clone(),
            stop: Arc::clone(&stop),
            report: report.clone(),
            texts: Arc::clone(&texts),
            _ended: ended.clone().drop_guard(),
        };
        let handle = std::thread::Builder::new()
            .name(thread_name("llama", &config.variant))
            .spawn(move || thread.run(&arrivals))
            .map_err(|source| StartError::Thread { variant: config.variant.clone(), source })?;
        Ok(Self {
            config,
            open: Arc::default(),
            seats: Mutex::new(Some(sender)),
            texts,
            readers: TaskTracker::new(),
            runtime: tokio::runtime::Handle::current(),
            stop,
            ended,
            thread: Mutex::new(Some(handle)),
            report,
        })
    }

    fn begin_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.seats.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Engine for LlamaCpp {
    fn variant(&self) -> &VariantId {
        &self.config.variant
    }

    fn watch(&self) -> watch::Receiver<ReplicaReport> {
        self.report.subscribe()
    }

    fn submit(&self, job: Job) -> Result<(), Reason> {
        let job = job.into_whole()?;
        check_ready(&self.report.borrow().state)?;
        let texts = Arc::clone(self.texts.get().ok_or(Reason::Loading)?);
        let seats = self.seats.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or(Reason::Draining)?;
        let hold = Hold::take(&self.open, self.config.slots).ok_or(Reason::Busy)?;
        let reception = Reception { texts, context: self.config.context.0, stop: Arc::clone(&self.stop) };
        // Megabytes of text take a while to become tokens: on a thread for such work, at most one a slot.
        self.readers.spawn_blocking_on(move || reception.seat(job, hold, &seats), &self.runtime);
        Ok(())
    }

    fn shutdown(&self, within: Duration) -> BoxFuture<'_, Result<(), Hung>> {
        Box::pin(async move {
            self.report.send_modify(|report| report.state = ReplicaState::Draining);
            self.begin_stop();
            self.readers.close();
            let hung = |_| Hung { variant: self.config.variant.clone(), within };
            let all = async {
                self.readers.wait().await;
                self.ended.cancelled().await;
            };
            tokio::time::timeout(within, all).await.map_err(hung)?;
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            // It has said its last word, so this does not wait; a panic in it was caught and reported.
            thread.map(JoinHandle::join);
            Ok(())
        })
    }
}

impl Drop for LlamaCpp {
    fn drop(&mut self) {
        self.begin_stop();
    }
}

/// What the computing thread is born with.
struct Thread {
    config: LlamaCppConfig,
    stop: Arc<AtomicBool>,
    report: watch::Sender<ReplicaReport>,
    texts: Arc<OnceLock<Arc<Texts>>>,
    _ended: DropGuard,
}

impl Thread {
    fn run(self, arrivals: &Receiver<Seat>) {
        let variant = &self.config.variant;
        let failed = match catch_unwind(AssertUnwindSafe(|| self.live(arrivals))) {
            Ok(Ok(())) => "stopped".to_owned(),
            Ok(Err(error)) => error.to_string(),
            Err(_) => "the computing thread panicked".to_owned(),
        };
        if self.stop.load(Ordering::Acquire) {
            tracing::info!(%variant, why = failed, "model unloaded");
        } else {
            tracing::error!(%variant, why = failed, "the model does not serve");
        }
        self.report.send_modify(|report| report.state = ReplicaState::Failed(failed));
    }

    fn live(&self, arrivals: &Receiver<Seat>) -> Result<(), ModelError> {
        let began = Instant::now();
        let go_on = || !self.stop.load(Ordering::Acquire);
        // Our own reader goes first: it checks the hash, and what is damaged never reaches a parser in C++.
        let gguf = Gguf::open(&self.config.file()?, &go_on)?;
        let texts = Arc::new(Texts::from_gguf(&gguf)?);
        let weights = gguf.sha256().to_owned();
        drop(gguf);
        let model = load(&self.config)?;
        let memory = footprint(&model, &self.config)?;
        let mut passes = Passes::new(&model, &self.config)?;
        let profile = measure(&mut passes, self.config.context.0 as usize, &go_on)?;
        tracing::info!(
            variant = %self.config.variant, memory = memory.0, context = self.config.context.0, load_ms = began.elapsed().as_millis(),
            prompt_per_s = profile.prompt.get(), decode_per_s = profile.decode.get(), "model ready"
        );
        let _ = self.texts.set(Arc::clone(&texts));
        self.report.send_modify(|report| {
            report.state = ReplicaState::Ready;
            report.memory = memory;
            report.weights_sha256 = Some(weights);
            report.profile = Some(profile.clone());
        });
        let mut worker = Worker {
            passes,
            texts,
            config: self.config.clone(),
            stop: Arc::clone(&self.stop),
            report: self.report.clone(),
            learner: Learner::from_profile(&profile),
            seats: (0..self.config.slots).map(|_| None).collect(),
        };
        worker.run(arrivals);
        Ok(())
    }
}

/// Turns a request's text into tokens.
struct Reception {
    texts: Arc<Texts>,
    context: u32,
    stop: Arc<AtomicBool>,
}

impl Reception {
    fn seat(&self, job: WholeJob, hold: Hold, seats: &SyncSender<Seat>) {
        let (mut claim, body, output_max) = Claim::new(job, hold);
        let ids = match self.encode(&body, &mut claim) {
            Ok(Some(ids)) => ids,
            Ok(None) => return claim.end(None),
            Err(failure) => return claim.end(Some(ExecEvent::Failed(failure))),
        };
        match Seat::new(claim, ids, &body, output_max, self.context, &self.texts.tokenizer) {
            // There is a place for each slot; a failed send means that the computing thread is gone, and drops the seat, which says so
            // to its reader.
            Ok(seat) => drop(seats.try_send(seat)),
            Err((claim, failure)) => claim.end(Some(ExecEvent::Failed(failure))),
        }
    }

    /// The prompt's tokens; nothing when nobody wants them any more.
    fn encode(&self, body: &Body, claim: &mut Claim) -> Result<Option<Vec<u32>>, Failure> {
        refuse_extras(body, &[])?;
        let mut go_on = || {
            let now = Instant::now();
            claim.tell(now, PROGRESS_EVERY / 2);
            !self.stop.load(Ordering::Acquire) && !claim.cancel.is_cancelled() && !claim.overdue(now)
        };
        match self.texts.encode(&body.prompt, &mut go_on)? {
            Some(ids) => Ok(Some(ids)),
            None if claim.cancel.is_cancelled() => Ok(None),
            None if claim.overdue(Instant::now()) => Err(Failure::DeadlineExceeded),
            None => Err(Failure::Refused(Reason::Draining)),
        }
    }
}
