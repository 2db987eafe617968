//! API keys: what each opens, how often and for how much, and what a client is told.

use crate::client::{Reply, exchange, post_json};
use crate::fake::{Fake, Line, Served, assigned, finish, start_keyed, tokens};
use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};
use shared::ids::{KeyName, ServiceId};
use shared::plan::Finish;
use shared::work::{ClientKey, KeyHash, KeyScope};
use shared_net::openai::{Exposure, FrontConfig, KeyRing, KeySource};
use shared_net::tls::CertClock;

fn key(name: &str) -> ClientKey {
    ClientKey {
        name: KeyName::new(name).expect("a name"),
        sha256: KeyHash::of(format!("tg-{name}").as_bytes()),
        scope: KeyScope::Inference,
        services: Vec::new(),
        rate_per_minute: None,
        tokens_per_day: None,
        expires: None,
    }
}

fn ring(keys: Vec<ClientKey>) -> KeyRing {
    let ring = KeyRing::new(CertClock::new(0));
    ring.set(KeySource::Fleet, keys);
    ring
}

async fn served(ring: &KeyRing) -> Served {
    let fake = Fake::saying(vec![assigned(0, "one"), tokens("Hi"), finish(Finish::Stop)]);
    let pages = Router::new().route("/tidegate/v1/status", get(|| async { "well" }));
    start_keyed(&fake, FrontConfig::default(), Exposure::Network, pages, ring).await
}

async fn ask(served: &Served, key: &str) -> Reply {
    let body = json!({"model": "assistant", "messages": [{"role": "user", "content": "x"}], "max_tokens": 8});
    post_json(served.address, "/v1/chat/completions", &body, &[&format!("authorization: Bearer tg-{key}")]).await
}

async fn page(served: &Served, key: &str) -> Reply {
    let request = format!("GET /tidegate/v1/status HTTP/1.1\r\nhost: a\r\nauthorization: Bearer tg-{key}\r\n\r\n");
    exchange(served.address, request.as_bytes()).await
}

fn seconds(reply: &Reply) -> u64 {
    reply.header("retry-after").parse().expect("whole seconds")
}

#[tokio::test]
async fn a_key_opens_what_its_scope_says_until_it_ends_or_is_revoked() {
    let other = ServiceId::new("other").expect("a name");
    let alias = ServiceId::new("team/helper").expect("a name");
    let ring = ring(vec![
        key("plain"),
        ClientKey { scope: KeyScope::Admin, ..key("operator") },
        ClientKey { services: vec![other], ..key("elsewhere") },
        ClientKey { services: vec![alias], ..key("by-alias") },
        ClientKey { expires: Some(1), ..key("ended") },
    ]);
    let served = served(&ring).await;
    assert_eq!(ask(&served, "plain").await.status, 200);
    assert_eq!(ask(&served, "by-alias").await.status, 200);
    assert_eq!(page(&served, "operator").await.status, 200);
    let refused = page(&served, "plain").await;
    assert_eq!(refused.error(), (403, "key_scope".to_owned(), Value::Null));
    assert!(refused.body.contains("`plain`"), "{}", refused.body);
    let refused = ask(&served, "elsewhere").await;
    assert_eq!(refused.error(), (403, "key_scope".to_owned(), json!("model")));
    assert!(refused.body.contains("`elsewhere`") && refused.body.contains("`assistant`"), "{}", refused.body);
    assert_eq!(ask(&served, "ended").await.error().1, "invalid_api_key");
    ring.set(KeySource::Fleet, vec![key("new")]);
    assert_eq!(ask(&served, "plain").await.error().1, "invalid_api_key", "revoked");
    assert_eq!(ask(&served, "new").await.status, 200);
}

#[tokio::test]
async fn a_rate_is_kept_and_the_time_to_wait_is_true() {
    let ring = ring(vec![ClientKey { rate_per_minute: Some(2), ..key("slow") }, key("free")]);
    let served = served(&ring).await;
    let first = ask(&served, "slow").await;
    assert_eq!(
        (first.status, first.header("x-ratelimit-limit-requests"), first.header("x-ratelimit-remaining-requests")),
        (200, "2", "1")
    );
    assert_eq!(ask(&served, "slow").await.status, 200);
    let refused = ask(&served, "slow").await;
    assert_eq!(refused.error(), (429, "rate_limit_exceeded".to_owned(), Value::Null));
    assert!((1..=30).contains(&seconds(&refused)), "one of two a minute comes within half of it: {}", seconds(&refused));
    assert_eq!(refused.header("x-ratelimit-remaining-requests"), "0");
    assert_eq!(refused.header("connection"), "close", "its body was not read");
    let free = ask(&served, "free").await;
    assert_eq!((free.status, free.header("x-ratelimit-limit-requests")), (200, ""), "others are not held back");
    let counts = &served.counters.snapshot().keys;
    assert_eq!((counts["slow"].requests, counts["slow"].refusals.get("rate_limit_exceeded")), (3, Some(&1)));
    assert_eq!(counts["free"].requests, 1);
}

#[tokio::test]
async fn a_budget_is_spent_by_what_was_counted_and_lasts_until_the_day_ends() {
    let ring = ring(vec![ClientKey { tokens_per_day: Some(15), ..key("poor") }]);
    let served = served(&ring).await;
    let first = ask(&served, "poor").await;
    assert_eq!((first.status, first.header("x-ratelimit-limit-tokens")), (200, "15"));
    assert_eq!(ask(&served, "poor").await.status, 200, "nine of fifteen are used");
    let refused = ask(&served, "poor").await;
    assert_eq!(refused.error(), (429, "insufficient_quota".to_owned(), Value::Null));
    assert!((1..=86_400).contains(&seconds(&refused)));
    assert_eq!((ring.usage()[0].tokens, served.counters.snapshot().keys["poor"].tokens), (18, 18), "seven and two, twice");
}

#[tokio::test]
async fn what_was_not_served_costs_nothing_and_what_was_broken_off_costs_what_came() {
    let busy = shared::plan::Reason::Busy;
    let fake = Fake::new(move |ask| {
        if ask.request.stream {
            return Ok(vec![assigned(0, "one"), tokens("a"), tokens("b"), tokens("c"), Line::Silence]);
        }
        Ok(vec![crate::fake::fail(shared::plan::Failure::Refused(busy.clone()))])
    });
    let ring = ring(vec![ClientKey { tokens_per_day: Some(1_000), ..key("k") }]);
    let served = start_keyed(&fake, FrontConfig::default(), Exposure::Network, Router::new(), &ring).await;
    assert_eq!(ask(&served, "k").await.status, 429);
    assert!(ring.usage().is_empty());
    let mut client = crate::client::Client::connect(served.address).await;
    let body = json!({"model": "assistant", "messages": [{"role": "user", "content": "x"}], "stream": true}).to_string();
    client.send(&crate::client::post("/v1/chat/completions", &body, &["authorization: Bearer tg-k"])).await;
    client.read_until("\"c\"").await;
    drop(client);
    fake.wait_for(|ends| ends.abandoned == 1).await;
    let settled = async {
        while ring.usage().is_empty() {
            tokio::task::yield_now().await
        }
    };
    tokio::time::timeout(crate::client::PATIENCE, settled).await.expect("the stream is dropped");
    let prompt = u64::from(fake.asks()[1].request.prompt.0);
    assert_eq!(ring.usage()[0].tokens, prompt + 3);
}

#[tokio::test]
async fn a_listener_that_awaits_keys_refuses_everybody_until_they_come() {
    let ring = KeyRing::new(CertClock::new(0));
    ring.expect_keys();
    let served = served(&ring).await;
    assert_eq!(ask(&served, "plain").await.error().1, "invalid_api_key");
    ring.set(KeySource::Node, vec![key("plain")]);
    assert_eq!(ask(&served, "plain").await.status, 200);
}
