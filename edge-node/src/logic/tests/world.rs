//! One agent alone with a clock, for stories told event by event.

use crate::logic::{Agent, AgentConfig, AgentEffect, AgentEvent, BrokerEvent, Persisted, Publication, UplinkEvent};
use shared::fleet::{Costs, Hop, Load, NodeState, PathReport, Profile, ProfileSource, ReplicaReport, ReplicaState, Tier};
use shared::ids::{Instance, NodeId, PlanEpoch, RequestId, ScopeId, ServiceId, SessionEpoch, VariantId};
use shared::plan::{DispatchSetting, OffloadRow, Plan, PlanRows, Target};
use shared::units::{Bytes, Fraction, Micros, Moment, Quality, TokenRate, Tokens};
use shared::wire::frame::Welcome;
use shared::wire::mqtt::{ViewMessage, ViewNode};
use shared::work::{Catalogue, EngineKind, Features, Likely, LlmRequest, Needs, PromptKind, Service, Variant};

pub(super) fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("good")
}

pub(super) fn catalogue() -> Catalogue {
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

pub(super) fn replica() -> ReplicaReport {
    ReplicaReport {
        variant: VariantId::new("small").expect("good"),
        engine: EngineKind::Profiled,
        device: String::new(),
        state: ReplicaState::Ready,
        load: Load { slots: 1, ..Load::default() },
        memory: Bytes(0),
        context: Tokens(2_048),
        weights_sha256: None,
        layers: None,
        capabilities: Vec::new(),
        profile: Some(Profile {
            prompt: TokenRate::new(1_000.0).expect("good"),
            decode: TokenRate::new(100.0).expect("good"),
            overhead: Micros::ZERO,
            spread: Fraction::new(0.1).expect("good"),
            source: ProfileSource::Declared,
            samples: 1,
            pace: None,
            load: None,
        }),
    }
}

pub(super) fn config() -> AgentConfig {
    AgentConfig {
        node: node("lab/b"),
        tier: Tier::Device,
        hub: Some(node("cloud/hub")),
        instance: Instance(77),
        labels: Default::default(),
        costs: Costs::default(),
        addresses: vec!["127.0.0.1:1".to_owned()],
        peer_addresses: Default::default(),
        version: "test".to_owned(),
        dispatch: DispatchSetting { policy: "min-latency".to_owned(), config: serde_json::Value::Null },
        splits: shared::policy::dispatch::SplitRules::default(),
        allocation: DispatchSetting { policy: "equal".to_owned(), config: serde_json::Value::Null },
        catalogue: catalogue(),
        seed: 5,
    }
}

/// One agent, its clock, and what it wanted done last.
pub(super) struct World {
    pub(super) agent: Agent,
    pub(super) now: Moment,
    pub(super) last: Vec<AgentEffect>,
    pub(super) log: Vec<(Moment, AgentEvent)>,
    pub(super) sessions: u64,
    /// Number of the present broker connection.
    pub(super) broker: u64,
}

impl World {
    pub(super) fn new(restored: Option<Persisted>) -> Self {
        let agent = Agent::new(config(), restored).expect("known policies");
        let mut world = Self { agent, now: Moment(1), last: Vec::new(), log: Vec::new(), sessions: 0, broker: 0 };
        world.tell(AgentEvent::Started);
        world
    }

    pub(super) fn tell(&mut self, event: AgentEvent) -> &[AgentEffect] {
        self.last.clear();
        self.log.push((self.now, event.clone()));
        self.agent.handle(self.now, event, &mut self.last);
        assert!(self.agent.next_deadline().is_none_or(|at| at > self.now), "a deadline that has passed would spin the driver");
        &self.last
    }

    /// Lets time pass deadline by deadline; returns all that was wanted meanwhile.
    pub(super) fn pass(&mut self, span: Micros) -> Vec<AgentEffect> {
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
    pub(super) fn dial(&mut self) -> u64 {
        loop {
            let dial =
                self.last.iter().find_map(|effect| if let AgentEffect::Dial(number, ..) = effect { Some(*number) } else { None });
            if let Some(number) = dial {
                return number;
            }
            self.now = self.agent.next_deadline().expect("it tries again");
            self.tell(AgentEvent::Tick);
        }
    }

    /// Hub and broker answer.
    pub(super) fn connect(&mut self) -> Vec<AgentEffect> {
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

    pub(super) fn broker(&mut self, event: BrokerEvent) -> Vec<AgentEffect> {
        self.tell(AgentEvent::Broker(self.broker, event)).to_vec()
    }

    pub(super) fn view(&mut self, sequence: u64, nodes: Vec<ViewNode>) -> Vec<AgentEffect> {
        let epoch = PlanEpoch { incarnation: 1, sequence };
        let view = ViewMessage { epoch, nodes, catalogue: None, keys: None, revoked: Vec::new(), drain: false };
        self.broker(BrokerEvent::View(Box::new(view)))
    }
}

pub(super) fn published(effects: &[AgentEffect]) -> Vec<&Publication> {
    effects.iter().filter_map(|effect| if let AgentEffect::Publish(_, what) = effect { Some(&**what) } else { None }).collect()
}

pub(super) fn shown(name: &str) -> ViewNode {
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

pub(super) fn offload(sequence: u64) -> Plan {
    let target = Target {
        node: node("cloud/big"),
        variant: VariantId::new("small").expect("good"),
        share: Fraction::new(1.0).expect("good"),
        open_max: 8,
        stages: Vec::new(),
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

pub(super) fn request(id: u128) -> LlmRequest {
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
        likely: Likely::default(),
    }
}

impl World {
    /// The number of the present dial.
    pub(super) fn dial_number(&self) -> u64 {
        let dials = |(_, event): &(Moment, AgentEvent)| {
            if let AgentEvent::Uplink(number, UplinkEvent::Welcomed(_)) = event { Some(*number) } else { None }
        };
        self.log.iter().rev().find_map(dials).expect("connected before")
    }
}
