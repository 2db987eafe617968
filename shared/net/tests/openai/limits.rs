//! Limits of size, number and time.

use crate::client::{Client, exchange, post, post_json};
use crate::fake::{Fake, assigned, finish, start_default, start_with, tokens};
use serde_json::{Value, json};
use shared::plan::Finish;
use shared_net::openai::FrontConfig;

fn answering() -> Fake {
    Fake::saying(vec![assigned(0, "one"), tokens("Hi"), finish(Finish::Stop)])
}

fn small() -> Value {
    json!({"model": "assistant", "prompt": "x"})
}

const HEAD: &str = "POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n";

#[tokio::test]
async fn oversized_bodies_are_refused_however_they_come() {
    let fake = answering();
    let served = start_with(&fake, FrontConfig { body_bytes_max: 1_000, ..FrontConfig::default() }).await;
    // Larger than all socket buffers on the way, so that the refusal must survive a client that is still writing.
    let big = json!({"model": "assistant", "prompt": "x".repeat(20 * 1024 * 1024)}).to_string();
    let announced = exchange(served.address, &post("/v1/completions", &big, &[])).await;
    assert_eq!(announced.error(), (413, "body_too_large".to_owned(), Value::Null));
    assert!(announced.body.contains("1000 bytes"));
    let mut client = Client::connect(served.address).await;
    client.send(format!("{HEAD}transfer-encoding: chunked\r\n\r\n{:x}\r\n{big}\r\n0\r\n\r\n", big.len()).as_bytes()).await;
    assert_eq!(client.reply().await.error().1, "body_too_large");
    let mut polite = Client::connect(served.address).await;
    polite.send(format!("{HEAD}content-length: {}\r\nexpect: 100-continue\r\n\r\n", big.len()).as_bytes()).await;
    assert_eq!(polite.reply().await.status, 413, "who asks first is told before sending");
    let fits = post_json(served.address, "/v1/completions", &small(), &[]).await;
    assert_eq!((fits.status, fake.asks().len()), (200, 1));
}

#[tokio::test]
async fn a_body_that_grows_on_its_way_is_too_large() {
    let served = start_default(&answering()).await;
    // With tools, messages travel twice: as text, and verbatim.
    let text = "y".repeat(2_500_000);
    let body = json!({"model": "assistant", "messages": [{"role": "user", "content": text}],
        "tools": [{"type": "function", "function": {"name": "f"}}]});
    assert_eq!(post_json(served.address, "/v1/chat/completions", &body, &[]).await.status, 413);
}

#[tokio::test]
async fn slow_bodies_and_heads_run_out_of_time() {
    let config = FrontConfig { body_read_ms: 50, header_read_ms: 50, idle_ms: 50, ..FrontConfig::default() };
    let served = start_with(&answering(), config).await;
    let mut body = Client::connect(served.address).await;
    body.send(format!("{HEAD}content-length: 100\r\n\r\n{{\"model\"").as_bytes()).await;
    assert_eq!(body.reply().await.error(), (408, "body_timeout".to_owned(), Value::Null));
    let mut head = Client::connect(served.address).await;
    head.send(b"POST /v1/completions HTTP/1.1\r\nhost: te").await;
    assert!(!head.wait_for_end().await.contains("200 OK"));
    let mut idle = Client::connect(served.address).await;
    assert_eq!(idle.wait_for_end().await, "");
}

#[tokio::test]
async fn a_body_that_ends_early_is_no_request() {
    let fake = answering();
    let served = start_default(&fake).await;
    let mut client = Client::connect(served.address).await;
    client.send(format!("{HEAD}content-length: 100\r\n\r\n{{\"model\": \"assistant\", \"prompt\": \"x\"}}").as_bytes()).await;
    client.finish_writing().await;
    assert!(!client.wait_for_end().await.contains("200 OK"));
    let mut garbled = Client::connect(served.address).await;
    garbled.send(format!("{HEAD}transfer-encoding: chunked\r\n\r\nzz\r\n").as_bytes()).await;
    assert_eq!(garbled.reply().await.status, 400);
    assert!(fake.asks().is_empty());
}

#[tokio::test]
async fn huge_heads_are_refused() {
    let served = start_default(&answering()).await;
    let huge = format!("GET /v1/models HTTP/1.1\r\nhost: test\r\nx-a: {}\r\n\r\n", "y".repeat(40_000));
    assert_eq!(exchange(served.address, huge.as_bytes()).await.status, 431);
    let many: String = (0..200).map(|i| format!("x-{i}: y\r\n")).collect();
    assert_eq!(exchange(served.address, format!("GET / HTTP/1.1\r\n{many}\r\n").as_bytes()).await.status, 431);
}

#[tokio::test]
async fn connections_above_the_limit_are_told_so() {
    let served = start_with(&answering(), FrontConfig { connections_max: 1, ..FrontConfig::default() }).await;
    let mut first = Client::connect(served.address).await;
    first.send(&post("/v1/completions", &small().to_string(), &[])).await;
    assert_eq!(first.reply().await.status, 200);
    let refused = post_json(served.address, "/v1/completions", &small(), &[]).await;
    assert_eq!((refused.error().0, refused.error().1.as_str()), (503, "too_many_connections"));
    assert_eq!(served.counters.snapshot().connections_refused, 1);
    drop(first);
    let freed = async {
        while served.counters.snapshot().connections_open > 0 {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(crate::client::PATIENCE, freed).await.expect("the first connection ends");
    assert_eq!(post_json(served.address, "/v1/completions", &small(), &[]).await.status, 200);
}
