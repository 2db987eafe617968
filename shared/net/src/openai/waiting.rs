//! Waiting for a whole answer, as long as its client is there.

use super::Answer;
use super::gather::Gather;
use super::progress::Progress;
use super::refusal::of_failure;
use super::vectors::Vectors;
use super::wire::Peer;
use axum::body::Body;
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderValue, Response};
use axum::response::IntoResponse;
use shared::plan::{Failure, Finish, Usage};
use shared::work::PromptKind;
use std::collections::BTreeMap;
use std::future::Future;
use std::time::Instant;
use tokio::sync::mpsc;

/// Does something for as long as the client is there; nothing when it went away.
pub(super) async fn while_there<T>(peer: Option<&Peer>, work: impl Future<Output = T>) -> Option<T> {
    let Some(peer) = peer else { return Some(work.await) };
    tokio::select! {
        biased;
        done = work => Some(done),
        () = peer.gone() => None,
    }
}

/// The answer that nobody reads: its client is gone. For the counters.
pub(super) fn nobody() -> Response<Body> {
    of_failure(&Failure::ClientGone, &BTreeMap::new()).into_response()
}

pub(super) fn json_bytes(bytes: Vec<u8>) -> Response<Body> {
    let mut response = Response::new(Body::from(bytes));
    response.headers_mut().insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    response
}

/// What an answer is put together as.
pub(super) enum Gathered {
    Text(Gather),
    Vectors(Vectors),
}

pub(super) async fn gathered(
    kind: PromptKind,
    progress: &mut Progress,
    answers: &mut mpsc::Receiver<Answer>,
) -> Result<(Gathered, Finish, Usage), Failure> {
    let mut gathered = match kind {
        PromptKind::Embedding => Gathered::Vectors(Vectors::default()),
        PromptKind::Chat | PromptKind::Completion => Gathered::Text(Gather::new(kind)),
    };
    loop {
        match answers.recv().await {
            Some(Answer::Decided(decision)) => progress.decided(decision),
            Some(Answer::Tokens(batch)) => {
                progress.tokens(batch.count, Instant::now());
                match &mut gathered {
                    Gathered::Text(gather) => gather.add(batch)?,
                    Gathered::Vectors(vectors) => vectors.add(batch)?,
                }
            }
            Some(Answer::Finish(finish, usage)) => return Ok((gathered, finish, usage)),
            Some(Answer::Fail(failure)) => return Err(failure),
            None => return Err(Failure::Broken(progress.server())),
        }
    }
}
