//! Stories of one request core: no fleet, no network, a clock that is a number.

mod split;

use shared::fleet::{
    Costs, FleetDelta, Hop, Load, NodeState, PathReport, Profile, ProfileSource, ReplicaReport, ReplicaState, Tier,
};
use shared::ids::{AttemptId, NodeId, RequestId, ServiceId, VariantId};
use shared::plan::{AllocationRow, DispatchSetting, Failure, Finish, Grant, Outcome, Reason, Record, Target, Usage, Verdict};
use shared::policy::dispatch::SplitRules;
use shared::request::{AttemptEvent, CoreConfig, Effect, Event, RequestCore, limits};
use shared::units::{Bytes, Fraction, Micros, Moment, Quality, TokenRate, Tokens};
use shared::work::{
    Catalogue, EngineKind, ExecHeader, Features, Likely, LlmRequest, Needs, PromptKind, Residency, Service, Variant,
};

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("name")
}

fn variant() -> VariantId {
    VariantId::new("tiny").expect("name")
}

fn replica(slots: u32, rate: f64) -> ReplicaReport {
    ReplicaReport {
        variant: variant(),
        engine: EngineKind::Profiled,
        device: String::new(),
        state: ReplicaState::Ready,
        load: Load { slots, queue_max: 4, ..Load::default() },
        memory: Bytes(1),
        context: Tokens(4096),
        weights_sha256: None,
        layers: None,
        capabilities: vec![],
        profile: Some(Profile {
            prompt: TokenRate::new(10.0 * rate).expect("rate"),
            decode: TokenRate::new(rate).expect("rate"),
            overhead: Micros::ZERO,
            spread: Fraction::new(0.1).expect("fraction"),
            source: ProfileSource::Declared,
            samples: 1,
            pace: None,
            load: None,
        }),
    }
}

fn request(id: u128) -> LlmRequest {
    LlmRequest {
        id: RequestId(id),
        service: ServiceId::new("assistant").expect("name"),
        pinned: None,
        kind: PromptKind::Chat,
        prompt: Tokens(10),
        output_max: Tokens(10),
        features: Features::default(),
        stream: true,
        body: Bytes(100),
        needs: Needs::default(),
        likely: Likely::default(),
    }
}

/// A core at `s/edge` with its own replica, a site peer and a cloud node behind the relay.
struct Story {
    core: RequestCore,
    now: Moment,
    effects: Vec<Effect>,
}

impl Story {
    fn new(own_rate: f64, peer_rate: f64, cloud_rate: f64) -> Self {
        let config = CoreConfig {
            me: node("s/edge"),
            tier: Tier::Device,
            hub: Some(node("cloud/hub")),
            executes: true,
            costs: Costs::default(),
            dispatch: DispatchSetting { policy: "min-latency".to_owned(), config: serde_json::Value::Null },
            seed: 1,
            stale_after: Micros::from_secs(15),
            splits: SplitRules::default(),
        };
        let mut story = Self { core: RequestCore::new(config).expect("policy"), now: Moment(0), effects: vec![] };
        let served = Variant {
            id: variant(),
            weights_sha256: None,
            quantisation: String::new(),
            context: Tokens(4096),
            memory: Bytes(0),
            quality: Quality::new(0.5).expect("quality"),
            quality_source: "test".to_owned(),
        };
        let id = ServiceId::new("assistant").expect("name");
        let service = Service { id: id.clone(), aliases: vec![], variants: vec![served] };
        story.tell(Event::Catalogue(Catalogue::new([service]).expect("catalogue")));
        story.tell(Event::Replicas(vec![replica(1, own_rate)]));
        let mut targets = vec![];
        let others = [("s/peer", Tier::Device, Hop::Direct, peer_rate), ("cloud/big", Tier::Cloud, Hop::Relay, cloud_rate)];
        for (name, tier, hop, rate) in others {
            let node = node(name);
            story.fleet(FleetDelta::Node { node: node.clone(), tier, costs: Costs::default(), addresses: vec![] });
            story.fleet(FleetDelta::State { node: node.clone(), state: NodeState::Online });
            story.fleet(FleetDelta::Path { node: node.clone(), path: PathReport::with_rtt(hop, Micros::from_millis(20)) });
            story.fleet(FleetDelta::Replicas { node: node.clone(), replicas: vec![replica(2, rate)], age: Micros::ZERO });
            targets.push(Target {
                node,
                variant: variant(),
                share: Fraction::new(0.5).expect("share"),
                open_max: 8,
                stages: Vec::new(),
            });
        }
        story.tell(Event::Granted(Grant { targets: [(id, targets)].into(), ..Grant::default() }));
        story
    }

    fn tell(&mut self, event: Event) -> &[Effect] {
        self.effects.clear();
        // Whatever happens, a core that was written down and read back goes on alike.
        let json = serde_json::to_string(&self.core).expect("snapshot");
        let mut twin: RequestCore = serde_json::from_str(&json).expect("restore");
        let mut twins = vec![];
        twin.handle(self.now, event.clone(), &mut twins);
        self.core.handle(self.now, event, &mut self.effects);
        assert!(self.effects == twins, "a restored core must act alike: {:?} and {twins:?}", self.effects);
        assert!(self.core == twin, "a restored core must become the same");
        &self.effects
    }

    fn fleet(&mut self, delta: FleetDelta) {
        self.tell(Event::Fleet(delta));
    }

    fn pass(&mut self, span: Micros) -> Vec<Effect> {
        let until = self.now + span;
        let mut all = vec![];
        while let Some(at) = self.core.next_deadline().filter(|at| *at <= until) {
            self.now = at.max(self.now);
            all.extend_from_slice(self.tell(Event::Tick));
            assert!(self.core.next_deadline().is_none_or(|next| next > self.now), "a tick must settle what was due");
        }
        self.now = until;
        all
    }

    fn sent(&self) -> Option<(NodeId, AttemptId)> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Send { candidate, header } => Some((candidate.node.clone(), header.attempt)),
            Effect::Run(header) if header.ingress == node("s/edge") => Some((node("s/edge"), header.attempt)),
            _ => None,
        })
    }

    fn record(&self) -> Option<Record> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Record(record) => Some((**record).clone()),
            _ => None,
        })
    }

    fn failure(&self) -> Option<Failure> {
        self.effects.iter().find_map(|effect| match effect {
            Effect::Fail(_, failure) => Some(failure.clone()),
            _ => None,
        })
    }
}

const USAGE: Usage = Usage { prompt: Tokens(10), output: Tokens(2), cached: Tokens(0) };

fn broken() -> AttemptEvent {
    AttemptEvent::Failed(Failure::Broken("the other end".to_owned()))
}

#[test]
fn a_request_is_served_here_and_recorded() {
    let mut story = Story::new(50.0, 1.0, 1.0);
    story.tell(Event::Arrived(request(1)));
    let (at, attempt) = story.sent().expect("run");
    assert_eq!(at, node("s/edge"));
    story.now = Moment(1_000);
    assert!(story.tell(Event::Engine(attempt, AttemptEvent::Content(Tokens(1)))).contains(&Effect::Deliver(attempt)));
    story.now = Moment(3_000);
    story.tell(Event::Engine(attempt, AttemptEvent::Content(Tokens(1))));
    story.tell(Event::Engine(attempt, AttemptEvent::Ended(Finish::Stop, USAGE)));
    let record = story.record().expect("record");
    assert_eq!(record.outcome, Outcome::Answered(Finish::Stop));
    assert_eq!(record.actual.first_token, Some(Micros(1_000)));
    assert_eq!(record.actual.per_token, Some(Micros(2_000)));
    assert_eq!(record.served_by, Some((node("s/edge"), variant())));
    assert_eq!(record.attempts.len(), 1);
    assert_eq!(story.core.requests_open(), 0);
    assert_eq!(story.core.next_deadline(), None);
}

#[test]
fn the_faster_candidate_is_chosen_and_the_others_are_named() {
    let mut story = Story::new(1.0, 2.0, 100.0);
    story.tell(Event::Arrived(request(1)));
    assert_eq!(story.sent().map(|(at, _)| at), Some(node("cloud/big")));
    let decision = story.effects.iter().find_map(|effect| match effect {
        Effect::Decided(decision) => Some(decision),
        _ => None,
    });
    let decision = decision.expect("decision");
    assert_eq!(decision.others.len(), 2);
    assert!(matches!(&decision.verdict, Verdict::Assign(choice) if choice.candidate.hop == Hop::Relay));
}

#[test]
fn residency_keeps_text_inside() {
    for (residency, wanted) in [(Residency::Site, "s/peer"), (Residency::Node, "s/edge")] {
        let mut story = Story::new(1.0, 2.0, 100.0);
        let mut asked = request(1);
        asked.needs.residency = residency;
        story.tell(Event::Arrived(asked));
        assert_eq!(story.sent().map(|(at, _)| at), Some(node(wanted)), "{residency:?}");
    }
}

#[test]
fn row_30_residency_with_a_dead_engine_ends_in_a_typed_refusal() {
    let mut story = Story::new(1.0, 2.0, 100.0);
    let mut dead = replica(1, 1.0);
    dead.state = ReplicaState::Failed("gone".to_owned());
    story.tell(Event::Replicas(vec![dead]));
    let mut asked = request(1);
    asked.needs.residency = Residency::Node;
    story.tell(Event::Arrived(asked));
    assert_eq!(story.failure(), Some(Failure::Refused(Reason::ReplicaFailed("gone".to_owned()))));
    assert_eq!(story.record().expect("record").attempts[0].decision.counts["residency"], 2);
}

#[test]
fn row_24_a_broken_attempt_without_content_is_answered_elsewhere() {
    let mut story = Story::new(1.0, 2.0, 100.0);
    story.tell(Event::Arrived(request(1)));
    let (_, first) = story.sent().expect("sent");
    story.tell(Event::Remote(first, AttemptEvent::Accepted(Load { slots: 2, ..Load::default() })));
    story.tell(Event::Remote(first, broken()));
    let (at, second) = story.sent().expect("again");
    assert_eq!((at, second.number), (node("s/peer"), 1));
    // Late news of the first attempt mean nothing.
    assert!(story.tell(Event::Remote(first, AttemptEvent::Content(Tokens(1)))).is_empty());
    // And the dead node is not asked by the next request either.
    story.tell(Event::Arrived(request(2)));
    assert_ne!(story.sent().map(|(at, _)| at), Some(node("cloud/big")));
}

#[test]
fn row_24_a_silent_attempt_is_given_up() {
    let mut story = Story::new(1.0, 2.0, 100.0);
    story.tell(Event::Arrived(request(1)));
    let (_, first) = story.sent().expect("sent");
    let effects = story.pass(limits::ACCEPT_MAX + limits::ACCEPT_MAX);
    assert!(effects.contains(&Effect::Reset(first)));
    assert!(effects.iter().any(|effect| matches!(effect, Effect::Send { candidate, .. } if candidate.node == node("s/peer"))));
}

#[test]
fn row_25_a_broken_stream_goes_on_elsewhere_only_by_the_table() {
    for (features, goes_on) in [(Features::default(), true), (Features { penalties: true, ..Features::default() }, false)] {
        let mut story = Story::new(1.0, 2.0, 100.0);
        story.tell(Event::Arrived(LlmRequest { features, ..request(1) }));
        let (_, first) = story.sent().expect("sent");
        story.tell(Event::Remote(first, AttemptEvent::Accepted(Load { slots: 2, ..Load::default() })));
        story.tell(Event::Remote(first, AttemptEvent::Content(Tokens(3))));
        story.tell(Event::Remote(first, broken()));
        let resumed = story.effects.iter().find_map(|effect| match effect {
            Effect::Send { header, .. } => Some(header.resume_from),
            _ => None,
        });
        assert_eq!(resumed, goes_on.then_some(Tokens(3)));
        assert_eq!(story.failure().is_some(), !goes_on);
    }
}

#[test]
fn slots_and_queue_are_bounded_and_free_up() {
    let mut story = Story::new(1000.0, 0.001, 0.001);
    for id in 1..=5 {
        story.tell(Event::Arrived(request(id)));
    }
    let load = story.core.replicas()[0].load;
    assert_eq!((load.active, load.queued), (1, 4));
    story.tell(Event::Allocated(vec![AllocationRow { variant: variant(), slots: 1, queue_max: 4 }]));
    // An offer beyond the queue is refused with the load beside it, so that the sender learns.
    let attempt = AttemptId::new(RequestId(9), 0);
    let header = ExecHeader::new(&request(9), attempt, node("s/peer"), node("s/edge"), variant());
    story.tell(Event::Offered { from: node("s/peer"), header });
    assert!(matches!(story.effects[..], [Effect::Refuse(_, Reason::Busy, Some(_))]), "{:?}", story.effects);
    let first = AttemptId::new(RequestId(1), 0);
    story.tell(Event::ClientGone(RequestId(1)));
    assert!(story.effects.contains(&Effect::Abort(first)));
    assert!(!story.effects.iter().any(|effect| matches!(effect, Effect::Run(_))), "the slot is busy until the engine says so");
    story.tell(Event::Engine(first, AttemptEvent::Failed(Failure::ClientGone)));
    assert!(story.effects.iter().any(|effect| matches!(effect, Effect::Run(header) if header.attempt.request == RequestId(2))));
}

#[test]
fn an_unconfirmed_abort_does_not_hold_its_slot_for_ever() {
    let mut story = Story::new(1000.0, 0.001, 0.001);
    story.tell(Event::Arrived(request(1)));
    story.tell(Event::ClientGone(RequestId(1)));
    assert_eq!(story.core.replicas()[0].load.active, 1);
    story.pass(limits::ABORT_MAX);
    assert_eq!(story.core.replicas()[0].load.active, 0);
}

#[test]
fn deadlines_end_requests_wherever_they_are() {
    let mut story = Story::new(0.5, 0.5, 0.5);
    let mut asked = request(1);
    asked.needs.slo.end_to_end = Some(Micros::from_secs(30));
    story.tell(Event::Arrived(asked));
    let (_, attempt) = story.sent().expect("runs");
    let effects = story.pass(Micros::from_secs(30));
    assert!(effects.contains(&Effect::Abort(attempt)));
    assert!(effects.contains(&Effect::Fail(RequestId(1), Failure::DeadlineExceeded)));
    // One that can never make it is refused at once, with the prediction.
    let mut story = Story::new(0.5, 0.5, 0.5);
    let mut hopeless = request(2);
    hopeless.needs.slo.end_to_end = Some(Micros::from_millis(1));
    story.tell(Event::Arrived(hopeless));
    assert!(matches!(story.failure(), Some(Failure::Refused(Reason::Deadline { .. }))), "{:?}", story.failure());
}

#[test]
fn a_request_waits_for_a_loading_replica() {
    let mut story = Story::new(1.0, 1.0, 1.0);
    let loading = ReplicaReport { state: ReplicaState::Loading, ..replica(1, 50.0) };
    story.tell(Event::Replicas(vec![loading.clone()]));
    let mut asked = request(1);
    asked.needs.residency = Residency::Node;
    story.tell(Event::Arrived(asked.clone()));
    assert_eq!(story.sent(), None);
    story.now = story.now + Micros::from_secs(2);
    story.tell(Event::Replicas(vec![replica(1, 50.0)]));
    let (_, attempt) = story.sent().expect("runs now");
    story.tell(Event::Engine(attempt, AttemptEvent::Ended(Finish::Stop, USAGE)));
    assert_eq!(story.record().expect("record").waited, Micros::from_secs(2));
    // And it is told when nothing comes of it.
    story.tell(Event::Replicas(vec![loading]));
    story.tell(Event::Arrived(LlmRequest { id: RequestId(2), ..asked }));
    let effects = story.pass(limits::WAIT_MAX);
    assert!(effects.contains(&Effect::Fail(RequestId(2), Failure::Refused(Reason::Loading))));
}

#[test]
fn busy_refusals_go_elsewhere_without_suspicion() {
    let mut story = Story::new(1.0, 2.0, 100.0);
    story.tell(Event::Arrived(request(1)));
    let (_, first) = story.sent().expect("sent");
    let busy = Load { slots: 2, active: 2, queued: 4, queue_max: 4, backlog: Tokens(100), ..Load::default() };
    story.tell(Event::Remote(first, AttemptEvent::Refused(Reason::Busy, Some(busy))));
    assert_eq!(story.sent().map(|(at, _)| at), Some(node("s/peer")));
    let free = Load { slots: 2, queue_max: 4, ..Load::default() };
    story.fleet(FleetDelta::Load { node: node("cloud/big"), variant: variant(), load: free });
    story.tell(Event::Arrived(request(2)));
    assert_eq!(story.sent().map(|(at, _)| at), Some(node("cloud/big")), "it was busy, not dead");
}

#[test]
fn retries_end_with_the_budget() {
    let mut story = Story::new(1.0, 2.0, 100.0);
    let mut again = 0;
    for id in 1..=60 {
        // The node comes back each time, so suspicion does not protect it: only the budget does.
        story.fleet(FleetDelta::State { node: node("cloud/big"), state: NodeState::Offline });
        story.fleet(FleetDelta::State { node: node("cloud/big"), state: NodeState::Online });
        story.tell(Event::Arrived(request(id)));
        let (at, attempt) = story.sent().expect("sent");
        assert_eq!(at, node("cloud/big"));
        story.tell(Event::Remote(attempt, broken()));
        again += u32::from(story.sent().is_some());
        story.tell(Event::ClientGone(RequestId(id)));
    }
    assert!((15..=25).contains(&again), "{again}: ten, and one in five");
}

#[test]
fn an_executor_refuses_what_breaks_residency_or_is_not_for_it() {
    let mut story = Story::new(1.0, 1.0, 1.0);
    let mut asked = request(1);
    asked.needs.residency = Residency::Site;
    let attempt = AttemptId::new(RequestId(1), 0);
    let foreign = ExecHeader::new(&asked, attempt, node("other/edge"), node("s/edge"), variant());
    story.tell(Event::Offered { from: node("other/edge"), header: foreign });
    assert!(matches!(story.effects[..], [Effect::Refuse(_, Reason::Residency, _)]));
    let misled = ExecHeader::new(&asked, attempt, node("s/peer"), node("s/peer"), variant());
    story.tell(Event::Offered { from: node("s/peer"), header: misled });
    assert!(matches!(story.effects[..], [Effect::Refuse(_, Reason::Unknown, _)]));
    story.tell(Event::Drain(true));
    let good = ExecHeader::new(&asked, attempt, node("s/peer"), node("s/edge"), variant());
    story.tell(Event::Offered { from: node("s/peer"), header: good.clone() });
    assert!(matches!(story.effects[..], [Effect::Refuse(_, Reason::Draining, _)]));
    story.tell(Event::Drain(false));
    story.tell(Event::Offered { from: node("s/peer"), header: good });
    assert!(matches!(story.effects[0], Effect::Accept(..)), "{:?}", story.effects);
}

#[test]
fn row_28_stale_is_not_idle() {
    let mut story = Story::new(1.0, 2.0, 100.0);
    story.now = story.now + Micros::from_secs(16);
    story.tell(Event::Arrived(request(1)));
    assert_eq!(story.sent().map(|(at, _)| at), Some(node("s/edge")), "only the node itself is fresh");
}

#[test]
fn what_a_chat_template_adds_is_learnt() {
    let mut story = Story::new(50.0, 1.0, 1.0);
    for id in 1..=12 {
        story.tell(Event::Arrived(request(id)));
        let (_, attempt) = story.sent().expect("runs");
        story.tell(Event::Engine(attempt, AttemptEvent::Ended(Finish::Stop, Usage { prompt: Tokens(34), ..USAGE })));
    }
    story.tell(Event::Arrived(request(13)));
    let seen = story.effects.iter().find_map(|effect| match effect {
        Effect::Run(header) => Some(header.prompt),
        _ => None,
    });
    assert_eq!(seen, Some(Tokens(34)), "ten were guessed from the text, and the template adds 24");
}
