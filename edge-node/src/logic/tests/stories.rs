//! Stories of one agent: a hub that comes and goes, plans, views, peers, told event by event in virtual time.

use crate::logic::{
    Agent, AgentConfig, AgentEffect, AgentEvent, BrokerEvent, Ended, PeerEvent, Persisted, Publication, UplinkEvent,
};
use shared::fleet::{Costs, Hop, Load, NodeState, PathReport, Profile, ProfileSource, ReplicaReport, ReplicaState, Tier};
use shared::ids::{Instance, NodeId, PlanEpoch, RequestId, ScopeId, ServiceId, SessionEpoch, VariantId};
use shared::plan::{DispatchSetting, Layer, OffloadRow, Plan, PlanRows, Target};
use shared::request::{AttemptEvent, Effect, Event};
use shared::units::{Bytes, Fraction, Micros, Moment, Quality, TokenRate, Tokens};
use shared::wire::frame::{Goodbye, Pulse, Welcome};
use shared::wire::mqtt::{AckState, ViewMessage, ViewNode};
use shared::work::{Catalogue, EngineKind, Features, LlmRequest, Needs, PromptKind, Service, Variant};

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("good")
}

fn catalogue() -> Catalogue {
    let variant = Variant {
        id: VariantId::new("small").expect("good"),
        weights_sha256: None,
        quantisation: String::new(),
        context: Tokens(2_048),
        memory: Bytes(0),
        quality: Quality::new(0.5).expect("good"),
        quality_source: "test".to_owned(),
    };
    let service = Service { id: ServiceId::new("assistant").expect("good"), aliases: Vec::new(), variants: vec![variant] };
    Catalogue::new([service]).expect("good")
}

fn replica() -> ReplicaReport {
    ReplicaReport {
        variant: VariantId::new("small").expect("good"),
        engine: EngineKind::Profiled,
        state: ReplicaState::Ready,
        load: Load { slots: 1, ..Load::default() },
        memory: Bytes(0),
        context: Tokens(2_048),
        capabilities: Vec::new(),
        profile: Some(Profile {
            prompt: TokenRate::new(1_000.0).expect("good"),
            decode: TokenRate::new(100.0).expect("good"),
            overhead: Micros::ZERO,
            spread: Fraction::new(0.1).expect("good"),
            source: ProfileSource::Declared,
            samples: 1,
        }),
    }
}

fn config() -> AgentConfig {
    AgentConfig {
        node: node("lab/b"),
        tier: Tier::Device,
        hub: Some(node("cloud/hub")),
        instance: Instance(77),
        labels: Default::default(),
        costs: Costs::default(),
        addresses: vec!["127.0.0.1:1".to_owned()],
        version: "test".to_owned(),
        dispatch: DispatchSetting { policy: "min-latency".to_owned(), config: serde_json::Value::Null },
        allocation: DispatchSetting { policy: "equal".to_owned(), config: serde_json::Value::Null },
        catalogue: catalogue(),
        seed: 5,
    }
}

/// One agent, its clock, and what it wanted done last.
struct World {
    agent: Agent,
    now: Moment,
    last: Vec<AgentEffect>,
    log: Vec<(Moment, AgentEvent)>,
    sessions: u64,
    /// Number of the present broker connection.
    broker: u64,
}

impl World {
    fn new(restored: Option<Persisted>) -> Self {
        let agent = Agent::new(config(), restored).expect("known policies");
        let mut world = Self { agent, now: Moment(1), last: Vec::new(), log: Vec::new(), sessions: 0, broker: 0 };
        world.tell(AgentEvent::Started);
        world
    }

    fn tell(&mut self, event: AgentEvent) -> &[AgentEffect] {
        self.last.clear();
        self.log.push((self.now, event.clone()));
        self.agent.handle(self.now, event, &mut self.last);
        assert!(self.agent.next_deadline().is_none_or(|at| at > self.now), "a deadline that has passed would spin the driver");
        &self.last
    }

    /// Lets time pass deadline by deadline; returns all that was wanted meanwhile.
    fn pass(&mut self, span: Micros) -> Vec<AgentEffect> {
        let end = self.now + span;
        let mut all = Vec::new();
        while let Some(at) = self.agent.next_deadline().filter(|at| *at <= end) {
            self.now = at;
            all.extend(self.tell(AgentEvent::Tick).to_vec());
        }
        self.now = end;
        all.extend(self.tell(AgentEvent::Tick).to_vec());
        all
    }

    /// Lets time pass until it dials the hub.
    fn dial(&mut self) -> u64 {
        loop {
            let dial =
                self.last.iter().find_map(|effect| if let AgentEffect::Dial(number, _) = effect { Some(*number) } else { None });
            if let Some(number) = dial {
                return number;
            }
            self.now = self.agent.next_deadline().expect("it tries again");
            self.tell(AgentEvent::Tick);
        }
    }

    /// Hub and broker answer.
    fn connect(&mut self) -> Vec<AgentEffect> {
        let dial = self.dial();
        self.sessions += 1;
        let welcome = Welcome {
            version: 1,
            node: node("cloud/hub"),
            session: SessionEpoch(self.sessions),
            heartbeat: Micros::from_secs(5),
            broker: "hub:1883".to_owned(),
            replicas: Vec::new(),
        };
        self.tell(AgentEvent::Uplink(dial, UplinkEvent::Welcomed(Box::new(welcome))));
        self.broker = self
            .last
            .iter()
            .find_map(|effect| if let AgentEffect::ConnectBroker { number, .. } = effect { Some(*number) } else { None })
            .expect("it connects to the broker");
        self.broker(BrokerEvent::Up)
    }

    fn broker(&mut self, event: BrokerEvent) -> Vec<AgentEffect> {
        self.tell(AgentEvent::Broker(self.broker, event)).to_vec()
    }

    fn view(&mut self, sequence: u64, nodes: Vec<ViewNode>) -> Vec<AgentEffect> {
        let epoch = PlanEpoch { incarnation: 1, sequence };
        let view = ViewMessage { epoch, nodes, catalogue: None, revoked: Vec::new(), drain: false };
        self.broker(BrokerEvent::View(Box::new(view)))
    }
}

fn published(effects: &[AgentEffect]) -> Vec<&Publication> {
    effects.iter().filter_map(|effect| if let AgentEffect::Publish(_, what) = effect { Some(&**what) } else { None }).collect()
}

fn shown(name: &str) -> ViewNode {
    ViewNode {
        node: node(name),
        tier: Tier::Cloud,
        state: NodeState::Online,
        costs: Costs::default(),
        addresses: vec!["127.0.0.1:9".to_owned()],
        uplink: Some(PathReport::with_rtt(Hop::Direct, Micros::from_millis(20))),
        replicas: vec![replica()],
        age: Some(Micros::from_millis(100)),
    }
}

fn offload(sequence: u64) -> Plan {
    let target = Target {
        node: node("cloud/big"),
        variant: VariantId::new("small").expect("good"),
        share: Fraction::new(1.0).expect("good"),
        open_max: 8,
    };
    let row = OffloadRow { edge: node("lab/b"), service: ServiceId::new("assistant").expect("good"), targets: vec![target] };
    Plan {
        scope: ScopeId::new("lab/b").expect("good"),
        owner: node("cloud/hub"),
        epoch: PlanEpoch { incarnation: 1, sequence },
        based_on: None,
        valid_for: Micros::from_secs(30),
        rows: PlanRows::Offload(vec![row]),
    }
}

fn request(id: u128) -> LlmRequest {
    LlmRequest {
        id: RequestId(id),
        service: ServiceId::new("assistant").expect("good"),
        pinned: None,
        kind: PromptKind::Chat,
        prompt: Tokens(10),
        output_max: Tokens(10),
        features: Features::default(),
        stream: false,
        body: Bytes(100),
        needs: Needs::default(),
    }
}

#[test]
fn the_hub_comes_goes_and_comes_back_and_local_work_never_stops() {
    let mut world = World::new(None);
    assert!(world.agent.degraded());
    world.tell(AgentEvent::Replicas(vec![replica()]));
    world.pass(Micros::from_secs(60));
    world.tell(AgentEvent::Request(Event::Arrived(request(1))));
    assert!(world.last.iter().any(|effect| matches!(effect, AgentEffect::Request(Effect::Run(_)))), "no hub was ever there");
    world.pass(Micros::from_millis(1));
    let greeting = world.connect();
    assert!(!world.agent.degraded());
    assert!(
        matches!(&published(&greeting)[..], [Publication::Status(status), Publication::Inventory(_), Publication::Telemetry(_)] if status.online),
        "{greeting:?}"
    );
    // Silence for three seconds ends it.
    let effects = world.pass(Micros::from_secs(4));
    assert!(effects.iter().any(|effect| matches!(effect, AgentEffect::HangUp(_))));
    assert!(effects.contains(&AgentEffect::DisconnectBroker));
    assert!(world.agent.degraded());
    world.connect();
    assert!(!world.agent.degraded());
}

#[test]
fn late_news_of_an_older_connection_change_nothing() {
    let mut world = World::new(None);
    let first = world.dial();
    world.tell(AgentEvent::Uplink(first, UplinkEvent::Ended(Ended::Broken("refused".to_owned()))));
    world.connect();
    world.tell(AgentEvent::Uplink(first, UplinkEvent::Ended(Ended::Broken("again".to_owned()))));
    assert!(!world.agent.degraded());
}

#[test]
fn a_hub_that_throws_us_out_is_dialled_less_and_less_often_yet_within_a_heartbeat() {
    let mut world = World::new(None);
    let mut gaps = Vec::new();
    for _ in 0..30 {
        world.connect();
        let dial = world.dial_number();
        let thrown_out = world.now;
        world.tell(AgentEvent::Uplink(dial, UplinkEvent::Ended(Ended::Goodbye(Goodbye::Cloned))));
        world.dial();
        gaps.push(world.now.since(thrown_out));
    }
    assert!(gaps.iter().all(|gap| *gap <= Micros::from_millis(2_500) && *gap >= Micros::from_millis(50)), "{gaps:?}");
    assert!(gaps[10..].iter().any(|gap| *gap > Micros::from_secs(1)), "being let in and thrown out does not reset: {gaps:?}");
}

#[test]
fn plans_and_views_make_a_relayed_target_and_its_loss_unmakes_it() {
    let mut world = World::new(None);
    world.connect();
    let acks = world.broker(BrokerEvent::Plan(Box::new(offload(4))));
    assert!(published(&acks).iter().any(|what| matches!(what, Publication::PlanAck(ack) if ack.state == AckState::Applied)));
    world.view(1, vec![shown("cloud/big")]);
    world.tell(AgentEvent::Request(Event::Arrived(request(1))));
    let sent = |effects: &[AgentEffect]| {
        effects
            .iter()
            .any(|effect| matches!(effect, AgentEffect::Request(Effect::Send { candidate, .. }) if candidate.hop == Hop::Relay))
    };
    assert!(sent(&world.last), "{:?}", world.last);
    // An older view does not bring back what a newer one took away.
    world.view(3, Vec::new());
    world.view(2, vec![shown("cloud/big")]);
    world.tell(AgentEvent::Request(Event::Arrived(request(2))));
    assert!(!sent(&world.last), "{:?}", world.last);
}

#[test]
fn a_peer_is_reached_without_the_hub_and_its_death_is_not_a_storm() {
    let mut world = World::new(None);
    world.connect();
    let effects = world.view(1, vec![shown("lab/c"), shown("lab/a"), shown("cloud/elsewhere")]);
    let dialled = |effects: &[AgentEffect]| {
        let name =
            |effect: &AgentEffect| if let AgentEffect::DialPeer { node, .. } = effect { Some(node.to_string()) } else { None };
        effects.iter().filter_map(name).collect::<Vec<_>>()
    };
    assert_eq!(dialled(&effects), ["lab/c"], "the smaller name dials at once; a stranger of another site is not dialled");
    world.tell(AgentEvent::Peer(node("lab/c"), PeerEvent::Up { link: 1, rtt: Micros(800), replicas: vec![replica()] }));
    let dial = world.dial_number();
    world.tell(AgentEvent::Uplink(dial, UplinkEvent::Ended(Ended::Broken("cut".to_owned()))));
    let view = world.agent.core().view();
    let peer = view.node(&node("lab/c")).expect("known");
    assert_eq!((peer.state, peer.paths.keys().copied().collect::<Vec<_>>()), (NodeState::Online, vec![Hop::Direct]));
    // It answers pings, so it stays; then it falls silent.
    for number in 1..=5 {
        world.pass(Micros::from_secs(1));
        let loads = [("small".to_owned(), Load { slots: 1, active: 1, ..Load::default() })].into();
        world.tell(AgentEvent::Peer(node("lab/c"), PeerEvent::Pong(1, Pulse { number, loads })));
    }
    let busy = &world.agent.core().view().node(&node("lab/c")).expect("known").replicas[&VariantId::new("small").expect("good")];
    assert_eq!(busy.value.load.active, 1);
    let effects = world.pass(Micros::from_secs(60));
    assert!(effects.iter().any(|effect| matches!(effect, AgentEffect::HangUpPeer(..))));
    let tries = dialled(&effects).iter().filter(|name| *name == "lab/c").count();
    assert!((2..20).contains(&tries), "{tries} dials of a dead peer in a minute");
}

#[test]
fn a_restart_without_the_hub_keeps_grants_catalogue_and_addresses() {
    let mut world = World::new(None);
    world.connect();
    world.broker(BrokerEvent::Plan(Box::new(offload(9))));
    world.view(1, vec![shown("cloud/big")]);
    let effects = world.pass(Micros::from_secs(2));
    let kept =
        effects.iter().rev().find_map(|effect| if let AgentEffect::Persist(kept) = effect { Some(kept.clone()) } else { None });
    let text = serde_json::to_string(&kept.expect("it persists")).expect("written");
    let mut world = World::new(Some(serde_json::from_str(&text).expect("read")));
    let grant = world.agent.core().grant();
    assert_eq!((grant.epoch.sequence, grant.targets.len()), (9, 1));
    assert!(
        world.last.iter().any(|effect| matches!(effect, AgentEffect::Dial(_, hello) if hello.plan_epoch_seen.sequence == 9)),
        "the hub must go on above it: {:?}",
        world.last
    );
    let effects = world.pass(Micros::from_secs(3));
    assert!(
        effects.iter().any(|effect| matches!(effect, AgentEffect::DialPeer { node: to, addresses, .. } if *to == node("cloud/big") && !addresses.is_empty())),
        "the granted target is tried directly"
    );
}

#[test]
fn records_wait_for_the_hub_and_arrive_once() {
    let mut world = World::new(None);
    world.tell(AgentEvent::Replicas(vec![replica()]));
    for id in 0..3 {
        world.tell(AgentEvent::Request(Event::Arrived(request(id))));
        let attempt = shared::ids::AttemptId { request: RequestId(id), number: 0 };
        let ended = AttemptEvent::Ended(shared::plan::Finish::Stop, shared::plan::Usage::default());
        world.tell(AgentEvent::Request(Event::Engine(attempt, ended)));
    }
    assert_eq!(world.agent.status(world.now).spool.records, 3);
    world.pass(Micros::from_secs(10));
    let mut effects = world.connect();
    effects.extend(world.pass(Micros::from_secs(2)));
    let sent: Vec<_> = published(&effects)
        .into_iter()
        .filter_map(|what| if let Publication::Records(records) = what { Some(records) } else { None })
        .flatten()
        .map(|record| record.request.0)
        .collect();
    assert_eq!(sent, [0, 1, 2]);
    assert_eq!(world.agent.status(world.now).spool.records, 0);
}

#[test]
fn load_changes_are_reported_soon_but_not_in_a_flood() {
    let mut world = World::new(None);
    world.connect();
    world.tell(AgentEvent::Replicas(vec![replica()]));
    let mut reports = 0;
    for id in 0..50 {
        world.tell(AgentEvent::Request(Event::Arrived(request(id))));
        let attempt = shared::ids::AttemptId { request: RequestId(id), number: 0 };
        let ended = AttemptEvent::Ended(shared::plan::Finish::Stop, shared::plan::Usage::default());
        let effects = world.tell(AgentEvent::Request(Event::Engine(attempt, ended))).to_vec();
        reports += published(&effects).iter().filter(|what| matches!(what, Publication::Telemetry(_))).count();
        let effects = world.pass(Micros::from_millis(20));
        reports += published(&effects).iter().filter(|what| matches!(what, Publication::Telemetry(_))).count();
    }
    assert!((1..=3).contains(&reports), "{reports} reports in a second");
}

#[test]
fn stopping_says_goodbye_takes_nothing_new_and_finishes_what_runs() {
    let mut world = World::new(None);
    world.connect();
    world.tell(AgentEvent::Replicas(vec![replica()]));
    world.tell(AgentEvent::Request(Event::Arrived(request(1))));
    let effects = world.tell(AgentEvent::Stop).to_vec();
    assert!(published(&effects).iter().any(|what| matches!(what, Publication::Status(status) if !status.online)));
    assert!(!effects.contains(&AgentEffect::HangUp(Goodbye::Shutdown)), "what runs for others shall end first");
    world.tell(AgentEvent::Request(Event::Arrived(request(2))));
    assert!(!world.last.iter().any(|effect| matches!(effect, AgentEffect::Request(Effect::Run(_)))));
    let attempt = shared::ids::AttemptId { request: RequestId(1), number: 0 };
    let ended = AttemptEvent::Ended(shared::plan::Finish::Stop, shared::plan::Usage::default());
    world.tell(AgentEvent::Request(Event::Engine(attempt, ended)));
    assert!(world.last.iter().any(|effect| matches!(effect, AgentEffect::Request(Effect::Finish(..)))));
    let effects = world.tell(AgentEvent::Leave).to_vec();
    assert!(effects.contains(&AgentEffect::HangUp(Goodbye::Shutdown)));
    assert!(effects.iter().any(|effect| matches!(effect, AgentEffect::Persist(_))));
    assert!(world.pass(Micros::from_secs(30)).iter().all(|effect| !matches!(effect, AgentEffect::Dial(..))));
}

#[test]
fn a_snapshot_and_the_events_give_the_same_effects_again() {
    let mut world = World::new(None);
    let snapshot = serde_json::to_string(&world.agent).expect("written");
    world.log.clear();
    world.tell(AgentEvent::Replicas(vec![replica()]));
    world.connect();
    world.broker(BrokerEvent::Plan(Box::new(offload(4))));
    world.view(1, vec![shown("cloud/big"), shown("lab/c")]);
    world.tell(AgentEvent::Request(Event::Arrived(request(1))));
    world.pass(Micros::from_secs(20));
    let mut again: Agent = serde_json::from_str(&snapshot).expect("read");
    let mut effects = Vec::new();
    for (now, event) in &world.log {
        effects.clear();
        // Through text, as a capture keeps it.
        let event = serde_json::from_str(&serde_json::to_string(event).expect("written")).expect("read");
        again.handle(*now, event, &mut effects);
    }
    assert_eq!(effects, world.last);
    assert_eq!(again, world.agent);
    assert!(world.agent.status(world.now).plans.iter().any(|plan| plan.layer == Layer::Offload));
}

impl World {
    /// The number of the present dial.
    fn dial_number(&self) -> u64 {
        let dials = |(_, event): &(Moment, AgentEvent)| {
            if let AgentEvent::Uplink(number, UplinkEvent::Welcomed(_)) = event { Some(*number) } else { None }
        };
        self.log.iter().rev().find_map(dials).expect("connected before")
    }
}
