//! An agent without a hub: it answers by itself over HTTP, says that it is alone, explains, and what it decided can be replayed.

use edge_node::config::Config;
use edge_node::io::{Running, capture};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

fn config(state: &Path) -> Config {
    let engine = json!({
        "engine": "profiled", "variant": "small", "slots": 2, "answer": 12,
        "rates": {"prompt_per_s": 5000.0, "decode_per_s": 200.0}
    });
    let mut config = Config { state: state.to_owned(), ..Config::default() };
    config.http.listen = "127.0.0.1:0".parse().expect("an address");
    config.engines = vec![serde_json::from_value(engine).expect("an engine")];
    config
}

struct Client {
    http: reqwest::Client,
    base: String,
}

impl Client {
    fn of(running: &Running) -> Self {
        Self { http: reqwest::Client::new(), base: format!("http://{}", running.http_address()) }
    }

    async fn chat(&self, stream: bool, max_tokens: u32) -> reqwest::Response {
        let body = json!({
            "model": "assistant", "stream": stream, "max_tokens": max_tokens,
            "messages": [{"role": "user", "content": "canary-7f3a"}]
        });
        self.http.post(format!("{}/v1/chat/completions", self.base)).json(&body).send().await.expect("answered")
    }

    async fn get(&self, path: &str) -> (u16, Value) {
        let response = self.http.get(format!("{}{path}", self.base)).send().await.expect("answered");
        let status = response.status().as_u16();
        (status, response.json().await.expect("JSON"))
    }

    /// Waits until `holds` is true of the status page.
    async fn until(&self, what: &str, holds: impl Fn(&Value) -> bool) {
        let wait = async {
            while !holds(&self.get("/tidegate/v1/status").await.1) {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(10), wait).await.unwrap_or_else(|_| panic!("not within ten seconds: {what}"));
    }
}

fn is_ready(status: &Value) -> bool {
    status["replicas"][0]["state"] == "ready"
}

fn is_idle(status: &Value) -> bool {
    status["requests_open"] == 0 && status["replicas"][0]["load"]["active"] == 0
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_agent_alone_answers_says_so_and_explains() {
    let folder = tempfile::tempdir().expect("folder");
    let captured = folder.path().join("capture.jsonl");
    let running = Running::start(&config(&folder.path().join("state")), Some(captured.clone())).await.expect("starts");
    let client = Client::of(&running);
    client.until("the replica is ready", is_ready).await;

    let whole = client.chat(false, 64).await;
    assert_eq!(whole.status(), 200);
    let header = |name: &str| whole.headers().get(name).and_then(|value| value.to_str().ok()).map(str::to_owned);
    assert_eq!(header("x-tidegate-degraded").as_deref(), Some("true"));
    assert_eq!(header("x-tidegate-node").as_deref(), Some("local/node"));
    let id = header("x-request-id").expect("an id");
    let answer: Value = whole.json().await.expect("JSON");
    assert_eq!(answer["usage"]["completion_tokens"], 12, "{answer}");
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");

    let streamed = client.chat(true, 64).await.text().await.expect("a stream");
    assert!(streamed.trim_end().ends_with("data: [DONE]"), "{streamed}");
    assert_eq!(streamed.matches("\"content\":\"").count(), 12, "one event a token: {streamed}");

    let (status, record) = client.get(&format!("/tidegate/v1/requests/{id}")).await;
    assert_eq!(status, 200);
    assert_eq!(record["served_by"], json!(["local/node", "small"]));
    assert_eq!(record["attempts"][0]["decision"]["degraded"], true);
    let metrics = client.http.get(format!("{}/tidegate/v1/metrics", client.base)).send().await.expect("answered");
    let metrics = metrics.text().await.expect("text");
    assert!(metrics.contains("tidegate_agent_requests_total{outcome=\"answered\",hop=\"local\"} 2"), "{metrics}");
    client.until("idle", is_idle).await;

    running.shutdown().await.expect("all tasks end");
    let replayed = capture::replay(&captured).expect("the same effects");
    assert!(replayed > 20, "{replayed} events");
    let mut files = vec![captured];
    files.extend(std::fs::read_dir(folder.path().join("state")).expect("folder").map(|entry| entry.expect("entry").path()));
    for file in files {
        let text = std::fs::read(&file).expect("readable");
        assert!(!String::from_utf8_lossy(&text).contains("canary-7f3a"), "text of a request in {}", file.display());
    }

    // The next life still explains it.
    let running = Running::start(&config(&folder.path().join("state")), None).await.expect("starts again");
    let (status, again) = Client::of(&running).get(&format!("/tidegate/v1/requests/{id}")).await;
    assert_eq!((status, again), (200, record));
    running.shutdown().await.expect("all tasks end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn row_23_a_client_that_vanishes_frees_its_slot() {
    let folder = tempfile::tempdir().expect("folder");
    let running = Running::start(&slow(&folder.path().join("state")), None).await.expect("starts");
    let client = Client::of(&running);
    client.until("the replica is ready", is_ready).await;
    for stream in [true, false] {
        let base = Client::of(&running);
        let vanishing = tokio::spawn(async move { base.chat(stream, 10_000).await.text().await });
        client.until("it runs", |status| status["replicas"][0]["load"]["active"] == 1).await;
        vanishing.abort();
        let gone = std::time::Instant::now();
        client.until("the slot is free", is_idle).await;
        assert!(gone.elapsed() < Duration::from_millis(500), "stream {stream}: {:?}", gone.elapsed());
    }
    running.shutdown().await.expect("all tasks end");
}

/// Answers that take a minute and more.
fn slow(state: &Path) -> Config {
    let engine = json!({
        "engine": "profiled", "variant": "small", "slots": 1, "context": 20_000,
        "rates": {"prompt_per_s": 5000.0, "decode_per_s": 100.0}
    });
    Config { engines: vec![serde_json::from_value(engine).expect("an engine")], ..config(state) }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stop_lets_what_runs_end_and_refuses_the_rest() {
    let folder = tempfile::tempdir().expect("folder");
    let running = Running::start(&config(&folder.path().join("state")), None).await.expect("starts");
    let client = Client::of(&running);
    client.until("the replica is ready", is_ready).await;
    let other = Client::of(&running);
    let last = tokio::spawn(async move { other.chat(true, 64).await.text().await.expect("a stream") });
    client.until("it runs", |status| status["replicas"][0]["load"]["active"] == 1).await;
    running.shutdown().await.expect("all tasks end");
    let text = last.await.expect("joined");
    assert!(text.trim_end().ends_with("data: [DONE]"), "{text}");
}
