//! What an estimate of a split depends on, held against measured splits and against what no split can beat.

use shared::estimate::{Estimate, StageFacts, predict, predict_split};
use shared::fleet::{Costs, Hop, Load, PathReport, Profile, ProfileSource};
use shared::ids::{RequestId, ServiceId};
use shared::units::*;
use shared::work::{Features, HeldLayers, LayerRange, Likely, LlmRequest, Needs, Precision, PromptKind};

fn request(prompt: u32, output: u32) -> LlmRequest {
    LlmRequest {
        id: RequestId(1),
        service: ServiceId::new("s").expect("good"),
        pinned: None,
        kind: PromptKind::Chat,
        prompt: Tokens(prompt),
        output_max: Tokens(output),
        features: Features::default(),
        stream: true,
        body: Bytes(u64::from(prompt) * 4),
        needs: Needs::default(),
        likely: Likely::default(),
    }
}

/// A replica's profile by the time that it takes for one token.
fn profile(decode_ms: f64, prompt_ms: f64) -> Profile {
    let rate = |ms: f64| TokenRate::new(1e3 / ms).expect("good");
    Profile {
        prompt: rate(prompt_ms),
        decode: rate(decode_ms),
        overhead: Micros::ZERO,
        spread: Fraction::new(0.1).expect("good"),
        source: ProfileSource::WarmUp,
        samples: 5,
        pace: None,
        load: None,
    }
}

type Grow = fn(&mut Stage, u32);

/// One stage with everything that an estimate needs of it.
#[derive(Clone)]
struct Stage {
    profile: Profile,
    load: Load,
    path: PathReport,
    costs: Costs,
    layers: LayerRange,
    held: HeldLayers,
}

impl Stage {
    fn facts(&self) -> StageFacts<'_> {
        let Self { profile, load, path, costs, layers, held } = self;
        StageFacts { profile, load, path, costs, layers: *layers, held: *held }
    }
}

const fn layers(from: u16, to: u16) -> LayerRange {
    LayerRange { from, to, of: 30 }
}

/// A stage that computes all layers that its replica holds, of a model whose hidden states have 576 numbers.
fn stage(range: LayerRange, decode_ms: f64, rtt: Micros) -> Stage {
    Stage {
        profile: profile(decode_ms, decode_ms / 5.0),
        load: Load { slots: 4, queue_max: 8, ..Load::default() },
        path: PathReport::with_rtt(Hop::Direct, rtt),
        costs: Costs::default(),
        layers: range,
        held: HeldLayers { range, hidden: Bytes(2_304) },
    }
}

fn split_in(request: &LlmRequest, stages: &[Stage], precision: Precision) -> Estimate {
    let facts: Vec<_> = stages.iter().map(Stage::facts).collect();
    predict_split(request, &facts, precision, Quality::default())
}

fn split(request: &LlmRequest, stages: &[Stage]) -> Estimate {
    split_in(request, stages, Precision::F32)
}

/// Measured by `make bench-split`: 3.64 ms a token whole on one machine, and 4.11 ms cut in the middle with f32 between two of it.
#[test]
fn a_split_that_was_measured() {
    let half = |range, rtt| stage(range, 3.64 / 2.0, rtt);
    let loopback = Micros(150);
    let estimate = split(&request(100, 100), &[half(layers(0, 15), Micros::ZERO), half(layers(15, 30), loopback)]);
    let predicted = estimate.per_token.as_millis_f64();
    assert!((predicted / 4.11 - 1.0).abs() < 0.1, "{predicted} ms predicted, 4.11 ms measured");
    assert!(predicted > 4.11, "no split was seen to cost less than that on top of the whole: {predicted} ms");
}

/// A round trip of 20 ms alone caps a split at 50 tokens a second, one of 100 ms at 10, however fast the machines are.
#[test]
fn round_trips_cap_what_can_be_decoded() {
    for (rtt_ms, most) in [(20, 50.0), (100, 10.0)] {
        let fast = |range, rtt| stage(range, 1e-3, rtt);
        let stages = [fast(layers(0, 15), Micros::ZERO), fast(layers(15, 30), Micros::from_millis(rtt_ms))];
        let rate = 1.0 / split(&request(100, 100), &stages).per_token.as_secs_f64();
        assert!(rate < most && rate > 0.8 * most, "{rate} tok/s over {rtt_ms} ms");
    }
}

/// 2,304 bytes a token in f32 at 576 numbers; 8 KiB in 16 bits at 4,096.
#[test]
fn hidden_states_take_time_on_thin_links() {
    let thin = |hidden: u64| {
        let mut second = stage(layers(15, 30), 1e-3, Micros::ZERO);
        second.held.hidden = Bytes(hidden);
        second.path.rate_out = ByteRate::new(1e6).ok();
        [stage(layers(0, 15), 1e-3, Micros::ZERO), second]
    };
    let carried = |hidden, precision| {
        let mut wide = thin(hidden);
        wide[1].path.rate_out = None;
        let request = request(1_000, 100);
        let (slow, fast) = (split_in(&request, &thin(hidden), precision), split_in(&request, &wide, precision));
        (slow.per_token - fast.per_token, slow.first_token - fast.first_token)
    };
    let near = |span: Micros, ms: f64| (span.as_millis_f64() - ms).abs() < 0.01;
    let (token, prompt) = carried(2_304, Precision::F32);
    assert!(near(token, 2.304), "{token} for each token");
    assert!((prompt.as_secs_f64() - 2.304).abs() < 0.01, "{prompt} for a prompt of a thousand, computed in next to no time");
    assert!(near(carried(2_304, Precision::F16).0, 1.152));
    assert!(near(carried(16_384, Precision::F16).0, 8.192));
}

#[test]
fn a_prompt_flows_at_the_pace_of_the_slowest_stage() {
    let one = |first: f64, second: f64, tokens| {
        let stages = [stage(layers(0, 15), first, Micros::ZERO), stage(layers(15, 30), second, Micros::ZERO)];
        split(&request(tokens, 1), &stages).first_token - split(&request(0, 1), &stages).first_token
    };
    // 2 ms a prompt token and stage: 16 go through both, the rest overlaps.
    assert_eq!(one(10.0, 10.0, 16), Micros::from_millis(64));
    assert_eq!(one(10.0, 10.0, 1_016), Micros::from_millis(64 + 2_000));
    assert_eq!(one(10.0, 30.0, 1_016), Micros::from_millis(128 + 6_000));
}

#[test]
fn waits_follow_each_other_and_doubts_do_not_shrink() {
    let request = request(10, 10);
    let idle = [stage(layers(0, 15), 10.0, Micros::ZERO), stage(layers(15, 30), 10.0, Micros::ZERO)];
    let mut busy = idle.clone();
    for stage in &mut busy {
        stage.load = Load { slots: 1, active: 1, queued: 0, queue_max: 8, backlog: Tokens(100), ..Load::default() };
    }
    assert_eq!(split(&request, &idle).wait, Micros::ZERO);
    assert_eq!(split(&request, &busy).wait, Micros::from_secs(2), "100 tokens of 10 ms at each");
    let mut unsure = idle;
    unsure[1].profile.spread = Fraction::new(0.4).expect("good");
    assert_eq!(split(&request, &unsure).spread, unsure[1].profile.spread);
}

#[test]
fn a_whole_replica_computes_its_part_of_the_time() {
    let mut second = stage(layers(15, 30), 30.0, Micros::ZERO);
    second.held.range = LayerRange::whole(30);
    let alone = stage(layers(15, 30), 15.0, Micros::ZERO);
    let first = stage(layers(0, 15), 10.0, Micros::ZERO);
    let request = request(100, 100);
    assert_eq!(split(&request, &[first.clone(), second]), split(&request, &[first, alone]));
}

#[test]
fn energy_and_money_are_sums_over_the_parts() {
    let request = request(100, 100);
    let costs = Costs {
        busy: Watts::new(10.0).ok(),
        prompt_per_million: Some(MicroDollars(1_000_000)),
        output_per_million: Some(MicroDollars(3_000_000)),
    };
    let mut stages = [stage(layers(0, 10), 10.0, Micros::ZERO), stage(layers(10, 30), 20.0, Micros::ZERO)];
    assert_eq!(split(&request, &stages).energy, None, "unknown is not zero");
    stages[0].costs = costs.clone();
    assert_eq!((split(&request, &stages).energy, split(&request, &stages).money), (None, None), "nor is half of it");
    stages[1].costs = costs.clone();
    let parts = split(&request, &stages);
    let whole = predict(&request, &profile(30.0, 6.0), &stages[0].load, &PathReport::local(), &costs, Quality::default());
    let (split, alone) = (parts.energy.expect("known").get(), whole.energy.expect("known").get());
    assert!((split / alone - 1.0).abs() < 1e-9, "{split} J and {alone} J for the same work");
    let (split, alone) = (parts.money.expect("known").0, whole.money.expect("known").0);
    assert!((alone..=alone + 1).contains(&split), "{split} and {alone}: only rounding differs");
}

#[test]
fn more_of_anything_is_never_sooner() {
    let base = [stage(layers(0, 15), 10.0, Micros(500)), stage(layers(15, 30), 10.0, Micros(500))];
    let grown: [(&str, Grow); 4] = [
        ("round trip", |stage, step| stage.path.rtt = Some(Micros(u64::from(step) * 1_000))),
        ("load", |stage, step| stage.load.active = step),
        ("backlog", |stage, step| stage.load = Load { slots: 1, active: 1, backlog: Tokens(step), ..stage.load }),
        ("slowness", |stage, step| stage.profile = profile(1.0 + f64::from(step), 1.0 + f64::from(step))),
    ];
    for (what, grow) in grown {
        for place in 0..2 {
            for step in 0..20 {
                let total = |step| {
                    let mut stages = base.clone();
                    grow(&mut stages[place], step);
                    split(&request(100, 50), &stages).total
                };
                assert!(total(step) <= total(step + 1), "{what} {step} at stage {place}");
            }
        }
    }
}
