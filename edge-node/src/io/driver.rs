//! The loop around [`Agent`]: events in, effects out, sleep until the next deadline.
//!
//! One task owns the agent; everybody else talks to it through a bounded inbox. It never waits for anything but its inbox and
//! the clock: what takes time is done by tasks that it starts, and they report back as events.

use super::capture::Capture;
use super::hands::Hands;
use super::offered::Command;
use crate::logic::{Agent, AgentEffect, AgentEvent, NodeStatus};
use shared::fleet::Load;
use shared::ids::{AttemptId, NodeId, VariantId};
use shared::request::{AttemptEvent, Event};
use shared::units::{Micros, Moment};
use shared::wire::Body;
use shared::wire::frame::TokenBatch;
use shared::work::{Catalogue, ExecHeader, LlmRequest};
use shared_net::host::Clock;
use shared_net::openai::Answer;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

/// Messages that wait for the agent. One takes microseconds, so this is milliseconds of work; at the limit the senders wait, and
/// with them the streams that they read.
const INBOX_MAX: usize = 1_024;

/// How often it is looked whether clients are still there: a tenth of the time within which a cancel must have reached an engine.
const CLIENTS_EVERY: Micros = Micros::from_millis(50);

/// The driver has ended; whoever notices ends too.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the agent has stopped")]
pub struct Stopped;

/// A look at the agent, carried out between two events.
type Look = Box<dyn FnOnce(&Agent, Moment) + Send>;

/// What the driver is told.
pub(super) enum Message {
    /// Something happened.
    Event(AgentEvent),
    /// Content came. It reaches the client exactly when the core says so, in the order in which it came.
    Content {
        /// What the core is told.
        event: Event,
        /// The payload.
        batch: TokenBatch,
        /// Room in the client's channel, had before the core was told: the driver never waits for a client.
        room: OwnedPermit<Answer>,
    },
    /// A client asks.
    Asked {
        /// What decisions see.
        request: Box<LlmRequest>,
        /// The text.
        body: Arc<Body>,
        /// Where the answer goes.
        answers: mpsc::Sender<Answer>,
    },
    /// Another ingress offers a request.
    Offered {
        /// Who.
        from: NodeId,
        /// What.
        header: Box<ExecHeader>,
        /// To the task that holds the stream.
        commands: mpsc::Sender<Command>,
    },
    /// Somebody wants to know something.
    Look(Look),
}

/// What others may read of the agent without asking it.
#[derive(Debug)]
struct Shown {
    catalogue: RwLock<Arc<Catalogue>>,
    degraded: AtomicBool,
}

/// The way to the agent. Clones lead to the same one.
#[derive(Clone)]
pub struct Handle {
    inbox: mpsc::Sender<Message>,
    shown: Arc<Shown>,
    node: NodeId,
    clock: Clock,
}

impl std::fmt::Debug for Handle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Handle").field("node", &self.node).finish_non_exhaustive()
    }
}

/// The other end of a [`Handle`].
pub(super) struct Inbox(mpsc::Receiver<Message>);

/// A handle and its inbox.
pub(super) fn channel(agent: &Agent, clock: Clock) -> (Handle, Inbox) {
    let (inbox, messages) = mpsc::channel(INBOX_MAX);
    let catalogue = RwLock::new(Arc::new(agent.config().catalogue.clone()));
    let shown = Arc::new(Shown { catalogue, degraded: AtomicBool::new(true) });
    (Handle { inbox, shown, node: agent.config().node.clone(), clock }, Inbox(messages))
}

impl Handle {
    /// Which node.
    #[must_use]
    pub const fn node(&self) -> &NodeId {
        &self.node
    }

    /// The clock that the agent lives by.
    #[must_use]
    pub const fn clock(&self) -> Clock {
        self.clock
    }

    /// What there is to serve.
    #[must_use]
    pub fn catalogue(&self) -> Arc<Catalogue> {
        Arc::clone(&self.shown.catalogue.read().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the hub is out of reach.
    #[must_use]
    pub fn degraded(&self) -> bool {
        self.shown.degraded.load(Ordering::Relaxed)
    }

    /// Tells the agent; waits while its inbox is full.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn tell(&self, event: AgentEvent) -> Result<(), Stopped> {
        self.send(Message::Event(event)).await
    }

    /// Tells the request core.
    pub(super) async fn tell_core(&self, event: Event) -> Result<(), Stopped> {
        self.tell(AgentEvent::Request(event)).await
    }

    pub(super) async fn send(&self, message: Message) -> Result<(), Stopped> {
        self.inbox.send(message).await.map_err(|_| Stopped)
    }

    /// Looks at the agent between two events.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn look<T: Send + 'static>(&self, look: impl FnOnce(&Agent, Moment) -> T + Send + 'static) -> Result<T, Stopped> {
        let (seen, answer) = oneshot::channel();
        let look: Look = Box::new(move |agent, now| {
            // Whoever asked may have gone.
            let _ = seen.send(look(agent, now));
        });
        self.send(Message::Look(look)).await?;
        answer.await.map_err(|_| Stopped)
    }

    /// The status page.
    ///
    /// # Errors
    /// [`Stopped`].
    pub async fn status(&self) -> Result<NodeStatus, Stopped> {
        self.look(Agent::status).await
    }

    /// The load of one of this node's replicas.
    pub(super) async fn load(&self, variant: VariantId) -> Option<Load> {
        let find = move |agent: &Agent, _| agent.core().replicas().into_iter().find(|replica| replica.variant == variant);
        self.look(find).await.ok().flatten().map(|replica| replica.load)
    }
}

/// The agent with its hands and its diary.
pub(super) struct Driver {
    pub(super) agent: Agent,
    pub(super) inbox: Inbox,
    pub(super) handle: Handle,
    pub(super) hands: Hands,
    pub(super) capture: Option<Capture>,
    /// When to look next whether clients are still there.
    pub(super) clients_at: Moment,
}

impl Driver {
    /// Runs until `cancel`.
    pub(super) async fn run(mut self, cancel: CancellationToken) {
        self.tell(AgentEvent::Started, None);
        loop {
            let clients = self.hands.has_clients().then_some(self.clients_at);
            let deadline = self.agent.next_deadline().into_iter().chain(clients).min();
            tokio::select! {
                biased;
                () = cancel.cancelled() => break,
                message = self.inbox.0.recv() => match message {
                    Some(message) => self.take(message),
                    None => break,
                },
                () = self.handle.clock.sleep_until_some(deadline) => {
                    if self.agent.next_deadline().is_some_and(|at| at <= self.handle.clock.now()) {
                        self.tell(AgentEvent::Tick, None);
                    }
                }
            }
            self.look_for_clients();
        }
        if let Some(capture) = &mut self.capture {
            capture.close();
        }
    }

    /// Notices clients that went away. A look now and then at all of them costs less than a task for each, which would have nothing
    /// to do nearly always.
    fn look_for_clients(&mut self) {
        let now = self.handle.clock.now();
        if now < self.clients_at {
            return;
        }
        self.clients_at = now + CLIENTS_EVERY;
        for request in self.hands.gone() {
            self.tell(AgentEvent::Request(Event::ClientGone(request)), None);
        }
    }

    fn take(&mut self, message: Message) {
        match message {
            Message::Event(event) => self.tell(event, None),
            Message::Content { event, batch, room } => self.tell(AgentEvent::Request(event), Some((batch, room))),
            Message::Asked { request, body, answers } => {
                self.hands.client_asks(&request, body, answers);
                self.tell(AgentEvent::Request(Event::Arrived(*request)), None);
            }
            Message::Offered { from, header, commands } => {
                if self.hands.offer(header.attempt, commands) {
                    self.tell(AgentEvent::Request(Event::Offered { from, header: *header }), None);
                }
            }
            Message::Look(look) => look(&self.agent, self.handle.clock.now()),
        }
    }

    fn tell(&mut self, event: AgentEvent, mut content: Option<(TokenBatch, OwnedPermit<Answer>)>) {
        let now = self.handle.clock.now();
        let over = ended(&event);
        let of_request = matches!(event, AgentEvent::Request(_));
        let mut effects = Vec::new();
        let noted = self.capture.as_ref().map(|_| event.clone());
        self.agent.handle(now, event, &mut effects);
        if let (Some(capture), Some(event)) = (&mut self.capture, noted) {
            capture.note(now, &event, &effects);
        }
        for effect in effects {
            if let AgentEffect::Request(shared::request::Effect::Deliver(attempt)) = &effect {
                if let Some((batch, room)) = content.take() {
                    self.hands.deliver(*attempt, batch, room);
                }
            } else {
                self.hands.carry_out(effect);
            }
        }
        if let Some(attempt) = over {
            self.hands.attempt_over(attempt);
        }
        self.show(of_request);
    }

    /// Shows what others may read. Events of requests change no catalogue, and are too many to compare it each time.
    fn show(&self, of_request: bool) {
        let shown = &self.handle.shown;
        shown.degraded.store(self.agent.degraded(), Ordering::Relaxed);
        if of_request {
            return;
        }
        let catalogue = self.agent.core().catalogue();
        let same = **shown.catalogue.read().unwrap_or_else(PoisonError::into_inner) == *catalogue;
        if !same {
            *shown.catalogue.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(catalogue.clone());
        }
    }
}

/// The attempt that this event ends, if it ends one.
fn ended(event: &AgentEvent) -> Option<AttemptId> {
    match event {
        AgentEvent::Request(Event::Remote(attempt, news) | Event::Engine(attempt, news)) => {
            matches!(news, AttemptEvent::Ended(..) | AttemptEvent::Failed(_) | AttemptEvent::Refused(..)).then_some(*attempt)
        }
        _ => None,
    }
}
