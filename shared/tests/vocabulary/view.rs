//! A view keeps what is newest, forgets what is gone, and finds holders at once.

use shared::fleet::*;
use shared::ids::{NodeId, ScopeId, VariantId};
use shared::units::{Bytes, Micros, Moment, Tokens};
use shared::work::EngineKind;
use std::collections::BTreeMap;

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("good")
}

fn variant(name: &str) -> VariantId {
    VariantId::new(name).expect("good")
}

fn replica(name: &str, active: u32) -> ReplicaReport {
    ReplicaReport {
        variant: variant(name),
        engine: EngineKind::Llm,
        device: String::new(),
        state: ReplicaState::Ready,
        load: Load { slots: 4, active, ..Load::default() },
        memory: Bytes(1),
        context: Tokens(512),
        weights_sha256: None,
        layers: None,
        capabilities: Vec::new(),
        profile: None,
    }
}

fn report(name: &str, replicas: Vec<ReplicaReport>, age: u64) -> FleetDelta {
    FleetDelta::Replicas { node: node(name), replicas, age: Micros(age) }
}

fn holders(view: &FleetView, name: &str) -> Vec<String> {
    view.holders(&variant(name)).map(ToString::to_string).collect()
}

fn active(view: &FleetView) -> u32 {
    view.node(&node("s/a")).expect("known").replicas[&variant("v")].value.load.active
}

#[test]
fn an_older_report_changes_nothing() {
    let mut view = FleetView::default();
    view.apply(Moment(100), report("s/a", vec![replica("v", 1)], 0));
    let before = view.clone();
    view.apply(Moment(110), report("s/a", vec![replica("w", 3)], 11));
    assert_eq!(view, before, "true at 99, and 100 is known");
    view.apply(Moment(110), report("s/a", vec![replica("w", 3)], 9));
    assert_eq!(holders(&view, "v"), [""; 0]);
    assert_eq!(holders(&view, "w"), ["s/a"]);
    assert_eq!(view.node(&node("s/a")).expect("known").reported, Some(Moment(101)));
}

#[test]
fn the_same_report_twice_is_the_same_as_once() {
    let mut view = FleetView::default();
    view.apply(Moment(100), report("s/a", vec![replica("v", 1)], 0));
    let once = view.clone();
    view.apply(Moment(105), report("s/a", vec![replica("v", 1)], 5));
    assert_eq!(view, once);
}

#[test]
fn a_load_that_is_newer_than_a_report_outlives_it() {
    let mut view = FleetView::default();
    view.apply(Moment(100), report("s/a", vec![replica("v", 1)], 0));
    let load = Load { slots: 4, active: 3, ..Load::default() };
    view.apply(Moment(200), FleetDelta::Load { node: node("s/a"), variant: variant("v"), load });
    view.apply(Moment(210), report("s/a", vec![replica("v", 1)], 50));
    assert_eq!(active(&view), 3, "the report was true at 160, the load at 200");
    view.apply(Moment(300), report("s/a", vec![replica("v", 2)], 10));
    assert_eq!(active(&view), 2, "the report was true at 290");
    assert_eq!(view.node(&node("s/a")).expect("known").replicas[&variant("v")].age(Moment(300)), Micros(10));
}

#[test]
fn a_load_of_something_unknown_is_dropped() {
    let mut view = FleetView::default();
    view.apply(Moment(1), FleetDelta::Load { node: node("s/a"), variant: variant("v"), load: Load::default() });
    assert_eq!(view, FleetView::default());
    view.apply(Moment(1), report("s/a", vec![replica("v", 1)], 0));
    let before = view.clone();
    view.apply(Moment(2), FleetDelta::Load { node: node("s/a"), variant: variant("w"), load: Load::default() });
    assert_eq!(view, before);
}

#[test]
fn the_index_follows_the_reports() {
    let mut view = FleetView::default();
    view.apply(Moment(1), report("s/b", vec![replica("v", 0), replica("w", 0)], 0));
    view.apply(Moment(2), report("s/a", vec![replica("v", 0)], 0));
    assert_eq!(holders(&view, "v"), ["s/a", "s/b"], "in the order of their names");
    view.apply(Moment(3), report("s/b", vec![replica("w", 0)], 0));
    assert_eq!(holders(&view, "v"), ["s/a"]);
    assert_eq!(holders(&view, "w"), ["s/b"]);
}

#[test]
fn who_is_gone_leaves_nothing_behind() {
    let mut view = FleetView::default();
    view.apply(Moment(1), report("s/a", vec![replica("v", 0)], 0));
    view.apply(Moment(1), FleetDelta::Path { node: node("s/a"), path: PathReport::local() });
    view.apply(Moment(2), FleetDelta::Gone { node: node("s/a") });
    view.apply(Moment(3), FleetDelta::Gone { node: node("s/a") });
    assert_eq!(view, FleetView::default());
    view.apply(Moment(4), report("s/a", vec![replica("v", 0)], 3));
    assert_eq!(holders(&view, "v"), ["s/a"], "and may come back");
    assert_eq!(view.node(&node("s/a")).expect("known").state, NodeState::Seen, "as somebody new");
}

#[test]
fn paths_come_and_go_one_by_one() {
    let mut view = FleetView::default();
    for hop in [Hop::Relay, Hop::Direct] {
        view.apply(Moment(1), FleetDelta::Path { node: node("s/a"), path: PathReport::with_rtt(hop, Micros(9)) });
    }
    let hops = |view: &FleetView| view.node(&node("s/a")).expect("known").paths.keys().copied().collect::<Vec<_>>();
    assert_eq!(hops(&view), [Hop::Direct, Hop::Relay], "best first");
    view.apply(Moment(2), FleetDelta::PathLost { node: node("s/a"), hop: Hop::Direct });
    assert_eq!(hops(&view), [Hop::Relay]);
    view.apply(Moment(2), FleetDelta::PathLost { node: node("s/unknown"), hop: Hop::Direct });
    assert!(view.node(&node("s/unknown")).is_none(), "what is lost makes nobody known");
}

#[test]
fn facts_of_different_kinds_do_not_touch_each_other() {
    let mut view = FleetView::default();
    view.apply(Moment(1), report("s/a", vec![replica("v", 1)], 0));
    let machine = Machine { cores: Some(4), ..Machine::default() };
    view.apply(Moment(2), FleetDelta::Machine { node: node("s/a"), machine: machine.clone() });
    view.apply(Moment(2), FleetDelta::State { node: node("s/a"), state: NodeState::Online });
    let peers = BTreeMap::from([(node("s/b"), PathReport::with_rtt(Hop::Direct, Micros(5)))]);
    view.apply(Moment(2), FleetDelta::Peers { node: node("s/a"), peers: peers.clone() });
    let addresses = vec!["10.0.0.1:1".to_owned()];
    let what = FleetDelta::Node { node: node("s/a"), tier: Tier::Site, costs: Costs::default(), addresses: addresses.clone() };
    view.apply(Moment(3), what);
    let entry = view.node(&node("s/a")).expect("known");
    assert_eq!((entry.tier, entry.state, &entry.machine), (Tier::Site, NodeState::Online, &machine));
    assert_eq!((&entry.peers, &entry.addresses, entry.replicas.len()), (&peers, &addresses, 1));
}

#[test]
fn a_scope_holds_its_nodes_and_no_namesakes() {
    let mut view = FleetView::default();
    for name in ["eu/s/a", "eu/s/b", "eu/s2/a", "eu/s-x/a"] {
        view.apply(Moment(1), FleetDelta::State { node: node(name), state: NodeState::Online });
    }
    let inside = |scope: &str| {
        let scope = ScopeId::new(scope).expect("good");
        view.nodes_in(&scope).map(|(node, _)| node.to_string()).collect::<Vec<_>>()
    };
    assert_eq!(inside("eu/s"), ["eu/s/a", "eu/s/b"]);
    assert_eq!(inside("eu/s/a"), ["eu/s/a"]);
    assert_eq!(inside("eu").len(), 4);
    assert_eq!(inside("us"), [""; 0]);
}

#[test]
fn a_view_is_the_same_after_being_written_down() {
    let mut view = FleetView::default();
    view.apply(Moment(1), report("s/a", vec![replica("v", 1)], 0));
    view.apply(Moment(1), FleetDelta::Path { node: node("s/a"), path: PathReport::local() });
    let written = serde_json::to_string(&view).expect("writable");
    assert_eq!(serde_json::from_str::<FleetView>(&written).expect("readable"), view);
}
