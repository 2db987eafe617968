//! The engine that computes nothing keeps to its rates.

use crate::desk::{answer, ask, ask_with, chat, greedy, header, ready};
use edge_node::exec::profiled::{Profiled, ProfiledConfig};
use edge_node::exec::{Engine, EngineConfig, ExecEvent, start};
use serde_json::{Value, json};
use shared::plan::{Failure, Finish, Reason};
use shared::units::{Micros, Tokens};
use shared::work::ExecHeader;
use std::path::Path;
use std::time::{Duration, Instant};

fn config(more: Value) -> ProfiledConfig {
    let mut json = json!({ "variant": "filler", "rates": { "prompt_per_s": 1e5, "decode_per_s": 200.0 } });
    if let (Some(json), Value::Object(more)) = (json.as_object_mut(), more) {
        json.extend(more);
    }
    serde_json::from_value(json).expect("good")
}

fn engine(more: Value) -> Profiled {
    Profiled::start(config(more)).expect("starts")
}

#[tokio::test]
async fn tokens_come_at_the_rate_and_count_to_the_limit() {
    let engine = engine(json!({ "rates": { "prompt_per_s": 1e5, "decode_per_s": 200.0, "overhead_ms": 40.0 }, "jitter": 0.5 }));
    ready(&engine).await;
    let began = Instant::now();
    let answer = answer(&engine, chat("hello there", greedy(41))).await;
    // 40 ms of overhead and forty times 5 ms. Timers are never early; how late they are is the machine's affair.
    assert!(began.elapsed() > Duration::from_millis(190), "{:?}", began.elapsed());
    assert_eq!(answer.ids, (0..41).collect::<Vec<_>>());
    assert_eq!(answer.end.map(|(finish, usage)| (finish, usage.output)), Some((Finish::Length, Tokens(41))));
    assert!(answer.progress > 0 && !answer.text.contains("hello"));
}

#[tokio::test]
async fn requests_share_the_rate() {
    let engine = engine(json!({}));
    let began = Instant::now();
    let asked: Vec<_> = (0..4).map(|_| ask(&engine, chat("x", greedy(26)))).collect();
    for asked in asked {
        assert_eq!(asked.all().await.ids.len(), 26);
    }
    // Four times 25 intervals of 5 ms, one after the other as it were.
    assert!(began.elapsed() > Duration::from_millis(490), "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_resumed_answer_goes_on_where_it_was() {
    let engine = engine(json!({ "answer": 6 }));
    let whole = answer(&engine, chat("x", greedy(50))).await;
    assert_eq!(whole.end.map(|(finish, usage)| (finish, usage.output)), Some((Finish::Stop, Tokens(6))));
    let mut body = chat("x", greedy(50));
    body.resume = whole.ids[..4].to_vec();
    let rest = answer(&engine, body).await;
    assert_eq!((rest.ids.as_slice(), rest.end), (&whole.ids[4..], whole.end));
}

#[tokio::test]
async fn cancels_deadlines_and_limits_are_kept() {
    let engine = engine(json!({ "slots": 1, "rates": { "prompt_per_s": 1e5, "decode_per_s": 2.0 } }));
    let mut asked = ask(&engine, chat("x", greedy(100)));
    assert!(matches!(asked.next_real().await, Some(ExecEvent::Tokens(_))));
    let body = || chat("x", greedy(100));
    assert!(matches!(ask_with(&engine, header(&engine, &body()), body(), 8), Err(Reason::Busy)));
    asked.cancel.cancel();
    while asked.next().await.is_some() {}

    let late = ExecHeader { remaining: Some(Micros::from_millis(30)), ..header(&engine, &body()) };
    let late = ask_with(&engine, late, body(), 8).expect("a free slot").all().await;
    assert_eq!(late.failure, Some(Failure::DeadlineExceeded));
    let long = ExecHeader { prompt: Tokens(9_000), ..header(&engine, &body()) };
    let long = ask_with(&engine, long, body(), 8).expect("a free slot").all().await;
    assert_eq!(long.failure, Some(Failure::PromptTooLong { prompt: Tokens(9_000), context: Tokens(8_192) }));

    let running = ask(&engine, body());
    engine.shutdown(Duration::from_secs(2)).await.expect("in time");
    assert_eq!(running.all().await.failure, Some(Failure::Refused(Reason::Draining)));
}

#[tokio::test]
async fn a_reader_who_stalls_is_given_up() {
    let engine = engine(json!({ "stall_ms_max": 30 }));
    let body = chat("x", greedy(20));
    let asked = ask_with(&engine, header(&engine, &body), body, 4).expect("a free slot");
    // Not read until the slot is free again.
    loop {
        let body = || chat("x", greedy(1));
        let all: Vec<_> = (0..4).map(|_| ask_with(&engine, header(&engine, &body()), body(), 8)).collect();
        if all.iter().all(Result::is_ok) {
            break;
        }
        tokio::task::yield_now().await;
    }
    assert_eq!(asked.all().await.failure, Some(Failure::ClientStalled));
}

#[tokio::test]
async fn configurations_are_told_apart_and_checked() {
    let json = json!({ "engine": "profiled", "variant": "filler", "rates": { "prompt_per_s": 1.0, "decode_per_s": 1.0 } });
    let good: EngineConfig = serde_json::from_value(json.clone()).expect("good");
    let engine = start(good, Path::new("unused")).expect("starts");
    assert_eq!(engine.variant().as_str(), "filler");
    for (field, value) in
        [("rates", json!({ "prompt_per_s": 0.0, "decode_per_s": 1.0 })), ("slots", json!(0)), ("jitter", json!(1.5))]
    {
        let mut bad = json.clone();
        bad[field] = value;
        let bad: EngineConfig = serde_json::from_value(bad).expect("well-formed");
        let error = start(bad, Path::new("unused")).expect_err("refused").to_string();
        assert!(error.contains(field) && error.contains("filler"), "{error}");
    }
    let mut unknown = json;
    unknown["speed"] = json!(1);
    assert!(serde_json::from_value::<EngineConfig>(unknown).is_err(), "unknown keys are errors");
}
