//! Agents: their processes, and what their logic wants done.

use super::capture::Capture;
use super::clients::Answer;
use super::engine::{Execution, Truth};
use super::net::{Host, Life, Parcel, Party, Purpose, StreamPiece};
use super::universe::{AgentSpec, Step, Universe};
use cloud_hub::logic::{Connection, HubEvent, NodeMessage};
use edge_node::logic::{
    Agent, AgentConfig, AgentEffect, AgentEvent, BrokerEvent, Ended, LinkId, PeerEvent, Persisted, Publication, UplinkEvent,
};
use shared::fleet::Costs;
use shared::ids::{AttemptId, Instance, NodeId};
use shared::plan::{DispatchSetting, Failure};
use shared::request::{AttemptEvent, Effect, Event};
use shared::units::{Micros, Moment};
use shared::wire::frame::Hello;
use shared::wire::mqtt::{Records, Session};
use shared::work::Catalogue;
use std::collections::{BTreeMap, BTreeSet};

/// A machine with an agent.
#[derive(Debug)]
pub(super) struct AgentHost {
    pub(super) spec: AgentSpec,
    pub(super) life: Life,
    pub(super) agent: Option<Agent>,
    pub(super) persisted: Option<Persisted>,
    pub(super) tick_at: Option<Moment>,
    pub(super) executions: BTreeMap<AttemptId, Execution>,
    pub(super) bodies: BTreeSet<AttemptId>,
    /// Stages that have hidden states to compute on and no slot yet.
    pub(super) hidden: BTreeSet<AttemptId>,
    pub(super) captures: Vec<Capture<AgentEvent, AgentEffect>>,
    pub(super) session: Option<Session>,
    next_link: LinkId,
}

impl AgentHost {
    pub(super) fn new(spec: AgentSpec) -> Self {
        Self {
            spec,
            life: 0,
            agent: None,
            persisted: None,
            tick_at: None,
            executions: BTreeMap::new(),
            bodies: BTreeSet::new(),
            hidden: BTreeSet::new(),
            captures: Vec::new(),
            session: None,
            next_link: 0,
        }
    }

    pub(super) fn copy(&self) -> Self {
        Self { persisted: self.persisted.clone(), ..Self::new(self.spec.clone()) }
    }

    pub(super) const fn lives(&self, life: Life) -> bool {
        self.agent.is_some() && self.life == life
    }

    pub(super) const fn party(&self, host: Host) -> Party {
        Party::Agent(host, self.life)
    }

    pub(super) fn die(&mut self) {
        self.agent = None;
        self.executions.clear();
        self.bodies.clear();
        self.hidden.clear();
        self.tick_at = None;
    }

    pub(super) fn name_link(&mut self) -> LinkId {
        self.next_link += 1;
        self.next_link
    }
}

impl Universe {
    #[expect(clippy::expect_used, reason = "the policies named here are in the tables")]
    pub(super) fn start_agent(&mut self, host: Host) {
        let setting = |policy: &str| DispatchSetting { policy: policy.to_owned(), config: serde_json::Value::Null };
        let machine = &mut self.agents[host];
        machine.life += 1;
        let seed = self.config.seed ^ u64::try_from(host).unwrap_or_default();
        let config = AgentConfig {
            node: machine.spec.node.clone(),
            tier: machine.spec.tier,
            hub: Some(self.config.hub.clone()),
            instance: Instance(seed.wrapping_mul(1_000_003) + machine.life),
            labels: BTreeMap::new(),
            costs: Costs::default(),
            addresses: vec![format!("host-{host}:1")],
            peer_addresses: BTreeMap::new(),
            version: "sim".to_owned(),
            dispatch: setting("min-latency"),
            splits: self.config.splits,
            allocation: setting("equal"),
            catalogue: Catalogue::default(),
            seed,
        };
        let agent = Agent::new(config, machine.persisted.clone()).expect("known policies");
        machine.captures.push(Capture::start(&agent));
        machine.agent = Some(agent);
        let replicas = machine.spec.engines.iter().map(Truth::report).collect();
        self.tell_agent(host, AgentEvent::Started);
        self.tell_agent(host, AgentEvent::Replicas(replicas));
    }

    pub(super) fn tell_agent(&mut self, host: Host, event: AgentEvent) {
        let now = self.now;
        let machine = &mut self.agents[host];
        let Some(agent) = &mut machine.agent else { return };
        let mut effects = Vec::new();
        agent.handle(now, event.clone(), &mut effects);
        let deadline = agent.next_deadline();
        if let Some(capture) = machine.captures.last_mut() {
            capture.note(now, event, effects.clone());
        }
        for effect in effects {
            self.agent_effect(host, effect);
        }
        self.payload = None;
        let machine = &mut self.agents[host];
        if let Some(at) = deadline.filter(|at| machine.agent.is_some() && machine.tick_at.is_none_or(|set| *at < set)) {
            machine.tick_at = Some(at);
            let life = machine.life;
            self.later(at.since(now), Step::AgentTick(host, life));
        }
    }

    fn agent_effect(&mut self, host: Host, effect: AgentEffect) {
        let party = self.agents[host].party(host);
        match effect {
            AgentEffect::Request(effect) => self.agent_request(host, effect),
            AgentEffect::Dial(number, _, hello) => self.dial_hub(host, number, *hello),
            // Every path here carries alike, so there is nothing to move for.
            AgentEffect::Move { .. }
            | AgentEffect::StayHere
            | AgentEffect::Retire
            | AgentEffect::Look(_)
            | AgentEffect::UsePeer(..)
            | AgentEffect::RetirePeer(..)
            | AgentEffect::Quarantined(_)
            | AgentEffect::Spool(_) => {}
            AgentEffect::HangUp(goodbye) => {
                if let Some(id) = self.net.uplink(&party) {
                    self.close(id, &Ended::Goodbye(goodbye));
                }
            }
            AgentEffect::Ping(pulse) => self.send_hub(&party, |connection| HubEvent::Pinged { connection, pulse }),
            AgentEffect::Pong(pulse) => self.send_hub(&party, |connection| HubEvent::Pong { connection, pulse }),
            AgentEffect::ConnectBroker { number, session, .. } => self.dial_broker(host, number, session),
            AgentEffect::DisconnectBroker => {
                if let Some(id) = self.net.broker(&party) {
                    self.net.pipes.remove(&id);
                }
            }
            AgentEffect::Publish(session, publication) => self.publish(host, session, *publication),
            AgentEffect::DialPeer { node, addresses, hello, .. } => self.dial_peer(host, &node, &addresses, *hello),
            AgentEffect::HangUpPeer(_, link, goodbye) => {
                if let Some(id) = self.net.peer(&party, link) {
                    self.close(id, &Ended::Goodbye(goodbye));
                }
            }
            AgentEffect::PingPeer(_, link, pulse) => self.send_peer(&party, link, |link| PeerEvent::Ping(link, pulse)),
            AgentEffect::PongPeer(_, link, pulse) => self.send_peer(&party, link, |link| PeerEvent::Pong(link, pulse)),
            AgentEffect::TellPeer(_, link, hello) => {
                self.send_peer(&party, link, |link| PeerEvent::Replicas(link, hello.replicas));
            }
            // Nobody asks over HTTP here.
            AgentEffect::Keys(_) | AgentEffect::Revoked(_) => {}
            AgentEffect::Persist(persisted) => self.agents[host].persisted = Some(*persisted),
        }
    }

    fn agent_request(&mut self, host: Host, effect: Effect) {
        let life = self.agents[host].life;
        match effect {
            Effect::Decided(decision) => self.clients.decided(*decision),
            Effect::Deliver(attempt) => self.deliver_payload(attempt),
            Effect::Finish(request, finish, usage) => self.clients.end(request, Answer::Whole(finish, usage)),
            Effect::Fail(request, failure) => self.clients.end(request, Answer::Error(failure)),
            Effect::Record(record) => self.clients.recorded(*record),
            Effect::Send { candidate, header } => self.open_route(host, candidate.hop, header),
            Effect::SendBody(attempt) => self.along(host, attempt, StreamPiece::Body),
            Effect::Reset(attempt) => self.reset_route(host, attempt),
            Effect::Run(header) => self.run(host, header),
            Effect::Abort(attempt) => {
                self.abandon(host, attempt);
                let gone = Event::Engine(attempt, AttemptEvent::Failed(Failure::ClientGone));
                self.later(Micros::from_millis(1), Step::Agent(host, life, AgentEvent::Request(gone)));
            }
            Effect::Accept(attempt, load) => {
                self.back(host, attempt, AttemptEvent::Accepted(load), 0);
                self.later(Micros::from_secs(1), Step::Sign(host, life, attempt));
            }
            Effect::Refuse(attempt, reason, load) => self.back(host, attempt, AttemptEvent::Refused(reason, load), 0),
            Effect::Drop(attempt, failure) => self.back(host, attempt, AttemptEvent::Failed(failure), 0),
            Effect::LoadChanged(..) => {}
        }
    }

    pub(super) fn deliver_payload(&mut self, attempt: AttemptId) {
        #[expect(clippy::expect_used, reason = "a core that delivers what did not come is wrong")]
        let (of, first, count) = self.payload.take().expect("content came with this event");
        assert_eq!(of, attempt, "the content of another attempt");
        self.clients.deliver(attempt, first, count);
    }

    fn dial_hub(&mut self, host: Host, dial: u64, hello: Hello) {
        let (party, life, delay) = (self.agents[host].party(host), self.agents[host].life, self.config.uplink_delay);
        if let Some(old) = self.net.uplink(&party) {
            self.close(old, &Ended::Broken("dialled again".to_owned()));
        }
        if self.hub.hub.is_none() || self.net.cut.contains(&host) {
            let ended = UplinkEvent::Ended(Ended::Broken("no answer".to_owned()));
            return self.later(Micros::from_secs(3), Step::Agent(host, life, AgentEvent::Uplink(dial, ended)));
        }
        let connection = self.hub.name_connection();
        let node = self.agents[host].spec.node.clone();
        let purpose = Purpose::Uplink { node: node.clone(), dial, connection };
        let id = self.net.open([party, Party::Hub(self.hub.life)], purpose, delay, vec![host]);
        let serial = serial_of(&node);
        self.send(id, 1, Parcel::ToHub(HubEvent::HelloReceived { connection, node, serial, hello }));
        self.later(delay + delay, Step::Agent(host, life, AgentEvent::Uplink(dial, UplinkEvent::Connected)));
    }

    fn send_hub(&mut self, party: &Party, event: impl FnOnce(Connection) -> HubEvent) {
        let Some(id) = self.net.uplink(party) else { return };
        if let Purpose::Uplink { connection, .. } = self.net.pipes[&id].purpose {
            self.send(id, 1, Parcel::ToHub(event(connection)));
        }
    }

    fn dial_broker(&mut self, host: Host, number: u64, session: Session) {
        let (party, life, delay) = (self.agents[host].party(host), self.agents[host].life, self.config.uplink_delay);
        let node = self.agents[host].spec.node.clone();
        if self.hub.hub.is_none() || self.net.cut.contains(&host) {
            let down = AgentEvent::Broker(number, BrokerEvent::Down("no answer".to_owned()));
            return self.later(Micros::from_secs(3), Step::Agent(host, life, down));
        }
        // One client id has one connection: a second takes over, and the first one's will is published.
        let same = |purpose: &Purpose| matches!(purpose, Purpose::Broker { node: held, .. } if *held == node);
        let older: Vec<_> = self.net.pipes.iter().filter(|(_, pipe)| same(&pipe.purpose)).map(|(id, _)| *id).collect();
        for id in older {
            self.close(id, &Ended::Broken("taken over".to_owned()));
        }
        self.agents[host].session = Some(session);
        let purpose = Purpose::Broker { node: node.clone(), number };
        let id = self.net.open([party, Party::Hub(self.hub.life)], purpose, delay, vec![host]);
        self.send(id, 0, Parcel::ToAgent(AgentEvent::Broker(number, BrokerEvent::Up)));
        for plan in self.hub.retained(&node) {
            self.send(id, 0, Parcel::ToAgent(AgentEvent::Broker(number, BrokerEvent::Plan(Box::new(plan)))));
        }
    }

    fn publish(&mut self, host: Host, session: Session, publication: Publication) {
        let (node, party) = (self.agents[host].spec.node.clone(), self.agents[host].party(host));
        let Some(id) = self.net.broker(&party) else { return };
        let message = match publication {
            Publication::Status(status) => NodeMessage::Status(status),
            Publication::Inventory(inventory) => NodeMessage::Inventory(Box::new(inventory)),
            Publication::Telemetry(telemetry) => NodeMessage::Telemetry(telemetry),
            Publication::PlanAck(ack) => NodeMessage::PlanAck(ack),
            Publication::Records(records) => NodeMessage::Records(Records { records }),
        };
        self.send(id, 1, Parcel::ToHub(HubEvent::Mqtt { node, session, message }));
    }

    fn dial_peer(&mut self, host: Host, node: &NodeId, addresses: &[String], hello: Hello) {
        let (life, delay) = (self.agents[host].life, self.config.site_delay);
        let listens = |(other, machine): &(usize, &AgentHost)| {
            machine.spec.node == *node && machine.agent.is_some() && addresses.contains(&format!("host-{other}:1"))
        };
        let target = self.agents.iter().enumerate().find(listens).map(|(other, _)| other);
        let me = self.agents[host].spec.node.clone();
        let reachable = |other: &usize| me.site() == node.site() && ![host, *other].iter().any(|h| self.net.isolated.contains(h));
        let Some(other) = target.filter(reachable) else {
            let unreachable = PeerEvent::Unreachable("no answer".to_owned());
            return self.later(Micros::from_secs(1), Step::Agent(host, life, AgentEvent::Peer(node.clone(), unreachable)));
        };
        let ends = [self.agents[host].party(host), self.agents[other].party(other)];
        // names[i] is how end 1 - i calls end i.
        let (mine, theirs) = (self.agents[host].name_link(), self.agents[other].name_link());
        let names = [(me.clone(), theirs), (node.clone(), mine)];
        let id = self.net.open(ends, Purpose::Peer { names }, delay, vec![host, other]);
        let rtt = delay + delay;
        let held = self.agents[other].spec.engines.iter().map(Truth::report).collect();
        let up = PeerEvent::Up { link: theirs, rtt, replicas: hello.replicas, transport: None, address: None };
        self.send(id, 1, Parcel::ToAgent(AgentEvent::Peer(me, up)));
        let up = PeerEvent::Up { link: mine, rtt, replicas: held, transport: None, address: None };
        self.later(rtt, Step::Agent(host, life, AgentEvent::Peer(node.clone(), up)));
    }

    fn send_peer(&mut self, party: &Party, link: LinkId, event: impl FnOnce(LinkId) -> PeerEvent) {
        let Some(id) = self.net.peer(party, link) else { return };
        let pipe = &self.net.pipes[&id];
        let Purpose::Peer { names } = &pipe.purpose else { return };
        let from = usize::from(pipe.ends[1] == *party);
        let (node, link) = names[from].clone();
        self.send(id, 1 - from, Parcel::ToAgent(AgentEvent::Peer(node, event(link))));
    }
}

/// The one certificate of a node.
pub(super) fn serial_of(node: &NodeId) -> String {
    node.topic_level()
}
