//! One attempt to have a request of the hub's own API executed by an agent: the stream to it, from header to end.

use super::input::{Inbox, Input};
use crate::logic::HubEvent;
use shared::ids::NodeId;
use shared::plan::Failure;
use shared::request::AttemptEvent;
use shared::units::Tokens;
use shared::wire::Frame;
use shared::wire::frame::{CHUNK_BYTES_MAX, Chunk, TokenBatch};
use shared::work::ExecHeader;
use shared_net::link::{Code, FrameReader, FrameWriter, Link, StreamError};
use shared_net::openai::Answer;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

/// Ids of the tokens that the client already has, for continuing elsewhere. As many as the request may generate.
#[derive(Clone, Debug, Default)]
pub(crate) struct Delivered(Arc<Mutex<Vec<u32>>>);

impl Delivered {
    fn add(&self, ids: &[u32]) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(ids);
    }

    pub(crate) fn ids(&self) -> Vec<u32> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Everything that an attempt needs.
#[derive(Debug)]
pub(crate) struct Attempt {
    pub(crate) link: Link,
    pub(crate) header: ExecHeader,
    /// To the client.
    pub(crate) answers: mpsc::Sender<Answer>,
    pub(crate) delivered: Delivered,
    /// The encoded body, once the driver sends it.
    pub(crate) body: oneshot::Receiver<Vec<u8>>,
    pub(crate) inbox: Inbox,
    pub(crate) cancel: CancellationToken,
}

impl Attempt {
    /// Who shall execute it.
    pub(crate) const fn target(&self) -> &NodeId {
        &self.header.target
    }

    /// Carries the attempt out. Cancelling it resets the stream, and then nothing more is told.
    pub(crate) async fn run(self) {
        let (attempt, inbox) = (self.header.attempt, self.inbox.clone());
        tracing::debug!("opening a stream to the executor");
        let ended = self.carry().await;
        tracing::debug!(how = ended.as_ref().map_or("cancelled", code), "the stream ended");
        if let Some(ended) = ended {
            // Fails only when the hub is stopping.
            drop(inbox.send(Input::Event(HubEvent::Remote(attempt, ended))).await);
        }
    }

    /// How it ended; nothing when it was cancelled.
    async fn carry(self) -> Option<AttemptEvent> {
        let target = self.header.target.to_string();
        let broken = || Some(AttemptEvent::Failed(Failure::Broken(target.clone())));
        let opened = tokio::select! {
            biased;
            () = self.cancel.cancelled() => return None,
            opened = self.link.open() => opened,
        };
        let Ok(stream) = opened else { return broken() };
        let Self { header, answers, delivered, body, inbox, cancel, .. } = self;
        let (mut reader, writer) = (stream.reader, stream.writer);
        let feeding = feed(writer, header.clone(), body);
        let listener = Listener { header, answers, delivered, inbox };
        tokio::select! {
            biased;
            () = cancel.cancelled() => {}
            ended = listener.listen(&mut reader) => return ended.or_else(broken),
            () = feeding => {}
        }
        // The sending side may have ended long ago; this is how the executor learns that nobody listens any more.
        reader.stop(Code::CANCELLED);
        None
    }
}

/// For the log, which must not show what engines say about a request.
const fn code(ended: &AttemptEvent) -> &'static str {
    match ended {
        AttemptEvent::Ended(..) => "answered",
        AttemptEvent::Refused(reason, _) => reason.code(),
        AttemptEvent::Failed(failure) => failure.code(),
        AttemptEvent::Accepted(_) | AttemptEvent::Progress | AttemptEvent::Content(_) => "running",
    }
}

/// Sends the header, and the body once it is there. Never ends: the reading side decides how the attempt ends.
async fn feed(mut writer: FrameWriter, header: ExecHeader, body: oneshot::Receiver<Vec<u8>>) {
    let sent = async {
        writer.write(&Frame::Header(Box::new(header))).await?;
        let Ok(body) = body.await else { return Ok(()) };
        let mut chunks = body.chunks(CHUNK_BYTES_MAX).peekable();
        while let Some(bytes) = chunks.next() {
            let chunk = Chunk { bytes: bytes.to_vec(), last: chunks.peek().is_none() };
            writer.write(&Frame::Body(chunk)).await?;
        }
        writer.finish().await
    };
    let sent: Result<(), StreamError> = sent.await;
    // An executor that stops reading says why on the other direction, or is gone and that is seen there.
    if let Err(error) = sent {
        tracing::debug!(%error, "a request was not taken whole");
    }
    std::future::pending().await
}

struct Listener {
    header: ExecHeader,
    answers: mpsc::Sender<Answer>,
    delivered: Delivered,
    inbox: Inbox,
}

impl Listener {
    /// Reads until the end of the attempt; nothing when the stream broke or made no sense.
    async fn listen(&self, reader: &mut FrameReader) -> Option<AttemptEvent> {
        let mut accepted = false;
        loop {
            match reader.read().await.ok()?? {
                Frame::Accepted(load) if !accepted => {
                    accepted = true;
                    self.tell(AttemptEvent::Accepted(load)).await?;
                }
                Frame::Refused(reason, load) if !accepted => return Some(AttemptEvent::Refused(reason, load)),
                Frame::Progress if accepted => self.tell(AttemptEvent::Progress).await?,
                Frame::Tokens(batch) if accepted => self.content(batch).await?,
                Frame::End(end) if accepted => return Some(AttemptEvent::Ended(end.finish, end.usage)),
                Frame::Failed(failure) => return Some(AttemptEvent::Failed(failure)),
                _ => return None,
            }
        }
    }

    async fn tell(&self, event: AttemptEvent) -> Option<()> {
        self.inbox.send(Input::Event(HubEvent::Remote(self.header.attempt, event))).await.ok()
    }

    /// Content reaches the client only when the core says so: a late batch of an attempt that was given up must not.
    async fn content(&self, batch: TokenBatch) -> Option<()> {
        let (verdict, decided) = oneshot::channel();
        self.inbox.send(Input::Content(self.header.attempt, Tokens(batch.count), verdict)).await.ok()?;
        if decided.await.ok()? {
            self.delivered.add(&batch.ids);
            // A client that is gone is noticed by its watcher.
            drop(self.answers.send(Answer::Tokens(batch)).await);
        }
        Some(())
    }
}
