//! The hub: its process with the broker in it, and what its logic wants done.

use super::agents::serial_of;
use super::capture::Capture;
use super::clients::Answer;
use super::net::{Life, Parcel, Party, PipeId, Purpose, Route, StreamPiece};
use super::universe::{Step, Universe, UniverseConfig};
use cloud_hub::logic::{
    Change, Connection, Hub, HubConfig, HubEffect, HubEvent, NodeMessage, Note, Restored, RestoredNode, Stream,
};
use edge_node::logic::{AgentEvent, BrokerEvent, Ended, UplinkEvent};
use shared::ids::{AttemptId, NodeId};
use shared::plan::{Layer, Plan};
use shared::request::{AttemptEvent, Effect};
use shared::units::Moment;
use shared::wire::frame::Pulse;
use shared::wire::mqtt::{Session, Status};
use std::collections::BTreeMap;

/// The machine of the hub. Store and retained messages outlive the process.
#[derive(Debug)]
pub(super) struct HubHost {
    config: HubConfig,
    pub(super) life: Life,
    pub(super) hub: Option<Hub>,
    pub(super) store: Restored,
    pub(super) tick_at: Option<Moment>,
    pub(super) captures: Vec<Capture<HubEvent, HubEffect>>,
    pub(super) notes: Vec<Note>,
    retained: BTreeMap<(NodeId, Layer), Plan>,
    statuses: BTreeMap<NodeId, (Session, Status)>,
    connections: u64,
    streams: BTreeMap<Stream, AttemptId>,
    next_stream: u64,
}

impl HubHost {
    pub(super) fn new(config: &UniverseConfig) -> Self {
        let store = Restored { services: config.services.clone(), ..Restored::default() };
        Self {
            config: HubConfig { seed: config.seed, splits: config.splits, ..HubConfig::new(config.hub.clone()) },
            life: 0,
            hub: None,
            store,
            tick_at: None,
            captures: Vec::new(),
            notes: Vec::new(),
            retained: BTreeMap::new(),
            statuses: BTreeMap::new(),
            connections: 0,
            streams: BTreeMap::new(),
            next_stream: 0,
        }
    }

    pub(super) const fn lives(&self, life: Life) -> bool {
        self.hub.is_some() && self.life == life
    }

    pub(super) fn die(&mut self) {
        self.hub = None;
        self.tick_at = None;
        self.streams.clear();
    }

    pub(super) const fn name_connection(&mut self) -> Connection {
        self.connections += 1;
        Connection(self.connections)
    }

    pub(super) fn retained(&self, node: &NodeId) -> Vec<Plan> {
        self.retained.iter().filter(|((of, _), _)| of == node).map(|(_, plan)| plan.clone()).collect()
    }

    fn keep(&mut self, change: Change) {
        match change {
            Change::Incarnation(incarnation) => self.store.incarnation = incarnation,
            Change::SessionEpoch(epoch) => self.store.session_epoch = epoch,
            Change::Node(node) => {
                self.store.nodes.retain(|held| held.node != node.node);
                self.store.nodes.push(node);
            }
            Change::Service(service) => {
                self.store.services.retain(|held| held.id != service.id);
                self.store.services.push(service);
            }
            Change::Key(key) => self.store.keys.push(key),
            Change::KeyRevoked(name) => self.store.keys.retain(|held| held.name != name),
            Change::Dispatch(setting) => self.store.dispatch = Some(setting),
            Change::ServiceRemoved(id) => self.store.services.retain(|held| held.id != id),
        }
    }
}

impl Universe {
    #[expect(clippy::expect_used, reason = "the policies named here are in the tables")]
    pub(super) fn start_hub(&mut self) {
        self.hub.life += 1;
        let hub = Hub::new(self.hub.config.clone(), self.hub.store.clone()).expect("known policies");
        self.hub.captures.push(Capture::start(&hub));
        self.hub.hub = Some(hub);
        self.tell_hub(HubEvent::Tick);
        // A broker that starts again hands out what it retained.
        for (node, (session, status)) in self.hub.statuses.clone() {
            self.tell_hub(HubEvent::Mqtt { node, session, message: NodeMessage::Status(status) });
        }
    }

    /// The CA gave the node a certificate, long ago.
    pub(super) fn enrol(&mut self, node: &NodeId) {
        let serial = serial_of(node);
        if self.hub.hub.is_some() {
            self.tell_hub(HubEvent::Enrolled { node: node.clone(), serial, labels: BTreeMap::new() });
        } else {
            let (labels, revoked) = (BTreeMap::new(), std::collections::BTreeSet::new());
            self.hub.keep(Change::Node(RestoredNode {
                node: node.clone(),
                labels,
                serials: [serial].into(),
                revoked,
                drained: false,
            }));
        }
    }

    /// What the hub noted so far, over all its lives.
    #[must_use]
    pub fn notes(&self) -> &[Note] {
        &self.hub.notes
    }

    pub(super) fn tell_hub(&mut self, event: HubEvent) {
        let now = self.now;
        let Some(hub) = &mut self.hub.hub else { return };
        if let HubEvent::Mqtt { node, session, message: NodeMessage::Status(status) } = &event {
            self.hub.statuses.insert(node.clone(), (*session, status.clone()));
        }
        let mut effects = Vec::new();
        hub.handle(now, event.clone(), &mut effects);
        let deadline = hub.next_deadline();
        if let Some(capture) = self.hub.captures.last_mut() {
            capture.note(now, event, effects.clone());
        }
        for effect in effects {
            self.hub_effect(effect);
        }
        self.payload = None;
        if let Some(at) = deadline.filter(|at| self.hub.tick_at.is_none_or(|set| *at < set)) {
            self.hub.tick_at = Some(at);
            let life = self.hub.life;
            self.later(at.since(now), Step::HubTick(life));
        }
    }

    fn hub_effect(&mut self, effect: HubEffect) {
        match effect {
            HubEffect::Persist(change) => self.hub.keep(change),
            HubEffect::Welcome { connection, welcome } => self.up(connection, UplinkEvent::Welcomed(Box::new(welcome))),
            HubEffect::Ping { connection, number } | HubEffect::Challenge { connection, number } => {
                self.up(connection, UplinkEvent::Ping(Pulse { number, loads: BTreeMap::new() }));
            }
            HubEffect::Pong { connection, number } => {
                self.up(connection, UplinkEvent::Pong(Pulse { number, loads: BTreeMap::new() }))
            }
            HubEffect::CloseConnection { connection, goodbye } => {
                if let Some(id) = self.net.connection(connection) {
                    self.close(id, &Ended::Goodbye(goodbye));
                }
            }
            HubEffect::PublishPlan { node, plan } => {
                self.hub.retained.insert((node.clone(), plan.rows.layer()), plan.clone());
                self.send_subscriber(&node, BrokerEvent::Plan(Box::new(plan)));
            }
            HubEffect::ClearPlan { node, layer } => {
                self.hub.retained.remove(&(node, layer));
            }
            HubEffect::PublishView { node, view } => self.send_subscriber(&node, BrokerEvent::View(Box::new(view))),
            // Nobody asks over HTTP here.
            HubEffect::Keys(_) => {}
            HubEffect::KickMqtt { node } => {
                if let Some(id) = self.subscription(&node) {
                    self.close(id, &Ended::Broken("kicked".to_owned()));
                }
            }
            HubEffect::RelayOpen { stream, to } => self.relay_open(stream, to),
            HubEffect::RelayRefuse { stream, reason } => self.relay_answer(stream, AttemptEvent::Refused(reason, None)),
            HubEffect::RelayClose { stream } => {
                if let Some(attempt) = self.hub.streams.remove(&stream) {
                    self.break_route(attempt);
                }
            }
            HubEffect::Send { to, header } => self.send_own(to, header),
            HubEffect::Request(effect) => self.hub_request(effect),
            HubEffect::StoreRecord(record) => {
                if record.ingress == self.config.hub {
                    self.clients.recorded(*record);
                }
            }
            HubEffect::Reply { .. } => {}
            HubEffect::Note(note) => self.hub.notes.push(note),
        }
    }

    fn hub_request(&mut self, effect: Effect) {
        match effect {
            Effect::Decided(decision) => self.clients.decided(*decision),
            Effect::Deliver(attempt) => self.deliver_payload(attempt),
            Effect::Finish(request, finish, usage) => self.clients.end(request, Answer::Whole(finish, usage)),
            Effect::Fail(request, failure) => self.clients.end(request, Answer::Error(failure)),
            Effect::SendBody(attempt) => self.down(attempt, StreamPiece::Body),
            Effect::Reset(attempt) => self.down(attempt, StreamPiece::Reset),
            other => unreachable!("the hub executes nothing: {other:?}"),
        }
    }

    fn up(&mut self, connection: Connection, event: UplinkEvent) {
        let Some(id) = self.net.connection(connection) else { return };
        if let Purpose::Uplink { dial, .. } = self.net.pipes[&id].purpose {
            self.send(id, 0, Parcel::ToAgent(AgentEvent::Uplink(dial, event)));
        }
    }

    fn subscription(&self, node: &NodeId) -> Option<PipeId> {
        let of = |purpose: &Purpose| matches!(purpose, Purpose::Broker { node: held, .. } if held == node);
        self.net.pipes.iter().rev().find(|(_, pipe)| of(&pipe.purpose)).map(|(id, _)| *id)
    }

    fn send_subscriber(&mut self, node: &NodeId, event: BrokerEvent) {
        let Some(id) = self.subscription(node) else { return };
        if let Purpose::Broker { number, .. } = self.net.pipes[&id].purpose {
            self.send(id, 0, Parcel::ToAgent(AgentEvent::Broker(number, event)));
        }
    }

    /// The broker publishes the last will of a connection that broke.
    pub(super) fn will(&mut self, node: &NodeId, party: &Party) {
        let Party::Agent(host, _) = party else { return };
        if let Some(session) = self.agents[*host].session {
            self.later(self.config.will_delay, Step::Will(node.clone(), session));
        }
    }

    pub(super) fn publish_will(&mut self, node: NodeId, session: Session) {
        self.tell_hub(HubEvent::Mqtt { node, session, message: NodeMessage::Status(Status { online: false }) });
    }

    pub(super) fn stream_at_hub(&mut self, attempt: AttemptId, over: PipeId, piece: StreamPiece) {
        let Some(route) = self.net.routes.get(&attempt).cloned() else { return };
        if route.ingress.is_none() {
            return self.own_news(attempt, piece);
        }
        if let StreamPiece::Header = piece {
            let Purpose::Uplink { connection, .. } = self.net.pipes[&over].purpose else { return };
            self.hub.next_stream += 1;
            let stream = Stream(self.hub.next_stream);
            self.hub.streams.insert(stream, attempt);
            if let Some(route) = self.net.routes.get_mut(&attempt) {
                route.stream = Some(stream);
            }
            return self.tell_hub(HubEvent::RelayAsked { connection, stream, header: route.header });
        }
        if let StreamPiece::Body = piece {
            let hub = self.config.hub.clone();
            self.clients.saw(attempt.request, &hub);
        }
        let over_now = is_last(&piece);
        let onward = route.legs.iter().copied().find(|leg| *leg != over);
        match onward {
            Some(leg) => self.over(leg, &Party::Hub(self.hub.life), Parcel::Stream(attempt, piece)),
            // Withdrawn before the relay was opened.
            None => drop(self.net.routes.remove(&attempt)),
        }
        if over_now && let Some(stream) = route.stream {
            self.hub.streams.remove(&stream);
            self.tell_hub(HubEvent::RelayClosed { stream });
        }
    }

    fn relay_open(&mut self, stream: Stream, to: Connection) {
        let Some(attempt) = self.hub.streams.get(&stream).copied() else { return };
        let leg = self.net.connection(to);
        match (leg, self.net.routes.get_mut(&attempt)) {
            (Some(leg), Some(route)) => {
                route.legs.push(leg);
                self.over(leg, &Party::Hub(self.hub.life), Parcel::Stream(attempt, StreamPiece::Header));
            }
            _ => self.break_route(attempt),
        }
    }

    fn relay_answer(&mut self, stream: Stream, event: AttemptEvent) {
        let Some(attempt) = self.hub.streams.remove(&stream) else { return };
        if let Some(leg) = self.net.routes.get(&attempt).and_then(|route| route.legs.first().copied()) {
            self.over(leg, &Party::Hub(self.hub.life), Parcel::Stream(attempt, StreamPiece::News(event, 0)));
        }
    }

    fn send_own(&mut self, to: Connection, header: shared::work::ExecHeader) {
        let attempt = header.attempt;
        let Some(leg) = self.net.connection(to) else {
            let broken = AttemptEvent::Failed(shared::plan::Failure::Broken(header.target.to_string()));
            return self.later(shared::units::Micros(1), Step::Hub(self.hub.life, HubEvent::Remote(attempt, broken)));
        };
        self.net.routes.insert(attempt, Route { header, ingress: None, legs: vec![leg], stream: None, executor: None });
        self.down(attempt, StreamPiece::Header);
    }

    fn down(&mut self, attempt: AttemptId, piece: StreamPiece) {
        if let Some(leg) = self.net.routes.get(&attempt).and_then(|route| route.legs.first().copied()) {
            self.over(leg, &Party::Hub(self.hub.life), Parcel::Stream(attempt, piece));
        }
    }

    fn own_news(&mut self, attempt: AttemptId, piece: StreamPiece) {
        let StreamPiece::News(event, first) = piece else { return };
        if matches!(event, AttemptEvent::Ended(..) | AttemptEvent::Failed(_) | AttemptEvent::Refused(..)) {
            self.net.routes.remove(&attempt);
        }
        if let AttemptEvent::Content(count) = event {
            self.payload = Some((attempt, first, count.0));
        }
        self.tell_hub(HubEvent::Remote(attempt, event));
    }
}

fn is_last(piece: &StreamPiece) -> bool {
    match piece {
        StreamPiece::Reset => true,
        StreamPiece::News(event, _) => {
            matches!(event, AttemptEvent::Ended(..) | AttemptEvent::Failed(_) | AttemptEvent::Refused(..))
        }
        StreamPiece::Header | StreamPiece::Body | StreamPiece::Hidden | StreamPiece::Drawn | StreamPiece::Close => false,
    }
}
