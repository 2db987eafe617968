//! A stream on which another node offers a request, or a later stage of one: header, acceptance, body, execution, answer. It comes
//! from the ingress; that of a later stage from the stage before, and on it hidden states follow the body.

use super::driver::{Handle, Message};
use super::execute::{Engines, SINK_EVENTS, closed, died};
use super::stage::{self, Awaited, Onward, Reach};
use crate::exec::{Downstream, ExecEvent, Input, Job};
use shared::fleet::Load;
use shared::ids::{AttemptId, NodeId};
use shared::plan::{Failure, Reason};
use shared::request::{AttemptEvent, Event};
use shared::units::{Micros, Tokens};
use shared::wire::body::{BODY_BYTES_MAX, BadBody};
use shared::wire::frame::{End, Hidden};
use shared::wire::{Body, Frame, StageBody};
use shared::work::ExecHeader;
use shared_net::link::{Code, FrameReader, FrameWriter, Stream};
use std::future::pending;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until, timeout};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// How long the header may take after its stream was opened: it is one small frame.
const HEADER_MAX: Duration = Duration::from_secs(5);
/// How long a body may take after acceptance: 4 MiB at a little over 1 Mbit/s, as the HTTP front allows its clients.
const BODY_MAX: Duration = Duration::from_secs(30);
/// How long a later stage may wait for a slot: the stages before it hold theirs meanwhile, and two requests each of which holds
/// what the other waits for must not wait for ever. The ingress hears `busy` then, and decides anew.
const STAGE_SLOT_MAX: Duration = Duration::from_secs(5);
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
    pub(super) reach: Reach,
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

/// A begun execution's events, for whoever waits until it is off its engine.
type Events = mpsc::Receiver<ExecEvent>;

/// Serves one stream, to its end. `peer` is who is at the other end of the connection; a hub speaks for every node behind it.
pub(super) async fn serve(host: Host, peer: NodeId, speaks_for_others: bool, mut stream: Stream) {
    let Ok(Ok(Some(Frame::Header(header)))) = timeout(HEADER_MAX, stream.reader.read()).await else {
        return stream.cancel(Code::PROTOCOL);
    };
    let Some(from) = header.sender().filter(|sender| speaks_for_others || **sender == peer).cloned() else {
        return stream.cancel(Code::FORBIDDEN);
    };
    let (commands_in, commands) = mpsc::channel(COMMANDS_MAX);
    let offer = Message::Offered { from, header: header.clone(), commands: commands_in };
    if host.handle.send(offer).await.is_err() {
        return stream.cancel(Code::GONE);
    }
    let (since, cancel) = (Instant::now(), CancellationToken::new());
    let mut guest = Guest { host, header: *header, since, stream, commands, cancel };
    let (attempt, ingress) = (guest.header.attempt, &guest.header.ingress);
    let span = tracing::info_span!("guest", request = %attempt.request, number = attempt.number, stage = attempt.stage, %ingress);
    guest.answer_offer().instrument(span).await;
}

/// An offered request and its stream.
struct Guest {
    host: Host,
    header: ExecHeader,
    /// When it came.
    since: Instant,
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

    /// Body, slot, next stage, engine, answer. An error carries the engine's events when the job had begun.
    async fn execute(&mut self) -> Result<(AttemptEvent, Onward), (Ending, Option<Events>)> {
        let (input, states) = self.input_and_slot().await.map_err(|ending| (ending, None))?;
        let refused = |reason| (Ending::Failed(Failure::Refused(reason)), None);
        let engine = self.host.engines.get(&self.header.variant).ok_or_else(|| refused(Reason::NoReplica))?;
        let engine = Arc::clone(engine);
        let (next, mut onward) = self.onward().await.map_err(|ending| (ending, None))?;
        let (sink, mut events) = mpsc::channel(SINK_EVENTS);
        let job = Job { header: self.header.clone(), input, cancel: self.cancel.clone(), sink, next };
        engine.submit(job).map_err(refused)?;
        match self.pump(&mut events, states, &mut onward).await {
            Ok(last) => Ok((last, onward)),
            Err(ending) => Err((ending, Some(events))),
        }
    }

    /// The way to the next stage, where there is one.
    async fn onward(&mut self) -> Result<(Option<Downstream>, Onward), Ending> {
        let stopped = self.stream.writer.stopped();
        tokio::select! {
            biased;
            command = self.commands.recv() => Err(ending_of(command)),
            _ = stopped => Err(Ending::Withdrawn),
            opened = stage::open(&self.host.reach, &self.header, self.since.elapsed()) => opened.map_err(Ending::Failed),
        }
    }

    /// What the engine gets of this body, and where hidden states go that follow it.
    fn input(&self, body: &[u8]) -> Result<(Input, Option<mpsc::Sender<Hidden>>), Ending> {
        if self.header.attempt.stage == 0 {
            let body = Body::decode(body).map_err(|bad| Ending::Failed(bad_body(&bad)))?;
            return Ok((Input::Body(Arc::new(body)), None));
        }
        // The client has no part in it, so another stage may do better.
        let body = StageBody::decode(body).map_err(|bad| Ending::Failed(Failure::Engine(bad.to_string())))?;
        let (states, hidden) = mpsc::channel(stage::HIDDEN_MAX);
        Ok((Input::Stage(Box::new(body), hidden), Some(states)))
    }

    /// Waits until the body is here and the core has given a slot, whichever is later.
    async fn input_and_slot(&mut self) -> Result<(Input, Option<mpsc::Sender<Hidden>>), Ending> {
        let (mut bytes, mut whole, mut slot) = (Vec::new(), false, false);
        let late = sleep_until(Instant::now() + BODY_MAX);
        let impatient = sleep_until(Instant::now() + STAGE_SLOT_MAX);
        tokio::pin!(late, impatient);
        let mut stopped = std::pin::pin!(self.stream.writer.stopped());
        let mut alive = interval(PROGRESS_EVERY);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            if slot && whole {
                return self.input(&bytes);
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
                frame = self.stream.reader.read(), if !whole => match frame {
                    Ok(Some(Frame::Body(chunk))) if bytes.len() + chunk.bytes.len() <= BODY_BYTES_MAX => {
                        bytes.extend_from_slice(&chunk.bytes);
                        whole = chunk.last;
                    }
                    _ => return Err(Ending::Withdrawn),
                },
                _ = alive.tick() => {
                    self.stream.writer.write(&Frame::Progress).await.map_err(|_| Ending::Withdrawn)?;
                }
                () = &mut impatient, if !slot && self.header.attempt.stage > 0 => {
                    return Err(Ending::Failed(Failure::Refused(Reason::Busy)));
                }
                () = &mut late, if !whole => {
                    return Err(Ending::Failed(Failure::Stalled(Micros::from_secs(BODY_MAX.as_secs()))));
                }
            }
        }
    }

    /// Carries everything both ways until the execution ends.
    async fn pump(
        &mut self,
        events: &mut Events,
        states: Option<mpsc::Sender<Hidden>>,
        onward: &mut Onward,
    ) -> Result<AttemptEvent, Ending> {
        let Stream { reader, writer } = &mut self.stream;
        let (handle, commands, attempt) = (&self.host.handle, &mut self.commands, self.header.attempt);
        let mut answer = Answering { handle, attempt, commands, writer, awaited: onward.awaited() };
        tokio::select! {
            biased;
            ending = feed(reader, states) => Err(ending),
            never = onward.carry() => match never {},
            ended = answer.carry(events) => ended,
        }
    }

    /// The last words, to the ingress and to the core; in every case the core hears an end, since only that frees the slot.
    async fn end(&mut self, ended: Result<(AttemptEvent, Onward), (Ending, Option<Events>)>) {
        match ended {
            Ok((news, onward)) => {
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
                onward.part().await;
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
    async fn say_last(&mut self, frame: &Frame) -> Result<(), shared_net::link::StreamError> {
        self.stream.writer.write(frame).await?;
        self.stream.writer.finish().await?;
        drop(timeout(HEADER_MAX, self.stream.writer.stopped()).await);
        Ok(())
    }
}

/// The way back of an execution.
struct Answering<'a> {
    handle: &'a Handle,
    attempt: AttemptId,
    commands: &'a mut mpsc::Receiver<Command>,
    writer: &'a mut FrameWriter,
    awaited: Awaited,
}

impl Answering<'_> {
    /// Carries the engine's events to the stream.
    async fn carry(&mut self, events: &mut Events) -> Result<AttemptEvent, Ending> {
        let mut stopped = std::pin::pin!(self.writer.stopped());
        let mut alive = interval(PROGRESS_EVERY);
        alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The core hears of drawn tokens now and then, for the load: each wake on their way counts, since all stages wait for them.
        let mut drawn = Tokens(0);
        loop {
            let event = tokio::select! {
                biased;
                command = self.commands.recv() => return Err(ending_of(command)),
                _ = &mut stopped => return Err(Ending::Withdrawn),
                event = events.recv() => event,
                _ = alive.tick(), if self.awaited.possible() || drawn.0 > 0 => {
                    if drawn.0 > 0 {
                        self.tell(AttemptEvent::Content(std::mem::take(&mut drawn))).await;
                    }
                    // An engine says nothing while it waits for the next stage, whose silence is noticed on the way there.
                    if self.awaited.any() { Some(ExecEvent::Progress) } else { continue }
                }
            };
            let frame = match event {
                Some(ExecEvent::Progress) => {
                    self.tell(AttemptEvent::Progress).await;
                    Frame::Progress
                }
                Some(ExecEvent::Tokens(batch)) => {
                    self.tell(AttemptEvent::Content(Tokens(batch.count))).await;
                    Frame::Tokens(batch)
                }
                Some(ExecEvent::Drawn(token)) => {
                    drawn += Tokens(1);
                    Frame::Drawn(token)
                }
                Some(ExecEvent::End(finish, usage)) => return Ok(AttemptEvent::Ended(finish, usage)),
                Some(ExecEvent::Failed(failure)) => return Ok(AttemptEvent::Failed(failure)),
                None => return Ok(AttemptEvent::Failed(died())),
            };
            // The window of a slow ingress holds us back here, and with us the engine; a cancel must come through all the same.
            tokio::select! {
                biased;
                command = self.commands.recv() => return Err(ending_of(command)),
                written = self.writer.write(&frame) => written.map_err(|_| Ending::Withdrawn)?,
            }
        }
    }

    async fn tell(&self, news: AttemptEvent) {
        // Fails only when the agent has stopped.
        drop(self.handle.tell_core(Event::Engine(self.attempt, news)).await);
    }
}

/// Carries hidden states to the engine, until the stage before is gone.
async fn feed(reader: &mut FrameReader, states: Option<mpsc::Sender<Hidden>>) -> Ending {
    let Some(states) = states else { return pending().await };
    loop {
        match reader.read().await {
            // An engine that takes no more has ended, and its last words are on their way back.
            Ok(Some(Frame::Hidden(hidden))) => drop(states.send(hidden).await),
            Ok(None) => break,
            Ok(Some(_)) | Err(_) => return Ending::Withdrawn,
        }
    }
    drop(states);
    pending().await
}

fn ending_of(command: Option<Command>) -> Ending {
    match command {
        Some(Command::Drop(failure)) => Ending::Failed(failure),
        _ => Ending::Aborted,
    }
}

fn bad_body(bad: &BadBody) -> Failure {
    Failure::BadRequest { param: None, message: bad.to_string() }
}
