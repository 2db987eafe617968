//! A payload of every kind on MQTT.

use crate::samples::Sample;
use crate::values::*;
use shared::estimate::Estimate;
use shared::fleet::*;
use shared::ids::*;
use shared::plan::*;
use shared::units::*;
use shared::wire::mqtt::*;
use shared::work::*;
use std::collections::BTreeMap;

fn signed<T>(message: T) -> Signed<T> {
    Signed { session: Session { epoch: SessionEpoch(9), instance: Instance(u64::MAX) }, message }
}

pub(crate) fn payloads() -> Vec<Sample> {
    let mut samples = vec![
        Sample::json("status-online", signed(Status { online: true })),
        Sample::json("status-offline", signed(Status { online: false })),
        Sample::json("inventory", signed(inventory())),
        Sample::json("inventory-with-survey", signed(inventory_with_survey())),
        Sample::json("telemetry", signed(telemetry())),
        Sample::json("telemetry-delta", signed(telemetry_delta())),
        Sample::json("view", view()),
        Sample::json("view-with-keys", view_with_keys()),
        Sample::json("records", signed(Records { records: vec![record()] })),
    ];
    let states = [
        AckState::Received,
        AckState::Applied,
        AckState::Failed("not sorted".to_owned()),
        AckState::Unsupported("new".to_owned()),
    ];
    for (name, state) in ["received", "applied", "failed", "unsupported"].into_iter().zip(states) {
        samples
            .push(Sample::json(&format!("plan-ack-{name}"), signed(PlanAck { layer: Layer::Offload, epoch: epoch(42), state })));
    }
    samples.extend(plans().into_iter().map(|rows| Sample::json(&format!("plan-{}", rows.layer()), plan(rows))));
    samples
}

fn inventory() -> Inventory {
    Inventory {
        node: node("eu/site-7/edge-1"),
        tier: Tier::Device,
        labels: BTreeMap::from([("rack".to_owned(), "3".to_owned())]),
        machine: Machine {
            cpu: Some("Cortex-A76".to_owned()),
            cores: Some(4),
            memory: Some(Bytes(8_000_000_000)),
            os: Some("Linux 6.12".to_owned()),
            ..Machine::default()
        },
        costs: costs(),
        addresses: vec!["10.0.0.5:7411".to_owned()],
        version: "0.1.0".to_owned(),
        binary_sha256: String::new(),
        survey: Survey::default(),
    }
}

/// A node whose accelerators were looked for, with a graphics processor and something that is none.
fn inventory_with_survey() -> Inventory {
    let fact = |value: f64| Fact {
        value: FlopRate::new(value).expect("a rate"),
        origin: Origin::Measured,
        by: "wgsl fma".to_owned(),
        age: Micros::from_secs(60),
        confidence: fraction(0.96875),
    };
    let bytes = |value: f64| {
        let Fact { origin, by, age, confidence, .. } = fact(value);
        Fact { value: ByteRate::new(value).expect("a rate"), origin, by, age, confidence }
    };
    let Fact { origin, by, age, confidence, .. } = fact(0.0);
    let rates = DeviceRates {
        fma: Some(fact(4e12)),
        matmul_f32: Some(fact(1e12)),
        matmul_f16: Some(fact(2e12)),
        bandwidth: Some(bytes(2e11)),
        upload: Some(bytes(1e10)),
        download: Some(bytes(8e9)),
        launch: Some(Fact { value: Micros(45), origin, by, age, confidence }),
    };
    let memory = MemoryBudget::new(Bytes(7_000_000_000)).expect("not zero");
    let by = "Vulkan heaps and MemAvailable".to_owned();
    let one = Accelerator {
        id: "pci:0000:03:00.0".to_owned(),
        name: "Example Graphics 7".to_owned(),
        vendor: "Intel".to_owned(),
        kind: AcceleratorKind::Integrated,
        backends: vec![Backend::Vulkan, Backend::Gl],
        pci: Some("0000:03:00.0".to_owned()),
        uuid: Some("0f".repeat(16)),
        memory: Some(Fact { value: memory, origin: Origin::Reported, by, age, confidence: fraction(0.75) }),
        rates,
    };
    let dropped = Dropped {
        name: "llvmpipe".to_owned(),
        backend: Backend::Vulkan,
        reason: "a software rasteriser: it computes on the CPU".to_owned(),
    };
    let survey = Survey {
        state: ProbeState::Failed("killed at its limit of 9.0 s".to_owned()),
        accelerators: vec![one],
        dropped: vec![dropped],
        hints: vec!["/dev/dri/renderD129 may not be opened by this user".to_owned()],
    };
    Inventory { survey, ..inventory() }
}

fn telemetry() -> Telemetry {
    Telemetry {
        cpu: Some(fraction(0.5)),
        memory_available: Some(Bytes(3_000_000_000)),
        load_1m: Some(1.75),
        received: Some(Bytes(1)),
        sent: Some(Bytes(2)),
        replicas: vec![replica(ReplicaState::Ready)],
        uplink: Some(path(Hop::Direct)),
        peers: BTreeMap::from([(node("eu/site-7/edge-2"), path(Hop::Direct))]),
        ..Telemetry::of(node("eu/site-7/edge-1"))
    }
}

fn telemetry_delta() -> Telemetry {
    let power = Fact {
        value: Watts::new(7.5).expect("a power"),
        origin: Origin::Measured,
        by: "rails".to_owned(),
        age: Micros(1),
        confidence: fraction(0.95),
    };
    Telemetry {
        temperature: Celsius::new(61.5).ok(),
        throttled: Some(false),
        power: Some(power),
        delta: true,
        unknown: [Gauge::Cpu, Gauge::Load1m].into(),
        gone: vec![variant("old")],
        peers_gone: vec![node("eu/site-7/edge-3")],
        ..Telemetry::of(node("eu/site-7/edge-1"))
    }
}

fn catalogue() -> Catalogue {
    let served = Variant {
        id: variant("smollm2-135m-q8"),
        weights_sha256: Some("ef".repeat(32)),
        quantisation: "q8_0".to_owned(),
        context: Tokens(2048),
        memory: Bytes(180_000_000),
        quality: Quality::new(0.25).expect("from 0 to 1"),
        quality_source: "IFEval 2025, model card".to_owned(),
    };
    let assistant = Service { id: service("assistant"), aliases: vec![service("gpt-tiny")], variants: vec![served] };
    Catalogue::new([assistant]).expect("no contradiction")
}

fn view() -> ViewMessage {
    let seen = ViewNode {
        node: node("eu/cloud/gpu-1"),
        tier: Tier::Cloud,
        state: NodeState::Online,
        costs: costs(),
        addresses: vec!["203.0.113.7:7411".to_owned()],
        uplink: Some(path(Hop::Direct)),
        replicas: vec![replica(ReplicaState::Ready)],
        age: Some(Micros::from_millis(800)),
    };
    ViewMessage {
        epoch: epoch(77),
        nodes: vec![seen],
        catalogue: Some(catalogue()),
        keys: None,
        revoked: vec!["0a1b".to_owned()],
        drain: true,
    }
}

/// A view with a key of each kind: all limits, and none.
fn view_with_keys() -> ViewMessage {
    let limited = ClientKey {
        name: KeyName::new("team/app").expect("name"),
        sha256: KeyHash::of(b"tg-0123"),
        scope: KeyScope::Inference,
        services: vec![ServiceId::new("assistant").expect("name")],
        rate_per_minute: Some(60),
        tokens_per_day: Some(100_000),
        expires: Some(1_800_000_000),
    };
    let free = ClientKey {
        name: KeyName::new("operator").expect("name"),
        scope: KeyScope::Admin,
        services: Vec::new(),
        rate_per_minute: None,
        tokens_per_day: None,
        expires: None,
        ..limited.clone()
    };
    ViewMessage { keys: Some(vec![limited, free]), ..view() }
}

/// A request that waited, was tried in vain, and was then answered elsewhere.
fn record() -> Record {
    let request = RequestId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
    let usage = Usage { prompt: Tokens(118), output: Tokens(64), cached: Tokens(0) };
    let actual = Actual {
        first_token: Some(Micros::from_millis(310)),
        per_token: Some(Micros::from_millis(21)),
        total: Micros::from_millis(1_650),
        usage,
        energy: Joules::new(12.5).ok(),
        energy_origin: None,
        money: Some(MicroDollars(31)),
    };
    let choice = |name: &str| Choice {
        candidate: Candidate { node: node(name), hop: Hop::Relay, variant: variant("smollm2-135m-q8"), split: Split::Whole },
        estimate: Estimate {
            first_token: Micros::from_millis(290),
            wait: Micros::ZERO,
            per_token: Micros::from_millis(20),
            total: Micros::from_millis(1_570),
            spread: fraction(0.125),
            output: None,
            high: None,
            energy: Joules::new(12.0).ok(),
            money: Some(MicroDollars(30)),
            quality: Quality::new(0.25).expect("from 0 to 1"),
        },
        transport: None,
    };
    let decision = |number, verdict| Decision {
        attempt: AttemptId::new(request, number),
        at: Moment(5_000_000),
        policy: "min-latency".to_owned(),
        verdict,
        others: vec![choice("eu/cloud/gpu-2")],
        rejected: vec![Rejected {
            node: node("eu/site-7/edge-1"),
            variant: variant("smollm2-135m-q8"),
            stages: Vec::new(),
            reason: Reason::Busy,
        }],
        counts: BTreeMap::from([("busy".to_owned(), 1)]),
        fingerprint: u64::MAX,
        grant: epoch(42),
        age: Micros::from_millis(800),
        degraded: false,
    };
    let attempt =
        |number, verdict, outcome| AttemptRecord { decision: decision(number, verdict), actual: actual.clone(), outcome };
    let slo = Slo { first_token: Some(Micros::from_millis(500)), end_to_end: Some(Micros::from_secs(4)), ..Slo::default() };
    Record {
        request,
        ingress: node("eu/site-7/edge-1"),
        service: service("assistant"),
        needs: Needs { slo, residency: Residency::Anywhere, session: Some(7) },
        arrived: Moment(4_900_000),
        waited: Micros::from_millis(100),
        attempts: vec![
            attempt(0, Verdict::Wait(Reason::Busy), None),
            attempt(
                0,
                Verdict::Assign(choice("eu/cloud/gpu-1")),
                Some(Outcome::Failed(Failure::Broken("eu/cloud/gpu-1".to_owned()))),
            ),
            attempt(1, Verdict::Assign(choice("eu/cloud/gpu-1")), Some(Outcome::Answered(Finish::Stop))),
        ],
        served_by: Some((node("eu/cloud/gpu-1"), variant("smollm2-135m-q8"))),
        quality: Quality::new(0.25).ok(),
        actual: actual.clone(),
        outcome: Outcome::Answered(Finish::Stop),
        attained: Some(true),
    }
}

fn plan(rows: PlanRows) -> Plan {
    Plan {
        scope: ScopeId::new("eu/site-7/edge-1").expect("good"),
        owner: node("core/hub"),
        epoch: epoch(42),
        based_on: Some(epoch(40)),
        valid_for: Micros::from_secs(15),
        rows,
    }
}

fn plans() -> Vec<PlanRows> {
    let (to, with) = (node("eu/cloud/gpu-1"), variant("smollm2-135m-q8"));
    let target = Target { node: to.clone(), variant: with.clone(), share: fraction(0.5), open_max: 5, stages: Vec::new() };
    vec![
        PlanRows::Placement(vec![PlacementRow { node: to, variant: with.clone() }]),
        PlanRows::Offload(vec![OffloadRow {
            edge: node("eu/site-7/edge-1"),
            service: service("assistant"),
            targets: vec![target],
        }]),
        PlanRows::Allocation(vec![AllocationRow { variant: with, slots: 4, queue_max: 16 }]),
        PlanRows::Dispatch(DispatchSetting { policy: "min-latency".to_owned(), config: serde_json::json!({"margin": 0.2}) }),
    ]
}

#[test]
fn topics_are_called_as_ever() {
    let edge = || node("eu/site-7/edge-1");
    let topics = [
        (Topic::Status(edge()), "tidegate/v1/nodes/eu.site-7.edge-1/status", true),
        (Topic::Inventory(edge()), "tidegate/v1/nodes/eu.site-7.edge-1/inventory", true),
        (Topic::Telemetry(edge()), "tidegate/v1/nodes/eu.site-7.edge-1/telemetry", true),
        (Topic::PlanAck(edge()), "tidegate/v1/nodes/eu.site-7.edge-1/plan-ack", true),
        (Topic::Records(edge()), "tidegate/v1/nodes/eu.site-7.edge-1/records", true),
        (Topic::Plan(edge(), Layer::Offload), "tidegate/v1/plans/eu.site-7.edge-1/offload", false),
        (Topic::View(edge()), "tidegate/v1/views/eu.site-7.edge-1", false),
    ];
    for (topic, name, from_node) in topics {
        assert_eq!(topic.name(), name);
        assert_eq!(Topic::parse(name), Some(topic.clone()));
        assert_eq!((topic.node(), topic.from_node()), (&edge(), from_node));
        for other in [format!("{name}/more"), name.replace("v1", "v2"), name.replace('.', "/"), name.replace("edge-1", "#")] {
            assert_eq!(Topic::parse(&other), None, "{other}");
        }
    }
}
