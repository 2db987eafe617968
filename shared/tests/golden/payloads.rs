//! A payload of every kind on MQTT.

use crate::samples::Sample;
use crate::values::*;
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
        Sample::json("telemetry", signed(telemetry())),
        Sample::json("view", view()),
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
        },
        costs: costs(),
        addresses: vec!["10.0.0.5:7411".to_owned()],
        version: "0.1.0".to_owned(),
    }
}

fn telemetry() -> Telemetry {
    Telemetry {
        node: node("eu/site-7/edge-1"),
        cpu: Some(fraction(0.5)),
        memory_available: Some(Bytes(3_000_000_000)),
        load_1m: Some(1.75),
        received: Some(Bytes(1)),
        sent: Some(Bytes(2)),
        replicas: vec![replica(ReplicaState::Ready)],
        uplink: Some(path(Hop::Direct)),
        peers: BTreeMap::from([(node("eu/site-7/edge-2"), path(Hop::Direct))]),
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
        revoked: vec!["0a1b".to_owned()],
        drain: true,
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
    let target = Target { node: to.clone(), variant: with.clone(), share: fraction(0.5), open_max: 5 };
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
