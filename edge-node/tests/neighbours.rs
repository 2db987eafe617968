//! Two agents of one site whose hub is gone. What they were granted and whom they can reach is on their disks; everything else
//! they find out from each other.

use edge_node::config::Config;
use edge_node::io::Running;
use edge_node::io::store::Member;
use edge_node::logic::{Neighbour, Persisted};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use shared::ids::{NodeId, PlanEpoch, ScopeId, ServiceId, VariantId};
use shared::plan::{Layer, OffloadRow, Plan, PlanRows, Target};
use shared::units::{Fraction, Micros};
use shared::work::{Catalogue, Service};
use shared_net::tls::{Identity, Role, name_certificate};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("good")
}

/// A fleet's authority, and the folders of its nodes.
struct Fleet {
    authority: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Fleet {
    fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        Self { authority, folder: tempfile::tempdir().expect("folder") }
    }

    /// The state folder of a node that joined a hub that is gone.
    fn joined(&self, name: &str, persisted: &Persisted) -> PathBuf {
        let folder = self.folder.path().join(name.replace('/', "-"));
        std::fs::create_dir_all(&folder).expect("made");
        let key = KeyPair::generate().expect("a key");
        let mut params = CertificateParams::default();
        name_certificate(&mut params, &node(name), Role::Node).expect("named");
        let certificate = params.signed_by(&key, &self.authority).expect("signed");
        let identity = Identity::new(&certificate.pem(), &key.serialize_pem(), &self.authority.pem()).expect("an identity");
        identity.save(&folder).expect("saved");
        let member = Member {
            hub: node("cloud/hub"),
            address: "127.0.0.1:9".to_owned(),
            labels: Default::default(),
            lifetime: Micros::from_secs(1_000_000),
        };
        member.save(&folder).expect("saved");
        std::fs::write(folder.join("agent.json"), serde_json::to_vec(persisted).expect("written")).expect("saved");
        folder
    }
}

fn catalogue() -> Catalogue {
    let service: Service = serde_json::from_value(json!({
        "id": "assistant",
        "variants": [{"id": "small", "context": 20_000, "quality": 0.5, "quality_source": "test"}]
    }))
    .expect("a service");
    Catalogue::new([service]).expect("good")
}

fn persisted() -> Persisted {
    Persisted { catalogue: Some(catalogue()), ..Persisted::default() }
}

/// `edge` may send to `target`, which listens at `address`.
fn granted(edge: &str, target: &str, address: &str) -> Persisted {
    let target_row = Target {
        node: node(target),
        variant: VariantId::new("small").expect("good"),
        share: Fraction::new(1.0).expect("good"),
        open_max: 8,
        stages: Vec::new(),
    };
    let row = OffloadRow { edge: node(edge), service: ServiceId::new("assistant").expect("good"), targets: vec![target_row] };
    let plan = Plan {
        scope: ScopeId::new(edge).expect("good"),
        owner: node("cloud/hub"),
        epoch: PlanEpoch { incarnation: 1, sequence: 1 },
        based_on: None,
        valid_for: Micros::from_secs(30),
        rows: PlanRows::Offload(vec![row]),
    };
    let neighbour = Neighbour { addresses: vec![address.to_owned()], ..Neighbour::default() };
    Persisted { plans: [(Layer::Offload, plan)].into(), neighbours: [(node(target), neighbour)].into(), ..persisted() }
}

fn config(state: PathBuf, decode_per_s: Option<f64>) -> Config {
    let engine = decode_per_s.map(|rate| {
        json!({
            "engine": "profiled", "variant": "small", "slots": 2, "context": 20_000,
            "rates": {"prompt_per_s": 5000.0, "decode_per_s": rate}
        })
    });
    let engines = engine.into_iter().map(|engine| serde_json::from_value(engine).expect("an engine")).collect();
    let mut config = Config { state, engines, ..Config::default() };
    config.http.listen = "127.0.0.1:0".parse().expect("an address");
    config.quic.listen = "127.0.0.1:0".parse().expect("an address");
    config
}

async fn get(running: &Running, page: &str) -> Value {
    let url = format!("http://{}/tidegate/v1/{page}", running.http_address());
    reqwest::get(url).await.expect("answered").json().await.expect("JSON")
}

async fn until(running: &Running, what: &str, holds: impl Fn(&Value) -> bool) {
    let wait = async {
        while !holds(&get(running, "status").await) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

async fn post(address: std::net::SocketAddr, body: Value) -> reqwest::Response {
    let url = format!("http://{address}/v1/chat/completions");
    reqwest::Client::new().post(url).json(&body).send().await.expect("answered")
}

fn chat(max_tokens: u32, stream: bool, residency: &str) -> Value {
    json!({
        "model": "assistant", "max_tokens": max_tokens, "stream": stream, "tidegate": {"residency": residency},
        "messages": [{"role": "user", "content": "hello"}]
    })
}

fn header(response: &reqwest::Response, name: &str) -> String {
    response.headers().get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

fn active(status: &Value) -> u64 {
    status["replicas"][0]["load"]["active"].as_u64().unwrap_or_default()
}

/// `lab/a` may send to `lab/b`, and both know it.
async fn pair(fleet: &Fleet, a_rate: Option<f64>, b_rate: f64) -> (Running, Running) {
    let b = Running::start(&config(fleet.joined("lab/b", &persisted()), Some(b_rate)), None).await.expect("starts");
    let address = b.quic_address().expect("it listens").to_string();
    let folder = fleet.joined("lab/a", &granted("lab/a", "lab/b", &address));
    let a = Running::start(&config(folder, a_rate), None).await.expect("starts");
    until(&a, "b is a connected peer", |status| status["peers"][0]["links"] == 1).await;
    until(&b, "a is a connected peer", |status| status["peers"][0]["links"] == 1).await;
    (a, b)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_runs_at_the_neighbour_and_residency_is_kept() {
    let fleet = Fleet::new();
    let (a, b) = pair(&fleet, None, 200.0).await;

    let answer = post(a.http_address(), chat(10, false, "site")).await;
    assert_eq!(answer.status(), 200);
    assert_eq!((header(&answer, "x-tidegate-node"), header(&answer, "x-tidegate-hop")), ("lab/b".into(), "direct".into()));
    let id = header(&answer, "x-request-id");
    let body: Value = answer.json().await.expect("JSON");
    assert_eq!(body["usage"]["completion_tokens"], 10, "{body}");
    let record = get(&a, &format!("requests/{id}")).await;
    assert_eq!(record["served_by"][0], "lab/b");

    let streamed = post(a.http_address(), chat(10, true, "anywhere")).await.text().await.expect("a stream");
    assert_eq!(streamed.matches("\"content\":\"").count(), 10, "{streamed}");
    assert!(streamed.trim_end().ends_with("data: [DONE]"));

    let refused = post(a.http_address(), chat(10, false, "node")).await;
    assert!(!refused.status().is_success());
    let body: Value = refused.json().await.expect("JSON");
    assert_eq!(body["error"]["code"], "residency", "{body}");

    a.shutdown().await.expect("all tasks end");
    b.shutdown().await.expect("all tasks end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cancelling_crosses_the_hop() {
    let fleet = Fleet::new();
    let (a, b) = pair(&fleet, None, 100.0).await;
    for stream in [true, false] {
        let address = a.http_address();
        let vanishing = tokio::spawn(async move { post(address, chat(10_000, stream, "site")).await.text().await });
        until(&b, "it runs at b", |status| active(status) == 1).await;
        vanishing.abort();
        let gone = Instant::now();
        until(&b, "b's slot is free", |status| active(status) == 0).await;
        assert!(gone.elapsed() < Duration::from_millis(500), "stream {stream}: {:?}", gone.elapsed());
    }
    a.shutdown().await.expect("all tasks end");
    b.shutdown().await.expect("all tasks end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_neighbour_that_dies_is_replaced_and_gets_nothing_more() {
    let fleet = Fleet::new();
    // b is ten times faster, so that it is chosen; a can do it too. b's runtime is its process: it dies without a word.
    let process = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let state = fleet.joined("lab/b", &persisted());
    let starting = process.spawn(async move { Running::start(&config(state, Some(2_000.0)), None).await.expect("starts") });
    let b = starting.await.expect("joined");
    let address = b.quic_address().expect("it listens").to_string();
    let a = config(fleet.joined("lab/a", &granted("lab/a", "lab/b", &address)), Some(500.0));
    let a = Running::start(&a, None).await.expect("starts");
    until(&a, "b is a connected peer", |status| status["peers"][0]["links"] == 1).await;
    until(&a, "its own replica is ready", |status| status["replicas"][0]["state"] == "ready").await;
    let address = a.http_address();
    let cut = tokio::spawn(async move { post(address, chat(4_000, true, "site")).await.text().await.expect("a stream") });
    until(&b, "it runs at b", |status| active(status) == 1).await;
    std::mem::forget(b);
    process.shutdown_background();
    let text = cut.await.expect("joined");
    assert_eq!(text.matches("\"content\":\"").count(), 4_000, "continued here without a lost or repeated token");
    assert!(text.trim_end().ends_with("data: [DONE]"));

    let answer = post(a.http_address(), chat(5, false, "site")).await;
    assert_eq!((answer.status().as_u16(), header(&answer, "x-tidegate-node")), (200, "lab/a".to_owned()));
    a.shutdown().await.expect("all tasks end");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn garbage_and_strangers_disturb_nobody() {
    let fleet = Fleet::new();
    let (a, b) = pair(&fleet, None, 200.0).await;
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    for length in [1_usize, 20, 1_200] {
        let garbage: Vec<u8> = (0..length).map(|i| (i * 31 % 256).try_into().unwrap_or(0xff)).collect();
        socket.send_to(&garbage, b.quic_address().expect("it listens")).expect("sent");
    }
    // A node of another fleet with the same name.
    let other = Fleet::new();
    let address = b.quic_address().expect("it listens").to_string();
    let stranger = Running::start(&config(other.joined("lab/c", &granted("lab/c", "lab/b", &address)), None), None).await;
    let stranger = stranger.expect("starts");
    until(&stranger, "it was refused", |status| status["peers"][0]["last_loss"].is_string()).await;
    assert_eq!(get(&stranger, "status").await["peers"][0]["links"], 0);
    let answer = post(a.http_address(), chat(10, false, "site")).await;
    assert_eq!(answer.status(), 200);
    for running in [a, b, stranger] {
        running.shutdown().await.expect("all tasks end");
    }
}

#[test]
fn an_agent_without_its_certificate_does_not_start() {
    let fleet = Fleet::new();
    let folder = fleet.joined("lab/a", &persisted());
    std::fs::remove_file(Path::new(&folder).join("identity.pem")).expect("removed");
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let started = runtime.block_on(Running::start(&config(folder, None), None));
    assert!(started.expect_err("half a membership").to_string().contains("join again"));
}
