//! Everything hostile at once, at every port, while good clients are served: nobody fails, nobody waits much longer, nothing falls
//! over, and each refusal is counted and said once.
//!
//! Bounded: [`ROUNDS`] attacks of [`WAVES`] waves on loopback, and nothing is left running.

use scenarios::emulate::client::{Client, Question};
use scenarios::emulate::wait::until;
use shared::fleet::Transport;
use shared::ids::NodeId;
use shared::wire::JoinToken;
use shared::wire::mqtt::Topic;
use shared_net::join::join;
use shared_net::link::{Endpoint, ResetSecret};
use shared_net::tls::{Admit, CertClock, Identity};
use std::fs;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tests::{BrokerClient, Pace, SOON, World, agent_metric, hub_metric, profiled, service};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::task::JoinHandle;
use tokio::time::{sleep, timeout};

/// Calm and attack take turns so often; the median of the turns counts, since the machine does other things too.
const ROUNDS: usize = 3;
/// Waves of one attack.
const WAVES: usize = 6;
/// Between two waves: so an attack lasts about two seconds, and is a hundred and fifty attempts a second from one machine.
const PAUSE: Duration = Duration::from_millis(150);
/// Answers of the good clients that a turn without an attack waits for: enough for a 99th percentile to be more than the worst.
const CALM_ANSWERS: usize = 300;
/// Added to twice the calm percentile: on two shared cores the attackers themselves take the processor for some milliseconds.
const SLACK: Duration = Duration::from_millis(25);
/// Lines that the hub may write about all of it: one for each port and kind from this machine, and some for those with names.
const LINES_MAX: usize = 60;

/// A client that behaves, and how long each of its answers took.
struct Good {
    stop: Arc<AtomicBool>,
    task: JoinHandle<Vec<(Instant, Duration)>>,
}

impl Good {
    fn of(world: &World, at: &NodeId) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (client, base, ends) = (world.client.clone(), world.base(at), Arc::clone(&stop));
        let task = tokio::spawn(async move {
            let mut took = Vec::new();
            while !ends.load(Ordering::Relaxed) {
                let begun = Instant::now();
                let reply = client.ask(&base, &Question::new("s", "a good question", 2)).await.expect("its connection");
                assert!(reply.answered(), "a good client was disturbed: {:?}", reply.error);
                took.push((begun, begun.elapsed()));
            }
            took
        });
        Self { stop, task }
    }

    async fn end(self) -> Vec<(Instant, Duration)> {
        self.stop.store(true, Ordering::Relaxed);
        self.task.await.expect("every good question was answered")
    }
}

/// Where everything is.
struct Target {
    http: Vec<SocketAddr>,
    admin: SocketAddr,
    mqtt: SocketAddr,
    /// Hub and agent, UDP and TCP, and their names.
    links: Vec<(SocketAddr, NodeId)>,
}

fn socket(url: &str) -> SocketAddr {
    url.trim_start_matches("http://").parse().unwrap_or_else(|error| panic!("{url}: {error}"))
}

/// Requests that can be read in two ways, or that never end.
fn smuggled() -> [String; 5] {
    let post = "POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n";
    [
        format!("{post}content-length: 4\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\nGET /"),
        format!("{post}content-length: 4\r\ncontent-length: 5\r\n\r\nabcde"),
        format!("{post}transfer-encoding: chunked\r\ntransfer-encoding: identity\r\n\r\n0\r\n\r\n"),
        format!("GET /healthz HTTP/1.1\r\nhost: x\r\nx: {}\r\n\r\n", "y".repeat(200_000)),
        format!("{post}content-length: 99999999999\r\n\r\n"),
    ]
}

/// Sends to a port, and hangs up. The other end may hang up first, as it should.
async fn throw(at: SocketAddr, bytes: &[u8]) {
    if let Ok(mut stream) = TcpStream::connect(at).await {
        drop(stream.write_all(bytes).await);
        drop(stream.shutdown().await);
    }
}

/// What an attacker owns.
struct Attacker {
    target: Target,
    /// A certificate of another fleet, held out with this fleet's authority.
    foreign: Identity,
    /// A node of this fleet that has been turned.
    turned: Identity,
    used: JoinToken,
    http: reqwest::Client,
    /// Sockets that say nothing, kept open.
    silent: Vec<TcpStream>,
    udp: UdpSocket,
}

impl Attacker {
    async fn wave(&mut self, number: usize) {
        self.http_wave(number).await;
        self.datagrams(number);
        let mut ports = vec![self.target.mqtt];
        for (at, name) in &self.target.links {
            self.foreigner(*at, name).await;
            ports.push(*at);
        }
        for at in ports {
            throw(at, b"\x16\x03\x01\x02\x00garbage that is no handshake").await;
            throw(at, b"\x10\xff\xff\xff\x7f").await;
            // One that says nothing, and stays.
            self.silent.extend(TcpStream::connect(at).await);
        }
        self.joins(number).await;
        self.admin().await;
    }

    async fn http_wave(&mut self, number: usize) {
        for at in self.target.http.clone() {
            for request in smuggled() {
                throw(at, request.as_bytes()).await;
            }
            // Half a head, and half a body, that go on no more.
            for start in ["POST /v1/chat/compl", "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-length: 900\r\n\r\n{\"mod"]
            {
                if let Ok(mut stream) = TcpStream::connect(at).await {
                    drop(stream.write_all(start.as_bytes()).await);
                    self.silent.push(stream);
                }
            }
            let mut flood = Vec::new();
            for _ in 0..10 {
                flood.extend(TcpStream::connect(at).await);
            }
            let bad = self.http.post(format!("http://{at}/v1/chat/completions")).header("content-type", "application/json");
            drop(bad.body(format!("{{\"model\":\"s\",\"messages\":[{number}")).send().await);
        }
    }

    fn datagrams(&self, number: usize) {
        for (at, _) in &self.target.links {
            for seed in 0..40_u8 {
                let mut bytes = vec![seed.wrapping_mul(37).wrapping_add(u8::try_from(number % 256).unwrap_or(0)); 1_200];
                // Half of them look like the beginning of a handshake of the first version.
                if seed % 2 == 0 {
                    bytes.splice(..6, [0xc0, 0, 0, 0, 1, 8]);
                }
                drop(self.udp.send_to(&bytes, at));
            }
        }
    }

    /// Dials with a certificate of another fleet, over both transports.
    async fn foreigner(&self, at: SocketAddr, name: &NodeId) {
        let (clock, any) = (CertClock::new(0), SocketAddr::from(([127, 0, 0, 1], 0)));
        let endpoint = Endpoint::bind(any, &self.foreign, Admit::Members, &clock, &ResetSecret::random()).expect("a socket");
        for by in [Transport::Quic, Transport::Tcp] {
            // A client is let in only when the server has judged it: whoever dials may think so earlier.
            if let Ok(link) = endpoint.connect(at, name, by).await {
                assert!(timeout(SOON, link.closed()).await.is_ok(), "{at} keeps a stranger over {by:?}");
            }
        }
    }

    async fn joins(&self, number: usize) {
        let clock = CertClock::new(0);
        let name = format!("stray-{number}");
        join(&self.used, &name, &clock).await.expect_err("a token that was used");
        let guessed = JoinToken { secret: format!("{number:02x}").repeat(self.used.secret.len() / 2), ..self.used.clone() };
        join(&guessed, &name, &clock).await.expect_err("a token that was guessed");
    }

    async fn admin(&self) {
        let base = format!("http://{}", self.target.admin);
        for key in ["", "guess", "another guess"] {
            let answer = self.http.get(format!("{base}/admin/v1/nodes")).bearer_auth(key).send().await.expect("answered");
            assert_eq!(answer.status().as_u16(), 401);
        }
        let huge = self.http.post(format!("{base}/admin/v1/tokens")).body("x".repeat(4 << 20)).send().await;
        assert!(huge.map_or(true, |answer| answer.status().is_client_error()));
        throw(self.target.admin, &[0xff; 4_000]).await;
    }

    /// The turned node says it is another, and speaks for another.
    async fn mqtt(&self, world: &World, victim: &NodeId) {
        let mut teller = BrokerClient::with(world, &self.turned, &[]).await;
        for topic in [Topic::Telemetry(victim.clone()), Topic::Status(victim.clone()), Topic::Inventory(victim.clone())] {
            teller.publish(topic.name(), b"{\"online\":false}".to_vec(), true);
        }
        teller.acknowledged(3).await;
        BrokerClient::refused(world, &self.turned, &victim.topic_level()).await;
        BrokerClient::refused(world, &self.foreign, &victim.topic_level()).await;
    }
}

fn percentile(mut took: Vec<Duration>) -> Duration {
    took.sort_unstable();
    took.get((took.len() * 99).div_ceil(100).saturating_sub(1)).copied().unwrap_or_default()
}

fn median(mut of: Vec<Duration>) -> Duration {
    of.sort_unstable();
    of.get(of.len() / 2).copied().unwrap_or_default()
}

/// Key, certificate and authority of a node.
fn identity(folder: &std::path::Path) -> [String; 3] {
    let path = folder.join("state/identity.pem");
    let text = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let blocks: Vec<String> = text.split("-----BEGIN").skip(1).map(|block| format!("-----BEGIN{block}")).collect();
    let count = blocks.len();
    blocks.try_into().unwrap_or_else(|_| panic!("{count} parts in {}", path.display()))
}

/// Lines of a log that tell of something refused, and those that tell of a panic.
fn lines(world: &World) -> (usize, Vec<String>) {
    let (mut refused, mut panics) = (0, Vec::new());
    for entry in fs::read_dir(world.fleet.logs()).expect("logs").flatten() {
        let text = fs::read_to_string(entry.path()).unwrap_or_default();
        refused += text.lines().filter(|line| line.contains("refused")).count();
        panics.extend(text.lines().filter(|line| line.contains("panicked")).map(str::to_owned));
    }
    (refused, panics)
}

async fn attacker(world: &World, edge: &NodeId, hub: &NodeId, turned: &NodeId) -> Attacker {
    let mut other = World::new(Vec::new(), "").await;
    let stray = other.agent("bay/edge-1", "").await;
    let folder = |world: &World, node: &NodeId| world.fleet.agent(node).expect("there").folder().to_owned();
    let [key, certificate, _] = identity(&folder(&other, &stray));
    let [own_key, own_certificate, authority] = identity(&folder(world, turned));
    let foreign = Identity::new(&certificate, &key, &authority).expect("it looks like one");
    let printed = world.fleet.hub().command(&["token", "--site", "bay", "--address", &world.fleet.hub().quic().to_string()]);
    let used: JoinToken = printed.expect("a token").lines().find_map(|line| line.trim().parse().ok()).expect("in its lines");
    join(&used, "first", &CertClock::new(0)).await.expect("the first use");
    let own = world.fleet.agent(edge).expect("there").quic();
    let links = vec![(world.fleet.hub().quic(), hub.clone()), (own, edge.clone())];
    let http = [edge, hub].map(|at| socket(&world.base(at))).to_vec();
    let (admin, mqtt) = (socket(&world.fleet.hub().admin()), world.fleet.hub().mqtt());
    Attacker {
        target: Target { http, admin, mqtt, links },
        foreign,
        turned: Identity::new(&own_certificate, &own_key, &authority).expect("an identity"),
        used,
        http: Client::new().expect("an HTTP client").http().clone(),
        silent: Vec::new(),
        udp: UdpSocket::bind("127.0.0.1:0").expect("bound"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn good_clients_are_served_while_every_port_is_attacked() {
    let fast = Pace { decode_per_s: 500, slots: 8, ..Pace::default() };
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &profiled("v", fast)).await;
    let turned = world.agent("bay/edge-2", "").await;
    let hub = world.fleet.hub().name().clone();
    world.until_ready(&edge, "s").await;
    world.until_answered(&hub, &Question::new("s", "ready?", 1)).await;
    let mut attacker = attacker(&world, &edge, &hub, &turned).await;
    let counted = "tidegate_hub_refusals_total{";
    let before = hub_metric(&world, counted).await;

    let good = [Good::of(&world, &edge), Good::of(&world, &hub)];
    let mut turns = Vec::new();
    for round in 0..ROUNDS {
        let begun = Instant::now();
        let requests = "tidegate_agent_requests_total";
        let already = agent_metric(&world, &edge, requests).await;
        until("good answers", SOON, || async {
            let answered = agent_metric(&world, &edge, requests).await - already;
            if answered >= CALM_ANSWERS as f64 { Ok(()) } else { Err(format!("{answered} of them")) }
        })
        .await
        .unwrap_or_else(|late| panic!("{late}"));
        let attacked = Instant::now();
        for wave in 0..WAVES {
            attacker.wave(round * WAVES + wave).await;
            sleep(PAUSE).await;
        }
        attacker.mqtt(&world, &edge).await;
        turns.push((begun, attacked, Instant::now()));
    }
    let mut took = Vec::new();
    for client in good {
        took.extend(client.end().await);
    }
    let within = |from: Instant, to: Instant| {
        percentile(took.iter().filter(|(begun, _)| (from..to).contains(begun)).map(|(_, took)| *took).collect())
    };
    let calm = median(turns.iter().map(|(begun, attacked, _)| within(*begun, *attacked)).collect());
    let attacked = median(turns.iter().map(|(_, attacked, ended)| within(*attacked, *ended)).collect());
    println!("{} answers; 99th percentile: calm {calm:?}, attacked {attacked:?}", took.len());
    assert!(attacked <= calm * 2 + SLACK, "calm {calm:?}, attacked {attacked:?}");

    world.fleet.check().expect("every process lives");
    for (what, at_least) in [
        ("{port=\"link\",why=\"handshake\"}", ROUNDS * WAVES * 2),
        ("{port=\"mqtt\",why=\"handshake\"}", ROUNDS * WAVES * 2),
        ("{port=\"mqtt\",why=\"topic\"}", ROUNDS * 3),
        ("{port=\"mqtt\",why=\"not_allowed\"}", ROUNDS),
        ("{port=\"join\",why=\"used\"}", ROUNDS * WAVES),
        ("{port=\"join\",why=\"unknown_token\"}", ROUNDS * WAVES),
        ("{port=\"admin\",why=\"key\"}", ROUNDS * WAVES * 3),
    ] {
        let count = hub_metric(&world, &format!("tidegate_hub_refusals_total{what}")).await;
        assert!(count >= at_least as f64, "{what}: {count} counted, at least {at_least} made");
    }
    let at_edge = agent_metric(&world, &edge, "tidegate_agent_refusals{port=\"link\",why=\"handshake\"}").await;
    assert!(at_edge >= (ROUNDS * WAVES) as f64, "{at_edge} at the agent");
    assert!(hub_metric(&world, counted).await > before);
    let (refused, panics) = lines(&world);
    assert!(panics.is_empty(), "{panics:?}");
    assert!(refused <= LINES_MAX, "{refused} lines tell of refusals");
    println!("{refused} lines of log tell of {} refusals at the hub", hub_metric(&world, counted).await - before);
    drop(attacker);
    assert!(world.fleet.stop().is_empty(), "every process ends when asked");
}
