//! Carries out what the agent wants done. Nothing here waits or decides: what takes time becomes a task that reports back.

use super::driver::{Handle, Message};
use super::execute::Engines;
use super::links::Links;
use super::meters::Meters;
use super::offered::Command;
use super::spool::Spool;
use super::stage::Reach;
use super::store::Store;
use super::{execute, mqtt, peers, remote, uplink};
use crate::logic::{AgentEffect, AgentEvent, UplinkEvent};
use shared::fleet::TransportOrder;
use shared::ids::{AttemptId, RequestId};
use shared::plan::{Candidate, Failure, Reason};
use shared::request::{AttemptEvent, Effect, Event};
use shared::wire::Body;
use shared::wire::frame::{Hello, TokenBatch};
use shared::work::{ExecHeader, LlmRequest};
use shared_net::host::Tasks;
use shared_net::openai::{Answer, KeyRing, KeySource};
use std::collections::BTreeMap;
use std::sync::Arc;
use tokio::sync::Notify;
use tokio::sync::mpsc::{self, OwnedPermit};
use tokio_util::sync::CancellationToken;
use tracing::Instrument;

/// A client whose request is not over.
struct Client {
    body: Arc<Body>,
    answers: mpsc::Sender<Answer>,
    /// Room that is kept for the end, so that even a client that stalled learns how it ended.
    last: Option<OwnedPermit<Answer>>,
    /// Ids of the tokens that it has, for continuing elsewhere.
    delivered: Vec<u32>,
}

/// An attempt of a client's request that is on its way.
struct Attempt {
    cancel: CancellationToken,
    body_wanted: Arc<Notify>,
}

/// Everything that effects are carried out with.
pub(super) struct Hands {
    pub(super) handle: Handle,
    pub(super) tasks: Tasks,
    pub(super) engines: Engines,
    pub(super) links: Arc<Links>,
    pub(super) network: Option<uplink::Network>,
    pub(super) broker: mqtt::Broker,
    pub(super) store: Store,
    pub(super) meters: Arc<Meters>,
    spool: Spool,
    pub(super) ring: KeyRing,
    clients: BTreeMap<RequestId, Client>,
    attempts: BTreeMap<AttemptId, Attempt>,
    offered: BTreeMap<AttemptId, mpsc::Sender<Command>>,
    uplink: uplink::Slot,
}

impl Hands {
    #[expect(clippy::too_many_arguments, reason = "one argument a tool; they are built in different places")]
    pub(super) fn new(
        handle: Handle,
        tasks: Tasks,
        engines: Engines,
        links: Arc<Links>,
        network: Option<uplink::Network>,
        broker: mqtt::Broker,
        (store, spool): (Store, Spool),
        meters: Arc<Meters>,
        ring: KeyRing,
    ) -> Self {
        Self {
            handle,
            tasks,
            engines,
            links,
            network,
            broker,
            store,
            meters,
            spool,
            ring,
            clients: BTreeMap::new(),
            attempts: BTreeMap::new(),
            offered: BTreeMap::new(),
            uplink: uplink::Slot::default(),
        }
    }

    /// A client asks: from now on its answers have a way.
    pub(super) fn client_asks(&mut self, request: &LlmRequest, body: Arc<Body>, answers: mpsc::Sender<Answer>) {
        let last = answers.clone().try_reserve_owned().ok();
        self.clients.insert(request.id, Client { body, answers, last, delivered: Vec::new() });
    }

    /// Whether anybody waits for an answer.
    pub(super) fn has_clients(&self) -> bool {
        !self.clients.is_empty()
    }

    /// Clients that went away before their request was over.
    pub(super) fn gone(&self) -> Vec<RequestId> {
        self.clients.iter().filter(|(_, client)| client.answers.is_closed()).map(|(request, _)| *request).collect()
    }

    /// Another ingress offers an attempt. Says whether the core shall judge it: a second offer of one that is here would be
    /// answered on the wrong stream.
    pub(super) fn offer(&mut self, attempt: AttemptId, commands: mpsc::Sender<Command>) -> bool {
        if self.offered.contains_key(&attempt) {
            let _ = commands.try_send(Command::Refuse(Reason::Tried, None));
            return false;
        }
        self.offered.insert(attempt, commands);
        true
    }

    /// Content that the core let through.
    pub(super) fn deliver(&mut self, attempt: AttemptId, batch: TokenBatch, room: OwnedPermit<Answer>) {
        if let Some(client) = self.clients.get_mut(&attempt.request) {
            client.delivered.extend_from_slice(&batch.ids);
            room.send(Answer::Tokens(batch));
        }
    }

    /// An attempt has ended, here or elsewhere.
    pub(super) fn attempt_over(&mut self, attempt: AttemptId) {
        self.attempts.remove(&attempt);
        self.offered.remove(&attempt);
    }

    pub(super) fn carry_out(&mut self, effect: AgentEffect) {
        match effect {
            AgentEffect::Request(effect) => self.request(effect),
            AgentEffect::Dial(number, order, hello) => match self.dialled((number, order), *hello) {
                Some(uplink) => self.uplink.replace(&self.tasks, uplink),
                None => self.report(AgentEvent::Uplink(number, uplink::no_network())),
            },
            AgentEffect::Move { number, order, hello, why } => {
                tracing::info!(to = order.first.name(), %why, "moving the uplink to another transport");
                self.meters.uplink_moved(order.first);
                if let Some(uplink) = self.dialled((number, order), *hello) {
                    self.uplink.begin_beside(&self.tasks, uplink);
                }
            }
            AgentEffect::StayHere => self.uplink.stay(),
            AgentEffect::Retire => self.uplink.retire(),
            AgentEffect::Look(number) => self.look(number),
            AgentEffect::HangUp(words) => {
                self.links.set_uplink(None);
                self.uplink.hang_up(words);
            }
            AgentEffect::Ping(pulse) => self.uplink.ping(pulse),
            AgentEffect::Pong(pulse) => self.uplink.pong(pulse),
            AgentEffect::ConnectBroker { number, address, session } => {
                let host = self.links.uplink_address();
                self.broker.connect(&self.tasks, &self.handle, number, &address, host, session);
            }
            AgentEffect::DisconnectBroker => self.broker.disconnect(),
            AgentEffect::Publish(session, publication) => {
                if !self.broker.publish(session, &publication) {
                    self.meters.publication_dropped();
                }
            }
            AgentEffect::Quarantined(kind) => {
                tracing::warn!(
                    kind = kind.name(),
                    "the broker closes the connection for it again and again: not published for a while"
                );
            }
            AgentEffect::DialPeer { node, addresses, order, hello } => {
                if let Some(network) = &self.network {
                    peers::dial(&self.tasks, &self.handle, &self.links, network, (node, addresses, order), *hello);
                }
            }
            AgentEffect::HangUpPeer(node, link, words) => self.links.hang_up(&node, link, words),
            AgentEffect::UsePeer(node, link) => self.links.use_for(&node, link),
            AgentEffect::RetirePeer(node, link) => self.links.retire(&node, link),
            AgentEffect::PingPeer(node, link, pulse) => self.links.ping(&node, link, pulse),
            AgentEffect::PongPeer(node, link, pulse) => self.links.pong(&node, link, pulse),
            AgentEffect::TellPeer(node, link, hello) => self.links.tell(&node, link, hello),
            AgentEffect::Keys(keys) => self.ring.set(KeySource::Fleet, keys),
            AgentEffect::Revoked(serials) => self.links.revoke(serials),
            AgentEffect::Spool(change) => self.spool.change(change),
            AgentEffect::Persist(persisted) => self.store.persist(persisted),
        }
    }

    fn dialled(&self, dial: (u64, TransportOrder), hello: Hello) -> Option<uplink::Uplink> {
        Some(uplink::Uplink::new(dial, hello, self.network.as_ref()?, &self.handle, &self.links))
    }

    fn look(&self, number: u64) {
        let Some(network) = self.network.clone() else { return };
        let (handle, stop) = (self.handle.clone(), self.tasks.cancelled());
        self.tasks.spawn("look at QUIC", async move {
            if let Some(found) = stop.run_until_cancelled(network.look()).await {
                drop(handle.tell(AgentEvent::Uplink(number, UplinkEvent::Looked(found))).await);
            }
        });
    }

    fn request(&mut self, effect: Effect) {
        match effect {
            Effect::Decided(decision) => {
                let attempt = decision.attempt;
                tracing::debug!(request = %attempt.request, number = attempt.number, verdict = ?decision.verdict, "decided");
                if let Some(client) = self.clients.get(&decision.attempt.request) {
                    // A full channel means that the head is long gone; the record has the decision.
                    let _ = client.answers.try_send(Answer::Decided(decision));
                }
            }
            Effect::Finish(request, finish, usage) => self.last_words(request, Answer::Finish(finish, usage)),
            Effect::Fail(request, failure) => self.last_words(request, Answer::Fail(failure)),
            Effect::Send { candidate, header } => self.send(&candidate, header),
            Effect::SendBody(attempt) => {
                if let Some(attempt) = self.attempts.get(&attempt) {
                    attempt.body_wanted.notify_one();
                }
            }
            Effect::Reset(attempt) => drop(self.attempts.remove(&attempt).map(|attempt| attempt.cancel.cancel())),
            Effect::Run(header) => self.run(header),
            Effect::Abort(attempt) => {
                if let Some(attempt) = self.attempts.get(&attempt) {
                    attempt.cancel.cancel();
                }
                self.command(attempt, Command::Abort);
            }
            Effect::Accept(attempt, load) => self.command(attempt, Command::Accept(load)),
            Effect::Refuse(attempt, reason, load) => {
                self.command(attempt, Command::Refuse(reason, load));
                self.offered.remove(&attempt);
            }
            Effect::Drop(attempt, failure) => self.command(attempt, Command::Drop(failure)),
            Effect::Record(record) => {
                self.clients.remove(&record.request);
                tracing::debug!(request = %record.request, outcome = ?record.outcome, total = %record.actual.total, "request over");
                self.meters.record(&record);
                self.store.record(record);
            }
            Effect::LoadChanged(variant, load) => self.meters.load(&variant, &load),
            // The driver has carried it out with the payload.
            Effect::Deliver(_) => {}
        }
    }

    fn command(&self, attempt: AttemptId, command: Command) {
        if let Some(commands) = self.offered.get(&attempt) {
            // It has room for every command there is; a closed one means that the task has ended.
            let _ = commands.try_send(command);
        }
    }

    fn last_words(&mut self, request: RequestId, answer: Answer) {
        if let Some(last) = self.clients.get_mut(&request).and_then(|client| client.last.take()) {
            last.send(answer);
        }
    }

    fn send(&mut self, candidate: &Candidate, header: ExecHeader) {
        let attempt = header.attempt;
        let Some(client) = self.clients.get(&attempt.request) else { return };
        let Some(link) = self.links.towards(&candidate.node, candidate.hop) else {
            let failure = Failure::Broken(candidate.node.to_string());
            return self.report(AgentEvent::Request(Event::Remote(attempt, AttemptEvent::Failed(failure))));
        };
        let (cancel, body_wanted) = (self.tasks.cancelled().child_token(), Arc::new(Notify::new()));
        let talk = remote::Talk {
            handle: self.handle.clone(),
            link,
            body: resumed(client, &header),
            header,
            body_wanted: Arc::clone(&body_wanted),
            answers: client.answers.clone(),
        };
        let span = tracing::info_span!("attempt", request = %attempt.request, number = attempt.number, at = %candidate.node);
        self.tasks.spawn("remote attempt", remote::run(talk, cancel.clone()).instrument(span));
        self.attempts.insert(attempt, Attempt { cancel, body_wanted });
    }

    fn run(&mut self, header: ExecHeader) {
        let attempt = header.attempt;
        if self.offered.contains_key(&attempt) {
            return self.command(attempt, Command::Run);
        }
        let Some(client) = self.clients.get(&attempt.request) else {
            return self.report(AgentEvent::Request(Event::Engine(attempt, AttemptEvent::Failed(Failure::ClientGone))));
        };
        let Some(engine) = self.engines.get(&header.variant) else {
            return self.report(AgentEvent::Request(Event::Engine(attempt, AttemptEvent::Refused(Reason::NoReplica, None))));
        };
        let cancel = self.tasks.cancelled().child_token();
        let run = execute::Own {
            handle: self.handle.clone(),
            reach: Reach { links: Arc::clone(&self.links), meters: Arc::clone(&self.meters) },
            engine: Arc::clone(engine),
            body: resumed(client, &header),
            header,
            answers: client.answers.clone(),
            cancel: cancel.clone(),
        };
        let span = tracing::debug_span!("execution", request = %attempt.request, number = attempt.number);
        self.tasks.spawn("own execution", execute::own(run).instrument(span));
        self.attempts.insert(attempt, Attempt { cancel, body_wanted: Arc::new(Notify::new()) });
    }

    /// Tells the agent something that is known at once, without waiting for its inbox.
    fn report(&self, event: AgentEvent) {
        let handle = self.handle.clone();
        self.tasks.spawn("report", async move { drop(handle.send(Message::Event(event)).await) });
    }
}

/// The body for this attempt: with what the client already has, when it continues.
fn resumed(client: &Client, header: &ExecHeader) -> Arc<Body> {
    if header.resume_from.0 == 0 {
        return Arc::clone(&client.body);
    }
    let mut body = (*client.body).clone();
    body.resume.clone_from(&client.delivered);
    Arc::new(body)
}
