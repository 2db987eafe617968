//! Plans and views: who gets them, how their epochs rise, when they are held.

use super::*;
use shared::wire::mqtt::{AckState, PlanAck};

#[test]
fn a_node_that_came_gets_plans_and_a_view_within_a_second() {
    let mut universe = Universe::new();
    universe.join("site/a");
    universe.join("far/b");
    let layers: Vec<_> = universe.plans[&node("far/b")].keys().copied().collect();
    assert_eq!(layers, [Layer::Placement, Layer::Offload, Layer::Dispatch]);
    assert_eq!(universe.targets("far/b"), [node("site/a")]);
    universe.pass(SECOND);
    assert_eq!(universe.targets("site/a"), [node("far/b")], "those who were there get the newcomer");
    let offload = &universe.plans[&node("far/b")][&Layer::Offload];
    assert_eq!(offload.based_on, Some(universe.plans[&node("far/b")][&Layer::Placement].epoch));
    let view = &universe.views[&node("far/b")];
    assert!(view.nodes.iter().any(|row| row.node == node("site/a") && row.replicas.len() == 1 && row.uplink.is_some()));
    assert_eq!(universe.counter("plans_faulty"), 0);
}

#[test]
fn a_view_shows_the_site_even_without_a_grant() {
    // Nobody serves anything: there are no grants, but neighbours there are.
    let mut universe = Universe::restored(Restored::default());
    universe.join("site/a");
    universe.join("site/b");
    universe.join("far/c");
    universe.pass(SECOND);
    let seen: Vec<_> = universe.views[&node("site/a")].nodes.iter().map(|row| row.node.clone()).collect();
    assert_eq!(seen, [node("site/b")]);
}

#[test]
fn quiet_plans_are_not_published_again_until_half_of_their_time_is_over() {
    let mut universe = Universe::new();
    for name in ["site/a", "far/b"] {
        universe.join(name);
    }
    universe.pass(Micros::from_secs(10));
    let before = universe.counter("plans_published");
    universe.pass(Micros::from_secs(10));
    assert_eq!(universe.counter("plans_published"), before);
    let epoch = universe.plans[&node("site/a")][&Layer::Offload].epoch;
    universe.pass(Micros::from_secs(30));
    assert!(universe.plans[&node("site/a")][&Layer::Offload].epoch > epoch, "renewed");
}

#[test]
fn plans_rise_above_a_restored_database() {
    // Yesterday's copy says incarnation 3; the fleet has lived on to 9.
    let mut universe = Universe::restored(Restored { incarnation: 3, services: vec![assistant()], ..Restored::default() });
    universe.join("site/a");
    let before = universe.plans[&node("site/a")][&Layer::Offload].epoch;
    assert_eq!(before.incarnation, 4);
    let seen = PlanEpoch { incarnation: 9, sequence: 70 };
    let session_seen = SessionEpoch(500);
    let connection = universe.hello_as("far/b", Instance(2), |hello| {
        (hello.plan_epoch_seen, hello.session_epoch_seen) = (seen, session_seen);
    });
    assert!(universe.session(connection).epoch > session_seen);
    universe.pass(Micros::from_secs(61));
    for name in ["site/a", "far/b"] {
        for (layer, plan) in &universe.plans[&node(name)] {
            assert!(plan.epoch > seen && plan.epoch.incarnation == 10, "{name} {layer}: {}", plan.epoch);
        }
    }
    let kept = universe.effects.iter().filter_map(|effect| match effect {
        HubEffect::Persist(Change::Incarnation(incarnation)) => Some(*incarnation),
        _ => None,
    });
    assert_eq!(kept.collect::<Vec<_>>(), [4, 10], "each is persisted, at the start and at the jump");
}

#[test]
fn an_incarnation_is_persisted_before_anything_else() {
    let mut universe = Universe::new();
    let effects = universe.tell(HubEvent::Tick);
    assert_eq!(effects.first(), Some(&HubEffect::Persist(Change::Incarnation(1))));
}

#[test]
fn acks_are_shown_and_a_failed_plan_is_noted() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    let session = universe.session(connection);
    let plan = universe.plans[&node("site/a")][&Layer::Dispatch].clone();
    let ack = |state| NodeMessage::PlanAck(PlanAck { layer: Layer::Dispatch, epoch: plan.epoch, state });
    universe.mqtt("site/a", session, ack(AckState::Applied));
    let shown = |universe: &Universe| universe.row("site/a").plans.into_iter().find(|row| row.layer == Layer::Dispatch);
    assert_eq!(shown(&universe).and_then(|row| row.applied), Some(plan.epoch));
    let effects = universe.mqtt("site/a", session, ack(AckState::Unsupported("min-latency".to_owned())));
    assert!(effects.iter().any(|effect| matches!(effect, HubEffect::Note(Note::PlanRejected { .. }))));
    assert_eq!(shown(&universe).and_then(|row| row.ack), Some(AckState::Unsupported("min-latency".to_owned())));
}

#[test]
fn row_15_when_most_of_the_fleet_vanishes_the_hub_suspects_itself() {
    let mut universe = Universe::new();
    let names = ["s1/a", "s2/b", "s3/c", "s4/d", "s5/e"];
    let connections: Vec<_> = names.into_iter().map(|name| universe.join(name)).collect();
    universe.pass(Micros::from_secs(2));
    assert_eq!(universe.targets("s1/a").len(), 4);
    // The hub's link flaps: three of five connections are lost within a moment.
    for connection in &connections[1..4] {
        universe.tell(HubEvent::ConnectionLost { connection: *connection });
    }
    assert_eq!(universe.counter("self_suspicions"), 1);
    universe.pass(Micros::from_secs(3));
    assert_eq!(universe.targets("s1/a").len(), 4, "plans are held");
    assert!(universe.counter("rounds_held") >= 2);
    let view = &universe.views[&node("s1/a")];
    assert_eq!(view.nodes.iter().filter(|row| row.state == NodeState::Offline).count(), 3, "views say what is");
    universe.pass(Micros::from_secs(3));
    assert_eq!(universe.targets("s1/a"), [node("s5/e")], "they did not come back: then it is true");
}

#[test]
fn one_lost_node_of_four_is_no_reason_to_doubt_oneself() {
    let mut universe = Universe::new();
    let connections: Vec<_> = ["s1/a", "s2/b", "s3/c", "s4/d"].into_iter().map(|name| universe.join(name)).collect();
    universe.tell(HubEvent::ConnectionLost { connection: connections[0] });
    universe.pass(Micros::from_secs(2));
    assert_eq!(universe.counter("self_suspicions"), 0);
    assert!(!universe.targets("s2/b").contains(&node("s1/a")));
}

#[test]
fn the_catalogue_reaches_whoever_subscribed_late() {
    let mut universe = Universe::new();
    universe.quiet = true;
    let connection = universe.join("site/a");
    let session = universe.session(connection);
    universe.pass(Micros::from_secs(7));
    // Until now the agent had no subscription: its first sign on MQTT is its birth.
    universe.views.clear();
    universe.mqtt("site/a", session, NodeMessage::Status(Status { online: true }));
    universe.pass(Micros::from_secs(2));
    assert!(universe.views[&node("site/a")].catalogue.is_some());
    universe.pass(Micros::from_secs(8));
    assert!(universe.views[&node("site/a")].catalogue.is_none(), "but it does not ride on every view for ever");
    universe.operate(AdminOperation::RemoveService("assistant".parse().expect("a good name")));
    universe.pass(Micros::from_millis(100));
    let catalogue = universe.views[&node("site/a")].catalogue.clone().expect("news");
    assert_eq!(catalogue.iter().count(), 0);
}

#[test]
fn a_flapping_fleet_does_not_become_all_views() {
    let mut universe = Universe::new();
    universe.join("site/a");
    let flapper = universe.join("site/b");
    let session = universe.session(flapper);
    universe.pass(Micros::from_millis(200));
    let before = universe.counter("views_published");
    for _ in 0..100 {
        universe.mqtt("site/b", session, NodeMessage::Status(Status { online: false }));
        let pulse = Pulse { number: 0, loads: BTreeMap::new() };
        universe.tell(HubEvent::Pong { connection: flapper, pulse });
        universe.pass(MS);
    }
    let views = universe.counter("views_published") - before;
    assert!(views <= 6, "{views} views for two readers in a tenth of a second");
}
