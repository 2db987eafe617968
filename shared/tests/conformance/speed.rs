//! How long decisions take: `make bench-dispatch`. Run by hand, since a test must not depend on how busy a machine is.

use crate::fleets::STALE_AFTER;
use crate::rounds::twins;
use shared::fleet::*;
use shared::ids::*;
use shared::plan::{Grant, Target};
use shared::policy::Budget;
use shared::policy::dispatch::{self, DispatchEvent, Dispatcher, Pending, Scene, SplitRules};
use shared::policy::offload::{self, Offloader};
use shared::units::*;
use shared::work::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const VARIANTS: u32 = 5;
const TARGETS: u32 = 8;
/// Nodes of a view of a hundred, a thousand and ten thousand replicas.
const NODES: [u32; 3] = [20, 200, 2_000];

/// What a decision among the node itself and eight targets may take, in a view of a thousand replicas.
const DISPATCH_MAX: Duration = Duration::from_micros(20);
/// How many times as long as in a view of a hundred replicas it may take in one of ten thousand: what was granted counts, not what
/// there is.
const GROWTH_MAX: f64 = 3.0;
/// Rounds that alternate between the views.
const ROUNDS: usize = 15;
/// What one round of one edge may take in the same view: a thousand edges are then served in a fraction of a period.
const OFFLOAD_MAX: Duration = Duration::from_millis(3);

fn node(number: u32) -> NodeId {
    NodeId::new(&format!("region-{}/site-{}/node-{number}", number % 4, number % 20)).expect("good")
}

fn variant(number: u32) -> VariantId {
    VariantId::new(&format!("variant-{number}")).expect("good")
}

fn catalogue() -> Catalogue {
    let variant = |number: u32| Variant {
        id: variant(number),
        weights_sha256: None,
        quantisation: String::new(),
        context: Tokens(4096),
        memory: Bytes(1),
        quality: Quality::new(f64::from(number) / 10.0).expect("good"),
        quality_source: String::new(),
    };
    let assistant = ServiceId::new("assistant").expect("good");
    let service = Service { id: assistant, aliases: Vec::new(), variants: (0..VARIANTS).map(variant).collect() };
    Catalogue::new([service]).expect("no contradiction")
}

fn replica(number: u32, of: u32) -> ReplicaReport {
    let rate = |rate: u32| TokenRate::new(f64::from(rate)).expect("good");
    ReplicaReport {
        variant: variant(number),
        engine: EngineKind::Profiled,
        device: String::new(),
        state: ReplicaState::Ready,
        load: Load { slots: 4, active: of % 4, queue_max: 8, ..Load::default() },
        memory: Bytes(1),
        context: Tokens(4096),
        weights_sha256: None,
        layers: None,
        capabilities: Vec::new(),
        profile: Some(Profile {
            prompt: rate(500 + of),
            decode: rate(20 + of),
            overhead: Micros(100),
            spread: Fraction::default(),
            source: ProfileSource::WarmUp,
            samples: 3,
            pace: None,
            load: None,
        }),
    }
}

fn view(nodes: u32) -> FleetView {
    let mut view = FleetView::default();
    for number in 0..nodes {
        let replicas = (0..VARIANTS).map(|v| replica(v, number)).collect();
        let path =
            if number == 0 { PathReport::local() } else { PathReport::with_rtt(Hop::Direct, Micros(u64::from(number) * 300)) };
        view.apply(Moment(1), FleetDelta::State { node: node(number), state: NodeState::Online });
        view.apply(Moment(1), FleetDelta::Replicas { node: node(number), replicas, age: Micros::ZERO });
        view.apply(Moment(1), FleetDelta::Path { node: node(number), path });
    }
    view
}

fn request() -> LlmRequest {
    LlmRequest {
        id: RequestId(1),
        service: ServiceId::new("assistant").expect("good"),
        pinned: None,
        kind: PromptKind::Chat,
        prompt: Tokens(100),
        output_max: Tokens(100),
        features: Features::default(),
        stream: true,
        body: Bytes(400),
        needs: Needs::default(),
        likely: Likely::default(),
    }
}

/// The mean of a batch.
fn batch(mut run: impl FnMut()) -> Duration {
    const BATCH: u32 = 200;
    let start = Instant::now();
    (0..BATCH).for_each(|_| run());
    start.elapsed() / BATCH
}

/// The fastest of several batches: whatever else the machine does only adds.
fn fastest(mut run: impl FnMut()) -> Duration {
    (0..10).map(|_| batch(&mut run)).min().expect("ten batches")
}

fn median<T: Copy + PartialOrd>(values: &[T]) -> T {
    let mut sorted = values.to_vec();
    sorted.sort_by(|a, b| a.partial_cmp(b).expect("numbers"));
    sorted[sorted.len() / 2]
}

fn told(what: &str, held: bool) {
    println!("floor {what}: {}", if held { "held" } else { "missed" });
}

/// What a decision of one policy takes in a view of so many nodes.
struct Bench {
    view: FleetView,
    catalogue: Catalogue,
    me: NodeId,
    request: LlmRequest,
    grant: Grant,
    open: BTreeMap<(NodeId, VariantId), u32>,
    suspects: BTreeMap<(NodeId, VariantId), Moment>,
}

impl Bench {
    fn new(nodes: u32) -> Self {
        let request = request();
        let target = |number: u32| (node(number * (nodes - 1) / TARGETS), variant(number % VARIANTS));
        let targets = (1..=TARGETS).map(target).map(|(node, variant)| Target {
            node,
            variant,
            share: Fraction::default(),
            open_max: 8,
            stages: Vec::new(),
        });
        let targets = BTreeMap::from([(request.service.clone(), targets.collect())]);
        let grant = Grant { epoch: PlanEpoch::default(), targets, expires: None };
        let open = (1..=TARGETS).map(|number| (target(number), 1)).collect();
        Self { view: view(nodes), catalogue: catalogue(), me: node(0), request, grant, open, suspects: BTreeMap::new() }
    }

    fn decide(&self, policy: &mut Dispatcher, actions: &mut Vec<dispatch::Action>) -> usize {
        let scene = Scene {
            now: Moment(2),
            me: &self.me,
            hub: None,
            view: &self.view,
            grant: &self.grant,
            catalogue: &self.catalogue,
            suspects: &self.suspects,
            open: &self.open,
            stale_after: STALE_AFTER,
            splits: SplitRules::default(),
            degraded: false,
            seed: 1,
        };
        let (arrived, delivered) = (Moment(1), Tokens(0));
        let pending = Pending { request: &self.request, arrived, attempt: 0, tried: &[], resume: None, delivered };
        let assessment = scene.assess(&pending);
        policy.on_event(&scene, &DispatchEvent::Arrival(&pending, &assessment), actions);
        actions.clear();
        assessment.feasible.len()
    }
}

#[test]
#[ignore = "depends on the machine: run by hand"]
fn speed_of_dispatch() {
    let benches = NODES.map(Bench::new);
    for row in dispatch::TABLE {
        let [mut policy, _]: [Dispatcher; 2] = twins(row.name);
        let mut actions = Vec::new();
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(benches.each_ref().map(|bench| {
                batch(|| assert_eq!(bench.decide(&mut policy, &mut actions), 5 + 8, "its own variants and the targets"))
            }));
        }
        let [few, some, many] = [0, 1, 2].map(|at| median(&rounds.iter().map(|round| round[at]).collect::<Vec<_>>()));
        let growth = median(&rounds.iter().map(|[few, _, many]| many.as_secs_f64() / few.as_secs_f64()).collect::<Vec<_>>());
        println!("{}: {few:?} with 100 replicas in view, {some:?} with 1,000, {many:?} with 10,000", row.name);
        told(&format!("{}: {some:?} with 1,000 replicas, want at most {DISPATCH_MAX:?}", row.name), some <= DISPATCH_MAX);
        told(&format!("{}: 10,000 / 100 replicas {growth:.2}, want at most {GROWTH_MAX}", row.name), growth <= GROWTH_MAX);
    }
}

#[test]
#[ignore = "depends on the machine: run by hand"]
fn speed_of_offload() {
    let (view, catalogue, edge, hub) = (view(200), catalogue(), node(1), NodeId::new("core/hub").expect("good"));
    let scene = offload::Scene {
        now: Moment(2),
        edge: &edge,
        me: &hub,
        view: &view,
        catalogue: &catalogue,
        placed: None,
        stale_after: STALE_AFTER,
        seed: 1,
    };
    for row in offload::TABLE {
        let [mut policy, _]: [Offloader; 2] = twins(row.name);
        let took = fastest(|| assert_eq!(policy.round(&scene, &[], &mut Budget::default()).len(), 1));
        told(&format!("{}: one round {took:?}, want at most {OFFLOAD_MAX:?}", row.name), took <= OFFLOAD_MAX);
    }
}
