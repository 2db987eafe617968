//! The speed engine with the quick start's own model. Only where the feature `llama-cpp` is on: `make test-llama-cpp`.

use crate::desk::{answer, ask, ask_with, chat, greedy, header, ready, settled};
use crate::smollm2::{SHA256, path};
use edge_node::exec::llm::llamacpp::{LlamaCpp, LlamaCppConfig};
use edge_node::exec::{Engine, ExecEvent};
use serde_json::{Value, json};
use shared::fleet::ReplicaState;
use shared::plan::{Failure, Finish, Reason};
use shared::units::{Micros, Tokens};
use shared::wire::body::Sampling;
use shared::work::EngineKind;
use std::path::Path;
use std::time::{Duration, Instant};

/// From the issue: a cancel reaches the computation within this time.
const CANCELLED_WITHIN: Duration = Duration::from_millis(500);

fn config(path: &Path, more: Value) -> LlamaCppConfig {
    let mut json = json!({ "variant": "smollm2", "path": path, "sha256": SHA256, "context": 1024, "threads": 1 });
    if let (Some(json), Value::Object(more)) = (json.as_object_mut(), more) {
        json.extend(more);
    }
    serde_json::from_value(json).expect("good")
}

async fn engine(more: Value) -> Option<LlamaCpp> {
    let engine = LlamaCpp::start(config(&path()?, more)).expect("starts");
    ready(&engine).await;
    Some(engine)
}

#[tokio::test(flavor = "multi_thread")]
async fn it_says_what_it_is_and_begins_as_its_neighbour_does() {
    let Some(engine) = engine(json!({})).await else { return };
    let report = engine.report();
    assert_eq!((report.engine, report.device.as_str()), (EngineKind::LlamaCpp, "cpu"));
    assert_eq!((report.weights_sha256.as_deref(), report.layers), (Some(SHA256), None));
    assert!(report.memory.0 > 90_000_000 && report.profile.is_some(), "{report:?}");
    // Each token here leads the next best by half a logit or more, in the engine `llm` too.
    for (text, expected) in [
        ("What is Rust?", &[66, 467, 314, 253, 2148, 28][..]),
        ("What are the days of the week?", &[504, 2009, 282, 260, 2605, 359]),
    ] {
        let count = u32::try_from(expected.len()).expect("short");
        let answer = answer(&engine, chat(text, greedy(count))).await;
        assert_eq!(answer.ids, expected, "{text}");
        assert_eq!(answer.end.map(|(finish, usage)| (finish, usage.output)), Some((Finish::Length, Tokens(count))));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_at_once_are_answered_each_by_itself() {
    let Some(engine) = engine(json!({ "slots": 4 })).await else { return };
    let asks: Vec<_> = ["What is Rust?", "What are the days of the week?", "What is Rust?", "Count to ten."]
        .map(|text| ask(&engine, chat(text, greedy(6))))
        .into_iter()
        .collect();
    let body = chat("one too many", greedy(6));
    assert!(matches!(ask_with(&engine, header(&engine, &body), body, 8), Err(Reason::Busy)));
    let answers = futures_util::future::join_all(asks.into_iter().map(|asked| asked.all())).await;
    assert_eq!(answers[0].ids, [66, 467, 314, 253, 2148, 28]);
    assert_eq!(answers[1].ids, [504, 2009, 282, 260, 2605, 359]);
    assert_eq!(answers[2].ids, answers[0].ids);
    assert_eq!(answers[3].ids.len(), 6);
    // Places are free again, and hold nothing of those before.
    assert_eq!(answer(&engine, chat("What is Rust?", greedy(6))).await.ids, answers[0].ids);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resumed_stream_goes_on_and_ends_where_the_unbroken_one_does() {
    let Some(engine) = engine(json!({ "slots": 1 })).await else { return };
    let warm =
        Sampling { max_tokens: 16, seed: 8, temperature: 0.8, top_p: 0.95, repetition_penalty: 1.1, ..Sampling::default() };
    for sampling in [greedy(16), warm] {
        let whole = answer(&engine, chat("Tell me about the tide.", sampling.clone())).await;
        let again = answer(&engine, chat("Tell me about the tide.", sampling.clone())).await;
        assert_eq!(whole.ids, again.ids, "the draw depends on seed and index alone");
        let mut body = chat("Tell me about the tide.", sampling.clone());
        body.resume = whole.ids[..9].to_vec();
        let rest = answer(&engine, body).await;
        assert_eq!(
            (rest.ids.len(), rest.end.map(|(finish, _)| finish)),
            (whole.ids.len() - 9, whole.end.map(|(finish, _)| finish))
        );
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_is_acted_upon_in_prefill_and_in_decode() {
    let Some(engine) = engine(json!({ "slots": 1 })).await else { return };
    let long = "The tide comes in and the tide goes out. ".repeat(80);
    for decoding in [false, true] {
        let text = if decoding { "Tell me a very long story." } else { long.as_str() };
        let mut asked = ask(&engine, chat(text, greedy(900)));
        while decoding && !matches!(asked.next().await, Some(ExecEvent::Tokens(_))) {}
        asked.cancel.cancel();
        let begun = Instant::now();
        while asked.next().await.is_some_and(|event| matches!(event, ExecEvent::Progress | ExecEvent::Tokens(_))) {}
        println!("decoding: {decoding}: {:?}", begun.elapsed());
        // Loose enough for a machine that compiles beside: a whole prompt takes many times as long.
        assert!(begun.elapsed() < CANCELLED_WITHIN * 4, "{:?}", begun.elapsed());
        assert_eq!(answer(&engine, chat("What is Rust?", greedy(2))).await.ids, [66, 467], "the slot is free");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deadlines_stalled_readers_and_stops_end_a_request() {
    let Some(engine) = engine(json!({ "slots": 2, "stall_ms_max": 50 })).await else { return };
    let body = chat("Tell me a very long story.", greedy(500));
    let mut late = header(&engine, &body);
    late.remaining = Some(Micros::from_millis(100));
    let late = ask_with(&engine, late, body.clone(), 64).expect("a slot").all().await;
    assert_eq!(late.failure, Some(Failure::DeadlineExceeded));
    // Nobody reads: the slot can be had again all the same.
    let stalled = ask_with(&engine, header(&engine, &body), body.clone(), 4).expect("a slot");
    // The other slot is taken by one that has room for all of its answer, and that runs for long.
    let other = ask_with(&engine, header(&engine, &body), body.clone(), 600).expect("a slot");
    let short = chat("x", greedy(1));
    let third = loop {
        match ask_with(&engine, header(&engine, &short), short.clone(), 8) {
            Ok(third) => break third,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    assert_eq!(stalled.all().await.failure, Some(Failure::ClientStalled));
    other.cancel.cancel();
    assert_eq!(third.all().await.ids.len(), 1);
    // The other one may still hold its slot.
    let running = loop {
        match ask_with(&engine, header(&engine, &body), body.clone(), 600) {
            Ok(running) => break running,
            Err(_) => tokio::task::yield_now().await,
        }
    };
    engine.shutdown(Duration::from_secs(20)).await.expect("in time");
    assert_eq!(running.all().await.failure, Some(Failure::Refused(Reason::Draining)));
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_loaded_is_said() {
    let folder = tempfile::tempdir().expect("folder");
    let broken = folder.path().join("broken.gguf");
    std::fs::write(&broken, b"GGUF and nothing else").expect("written");
    for (path, more, word) in [
        (broken.as_path(), json!({ "sha256": null }), "damaged"),
        (Path::new("no/such.gguf"), json!({ "hint": "make model" }), "make model"),
    ] {
        let engine = LlamaCpp::start(config(path, more)).expect("starts");
        let state = settled(&engine).await.state;
        assert!(matches!(&state, ReplicaState::Failed(why) if why.contains(word)), "{state:?}");
    }
    let Some(path) = path() else { return };
    let engine = LlamaCpp::start(config(&path, json!({ "memory_max": 1_000_000 }))).expect("starts");
    let state = settled(&engine).await.state;
    assert!(matches!(&state, ReplicaState::Failed(why) if why.contains("memory")), "{state:?}");
}
