//! How long decisions take. Run by hand, since a test must not depend on how busy a machine is:
//! `cargo test -p shared --release --test conformance -- --ignored --nocapture speed`.

use crate::fleets::STALE_AFTER;
use crate::rounds::twins;
use shared::fleet::*;
use shared::ids::*;
use shared::plan::{Grant, Target};
use shared::policy::Budget;
use shared::policy::dispatch::{self, DispatchEvent, Dispatcher, Pending, Scene};
use shared::policy::offload::{self, Offloader};
use shared::units::*;
use shared::work::*;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const NODES: u32 = 200;
const VARIANTS: u32 = 5;

/// What a decision among the node itself and eight targets may take, in a view of a thousand replicas.
const DISPATCH_MAX: Duration = Duration::from_micros(20);
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
        }),
    }
}

fn view() -> FleetView {
    let mut view = FleetView::default();
    for number in 0..NODES {
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
    }
}

/// The fastest of several batches: whatever else the machine does only adds.
fn fastest(mut run: impl FnMut()) -> Duration {
    const BATCH: u32 = 200;
    let batch = |_| {
        let start = Instant::now();
        (0..BATCH).for_each(|_| run());
        start.elapsed() / BATCH
    };
    (0..10).map(batch).min().expect("ten batches")
}

#[test]
#[ignore = "depends on the machine: run by hand"]
fn speed_of_dispatch() {
    let (view, catalogue, me, request) = (view(), catalogue(), node(0), request());
    let target = |number: u32| Target {
        node: node(number * 20),
        variant: variant(number % VARIANTS),
        share: Fraction::default(),
        open_max: 8,
        stages: Vec::new(),
    };
    let targets = BTreeMap::from([(request.service.clone(), (1..9).map(target).collect())]);
    let grant = Grant { epoch: PlanEpoch::default(), targets, expires: None };
    let scene = Scene {
        now: Moment(2),
        me: &me,
        hub: None,
        view: &view,
        grant: &grant,
        catalogue: &catalogue,
        suspects: &BTreeMap::new(),
        open: &(1..9).map(|number| ((node(number * 20), variant(number % VARIANTS)), 1)).collect(),
        stale_after: STALE_AFTER,
        degraded: false,
        seed: 1,
    };
    let pending = Pending { request: &request, arrived: Moment(1), attempt: 0, tried: &[], resume: None, delivered: Tokens(0) };
    let candidates = scene.assess(&pending).feasible.len();
    assert_eq!(candidates, 5 + 8, "its own variants and the targets");
    for row in dispatch::TABLE {
        let [mut policy, _]: [Dispatcher; 2] = twins(row.name);
        let mut actions = Vec::new();
        let took = fastest(|| {
            let assessment = scene.assess(&pending);
            policy.on_event(&scene, &DispatchEvent::Arrival(&pending, &assessment), &mut actions);
            actions.clear();
        });
        println!("{}: {took:?}", row.name);
        assert!(took <= DISPATCH_MAX, "{}: {took:?} exceed {DISPATCH_MAX:?}", row.name);
    }
}

#[test]
#[ignore = "depends on the machine: run by hand"]
fn speed_of_offload() {
    let (view, catalogue, edge, hub) = (view(), catalogue(), node(1), NodeId::new("core/hub").expect("good"));
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
        println!("{}: {took:?}", row.name);
        assert!(took <= OFFLOAD_MAX, "{}: {took:?} exceed {OFFLOAD_MAX:?}", row.name);
    }
}
