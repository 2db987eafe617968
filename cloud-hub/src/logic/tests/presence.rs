//! Who is there: silence, late last wills, leases, broken reports.

use super::*;
use shared::fleet::{Hop, PathReport};
use shared::units::ByteRate;
use shared::wire::mqtt::{AckState, PlanAck};

fn status(online: bool) -> NodeMessage {
    NodeMessage::Status(Status { online })
}

#[test]
fn silence_makes_suspect_and_loss_makes_offline() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    universe.kill(connection);
    universe.pass(Micros::from_millis(2_500));
    assert_eq!(universe.state("site/a"), NodeState::Online, "two lost pings change nothing");
    universe.pass(Micros::from_millis(1_500));
    assert_eq!(universe.state("site/a"), NodeState::Suspect);
    universe.pass(Micros::from_secs(2));
    assert_eq!(universe.state("site/a"), NodeState::Offline);
}

#[test]
fn others_are_told_of_a_death_within_a_heartbeat_and_at_once_of_a_loss() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    universe.join("far/b");
    universe.pass(Micros::from_millis(400));
    let effects = universe.tell(HubEvent::ConnectionLost { connection });
    let told = |effects: &[HubEffect]| {
        effects.iter().any(|effect| {
            matches!(effect, HubEffect::PublishView { node: reader, view }
                if *reader == node("far/b") && view.nodes.iter().any(|row| row.state == NodeState::Offline))
        })
    };
    assert!(told(&effects), "a reader that was granted it is told with the event itself");
}

#[test]
fn a_late_last_will_changes_nothing() {
    let mut universe = Universe::new();
    let old = universe.join("site/a");
    let old_session = universe.session(old);
    universe.tell(HubEvent::ConnectionLost { connection: old });
    universe.join("site/a");
    // The broker noticed the death of the old session only now.
    let effects = universe.mqtt("site/a", old_session, status(false));
    assert_eq!(universe.state("site/a"), NodeState::Online);
    assert!(effects.iter().any(|effect| matches!(effect, HubEffect::Note(Note::StaleMessage { .. }))));
}

#[test]
fn a_last_will_beside_a_live_connection_is_only_a_doubt() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    let session = universe.session(connection);
    universe.pass(Micros::from_millis(500));
    universe.mqtt("site/a", session, status(false));
    assert_eq!(universe.state("site/a"), NodeState::Suspect);
    universe.pass(SECOND + WAY + WAY);
    assert_eq!(universe.state("site/a"), NodeState::Online, "the next pong contradicts it");
}

#[test]
fn mqtt_keeps_the_lease_but_is_no_path() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    let session = universe.session(connection);
    universe.tell(HubEvent::ConnectionLost { connection });
    universe.mqtt("site/a", session, NodeMessage::Telemetry(telemetry(&node("site/a"))));
    assert_eq!(universe.state("site/a"), NodeState::Seen, "alive, but no path carries data");
    universe.mqtt("site/a", session, status(false));
    assert_eq!(universe.state("site/a"), NodeState::Offline);
    universe.mqtt("site/a", session, NodeMessage::Telemetry(telemetry(&node("site/a"))));
    universe.pass(Micros::from_secs(16));
    assert_eq!(universe.state("site/a"), NodeState::Offline, "three heartbeats of silence end the lease");
}

#[test]
fn a_path_that_never_answered_is_no_path() {
    let mut universe = Universe::new();
    let connection = universe.hello("site/a");
    universe.agents.get_mut(&connection).expect("an agent").1.answers = false;
    universe.flying.clear();
    universe.pass(Micros::from_secs(2));
    assert_eq!(universe.state("site/a"), NodeState::Seen);
    assert_eq!(universe.plans.get(&node("site/a")), None, "nothing is planned for it");
}

#[test]
fn retained_messages_of_days_ago_are_no_sign_of_life() {
    let known = RestoredNode {
        node: node("site/a"),
        labels: BTreeMap::new(),
        serials: BTreeSet::new(),
        revoked: BTreeSet::new(),
        drained: false,
    };
    let mut universe = Universe::restored(Restored { nodes: vec![known], ..Restored::default() });
    let session = Session { epoch: SessionEpoch(3), instance: Instance(3) };
    universe.mqtt("site/a", session, status(true));
    assert_eq!(universe.state("site/a"), NodeState::Offline);
    universe.mqtt("site/a", session, NodeMessage::Telemetry(telemetry(&node("site/a"))));
    assert_eq!(universe.state("site/a"), NodeState::Seen, "telemetry is not retained");
}

#[test]
fn a_broken_report_is_dropped_whole_and_disturbs_nobody() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    universe.join("site/b");
    let session = universe.session(connection);
    let mut report = telemetry(&node("site/a"));
    report.replicas[0].load.active = 3;
    report.load_1m = Some(f64::NAN);
    universe.mqtt("site/a", session, NodeMessage::Telemetry(report.clone()));
    report.load_1m = Some(-4.0);
    universe.mqtt("site/a", session, NodeMessage::Telemetry(report));
    universe.mqtt("site/a", session, NodeMessage::Telemetry(telemetry(&node("site/b"))));
    universe.tell(HubEvent::BadPayload { node: node("site/a"), topic: "telemetry".to_owned(), why: "not JSON".to_owned() });

    let row = universe.row("site/a");
    assert_eq!(row.replicas[0].load.active, 0, "nothing of it is believed");
    assert_eq!(row.faults.get("load_1m"), Some(&2));
    assert_eq!((row.faults.get("node"), row.faults.get("telemetry")), (Some(&1), Some(&1)));
    assert_eq!(row.last_fault.as_deref(), Some("telemetry: not JSON"));
    assert_eq!((universe.state("site/a"), universe.state("site/b")), (NodeState::Online, NodeState::Online));
    assert_eq!(universe.row("site/b").faults, BTreeMap::new());
}

#[test]
fn faults_under_endless_names_stay_bounded() {
    let mut universe = Universe::new();
    universe.join("site/a");
    for number in 0..500 {
        let (topic, why) = (format!("field-{number}"), "x".repeat(10_000));
        universe.tell(HubEvent::BadPayload { node: node("site/a"), topic, why });
    }
    let row = universe.row("site/a");
    assert!(row.faults.len() <= 33, "{}", row.faults.len());
    assert_eq!(row.faults.values().sum::<u64>(), 500);
    assert!(row.last_fault.is_some_and(|fault| fault.len() <= 200));
}

#[test]
fn an_ack_of_an_unknown_plan_is_nothing() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    let session = universe.session(connection);
    let epoch = PlanEpoch { incarnation: 99, sequence: 99 };
    let ack = PlanAck { layer: Layer::Offload, epoch, state: AckState::Failed("no".to_owned()) };
    universe.mqtt("site/a", session, NodeMessage::PlanAck(ack));
    assert!(universe.row("site/a").plans.iter().all(|plan| plan.ack.is_none()));
}

#[test]
fn a_path_is_what_was_measured_and_else_what_the_node_says_from_its_end() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    let session = universe.session(connection);
    let rate = |rate| Some(ByteRate::new(rate).expect("a rate"));
    let told = PathReport { rate_out: rate(100.0), rate_in: rate(2000.0), metered: true, ..PathReport::local() };
    let report = Telemetry { uplink: Some(told), ..telemetry(&node("site/a")) };
    universe.quiet = true;
    universe.mqtt("site/a", session, NodeMessage::Telemetry(report));
    universe.pass(Micros::from_millis(1_500));
    let path = |universe: &Universe| {
        let view = universe.hub.fleet.view();
        view.node(&node("site/a")).and_then(|entry| entry.paths.get(&Hop::Direct)).expect("a path").value.clone()
    };
    let known = path(&universe);
    assert_eq!((known.rate_out, known.rate_in, known.metered), (rate(2000.0), rate(100.0), true));
    assert_eq!(known.rtt, Some(WAY + WAY), "by the hub's own pings, whatever is said");
    let measured = PathReport { rate_out: rate(1500.0), ..PathReport::with_rtt(Hop::Relay, Micros(7)) };
    universe.tell(HubEvent::PathMeasured { connection, path: measured });
    let known = path(&universe);
    assert_eq!((known.rate_out, known.rate_in, known.hop), (rate(1500.0), rate(100.0), Hop::Direct));
}
