//! The checker finds each fault, and none in a good plan.

use shared::fleet::*;
use shared::ids::*;
use shared::plan::*;
use shared::units::*;
use shared::work::*;

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("good")
}

fn scope(name: &str) -> ScopeId {
    ScopeId::new(name).expect("good")
}

fn variant(name: &str) -> VariantId {
    VariantId::new(name).expect("good")
}

fn catalogue() -> Catalogue {
    let variant = |name: &str, memory| Variant {
        id: variant(name),
        weights_sha256: None,
        quantisation: String::new(),
        context: Tokens(512),
        memory: Bytes(memory),
        quality: Quality::default(),
        quality_source: "a test".to_owned(),
    };
    let service = |name: &str, variants| Service { id: ServiceId::new(name).expect("good"), aliases: Vec::new(), variants };
    Catalogue::new([service("chat", vec![variant("v", 400), variant("w", 700)]), service("code", vec![variant("c", 1)])])
        .expect("no contradiction")
}

/// Two edges and a cloud node of 1,000 bytes, each with a replica of `v`; one node is offline.
fn view() -> FleetView {
    let mut view = FleetView::default();
    for name in ["s/a", "s/b", "s/off", "cloud/gpu"] {
        let replica = ReplicaReport {
            variant: variant("v"),
            engine: EngineKind::Llm,
            device: String::new(),
            state: ReplicaState::Ready,
            load: Load { slots: 2, ..Load::default() },
            memory: Bytes(400),
            context: Tokens(512),
            weights_sha256: None,
            layers: None,
            capabilities: Vec::new(),
            profile: None,
        };
        let state = if name == "s/off" { NodeState::Offline } else { NodeState::Online };
        let machine = Machine { memory: Some(Bytes(1_000)), ..Machine::default() };
        view.apply(Moment(1), FleetDelta::State { node: node(name), state });
        view.apply(Moment(1), FleetDelta::Machine { node: node(name), machine });
        view.apply(Moment(1), FleetDelta::Replicas { node: node(name), replicas: vec![replica], age: Micros::ZERO });
    }
    view
}

fn plan(part: &str, rows: PlanRows) -> Plan {
    let based_on = Some(PlanEpoch { incarnation: 1, sequence: 1 });
    let epoch = PlanEpoch { incarnation: 1, sequence: 2 };
    Plan { scope: scope(part), owner: node("core/hub"), epoch, based_on, valid_for: Micros(1), rows }
}

fn faults(plan: &Plan) -> Vec<Fault> {
    check(plan, &view(), &catalogue())
}

fn placement(part: &str, rows: &[(&str, &str)]) -> Plan {
    let rows = rows.iter().map(|(n, v)| PlacementRow { node: node(n), variant: variant(v) }).collect();
    plan(part, PlanRows::Placement(rows))
}

fn target(n: &str, v: &str) -> Target {
    Target { node: node(n), variant: variant(v), share: Fraction::new(0.25).expect("good"), open_max: 2, stages: Vec::new() }
}

fn row(edge: &str, service: &str, targets: Vec<Target>) -> OffloadRow {
    OffloadRow { edge: node(edge), service: ServiceId::new(service).expect("good"), targets }
}

fn offload(targets: Vec<Target>) -> Plan {
    plan("s/a", PlanRows::Offload(vec![row("s/a", "chat", targets)]))
}

fn allocation(part: &str, rows: &[(&str, u32)]) -> Plan {
    let rows = rows.iter().map(|(v, slots)| AllocationRow { variant: variant(v), slots: *slots, queue_max: 0 }).collect();
    plan(part, PlanRows::Allocation(rows))
}

#[test]
fn good_plans_have_no_faults() {
    for plan in [
        placement("s", &[("s/a", "v"), ("s/b", "v")]),
        placement("s", &[]),
        offload(vec![target("cloud/gpu", "v"), target("s/b", "v")]),
        allocation("s/a", &[("v", 1)]),
        plan("s/a", PlanRows::Dispatch(DispatchSetting { policy: "min-latency".to_owned(), config: serde_json::Value::Null })),
    ] {
        assert_eq!(faults(&plan), [], "{plan:?}");
    }
}

#[test]
fn heads() {
    let good = offload(vec![target("s/b", "v")]);
    let unbased = Plan { based_on: None, ..good.clone() };
    assert_eq!(faults(&unbased), [Fault::NoBase]);
    let own = Plan { owner: node("s/a"), ..unbased };
    assert_eq!(faults(&own), [], "an edge may decide for itself without ever having met a hub");
    let usurped = Plan { owner: node("s/b"), ..good.clone() };
    assert_eq!(faults(&usurped), [Fault::Owner { owner: node("s/b"), scope: scope("s/a") }]);
    assert_eq!(faults(&Plan { valid_for: Micros::ZERO, ..good }), [Fault::NoTime]);
}

#[test]
fn placements() {
    assert_eq!(
        faults(&placement("s", &[("cloud/gpu", "v")])),
        [Fault::OutOfScope { node: node("cloud/gpu"), scope: scope("s") }]
    );
    assert_eq!(faults(&placement("s", &[("s/x", "v")])), [Fault::UnknownNode(node("s/x"))]);
    assert_eq!(faults(&placement("s", &[("s/off", "v")])), [Fault::NotOnline { node: node("s/off"), state: NodeState::Offline }]);
    assert_eq!(faults(&placement("s", &[("s/a", "x")])), [Fault::UnknownVariant(variant("x"))]);
    assert_eq!(faults(&placement("s", &[("s/a", "v"), ("s/a", "v")])), [Fault::Twice("`v` on s/a".to_owned())]);
    assert_eq!(faults(&placement("s", &[("s/b", "v"), ("s/a", "v")])), [Fault::Unsorted]);
}

#[test]
fn memory_counts_only_for_what_would_be_added() {
    let too_much = Fault::Memory { node: node("s/a"), wanted: Bytes(1_100), memory: Bytes(1_000) };
    assert_eq!(faults(&placement("s", &[("s/a", "v"), ("s/a", "w")])), [too_much]);
    assert_eq!(faults(&placement("s", &[("s/a", "w")])), [], "in place of what is there");
    let mut view = view();
    let small = Machine { memory: Some(Bytes(1)), ..Machine::default() };
    view.apply(Moment(1), FleetDelta::Machine { node: node("s/a"), machine: small });
    let held = placement("s", &[("s/a", "v")]);
    assert_eq!(check(&held, &view, &catalogue()), [], "what is loaded has shown that it fits");
    view.apply(Moment(1), FleetDelta::Machine { node: node("s/a"), machine: Machine::default() });
    let more = placement("s", &[("s/a", "v"), ("s/a", "w")]);
    assert_eq!(check(&more, &view, &catalogue()), [], "unknown memory is no fault");
}

#[test]
fn targets() {
    assert_eq!(faults(&offload(vec![target("s/a", "v")])), [Fault::ItselfAsTarget(node("s/a"))]);
    assert_eq!(faults(&offload(vec![target("s/x", "v")])), [Fault::UnknownNode(node("s/x"))]);
    assert_eq!(faults(&offload(vec![target("s/b", "w")])), [Fault::NoReplica { node: node("s/b"), variant: variant("w") }]);
    let foreign = faults(&offload(vec![target("s/b", "c")]));
    assert!(foreign.contains(&Fault::UnknownVariant(variant("c"))), "a variant of another service: {foreign:?}");
    assert_eq!(
        faults(&offload(vec![target("s/off", "v")])),
        [Fault::NotOnline { node: node("s/off"), state: NodeState::Offline }]
    );
    assert_eq!(
        faults(&offload(vec![Target { open_max: 0, ..target("s/b", "v") }])),
        [Fault::Zero("open_max of `v` on s/b".to_owned())]
    );
    assert_eq!(faults(&offload(vec![target("s/b", "v"), target("s/b", "v")])), [Fault::Twice("`v` on s/b for s/a".to_owned())]);
}

/// `w` of the service, in two parts of ten layers; its beginning is at `s/a`, its end at `s/b`, and everything at `cloud/gpu`.
fn split_faults(first: (&str, u16, u16), second: (&str, u16, u16)) -> Vec<Fault> {
    let mut view = view();
    for (name, from, to) in [("s/a", 0, 6), ("s/b", 4, 10), ("cloud/gpu", 0, 10)] {
        let report = view.node(&node(name)).expect("there").replicas[&variant("v")].value.clone();
        let held = HeldLayers { range: LayerRange { from, to, of: 10 }, hidden: Bytes(8) };
        let part = ReplicaReport { variant: variant("w"), layers: Some(held), ..report.clone() };
        let replicas = vec![report, part];
        view.apply(Moment(2), FleetDelta::Replicas { node: node(name), replicas, age: Micros::ZERO });
    }
    let stage = |(name, from, to): (&str, u16, u16)| StageGrant {
        node: node(name),
        layers: LayerRange { from, to, of: 10 },
        path: PathReport::with_rtt(Hop::Relay, Micros(1)),
    };
    let split = Target { stages: vec![stage(first), stage(second)], ..target(first.0, "w") };
    check(&offload(vec![split]), &view, &catalogue())
}

#[test]
fn stages() {
    let first = ("s/a", 0, 5);
    assert_eq!(split_faults(first, ("s/b", 5, 10)), [], "the edge itself may be a stage");
    assert_eq!(split_faults(("s/a", 0, 4), ("s/b", 4, 10)), []);
    assert_eq!(split_faults(first, ("cloud/gpu", 5, 10)), [], "so may somebody who holds everything");
    let broken = |second| split_faults(first, second);
    for second in [("s/b", 6, 10), ("s/b", 4, 10), ("s/b", 5, 9), ("s/b", 5, 11), ("s/a", 5, 10)] {
        assert!(broken(second).iter().any(|fault| matches!(fault, Fault::Stages { .. })), "{second:?}: {:?}", broken(second));
    }
    assert_eq!(broken(("s/x", 5, 10)), [Fault::UnknownNode(node("s/x"))]);
    assert_eq!(broken(("s/off", 5, 10))[0], Fault::NotOnline { node: node("s/off"), state: NodeState::Offline });
    let held = split_faults(("s/b", 0, 5), ("cloud/gpu", 5, 10));
    assert!(matches!(held.as_slice(), [Fault::NotHeld { .. }]), "{held:?}");
    assert_eq!(held[0].to_string(), "s/b holds layers 4..10 of 10 of `w`, not 0..5 of 10");
    let elsewhere = Target { stages: Vec::new(), ..target("s/b", "w") };
    let mut view = view();
    let report = view.node(&node("s/b")).expect("there").replicas[&variant("v")].value.clone();
    let held = HeldLayers { range: LayerRange { from: 0, to: 5, of: 10 }, hidden: Bytes(8) };
    let replicas = vec![ReplicaReport { variant: variant("w"), layers: Some(held), ..report }];
    view.apply(Moment(2), FleetDelta::Replicas { node: node("s/b"), replicas, age: Micros::ZERO });
    let whole = check(&offload(vec![elsewhere]), &view, &catalogue());
    assert!(matches!(whole.as_slice(), [Fault::NotHeld { .. }]), "a part is not the whole: {whole:?}");
}

#[test]
fn offload_rows() {
    let service = ServiceId::new("chat").expect("good");
    let greedy = |n: &str| Target { share: Fraction::new(0.6).expect("good"), ..target(n, "v") };
    let sum = faults(&offload(vec![greedy("s/b"), greedy("cloud/gpu")]));
    assert_eq!(sum, [Fault::Shares { edge: node("s/a"), service: service.clone(), sum: 1.2 }]);
    let light = Target { share: Fraction::default(), ..target("s/b", "v") };
    let crowd = faults(&offload(vec![light; 9]));
    assert_eq!(crowd[0], Fault::TooManyTargets { edge: node("s/a"), service, count: 9 });
    let rows = |rows| faults(&plan("s/a", PlanRows::Offload(rows)));
    let good = || row("s/a", "chat", Vec::new());
    assert_eq!(rows(vec![good(), good()]), [Fault::Twice("`chat` of s/a".to_owned())]);
    assert_eq!(rows(vec![row("s/a", "what", Vec::new())]), [Fault::UnknownService(ServiceId::new("what").expect("good"))]);
    assert_eq!(rows(vec![row("s/b", "chat", Vec::new())]), [Fault::OutOfScope { node: node("s/b"), scope: scope("s/a") }]);
}

#[test]
fn allocations() {
    assert_eq!(faults(&allocation("s/a", &[("v", 0)])), [Fault::Zero("slots of `v`".to_owned())]);
    assert_eq!(faults(&allocation("s/a", &[("w", 1)])), [Fault::NoReplica { node: node("s/a"), variant: variant("w") }]);
    assert_eq!(faults(&allocation("s/a", &[("v", 1), ("v", 1)])), [Fault::Twice("`v`".to_owned())]);
    for other in ["s", "s/x"] {
        assert_eq!(faults(&allocation(other, &[("v", 1)])), [Fault::NotOneNode(scope(other))]);
    }
}

#[test]
fn dispatch_settings() {
    let setting =
        |policy: &str, config| faults(&plan("s/a", PlanRows::Dispatch(DispatchSetting { policy: policy.to_owned(), config })));
    let unknown = setting("by-magic", serde_json::Value::Null);
    assert!(matches!(unknown.as_slice(), [Fault::Policy(why)] if why.contains("min-latency")), "{unknown:?}");
    let misread = setting("min-latency", serde_json::json!({"margn": 0.1}));
    assert!(matches!(misread.as_slice(), [Fault::Policy(why)] if why.contains("margn")), "{misread:?}");
}
