//! Numbers that are none stop at the boundary: no policy ever sees them.

use shared::fleet::{Profile, ReplicaReport, Telemetry};
use shared::ids::NodeId;
use shared::units::{Bytes, Fraction, Quality, TokenRate, Watts};

fn telemetry() -> Telemetry {
    let node = NodeId::new("site/node").expect("good");
    Telemetry { memory_available: Some(Bytes(1)), load_1m: Some(0.5), ..Telemetry::of(node) }
}

const ODD: [f64; 5] = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -1.0, 1e300];

#[test]
fn quantities_refuse_odd_numbers_on_every_codec() {
    for odd in ODD {
        assert!(Watts::new(odd).is_err() && TokenRate::new(odd).is_err() && Quality::new(odd).is_err());
        let mut cbor = Vec::new();
        ciborium::into_writer(&odd, &mut cbor).expect("a float is writable");
        assert!(ciborium::from_reader::<Fraction, _>(cbor.as_slice()).is_err(), "{odd} as CBOR");
        assert!(serde_json::from_str::<Fraction>(&odd.to_string()).is_err(), "{odd} as JSON");
    }
}

#[test]
fn telemetry_with_odd_numbers_is_dropped_whole() {
    assert_eq!(telemetry().validate(), Ok(()));
    for odd in ODD {
        let fault = Telemetry { load_1m: Some(odd), ..telemetry() }.validate().expect_err("odd");
        assert!(fault.to_string().starts_with("load_1m"), "names the field: {fault}");
    }
}

#[test]
fn replicas_with_impossible_figures_are_refused() {
    let good = r#"{"variant":"v","engine":"llm","state":"ready","load":{"slots":1,"active":0,"queued":0,"backlog":0},
        "memory":1,"context":512,"profile":{"prompt":10,"decode":1,"overhead":0,"spread":0.1,"source":"warmup","samples":1}}"#;
    let good: ReplicaReport = serde_json::from_str(good).expect("good");
    assert_eq!(good.validate(), Ok(()));
    let profile = good.profile.clone().expect("given");
    let still = Profile { decode: TokenRate::default(), ..profile };
    assert!(ReplicaReport { profile: Some(still), ..good.clone() }.validate().is_err(), "a rate of zero is no rate");
    let mut crowded = good.clone();
    crowded.load.active = ReplicaReport::COUNT_MAX + 1;
    assert!(crowded.validate().is_err());
    let flood = Telemetry { replicas: vec![good; Telemetry::REPLICAS_MAX + 1], ..telemetry() };
    assert!(flood.validate().is_err(), "more than a machine can hold");
}
