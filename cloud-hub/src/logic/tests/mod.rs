//! Stories of the hub's logic, told in a universe of one hub, a few agents that are nothing but answers, and a clock.
//!
//! Every universe replays itself when it ends: its capture must give the same effects again.

mod identity;
mod operators;
mod plans;
mod presence;
mod reports;
mod storm;
mod streams;

use super::*;
use shared::fleet::{Load, NodeState, Profile, ProfileSource, ReplicaReport, ReplicaState, Telemetry};
use shared::ids::{Instance, PlanEpoch, SessionEpoch, VariantId};
use shared::plan::{Layer, Plan, PlanRows};
use shared::units::{Bytes, Fraction, Quality, TokenRate, Tokens};
use shared::wire::frame::{Goodbye, Hello, Pulse};
use shared::wire::mqtt::{Status, ViewMessage};
use shared::wire::{VERSION_MAX, VERSION_MIN};
use shared::work::{EngineKind, Service, Variant};
use std::collections::{BTreeMap, BTreeSet};

const MS: Micros = Micros::from_millis(1);
const SECOND: Micros = Micros::from_secs(1);
/// One way of every link.
const WAY: Micros = Micros::from_millis(20);

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("a good name")
}

fn assistant() -> Service {
    Service {
        id: "assistant".parse().expect("a good name"),
        aliases: Vec::new(),
        variants: vec![Variant {
            id: "tiny".parse().expect("a good name"),
            weights_sha256: None,
            quantisation: "q8_0".to_owned(),
            context: Tokens(2048),
            memory: Bytes(200_000_000),
            quality: Quality::new(0.5).expect("a quality"),
            quality_source: "made up for this test".to_owned(),
        }],
    }
}

fn replica() -> ReplicaReport {
    let rate = |rate| TokenRate::new(rate).expect("a rate");
    ReplicaReport {
        variant: "tiny".parse().expect("a good name"),
        engine: EngineKind::Profiled,
        device: String::new(),
        state: ReplicaState::Ready,
        load: Load { slots: 4, ..Load::default() },
        memory: Bytes(200_000_000),
        context: Tokens(2048),
        weights_sha256: None,
        layers: None,
        capabilities: Vec::new(),
        profile: Some(Profile {
            prompt: rate(400.0),
            decode: rate(40.0),
            overhead: Micros::from_millis(5),
            spread: Fraction::new(0.1).expect("a fraction"),
            source: ProfileSource::WarmUp,
            samples: 8,
            pace: None,
            load: None,
        }),
    }
}

fn telemetry(of: &NodeId) -> Telemetry {
    Telemetry { replicas: vec![replica()], ..Telemetry::of(of.clone()) }
}

/// What an agent holds of its session.
#[derive(Clone, Debug)]
struct Agent {
    instance: Instance,
    /// Whether its end of the connection still answers.
    answers: bool,
    session: Option<SessionEpoch>,
}

/// One hub, agents, a clock.
struct Universe {
    hub: Hub,
    first: Hub,
    log: Vec<(Moment, HubEvent)>,
    now: Moment,
    /// Everything that the hub wanted, in order.
    effects: Vec<HubEffect>,
    /// Events that are on their way to the hub.
    flying: BTreeSet<(Moment, u64)>,
    letters: BTreeMap<u64, HubEvent>,
    /// When each agent reports next, each heartbeat.
    beats: BTreeSet<(Moment, Connection)>,
    /// Nobody reports on MQTT.
    quiet: bool,
    /// What nodes report that hold something else than the usual replica.
    holding: BTreeMap<NodeId, Vec<ReplicaReport>>,
    numbers: u64,
    /// By connection; several may claim one node.
    agents: BTreeMap<Connection, (NodeId, Agent)>,
    views: BTreeMap<NodeId, ViewMessage>,
    plans: BTreeMap<NodeId, BTreeMap<Layer, Plan>>,
}

impl Universe {
    fn new() -> Self {
        Self::restored(Restored { services: vec![assistant()], ..Restored::default() })
    }

    fn restored(restored: Restored) -> Self {
        let hub = Hub::new(HubConfig::new(node("cloud/hub")), restored).expect("a hub");
        Self {
            first: hub.clone(),
            hub,
            log: Vec::new(),
            now: Moment(1),
            effects: Vec::new(),
            flying: BTreeSet::new(),
            letters: BTreeMap::new(),
            beats: BTreeSet::new(),
            quiet: false,
            holding: BTreeMap::new(),
            numbers: 0,
            agents: BTreeMap::new(),
            views: BTreeMap::new(),
            plans: BTreeMap::new(),
        }
    }

    /// Lets the hub take in an event, and returns what it wanted.
    fn tell(&mut self, event: HubEvent) -> Vec<HubEffect> {
        let mut effects = Vec::new();
        if let HubEvent::ConnectionLost { connection } = &event {
            self.agents.remove(connection);
        }
        self.hub.handle(self.now, event.clone(), &mut effects);
        self.log.push((self.now, event));
        for effect in &effects {
            self.carry_out(effect);
        }
        self.effects.extend(effects.clone());
        effects
    }

    fn carry_out(&mut self, effect: &HubEffect) {
        match effect {
            HubEffect::Ping { connection, number } | HubEffect::Challenge { connection, number } => {
                let answers = self.agents.get(connection).is_some_and(|(_, agent)| agent.answers);
                let pulse = Pulse { number: *number, loads: BTreeMap::new() };
                let pong = answers.then_some(HubEvent::Pong { connection: *connection, pulse });
                pong.into_iter().for_each(|pong| self.fly(self.now + WAY + WAY, pong));
            }
            HubEffect::Welcome { connection, welcome } => {
                if let Some((_, agent)) = self.agents.get_mut(connection) {
                    agent.session = Some(welcome.session);
                    self.beats.insert((self.now + welcome.heartbeat, *connection));
                }
            }
            HubEffect::CloseConnection { connection, .. } => {
                self.agents.remove(connection);
                self.fly(self.now + WAY, HubEvent::ConnectionLost { connection: *connection });
            }
            HubEffect::PublishPlan { node, plan } => {
                self.plans.entry(node.clone()).or_default().insert(plan.rows.layer(), plan.clone());
            }
            HubEffect::PublishView { node, view } => {
                self.views.insert(node.clone(), view.clone());
            }
            _ => {}
        }
    }

    fn fly(&mut self, at: Moment, event: HubEvent) {
        self.numbers += 1;
        self.flying.insert((at, self.numbers));
        self.letters.insert(self.numbers, event);
    }

    /// Lets time pass: letters arrive, deadlines come.
    fn pass(&mut self, span: Micros) {
        let end = self.now + span;
        loop {
            let (letter, beat) = (self.flying.first().copied(), self.beats.first().copied());
            let deadline = self.hub.next_deadline();
            let next = [letter.map(|(at, _)| at), beat.map(|(at, _)| at), deadline].into_iter().flatten().min();
            let Some(next) = next.filter(|next| *next <= end) else { break };
            let before = (self.now, self.log.len());
            self.now = self.now.max(next);
            if let Some(beat) = beat.filter(|(at, _)| *at <= self.now) {
                self.beats.remove(&beat);
                self.beat(beat.1);
                continue;
            }
            match letter.filter(|(at, _)| *at <= self.now) {
                Some(first) => {
                    self.flying.remove(&first);
                    let event = self.letters.remove(&first.1).expect("a letter for each number");
                    self.tell(event);
                }
                None => {
                    self.tell(HubEvent::Tick);
                    let later = self.hub.next_deadline().is_none_or(|deadline| deadline > self.now);
                    assert!(later, "a deadline that does not move is a busy loop: {before:?}");
                }
            }
        }
        self.now = end;
    }

    fn beat(&mut self, connection: Connection) {
        if let Some((node, agent)) = self.agents.get(&connection).cloned().filter(|(_, agent)| agent.answers && !self.quiet) {
            let session = Session { epoch: agent.session.expect("a session"), instance: agent.instance };
            let replicas = self.holding.get(&node).cloned().unwrap_or_else(|| vec![replica()]);
            let message = NodeMessage::Telemetry(Telemetry { replicas, ..telemetry(&node) });
            self.tell(HubEvent::Mqtt { message, node, session });
            self.beats.insert((self.now + Micros::from_secs(5), connection));
        }
    }

    /// A node says hello on a new connection, as a new process.
    fn hello(&mut self, name: &str) -> Connection {
        let instance = Instance(1000 + self.numbers);
        self.hello_as(name, instance, |_| {})
    }

    fn hello_as(&mut self, name: &str, instance: Instance, change: impl FnOnce(&mut Hello)) -> Connection {
        self.hello_with(name, &format!("5e{:02x}", name.len()), instance, change)
    }

    fn hello_with(&mut self, name: &str, serial: &str, instance: Instance, change: impl FnOnce(&mut Hello)) -> Connection {
        self.numbers += 1;
        let (connection, node) = (Connection(self.numbers), node(name));
        let mut hello = Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            node: node.clone(),
            instance,
            plan_epoch_seen: PlanEpoch::default(),
            session_epoch_seen: SessionEpoch::default(),
            replicas: vec![replica()],
        };
        change(&mut hello);
        self.agents.insert(connection, (node.clone(), Agent { instance, answers: true, session: None }));
        self.tell(HubEvent::HelloReceived { connection, node, serial: serial.to_owned(), hello });
        connection
    }

    /// Says hello and waits until the node can be given work and has its plans.
    fn join(&mut self, name: &str) -> Connection {
        let connection = self.hello(name);
        self.pass(SECOND);
        assert_eq!(self.state(name), NodeState::Online);
        connection
    }

    /// The process dies: nothing answers any more, and the hub's transport notices after its idle timeout.
    fn kill(&mut self, connection: Connection) {
        if let Some((_, agent)) = self.agents.get_mut(&connection) {
            agent.answers = false;
        }
        self.fly(self.now + Micros::from_secs(5), HubEvent::ConnectionLost { connection });
    }

    fn session(&self, connection: Connection) -> Session {
        let (_, agent) = self.agents.get(&connection).expect("an agent");
        Session { epoch: agent.session.expect("a session"), instance: agent.instance }
    }

    fn mqtt(&mut self, name: &str, session: Session, message: NodeMessage) -> Vec<HubEffect> {
        self.tell(HubEvent::Mqtt { node: node(name), session, message })
    }

    fn state(&self, name: &str) -> NodeState {
        self.row(name).state
    }

    fn row(&self, name: &str) -> NodeRow {
        self.hub.node(self.now, &node(name)).expect("a known node")
    }

    fn operate(&mut self, operation: AdminOperation) -> AdminReply {
        let effects = self.tell(HubEvent::Admin { token: ReplyToken(7), operation });
        let reply = effects.into_iter().find_map(|effect| match effect {
            HubEffect::Reply { token: ReplyToken(7), reply } => Some(reply),
            _ => None,
        });
        reply.expect("each operation is answered")
    }

    fn closed_with(&self, connection: Connection) -> Option<&Goodbye> {
        self.effects.iter().find_map(|effect| match effect {
            HubEffect::CloseConnection { connection: closed, goodbye } if *closed == connection => Some(goodbye),
            _ => None,
        })
    }

    /// Targets of the node's newest offload plan.
    fn targets(&self, name: &str) -> Vec<NodeId> {
        let plan = self.plans.get(&node(name)).and_then(|layers| layers.get(&Layer::Offload));
        match plan.map(|plan| &plan.rows) {
            Some(PlanRows::Offload(rows)) => rows.iter().flat_map(|row| &row.targets).map(|target| target.node.clone()).collect(),
            _ => Vec::new(),
        }
    }

    fn counter(&self, name: &str) -> u64 {
        self.hub.counters().get(name).copied().unwrap_or_default()
    }
}

/// Law of every story: the capture replays to the same effects and the same hub, also when the snapshot is taken in between.
impl Drop for Universe {
    fn drop(&mut self) {
        if std::thread::panicking() {
            return;
        }
        let (mut hub, mut effects) = (self.first.clone(), Vec::new());
        for (place, (now, event)) in self.log.iter().enumerate() {
            if place == self.log.len() / 2 {
                let written = serde_json::to_vec(&hub).expect("a snapshot can be written");
                hub = serde_json::from_slice(&written).expect("a snapshot can be read");
            }
            hub.handle(*now, event.clone(), &mut effects);
        }
        assert_eq!(effects.len(), self.effects.len(), "a replay wants as much");
        for (replayed, lived) in effects.iter().zip(&self.effects) {
            assert_eq!(replayed, lived, "a replay wants the same");
        }
        assert!(hub == self.hub, "a replay ends in the same state");
    }
}
