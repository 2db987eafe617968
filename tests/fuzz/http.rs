//! Damaged requests to an agent's API, the hub's API and the admin API, on real sockets with the real hosts behind them.

use crate::dice::Run;
use cloud_hub::clock::UnixTime;
use cloud_hub::state::StateDir;
use edge_node::io::Running;
use serde_json::{Value, json};
use shared::ids::NodeId;
use shared_net::tls::CertClock;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// A request whose answer takes longer hangs: the engine here answers in milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// After so many damaged requests a good one must be answered.
const ROUNDS_PER_CHECK: usize = 50;

fn local() -> SocketAddr {
    (Ipv4Addr::LOCALHOST, 0).into()
}

async fn agent(state: &Path) -> Running {
    let engine = json!({
        "engine": "profiled", "variant": "small", "slots": 8, "answer": 3, "rates": {"prompt_per_s": 1e6, "decode_per_s": 1e4}
    });
    let mut config = edge_node::config::Config { state: state.to_owned(), ..Default::default() };
    config.http.listen = local();
    config.engines = vec![serde_json::from_value(engine).expect("an engine")];
    Running::start(&config, None).await.expect("starts")
}

async fn hub(state: &Path) -> (cloud_hub::Handle, String) {
    let name = NodeId::new("cloud/hub").expect("good");
    StateDir::at(state).init(&name, "127.0.0.1:0", UnixTime::now(&CertClock::new(0))).expect("made");
    cloud_hub::io::use_ring();
    let mut config = cloud_hub::config::Config { state: state.to_owned(), ..Default::default() };
    (config.quic.listen, config.http.listen, config.admin.listen, config.mqtt.listen) = (local(), local(), local(), local());
    let key = StateDir::at(state).admin_key().expect("made by init");
    (cloud_hub::start(config).await.expect("starts"), key)
}

fn chat() -> Value {
    json!({
        "model": "small", "max_tokens": 3, "stream": false, "temperature": 0.5, "top_p": 0.9, "seed": 7, "n": 1, "stop": ["x"],
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": [{"type": "text", "text": "When?"}]}],
        "tidegate": {"residency": "node", "deadline_ms": 5000, "priority": 5}, "metadata": {"a": "b"},
    })
}

fn request(method: &str, path: &str, key: &str, body: &str) -> Vec<u8> {
    format!(
        "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\ncontent-type: application/json\r\n\
         x-tidegate-residency: site\r\nconnection: close\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends bytes, says that no more come, and reads what there is to read.
async fn exchange(address: SocketAddr, bytes: &[u8]) -> Vec<u8> {
    let talk = async {
        let mut answer = Vec::new();
        let Ok(mut socket) = TcpStream::connect(address).await else { return answer };
        // A server that has had enough closes: then there is an answer, or there is none.
        let _sent = socket.write_all(bytes).await;
        let _ended = socket.shutdown().await;
        let _read = socket.read_to_end(&mut answer).await;
        answer
    };
    tokio::time::timeout(PATIENCE, talk).await.unwrap_or_else(|_| panic!("{address} hangs"))
}

fn status(answer: &[u8]) -> Option<u16> {
    let line = answer.strip_prefix(b"HTTP/1.1 ").or_else(|| answer.strip_prefix(b"HTTP/1.0 "))?;
    std::str::from_utf8(line.get(..3)?).ok()?.parse().ok()
}

/// An answer is no server's fault, and an error is JSON that names itself.
fn check(what: &str, sent: &[u8], answer: &[u8]) {
    let Some(code) = status(answer) else { return };
    let shown = || format!("{what}: {}\n→ {}", String::from_utf8_lossy(sent), String::from_utf8_lossy(answer));
    assert!(code != 500 && code < 600, "{}", shown());
}

/// Bytes anywhere in the request.
async fn raw(run: &mut Run, what: &str, address: SocketAddr, seeds: &[Vec<u8>]) {
    while run.again() {
        let mut bytes = seeds[run.rounds % seeds.len()].clone();
        let end = bytes.len();
        run.damage(&mut bytes, end);
        let answer = exchange(address, &bytes).await;
        check(what, &bytes, &answer);
        if run.rounds.is_multiple_of(ROUNDS_PER_CHECK) {
            let good = exchange(address, &seeds[0]).await;
            assert_eq!(status(&good), Some(200), "{what} after damage: {}", String::from_utf8_lossy(&good));
        }
    }
    let good = exchange(address, &seeds[0]).await;
    assert_eq!(status(&good), Some(200), "{what} at the end: {}", String::from_utf8_lossy(&good));
}

/// Odd values in whole JSON.
async fn distorted(run: &mut Run, address: SocketAddr, key: &str, seeds: &[(&str, &str, Value)]) {
    while run.again() {
        let (method, path, value) = &seeds[run.rounds % seeds.len()];
        let mut value = value.clone();
        for _ in 0..=run.below(2) {
            run.distort(&mut value);
        }
        let bytes = request(method, path, key, &value.to_string());
        let answer = exchange(address, &bytes).await;
        check(path, &bytes, &answer);
        assert!(status(&answer).is_some(), "{path}: no answer to {value}");
        let error = answer.windows(4).position(|end| end == b"\r\n\r\n").and_then(|at| answer.get(at + 4..));
        if status(&answer).is_some_and(|code| code >= 400) {
            let error: Value =
                serde_json::from_slice(error.unwrap_or_default()).unwrap_or_else(|_| panic!("{path}: an error that is no JSON"));
            assert!(error.get("error").is_some(), "{path}: {error}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_requests_to_an_agent() {
    let folder = tempfile::tempdir().expect("a folder");
    let agent = agent(folder.path()).await;
    let address = agent.http_address();
    let completion = json!({"model": "small", "prompt": "The tide", "max_tokens": 2, "stream": true});
    let seeds = vec![
        request("POST", "/v1/chat/completions", "", &chat().to_string()),
        request("POST", "/v1/completions", "", &completion.to_string()),
        request("GET", "/v1/models", "", ""),
        request("GET", "/tidegate/v1/explain/0123456789abcdef0123456789abcdef", "", ""),
    ];
    // The engine measures nothing and is ready at once; the agent hears of it a moment later.
    let ready = async { while status(&exchange(address, &seeds[0]).await) != Some(200) {} };
    tokio::time::timeout(PATIENCE, ready).await.expect("ready");
    raw(&mut Run::new("an agent's HTTP"), "an agent", address, &seeds).await;
    let json = [("POST", "/v1/chat/completions", chat()), ("POST", "/v1/completions", completion)];
    distorted(&mut Run::new("an agent's JSON"), address, "", &json).await;
    agent.shutdown().await.expect("stops, with every task well");
}

#[tokio::test(flavor = "multi_thread")]
async fn damaged_requests_to_a_hub() {
    let folder = tempfile::tempdir().expect("a folder");
    let (hub, key) = hub(folder.path()).await;
    let admin: SocketAddr = hub.addresses().admin.to_string().parse().expect("an address");
    let service = json!({"id": "assistant", "aliases": ["a"], "variants": [{
        "id": "small", "quantisation": "q8_0", "context": 2048, "memory": 1, "quality": 0.5, "quality_source": "a test",
    }]});
    let token = json!({"site": "bay", "count": 1, "lifetime_s": 3600, "labels": {"rack": "3"}});
    let seeds = vec![
        request("GET", "/admin/v1/nodes", &key, ""),
        request("POST", "/admin/v1/tokens", &key, &token.to_string()),
        request("PUT", "/admin/v1/services", &key, &service.to_string()),
        request("GET", "/admin/v1/records?last=5", &key, ""),
    ];
    raw(&mut Run::new("the admin API's HTTP"), "the admin API", admin, &seeds).await;
    let json = [
        ("POST", "/admin/v1/tokens", token),
        ("PUT", "/admin/v1/services", service),
        ("POST", "/admin/v1/revoke", json!({"node": "bay/edge-1"})),
        ("POST", "/admin/v1/drain", json!({"node": "bay/edge-1", "drain": true})),
        ("PUT", "/admin/v1/dispatch", json!({"policy": "min-latency", "config": null})),
    ];
    distorted(&mut Run::new("the admin API's JSON"), admin, &key, &json).await;
    hub.shutdown().await.expect("stops, with every task well");
}
