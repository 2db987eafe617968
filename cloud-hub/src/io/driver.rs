//! The loop around the core: deliver events, carry out effects, sleep until the deadline.

use super::broker::Revocations;
use super::clients::Clients;
use super::input::{Inbox, Input};
use super::metrics::Metrics;
use super::mqtt::Publisher;
use super::relay::{Relays, refuse_stream};
use crate::logic::{AdminReply, Connection, Hub, HubEffect, HubEvent, ReplyToken};
use crate::store::Store;
use shared::ids::NodeId;
use shared::plan::Reason;
use shared::request::Effect;
use shared::wire::Frame;
use shared::wire::frame::{Goodbye, Hello};
use shared::work::{Catalogue, ExecHeader};
use shared_net::host::{Clock, Tasks};
use shared_net::link::{Code, Link, Stream};
use shared_net::openai::KeyRing;
use shared_net::tls::CertClock;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// What the driver works with.
pub(crate) struct Driver {
    pub(super) hub: Hub,
    pub(super) me: NodeId,
    pub(super) clock: Clock,
    pub(super) wall: CertClock,
    pub(super) node_lifetime: Duration,
    pub(super) store: Store,
    pub(super) publisher: Publisher,
    pub(super) revocations: Revocations,
    pub(super) metrics: Arc<Metrics>,
    pub(super) tasks: Tasks,
    pub(super) catalogue: watch::Sender<Arc<Catalogue>>,
    pub(super) links: BTreeMap<Connection, Linked>,
    pub(super) ring: KeyRing,
    pub(super) relays: Relays,
    pub(super) clients: Clients,
    replies: BTreeMap<ReplyToken, oneshot::Sender<AdminReply>>,
    next_reply: u64,
}

/// One agent's connection.
#[derive(Debug)]
pub(super) struct Linked {
    pub(super) link: Link,
    pub(super) frames: mpsc::Sender<Frame>,
}

/// What a driver needs at its start.
pub(crate) struct Parts {
    pub(crate) hub: Hub,
    pub(crate) me: NodeId,
    pub(crate) clock: Clock,
    pub(crate) wall: CertClock,
    pub(crate) node_lifetime: Duration,
    pub(crate) store: Store,
    pub(crate) publisher: Publisher,
    pub(crate) revocations: Revocations,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) tasks: Tasks,
    pub(crate) catalogue: watch::Sender<Arc<Catalogue>>,
    pub(crate) inbox: Inbox,
    pub(crate) ring: KeyRing,
}

impl Driver {
    pub(crate) fn new(parts: Parts) -> Self {
        Self {
            relays: Relays::new(parts.tasks.clone(), parts.inbox.clone(), Arc::clone(&parts.metrics)),
            clients: Clients::new(parts.tasks.clone(), parts.inbox),
            hub: parts.hub,
            me: parts.me,
            clock: parts.clock,
            wall: parts.wall,
            node_lifetime: parts.node_lifetime,
            store: parts.store,
            publisher: parts.publisher,
            revocations: parts.revocations,
            metrics: parts.metrics,
            tasks: parts.tasks,
            catalogue: parts.catalogue,
            ring: parts.ring,
            links: BTreeMap::new(),
            replies: BTreeMap::new(),
            next_reply: 0,
        }
    }

    /// Runs until it is told to stop; then says goodbye to every agent.
    pub(crate) async fn run(mut self, mut inputs: mpsc::Receiver<Input>, stop: CancellationToken) {
        loop {
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                () = self.clock.sleep_until_some(self.hub.next_deadline()) => self.step(HubEvent::Tick).await,
                input = inputs.recv() => match input {
                    Some(input) => self.take(input).await,
                    None => break,
                },
            }
        }
        for linked in self.links.values() {
            // An agent that does not take it sees the connection close.
            drop(linked.frames.try_send(Frame::Goodbye(Goodbye::Shutdown)));
        }
    }

    async fn take(&mut self, input: Input) {
        match input {
            Input::Event(event) => self.event(event).await,
            Input::Content(attempt, tokens, verdict) => {
                let event = HubEvent::Remote(attempt, shared::request::AttemptEvent::Content(tokens));
                let effects = self.decide(event);
                let deliver = HubEffect::Request(Effect::Deliver(attempt));
                let passes = effects.contains(&deliver);
                self.carry_out(effects).await;
                // The attempt may have been cut off meanwhile.
                let _ = verdict.send(passes);
            }
            Input::Hello { connection, link, frames, hello } => self.hello(connection, link, frames, *hello).await,
            Input::Relay { connection, header, stream } => self.relay(connection, *header, *stream).await,
            Input::Ask { ask, answers, taken } => match self.clients.take(*ask, answers) {
                Ok(event) => {
                    // A front that is gone drops the other end of `answers`, which is watched.
                    drop(taken.send(Ok(())));
                    self.step(event).await;
                }
                Err(refusal) => drop(taken.send(Err(refusal))),
            },
            Input::Admin(operation, reply) => {
                self.next_reply += 1;
                let token = ReplyToken(self.next_reply);
                self.replies.insert(token, reply);
                self.step(HubEvent::Admin { token, operation }).await;
                if self.replies.remove(&token).is_some() {
                    tracing::error!("an admin operation got no answer");
                }
            }
            Input::MqttConnected => self.publisher.publish_all(),
        }
    }

    /// What the driver holds for something that has ended is let go, whatever the core makes of it.
    async fn event(&mut self, event: HubEvent) {
        match event {
            HubEvent::ConnectionLost { connection } => drop(self.links.remove(&connection)),
            HubEvent::RelayClosed { stream } => self.relays.close(stream),
            HubEvent::ClientGone(request) => {
                self.step(event).await;
                if self.clients.forget(request) {
                    self.metrics.request_ended("client_gone");
                }
                return;
            }
            HubEvent::Remote(attempt, ref news) if is_last(news) => {
                self.step(event).await;
                return self.clients.drop_attempt(attempt);
            }
            _ => {}
        }
        self.step(event).await;
    }

    async fn hello(&mut self, connection: Connection, link: Link, frames: mpsc::Sender<Frame>, hello: Hello) {
        let (Some(node), Some(serial)) = (link.peer().cloned(), link.serial().map(str::to_owned)) else {
            return link.close(Code::FORBIDDEN, "no certificate");
        };
        self.links.insert(connection, Linked { link, frames });
        self.step(HubEvent::HelloReceived { connection, node, serial, hello }).await;
    }

    async fn relay(&mut self, connection: Connection, header: ExecHeader, stream: Stream) {
        if header.target == self.me {
            self.tasks.spawn(format!("refusal {}", header.attempt), refuse_stream(stream, Reason::NoReplica));
            return;
        }
        let event = self.relays.ask(connection, header, stream);
        self.step(event).await;
        self.relays.forget_undecided();
    }

    pub(super) async fn step(&mut self, event: HubEvent) {
        let effects = self.decide(event);
        self.carry_out(effects).await;
    }

    fn decide(&mut self, event: HubEvent) -> Vec<HubEffect> {
        let mut effects = Vec::new();
        self.hub.handle(self.clock.now(), event, &mut effects);
        effects
    }

    pub(super) fn reply(&mut self, token: ReplyToken, reply: AdminReply) {
        if let Some(waiting) = self.replies.remove(&token) {
            // Whoever asked may have gone away.
            drop(waiting.send(reply));
        }
    }
}

fn is_last(news: &shared::request::AttemptEvent) -> bool {
    use shared::request::AttemptEvent::{Ended, Failed, Refused};
    matches!(news, Ended(..) | Failed(_) | Refused(..))
}
