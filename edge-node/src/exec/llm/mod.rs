//! The embedded engine: models of the llama and qwen families from GGUF files, or some of their layers, computed in this process.
//!
//! Three pieces in a row. [`Llm`] takes jobs and counts slots. A thread named after the variant turns text into tokens, so
//! that megabytes of it never stop the other requests. The computing thread loads the model, measures it, and then runs all
//! requests step by step. Nothing but these threads touches the model, and neither ever waits for a reader.

mod cache;
mod claim;
mod config;
mod family;
mod gguf;
mod hidden;
mod intake;
pub mod llamacpp;
mod load;
mod matrix;
mod merges;
mod model;
mod next;
mod pacer;
mod pieces;
mod prefix;
mod reception;
mod sampling;
mod seat;
mod sentence;
mod stop;
mod survey;
mod template;
mod threads;
mod tokenizer;
mod warm;
mod worker;

pub use cache::Cache;
pub use config::{BadSpan, CONTEXT_DEFAULT_MAX, CacheForm, LayerSpan, LlmConfig, ModelError, PrefixCache, WeightForm};
pub use family::Family;
pub use model::{Model, Shape, States};
pub use template::Texts;
pub use threads::{TooLate, set_threads};
pub use tokenizer::Tokenizer;

use super::hold::Hold;
use super::kept::{PaceKey, Shelf};
use super::{Engine, Hung, Input, Job, Reuse, StartError};
use futures_util::future::BoxFuture;
use gguf::Gguf;
use pacer::Pacer;
use prefix::{Counts, Prefixes};
use reception::Reception;
use shared::estimate::PaceLearner;
use shared::fleet::{Load, ReplicaReport, ReplicaState};
use shared::ids::VariantId;
use shared::plan::Reason;
use shared::units::{Bytes, Tokens};
use shared::work::{EngineKind, HeldLayers, LayerRange};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};
use tokio_util::sync::{CancellationToken, DropGuard};

/// Loads a model and its texts into memory, for whoever runs layers by himself.
///
/// # Errors
/// [`ModelError`] says what is wrong with the file, or that it would not fit.
pub fn load(config: &LlmConfig) -> Result<(Model, Texts), ModelError> {
    let mut gguf = Gguf::open(config, &|| true)?;
    let texts = Texts::from_gguf(&gguf)?;
    let (model, _) = load::load(&mut gguf, config, &|| true)?;
    Ok((model, texts))
}

/// Whether the model could be loaded, without loading it: file, hash, kind, texts, memory. Returns what it takes.
///
/// # Errors
/// [`ModelError`] says what is wrong with the file, or that it would not fit.
pub fn examine(config: &LlmConfig) -> Result<Bytes, ModelError> {
    let gguf = Gguf::open(config, &|| true)?;
    Texts::from_gguf(&gguf)?;
    load::measure(&gguf, config).map(|footprint| footprint.total())
}

/// An embedded model as an engine.
#[derive(Debug)]
pub struct Llm {
    variant: VariantId,
    slots: u32,
    open: Arc<AtomicU32>,
    /// Absent once the engine shuts down.
    jobs: Mutex<Option<SyncSender<(Job, Hold)>>>,
    stop: Arc<AtomicBool>,
    ended: CancellationToken,
    thread: Mutex<Option<JoinHandle<()>>>,
    report: watch::Sender<ReplicaReport>,
    reused: Arc<Counts>,
}

impl Llm {
    /// Starts loading, and returns at once. What is measured of its speed is forgotten with it.
    ///
    /// # Errors
    /// [`StartError`] for slots that cannot be, or when no thread can be had. What is wrong with the file shows later, as
    /// [`ReplicaState::Failed`].
    pub fn start(config: LlmConfig) -> Result<Self, StartError> {
        Self::start_in(config, None)
    }

    /// The same, with a state folder that keeps what is measured of its speed.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_in(config: LlmConfig, state: Option<PathBuf>) -> Result<Self, StartError> {
        super::config::check_slots(&config.variant, config.slots)?;
        let (variant, slots) = (config.variant.clone(), config.slots);
        let report = watch::Sender::new(ReplicaReport {
            variant: variant.clone(),
            engine: EngineKind::Llm,
            device: "cpu".to_owned(),
            state: ReplicaState::Loading,
            load: Load { slots, ..Load::default() },
            memory: Bytes(0),
            context: config.context.unwrap_or_default(),
            weights_sha256: None,
            layers: None,
            capabilities: Vec::new(),
            profile: None,
        });
        // As many places as slots: whoever holds a slot always finds one.
        let (sender, jobs) = sync_channel(slots as usize);
        let (stop, ended) = (Arc::new(AtomicBool::new(false)), CancellationToken::new());
        let reused = Arc::<Counts>::default();
        let (stopped, counts) = (Arc::clone(&stop), Arc::clone(&reused));
        let thread =
            Thread { config, state, stop: stopped, report: report.clone(), reused: counts, _ended: ended.clone().drop_guard() };
        let handle = std::thread::Builder::new()
            .name(thread_name("llm", &variant))
            .spawn(move || thread.run(jobs))
            .map_err(|source| StartError::Thread { variant: variant.clone(), source })?;
        let open = Arc::new(AtomicU32::new(0));
        Ok(Self {
            variant,
            slots,
            open,
            jobs: Mutex::new(Some(sender)),
            stop,
            ended,
            thread: Mutex::new(Some(handle)),
            report,
            reused,
        })
    }

    fn begin_stop(&self) {
        self.stop.store(true, Ordering::Release);
        self.jobs.lock().unwrap_or_else(PoisonError::into_inner).take();
    }
}

impl Engine for Llm {
    fn variant(&self) -> &VariantId {
        &self.variant
    }

    fn watch(&self) -> watch::Receiver<ReplicaReport> {
        self.report.subscribe()
    }

    fn submit(&self, job: Job) -> Result<(), Reason> {
        {
            let report = self.report.borrow();
            super::check_ready(&report.state)?;
            check_layers(&job, report.layers.map(|held| held.range))?;
        }
        let hold = Hold::take(&self.open, self.slots).ok_or(Reason::Busy)?;
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        let sender = jobs.as_ref().ok_or(Reason::Draining)?;
        sender.try_send((job, hold)).map_err(|_| Reason::Busy)
    }

    fn reuse(&self) -> Option<Reuse> {
        let count = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let Counts { hits, misses, tokens, evicted, blocks } = &*self.reused;
        Some(Reuse {
            hits: count(hits),
            misses: count(misses),
            tokens: count(tokens),
            evicted: count(evicted),
            blocks: count(blocks),
        })
    }

    fn shutdown(&self, within: Duration) -> BoxFuture<'_, Result<(), Hung>> {
        Box::pin(async move {
            self.report.send_modify(|report| report.state = ReplicaState::Draining);
            self.begin_stop();
            let hung = |_| Hung { variant: self.variant.clone(), within };
            tokio::time::timeout(within, self.ended.cancelled()).await.map_err(hung)?;
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take();
            // It has said its last word, so this does not wait; a panic in it was caught and reported.
            thread.map(JoinHandle::join);
            Ok(())
        })
    }
}

impl Drop for Llm {
    fn drop(&mut self) {
        self.begin_stop();
    }
}

/// Whether the job is one for these layers, and all of it is there.
fn check_layers(job: &Job, held: Option<LayerRange>) -> Result<(), Reason> {
    let held = held.ok_or(Reason::Loading)?;
    let wanted = match job.header.stage() {
        Some(stage) => stage.layers,
        None if job.header.stages.is_empty() => LayerRange::whole(held.of),
        None => return Err(Reason::Capability("layers".to_owned())),
    };
    if !wanted.valid() || !held.holds(wanted) {
        return Err(Reason::Part(held));
    }
    let fits = matches!(job.input, Input::Body(_)) == wanted.is_first() && job.next.is_none() == wanted.is_last();
    if fits { Ok(()) } else { Err(Reason::Capability("layers".to_owned())) }
}

fn thread_name(what: &str, variant: &VariantId) -> String {
    // The kernel shows fifteen bytes.
    format!("{what}-{variant}").chars().take(15).collect()
}

/// What the computing thread is born with.
struct Thread {
    config: LlmConfig,
    state: Option<PathBuf>,
    stop: Arc<AtomicBool>,
    report: watch::Sender<ReplicaReport>,
    reused: Arc<Counts>,
    _ended: DropGuard,
}

impl Thread {
    fn run(self, jobs: Receiver<(Job, Hold)>) {
        let variant = &self.config.variant;
        let outcome = catch_unwind(AssertUnwindSafe(|| self.live(jobs)));
        let failed = match outcome {
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

    fn live(&self, jobs: Receiver<(Job, Hold)>) -> Result<(), ModelError> {
        let variant = &self.config.variant;
        let began = Instant::now();
        let go_on = || !self.stop.load(Ordering::Acquire);
        let mut gguf = Gguf::open(&self.config, &go_on)?;
        let texts = Arc::new(Texts::from_gguf(&gguf)?);
        let (model, footprint) = load::load(&mut gguf, &self.config, &go_on)?;
        let weights = gguf.sha256().to_owned();
        drop(gguf);
        let (pacer, survey) = self.pace(&model, &weights, began.elapsed(), &go_on)?;
        let profile = pacer.profile();
        let rates = profile.as_ref().map(|profile| (profile.prompt.get(), profile.decode.get()));
        tracing::info!(
            %variant, memory = footprint.total().0, layers = %model.held(), context = model.shape().context,
            load_ms = began.elapsed().as_millis(), per_s = ?rates, measured_before = survey.is_none(), "model ready"
        );

        let (sender, arrivals) = mpsc::channel(self.config.slots as usize);
        let reception = Reception {
            texts: Arc::clone(&texts),
            config: self.config.clone(),
            shape: *model.shape(),
            layers: model.layers(),
            stop: Arc::clone(&self.stop),
        };
        let reader = std::thread::Builder::new()
            .name(thread_name("text", variant))
            .spawn(move || reception.run(&jobs, &sender))
            .map_err(|source| ModelError::Unreadable { path: self.config.path.clone(), source })?;
        self.report.send_modify(|report| {
            report.state = ReplicaState::Ready;
            report.memory = footprint.total();
            report.weights_sha256 = Some(weights);
            report.layers = Some(HeldLayers { range: model.held(), hidden: Bytes(4 * model.shape().hidden as u64) });
            report.context = tokens(model.shape().context);
            report.profile = profile;
        });
        let block = Cache::block_bytes(model.shape(), model.layers().len(), self.config.cache).max(1);
        let blocks_max = usize::try_from(footprint.prefixes.0 / block).unwrap_or(usize::MAX);
        let mut worker = worker::Worker {
            prefixes: Prefixes::new(blocks_max, Arc::clone(&self.reused)),
            model,
            texts,
            config: self.config.clone(),
            stop: Arc::clone(&self.stop),
            report: self.report.clone(),
            pacer,
            survey,
            seats: Vec::new(),
        };
        worker.run(arrivals);
        // Its inbox is closed or it sees the stop: it ends by itself.
        let _ = reader.join();
        Ok(())
    }

    /// The pace that was kept of an earlier life, or a first look, and a survey to follow.
    fn pace(
        &self,
        model: &Model,
        weights: &str,
        loading: Duration,
        go_on: &dyn Fn() -> bool,
    ) -> Result<(Pacer, Option<survey::Survey>), ModelError> {
        let LlmConfig { variant, weights: form, cache, slots, .. } = &self.config;
        let key = PaceKey {
            weights: weights.to_owned(),
            engine: format!("llm, weights {form:?}, cache {cache:?}, layers {}", model.held()),
            device: format!("cpu, {} threads", threads::computing()),
            program: format!("{} {:?}", env!("CARGO_PKG_VERSION"), edge_kernels::level()),
        };
        let shelf = Shelf::new(self.state.as_deref(), variant, key);
        if let Some(kept) = shelf.read() {
            warm::touch(model, *cache, go_on)?;
            return Ok((Pacer::new(kept, shelf, loading), None));
        }
        let learner = PaceLearner::begin(warm::measure(model, *cache, go_on)?);
        Ok((Pacer::new(learner, shelf, loading), Some(survey::Survey::new(*slots))))
    }
}

fn tokens(count: usize) -> Tokens {
    Tokens(u32::try_from(count).unwrap_or(u32::MAX))
}
