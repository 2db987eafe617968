//! A site without its hub: agents with toys for engines, and an ingress that puts headers together by hand.

use super::toy::{LAYERS, Toy};
use edge_node::config::Config;
use edge_node::exec::Engine;
use edge_node::io::Running;
use edge_node::io::store::Member;
use edge_node::logic::{Neighbour, Persisted};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use serde_json::{Value, json};
use shared::fleet::{Hop, Transport};
use shared::ids::{AttemptId, Instance, NodeId, PlanEpoch, RequestId, ScopeId, ServiceId, VariantId};
use shared::plan::{Failure, Layer, OffloadRow, Plan, PlanRows, Reason, Stage, Target};
use shared::units::{Bytes, Fraction, Micros, Tokens};
use shared::wire::body::{Prompt, Sampling};
use shared::wire::frame::{Chunk, Hello, Pulse};
use shared::wire::{Body, Frame, VERSION_MAX, VERSION_MIN};
use shared::work::{Catalogue, ExecHeader, Features, LayerRange, Precision, Priority, PromptKind, ResidencyBound, Service};
use shared_net::link::{Endpoint, Link, ResetSecret, Stream};
use shared_net::tls::{Admit, CertClock, Identity, Role, name_certificate};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::task::JoinHandle;

pub(crate) fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("good")
}

/// A fleet's authority, and the folders of its nodes.
pub(crate) struct Lab {
    authority: CertifiedIssuer<'static, KeyPair>,
    folder: tempfile::TempDir,
}

impl Lab {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let authority = CertifiedIssuer::self_signed(params, KeyPair::generate().expect("a key")).expect("an authority");
        Self { authority, folder: tempfile::tempdir().expect("folder") }
    }

    fn identity(&self, name: &str) -> Identity {
        let (key, mut params) = (KeyPair::generate().expect("a key"), CertificateParams::default());
        name_certificate(&mut params, &node(name), Role::Node).expect("named");
        let certificate = params.signed_by(&key, &self.authority).expect("signed");
        Identity::new(&certificate.pem(), &key.serialize_pem(), &self.authority.pem()).expect("an identity")
    }

    /// The configuration of a node that joined a hub that is gone, and knows this peer.
    fn config(&self, name: &str, peer: Option<(&str, SocketAddr)>) -> Config {
        let state = self.folder.path().join(name.replace('/', "-"));
        std::fs::create_dir_all(&state).expect("made");
        self.identity(name).save(&state).expect("saved");
        let (hub, address, lifetime) = (node("cloud/hub"), "127.0.0.1:9".to_owned(), Micros::from_secs(1_000_000));
        Member { hub, address, labels: Default::default(), lifetime }.save(&state).expect("saved");
        std::fs::write(state.join("agent.json"), serde_json::to_vec(&persisted(name, peer)).expect("written")).expect("saved");
        let mut config = Config { state, ..Config::default() };
        config.http.listen = "127.0.0.1:0".parse().expect("an address");
        config.quic.listen = "127.0.0.1:0".parse().expect("an address");
        config
    }

    /// An agent with this toy, once it is connected with `next`.
    pub(crate) async fn agent(&self, name: &str, toy: &Arc<Toy>, next: Option<(&str, SocketAddr)>) -> Running {
        let engine: Arc<dyn Engine> = Arc::<Toy>::clone(toy);
        let running = Running::start_with(&self.config(name, next), vec![engine]).await.expect("starts");
        if next.is_some() {
            until(&running, "the next node is a connected peer", |status| status["peers"][0]["links"] == 1).await;
        }
        until(&running, "its replica is ready", |status| status["replicas"][0]["state"] == "ready").await;
        running
    }

    /// A node that asks agents by hand.
    pub(crate) async fn ingress(&self, name: &str, agent: &str, address: SocketAddr) -> Ingress {
        let (any, clock) = ("127.0.0.1:0".parse().expect("an address"), CertClock::load(&PathBuf::from("/nowhere")));
        let identity = self.identity(name);
        let endpoint = Endpoint::bind(any, &identity, Admit::Members, &clock, &ResetSecret::random()).expect("a socket");
        let link = endpoint.connect(address, &node(agent), Transport::Quic).await.expect("connected");
        let mut control = link.open().await.expect("open");
        control.writer.write(&Frame::Hello(hello(name))).await.expect("said");
        assert!(matches!(control.reader.read().await, Ok(Some(Frame::Welcome(_)))));
        let talking = tokio::spawn(async move {
            while let Ok(Some(frame)) = control.reader.read().await {
                if let Frame::Ping(Pulse { number, .. }) = frame {
                    drop(control.writer.write(&Frame::Pong(Pulse { number, loads: Default::default() })).await);
                }
            }
        });
        Ingress { name: node(name), _endpoint: endpoint, link, talking }
    }
}

fn hello(name: &str) -> Hello {
    Hello {
        version_min: VERSION_MIN,
        version_max: VERSION_MAX,
        node: node(name),
        instance: Instance(1),
        plan_epoch_seen: PlanEpoch::default(),
        session_epoch_seen: Default::default(),
        replicas: Vec::new(),
    }
}

fn persisted(edge: &str, peer: Option<(&str, SocketAddr)>) -> Persisted {
    let service: Service = serde_json::from_value(json!({
        "id": "assistant",
        "variants": [{"id": "small", "context": 20_000, "quality": 0.5, "quality_source": "test"}]
    }))
    .expect("a service");
    let persisted = Persisted { catalogue: Some(Catalogue::new([service]).expect("good")), ..Persisted::default() };
    let Some((peer, address)) = peer else { return persisted };
    let target = Target {
        node: node(peer),
        variant: VariantId::new("small").expect("good"),
        share: Fraction::new(1.0).expect("good"),
        open_max: 8,
        stages: Vec::new(),
    };
    let row = OffloadRow { edge: node(edge), service: ServiceId::new("assistant").expect("good"), targets: vec![target] };
    let plan = Plan {
        scope: ScopeId::new(edge).expect("good"),
        owner: node("cloud/hub"),
        epoch: PlanEpoch { incarnation: 1, sequence: 1 },
        based_on: None,
        valid_for: Micros::from_secs(30),
        rows: PlanRows::Offload(vec![row]),
    };
    let neighbour = Neighbour { addresses: vec![address.to_string()], ..Neighbour::default() };
    Persisted { plans: [(Layer::Offload, plan)].into(), neighbours: [(node(peer), neighbour)].into(), ..persisted }
}

/// An ingress' connection with the first stage's node.
pub(crate) struct Ingress {
    name: NodeId,
    _endpoint: Endpoint,
    link: Link,
    talking: JoinHandle<()>,
}

impl Drop for Ingress {
    fn drop(&mut self) {
        self.talking.abort();
    }
}

/// What came back.
#[derive(Debug, Default)]
pub(crate) struct Answer {
    pub(crate) ids: Vec<u32>,
    pub(crate) failure: Option<Failure>,
}

impl Ingress {
    /// A header for stages at these nodes, which divide the layers equally.
    pub(crate) fn header(&self, nodes: &[&str], output_max: u32) -> ExecHeader {
        static REQUESTS: AtomicU64 = AtomicU64::new(1);
        let each = LAYERS / u16::try_from(nodes.len()).expect("few");
        let layers = |number: u16| LayerRange { from: number * each, to: (number + 1) * each, of: LAYERS };
        let stage = |(number, name): (u16, &&str)| Stage { node: node(name), hop: Hop::Direct, layers: layers(number) };
        ExecHeader {
            attempt: AttemptId::new(RequestId(u128::from(REQUESTS.fetch_add(1, Ordering::Relaxed))), 0),
            ingress: self.name.clone(),
            target: node(nodes[0]),
            service: ServiceId::new("assistant").expect("good"),
            variant: VariantId::new("small").expect("good"),
            kind: PromptKind::Completion,
            prompt: Tokens(10),
            output_max: Tokens(output_max),
            output_likely: None,
            features: Features::default(),
            body: Bytes(100),
            residency: ResidencyBound::Anywhere,
            priority: Priority::default(),
            remaining: None,
            resume_from: Tokens(0),
            stages: (0..).zip(nodes).map(stage).collect(),
            precision: Precision::F32,
            parent_span: 0,
        }
    }

    /// Offers it, and sends the body once it is accepted.
    ///
    /// # Panics
    /// When it is not.
    pub(crate) async fn begin(&self, header: ExecHeader, prompt: &str, seed: u64) -> Stream {
        let mut stream = self.offer(header).await;
        assert!(matches!(stream.reader.read().await, Ok(Some(Frame::Accepted(_)))));
        let sampling = Sampling { seed, ..Sampling::default() };
        let body = Body { prompt: Prompt::Plain(prompt.to_owned()), sampling, passthrough: None, resume: Vec::new() };
        let bytes = body.encode().expect("small");
        stream.writer.write(&Frame::Body(Chunk { bytes, last: true })).await.expect("sent");
        stream.writer.finish().await.expect("sent");
        stream
    }

    /// Opens a stream with this header.
    pub(crate) async fn offer(&self, header: ExecHeader) -> Stream {
        let mut stream = self.link.open().await.expect("open");
        stream.writer.write(&Frame::Header(Box::new(header))).await.expect("sent");
        stream
    }

    /// Asks for a whole answer.
    pub(crate) async fn ask(&self, header: ExecHeader, prompt: &str, seed: u64) -> Answer {
        read(&mut self.begin(header, prompt, seed).await).await
    }

    /// Offers what is refused at once.
    pub(crate) async fn refused(&self, header: ExecHeader) -> Reason {
        match self.offer(header).await.reader.read().await {
            Ok(Some(Frame::Refused(reason, _))) => reason,
            other => panic!("not refused: {other:?}"),
        }
    }
}

/// Reads to the end.
pub(crate) async fn read(stream: &mut Stream) -> Answer {
    let mut answer = Answer::default();
    let reading = async {
        loop {
            match stream.reader.read().await.expect("a frame").expect("an end") {
                Frame::Tokens(batch) => answer.ids.extend(batch.ids),
                Frame::Failed(failure) => return answer.failure = Some(failure),
                Frame::End(_) => return,
                Frame::Progress => {}
                other => panic!("unexpected: {other:?}"),
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(30), reading).await.expect("an end in time");
    answer
}

/// What an agent says of itself.
pub(crate) async fn status(running: &Running) -> Value {
    serde_json::to_value(running.handle().status().await.expect("it runs")).expect("JSON")
}

/// Waits until an agent says so.
pub(crate) async fn until(running: &Running, what: &str, holds: impl Fn(&Value) -> bool) {
    let wait = async {
        while !holds(&status(running).await) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(Duration::from_secs(15), wait).await.unwrap_or_else(|_| panic!("not in time: {what}"));
}

/// How many requests run there.
pub(crate) fn active(status: &Value) -> u64 {
    status["replicas"][0]["load"]["active"].as_u64().expect("a load")
}
