//! Processes die, and come back.

use crate::fleet::{Fleet, HEARTBEAT, node, request, whole, within};
use scenarios::sim::{Answer, Universe};
use shared::fleet::NodeState;
use shared::units::Micros;
use shared::work::{Needs, Residency};

#[test]
fn hub_lost_and_back_no_local_request_fails_and_epochs_rise() {
    let mut fleet = Fleet::new();
    let before = fleet.universe.agent(fleet.left).expect("lives").core().grant().epoch;
    let backup = fleet.universe.backup();
    fleet.universe.kill_hub();
    let mut asked = vec![];
    for _ in 0..20 {
        asked.push(fleet.ask(fleet.left, Needs::default()));
        fleet.universe.pass(Micros::from_secs(3));
    }
    for id in &asked {
        assert!(whole(&fleet.finish(*id)), "{id}: {:?}", fleet.universe.client(*id).answer);
    }
    let late = fleet.universe.client(asked[10]).decision.clone().expect("decided");
    assert!(late.degraded, "it says that the hub is away");
    fleet.universe.restart_hub();
    let all_back = |universe: &Universe| {
        ["cloud/gpu", "site-1/left", "site-1/right"].iter().all(|n| universe.state_of(&node(n)) == Some(NodeState::Online))
    };
    assert!(fleet.universe.until(HEARTBEAT, all_back), "all are back within one heartbeat");
    let left = fleet.left;
    let rose = |universe: &Universe, before| universe.agent(left).expect("lives").core().grant().epoch > before;
    assert!(fleet.universe.until(HEARTBEAT.scale(2.0), |universe| rose(universe, before)), "plans go on rising");
    // And also on yesterday's store.
    fleet.universe.kill_hub();
    fleet.universe.restore_hub(backup);
    let before = fleet.universe.agent(left).expect("lives").core().grant().epoch;
    fleet.universe.pass(Micros::from_secs(20));
    fleet.universe.restart_hub();
    assert!(fleet.universe.until(HEARTBEAT.scale(3.0), |universe| rose(universe, before)), "above what the nodes have seen");
    fleet.over();
}

#[test]
fn row_25_an_agent_dies_in_mid_request_and_the_stream_goes_on_elsewhere() {
    let mut fleet = Fleet::new();
    // Only the site has this variant twice.
    let needs = within(Residency::Site);
    let busy = fleet.ask(fleet.left, needs.clone());
    fleet.universe.pass(Micros::from_millis(100));
    let id = fleet.ask(fleet.left, needs);
    assert_eq!(fleet.chosen(id).map(|candidate| candidate.node), Some(node("site-1/right")), "its own slot is taken");
    assert!(fleet.universe.until(Micros::from_secs(5), |universe| universe.client(id).tokens >= 10));
    fleet.universe.kill(fleet.right);
    assert!(whole(&fleet.finish(id)), "{:?}", fleet.universe.client(id).answer);
    let client = fleet.universe.client(id);
    assert_eq!((client.tokens, client.fed_by.len()), (40, 2), "no token twice, none missing");
    assert!(whole(&fleet.finish(busy)));
    fleet.over();
}

#[test]
fn an_agent_dies_before_any_content_and_the_request_is_answered_elsewhere() {
    let mut fleet = Fleet::new();
    let id = fleet.ask(fleet.left, Needs::default());
    assert_eq!(fleet.chosen(id).map(|candidate| candidate.node), Some(node("cloud/gpu")));
    fleet.universe.kill(fleet.cloud);
    assert!(whole(&fleet.finish(id)));
    assert_ne!(fleet.served_by(id), Some(node("cloud/gpu")));
    // Nobody sends it anything more; the others know within one heartbeat.
    fleet.universe.pass(HEARTBEAT);
    for host in [fleet.left, fleet.right] {
        let next = fleet.ask(host, Needs::default());
        assert_ne!(fleet.chosen(next).map(|candidate| candidate.node), Some(node("cloud/gpu")));
    }
    fleet.over();
}

#[test]
fn an_agent_that_restarts_five_times_quickly_stays_online() {
    let mut fleet = Fleet::new();
    for _ in 0..5 {
        fleet.universe.kill(fleet.right);
        fleet.universe.pass(Micros::from_millis(300));
        fleet.universe.restart(fleet.right);
        fleet.universe.pass(Micros::from_millis(700));
    }
    let online = |universe: &Universe| universe.state_of(&node("site-1/right")) == Some(NodeState::Online);
    assert!(fleet.universe.until(HEARTBEAT, online), "{:?}", fleet.universe.state_of(&node("site-1/right")));
    fleet.universe.pass(Micros::from_secs(30));
    assert!(online(&fleet.universe), "and nothing late throws it out again");
    fleet.over();
}

#[test]
fn orphans_of_a_dead_ingress_are_cancelled() {
    let mut fleet = Fleet::new();
    let long = fleet.universe.ask(fleet.left, |id| request(id, Needs::default(), 4_000));
    assert!(fleet.universe.until(Micros::from_secs(5), |universe| universe.client(long).tokens > 3));
    fleet.universe.kill(fleet.left);
    let cloud = fleet.cloud;
    let idle = |universe: &Universe| universe.executing(cloud) == 0;
    assert!(fleet.universe.until(Micros::from_secs(2), idle), "its last will says at once that it died");
    fleet.over();
}

#[test]
fn row_12_an_agent_boots_without_its_hub_and_serves() {
    let mut fleet = Fleet::new();
    fleet.universe.kill_hub();
    fleet.universe.kill(fleet.left);
    fleet.universe.pass(Micros::from_secs(20));
    fleet.universe.restart(fleet.left);
    fleet.universe.pass(Micros::from_secs(2));
    let id = fleet.ask(fleet.left, Needs::default());
    assert!(whole(&fleet.finish(id)), "{:?}", fleet.universe.client(id).answer);
    assert!(fleet.universe.client(id).decision.as_ref().is_some_and(|decision| decision.degraded));
    fleet.over();
}

#[test]
fn orphans_of_a_dead_hub_are_cancelled_within_two_seconds() {
    let mut fleet = Fleet::new();
    let relayed = fleet.universe.ask(fleet.left, |id| request(id, Needs::default(), 4_000));
    let own = fleet.universe.ask_hub(|id| request(id, Needs::default(), 4_000));
    let cloud = fleet.cloud;
    assert!(
        fleet.universe.until(Micros::from_secs(5), |universe| [relayed, own].iter().all(|id| universe.client(*id).tokens > 3))
    );
    fleet.universe.kill_hub();
    assert!(
        fleet.universe.until(Micros::from_secs(2), |universe| universe.executing(cloud) == 0),
        "nobody can read what it writes"
    );
    // Only the cloud has that variant: the stream waits a while for the hub to come back, then its client is told.
    let told = |universe: &Universe| matches!(universe.client(relayed).answer, Some(Answer::Error(_)));
    assert!(fleet.universe.until(Micros::from_secs(15), told), "{:?}", fleet.universe.client(relayed).answer);
    fleet.over();
}
