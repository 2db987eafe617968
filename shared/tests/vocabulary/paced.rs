//! Estimates from a pace: steps that are shared, contexts that grow, answers of likely length.

use crate::predict::Inputs;
use shared::fleet::{Load, Pace, ReplicaReport};
use shared::units::*;
use shared::work::Likely;

fn seconds(value: f64) -> Seconds {
    Seconds::new(value).expect("good")
}

/// 2 ms a step, 1 ms a prompt token, 3 ms a generated one, 2 µs a position, prompts in pieces of 32.
fn pace() -> Pace {
    let spread = Fraction::new(0.1).expect("good");
    Pace {
        step: seconds(2e-3),
        prompt: seconds(1e-3),
        decode: seconds(3e-3),
        seen: seconds(2e-6),
        chunk: Tokens(32),
        prompt_spread: spread,
        decode_spread: spread,
    }
}

fn inputs() -> Inputs {
    Inputs::new().with(|inputs| {
        inputs.profile.pace = Some(pace());
        inputs.path.rtt = None;
        inputs.profile.overhead = Micros::ZERO;
    })
}

fn busy(active: u32, queued: u32, each: u32, prompts: u32) -> Load {
    let backlog = Tokens((active + queued) * each + prompts / 10);
    let context = Some(Tokens(active * 200));
    Load { slots: 4, active, queued, queue_max: 8, backlog, prompts: Some(Tokens(prompts)), prompts_beside: None, context }
}

fn millis(span: Micros) -> f64 {
    span.as_millis_f64()
}

#[test]
fn an_idle_replica_by_hand() {
    let estimate = inputs().predict();
    // 100 tokens in four pieces, the last of which draws, and 5,050 positions looked back to.
    let first = 4.0 * 2.0 + 99.0 + 3.0 + 5_050.0 * 2e-3;
    assert!((millis(estimate.first_token) - first).abs() < 0.01, "{} for {first}", estimate.first_token);
    // Halfway through an answer of 50 it looks back to 126 positions.
    let token = 2.0 + 3.0 + 126.0 * 2e-3;
    assert!((millis(estimate.per_token) - token).abs() < 0.01, "{} for {token}", estimate.per_token);
    assert_eq!((estimate.wait, estimate.output), (Micros::ZERO, None));
    let high = estimate.high.expect("the spread is known");
    assert!(high.first_token > estimate.first_token && high.per_token > estimate.per_token && high.total > estimate.total);
}

#[test]
fn a_batch_shares_steps_and_not_rows() {
    let alone = inputs().predict();
    let crowded = inputs().with(|inputs| inputs.load = busy(3, 0, 1_000, 0)).predict();
    // Three more rows of 3 ms in each step, and their 600 positions.
    let more = millis(crowded.per_token) - millis(alone.per_token);
    assert!((more - (9.0 + 600.0 * 2e-3)).abs() < 0.01, "{more} ms more");
    assert!(crowded.per_token < alone.per_token.scale(4.0), "not as if the engine were divided");
    // Those who are through soon are beside it for a part of the answer only.
    let soon = inputs().with(|inputs| inputs.load = busy(3, 0, 10, 0)).predict();
    assert!(soon.per_token < crowded.per_token && soon.per_token > alone.per_token);
    // A prompt that is under way comes first.
    let behind = inputs().with(|inputs| inputs.load = busy(3, 0, 1_000, 300)).predict();
    let waited = millis(behind.first_token) - millis(crowded.first_token);
    assert!((300.0..700.0).contains(&waited), "{waited} ms for 300 tokens of others");
}

#[test]
fn more_of_anything_is_never_sooner() {
    for active in 0..=4 {
        let base = inputs().with(|inputs| inputs.load = busy(active, 0, 100, 0));
        for step in 0..40_u32 {
            let grown = |what: &str, grow: fn(&mut Inputs, u32)| {
                let (less, more) = (base.with(|inputs| grow(inputs, step)), base.with(|inputs| grow(inputs, step + 1)));
                let (less, more) = (less.predict(), more.predict());
                let sooner = less.first_token > more.first_token || less.total > more.total;
                let high = less
                    .high
                    .zip(more.high)
                    .is_none_or(|(less, more)| less.first_token > more.first_token || less.total > more.total);
                assert!(!sooner && !high, "{what} {step} with {active}: {less:?} {more:?}");
            };
            grown("prompt", |inputs, n| inputs.request.prompt = Tokens(n * 50));
            grown("output", |inputs, n| inputs.request.output_max = Tokens(1 + n * 10));
            grown("likely", |inputs, n| inputs.request.likely.output = Some(Tokens(1 + n)));
            grown("backlog", |inputs, n| inputs.load.backlog = Tokens(n * 100));
            grown("prompts", |inputs, n| {
                inputs.load = Load { prompts: Some(Tokens(n * 40)), backlog: Tokens(n * 4 + 400), ..inputs.load }
            });
            grown("beside", |inputs, n| inputs.load.prompts_beside = Some(Tokens(n * 30)));
            grown("context", |inputs, n| inputs.load.context = Some(Tokens(n * 400)));
            grown("batch", |inputs, n| inputs.load = busy(n.min(4), 0, 150, 0));
            grown("queue", |inputs, n| inputs.load = busy(n.min(4), n.saturating_sub(4), 150, 0));
        }
    }
}

#[test]
fn likely_lengths_and_known_beginnings_count() {
    let likely = |likely| inputs().with(|inputs| inputs.request.likely = likely).predict();
    let plain = inputs().predict();
    let short = likely(Likely { output: Some(Tokens(10)), output_most: Some(Tokens(40)), cached: None });
    assert!(short.total < plain.total && short.output == Some(Tokens(10)));
    assert!(short.high.expect("known").total > short.total, "and it may become longer");
    let long = likely(Likely { output: Some(Tokens(400)), ..Likely::default() });
    assert_eq!((long.total, long.output), (plain.total, None), "never longer than it may");
    let known = likely(Likely { cached: Some(Tokens(64)), ..Likely::default() });
    assert!(known.first_token < plain.first_token.scale(0.6), "{} for {}", known.first_token, plain.first_token);
}

#[test]
fn extremes_saturate_and_nonsense_is_refused() {
    let extreme = inputs().with(|inputs| {
        inputs.request.prompt = Tokens(u32::MAX);
        inputs.request.output_max = Tokens(u32::MAX);
        inputs.load = Load { prompts: Some(Tokens(u32::MAX)), ..busy(4, 4, u32::MAX / 16, 0) };
    });
    assert!(extreme.predict().total > Micros::from_secs(1_000_000));
    for bad in ["-1.0", "1e300", "\"NaN\"", "null"] {
        let text = format!("{{\"step\":{bad},\"prompt\":0.001,\"decode\":0.001,\"seen\":0.0}}");
        assert!(serde_json::from_str::<Pace>(&text).is_err(), "{text}");
    }
    let mut replica: ReplicaReport = serde_json::from_value(serde_json::json!({
        "variant": "v", "engine": "llm", "state": "ready", "memory": 1, "context": 1,
        "load": {"slots": 1, "active": 0, "queued": 0, "backlog": 0},
    }))
    .expect("a report");
    let none = Pace { step: seconds(0.0), prompt: seconds(0.0), decode: seconds(0.0), ..pace() };
    replica.profile = Some(inputs().profile);
    assert!(replica.validate().is_ok());
    if let Some(profile) = &mut replica.profile {
        profile.pace = Some(none);
    }
    assert!(replica.validate().is_err_and(|fault| fault.to_string().contains("pace")));
}
