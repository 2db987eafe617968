//! What operators do: services, drain, revoke, records.

use super::*;
use shared::ids::{KeyName, RequestId};
use shared::plan::{Actual, DispatchSetting, Failure, Outcome, Record};
use shared::wire::mqtt::Records;
use shared::work::{ClientKey, KeyHash, KeyScope, Needs};

#[test]
fn services_are_kept_told_and_checked() {
    let mut universe = Universe::restored(Restored::default());
    universe.join("site/a");
    assert_eq!(universe.operate(AdminOperation::PutService(assistant())), AdminReply::Done);
    assert!(universe.effects.contains(&HubEffect::Persist(Change::Service(assistant()))));
    universe.pass(SECOND);
    let told = universe.views[&node("site/a")].catalogue.clone().expect("a catalogue");
    assert_eq!(told.iter().count(), 1);

    let empty = Service { id: "empty".parse().expect("a good name"), aliases: Vec::new(), variants: Vec::new() };
    assert!(matches!(universe.operate(AdminOperation::PutService(empty)), AdminReply::Refused(why) if why.contains("variant")));
    let unknown = "unknown".parse().expect("a good name");
    assert!(matches!(universe.operate(AdminOperation::RemoveService(unknown)), AdminReply::NotFound(_)));
    assert_eq!(universe.operate(AdminOperation::Services), AdminReply::Services(vec![assistant()]));
}

#[test]
fn a_drained_node_is_left_alone_until_it_is_undrained() {
    let mut universe = Universe::new();
    universe.join("site/a");
    universe.join("far/b");
    assert_eq!(universe.operate(AdminOperation::Drain { node: node("far/b"), drain: true }), AdminReply::Done);
    assert_eq!(universe.state("far/b"), NodeState::Draining);
    assert!(universe.effects.iter().any(|effect| matches!(effect, HubEffect::Persist(Change::Node(kept)) if kept.drained)));
    universe.pass(SECOND);
    assert!(universe.views[&node("far/b")].drain, "it is told itself");
    assert_eq!(universe.targets("site/a"), []);
    universe.operate(AdminOperation::Drain { node: node("far/b"), drain: false });
    universe.pass(SECOND);
    assert!(!universe.views[&node("far/b")].drain);
    assert_eq!(universe.targets("site/a"), [node("far/b")]);
    let unknown = AdminOperation::Drain { node: node("no/where"), drain: true };
    assert!(matches!(universe.operate(unknown), AdminReply::NotFound(_)));
}

#[test]
fn a_revoked_node_is_out_everywhere_at_once() {
    let mut universe = Universe::new();
    universe.join("site/a");
    let thrown_out = universe.join("far/b");
    universe.pass(SECOND);
    let before = universe.log.len();
    assert_eq!(universe.operate(AdminOperation::Revoke(node("far/b"))), AdminReply::Done);
    let serial = universe.hub.fleet.revoked().to_vec();
    assert_eq!(serial.len(), 1);
    assert_eq!(universe.closed_with(thrown_out), Some(&Goodbye::Revoked));
    assert!(universe.effects.contains(&HubEffect::KickMqtt { node: node("far/b") }));
    assert!(universe.effects.contains(&HubEffect::ClearPlan { node: node("far/b"), layer: Layer::Offload }));
    universe.pass(Micros::from_millis(150));
    assert!(universe.log.len() > before);
    let view = &universe.views[&node("site/a")];
    assert_eq!(view.revoked, serial, "direct connections end by the others' views");
    assert!(view.nodes.iter().all(|row| row.node != node("far/b")));
    universe.pass(SECOND);
    assert_eq!(universe.targets("site/a"), []);
    assert!(universe.row("far/b").revoked);

    // It comes back with the same certificate, and with one that the hub never issued.
    let again = universe.hello("far/b");
    assert_eq!(universe.closed_with(again), Some(&Goodbye::Revoked));
    let forged = universe.hello_with("far/b", "f0", Instance(3), |_| {});
    assert_eq!(universe.closed_with(forged), Some(&Goodbye::Revoked));

    let drain = AdminOperation::Drain { node: node("far/b"), drain: true };
    assert!(matches!(universe.operate(drain), AdminReply::Refused(why) if why.contains("far/b") && why.contains("token")));

    // After joining anew it is welcome.
    universe.tell(HubEvent::Enrolled { node: node("far/b"), serial: "ee".to_owned(), labels: BTreeMap::new() });
    let fresh = universe.hello_with("far/b", "ee", Instance(4), |_| {});
    assert_eq!(universe.closed_with(fresh), None);
    assert!(!universe.row("far/b").revoked);
}

#[test]
fn a_node_that_joins_anew_is_not_drained() {
    let mut universe = Universe::new();
    universe.join("far/b");
    universe.operate(AdminOperation::Drain { node: node("far/b"), drain: true });
    let renewed = |serial: &str| HubEvent::Enrolled { node: node("far/b"), serial: serial.to_owned(), labels: BTreeMap::new() };
    universe.tell(renewed("ed"));
    assert!(universe.row("far/b").draining, "a renewed certificate changes no wish");
    universe.operate(AdminOperation::Revoke(node("far/b")));
    universe.tell(renewed("ee"));
    universe.hello_with("far/b", "ee", Instance(4), |_| {});
    universe.pass(SECOND);
    assert_eq!(universe.state("far/b"), NodeState::Online);
    assert!(!universe.views[&node("far/b")].drain);
}

#[test]
fn a_clone_that_is_revoked_is_closed_too() {
    let mut universe = Universe::new();
    let first = universe.join("site/a");
    let second = universe.hello("site/a");
    universe.operate(AdminOperation::Revoke(node("site/a")));
    for connection in [first, second] {
        assert_eq!(universe.closed_with(connection), Some(&Goodbye::Revoked));
    }
}

#[test]
fn messages_of_a_revoked_or_unknown_node_are_nothing() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    let session = universe.session(connection);
    universe.operate(AdminOperation::Revoke(node("site/a")));
    for name in ["site/a", "no/where"] {
        universe.mqtt(name, session, NodeMessage::Telemetry(telemetry(&node(name))));
        universe.mqtt(name, session, NodeMessage::Records(Records { records: vec![record(name, 1)] }));
    }
    assert_eq!(universe.state("site/a"), NodeState::Offline);
    assert_eq!(universe.hub.node(universe.now, &node("no/where")), None);
    assert_eq!(universe.hub.totals(), []);
}

#[test]
fn another_dispatch_policy_reaches_all_and_survives() {
    let mut universe = Universe::new();
    universe.join("site/a");
    let setting = DispatchSetting { policy: "edge-only".to_owned(), config: serde_json::Value::Null };
    assert_eq!(universe.operate(AdminOperation::SetDispatch(setting.clone())), AdminReply::Done);
    universe.pass(SECOND);
    assert_eq!(universe.plans[&node("site/a")][&Layer::Dispatch].rows, PlanRows::Dispatch(setting.clone()));
    assert!(universe.effects.contains(&HubEffect::Persist(Change::Dispatch(setting))));
    let unknown = DispatchSetting { policy: "no-such".to_owned(), config: serde_json::Value::Null };
    assert!(
        matches!(universe.operate(AdminOperation::SetDispatch(unknown)), AdminReply::Refused(why) if why.contains("min-latency"))
    );
}

fn record(ingress: &str, number: u128) -> Record {
    Record {
        request: RequestId(number),
        ingress: node(ingress),
        service: "assistant".parse().expect("a good name"),
        needs: Needs::default(),
        arrived: Moment(5),
        waited: Micros::ZERO,
        attempts: Vec::new(),
        served_by: None,
        quality: None,
        actual: Actual::default(),
        outcome: Outcome::Failed(Failure::ClientGone),
        attained: Some(false),
    }
}

#[test]
fn records_are_taken_once_and_only_from_their_ingress() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    universe.join("far/b");
    let session = universe.session(connection);
    for _ in 0..2 {
        let records = vec![record("site/a", 1), record("site/a", 2)];
        universe.mqtt("site/a", session, NodeMessage::Records(Records { records }));
    }
    universe.mqtt("site/a", session, NodeMessage::Records(Records { records: vec![record("far/b", 3)] }));
    let many = (0..65).map(|number| record("site/a", 100 + number)).collect();
    universe.mqtt("site/a", session, NodeMessage::Records(Records { records: many }));
    let totals = universe.hub.totals();
    assert_eq!((totals.len(), totals[0].outcome.as_str(), totals[0].totals.requests), (1, "client_gone", 2));
    assert_eq!((totals[0].totals.wished, totals[0].totals.attained), (2, 0));
    assert_eq!((universe.counter("records"), universe.counter("reports_dropped")), (2, 2));
}

#[test]
fn sums_of_what_nobody_knows_are_absent() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    let session = universe.session(connection);
    let tell = |universe: &mut Universe, number, energy: Option<f64>| {
        let mut told = record("site/a", number);
        told.actual.energy = energy.map(|joules| shared::units::Joules::new(joules).expect("an energy"));
        universe.mqtt("site/a", session, NodeMessage::Records(Records { records: vec![told] }));
    };
    tell(&mut universe, 1, None);
    let shown = serde_json::to_value(&universe.hub.totals()[0].totals).expect("JSON");
    assert!(shown.get("energy").is_none() && shown.get("money").is_none(), "{shown}");
    tell(&mut universe, 2, Some(1.5));
    tell(&mut universe, 3, None);
    tell(&mut universe, 4, Some(2.0));
    let totals = &universe.hub.totals()[0].totals;
    assert_eq!((totals.requests, totals.energy.map(shared::units::Joules::get), totals.money), (4, Some(3.5), None));
}

#[test]
fn keys_are_kept_told_at_once_and_gone_when_revoked() {
    let key = |name: &str| ClientKey {
        name: KeyName::new(name).expect("a name"),
        sha256: KeyHash::of(name.as_bytes()),
        scope: KeyScope::Inference,
        services: Vec::new(),
        rate_per_minute: Some(60),
        tokens_per_day: None,
        expires: None,
    };
    let mut universe = Universe::restored(Restored { keys: vec![key("old")], ..Restored::default() });
    universe.join("site/a");
    universe.pass(SECOND);
    assert_eq!(universe.views[&node("site/a")].keys, Some(vec![key("old")]), "restored ones too");
    assert_eq!(universe.operate(AdminOperation::AddKey(key("new"))), AdminReply::Done);
    assert!(universe.effects.contains(&HubEffect::Persist(Change::Key(key("new")))));
    assert!(universe.effects.contains(&HubEffect::Keys(vec![key("new"), key("old")])));
    assert!(matches!(universe.operate(AdminOperation::AddKey(key("new"))), AdminReply::Refused(why) if why.contains("already")));
    let bad = ClientKey { rate_per_minute: Some(0), ..key("bad") };
    assert!(matches!(universe.operate(AdminOperation::AddKey(bad)), AdminReply::Refused(_)));
    assert_eq!(universe.operate(AdminOperation::RevokeKey(key("old").name)), AdminReply::Done);
    assert!(matches!(universe.operate(AdminOperation::RevokeKey(key("old").name)), AdminReply::NotFound(_)));
    universe.pass(Micros::from_millis(500));
    assert_eq!(universe.views[&node("site/a")].keys, Some(vec![key("new")]), "told before the next tick");
    assert_eq!(universe.operate(AdminOperation::Keys), AdminReply::Keys(vec![key("new")]));
    for number in 1..ClientKey::KEYS_MAX {
        assert_eq!(universe.operate(AdminOperation::AddKey(key(&format!("k{number}")))), AdminReply::Done);
    }
    assert!(matches!(universe.operate(AdminOperation::AddKey(key("more"))), AdminReply::Refused(_)), "there is an end");
}
