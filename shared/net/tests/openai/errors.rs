//! Every error that a client can cause or meet, in OpenAI's shape.

use crate::client::{Client, exchange, post, post_json};
use crate::fake::{Fake, Line, assigned, fail, finish, refused, start, start_beside, start_default, start_with, tokens};
use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};
use shared::plan::{Failure, Finish, Reason};
use shared::units::Tokens;
use shared_net::openai::{Endpoint, Exposure, FrontConfig, Refusal, key_sha256};

fn chat() -> Value {
    json!({"model": "assistant", "messages": [{"role": "user", "content": "canary-5512"}]})
}

fn answering() -> Fake {
    Fake::saying(vec![assigned(0, "one"), tokens("Hi"), finish(Finish::Stop)])
}

#[tokio::test]
async fn a_key_is_needed_beyond_loopback() {
    let config = FrontConfig { api_keys_sha256: vec![key_sha256("sk-right")], ..FrontConfig::default() };
    let fake = answering();
    let served = start(&fake, config, Exposure::Network).await;
    let huge = format!("authorization: Bearer {}", "x".repeat(8_000));
    for header in ["x-a: b", "authorization: Bearer sk-wrong", "authorization: sk-right", "authorization: Bearer", &huge] {
        let reply = post_json(served.address, "/v1/chat/completions", &chat(), &[header]).await;
        assert_eq!(reply.error(), (401, "invalid_api_key".to_owned(), Value::Null), "{header:.40}");
        assert_eq!(reply.header("www-authenticate"), "Bearer");
        assert_eq!(reply.header("x-tidegate-node"), "", "strangers learn no names");
    }
    let garbage = b"GET /v1/models HTTP/1.1\r\nhost: test\r\nauthorization: Bearer \xff\xfe\xc3\x28\r\n\r\n";
    assert_eq!(exchange(served.address, garbage).await.status, 401);
    assert_eq!(exchange(served.address, b"GET /nowhere HTTP/1.1\r\nhost: test\r\n\r\n").await.status, 401);
    assert_eq!(exchange(served.address, b"GET /healthz HTTP/1.1\r\nhost: test\r\n\r\n").await.status, 200);
    assert!(fake.asks().is_empty(), "nothing got through");
    let right = post_json(served.address, "/v1/chat/completions", &chat(), &["authorization: Bearer sk-right"]).await;
    assert_eq!(right.status, 200);
    assert_eq!(served.counters.snapshot().errors.get("invalid_api_key"), Some(&7));
}

#[tokio::test]
async fn pages_of_the_host_need_the_same_key() {
    let config = FrontConfig { api_keys_sha256: vec![key_sha256("sk-right")], ..FrontConfig::default() };
    let pages = Router::new().route("/status", get(|| async { "well" }));
    let served = start_beside(&answering(), config, Exposure::Network, pages).await;
    assert_eq!(exchange(served.address, b"GET /status HTTP/1.1\r\nhost: test\r\n\r\n").await.status, 401);
    let known = b"GET /status HTTP/1.1\r\nhost: test\r\nauthorization: Bearer sk-right\r\n\r\n";
    let page = exchange(served.address, known).await;
    assert_eq!((page.status, page.body.as_str(), page.header("x-tidegate-node")), (200, "well", "eu/site-1/gate"));
    let nowhere = b"GET /nowhere HTTP/1.1\r\nhost: test\r\nauthorization: Bearer sk-right\r\n\r\n";
    assert_eq!(exchange(served.address, nowhere).await.error().1, "unknown_url");
}

#[tokio::test]
async fn bad_bodies_are_told_where() {
    let fake = answering();
    let served = start_default(&fake).await;
    let path = "/v1/chat/completions";
    let cut = exchange(served.address, &post(path, "{\"model\": \"assistant\",\n \"canary-5512", &[])).await;
    assert_eq!(cut.error(), (400, "invalid_json".to_owned(), Value::Null));
    assert!(cut.body.contains("line 2") && !cut.body.contains("canary"), "{}", cut.body);
    assert_eq!(exchange(served.address, &post(path, "", &[])).await.error().1, "invalid_json");
    let mut body = chat();
    body["temperature"] = json!(9);
    assert_eq!(
        post_json(served.address, path, &body, &[]).await.error(),
        (400, "invalid_value".to_owned(), json!("temperature"))
    );
    body["temperature"] = json!(1);
    body["logit_bias"] = json!({"1": 2});
    let refused = post_json(served.address, path, &body, &[]).await;
    assert_eq!(refused.error(), (400, "unsupported_parameter".to_owned(), json!("logit_bias")));
    body["logit_bias"] = json!(null);
    body["model"] = json!("nobody");
    assert_eq!(post_json(served.address, path, &body, &[]).await.error(), (404, "model_not_found".to_owned(), json!("model")));
    let reply = post_json(served.address, path, &chat(), &["x-tidegate-deadline-ms: soon"]).await;
    assert_eq!(reply.error().2, "x-tidegate-deadline-ms");
    assert!(fake.asks().is_empty(), "nothing got through");
}

#[tokio::test]
async fn only_json_that_says_so_is_read() {
    let served = start_default(&answering()).await;
    let plain = b"POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: text/plain\r\ncontent-length: 2\r\n\r\n{}";
    assert_eq!(exchange(served.address, plain).await.error().1, "unsupported_media_type");
    let packed = post_json(served.address, "/v1/chat/completions", &chat(), &["content-encoding: gzip"]).await;
    assert_eq!(packed.error().1, "unsupported_media_type");
    let page = post_json(served.address, "/v1/chat/completions", &chat(), &["origin: https://example.org"]).await;
    assert_eq!(page.error().1, "foreign_origin");
}

#[tokio::test]
async fn unknown_paths_and_methods_are_typed() {
    let served = start_default(&answering()).await;
    for path in ["/", "/v1", "/v1/models/", "/v2/chat/completions", "/v1/chat/completions/x", "/%2e%2e/etc", "/v1/models/%ff%00"]
    {
        let reply = exchange(served.address, format!("GET {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes()).await;
        assert_eq!(reply.status, 404, "{path}");
        assert!(reply.json()["error"]["message"].is_string(), "{path}");
    }
    for (method, path) in [("GET", "/v1/chat/completions"), ("DELETE", "/v1/models"), ("PUT", "/v1/completions")] {
        let reply = exchange(served.address, format!("{method} {path} HTTP/1.1\r\nhost: test\r\n\r\n").as_bytes()).await;
        assert_eq!(reply.error(), (405, "method_not_allowed".to_owned(), Value::Null), "{method} {path}");
        assert_ne!(reply.header("allow"), "", "{method} {path}");
    }
    assert_eq!(served.counters.snapshot().requests.get(&(Endpoint::Chat, 405)), Some(&1));
}

#[tokio::test]
async fn refusals_say_why_and_how_many_fell() {
    for (reason, status, code, param, retry_after) in [
        (Reason::NoCandidate, 503, "no_candidate", json!(null), "5"),
        (Reason::Busy, 429, "busy", json!(null), "1"),
        (Reason::Residency, 403, "residency", json!("tidegate.residency"), ""),
        (Reason::Capability("tools".to_owned()), 400, "unsupported_parameter", json!("tools"), ""),
        (Reason::Context { wanted: Tokens(9), context: Tokens(8) }, 400, "context_length_exceeded", json!("messages"), ""),
    ] {
        let served = start_default(&Fake::saying(vec![refused(reason.clone()), fail(Failure::Refused(reason.clone()))])).await;
        let reply = post_json(served.address, "/v1/chat/completions", &chat(), &[]).await;
        assert_eq!(reply.error(), (status, code.to_owned(), param));
        assert_eq!(reply.header("retry-after"), retry_after, "{code}");
        let message = reply.json()["error"]["message"].as_str().unwrap_or_default().to_owned();
        assert!(message.contains(&reason.to_string()) && message.contains("1 busy, 2 stale"), "{message}");
        assert_eq!(reply.header("x-tidegate-rejected"), "busy=1,stale=2");
        assert!(!reply.body.contains("canary"));
    }
}

#[tokio::test]
async fn failures_have_their_status() {
    for (failure, status, code) in [
        (Failure::Broken("eu/site-1/one".to_owned()), 502, "broken"),
        (Failure::DeadlineExceeded, 504, "deadline_exceeded"),
        (Failure::PromptTooLong { prompt: Tokens(9), context: Tokens(8) }, 400, "context_length_exceeded"),
        (Failure::BadRequest { param: Some("top_p".to_owned()), message: "want less".to_owned() }, 400, "bad_request"),
    ] {
        let served = start_default(&Fake::saying(vec![assigned(0, "one"), tokens("Hi"), fail(failure)])).await;
        let reply = post_json(served.address, "/v1/completions", &json!({"model": "assistant", "prompt": "x"}), &[]).await;
        assert_eq!((reply.error().0, reply.error().1.as_str()), (status, code));
        assert_eq!(reply.header("x-tidegate-node"), "eu/site-1/one", "who failed is said");
        assert_eq!(reply.header("x-should-retry"), if status == 504 { "false" } else { "" });
        if code == "context_length_exceeded" {
            assert_eq!(reply.error().2, "prompt", "the parameter has the name that this endpoint gives it");
        }
    }
}

#[tokio::test]
async fn a_host_that_is_full_refuses() {
    let served = start_default(&Fake::new(|_| Err(Refusal(Reason::QueueFull)))).await;
    let reply = post_json(served.address, "/v1/chat/completions", &chat(), &[]).await;
    assert_eq!((reply.error().0, reply.error().1.as_str()), (429, "queue_full"));
}

#[tokio::test]
async fn a_hub_takes_no_request_that_must_stay_at_a_site() {
    let fake = Fake::hub(|_| Ok(vec![tokens("Hi"), finish(Finish::Stop)]));
    let served = start_default(&fake).await;
    for residency in ["site", "node"] {
        let mut body = chat();
        body["tidegate"] = json!({"residency": residency});
        let reply = post_json(served.address, "/v1/chat/completions", &body, &[]).await;
        assert_eq!(reply.error(), (403, "residency".to_owned(), json!("tidegate.residency")));
        assert!(reply.body.contains("an agent of the site"), "{}", reply.body);
    }
    assert!(fake.asks().is_empty());
    assert_eq!(post_json(served.address, "/v1/chat/completions", &chat(), &[]).await.status, 200);
}

#[tokio::test]
async fn ambiguous_framing_is_never_two_requests() {
    let fake = Fake::new(|_| Ok(vec![assigned(0, "one"), tokens("Hi"), finish(Finish::Stop)]));
    let served = start_default(&fake).await;
    let head = "POST /v1/completions HTTP/1.1\r\nhost: test\r\ncontent-type: application/json\r\n";
    for lines in [
        "content-length: 5\r\ncontent-length: 6\r\n",
        "content-length: 5, 6\r\n",
        "content-length: -1\r\n",
        "content-length: +5\r\n",
        "transfer-encoding: gzip\r\n",
        "transfer-encoding: chunked, identity\r\n",
        "content-length : 5\r\n",
        "x: a\r\n content-length: 5\r\n",
        // Both lengths at once may be read as the chunks by the standard, but not every proxy knows it.
        "content-length: 4\r\ntransfer-encoding: chunked\r\n",
        "transfer-encoding: chunked\r\ncontent-length: 4\r\n",
    ] {
        let mut client = Client::connect(served.address).await;
        client.send(format!("{head}{lines}\r\n{{}}").as_bytes()).await;
        assert_eq!(client.reply().await.status, 400, "{lines}");
        assert!(client.closed().await, "{lines}");
    }
    assert!(fake.asks().is_empty());
    assert_eq!(served.counters.snapshot().requests.get(&(Endpoint::Models, 200)), None);
}

#[tokio::test]
async fn garbage_disturbs_nobody() {
    let fake = Fake::saying(vec![assigned(0, "one"), tokens("Hi"), finish(Finish::Stop), Line::Silence]);
    let served = start_with(&fake, FrontConfig { header_read_ms: 200, ..FrontConfig::default() }).await;
    for bytes in [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".as_slice(),
        b"\0\0\0\0\r\n\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"GET / HTTP/1.1\r\nbad header\r\n\r\n",
        b"SSH-2.0-x\r\n\r\n",
    ] {
        let mut client = Client::connect(served.address).await;
        client.send(bytes).await;
        let answer = client.wait_for_end().await;
        // What is not HTTP at all is closed without a word.
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400"), "{bytes:?} got {answer:?}");
    }
    assert_eq!(post_json(served.address, "/v1/chat/completions", &chat(), &[]).await.status, 200);
}
