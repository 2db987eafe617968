//! Raw bytes that could be read in two ways, or that hold a connection: each is refused with its status, and others are served on.

use crate::client::{Client, exchange, post, post_json};
use crate::fake::{Fake, Line, Served, assigned, finish, start_default, start_with, tokens};
use serde_json::{Value, json};
use shared::plan::Finish;
use shared_net::openai::FrontConfig;
use std::time::Duration;

fn answering() -> Fake {
    Fake::saying(vec![assigned(0, "one"), tokens("Hi"), finish(Finish::Stop)])
}

fn small() -> Value {
    json!({"model": "assistant", "prompt": "x"})
}

async fn others_are_served(served: &Served) {
    assert_eq!(post_json(served.address, "/v1/completions", &small(), &[]).await.status, 200);
}

/// A request with these header lines and this rest; a second one hides in the rest where two readers may disagree.
fn request(lines: &str, rest: &str) -> Vec<u8> {
    format!("POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n{lines}\r\n{rest}").into_bytes()
}

const HIDDEN: &str = "0\r\n\r\nGET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n";

#[tokio::test]
async fn what_could_be_read_in_two_ways_is_refused_and_the_connection_ends() {
    let fake = answering();
    let served = start_default(&fake).await;
    for lines in [
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
        "content-length: 4\r\ncontent-length: 4\r\n",
        "content-length: 4\r\ncontent-length: 60\r\n",
        "content-length: 4, 4\r\n",
        "content-length: +4\r\n",
        "content-length: 4 4\r\n",
        "content-length : 4\r\n",
        "transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n",
        "transfer-encoding: identity, chunked\r\n",
        "transfer-encoding: xchunked\r\n",
        "transfer-encoding:\x0bchunked\r\n",
        "transfer-encoding\t: chunked\r\n",
        "x-a: b\r\n content-length: 4\r\n",
        "x-a: b\ncontent-length: 4\r\n",
        "x-a: b\rcontent-length: 4\r\n",
        "x-a: \0\r\ncontent-length: 4\r\n",
        "host: b\r\n",
        "upgrade: websocket\r\nconnection: upgrade\r\n",
    ] {
        let mut client = Client::connect(served.address).await;
        client.send(&request(lines, HIDDEN)).await;
        let reply = client.reply().await;
        assert_eq!((reply.status, reply.header("connection")), (400, "close"), "{lines:?}");
        assert!(reply.json()["error"]["message"].is_string(), "{lines:?}");
        assert!(client.closed().await, "{lines:?}: nothing of the hidden request is answered");
    }
    others_are_served(&served).await;
    assert_eq!(fake.asks().len(), 1, "and nothing else got through");
    let errors = served.counters.snapshot().errors;
    assert!(errors["ambiguous_request"] + errors["malformed_request"] == 19, "each is counted: {errors:?}");
}

#[tokio::test]
async fn request_lines_that_are_none_of_ours_are_refused() {
    let served = start_default(&answering()).await;
    for (line, status) in [
        ("GET http://a/v1/models HTTP/1.1", 400),
        ("GET  /v1/models HTTP/1.1", 400),
        ("GET /v1/models", 400),
        ("GET\t/v1/models HTTP/1.1", 400),
        ("CONNECT a:443 HTTP/1.1", 405),
        ("GET /v1/models HTTP/3.0", 505),
        ("GET /v1/models HTTP/0.9", 505),
        (&format!("GET /{} HTTP/1.1", "x".repeat(9_000)), 414),
    ] {
        let reply = exchange(served.address, format!("{line}\r\nhost: a\r\n\r\n").as_bytes()).await;
        assert_eq!(reply.status, status, "{line:.60}");
    }
    assert_eq!(exchange(served.address, b"GET /v1/models HTTP/1.1\r\n\r\n").await.status, 400, "no host");
    let old = b"POST /v1/completions HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n";
    assert_eq!(exchange(served.address, old).await.status, 400, "HTTP/1.0 has no chunks");
    assert_eq!(exchange(served.address, b"GET /v1/models HTTP/1.0\r\n\r\n").await.status, 200, "but is served");
    assert_eq!(exchange(served.address, b"GET /v1/models HTTP/1.1\nhost: a\n\n").await.status, 400, "bare line feeds");
    others_are_served(&served).await;
}

#[tokio::test]
async fn tricks_with_chunks_fail_their_request() {
    let fake = answering();
    let served = start_default(&fake).await;
    for rest in
        ["5 \r\n", "+5\r\n", "0x5\r\n", "fffffffffffffffff\r\n", "5\nhello", "5\r\nhello!\r\n", "5\r\nhelloXX0\r\n\r\n", "\r\n"]
    {
        let mut client = Client::connect(served.address).await;
        client.send(&request("transfer-encoding: chunked\r\n", rest)).await;
        let reply = client.reply().await;
        assert_eq!(reply.error().1, "incomplete_body", "{rest:?}");
        assert!(client.closed().await, "{rest:?}");
    }
    assert!(fake.asks().is_empty());
    let body = small().to_string();
    let (one, two) = body.split_at(7);
    let rest = format!("{:x};ext=1\r\n{one}\r\n{:X}\r\n{two}\r\n0\r\nx-trailer: y\r\n\r\n", one.len(), two.len());
    assert_eq!(exchange(served.address, &request("transfer-encoding: chunked\r\n", &rest)).await.status, 200, "honest chunks");
}

#[tokio::test]
async fn requests_on_one_connection_are_answered_in_turn() {
    let served = start_default(&answering()).await;
    let body = small().to_string();
    let mut client = Client::connect(served.address).await;
    let both = [post("/v1/completions", &body, &[]), b"\r\n".to_vec(), post("/v1/completions", &body, &[])].concat();
    client.send(&both).await;
    assert_eq!((client.reply().await.status, client.reply().await.status), (200, 200));
    client.send(&post("/v1/completions", &body, &[])).await;
    client.send(b"GET / HTTP/1.1\r\nhost: a\r\nx: y\nz: 1\r\n\r\n").await;
    assert_eq!(client.reply().await.status, 200, "a fault in the next request does not spoil this one");
    assert_eq!(client.reply().await.status, 400);
    assert!(client.closed().await);
}

#[tokio::test]
async fn a_body_that_nobody_read_ends_the_connection() {
    let fake = answering();
    let served = start_default(&fake).await;
    let hidden = "POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n\
        content-length: 36\r\n\r\n{\"model\": \"assistant\", \"prompt\": \"x\"}";
    for (head, status) in [
        ("POST /nowhere HTTP/1.1\r\nhost: a\r\n", 404),
        ("DELETE /v1/models HTTP/1.1\r\nhost: a\r\n", 405),
        ("POST /v1/completions HTTP/1.1\r\nhost: a\r\n", 415),
    ] {
        let mut client = Client::connect(served.address).await;
        client.send(format!("{head}content-length: 1000000\r\n\r\n{hidden}").as_bytes()).await;
        assert_eq!(client.reply().await.status, status, "{head}");
        assert!(client.closed().await, "{head}");
    }
    assert!(fake.asks().is_empty(), "what hides in a body is no request");
}

#[tokio::test]
async fn a_huge_length_is_refused_before_any_of_it_comes() {
    let served = start_default(&answering()).await;
    for length in ["10000000000", "999999999999999", "99999999999999999999999999"] {
        let mut client = Client::connect(served.address).await;
        client.send(&request(&format!("content-length: {length}\r\n"), "")).await;
        assert_eq!(client.reply().await.error().1, "body_too_large", "{length}");
    }
    others_are_served(&served).await;
}

#[tokio::test]
async fn slow_heads_are_told_and_idle_connections_end_in_silence() {
    let config = FrontConfig { header_read_ms: 50, idle_ms: 50, ..FrontConfig::default() };
    let served = start_with(&answering(), config).await;
    let mut slow = Client::connect(served.address).await;
    slow.send(b"POST /v1/completions HTTP/1.1\r\nhost: te").await;
    assert_eq!(slow.reply().await.error().1, "header_timeout");
    let mut idle = Client::connect(served.address).await;
    assert_eq!(idle.wait_for_end().await, "");
}

#[tokio::test]
async fn one_address_has_so_many_connections() {
    let config = FrontConfig { connections_per_peer_max: 2, ..FrontConfig::default() };
    let served = start_with(&answering(), config).await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut client = Client::connect(served.address).await;
        client.send(&post("/v1/completions", &small().to_string(), &[])).await;
        assert_eq!(client.reply().await.status, 200);
        held.push(client);
    }
    let refused = post_json(served.address, "/v1/completions", &small(), &[]).await;
    assert_eq!((refused.status, refused.header("retry-after")), (503, "1"));
    let mut other = Client::connect_from("127.0.0.2", served.address).await;
    other.send(&post("/v1/completions", &small().to_string(), &[])).await;
    assert_eq!(other.reply().await.status, 200, "another address has its own");
}

#[tokio::test]
async fn a_client_that_ends_its_side_gets_its_answer() {
    let fake =
        Fake::saying(vec![assigned(0, "one"), Line::Wait(Duration::from_millis(2_500)), tokens("Hi"), finish(Finish::Stop)]);
    let served = start_default(&fake).await;
    let mut whole = Client::connect(served.address).await;
    whole.send(&post("/v1/completions", &small().to_string(), &[])).await;
    whole.finish_writing().await;
    let mut stream = Client::connect(served.address).await;
    let body = json!({"model": "assistant", "prompt": "x", "stream": true}).to_string();
    stream.send(&post("/v1/completions", &body, &[])).await;
    stream.finish_writing().await;
    let mut old = Client::connect(served.address).await;
    let body = small().to_string();
    let head =
        format!("POST /v1/completions HTTP/1.0\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n", body.len());
    old.send(format!("{head}{body}").as_bytes()).await;
    old.finish_writing().await;
    let reply = whole.final_reply().await;
    assert_eq!((reply.status, reply.json()["choices"][0]["text"].as_str()), (200, Some("Hi")));
    assert!(stream.final_reply().await.body.ends_with("data: [DONE]\n\n"));
    assert_eq!(old.reply().await.status, 200, "nobody sends an interim answer to HTTP/1.0");
    fake.wait_for(|ends| ends.played == 3).await;
}

#[tokio::test]
async fn a_client_that_is_gone_is_noticed_although_nothing_is_sent_to_it() {
    let fake = Fake::saying(vec![assigned(0, "one"), Line::Silence]);
    let served = start_default(&fake).await;
    for stream in [false, true] {
        let mut client = Client::connect(served.address).await;
        let body = json!({"model": "assistant", "prompt": "x", "stream": stream}).to_string();
        client.send(&post("/v1/completions", &body, &[])).await;
    }
    fake.wait_for(|ends| ends.abandoned == 2).await;
}
