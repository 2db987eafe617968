//! The way from one stage of a split request to the next: hidden states one way, drawn tokens the other, on one stream.
//!
//! A stage that refuses or fails ends the attempt; whether there is another is the ingress' matter, so nothing is tried twice here.
//! Dropping the way resets its stream, and with it the stages behind it. What is computed never shows here, and hidden states are
//! as secret as the text that they were computed from.

use super::links::Links;
use super::meters::Meters;
use super::remote::send_body;
use crate::exec::Downstream;
use futures_util::future::BoxFuture;
use shared::fleet::Hop;
use shared::ids::NodeId;
use shared::plan::{Failure, Reason};
use shared::request::limits::{ACCEPT_MAX, SILENCE_MAX};
use shared::units::Micros;
use shared::wire::frame::{Drawn, Hidden};
use shared::wire::{Frame, StageBody};
use shared::work::ExecHeader;
use shared_net::link::{FrameReader, FrameWriter, Link, Stream, StreamError};
use std::convert::Infallible;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Frames of hidden states between a stream and an engine. One is computed while the next is on its way; more would only move
/// waiting from the stream's window, where it is counted, to here.
pub(super) const HIDDEN_MAX: usize = 2;
/// Drawn tokens between a stream and an engine: a sequence waits for each before it asks for the next; the second place is for
/// a failure.
const DRAWN_MAX: usize = 2;
/// How long the next stage may take to end after this one has; then it is cut off. It has nothing left to compute.
const PARTING_MAX: Duration = Duration::from_secs(1);

/// What next stages are reached with.
#[derive(Clone)]
pub(super) struct Reach {
    pub(super) links: Arc<Links>,
    pub(super) meters: Arc<Meters>,
}

/// The stream to the next stage. Carries while [`Self::carry`] is polled.
pub(super) struct Onward {
    work: Option<BoxFuture<'static, ()>>,
    awaited: Awaited,
}

/// Draws that the next stage was asked for and has not answered; absent without a next stage.
#[derive(Clone, Debug, Default)]
pub(super) struct Awaited(Option<Arc<AtomicU32>>);

/// Opens the way to the stage after the one that `header` opens here, and has it accepted there. Where this stage is the last, or
/// the only one, there is nothing to open. `spent` is how long the header has been here.
///
/// # Errors
/// [`Failure::Stage`] when the next stage cannot be reached, or does not take the request.
pub(super) async fn open(reach: &Reach, header: &ExecHeader, spent: Duration) -> Result<(Option<Downstream>, Onward), Failure> {
    let Some(mut next) = header.next_stage() else {
        return Ok((None, Onward { work: None, awaited: Awaited::default() }));
    };
    let spent = Micros(u64::try_from(spent.as_micros()).unwrap_or(u64::MAX));
    next.remaining = next.remaining.map(|remaining| remaining - spent);
    let node = next.target.clone();
    match offer(&reach.links, next).await {
        Ok(stream) => {
            let (engine, way) = channels(node, stream, Arc::clone(&reach.meters));
            Ok((Some(engine), way))
        }
        Err(failure) => Err(Failure::Stage { node, failure: Box::new(failure) }),
    }
}

/// A connection to the next stage: the one that was planned, or what else there is. The text may not leave its residency on it.
fn way(links: &Links, next: &ExecHeader) -> Result<Link, Reason> {
    if !next.residency.permits(&next.target) {
        return Err(Reason::Residency);
    }
    let hops = match next.stage().map(|stage| stage.hop) {
        Some(Hop::Direct) => [Hop::Direct, Hop::Relay],
        Some(Hop::Relay) => [Hop::Relay, Hop::Direct],
        Some(Hop::Local) | None => return Err(Reason::NoPath),
    };
    let mut why = Reason::NoPath;
    for hop in hops {
        match links.towards(&next.target, hop) {
            Some(link) if hop == Hop::Relay && !link.peer().is_some_and(|hub| next.residency.permits_relay(hub)) => {
                why = Reason::Residency;
            }
            Some(link) => return Ok(link),
            None => {}
        }
    }
    Err(why)
}

async fn offer(links: &Links, next: ExecHeader) -> Result<Stream, Failure> {
    let link = way(links, &next).map_err(Failure::Refused)?;
    let broken = Failure::Broken(next.target.to_string());
    let answered = async {
        let Ok(mut stream) = link.open().await else { return Err(broken) };
        if stream.writer.write(&Frame::Header(Box::new(next))).await.is_err() {
            return Err(broken);
        }
        match stream.reader.read().await {
            Ok(Some(Frame::Accepted(_))) => Ok(stream),
            Ok(Some(Frame::Refused(reason, _))) => Err(Failure::Refused(reason)),
            _ => Err(broken),
        }
    };
    timeout(Duration::from_micros(ACCEPT_MAX.0), answered).await.unwrap_or(Err(Failure::Stalled(ACCEPT_MAX)))
}

fn channels(node: NodeId, stream: Stream, meters: Arc<Meters>) -> (Downstream, Onward) {
    let ((body, wanted), (hidden, states)) = (oneshot::channel(), mpsc::channel(HIDDEN_MAX));
    let (tokens, drawn) = mpsc::channel(DRAWN_MAX);
    let awaited = Awaited(Some(Arc::default()));
    let carrying = carry(node, stream, Down { body: wanted, hidden: states, awaited: awaited.clone(), meters }, tokens);
    (Downstream { body, hidden, drawn }, Onward { work: Some(Box::pin(carrying)), awaited })
}

impl Onward {
    /// Carries as long as it is polled; ends never.
    pub(super) async fn carry(&mut self) -> Infallible {
        if let Some(work) = &mut self.work {
            work.await;
            self.work = None;
        }
        pending().await
    }

    /// Nobody wants the answer: resets the stream, and with it the stages behind it.
    pub(super) fn cut(&mut self) {
        self.work = None;
    }

    /// This stage has ended: lets the next do so, too.
    pub(super) async fn part(self) {
        if let Some(work) = self.work
            && timeout(PARTING_MAX, work).await.is_err()
        {
            tracing::debug!("the next stage did not end in time and is cut off");
        }
    }

    /// What the next stage owes.
    pub(super) fn awaited(&self) -> Awaited {
        self.awaited.clone()
    }
}

impl Awaited {
    /// Whether there is a next stage at all.
    pub(super) const fn possible(&self) -> bool {
        self.0.is_some()
    }

    /// Whether the next stage owes a token, so that this one can only wait.
    pub(super) fn any(&self) -> bool {
        self.0.as_ref().is_some_and(|count| count.load(Ordering::Relaxed) > 0)
    }

    fn asked(&self) {
        if let Some(count) = &self.0 {
            count.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn answered(&self) {
        if let Some(count) = &self.0 {
            // A token that nobody asked for must not make it negative.
            let _ = count.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| count.checked_sub(1));
        }
    }
}

/// What goes down to the next stage.
struct Down {
    body: oneshot::Receiver<StageBody>,
    hidden: mpsc::Receiver<Hidden>,
    awaited: Awaited,
    meters: Arc<Meters>,
}

async fn carry(node: NodeId, stream: Stream, down: Down, drawn: mpsc::Sender<Result<Drawn, Failure>>) {
    let Stream { mut reader, mut writer } = stream;
    let awaited = down.awaited.clone();
    let mut up = std::pin::pin!(up(&node, &mut reader, &drawn, &awaited));
    let failure = tokio::select! {
        biased;
        failure = &mut up => failure,
        sent = down.carry(&mut writer) => match sent {
            // More than a frame holds; engines know better.
            Err(StreamError::BadFrame(bad)) => Failure::Engine(bad.to_string()),
            // A write that fails shows in the next read, with a reason if the other end gave one.
            Ok(()) | Err(_) => up.await,
        }
    };
    // Fails when the engine has ended, and then nobody needs to know.
    drop(drawn.send(Err(Failure::Stage { node: node.clone(), failure: Box::new(failure) })).await);
}

impl Down {
    /// Carries until this stage has nothing more.
    async fn carry(mut self, writer: &mut FrameWriter) -> Result<(), StreamError> {
        if let Ok(body) = self.body.await {
            send_body(writer, body.encode()).await?;
        }
        while let Some(states) = self.hidden.recv().await {
            let (count, draw) = (states.count, states.draw);
            let frame = Frame::Hidden(states);
            writer.write(&frame).await?;
            self.meters.hidden_sent(count, frame.encoded_bytes());
            if draw {
                self.awaited.asked();
            }
        }
        writer.finish().await
    }
}

/// What the next stage has for this one. Returns why it has nothing more.
async fn up(node: &NodeId, reader: &mut FrameReader, drawn: &mpsc::Sender<Result<Drawn, Failure>>, awaited: &Awaited) -> Failure {
    loop {
        let owed = awaited.any();
        match timeout(Duration::from_micros(SILENCE_MAX.0), reader.read()).await {
            Ok(Ok(Some(Frame::Drawn(token)))) => {
                awaited.answered();
                // Fails when the engine has ended; the next stage hears of it by the end of the other direction.
                drop(drawn.send(Ok(token)).await);
            }
            Ok(Ok(Some(Frame::Progress))) => {}
            Ok(Ok(Some(Frame::End(_)))) => return Failure::Engine("it ended before its time".to_owned()),
            Ok(Ok(Some(Frame::Failed(failure)))) => return failure,
            Ok(_) => return Failure::Broken(node.to_string()),
            // Silence is a fault only while there is something to say.
            Err(_) if owed => return Failure::Stalled(SILENCE_MAX),
            Err(_) => {}
        }
    }
}
