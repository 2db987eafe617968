//! Answers that are not streamed, models, and the headers of both.

use crate::client::{Client, exchange, post, post_json};
use crate::fake::{Fake, Line, assigned, finish, start_default, start_with, structured, tokens};
use serde_json::{Value, json};
use shared::plan::Finish;
use shared_net::openai::{Endpoint, FrontConfig};

fn chat() -> Value {
    json!({"model": "assistant", "messages": [{"role": "user", "content": "hello"}]})
}

#[tokio::test]
async fn a_chat_is_answered_and_explained() {
    let fake = Fake::saying(vec![
        assigned(0, "one"),
        tokens("Hi"),
        tokens(""),
        assigned(1, "two"),
        tokens(" you"),
        finish(Finish::Stop),
    ]);
    let served = start_default(&fake).await;
    let reply = post_json(served.address, "/v1/chat/completions", &chat(), &["x-tidegate-priority: 6"]).await;
    assert_eq!(reply.status, 200, "{}", reply.body);
    let body = reply.json();
    let id = fake.asks()[0].request.id.to_string();
    assert_eq!(reply.header("x-request-id"), id);
    assert_eq!(
        (body["id"].as_str(), body["object"].as_str()),
        (Some(format!("chatcmpl-{id}").as_str()), Some("chat.completion"))
    );
    assert_eq!(body["choices"][0]["message"]["content"], "Hi you");
    assert_eq!(body["choices"][0]["finish_reason"], "stop");
    assert_eq!((&body["usage"]["prompt_tokens"], &body["usage"]["total_tokens"]), (&json!(7), &json!(9)));
    assert_eq!(body["usage"]["prompt_tokens_details"]["cached_tokens"], 3);
    let tidegate = &body["tidegate"];
    assert_eq!((&tidegate["node"], &tidegate["attempts"]), (&json!("eu/site-1/two"), &json!(2)));
    assert_eq!(tidegate["predicted"]["first_token_ms"], 120.5);
    assert!(tidegate["actual"]["total_ms"].as_f64().is_some_and(|ms| ms >= 0.0));
    for (name, value) in [
        ("x-tidegate-node", "eu/site-1/two"),
        ("x-tidegate-variant", "small-q8"),
        ("x-tidegate-hop", "direct"),
        ("x-tidegate-policy", "min-latency"),
        ("x-tidegate-attempt", "1"),
        ("x-tidegate-rejected", "busy=1,stale=2"),
        ("x-tidegate-predicted-first-token-ms", "120.5"),
        ("x-tidegate-predicted-per-token-ms", "10.0"),
        ("x-tidegate-degraded", "true"),
    ] {
        assert_eq!(reply.header(name), value, "{name}");
    }
    assert_eq!(fake.asks()[0].request.needs.slo.priority.get(), 6, "headers of the client arrive");
    assert_eq!(served.counters.snapshot().requests.get(&(Endpoint::Chat, 200)), Some(&1));
}

#[tokio::test]
async fn a_completion_is_answered() {
    let fake = Fake::saying(vec![assigned(0, "one"), tokens("and so on"), finish(Finish::Length)]);
    let served = start_default(&fake).await;
    let reply = post_json(served.address, "/v1/completions", &json!({"model": "small-q8", "prompt": "once"}), &[]).await;
    let body = reply.json();
    assert_eq!((reply.status, body["object"].as_str()), (200, Some("text_completion")));
    assert_eq!(body["choices"][0], json!({"index": 0, "text": "and so on", "logprobs": null, "finish_reason": "length"}));
    assert_eq!(body["model"], "small-q8");
    assert!(fake.asks()[0].request.pinned.is_some());
}

#[tokio::test]
async fn tool_calls_come_back_whole() {
    let start =
        json!({"tool_calls": [{"index": 0, "id": "c", "type": "function", "function": {"name": "clock", "arguments": ""}}]});
    let rest = json!({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]});
    let fake = Fake::saying(vec![assigned(0, "one"), structured(&start), structured(&rest), finish(Finish::ToolCalls)]);
    let served = start_default(&fake).await;
    let mut body = chat();
    body["tools"] = json!([{"type": "function", "function": {"name": "clock"}}]);
    let choice = &post_json(served.address, "/v1/chat/completions", &body, &[]).await.json()["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    assert_eq!(choice["message"]["tool_calls"][0]["function"], json!({"name": "clock", "arguments": "{}"}));
    assert!(fake.asks()[0].request.features.tools);
}

#[tokio::test]
async fn models_are_listed_and_found() {
    let served = start_default(&Fake::saying(vec![])).await;
    let get = |path: &str| format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").into_bytes();
    let list = exchange(served.address, &get("/v1/models")).await.json();
    let ids: Vec<&str> = list["data"].as_array().expect("a list").iter().filter_map(|model| model["id"].as_str()).collect();
    assert_eq!((list["object"].as_str(), ids), (Some("list"), vec!["assistant", "team/helper", "small-q8"]));
    for path in ["/v1/models/team/helper", "/v1/models/team%2Fhelper"] {
        let one = exchange(served.address, &get(path)).await;
        assert_eq!((one.status, &one.json()["id"]), (200, &json!("team/helper")), "{path}");
        assert_eq!(one.json()["tidegate"]["variants"][0]["context_tokens"], 2_048);
    }
    let missing = exchange(served.address, &get("/v1/models/nobody")).await;
    assert_eq!(missing.error(), (404, "model_not_found".to_owned(), json!("model")));
    assert_eq!(exchange(served.address, &get("/healthz")).await.json()["status"], "ok");
}

#[tokio::test]
async fn one_connection_carries_many_requests() {
    let fake = Fake::saying(vec![assigned(0, "one"), tokens("Hi"), finish(Finish::Stop)]);
    let served = start_default(&fake).await;
    let mut client = Client::connect(served.address).await;
    for _ in 0..3 {
        client.send(&post("/v1/chat/completions", &chat().to_string(), &[])).await;
        assert_eq!(client.reply().await.status, 200);
    }
    let ids: std::collections::BTreeSet<_> = fake.asks().iter().map(|ask| ask.request.id).collect();
    assert_eq!(ids.len(), 3, "every request has its own id");
}

#[tokio::test]
async fn a_client_that_leaves_takes_its_request_along() {
    let fake = Fake::saying(vec![assigned(0, "one"), tokens("Hi"), Line::Silence]);
    let served = start_default(&fake).await;
    let mut client = Client::connect(served.address).await;
    client.send(&post("/v1/chat/completions", &chat().to_string(), &[])).await;
    let asked = async {
        while fake.asks().is_empty() {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(crate::client::PATIENCE, asked).await.expect("the request arrives");
    assert_eq!(served.counters.snapshot().connections_open, 1);
    drop(client);
    fake.wait_for(|ends| ends.abandoned == 1).await;
}

#[tokio::test]
async fn stopping_lets_answers_end_and_cuts_off_the_rest() {
    let fake = Fake::saying(vec![assigned(0, "one"), tokens("Hi"), Line::Silence]);
    let mut served = start_with(&fake, FrontConfig { drain_ms: 50, ..FrontConfig::default() }).await;
    let mut body = chat();
    body["stream"] = json!(true);
    let mut client = Client::connect(served.address).await;
    client.send(&post("/v1/chat/completions", &body.to_string(), &[])).await;
    client.read_until("Hi").await;
    served.stop.cancel();
    fake.wait_for(|ends| ends.abandoned == 1).await;
    served.task.join_next().await.expect("the loop").expect("ends without a panic");
    assert_eq!(served.counters.snapshot().connections_open, 0);
}
