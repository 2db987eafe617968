//! The fleet of every story, and what stories ask of it.

use scenarios::sim::{AgentSpec, Answer, Truth, Universe, UniverseConfig};
use shared::fleet::{NodeState, Tier};
use shared::ids::{NodeId, RequestId, ServiceId, VariantId};
use shared::plan::{Candidate, Finish, Verdict};
use shared::policy::dispatch::SplitRules;
use shared::units::{Bytes, Micros, Quality, Tokens};
use shared::work::{Features, Likely, LlmRequest, Needs, PromptKind, Residency, Service, Variant};

pub(crate) const HEARTBEAT: Micros = Micros::from_secs(5);

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("name")
}

pub(crate) fn variant(name: &str) -> VariantId {
    VariantId::new(name).expect("name")
}

fn offer(name: &str, quality: f64) -> Variant {
    Variant {
        id: variant(name),
        weights_sha256: None,
        quantisation: "q8_0".to_owned(),
        context: Tokens(8_192),
        memory: Bytes(100_000_000),
        quality: Quality::new(quality).expect("quality"),
        quality_source: "made up for this story".to_owned(),
    }
}

/// Hub, a cloud agent with a good and fast model, and two agents of one site with a small one.
pub(crate) struct Fleet {
    pub(crate) universe: Universe,
    pub(crate) cloud: usize,
    pub(crate) left: usize,
    pub(crate) right: usize,
    /// Targets that each edge has once all are up.
    targets: usize,
}

impl Fleet {
    pub(crate) fn new() -> Self {
        let engine = |model: &str, slots, rate| vec![Truth::new(&variant(model), slots, rate)];
        Self::of([engine("large", 4, 200), engine("small", 1, 20), engine("small", 1, 20)], 2)
    }

    /// The same machines with these engines: cloud, left and right. Each edge will be granted at least so many targets.
    pub(crate) fn of(engines: [Vec<Truth>; 3], targets: usize) -> Self {
        let config = UniverseConfig {
            hub: node("cloud/hub"),
            services: vec![Service {
                id: ServiceId::new("assistant").expect("name"),
                aliases: vec![],
                variants: vec![offer("small", 0.4), offer("large", 0.8)],
            }],
            uplink_delay: Micros::from_millis(20),
            site_delay: Micros::from_millis(1),
            will_delay: Micros::from_millis(1),
            splits: SplitRules::default(),
            seed: 7,
        };
        let mut universe = Universe::new(config);
        let agent = |name: &str, tier, engines| AgentSpec { node: node(name), tier, engines };
        let [gpu, one, other] = engines;
        let cloud = universe.add(agent("cloud/gpu", Tier::Cloud, gpu));
        let left = universe.add(agent("site-1/left", Tier::Device, one));
        let right = universe.add(agent("site-1/right", Tier::Device, other));
        let mut fleet = Self { universe, cloud, left, right, targets };
        fleet.settle();
        // And another round, with what the neighbours have reported of each other by then.
        fleet.universe.pass(HEARTBEAT.scale(2.0));
        fleet
    }

    /// Until everybody is online and each edge has been granted its targets.
    pub(crate) fn settle(&mut self) {
        let ready = |universe: &Universe| {
            let online = ["cloud/gpu", "site-1/left", "site-1/right"]
                .iter()
                .all(|n| universe.state_of(&node(n)) == Some(NodeState::Online));
            let granted = [self.left, self.right].iter().all(|host| {
                universe.agent(*host).is_some_and(|agent| agent.core().grant().targets.values().flatten().count() >= self.targets)
            });
            online && granted
        };
        assert!(self.universe.until(Micros::from_secs(30), ready), "the fleet comes up");
        self.universe.pass(Micros::from_secs(2));
    }

    pub(crate) fn ask(&mut self, host: usize, needs: Needs) -> RequestId {
        self.universe.ask(host, |id| request(id, needs, 40))
    }

    pub(crate) fn finish(&mut self, id: RequestId) -> Answer {
        assert!(self.universe.until(Micros::from_secs(120), |universe| universe.client(id).answer.is_some()), "{id} ends");
        self.universe.client(id).answer.clone().expect("just seen")
    }

    pub(crate) fn served_by(&self, id: RequestId) -> Option<NodeId> {
        let record = self.universe.client(id).record.as_ref()?;
        record.served_by.as_ref().map(|(node, _)| node.clone())
    }

    pub(crate) fn chosen(&self, id: RequestId) -> Option<Candidate> {
        match &self.universe.client(id).decision.as_ref()?.verdict {
            Verdict::Assign(choice) => Some(choice.candidate.clone()),
            _ => None,
        }
    }

    pub(crate) fn over(self) {
        assert!(self.universe.replay_all() > 100, "something was captured");
    }
}

pub(crate) fn request(id: RequestId, needs: Needs, output_max: u32) -> LlmRequest {
    LlmRequest {
        id,
        service: ServiceId::new("assistant").expect("name"),
        pinned: None,
        kind: PromptKind::Chat,
        prompt: Tokens(50),
        output_max: Tokens(output_max),
        features: Features::default(),
        stream: true,
        body: Bytes(400),
        needs,
        likely: Likely::default(),
    }
}

pub(crate) fn within(residency: Residency) -> Needs {
    Needs { residency, ..Needs::default() }
}

pub(crate) fn whole(answer: &Answer) -> bool {
    matches!(answer, Answer::Whole(Finish::Length, usage) if usage.output == Tokens(40))
}
