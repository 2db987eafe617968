//! The admin API and bad input.

use crate::world::World;
use serde_json::{Value, json};
use std::io::{Read, Write};
use std::net::{TcpStream, UdpSocket};

#[tokio::test(flavor = "multi_thread")]
async fn every_call_needs_the_key_and_says_what_is_wrong() {
    let mut world = World::start().await;
    let base = format!("http://{}", world.addresses().admin);
    for path in ["nodes", "services", "records", "plans", "totals", "counters", "nothing"] {
        for key in [None, Some("wrong"), Some("")] {
            let request = world.http.get(format!("{base}/admin/v1/{path}"));
            let request = if let Some(key) = key { request.bearer_auth(key) } else { request };
            let answer = request.send().await.expect("answered");
            let status = answer.status().as_u16();
            assert!(status == 401 || (path == "nothing" && status == 404), "{path} with {key:?}: {status}");
            assert!(answer.json::<Value>().await.expect("JSON")["error"].is_string());
        }
    }
    for (path, body) in [
        ("tokens", json!({"site": "eu", "count": 0, "lifetime_s": 60})),
        ("tokens", json!({"site": "EU", "count": 1, "lifetime_s": 60})),
        ("tokens", json!({"site": "eu", "count": 1, "lifetime_s": 60, "extra": true})),
        ("tokens", json!([1, 2])),
        ("drain", json!({"node": "eu/n"})),
        ("revoke", json!({"node": 7})),
    ] {
        let (status, answer) = world.post(path, &body).await;
        assert!(status == 400 && answer["error"].is_string(), "{path} {body}: {status} {answer}");
    }
    let described: Value =
        world.http.get(format!("{base}/openapi.json")).send().await.expect("answered").json().await.expect("JSON");
    assert!(described["paths"]["/admin/v1/tokens"]["post"].is_object());
    let operations = described["paths"].as_object().expect("paths").values().flat_map(|path| path.as_object().expect("methods"));
    for (method, operation) in operations {
        assert_eq!(operation["tags"], json!(["admin"]), "{method} {operation}");
    }
    world.stop_hub().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn services_come_and_go_and_stay_across_a_restart() {
    let mut world = World::start().await;
    world.put_service("assistant", "tiny").await;
    world.put_service("eu/coder", "large").await;
    let taken = json!({"id": "other", "aliases": ["assistant"], "variants": [{
        "id": "x", "context": 1, "quality": 0.1, "quality_source": "y"}]});
    let answer = world.admin(reqwest::Method::PUT, "services").json(&taken).send().await.expect("answered");
    assert_eq!(answer.status(), 409, "{}", answer.text().await.expect("text"));
    world.stop_hub().await;
    world.start_hub().await;
    let held = world.get("services").await;
    assert_eq!(held["services"].as_object().expect("services").len(), 2, "{held}");
    let models: Value = world
        .http
        .get(format!("http://{}/v1/models", world.addresses().http))
        .send()
        .await
        .expect("answered")
        .json()
        .await
        .expect("JSON");
    let ids: Vec<_> = models["data"].as_array().expect("models").iter().map(|model| model["id"].clone()).collect();
    assert!(ids.contains(&json!("assistant")) && ids.contains(&json!("eu/coder")), "{ids:?}");
    for (id, status) in [("eu/coder", 200), ("eu/coder", 404)] {
        let answer = world.admin(reqwest::Method::DELETE, &format!("services/{id}")).send().await.expect("answered");
        assert_eq!(answer.status(), status);
    }
    world.stop_hub().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_any_port_disturbs_nobody() {
    let mut world = World::start().await;
    let seed: u64 = rand::random();
    eprintln!("seed {seed}");
    let addresses = world.addresses().clone();
    let garbage = move |length: usize| -> Vec<u8> {
        let mut state = seed | 1;
        (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                state.to_be_bytes()[0]
            })
            .collect()
    };
    tokio::task::spawn_blocking(move || {
        let udp = UdpSocket::bind("127.0.0.1:0").expect("a socket");
        for length in [0, 1, 100, 1_200, 1_400] {
            udp.send_to(&garbage(length), addresses.quic).expect("sent");
        }
        for address in [addresses.http.to_string(), addresses.admin.to_string(), addresses.broker] {
            let mut tcp = TcpStream::connect(address).expect("connected");
            tcp.write_all(&garbage(500)).expect("sent");
            tcp.shutdown(std::net::Shutdown::Write).expect("shut");
            let mut answer = Vec::new();
            // Whatever the answer is, the connection ends.
            let _ = tcp.read_to_end(&mut answer);
        }
    })
    .await
    .expect("done");
    let token = world.token("eu", 1).await;
    crate::agent::Agent::join(&world, &token, "node-1").await;
    world.stop_hub().await;
}
