//! A request through several engines, each with some of the layers, joined by channels as nodes are by streams.

use crate::desk::{Asked, header};
use edge_node::exec::llm::Llm;
use edge_node::exec::{Downstream, Engine, ExecEvent, Input, Job};
use shared::fleet::Hop;
use shared::ids::NodeId;
use shared::plan::{Failure, Finish, Stage, Usage};
use shared::wire::frame::{Drawn, Hidden};
use shared::wire::{Body, StageBody};
use shared::work::{ExecHeader, LayerRange, Precision};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// Hidden states on their way between two stages: few, so that waiting for room is part of each test.
const HIDDEN_FRAMES: usize = 2;

/// How a later stage ended.
pub(crate) type Ended = Result<(Finish, Usage), Failure>;

/// A request on its way, and its later stages.
pub(crate) struct Chain {
    pub(crate) asked: Asked,
    pub(crate) later: Vec<JoinHandle<Option<Ended>>>,
    /// Cancels each later stage.
    pub(crate) cancels: Vec<CancellationToken>,
}

/// The stages between these cuts, the last of which is the number of layers.
pub(crate) fn stages(cuts: &[u16]) -> Vec<Stage> {
    let of = *cuts.last().expect("cuts");
    let node = NodeId::new("site/a").expect("good");
    let layers = cuts.windows(2).map(|cut| LayerRange { from: cut[0], to: cut[1], of });
    layers.map(|layers| Stage { node: node.clone(), hop: Hop::Direct, layers }).collect()
}

/// Asks through the engines, one for each stage.
pub(crate) fn ask_chain(engines: &[Arc<Llm>], cuts: &[u16], body: Body, precision: Precision) -> Chain {
    let first = ExecHeader { stages: stages(cuts), precision, ..header(&*engines[0], &body) };
    let headers: Vec<ExecHeader> = std::iter::successors(Some(first), ExecHeader::next_stage).collect();
    assert_eq!(headers.len(), engines.len());
    let (mut next, mut later, mut cancels) = (None, Vec::new(), Vec::new());
    for (engine, header) in engines.iter().zip(&headers).skip(1).rev() {
        let (body, wanted) = oneshot::channel();
        let (hidden, inbox) = mpsc::channel(HIDDEN_FRAMES);
        let (outbox, drawn) = mpsc::channel(1);
        let beyond = next.replace(Downstream { body, hidden, drawn });
        let cancel = CancellationToken::new();
        cancels.push(cancel.clone());
        later.push(tokio::spawn(serve(Arc::clone(engine), header.clone(), cancel, wanted, inbox, beyond, outbox)));
    }
    later.reverse();
    cancels.reverse();
    let (sink, events) = mpsc::channel(64);
    let cancel = CancellationToken::new();
    let job = Job { header: headers[0].clone(), input: Input::Body(Arc::new(body)), cancel: cancel.clone(), sink, next };
    engines[0].submit(job).expect("a slot");
    Chain { asked: Asked { cancel, events }, later, cancels }
}

/// What a node does for a later stage: hands it to its engine once its body has come, and passes back what the engine says.
async fn serve(
    engine: Arc<Llm>,
    header: ExecHeader,
    cancel: CancellationToken,
    body: oneshot::Receiver<StageBody>,
    inbox: mpsc::Receiver<Hidden>,
    next: Option<Downstream>,
    drawn: mpsc::Sender<Result<Drawn, Failure>>,
) -> Option<Ended> {
    let body = body.await.ok()?;
    assert!(body.sampling.stop.is_empty(), "texts to stop at are the first stage's affair");
    let (sink, mut events) = mpsc::channel(2);
    let input = Input::Stage(Box::new(body), inbox);
    if let Err(reason) = engine.submit(Job { header, input, cancel, sink, next }) {
        let failure = Failure::Refused(reason);
        let _ = drawn.send(Err(failure.clone())).await;
        return Some(Err(failure));
    }
    let mut ended = None;
    while let Some(event) = events.recv().await {
        assert!(ended.is_none(), "{event:?} after the end");
        match event {
            ExecEvent::Progress => {}
            ExecEvent::Drawn(id) => _ = drawn.send(Ok(id)).await,
            ExecEvent::End(finish, usage) => ended = Some(Ok((finish, usage))),
            ExecEvent::Failed(failure) => {
                let _ = drawn.send(Err(failure.clone())).await;
                ended = Some(Err(failure));
            }
            ExecEvent::Tokens(_) => panic!("a later stage knows no text"),
        }
    }
    ended
}
