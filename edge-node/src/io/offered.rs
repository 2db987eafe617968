//! A stream on which another ingress offers a request: header, acceptance, body, execution, answer.

use super::driver::{Handle, Message};
use super::execute::{Engines, SINK_EVENTS, closed, died};
use crate::exec::{ExecEvent, Job};
use shared::fleet::Load;
use shared::ids::NodeId;
use shared::plan::{Failure, Reason};
use shared::request::{AttemptEvent, Event};
use shared::units::Micros;
use shared::wire::body::BODY_BYTES_MAX;
use shared::wire::frame::End;
use shared::wire::{Body, Frame};
use shared::work::ExecHeader;
use shared_net::quic::{Code, Stream};
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How long the header may take after its stream was opened: it is one small frame.
const HEADER_MAX: Duration = Duration::from_secs(5);
/// How long a body may take after acceptance: 4 MiB at a little over 1 Mbit/s, as the HTTP front allows its clients.
const BODY_MAX: Duration = Duration::from_secs(30);
/// How long the agent may take to judge a header. It takes microseconds; longer means that it is overwhelmed or stopping.
const JUDGE_MAX: Duration = Duration::from_secs(2);
/// The ingress hears this often that its request waits: well below the five seconds after which it gives up on us.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Commands for one stream: at most one of each kind.
const COMMANDS_MAX: usize = 8;

/// What the core wants done with an offered request.
#[derive(Debug)]
pub(super) enum Command {
    /// Take it.
    Accept(Load),
    /// Do not take it.
    Refuse(Reason, Option<Load>),
    /// Execute it, as soon as its body is here.
    Run,
    /// Stop executing it; nobody wants the answer.
    Abort,
    /// Tell the ingress that there will be no answer.
    Drop(Failure),
}

/// What such streams need of the node.
#[derive(Clone)]
pub(super) struct Host {
    pub(super) handle: Handle,
    pub(super) engines: Engines,
}

/// Why a stream ends.
enum Ending {
    /// The ingress is gone or gave up.
    Withdrawn,
    /// The core gave up.
    Aborted,
    /// This is to be said last.
    Failed(Failure),
}

/// Serves one stream, to its end. `peer` is who is at the other end of the connection; a hub speaks for every ingress behind it.
pub(super) async fn serve(host: Host, peer: NodeId, speaks_for_others: bool, mut stream: Stream) {
    let Ok(Ok(Some(Frame::Header(header)))) = timeout(HEADER_MAX, stream.reader.read()).await else {
        return stream.cancel(Code::PROTOCOL);
    };
    if !speaks_for_others && header.ingress != peer {
        return stream.cancel(Code::FORBIDDEN);
    }
    let (commands_in, commands) = mpsc::channel(COMMANDS_MAX);
    let from = if speaks_for_others { header.ingress.clone() } else { peer };
    let offer = Message::Offered { from, header: header.clone(), commands: commands_in };
    if host.handle.send(offer).await.is_err() {
        return stream.cancel(Code::GONE);
    }
    let mut guest = Guest { host, header: *header, stream, commands, cancel: CancellationToken::new() };
    let attempt = guest.header.attempt;
    let span = tracing::info_span!("guest", request = %attempt.request, number = attempt.number, ingress = %guest.header.ingress);
    guest.answer_offer().instrument(span).await;
}

/// An offered request and its stream.
struct Guest {
    host: Host,
    header: ExecHeader,
    stream: Stream,
    commands: mpsc::Receiver<Command>,
    cancel: CancellationToken,
}

impl Guest {
    async fn answer_offer(&mut self) {
        tracing::debug!(variant = %self.header.variant, "offered");
        match timeout(JUDGE_MAX, self.commands.recv()).await {
            Ok(Some(Command::Accept(load))) => {
                let ending = match self.stream.writer.write(&Frame::Accepted(load)).await {
                    Ok(()) => self.execute().await,
                    Err(_) => Err((Ending::Withdrawn, None)),
                };
                self.end(ending).await;
            }
            Ok(Some(Command::Refuse(reason, load))) => {
                // Fails only when the ingress is gone.
                drop(self.say_last(&Frame::Refused(reason, load)).await);
            }
            _ => {
                self.stream.writer.reset(Code::BUSY);
                // In case the judgement comes after all.
                self.withdraw().await;
            }
        }
    }

    /// Body, slot, engine, answer. An error carries the engine's events when the job had begun.
    async fn execute(&mut self) -> Result<AttemptEvent, (Ending, Option<mpsc::Receiver<ExecEvent>>)> {
        let body = self.body_and_slot().await.map_err(|ending| (ending, None))?;
        let Some(engine) = self.host.engines.get(&self.header.variant) else {
            return Err((Ending::Failed(Failure::Refused(Reason::NoReplica)), None));
        };
        let (sink, mut events) = mpsc::channel(SINK_EVENTS);
        let job = Job::whole(self.header.clone(), body, self.cancel.clone(), sink);
        if let Err(reason) = engine.submit(job) {
            return Err((Ending::Failed(Failure::Refused(reason)), None));
        }
        match self.pump(&mut events).await {
            Ok(last) => Ok(last),
            Err(ending) => Err((ending, Some(events))),
        }
    }

    /// Waits until the body is here and the core has given a slot, whichever is later.
    async fn body_and_slot(&mut self) -> Result<Body, Ending> {
        let (mut bytes, mut body, mut slot) = (Vec::new(), None, false);
        let late = sleep_until(Instant::now() + BODY_MAX);
        tokio::pin!(late);
        let mut stopped = std::pin::pin!(self.stream.writer.stopped());
        let mut alive = interval(PROGRESS_EVERY);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if slot && let Some(body) = body.take() {
                return Ok(body);
            }
            tokio::select! {
                biased;
                command = self.commands.recv() => match command {
                    Some(Command::Run) => slot = true,
                    Some(Command::Drop(failure)) => return Err(Ending::Failed(failure)),
                    Some(Command::Abort | Command::Refuse(..)) | None => return Err(Ending::Aborted),
                    Some(Command::Accept(_)) => {}
                },
                _ = &mut stopped => return Err(Ending::Withdrawn),
                frame = self.stream.reader.read(), if body.is_none() => match frame {
                    Ok(Some(Frame::Body(chunk))) if bytes.len() + chunk.bytes.len() <= BODY_BYTES_MAX => {
                        bytes.extend_from_slice(&chunk.bytes);
                        if chunk.last {
                            body = Some(Body::decode(&bytes).map_err(|bad| Ending::Failed(bad_body(&bad)))?);
                        }
                    }
                    _ => return Err(Ending::Withdrawn),
                },
                _ = alive.tick() => {
                    self.stream.writer.write(&Frame::Progress).await.map_err(|_| Ending::Withdrawn)?;
                }
                () = &mut late, if body.is_none() => {
                    return Err(Ending::Failed(Failure::Stalled(Micros::from_secs(BODY_MAX.as_secs()))));
                }
            }
        }
    }

    /// Carries the engine's events to the stream.
    async fn pump(&mut self, events: &mut mpsc::Receiver<ExecEvent>) -> Result<AttemptEvent, Ending> {
        let mut stopped = std::pin::pin!(self.stream.writer.stopped());
        loop {
            let event = tokio::select! {
                biased;
                command = self.commands.recv() => return Err(ending_of(command)),
                _ = &mut stopped => return Err(Ending::Withdrawn),
                event = events.recv() => event,
            };
            let (frame, news) = match event {
                Some(ExecEvent::Progress) => (Frame::Progress, AttemptEvent::Progress),
                Some(ExecEvent::Tokens(batch)) => {
                    let tokens = shared::units::Tokens(batch.count);
                    (Frame::Tokens(batch), AttemptEvent::Content(tokens))
                }
                Some(ExecEvent::Drawn(drawn)) => (Frame::Drawn(drawn), AttemptEvent::Progress),
                Some(ExecEvent::End(finish, usage)) => return Ok(AttemptEvent::Ended(finish, usage)),
                Some(ExecEvent::Failed(failure)) => return Ok(AttemptEvent::Failed(failure)),
                None => return Ok(AttemptEvent::Failed(died())),
            };
            self.tell(news).await;
            // The window of a slow ingress holds us back here, and with us the engine; a cancel must come through all the same.
            tokio::select! {
                biased;
                command = self.commands.recv() => return Err(ending_of(command)),
                written = self.stream.writer.write(&frame) => written.map_err(|_| Ending::Withdrawn)?,
            }
        }
    }

    /// The last words, to the ingress and to the core; in every case the core hears an end, since only that frees the slot.
    async fn end(&mut self, ended: Result<AttemptEvent, (Ending, Option<mpsc::Receiver<ExecEvent>>)>) {
        match ended {
            Ok(news) => {
                self.tell(news.clone()).await;
                let frame = match news {
                    AttemptEvent::Ended(finish, usage) => {
                        let load = self.host.handle.load(self.header.variant.clone()).await;
                        Frame::End(End { finish, usage, load })
                    }
                    AttemptEvent::Failed(failure) => Frame::Failed(failure),
                    _ => Frame::Failed(died()),
                };
                // Fails only when the ingress is gone.
                drop(self.say_last(&frame).await);
            }
            Err((ending, events)) => {
                self.cancel.cancel();
                match ending {
                    Ending::Failed(failure) => drop(self.say_last(&Frame::Failed(failure)).await),
                    Ending::Aborted => self.stream.writer.reset(Code::CANCELLED),
                    Ending::Withdrawn => {
                        self.stream.writer.reset(Code::CANCELLED);
                        drop(self.host.handle.tell_core(Event::Withdrawn(self.header.attempt)).await);
                    }
                }
                if let Some(mut events) = events {
                    closed(&mut events).await;
                }
                self.tell(AttemptEvent::Failed(Failure::ClientGone)).await;
            }
        }
    }

    async fn withdraw(&self) {
        // Both fail only when the agent has stopped. The second frees what the first could not.
        drop(self.host.handle.tell_core(Event::Withdrawn(self.header.attempt)).await);
        self.tell(AttemptEvent::Failed(Failure::ClientGone)).await;
    }

    async fn tell(&self, news: AttemptEvent) {
        drop(self.host.handle.tell_core(Event::Engine(self.header.attempt, news)).await);
    }

    /// Writes a last frame and waits until the ingress has it, since dropping the stream early would take it back.
    async fn say_last(&mut self, frame: &Frame) -> Result<(), shared_net::quic::StreamError> {
        self.stream.writer.write(frame).await?;
        self.stream.writer.finish().await?;
        drop(timeout(HEADER_MAX, self.stream.writer.stopped()).await);
        Ok(())
    }
}

fn ending_of(command: Option<Command>) -> Ending {
    match command {
        Some(Command::Drop(failure)) => Ending::Failed(failure),
        _ => Ending::Aborted,
    }
}

fn bad_body(bad: &shared::wire::body::BadBody) -> Failure {
    Failure::BadRequest { param: None, message: bad.to_string() }
}
