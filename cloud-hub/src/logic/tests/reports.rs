//! Reports of nodes: deltas are put together, and one that says nonsense spoils nothing for the others.

use super::*;
use shared::fleet::{Gauge, Hardware};
use shared::units::Celsius;

fn delta(name: &str) -> Telemetry {
    Telemetry { delta: true, ..Telemetry::of(node(name)) }
}

#[test]
fn a_delta_changes_what_it_names_and_nothing_else() {
    let mut universe = Universe::new();
    let connection = universe.join("site/a");
    let session = universe.session(connection);
    universe.quiet = true;
    let whole = Telemetry {
        cpu: Fraction::new(0.5).ok(),
        temperature: Celsius::new(50.0).ok(),
        memory_available: Some(Bytes(7)),
        ..telemetry(&node("site/a"))
    };
    universe.mqtt("site/a", session, NodeMessage::Telemetry(whole));
    let warmer = Telemetry { temperature: Celsius::new(70.0).ok(), unknown: BTreeSet::from([Gauge::Cpu]), ..delta("site/a") };
    universe.mqtt("site/a", session, NodeMessage::Telemetry(warmer));
    let row = universe.row("site/a");
    let told = row.telemetry.expect("told");
    assert_eq!((told.cpu, told.temperature.map(Celsius::get), told.memory_available), (None, Some(70.0), Some(Bytes(7))));
    assert_eq!(row.replicas.len(), 1, "as before");
    let gone = Telemetry { gone: vec![replica().variant], ..delta("site/a") };
    universe.mqtt("site/a", session, NodeMessage::Telemetry(gone));
    assert!(universe.row("site/a").replicas.is_empty());
    universe.mqtt("site/a", session, NodeMessage::Telemetry(telemetry(&node("site/a"))));
    let row = universe.row("site/a");
    assert_eq!((row.telemetry.expect("told").temperature, row.replicas.len()), (None, 1), "a whole report replaces all");
}

#[test]
fn row_21_what_cannot_be_is_refused_by_name_and_others_go_on() {
    let mut universe = Universe::new();
    let (bad, _good) = (universe.join("site/a"), universe.join("site/b"));
    let session = universe.session(bad);
    let crowd = Telemetry { gone: vec![replica().variant; Telemetry::REPLICAS_MAX + 1], ..delta("site/a") };
    universe.mqtt("site/a", session, NodeMessage::Telemetry(crowd));
    let load = Telemetry { load_1m: Some(f64::NAN), ..delta("site/a") };
    universe.mqtt("site/a", session, NodeMessage::Telemetry(load));
    let row = universe.row("site/a");
    assert_eq!((row.faults.get("gone"), row.faults.get("load_1m")), (Some(&1), Some(&1)), "{:?}", row.faults);
    assert_eq!(universe.state("site/b"), NodeState::Online);
    assert!(universe.row("site/b").faults.is_empty());
}

#[test]
fn rates_that_are_none_do_not_come_off_the_wire() {
    for broken in ["null", "-1", "0.5e30", "\"N/A\"", "1e400"] {
        let fact = format!(r#"{{"value":{broken},"origin":"measured","by":"x","confidence":0.5}}"#);
        let hardware = serde_json::from_str::<Hardware>(&format!(r#"{{"f32_all":{fact}}}"#));
        assert!(hardware.is_err(), "{broken}");
    }
    let zero = r#"{"usable":{"value":0,"origin":"reported","by":"x","confidence":0.5}}"#;
    let zero: Hardware = serde_json::from_str(zero).expect("a number");
    assert!(zero.validate().is_err_and(|fault| fault.to_string().contains("hardware.usable")));
}
