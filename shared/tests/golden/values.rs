//! Values that several messages carry, with every field filled.

use shared::fleet::*;
use shared::ids::*;
use shared::units::*;
use shared::work::EngineKind;

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("good")
}

pub(crate) fn variant(name: &str) -> VariantId {
    VariantId::new(name).expect("good")
}

pub(crate) fn service(name: &str) -> ServiceId {
    ServiceId::new(name).expect("good")
}

pub(crate) fn fraction(value: f64) -> Fraction {
    Fraction::new(value).expect("from 0 to 1")
}

pub(crate) fn load() -> Load {
    serde_json::from_str(r#"{"slots":4,"active":3,"queued":1,"queue_max":16,"backlog":700}"#).expect("good")
}

pub(crate) fn path(hop: Hop) -> PathReport {
    PathReport {
        hop,
        rtt: Some(Micros::from_millis(23)),
        jitter: Some(Micros(1_500)),
        rate_out: ByteRate::new(1.25e6).ok(),
        rate_in: ByteRate::new(5e6).ok(),
        loss: Some(fraction(0.01)),
        metered: true,
        transport: None,
    }
}

pub(crate) fn replica(state: ReplicaState) -> ReplicaReport {
    ReplicaReport {
        variant: variant("smollm2-135m-q8"),
        engine: EngineKind::Llm,
        device: String::new(),
        state,
        load: load(),
        memory: Bytes(180_000_000),
        context: Tokens(2048),
        weights_sha256: None,
        layers: None,
        capabilities: vec!["tools".to_owned()],
        profile: Some(Profile {
            prompt: TokenRate::new(412.5).expect("good"),
            decode: TokenRate::new(38.25).expect("good"),
            overhead: Micros(900),
            spread: fraction(0.125),
            source: ProfileSource::WarmUp,
            samples: 5,
            pace: None,
            load: None,
        }),
    }
}

pub(crate) fn costs() -> Costs {
    Costs {
        busy: Watts::new(12.5).ok(),
        prompt_per_million: Some(MicroDollars(150_000)),
        output_per_million: Some(MicroDollars(600_000)),
    }
}

pub(crate) fn epoch(sequence: u64) -> PlanEpoch {
    PlanEpoch { incarnation: 3, sequence }
}
