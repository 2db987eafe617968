//! API keys that are made at the hub and hold at the agents, with the hub and without it.

use reqwest::Response;
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use shared::ids::NodeId;
use std::time::{Duration, Instant};
use tests::{HEARTBEAT, Pace, SOON, World, profiled, service};

/// An agent whose clients on the same machine need keys as well.
fn keyed(variant: &str) -> String {
    let fast = Pace { decode_per_s: 500, ..Pace::default() };
    format!("[http.front]\nkey_required = true\n{}", profiled(variant, fast))
}

async fn ask(world: &World, at: &NodeId, key: &str) -> Response {
    let body = json!({"model": "s", "messages": [{"role": "user", "content": "x"}], "max_tokens": 4});
    let request = world.client.http().post(format!("{}/v1/chat/completions", world.base(at))).json(&body);
    request.bearer_auth(key).send().await.unwrap_or_else(|error| panic!("asking {at}: {error}"))
}

/// Waits until asking with this key has this status; says what came, and how long it took.
async fn until_status(world: &World, at: &NodeId, key: &str, status: u16) -> (Response, Duration) {
    let begun = Instant::now();
    let asked = until(format!("status {status} at {at}"), SOON, || async {
        let response = ask(world, at, key).await;
        if response.status() == status { Ok(response) } else { Err(response.status().to_string()) }
    });
    (asked.await.unwrap_or_else(|late| panic!("{late}")).0, begun.elapsed())
}

async fn code(response: Response) -> String {
    let body: Value = response.json().await.expect("an error in JSON");
    body["error"]["code"].as_str().unwrap_or_default().to_owned()
}

fn left(response: &Response) -> u64 {
    let header = response.headers().get("x-ratelimit-remaining-tokens").expect("a header");
    header.to_str().ok().and_then(|left| left.parse().ok()).expect("a number")
}

fn made(world: &World, arguments: &[&str]) -> String {
    let secret = world.fleet.hub().command(&[&["key", "add"], arguments].concat()).expect("made").trim().to_owned();
    assert!(secret.starts_with("tg-") && secret.len() > 40, "{secret}");
    secret
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_hub_holds_at_its_agents_also_without_it_until_it_is_revoked() {
    let mut world = World::new(vec![service("s", &[("v", 50)]), service("t", &[("w", 50)])], "").await;
    let early = made(&world, &["early", "--services", "s", "--tokens-per-day", "100000", "--expires", "30d"]);
    let edge = world.agent("bay/edge-1", &keyed("v")).await;
    let hub = world.fleet.hub().name().clone();
    until_status(&world, &edge, &early, 200).await;
    until_status(&world, &hub, &early, 200).await;
    assert_eq!(code(ask(&world, &edge, "tg-unknown").await).await, "invalid_api_key");
    let late = made(&world, &["team/late", "--rate", "600", "--tokens-per-day", "100000"]);
    until_status(&world, &edge, &late, 200).await;
    let other = made(&world, &["other", "--services", "t"]);
    assert_eq!(code(until_status(&world, &edge, &other, 403).await.0).await, "key_scope");
    let pages = world.client.http().get(format!("{}/tidegate/v1/metrics", world.base(&edge)));
    assert_eq!(pages.bearer_auth(&late).send().await.expect("an answer").status(), 403, "pages are for operators");

    let listed = world.fleet.hub().command(&["key", "list", "--json"]).expect("listed");
    assert!(listed.contains("team/late") && !listed.contains("tg-"), "{listed}");
    let state = world.fleet.agent(&edge).expect("there").folder().join("state/agent.json");
    let held = until("the key on the agent's disk", SOON, || async {
        let held = std::fs::read_to_string(&state).map_err(|error| error.to_string())?;
        if held.contains("team/late") { Ok(held) } else { Err("not yet".to_owned()) }
    });
    let (held, _) = held.await.unwrap_or_else(|late| panic!("{late}"));
    assert!(!held.contains("tg-"), "hashes only");

    world.fleet.hub_mut().kill();
    world.until_degraded(&edge, true).await;
    let before = left(&until_status(&world, &edge, &late, 200).await.0);
    assert!(before < 100_000);
    assert!(world.fleet.agent_mut(&edge).expect("there").stop(), "it ends when asked");
    world.fleet.agent_mut(&edge).expect("there").start().await.expect("it starts without its hub");
    let after = left(&until_status(&world, &edge, &late, 200).await.0);
    assert!(after <= before, "{after} are left after a restart, {before} were before");
    assert_eq!(code(ask(&world, &edge, "tg-unknown").await).await, "invalid_api_key");

    world.fleet.hub_mut().start().await.expect("it starts again");
    world.until_degraded(&edge, false).await;
    until_status(&world, &hub, &late, 200).await;
    world.fleet.hub().command(&["key", "revoke", "team/late"]).expect("revoked");
    let (refused, took) = until_status(&world, &edge, &late, 401).await;
    assert_eq!(code(refused).await, "invalid_api_key");
    // The time to ask on a busy machine comes on top.
    assert!(took < HEARTBEAT + Duration::from_secs(2), "took {took:?}");
    assert_eq!(ask(&world, &hub, &late).await.status(), 401, "the hub knows at once");
    assert_eq!(ask(&world, &edge, &early).await.status(), 200, "others stay");
    assert!(world.fleet.hub().command(&["key", "revoke", "team/late"]).is_err(), "there is none any more");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_of_the_node_is_good_within_a_second_and_spends_its_budget_across_a_crash() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &keyed("v")).await;
    let agent = world.fleet.agent(&edge).expect("there");
    let admin = agent.command(&["key", "add", "operator", "--admin"]).expect("made").trim().to_owned();
    let poor = agent.command(&["key", "add", "poor", "--tokens-per-day", "12"]).expect("made").trim().to_owned();
    let first = until_status(&world, &edge, &poor, 200).await.0;
    assert!(left(&first) < 12);
    // One whole answer fills the budget of so few tokens, or a second does.
    let refused = until_status(&world, &edge, &poor, 429).await.0;
    assert!(refused.headers().contains_key("retry-after"));
    assert_eq!(code(refused).await, "insufficient_quota");
    let usage = world.fleet.agent(&edge).expect("there").folder().join("state/key-usage.json");
    until("the day to be written down", SOON, || async {
        std::fs::read_to_string(&usage).map(drop).map_err(|error| error.to_string())
    })
    .await
    .unwrap_or_else(|late| panic!("{late}"));
    world.fleet.agent_mut(&edge).expect("there").kill();
    world.fleet.agent_mut(&edge).expect("there").start().await.expect("it starts again");
    until_status(&world, &edge, &admin, 200).await;
    assert_eq!(ask(&world, &edge, &poor).await.status(), 429, "still spent");
    let status = world.client.http().get(format!("{}/tidegate/v1/metrics", world.base(&edge))).bearer_auth(&admin);
    let metrics = status.send().await.expect("an answer").text().await.expect("text");
    assert!(metrics.contains(r#"key="poor",what="insufficient_quota""#), "{metrics}");
    let agent = world.fleet.agent(&edge).expect("there");
    agent.command(&["key", "revoke", "operator"]).expect("revoked");
    until_status(&world, &edge, &admin, 401).await;
}
