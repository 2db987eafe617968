//! Streams: shape, silence, failure in the middle, and readers that leave or stall.

use crate::client::{Client, post, post_json};
use crate::fake::{Fake, Line, assigned, batch, fail, finish, start_default, start_with, structured, tokens};
use serde_json::{Value, json};
use shared::plan::{Failure, Finish, Reason};
use shared::units::Micros;
use shared_net::openai::{Answer, FrontConfig};

fn chat() -> Value {
    json!({"model": "assistant", "stream": true, "messages": [{"role": "user", "content": "hello"}]})
}

#[tokio::test]
async fn a_chat_streams_in_openais_shape() {
    let fake = Fake::saying(vec![assigned(0, "one"), tokens("Hi"), tokens(""), tokens(" you"), finish(Finish::Length)]);
    let served = start_default(&fake).await;
    let reply = post_json(served.address, "/v1/chat/completions", &chat(), &[]).await;
    assert_eq!(reply.header("content-type"), "text/event-stream; charset=utf-8");
    assert_eq!(reply.header("x-tidegate-node"), "eu/site-1/one");
    assert!(reply.complete && reply.body.ends_with("data: [DONE]\n\n"), "{}", reply.body);
    let chunks = reply.chunks();
    assert_eq!(chunks.len(), 3, "nothing is sent for an incomplete character");
    assert_eq!(chunks[0]["choices"][0]["delta"], json!({"role": "assistant", "content": "Hi"}));
    assert_eq!(chunks[1]["choices"][0]["delta"], json!({"content": " you"}));
    assert_eq!(chunks[1]["choices"][0]["finish_reason"], Value::Null);
    assert_eq!(chunks[2]["choices"][0], json!({"index": 0, "delta": {}, "logprobs": null, "finish_reason": "length"}));
    assert_eq!(chunks[2]["tidegate"]["node"], "eu/site-1/one");
    assert!(chunks.iter().all(|chunk| chunk["object"] == "chat.completion.chunk" && chunk["id"] == chunks[0]["id"]));
    assert!(chunks.iter().all(|chunk| chunk.get("usage").is_none()), "usage was not asked for");
}

#[tokio::test]
async fn usage_comes_last_when_asked_for() {
    let fake = Fake::saying(vec![assigned(0, "one"), tokens("Hi"), finish(Finish::Stop)]);
    let served = start_default(&fake).await;
    let mut body = chat();
    body["stream_options"] = json!({"include_usage": true});
    let chunks = post_json(served.address, "/v1/chat/completions", &body, &[]).await.chunks();
    let (last, others) = chunks.split_last().expect("chunks");
    assert!(others.iter().all(|chunk| chunk.get("usage") == Some(&Value::Null) && chunk.get("tidegate").is_none()));
    assert_eq!((&last["choices"], &last["usage"]["total_tokens"]), (&json!([]), &json!(9)));
    assert_eq!(last["tidegate"]["attempts"], 1);
}

#[tokio::test]
async fn a_completion_streams() {
    let fake = Fake::saying(vec![assigned(0, "one"), tokens("a"), tokens("b"), finish(Finish::Stop)]);
    let served = start_default(&fake).await;
    let body = json!({"model": "assistant", "prompt": "x", "stream": true});
    let chunks = post_json(served.address, "/v1/completions", &body, &[]).await.chunks();
    let text: String = chunks.iter().filter_map(|chunk| chunk["choices"][0]["text"].as_str()).collect();
    assert_eq!((text.as_str(), chunks[2]["choices"][0]["finish_reason"].as_str()), ("ab", Some("stop")));
}

#[tokio::test]
async fn an_empty_answer_is_still_a_stream() {
    let served = start_default(&Fake::saying(vec![assigned(0, "one"), finish(Finish::Stop)])).await;
    let chunks = post_json(served.address, "/v1/chat/completions", &chat(), &[]).await.chunks();
    assert_eq!(chunks.len(), 1);
    assert_eq!(chunks[0]["choices"][0]["delta"]["role"], "assistant");
}

#[tokio::test]
async fn several_answers_each_begin_and_end() {
    let part = |index: u64, text: &str| structured(&json!({"index": index, "delta": {"content": text}}));
    let ended = structured(&json!({"index": 1, "delta": {}, "finish_reason": "length"}));
    let served = start_default(&Fake::saying(vec![
        assigned(0, "one"),
        part(0, "a"),
        part(1, "b"),
        part(0, "c"),
        ended,
        finish(Finish::Stop),
    ]))
    .await;
    let mut body = chat();
    body["n"] = json!(2);
    let chunks = post_json(served.address, "/v1/chat/completions", &body, &[]).await.chunks();
    let choices: Vec<&Value> = chunks.iter().flat_map(|chunk| chunk["choices"].as_array().expect("choices")).collect();
    let of = |index: u64| choices.iter().filter(move |choice| choice["index"] == index);
    assert_eq!(of(0).filter(|choice| choice["delta"]["role"] == "assistant").count(), 1);
    assert_eq!(of(1).filter(|choice| choice["delta"]["role"] == "assistant").count(), 1);
    let ends = |index: u64| of(index).filter_map(|choice| choice["finish_reason"].as_str()).collect::<Vec<_>>();
    assert_eq!((ends(0), ends(1)), (vec!["stop"], vec!["length"]));
}

#[tokio::test]
async fn early_failures_keep_their_status() {
    let served = start_default(&Fake::saying(vec![assigned(0, "one"), fail(Failure::Refused(Reason::Busy))])).await;
    let reply = post_json(served.address, "/v1/chat/completions", &chat(), &[]).await;
    assert_eq!(reply.error().0, 429);
    assert_eq!((reply.header("retry-after"), reply.header("x-tidegate-rejected")), ("1", "busy=1,stale=2"));
}

#[tokio::test]
async fn late_failures_come_as_an_event_and_no_done() {
    let lines = vec![assigned(0, "one"), tokens("Hi"), fail(Failure::Broken("eu/site-1/one".to_owned()))];
    let served = start_default(&Fake::saying(lines)).await;
    let reply = post_json(served.address, "/v1/chat/completions", &chat(), &[]).await;
    assert!(reply.status == 200 && reply.complete, "the failure is told, not shown as a broken connection");
    let chunks = reply.chunks();
    assert_eq!(chunks[1]["error"]["code"], "broken");
    assert!(!reply.body.contains("[DONE]"));
    assert_eq!(served.counters.snapshot().errors.get("broken"), Some(&1));
}

#[tokio::test]
async fn a_host_that_forgets_to_end_is_a_broken_connection() {
    let served = start_default(&Fake::saying(vec![assigned(0, "one"), tokens("Hi")])).await;
    let reply = post_json(served.address, "/v1/chat/completions", &chat(), &[]).await;
    assert_eq!(reply.chunks()[1]["error"]["code"], "broken");
    let mut whole = chat();
    whole["stream"] = json!(false);
    assert_eq!(post_json(served.address, "/v1/chat/completions", &whole, &[]).await.error().0, 502);
}

#[tokio::test]
async fn silence_is_filled_with_comments() {
    let fake = Fake::saying(vec![Line::Silence]);
    let config = FrontConfig { head_hold_ms: 1, keep_alive_ms: 1, ..FrontConfig::default() };
    let served = start_with(&fake, config).await;
    let mut client = Client::connect(served.address).await;
    client.send(&post("/v1/chat/completions", &chat().to_string(), &[])).await;
    let text = client.read_until(": waiting\n\n\r\n").await;
    assert!(text.starts_with("HTTP/1.1 200"), "{text}");
    assert_eq!(served.counters.snapshot().streams_open, 1);
    drop(client);
    fake.wait_for(|ends| ends.abandoned == 1).await;
}

#[tokio::test]
async fn a_failure_after_the_head_is_an_event() {
    let config = FrontConfig { head_hold_ms: 0, ..FrontConfig::default() };
    let served = start_with(&Fake::saying(vec![assigned(0, "one"), fail(Failure::DeadlineExceeded)]), config).await;
    let reply = post_json(served.address, "/v1/chat/completions", &chat(), &[]).await;
    // The head may go before or after the failure is there: both are right, and both are typed.
    let error = if reply.status == 200 { reply.chunks().remove(0) } else { reply.json() };
    assert_eq!(error["error"]["code"], "deadline_exceeded");
}

#[tokio::test]
async fn a_reader_that_leaves_takes_its_request_along() {
    let fake = Fake::saying(vec![assigned(0, "one"), tokens("Hi"), Line::Silence]);
    let served = start_default(&fake).await;
    let mut client = Client::connect(served.address).await;
    client.send(&post("/v1/chat/completions", &chat().to_string(), &[])).await;
    client.read_until("Hi").await;
    drop(client);
    fake.wait_for(|ends| ends.abandoned == 1).await;
    assert_eq!(served.counters.snapshot().clients_stalled, 0);
}

#[tokio::test]
async fn a_reader_that_stalls_is_dropped_and_disturbs_nobody() {
    let flood = Line::Repeat(Answer::Tokens(batch(&"x".repeat(64 * 1024))));
    let fake = Fake::new(move |ask| {
        let slow = ask.request.needs.slo.first_token == Some(Micros::from_millis(77));
        Ok(vec![assigned(0, "one"), if slow { flood.clone() } else { tokens("Hi") }, finish(Finish::Stop)])
    });
    let served = start_with(&fake, FrontConfig { client_stall_ms: 100, ..FrontConfig::default() }).await;
    let mut sleeper = Client::connect(served.address).await;
    sleeper.send(&post("/v1/chat/completions", &chat().to_string(), &["x-tidegate-first-token-ms: 77"])).await;
    sleeper.read_until("xxx").await;
    let other = post_json(served.address, "/v1/chat/completions", &chat(), &[]).await;
    assert!(other.body.ends_with("[DONE]\n\n"));
    fake.wait_for(|ends| ends.abandoned == 1).await;
    assert_eq!(served.counters.snapshot().clients_stalled, 1);
}
