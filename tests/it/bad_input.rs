//! Whatever comes in: a clear typed answer, a metric, and nobody else disturbed.

use scenarios::emulate::client::Question;
use scenarios::emulate::process::{ProcessError, Program, beside};
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use shared::ids::{NodeId, ScopeId};
use shared::wire::JoinToken;
use shared::wire::mqtt::Topic;
use shared_net::openai::key_sha256;
use std::net::UdpSocket;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;
use tests::{BrokerClient, Pace, SOON, World, agent_metric, hub_metric, node_row, profiled, service};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

const COMMAND_WITHIN: Duration = Duration::from_secs(20);
/// Larger than any body that is taken.
const HUGE_BYTES: usize = 5 * 1024 * 1024;

fn fast() -> Pace {
    Pace { decode_per_s: 500, slots: 8, ..Pace::default() }
}

/// A client that behaves, and is served all the while.
struct GoodClient {
    served: Arc<AtomicU32>,
    stop: Arc<AtomicBool>,
    task: JoinHandle<()>,
}

impl GoodClient {
    fn of(world: &World, at: &NodeId) -> Self {
        let (served, stop) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
        let (client, base, count, ends) = (world.client.clone(), world.base(at), Arc::clone(&served), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            while !ends.load(Ordering::Relaxed) {
                let reply =
                    client.ask(&base, &Question::new("s", "a good question", 2)).await.expect("the good client's connection");
                assert!(reply.answered(), "the good client was disturbed: {:?}", reply.error);
                count.fetch_add(1, Ordering::Relaxed);
            }
        });
        Self { served, stop, task }
    }

    /// Ends when it has been served again, and without a failure.
    async fn end(self) {
        let before = self.served.load(Ordering::Relaxed);
        let again = until("the good client to be served", SOON, || async {
            let now = self.served.load(Ordering::Relaxed);
            if now > before || self.task.is_finished() { Ok(()) } else { Err(format!("{now} served")) }
        });
        again.await.unwrap_or_else(|late| panic!("{late}"));
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("the good client was served throughout");
    }
}

fn chat(more: Value) -> String {
    let mut body = json!({"model": "s", "max_tokens": 4, "messages": [{"role": "user", "content": "a question"}]});
    if let (Some(body), Value::Object(more)) = (body.as_object_mut(), more) {
        body.extend(more);
    }
    body.to_string()
}

/// Name, body, and the status and code that it gets.
fn bad_bodies() -> Vec<(&'static str, String, u16, &'static str)> {
    let long = json!({"messages": [{"role": "user", "content": "a word ".repeat(20_000)}]});
    vec![
        ("half an object", "{\"model\": \"s\", ".to_owned(), 400, "invalid_json"),
        ("no object", "[1, 2]".to_owned(), 400, "invalid_json"),
        ("nothing", String::new(), 400, "invalid_json"),
        ("an endless nest", "[".repeat(100_000), 400, "invalid_json"),
        ("an unknown model", chat(json!({"model": "no-such-model"})), 404, "model_not_found"),
        ("too long a prompt", chat(long), 400, "context_length_exceeded"),
        ("too large a body", chat(json!({"user": "x".repeat(HUGE_BYTES)})), 413, "body_too_large"),
        ("a hot temperature", chat(json!({"temperature": 1e308})), 400, "invalid_value"),
        ("a negative length", chat(json!({"max_tokens": -1})), 400, "invalid_value"),
        ("an absurd length", chat(json!({"max_tokens": 1e300})), 400, "invalid_value"),
        ("a mass beyond one", chat(json!({"top_p": 17})), 400, "invalid_value"),
        ("a negative deadline", chat(json!({"tidegate": {"deadline_ms": -5}})), 400, "invalid_value"),
        ("an absurd quality", chat(json!({"tidegate": {"min_quality": 1e9}})), 400, "invalid_value"),
        ("not a number", chat(json!({})).replace("\"max_tokens\":4", "\"max_tokens\":NaN"), 400, "invalid_json"),
    ]
}

async fn answers_bad_bodies(world: &World, at: &NodeId) {
    let url = format!("{}/v1/chat/completions", world.base(at));
    for (name, body, status, code) in bad_bodies() {
        let sent = world.client.http().post(&url).header("content-type", "application/json").body(body).send().await;
        let response = sent.unwrap_or_else(|error| panic!("{name} at {at}: {error}"));
        let got = response.status().as_u16();
        let text = response.text().await.unwrap_or_else(|error| panic!("{name} at {at}: {error}"));
        let told: Value = serde_json::from_str(&text).unwrap_or_else(|_| panic!("{name} at {at}: no JSON: {text:.200}"));
        assert_eq!((got, told["error"]["code"].as_str()), (status, Some(code)), "{name} at {at}: {told}");
        for member in ["message", "type"] {
            assert!(told["error"][member].as_str().is_some_and(|text| !text.is_empty()), "{name} at {at}: {told}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_get_typed_errors_and_are_counted_at_agent_and_hub() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &profiled("v", fast())).await;
    let hub = world.fleet.hub().name().clone();
    world.until_ready(&edge, "s").await;
    world.until_answered(&hub, &Question::new("s", "ready?", 1)).await;
    let bad = "tidegate_agent_http_answers{endpoint=\"chat\",status=\"4";
    let codes = "tidegate_hub_http_errors_total{code=";
    let before = (agent_metric(&world, &edge, bad).await, hub_metric(&world, codes).await);
    let good = [GoodClient::of(&world, &edge), GoodClient::of(&world, &hub)];
    for at in [&edge, &hub] {
        answers_bad_bodies(&world, at).await;
    }
    for client in good {
        client.end().await;
    }
    let count = bad_bodies().len() as f64;
    assert_eq!(agent_metric(&world, &edge, bad).await - before.0, count, "the agent counts them");
    assert_eq!(hub_metric(&world, codes).await - before.1, count, "and so does the hub");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_key_opens_neither_an_agent_nor_the_admin_api() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let front = format!("\n[http.front]\napi_keys_sha256 = [\"{}\"]\n", key_sha256("the right one"));
    let edge = world.agent("bay/edge-1", &format!("{}{front}", profiled("v", fast()))).await;
    world.until_ready(&edge, "s").await;
    let (http, base) = (world.client.http(), world.base(&edge));
    let url = format!("{base}/v1/models");
    for (key, status) in [("the wrong one", 401), ("", 401), ("the right one", 200)] {
        let response = http.get(&url).header("authorization", format!("Bearer {key}")).send().await.expect("answered");
        assert_eq!(response.status().as_u16(), status, "`{key}`");
        if status == 401 {
            let told: Value = response.json().await.expect("JSON");
            assert_eq!(told["error"]["code"], "invalid_api_key", "{told}");
        }
    }
    let counted = agent_metric(&world, &edge, "tidegate_agent_http_answers{endpoint=\"models\",status=\"401\"").await;
    assert_eq!(counted, 2.0);
    let admin = format!("{}/admin/v1/nodes", world.fleet.hub().admin());
    let told = http.get(&admin).bearer_auth("the wrong one").send().await.expect("answered");
    assert_eq!(told.status().as_u16(), 401);
    let right = world.fleet.hub().admin_key().expect("a key");
    assert_eq!(http.get(&admin).bearer_auth(right).send().await.expect("answered").status().as_u16(), 200);
}

/// What `edge-node join` says: nothing when it works.
fn join(world: &World, token: &JoinToken, name: &str) -> Result<(), String> {
    let program = Program::new("edge-node", beside("edge-node").expect("built"), world.folder().join("joins.log"));
    let state = world.folder().join(format!("stranger-{name}"));
    let joined = program.args(["join", &token.to_string(), "--name", name, "--state"]).arg(state).run(COMMAND_WITHIN);
    match joined {
        Ok(_) => Ok(()),
        Err(ProcessError::Ended { tail, .. }) => Err(tail),
        Err(other) => panic!("{other}"),
    }
}

fn token(world: &World, expires: &str) -> JoinToken {
    let address = world.fleet.hub().quic().to_string();
    let printed = world.fleet.hub().command(&["token", "--site", "bay", "--address", &address, "--expires", expires]);
    let printed = printed.expect("a token");
    printed.lines().find_map(|line| line.trim().parse().ok()).unwrap_or_else(|| panic!("no token in {printed}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn expired_reused_and_foreign_tokens_are_refused_by_name() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &profiled("v", fast())).await;
    world.until_ready(&edge, "s").await;
    let good = GoodClient::of(&world, &edge);
    let counted = |result: &str| format!("tidegate_hub_joins_total{{result=\"{result}\"}}");

    let short = token(&world, "1s");
    let once = token(&world, "1h");
    join(&world, &once, "first").expect("the first use");
    let told = join(&world, &once, "second").expect_err("used");
    assert!(told.contains("used as often as it allows"), "{told}");
    assert_eq!(hub_metric(&world, &counted("used")).await, 1.0);

    // More than a second has gone by certainly only when the clock of certificates says so.
    let begun = std::time::SystemTime::now();
    until("the token's end", SOON, || async {
        let passed = begun.elapsed().unwrap_or_default();
        if passed > Duration::from_secs(2) { Ok(()) } else { Err(format!("{passed:?} of it")) }
    })
    .await
    .expect("time passes");
    let told = join(&world, &short, "late").expect_err("expired");
    assert!(told.contains("has expired"), "{told}");
    assert_eq!(hub_metric(&world, &counted("expired")).await, 1.0);

    let fresh = token(&world, "1h");
    let unknown = JoinToken { secret: "5a".repeat(fresh.secret.len() / 2), ..fresh.clone() };
    let told = join(&world, &unknown, "guesser").expect_err("unknown");
    assert!(told.contains("does not know the token"), "{told}");
    assert_eq!(hub_metric(&world, &counted("unknown_token")).await, 1.0);
    // Of another fleet: the node itself sees that this is not its hub.
    let foreign = World::new(Vec::new(), "").await;
    let theirs = foreign.fleet.hub().token(&ScopeId::new("bay").expect("a site"), world.fleet.hub().quic()).expect("a token");
    join(&world, &theirs, "stray").expect_err("another fleet's");
    join(&world, &fresh, "welcome").expect("and a good one works");
    good.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn row_8_a_cloned_identity_is_flagged_and_others_are_served() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let twin = world.agent("bay/edge-1", &profiled("v", fast())).await;
    let other = world.agent("cape/edge-1", &profiled("v", fast())).await;
    let hub = world.fleet.hub().name().clone();
    for node in [&twin, &other] {
        world.until_ready(node, "s").await;
    }
    world.until_answered(&hub, &Question::new("s", "ready?", 1)).await;
    let folder = world.fleet.agent(&twin).expect("there").folder().to_owned();
    let copy = world.folder().join("copy");
    std::fs::create_dir_all(&copy).expect("made");
    for entry in std::fs::read_dir(folder.join("state")).expect("listed").flatten() {
        if entry.path().is_file() {
            std::fs::copy(entry.path(), copy.join(entry.file_name())).expect("copied");
        }
    }
    let good = GoodClient::of(&world, &other);
    let program = Program::new("the clone", beside("edge-node").expect("built"), world.fleet.logs().join("clone.log"));
    let program = program.arg("run").arg("--config").arg(folder.join("agent.toml")).arg("--state").arg(&copy);
    let clone = program.args(["--listen", "127.0.0.1:0", "--set", "quic.listen=127.0.0.1:0"]).start().expect("started");
    let flagged = until("the flag", SOON, || async {
        let row = node_row(&world, &twin);
        if row["state"] == "cloned" { Ok(()) } else { Err(row["state"].to_string()) }
    });
    println!("flagged after {:?}", flagged.await.unwrap_or_else(|late| panic!("{late}")).1);
    assert!(hub_metric(&world, "tidegate_hub_logic_total{name=\"identities_cloned\"}").await >= 1.0);
    for _ in 0..4 {
        let reply = world.until_answered(&hub, &Question::new("s", "who?", 2)).await;
        assert_eq!(reply.served.and_then(|served| served.node), Some(other.clone()), "neither twin gets work");
    }
    good.end().await;
    drop(clone);
}

/// Bytes that are no protocol of ours; always the same.
fn noise(seed: u8, length: usize) -> Vec<u8> {
    let mut state = u32::from(seed).wrapping_mul(2_654_435_761).wrapping_add(1);
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state.to_le_bytes()[0]
    };
    (0..length).map(|_| next()).collect()
}

async fn tcp_garbage(address: &str) {
    let starts: [&[u8]; 4] = [b"", b"GET / HTTP/9.9\r\n\xff\xfe: \x00\r\n\r\n", b"\x16\x03\x01\xff\xff", b"\x10\xff\xff\xff\x7f"];
    for (seed, start) in (0..).zip(starts) {
        let mut stream = TcpStream::connect(address).await.unwrap_or_else(|error| panic!("{address}: {error}"));
        let sent = [start, &noise(seed, 8_000)].concat();
        // The other end may hang up in the middle, as it should.
        drop(stream.write_all(&sent).await);
        drop(stream.shutdown().await);
        let mut said = Vec::new();
        let read = tokio::time::timeout(SOON, stream.read_to_end(&mut said)).await;
        drop(read.unwrap_or_else(|_| panic!("{address} does not hang up on garbage")));
    }
    // Gone in the middle of a request, with a body announced that never comes.
    let mut stream = TcpStream::connect(address).await.expect("connects");
    drop(stream.write_all(b"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 1000\r\n\r\n{\"model\"").await);
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_on_every_port_disturbs_nobody() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &profiled("v", fast())).await;
    let hub = world.fleet.hub().name().clone();
    world.until_ready(&edge, "s").await;
    world.until_answered(&hub, &Question::new("s", "ready?", 1)).await;
    let good = [GoodClient::of(&world, &edge), GoodClient::of(&world, &hub)];
    let plain = |url: String| url.trim_start_matches("http://").to_owned();
    let tcp = [
        plain(world.base(&edge)),
        plain(world.base(&hub)),
        plain(world.fleet.hub().admin()),
        world.fleet.hub().mqtt().to_string(),
    ];
    for address in &tcp {
        tcp_garbage(address).await;
    }
    let udp = UdpSocket::bind("127.0.0.1:0").expect("bound");
    let gate = world.fleet.agent(&edge).expect("there").quic();
    for seed in 0..50 {
        for to in [world.fleet.hub().quic(), gate] {
            let mut bytes = noise(seed, 1_200);
            // Half of them look like the beginning of a handshake.
            bytes[0] = if seed % 2 == 0 { 0xc0 } else { bytes[0] };
            // A full buffer would be no news.
            drop(udp.send_to(&bytes, to));
        }
    }
    for client in good {
        client.end().await;
    }
    world.fleet.check().expect("every process lives");
    assert_eq!(node_row(&world, &edge)["state"], "online");
}

#[tokio::test(flavor = "multi_thread")]
async fn row_21_a_nodes_nonsense_about_itself_is_dropped_named_and_counted() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &profiled("v", fast())).await;
    let hub = world.fleet.hub().name().clone();
    world.until_ready(&edge, "s").await;
    world.until_answered(&hub, &Question::new("s", "ready?", 1)).await;
    let good = GoodClient::of(&world, &hub);
    let row = node_row(&world, &edge);
    let session = json!({"epoch": row["session"], "instance": row["instance"]});
    let report = |members: &str| format!("{{\"session\":{session},\"node\":\"{edge}\",{members}}}").into_bytes();
    let bad = [
        report("\"load_1m\":NaN"),
        report("\"load_1m\":-3.5"),
        report("\"load_1m\":1e300"),
        report("\"cpu\":-0.5"),
        report("\"memory_available\":-1"),
        report("\"delta\":true,\"temperature\":-256"),
        report("\"delta\":true,\"power\":{\"value\":-1,\"origin\":\"measured\",\"by\":\"x\",\"confidence\":1}"),
        report("\"power\":{\"value\":1e300,\"origin\":\"measured\",\"by\":\"x\",\"confidence\":1}"),
        report("\"replicas\":[{\"variant\":\"v\",\"load\":{\"slots\":-4}}]"),
        b"no JSON at all \xff\xfe".to_vec(),
    ];
    let mut teller = BrokerClient::as_node(&world, &edge, &[]).await;
    for payload in &bad {
        teller.publish(Topic::Telemetry(edge.clone()).name(), payload.clone(), false);
    }
    teller.acknowledged(bad.len()).await;
    let faults = |row: &Value| -> u64 {
        let counts = row["faults"].as_object().cloned().unwrap_or_default();
        counts.values().filter_map(Value::as_u64).sum()
    };
    let told = until("the faults in the list of nodes", SOON, || async {
        let row = node_row(&world, &edge);
        if faults(&row) == bad.len() as u64 { Ok(row) } else { Err(row["faults"].to_string()) }
    });
    let (row, _) = told.await.unwrap_or_else(|late| panic!("{late}"));
    assert!(row["faults"].get("load_1m").is_some() && row["last_fault"].is_string(), "{row}");
    assert_eq!(hub_metric(&world, "tidegate_hub_report_faults_total{").await, bad.len() as f64);
    assert_eq!(row["state"], "online", "its true reports go on counting");
    good.end().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_hub_names_an_unknown_key_and_the_nearest_one() {
    let world = World::new(Vec::new(), "").await;
    let error = world.fleet.hub().command(&["config", "check", "--set", "quic.lisen=127.0.0.1:1"]).expect_err("no such key");
    let told = error.to_string();
    assert!(told.contains("quic.lisen") && told.contains("quic.listen"), "{told}");
}
