//! The upstream engine against a canned server with the faults of real ones.

use crate::canned::{Canned, Script, Step};
use crate::desk::{Answer, PATIENCE, answer, ask, ask_with, chat, greedy, header, inputs, plain, ready, settled, until};
use edge_node::exec::upstream::{Upstream, UpstreamConfig};
use edge_node::exec::{Engine, ExecEvent};
use serde_json::{Value, json};
use shared::fleet::{ProfileSource, ReplicaState};
use shared::plan::{Failure, Finish, Reason};
use shared::units::{Micros, Tokens};
use shared::wire::Body;
use std::path::Path;
use std::time::Duration;

fn config(canned: &Canned, more: Value) -> UpstreamConfig {
    let mut json = json!({
        "variant": "canned", "url": canned.url(), "model": "canned", "health_ms": 20, "rates": { "prompt_per_s": 100.0, "decode_per_s": 10.0 },
    });
    if let (Some(json), Value::Object(more)) = (json.as_object_mut(), more) {
        json.extend(more);
    }
    serde_json::from_value(json).expect("good")
}

async fn engine(canned: &Canned, more: Value) -> Upstream {
    let engine = Upstream::start(config(canned, more), Path::new("unused")).expect("starts");
    ready(&engine).await;
    engine
}

async fn answer_to(script: Script, more: Value) -> Answer {
    let canned = Canned::start().await;
    let engine = engine(&canned, more).await;
    canned.script(script);
    let answer = answer(&engine, chat("What is it?", greedy(8))).await;
    engine.shutdown(Duration::from_secs(2)).await.expect("in time");
    canned.close().await;
    answer
}

#[tokio::test]
async fn an_answer_streams_with_the_upstreams_own_count() {
    let answer = answer_to(Script::words(&["It", " is", " this."], Some((12, 5))), json!({})).await;
    assert_eq!(answer.text, "It is this.");
    let (finish, usage) = answer.end.expect("an end");
    assert_eq!((finish, usage.prompt, usage.output), (Finish::Stop, Tokens(12), Tokens(5)));
}

#[tokio::test]
async fn without_usage_events_are_counted() {
    let answer = answer_to(Script::words(&["a", "b"], None), json!({})).await;
    assert_eq!(answer.end.map(|(_, usage)| usage.output), Some(Tokens(2)));
}

#[tokio::test]
async fn row_24_a_malformed_event_is_skipped() {
    let steps = vec![
        Step::Say("a"),
        Step::Raw("data: {\"choices\":[{\n\n"),
        Step::Raw(": ping\n\n"),
        Step::Say("b"),
        Step::Raw("data: [DONE]\n\n"),
    ];
    let answer = answer_to(Script::Stream(steps), json!({})).await;
    assert_eq!((answer.text.as_str(), answer.end.is_some()), ("ab", true));
}

#[tokio::test]
async fn row_24_a_cut_or_an_early_end_is_a_broken_connection() {
    let canned = Canned::start().await;
    let engine = engine(&canned, json!({})).await;
    for last in [vec![Step::Hold, Step::Cut], vec![Step::Hold]] {
        canned.script(Script::Stream([vec![Step::Say("a"), Step::Say("b")], last].concat()));
        let mut asked = ask(&engine, chat("hello", greedy(8)));
        // What comes at once may be told at once.
        let mut tokens = 0;
        while tokens < 2 {
            match asked.next_real().await {
                Some(ExecEvent::Tokens(batch)) => tokens += batch.count,
                other => panic!("{other:?} after {tokens} tokens"),
            }
        }
        canned.go_on();
        let rest = asked.all().await;
        assert!(matches!(rest.failure, Some(Failure::Broken(_))), "{rest:?}");
    }
}

#[tokio::test]
async fn row_24_silence_is_a_stall() {
    for steps in [vec![Step::Silence], vec![Step::Say("a"), Step::Silence]] {
        let answer = answer_to(Script::Stream(steps), json!({ "silence_ms_max": 60 })).await;
        assert_eq!(answer.failure, Some(Failure::Stalled(Micros::from_millis(60))));
    }
}

#[tokio::test]
async fn an_upstream_that_gives_up_has_failed() {
    let steps = vec![Step::Say("a"), Step::Chunk(json!({ "error": { "message": "out of memory" } }))];
    assert!(matches!(answer_to(Script::Stream(steps), json!({})).await.failure, Some(Failure::Engine(_))));
    let endless = vec![Step::Raw("data: "); 3].into_iter().chain(vec![Step::Raw(include_str!("llm.rs")); 200]).collect();
    let failure = answer_to(Script::Stream(endless), json!({})).await.failure;
    assert!(matches!(failure, Some(Failure::Engine(_) | Failure::Broken(_))), "{failure:?}");
}

#[tokio::test]
async fn refusals_become_ours() {
    let error = |code: Value, message: &str| json!({ "error": { "code": code, "message": message, "param": "top_p" } });
    let refused = |status, body| answer_to(Script::Error(status, body), json!({ "context": 77 }));
    for status in [429, 503] {
        assert_eq!(refused(status, json!({})).await.failure, Some(Failure::Refused(Reason::Busy)));
    }
    for status in [401, 500, 302] {
        assert!(matches!(refused(status, json!({})).await.failure, Some(Failure::Engine(_))));
    }
    let bad = refused(400, error(Value::Null, "top_p too large")).await.failure;
    assert_eq!(bad, Some(Failure::BadRequest { param: Some("top_p".to_owned()), message: "top_p too large".to_owned() }));
    let quoting = refused(400, error(Value::Null, "cannot answer: What is it?")).await.failure;
    assert!(
        matches!(quoting, Some(Failure::BadRequest { message, .. }) if !message.contains("What is it")),
        "no text in a failure"
    );
    let long = refused(400, error(json!("context_length_exceeded"), "too long")).await.failure;
    assert!(matches!(long, Some(Failure::PromptTooLong { context: Tokens(77), .. })), "{long:?}");
}

#[tokio::test]
async fn the_request_is_rebuilt_and_carries_the_key() {
    let canned = Canned::start().await;
    let engine = engine(&canned, json!({ "api_key": "sk-secret", "capabilities": ["tools"] })).await;
    let mut body = chat("hello", greedy(8));
    body.sampling.stop = vec!["END".to_owned()];
    body.passthrough = Some(r#"{"tools":[{"type":"function"}],"stream":false,"model":"other"}"#.to_owned());
    assert!(answer(&engine, body).await.end.is_some());
    assert!(answer(&engine, plain("hello", greedy(8))).await.end.is_some());

    let seen = canned.seen();
    let (first, second) = (&seen[0], &seen[1]);
    assert_eq!((first.path.as_str(), second.path.as_str()), ("/v1/chat/completions", "/v1/completions"));
    assert_eq!(first.authorization.as_deref(), Some("Bearer sk-secret"));
    let expected = json!({
        "model": "canned", "messages": [{ "role": "user", "content": "hello" }], "max_tokens": 8, "temperature": 0.0, "top_p": 1.0,
        "seed": 0, "stop": ["END"], "tools": [{ "type": "function" }], "stream": true, "stream_options": { "include_usage": true },
    });
    assert_eq!(first.body, expected);
    assert_eq!(second.body["prompt"], "hello");
}

#[tokio::test]
async fn vectors_come_as_they_were_written() {
    let canned = Canned::start().await;
    let engine = engine(&canned, json!({ "capabilities": ["embeddings"] })).await;
    let texts = vec!["one".to_owned(), "two".to_owned()];
    let body = || Body { passthrough: Some(r#"{"dimensions":2}"#.to_owned()), ..inputs(texts.clone()) };
    let vector = |index: u32| json!({ "object": "embedding", "index": index, "embedding": [0.25, -1.5] });
    let usage = json!({ "prompt_tokens": 4, "total_tokens": 4 });
    canned.script(Script::Error(200, json!({ "data": [vector(0), vector(1)], "usage": usage })));
    let heard = answer(&engine, body()).await;
    let deltas: Vec<Value> = heard.deltas.iter().map(|delta| serde_json::from_str(delta).expect("JSON")).collect();
    assert_eq!((deltas, heard.end.map(|(_, usage)| usage.prompt)), (vec![vector(0), vector(1)], Some(Tokens(4))));
    let seen = canned.seen();
    assert_eq!(seen[0].path, "/v1/embeddings");
    assert_eq!(seen[0].body, json!({ "model": "canned", "input": ["one", "two"], "dimensions": 2 }));
    canned.script(Script::Error(200, json!({ "data": [vector(0)] })));
    assert!(matches!(answer(&engine, body()).await.failure, Some(Failure::Engine(_))), "one vector for two texts");
    canned.script(Script::Error(400, json!({ "error": { "message": "too odd", "param": "input" } })));
    let failure = answer(&engine, body()).await.failure;
    assert!(matches!(&failure, Some(Failure::BadRequest { param: Some(param), .. }) if param == "input"), "{failure:?}");
}

#[tokio::test]
async fn a_capability_that_there_is_not_is_named() {
    let canned = Canned::start().await;
    let error = Upstream::start(config(&canned, json!({ "capabilities": ["tuls"] })), Path::new("unused"))
        .expect_err("none such")
        .to_string();
    assert!(error.contains("`tuls`") && error.contains("json_schema"), "{error}");
}

#[tokio::test]
async fn what_an_upstream_cannot_do_is_refused() {
    let canned = Canned::start().await;
    let engine = engine(&canned, json!({})).await;
    let mut resumed = chat("hello", greedy(8));
    resumed.resume = vec![1];
    let mut many = chat("hello", greedy(8));
    many.passthrough = Some(r#"{"n":2}"#.to_owned());
    for (body, name) in [(resumed, "resume"), (many, "n")] {
        let failure = answer(&engine, body).await.failure;
        assert!(matches!(&failure, Some(Failure::BadRequest { param: Some(param), .. }) if param == name), "{failure:?}");
    }
    assert!(canned.seen().is_empty(), "nothing was sent");
}

#[tokio::test]
async fn row_23_a_cancel_closes_the_connection() {
    let canned = Canned::start().await;
    let engine = engine(&canned, json!({ "slots": 1 })).await;
    for steps in [vec![Step::Say("a"), Step::Silence], vec![Step::Silence]] {
        let says = steps.len() > 1;
        canned.script(Script::Stream(steps));
        let mut asked = ask(&engine, chat("hello", greedy(8)));
        let mut open = canned.open();
        tokio::time::timeout(PATIENCE, open.wait_for(|count| *count == 1)).await.expect("in time").expect("a server");
        if says {
            assert!(matches!(asked.next_real().await, Some(ExecEvent::Tokens(_))));
        }
        let body = chat("hello", greedy(8));
        assert!(matches!(ask_with(&engine, header(&engine, &body), body, 8), Err(Reason::Busy)));
        asked.cancel.cancel();
        while let Some(event) = asked.next().await {
            assert_eq!(event, ExecEvent::Progress);
        }
        tokio::time::timeout(PATIENCE, open.wait_for(|count| *count == 0)).await.expect("in time").expect("a server");
    }
    assert!(answer(&engine, chat("hello", greedy(8))).await.end.is_some());
}

#[tokio::test]
async fn tool_calls_travel_as_deltas() {
    let call = json!({ "choices": [{ "index": 0, "delta": { "tool_calls": [{ "index": 0, "id": "c1" }] }, "finish_reason": "tool_calls" }] });
    let answer = answer_to(Script::Stream(vec![Step::Chunk(call), Step::Raw("data: [DONE]\n\n")]), json!({})).await;
    assert_eq!(answer.deltas, [r#"{"tool_calls":[{"id":"c1","index":0}]}"#]);
    assert_eq!(answer.end.map(|(finish, _)| finish), Some(Finish::ToolCalls));
}

#[tokio::test]
async fn health_decides_the_state() {
    let canned = Canned::start().await;
    let engine = engine(&canned, json!({})).await;
    canned.set_healthy(false);
    let report = until(&engine, |report| report.state != ReplicaState::Ready).await;
    assert!(matches!(report.state, ReplicaState::Failed(why) if why.contains("500")));
    let body = chat("hello", greedy(8));
    assert!(matches!(ask_with(&engine, header(&engine, &body), body, 8), Err(Reason::ReplicaFailed(_))));
    canned.set_healthy(true);
    until(&engine, |report| report.state == ReplicaState::Ready).await;
    canned.close().await;
    let report = until(&engine, |report| report.state != ReplicaState::Ready).await;
    assert_eq!(report.state, ReplicaState::Failed("the upstream cannot be reached".to_owned()));
}

#[tokio::test]
async fn an_undeclared_speed_is_measured_before_it_is_ready() {
    let canned = Canned::start().await;
    canned.script(Script::words(&["a", "b", "c", "d", "e", "f"], Some((70, 6))));
    let config = UpstreamConfig { rates: None, ..config(&canned, json!({})) };
    let engine = Upstream::start(config, Path::new("unused")).expect("starts");
    let report = settled(&engine).await;
    assert_eq!(report.state, ReplicaState::Ready);
    assert_eq!(report.profile.map(|profile| profile.source), Some(ProfileSource::Requests));
    assert_eq!(canned.seen().len(), 1);
}
