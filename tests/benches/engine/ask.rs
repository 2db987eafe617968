//! Our engines, asked as the agent asks them.

use super::worker::{Answered, CONTEXT, Kind, SLOTS, Subject, Task};
use edge_node::exec::{Engine, EngineConfig, ExecEvent, Job, start};
use serde_json::json;
use shared::fleet::ReplicaState;
use shared::ids::{AttemptId, NodeId, RequestId, ServiceId};
use shared::units::{Bytes, Tokens};
use shared::wire::Body;
use shared::wire::body::{Prompt, Sampling};
use shared::work::{ExecHeader, Features, Precision, Priority, PromptKind, ResidencyBound};
use std::error::Error;
use std::path::Path;
use std::sync::Arc;
use std::time::Instant;
use tokio::runtime::Runtime;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// An engine that is ready.
pub(crate) struct Asked {
    runtime: Runtime,
    engine: Arc<dyn Engine>,
}

impl Asked {
    pub(crate) fn start(kind: Kind, model: &Path, threads: usize) -> Result<Self, Box<dyn Error>> {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build()?;
        let mut config = json!({ "variant": "measured", "path": model, "context": CONTEXT, "slots": SLOTS, "threads": threads });
        config["engine"] = if kind == Kind::Candle { "llm" } else { "llama-cpp" }.into();
        let config: EngineConfig = serde_json::from_value(config)?;
        let engine = runtime.block_on(async { start(config, Path::new("unused")) })?;
        let report = runtime.block_on(async {
            engine.watch().wait_for(|report| report.state != ReplicaState::Loading).await.map(|report| report.clone())
        })?;
        match report.state {
            ReplicaState::Ready => Ok(Self { runtime, engine }),
            state => Err(format!("the engine is {state:?}").into()),
        }
    }

    fn job(&self, prompt: &str, tokens: u32) -> (Job, mpsc::Receiver<ExecEvent>) {
        let sampling = Sampling { max_tokens: tokens, temperature: 0.0, ..Sampling::default() };
        let name = |text: &str| NodeId::new(text).expect("a node's name");
        let header = ExecHeader {
            attempt: AttemptId::new(RequestId(1), 0),
            ingress: name("site/a"),
            target: name("site/a"),
            service: ServiceId::new("assistant").expect("a service's name"),
            variant: self.engine.variant().clone(),
            kind: PromptKind::Completion,
            prompt: Tokens(u32::try_from(prompt.len() / 4).unwrap_or(1)),
            output_max: Tokens(tokens),
            output_likely: None,
            features: Features::default(),
            body: Bytes(prompt.len() as u64),
            residency: ResidencyBound::Anywhere,
            priority: Priority::default(),
            remaining: None,
            resume_from: Tokens(0),
            stages: Vec::new(),
            precision: Precision::default(),
            parent_span: 0,
        };
        let body = Body { prompt: Prompt::Plain(prompt.to_owned()), sampling, passthrough: None, resume: Vec::new() };
        let (sink, events) = mpsc::channel(1_024);
        (Job::whole(header, body, CancellationToken::new(), sink), events)
    }
}

impl Subject for Asked {
    fn run(&mut self, task: &Task) -> Result<Vec<Answered>, Box<dyn Error>> {
        let mut waiting = Vec::new();
        for prompt in &task.prompts {
            let (job, events) = self.job(prompt, task.tokens);
            let _entered = self.runtime.enter();
            self.engine.submit(job).map_err(|reason| format!("refused: {reason:?}"))?;
            waiting.push(self.runtime.spawn(read(events)));
        }
        let read = waiting.into_iter().map(|reader| Ok(self.runtime.block_on(reader)??));
        read.collect()
    }
}

/// Reads an answer and notes when its tokens came.
async fn read(mut events: mpsc::Receiver<ExecEvent>) -> Result<Answered, String> {
    let mut came = Vec::new();
    while let Some(event) = events.recv().await {
        match event {
            ExecEvent::Tokens(batch) => came.extend((0..batch.count).map(|_| Instant::now())),
            ExecEvent::End(_, usage) => {
                return Ok(Answered { prompt_tokens: usage.prompt.0.saturating_sub(usage.cached.0), came });
            }
            ExecEvent::Failed(failure) => return Err(format!("failed: {failure:?}")),
            _ => {}
        }
    }
    Err("the engine died".to_owned())
}
