//! Links are cut, messages come late, identities are copied.

use crate::fleet::{Fleet, HEARTBEAT, node, whole, within};
use cloud_hub::logic::Note;
use scenarios::sim::Universe;
use shared::fleet::NodeState;
use shared::units::Micros;
use shared::work::{Needs, Residency};

#[test]
fn a_late_last_will_of_an_older_session_is_ignored() {
    let mut fleet = Fleet::new();
    fleet.universe.delay_wills(Micros::from_secs(8));
    fleet.universe.kill(fleet.right);
    fleet.universe.pass(Micros::from_millis(500));
    fleet.universe.restart(fleet.right);
    // The hub finds out whether the old instance still lives, then takes in the new one.
    fleet.universe.pass(HEARTBEAT);
    for _ in 0..20 {
        fleet.universe.pass(Micros::from_secs(1));
        assert_eq!(fleet.universe.state_of(&node("site-1/right")), Some(NodeState::Online), "{:?}", fleet.universe.notes());
    }
    assert!(fleet.universe.notes().iter().any(|note| matches!(note, Note::StaleMessage { kind, .. } if kind.contains("status"))));
    fleet.over();
}

#[test]
fn a_cloned_identity_is_flagged_and_given_nothing() {
    let mut fleet = Fleet::new();
    let clone = fleet.universe.clone_identity(fleet.right);
    let flagged = |universe: &Universe| universe.state_of(&node("site-1/right")) == Some(NodeState::Cloned);
    assert!(fleet.universe.until(Micros::from_secs(10), flagged), "{:?}", fleet.universe.state_of(&node("site-1/right")));
    fleet.universe.pass(Micros::from_secs(3));
    let busy = fleet.ask(fleet.left, within(Residency::Site));
    let id = fleet.ask(fleet.left, within(Residency::Site));
    assert_ne!(fleet.chosen(id).map(|candidate| candidate.node), Some(node("site-1/right")), "neither copy is given work");
    fleet.universe.kill(clone);
    let healed = |universe: &Universe| universe.state_of(&node("site-1/right")) == Some(NodeState::Online);
    assert!(fleet.universe.until(Micros::from_secs(120), healed), "with one instance left it is a node again");
    for id in [busy, id] {
        assert!(whole(&fleet.finish(id)));
    }
    fleet.over();
}

#[test]
fn row_13_a_cut_uplink_leaves_the_site_to_itself_and_heals() {
    let mut fleet = Fleet::new();
    fleet.universe.cut(fleet.left);
    fleet.universe.pass(Micros::from_secs(8));
    let first = fleet.ask(fleet.left, Needs::default());
    let second = fleet.ask(fleet.left, Needs::default());
    for id in [first, second] {
        assert!(whole(&fleet.finish(id)));
        assert!(fleet.universe.client(id).decision.as_ref().is_some_and(|decision| decision.degraded));
    }
    assert_eq!(fleet.served_by(first), Some(node("site-1/left")));
    assert_eq!(fleet.served_by(second), Some(node("site-1/right")), "the peer is still there");
    fleet.universe.heal(fleet.left);
    let online = |universe: &Universe| universe.state_of(&node("site-1/left")) == Some(NodeState::Online);
    assert!(fleet.universe.until(HEARTBEAT.scale(2.0), online));
    fleet.universe.pass(Micros::from_secs(3));
    let third = fleet.ask(fleet.left, Needs::default());
    assert!(whole(&fleet.finish(third)));
    assert_eq!(fleet.served_by(third), Some(node("cloud/gpu")));
    fleet.over();
}

#[test]
fn a_flapping_uplink_loses_nothing() {
    let mut fleet = Fleet::new();
    let mut asked = vec![];
    for round in 0..12 {
        asked.push(fleet.ask(fleet.left, Needs::default()));
        fleet.universe.pass(Micros::from_millis(150));
        fleet.universe.cut(fleet.left);
        fleet.universe.pass(Micros::from_millis(500 * (round % 5) + 400));
        fleet.universe.heal(fleet.left);
        fleet.universe.pass(Micros::from_millis(1_500));
    }
    for id in asked {
        assert!(whole(&fleet.finish(id)), "{id}: {:?}", fleet.universe.client(id).record);
    }
    fleet.over();
}

#[test]
fn row_28_a_stale_view_is_not_acted_upon() {
    let mut fleet = Fleet::new();
    // The agent lives and its link to the hub does, but the cloud agent's reports no longer come: its uplink is cut.
    fleet.universe.cut(fleet.cloud);
    fleet.universe.pass(HEARTBEAT);
    let id = fleet.ask(fleet.left, Needs::default());
    assert_ne!(fleet.chosen(id).map(|candidate| candidate.node), Some(node("cloud/gpu")));
    assert!(whole(&fleet.finish(id)));
    fleet.over();
}
