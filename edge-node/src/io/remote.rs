//! An attempt at another node: header, acceptance, body, answer, on one stream. Dropping the stream cancels at the other end.

use super::driver::{Handle, Message};
use shared::fleet::FleetDelta;
use shared::plan::Failure;
use shared::request::{AttemptEvent, Event};
use shared::units::Tokens;
use shared::wire::body::BadBody;
use shared::wire::frame::{CHUNK_BYTES_MAX, Chunk, End, TokenBatch};
use shared::wire::{Body, Frame};
use shared::work::ExecHeader;
use shared_net::link::{FrameWriter, Link, StreamError};
use shared_net::openai::Answer;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, mpsc};
use tokio_util::sync::CancellationToken;

/// While the client does not read, the core hears this often that the attempt lives: it is held back, not dead.
pub(super) const HELD_BACK_EVERY: Duration = Duration::from_secs(1);

/// One attempt at another node.
pub(super) struct Talk {
    pub(super) handle: Handle,
    pub(super) link: Link,
    pub(super) header: ExecHeader,
    pub(super) body: Arc<Body>,
    /// Told when the core wants the body sent.
    pub(super) body_wanted: Arc<Notify>,
    pub(super) answers: mpsc::Sender<Answer>,
}

/// The client is gone, or the agent has stopped: nobody wants to hear more.
pub(super) struct Unwanted;

/// Carries out the attempt until it ends or is cancelled. A cancelled one says nothing more: the core has given it up.
pub(super) async fn run(talk: Talk, cancel: CancellationToken) {
    let ended = tokio::select! {
        biased;
        () = cancel.cancelled() => return,
        ended = talk.converse() => ended,
    };
    if let Ok(event) = ended {
        tracing::debug!(?event, "ended");
        // Fails only when the agent has stopped.
        drop(talk.tell(event).await);
    }
}

impl Talk {
    async fn tell(&self, event: AttemptEvent) -> Result<(), Unwanted> {
        self.handle.tell_core(Event::Remote(self.header.attempt, event)).await.map_err(|_| Unwanted)
    }

    fn broken(&self) -> AttemptEvent {
        AttemptEvent::Failed(Failure::Broken(self.header.target.to_string()))
    }

    async fn converse(&self) -> Result<AttemptEvent, Unwanted> {
        let Ok(mut stream) = self.link.open().await else { return Ok(self.broken()) };
        if stream.writer.write(&Frame::Header(Box::new(self.header.clone()))).await.is_err() {
            return Ok(self.broken());
        }
        loop {
            match stream.reader.read().await {
                Ok(Some(Frame::Accepted(load))) => {
                    self.tell(AttemptEvent::Accepted(load)).await?;
                    self.body_wanted.notified().await;
                    // A write that fails shows in the next read, with a reason if the other end gave one.
                    if send_body(&mut stream.writer, self.body.encode()).await.is_ok() {
                        drop(stream.writer.finish().await);
                    }
                }
                Ok(Some(Frame::Refused(reason, load))) => return Ok(AttemptEvent::Refused(reason, load)),
                Ok(Some(Frame::Progress)) => self.tell(AttemptEvent::Progress).await?,
                Ok(Some(Frame::Tokens(batch))) => self.deliver(batch).await?,
                Ok(Some(Frame::End(end))) => return Ok(self.end(end).await),
                Ok(Some(Frame::Failed(failure))) => return Ok(AttemptEvent::Failed(failure)),
                Ok(Some(_) | None) | Err(_) => return Ok(self.broken()),
            }
        }
    }

    async fn deliver(&self, batch: TokenBatch) -> Result<(), Unwanted> {
        let attempt = self.header.attempt;
        deliver(&self.handle, &self.answers, |news| Event::Remote(attempt, news), batch).await
    }

    async fn end(&self, end: End) -> AttemptEvent {
        if let Some(load) = end.load {
            let (node, variant) = (self.header.target.clone(), self.header.variant.clone());
            // Fails only when the agent has stopped.
            drop(self.handle.tell_core(Event::Fleet(FleetDelta::Load { node, variant, load })).await);
        }
        AttemptEvent::Ended(end.finish, end.usage)
    }
}

/// Hands a batch to the driver once the client's channel has room for it.
pub(super) async fn deliver(
    handle: &Handle,
    answers: &mpsc::Sender<Answer>,
    news: impl Fn(AttemptEvent) -> Event,
    batch: TokenBatch,
) -> Result<(), Unwanted> {
    let mut reserve = std::pin::pin!(answers.clone().reserve_owned());
    let room = loop {
        match tokio::time::timeout(HELD_BACK_EVERY, reserve.as_mut()).await {
            Ok(room) => break room.map_err(|_| Unwanted)?,
            Err(_) => handle.tell_core(news(AttemptEvent::Progress)).await.map_err(|_| Unwanted)?,
        }
    };
    let event = news(AttemptEvent::Content(Tokens(batch.count)));
    handle.send(Message::Content { event, batch, room }).await.map_err(|_| Unwanted)
}

/// Sends a body in chunks. The stream stays open.
pub(super) async fn send_body(writer: &mut FrameWriter, body: Result<Vec<u8>, BadBody>) -> Result<(), StreamError> {
    // The front refuses larger ones; without its body the stream is a failed attempt.
    let bytes = body.map_err(|_| StreamError::Closed)?;
    let chunks = bytes.chunks(CHUNK_BYTES_MAX);
    let last = chunks.len().saturating_sub(1);
    for (number, bytes) in chunks.enumerate() {
        writer.write(&Frame::Body(Chunk { bytes: bytes.to_vec(), last: number == last })).await?;
    }
    Ok(())
}
