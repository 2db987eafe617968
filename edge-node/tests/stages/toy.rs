//! An engine whose "model" is arithmetic: what a split computes differs from the whole as soon as one row of hidden states is lost,
//! repeated, changed or out of order.

use edge_node::exec::{Downstream, Engine, ExecEvent, Hung, Input, Job};
use futures_util::future::BoxFuture;
use shared::fleet::{Load, ReplicaReport, ReplicaState};
use shared::ids::VariantId;
use shared::plan::{Failure, Finish, Reason, Usage};
use shared::units::{Bytes, Tokens};
use shared::wire::body::{Prompt, Sampling};
use shared::wire::frame::{Drawn, Hidden, TokenBatch};
use shared::wire::{Body, StageBody};
use shared::work::{EngineKind, HeldLayers, LayerRange};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Layers of the toy.
pub(crate) const LAYERS: u16 = 6;
/// Bytes of a row: as many as a small model's.
pub(crate) const ROW: usize = 2_304;
/// Rows that are computed and sent at once.
const CHUNK: usize = 16;

/// How it behaves.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Manner {
    /// As it should, each row taking so long.
    Serves(Duration),
    /// Takes everything, and says nothing but that it lives.
    Ponders,
    /// Takes nothing, and says nothing but that it lives.
    Deaf,
    /// Fails after so many rows.
    Fails(u32),
}

/// The engine.
#[derive(Debug)]
pub(crate) struct Toy {
    variant: VariantId,
    report: watch::Sender<ReplicaReport>,
    part: Arc<Part>,
}

#[derive(Debug)]
struct Part {
    range: LayerRange,
    manner: Manner,
    rows: Arc<AtomicU32>,
}

/// What a sequence left in each layer.
struct Cache(Vec<u64>);

fn mix(seed: u64) -> u64 {
    let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z ^ (z >> 27)
}

impl Cache {
    fn forward(&mut self, range: LayerRange, x: u64) -> u64 {
        let layers = (range.from..range.to).zip(&mut self.0);
        layers.fold(x, |x, (number, kept)| {
            *kept = mix(x ^ *kept ^ u64::from(number));
            *kept
        })
    }
}

fn cache(range: LayerRange) -> Cache {
    Cache(vec![0; usize::from(range.count())])
}

fn draw(x: u64, sampling: &Sampling) -> u32 {
    u32::try_from(mix(x ^ sampling.seed) % 50_000).expect("small")
}

/// What one node alone would answer.
pub(crate) fn whole(prompt: &str, sampling: &Sampling, tokens: u32) -> Vec<u32> {
    let (all, mut x) = (LayerRange::whole(LAYERS), 0);
    let mut cache = cache(all);
    for byte in prompt.bytes() {
        x = cache.forward(all, u64::from(byte));
    }
    let mut drawn = Vec::new();
    for _ in 0..tokens {
        let token = draw(x, sampling);
        drawn.push(token);
        x = cache.forward(all, u64::from(token));
    }
    drawn
}

impl Toy {
    /// Holds the layers `from..to`, with so many slots.
    pub(crate) fn new(from: u16, to: u16, slots: u32, manner: Manner) -> Arc<Self> {
        let range = LayerRange { from, to, of: LAYERS };
        let variant = VariantId::new("small").expect("good");
        let report = ReplicaReport {
            variant: variant.clone(),
            engine: EngineKind::Profiled,
            device: String::new(),
            state: ReplicaState::Ready,
            load: Load { slots, ..Load::default() },
            memory: Bytes(0),
            context: Tokens(20_000),
            weights_sha256: None,
            layers: Some(HeldLayers { range, hidden: Bytes(ROW as u64) }),
            capabilities: Vec::new(),
            profile: None,
        };
        Arc::new(Self {
            variant,
            report: watch::Sender::new(report),
            part: Arc::new(Part { range, manner, rows: Arc::default() }),
        })
    }

    /// What it holds.
    pub(crate) fn range(&self) -> LayerRange {
        self.part.range
    }

    /// Rows computed so far.
    pub(crate) fn rows(&self) -> u32 {
        self.part.rows.load(Ordering::Relaxed)
    }
}

impl Engine for Toy {
    fn variant(&self) -> &VariantId {
        &self.variant
    }

    fn watch(&self) -> watch::Receiver<ReplicaReport> {
        self.report.subscribe()
    }

    fn submit(&self, job: Job) -> Result<(), Reason> {
        let range = job.header.stage().map_or(LayerRange::whole(LAYERS), |stage| stage.layers);
        if !self.part.range.holds(range) {
            return Err(Reason::Part(self.part.range));
        }
        let part = Arc::clone(&self.part);
        tokio::spawn(async move {
            let (cancel, sink) = (job.cancel.clone(), job.sink.clone());
            tokio::select! {
                biased;
                () = cancel.cancelled() => {}
                last = part.run(job, range) => drop(sink.send(last).await),
            }
        });
        Ok(())
    }

    fn shutdown(&self, _: Duration) -> BoxFuture<'_, Result<(), Hung>> {
        Box::pin(std::future::ready(Ok(())))
    }
}

impl Part {
    async fn run(&self, job: Job, range: LayerRange) -> ExecEvent {
        let output_max = job.header.output_max.0;
        if self.manner == Manner::Deaf {
            return alive(&job.sink).await;
        }
        match (job.input, job.next) {
            (Input::Body(body), next) => self.first(range, &body, next, &job.sink, output_max).await,
            (Input::Stage(body, rows), next) => self.later(range, &body, rows, next, &job.sink).await,
        }
        .unwrap_or_else(ExecEvent::Failed)
    }

    async fn compute(&self, cache: &mut Cache, range: LayerRange, x: u64) -> Result<u64, Failure> {
        let so_far = self.rows.fetch_add(1, Ordering::Relaxed);
        match self.manner {
            Manner::Serves(pace) if !pace.is_zero() => tokio::time::sleep(pace).await,
            Manner::Fails(after) if so_far >= after => return Err(Failure::Engine("as planned".to_owned())),
            _ => {}
        }
        Ok(cache.forward(range, x))
    }

    async fn first(
        &self,
        range: LayerRange,
        body: &Body,
        next: Option<Downstream>,
        sink: &mpsc::Sender<ExecEvent>,
        output_max: u32,
    ) -> Result<ExecEvent, Failure> {
        let Prompt::Plain(text) = &body.prompt else { return Err(Failure::Engine("want plain text".to_owned())) };
        let (ids, mut cache, mut start, mut x) = (text.bytes().map(u64::from).collect::<Vec<_>>(), cache(range), 0, 0);
        let mut next = next.map(|next| {
            let stage = StageBody { sampling: body.sampling.clone(), prompt: Vec::new(), resume: Vec::new(), length_max: 20_000 };
            next.body.send(stage).expect("wanted");
            (next.hidden, next.drawn)
        });
        let (mut todo, mut chunk, mut produced) = (ids, Vec::new(), 0);
        loop {
            let count = todo.len();
            for (number, id) in todo.drain(..).enumerate() {
                x = self.compute(&mut cache, range, id).await?;
                chunk.push(x);
                let last = number + 1 == count;
                if let Some((hidden, _)) = next.as_ref().filter(|_| last || chunk.len() == CHUNK) {
                    // Gone, its last word comes as a drawn token.
                    drop(hidden.send(rows(&mut start, &mut chunk, last)).await);
                }
            }
            let token = match &mut next {
                Some((_, drawn)) => drawn.recv().await.ok_or_else(silent)??.0,
                None => draw(x, &body.sampling),
            };
            produced += 1;
            let batch = TokenBatch { count: 1, ids: vec![token], text: format!("{token} "), delta: None };
            drop(sink.send(ExecEvent::Tokens(batch)).await);
            if produced == output_max {
                let usage = Usage { prompt: Tokens(start), output: Tokens(produced), cached: Tokens(0) };
                return Ok(ExecEvent::End(Finish::Length, usage));
            }
            todo.push(u64::from(token));
        }
    }

    async fn later(
        &self,
        range: LayerRange,
        body: &StageBody,
        mut states: mpsc::Receiver<Hidden>,
        next: Option<Downstream>,
        sink: &mpsc::Sender<ExecEvent>,
    ) -> Result<ExecEvent, Failure> {
        let (mut cache, mut expected, mut start) = (cache(range), 0, 0);
        let mut next = next.map(|next| {
            next.body.send(body.clone()).expect("wanted");
            (next.hidden, next.drawn)
        });
        while let Some(came) = states.recv().await {
            assert_eq!((came.start, came.bytes.len()), (expected, usize::from(came.count) * ROW), "rows in order");
            expected += u32::from(came.count);
            let mut chunk = Vec::new();
            for row in came.bytes.chunks(ROW) {
                chunk.push(self.compute(&mut cache, range, u64::from_le_bytes(row[..8].try_into().expect("eight"))).await?);
            }
            if self.manner == Manner::Ponders {
                continue;
            }
            let last = *chunk.last().expect("a row");
            if let Some((hidden, _)) = &next {
                drop(hidden.send(rows(&mut start, &mut chunk, came.draw)).await);
            }
            if came.draw {
                let token = match &mut next {
                    Some((_, drawn)) => drawn.recv().await.ok_or_else(silent)??,
                    None => Drawn(draw(last, &body.sampling)),
                };
                drop(sink.send(ExecEvent::Drawn(token)).await);
            }
        }
        Ok(ExecEvent::End(Finish::Stop, Usage::default()))
    }
}

fn silent() -> Failure {
    Failure::Engine("no last word".to_owned())
}

async fn alive(sink: &mpsc::Sender<ExecEvent>) -> ExecEvent {
    loop {
        drop(sink.send(ExecEvent::Progress).await);
        tokio::time::sleep(Duration::from_millis(100)).await;
    }
}

/// Takes the chunk as hidden states.
fn rows(start: &mut u32, chunk: &mut Vec<u64>, draw: bool) -> Hidden {
    let mut bytes = vec![0; chunk.len() * ROW];
    for (row, x) in bytes.chunks_mut(ROW).zip(chunk.iter()) {
        row[..8].copy_from_slice(&x.to_le_bytes());
    }
    let hidden = Hidden { start: *start, count: u16::try_from(chunk.len()).expect("few"), draw, bytes };
    *start += u32::from(hidden.count);
    chunk.clear();
    hidden
}
