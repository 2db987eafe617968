//! Asking an engine, as the request core would.

use edge_node::exec::{Engine, ExecEvent, Job};
use shared::fleet::{ReplicaReport, ReplicaState};
use shared::ids::{AttemptId, NodeId, RequestId, ServiceId};
use shared::plan::{Failure, Finish, Reason, Usage};
use shared::units::{Bytes, Tokens};
use shared::wire::Body;
use shared::wire::body::{Message, Prompt, Sampling};
use shared::work::{ExecHeader, Features, Precision, Priority, PromptKind, ResidencyBound};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

/// Far longer than anything takes: a test that waits so long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(120);

/// A whole answer, or what came of it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Answer {
    pub(crate) ids: Vec<u32>,
    pub(crate) text: String,
    pub(crate) batches: Vec<(u32, String)>,
    pub(crate) deltas: Vec<String>,
    pub(crate) progress: u32,
    pub(crate) end: Option<(Finish, Usage)>,
    pub(crate) failure: Option<Failure>,
}

impl Answer {
    /// How it ended and what was counted, but for what had been computed before.
    pub(crate) fn ended(&self) -> Option<(Finish, Tokens, Tokens)> {
        self.end.map(|(finish, usage)| (finish, usage.prompt, usage.output))
    }
}

/// A question on its way.
pub(crate) struct Asked {
    pub(crate) cancel: CancellationToken,
    pub(crate) events: mpsc::Receiver<ExecEvent>,
}

pub(crate) fn greedy(max_tokens: u32) -> Sampling {
    Sampling { max_tokens, temperature: 0.0, ..Sampling::default() }
}

pub(crate) fn plain(text: &str, sampling: Sampling) -> Body {
    Body { prompt: Prompt::Plain(text.to_owned()), sampling, passthrough: None, resume: Vec::new() }
}

pub(crate) fn inputs(texts: Vec<String>) -> Body {
    Body { prompt: Prompt::Inputs(texts), sampling: greedy(1), passthrough: None, resume: Vec::new() }
}

pub(crate) fn chat(text: &str, sampling: Sampling) -> Body {
    let message = Message { role: "user".to_owned(), content: text.to_owned() };
    Body { prompt: Prompt::Chat(vec![message]), sampling, passthrough: None, resume: Vec::new() }
}

pub(crate) fn header(engine: &dyn Engine, body: &Body) -> ExecHeader {
    let (kind, bytes) = match &body.prompt {
        Prompt::Chat(messages) => (PromptKind::Chat, messages.iter().map(|message| message.content.len()).sum::<usize>()),
        Prompt::Plain(text) => (PromptKind::Completion, text.len()),
        Prompt::Inputs(texts) => (PromptKind::Embedding, texts.iter().map(String::len).sum()),
    };
    ExecHeader {
        attempt: AttemptId::new(RequestId(1), 0),
        ingress: NodeId::new("site/a").expect("good"),
        target: NodeId::new("site/a").expect("good"),
        service: ServiceId::new("assistant").expect("good"),
        variant: engine.variant().clone(),
        kind,
        prompt: Tokens((bytes / 4).max(1) as u32),
        output_max: Tokens(body.sampling.max_tokens),
        output_likely: None,
        features: Features::default(),
        body: Bytes(bytes as u64),
        residency: ResidencyBound::Anywhere,
        priority: Priority::default(),
        remaining: None,
        resume_from: Tokens(body.resume.len() as u32),
        stages: Vec::new(),
        precision: Precision::default(),
        parent_span: 0,
    }
}

/// Submits with a sink of so many events.
pub(crate) fn ask_with(engine: &dyn Engine, header: ExecHeader, body: Body, events: usize) -> Result<Asked, Reason> {
    let (sink, receiver) = mpsc::channel(events);
    let cancel = CancellationToken::new();
    engine.submit(Job::whole(header, body, cancel.clone(), sink))?;
    Ok(Asked { cancel, events: receiver })
}

pub(crate) fn ask(engine: &dyn Engine, body: Body) -> Asked {
    ask_with(engine, header(engine, &body), body, 64).expect("a free slot")
}

pub(crate) async fn answer(engine: &dyn Engine, body: Body) -> Answer {
    ask(engine, body).all().await
}

impl Asked {
    /// The next event; nothing when the sink is closed.
    pub(crate) async fn next(&mut self) -> Option<ExecEvent> {
        tokio::time::timeout(PATIENCE, self.events.recv()).await.expect("an event in time")
    }

    /// The next event that is no mere sign of life.
    pub(crate) async fn next_real(&mut self) -> Option<ExecEvent> {
        loop {
            match self.next().await {
                Some(ExecEvent::Progress) => {}
                other => return other,
            }
        }
    }

    /// Throws away what has come, then waits for so many token batches: they were made after now.
    pub(crate) async fn fresh(&mut self, batches: u32) {
        while self.events.try_recv().is_ok() {}
        for _ in 0..batches {
            assert!(matches!(self.next_real().await, Some(ExecEvent::Tokens(_))));
        }
    }

    /// Reads to the end.
    pub(crate) async fn all(mut self) -> Answer {
        let mut answer = Answer::default();
        while let Some(event) = self.next().await {
            assert!(answer.end.is_none() && answer.failure.is_none(), "{event:?} after the end");
            match event {
                ExecEvent::Progress => answer.progress += 1,
                ExecEvent::Tokens(batch) => {
                    answer.ids.extend(&batch.ids);
                    answer.text += &batch.text;
                    answer.deltas.extend(batch.delta);
                    answer.batches.push((batch.count, batch.text));
                }
                ExecEvent::Drawn(drawn) => answer.ids.push(drawn.0),
                ExecEvent::End(finish, usage) => answer.end = Some((finish, usage)),
                ExecEvent::Failed(failure) => answer.failure = Some(failure),
            }
        }
        answer
    }
}

/// Waits until the engine has left loading, and says what it became.
pub(crate) async fn settled(engine: &dyn Engine) -> ReplicaReport {
    until(engine, |report| report.state != ReplicaState::Loading).await
}

pub(crate) async fn until(engine: &dyn Engine, wanted: impl FnMut(&ReplicaReport) -> bool) -> ReplicaReport {
    let mut watch = engine.watch();
    let report = tokio::time::timeout(PATIENCE, watch.wait_for(wanted)).await;
    report.expect("the state in time").expect("an engine").clone()
}

pub(crate) async fn ready(engine: &dyn Engine) {
    let report = settled(engine).await;
    assert_eq!(report.state, ReplicaState::Ready);
}
