//! Who is who: restarts, clones, versions, revoked and forgotten certificates.

use super::*;

#[test]
fn a_clone_is_found_and_neither_gets_work() {
    let mut universe = Universe::new();
    let first = universe.join("site/a");
    universe.join("site/b");
    assert!(universe.targets("site/b").contains(&node("site/a")));

    let second = universe.hello("site/a");
    assert_eq!(universe.state("site/a"), NodeState::Suspect, "in doubt it is given nothing");
    universe.pass(SECOND);
    assert_eq!(universe.state("site/a"), NodeState::Cloned);
    assert_eq!(universe.closed_with(second), Some(&Goodbye::Cloned));
    assert_eq!(universe.closed_with(first), None, "the older one stays connected");
    universe.pass(SECOND);
    assert!(!universe.targets("site/b").contains(&node("site/a")));

    // The clone tries again and again: the flag stays.
    for _ in 0..4 {
        universe.pass(Micros::from_secs(30));
        universe.hello("site/a");
    }
    universe.pass(Micros::from_secs(30));
    assert_eq!(universe.state("site/a"), NodeState::Cloned);
    // Only when it was not seen for a while does the flag fall.
    universe.pass(Micros::from_secs(35));
    assert_eq!(universe.state("site/a"), NodeState::Online);
}

#[test]
fn five_quick_restarts_are_no_clones() {
    let mut universe = Universe::new();
    let mut connection = universe.join("site/a");
    let mut epoch = universe.session(connection).epoch;
    for restart in 0..5 {
        // Killed without a word: the old connection looks alive to the transport for five more seconds.
        universe.kill(connection);
        universe.pass(MS);
        connection = universe.hello("site/a");
        universe.pass(Micros::from_millis(2_500));
        assert_eq!(universe.state("site/a"), NodeState::Online, "restart {restart}");
        let next = universe.session(connection).epoch;
        assert!(next > epoch, "session epochs rise");
        epoch = next;
    }
    universe.pass(Micros::from_secs(10));
    assert_eq!(universe.state("site/a"), NodeState::Online, "late losses of old connections change nothing");
    assert_eq!(universe.counter("identities_cloned"), 0);
}

#[test]
fn restarts_faster_than_a_challenge_are_no_clones() {
    let mut universe = Universe::new();
    let mut connection = universe.join("site/a");
    for _ in 0..5 {
        universe.kill(connection);
        universe.pass(Micros::from_millis(300));
        connection = universe.hello("site/a");
    }
    // Five restarts in a second and a half: the first challenge ran all the time, and the last one needs no other.
    universe.pass(Micros::from_millis(500));
    assert_eq!(universe.state("site/a"), NodeState::Online);
    assert_eq!((universe.counter("identities_cloned"), universe.counter("challenges")), (0, 1));
}

#[test]
fn hellos_faster_than_a_round_trip_do_not_hide_a_clone() {
    let mut universe = Universe::new();
    universe.join("site/a");
    for _ in 0..10 {
        universe.hello("site/a");
        universe.pass(Micros::from_millis(10));
    }
    assert_eq!(universe.state("site/a"), NodeState::Cloned);
}

#[test]
fn a_restart_after_a_known_loss_is_admitted_at_once() {
    let mut universe = Universe::new();
    let old = universe.join("site/a");
    universe.tell(HubEvent::ConnectionLost { connection: old });
    assert_eq!(universe.state("site/a"), NodeState::Offline);
    let new = universe.hello("site/a");
    assert!(universe.agents[&new].1.session.is_some(), "welcomed without a challenge");
    assert_eq!(universe.counter("challenges"), 0);
}

#[test]
fn the_same_process_may_reconnect_before_its_loss_is_known() {
    let mut universe = Universe::new();
    let old = universe.hello_as("site/a", Instance(5), |_| {});
    universe.pass(SECOND);
    let new = universe.hello_as("site/a", Instance(5), |_| {});
    universe.pass(SECOND);
    assert_eq!(universe.closed_with(old), None, "what runs there may end there");
    assert_eq!((universe.state("site/a"), universe.counter("challenges")), (NodeState::Online, 0));
    assert!(universe.session(new).epoch > SessionEpoch(1));
    universe.tell(HubEvent::ConnectionLost { connection: old });
    assert_eq!(universe.state("site/a"), NodeState::Online, "the older one's end is not the node's");
}

#[test]
fn what_is_no_good_hello_is_turned_away() {
    let mut universe = Universe::new();
    let future = universe.hello_as("site/a", Instance(1), |hello| (hello.version_min, hello.version_max) = (90, 99));
    assert_eq!(universe.closed_with(future), Some(&Goodbye::Version));
    let upside_down = universe.hello_as("site/a", Instance(1), |hello| (hello.version_min, hello.version_max) = (9, 0));
    assert_eq!(universe.closed_with(upside_down), Some(&Goodbye::Version));
    let liar = universe.hello_as("site/a", Instance(1), |hello| hello.node = node("site/b"));
    assert!(matches!(universe.closed_with(liar), Some(Goodbye::Protocol(_))));
    let usurper = universe.hello("cloud/hub");
    assert!(matches!(universe.closed_with(usurper), Some(Goodbye::Protocol(_))));
    assert_eq!(universe.counter("sessions"), 0);
}

#[test]
fn a_broken_replica_in_a_hello_costs_the_replicas_only() {
    let mut universe = Universe::new();
    universe.hello_as("site/a", Instance(1), |hello| hello.replicas[0].load.slots = u32::MAX);
    universe.pass(SECOND);
    assert_eq!(universe.state("site/a"), NodeState::Online);
    assert_eq!(universe.row("site/a").replicas, Vec::new());
    assert_eq!(universe.counter("reports_dropped"), 1);
    let row = universe.row("site/a");
    assert!(row.last_fault.is_some() && row.tier.is_none());
    let again = universe.hello_as("site/a", Instance(1), |_| {});
    let row = universe.row("site/a");
    assert_eq!((row.last_fault, universe.closed_with(again)), (None, None), "a fresh session has no fault yet");
    assert_eq!(row.faults.values().sum::<u64>(), 1, "the counts stay");
}
