//! An agent made of nothing but the wire.

use crate::world::{PATIENCE, World};
use serde::Serialize;
use shared::fleet::{
    Costs, Inventory, Load, Machine, Profile, ProfileSource, ReplicaReport, ReplicaState, Survey, Telemetry, Tier,
};
use shared::ids::{Instance, NodeId, PlanEpoch, SessionEpoch, VariantId};
use shared::units::{Bytes, Fraction, Micros, TokenRate, Tokens};
use shared::wire::frame::{Goodbye, Hello, Pulse, Welcome};
use shared::wire::mqtt::{Session, Signed, Status, Topic};
use shared::wire::{Frame, JoinToken, VERSION_MAX, VERSION_MIN};
use shared::work::EngineKind;
use shared_net::host::Tasks;
use shared_net::link::{Endpoint, Link, ResetSecret, Stream};
use shared_net::mqtt::{Mqtt, MqttEvent, MqttSettings, Note};
use shared_net::tls::{Admit, CertClock, Identity};
use std::net::Ipv4Addr;
use tokio::sync::{mpsc, watch};
use tokio::time::timeout;

pub(crate) struct Agent {
    pub(crate) node: NodeId,
    pub(crate) hub: NodeId,
    pub(crate) identity: Identity,
    pub(crate) clock: CertClock,
    pub(crate) endpoint: Endpoint,
    pub(crate) tasks: Tasks,
}

/// An agent that said hello.
pub(crate) struct Session_ {
    pub(crate) link: Link,
    pub(crate) welcome: Welcome,
    pub(crate) session: Session,
    pub(crate) goodbye: watch::Receiver<Option<Goodbye>>,
}

pub(crate) fn replica(variant: &str) -> ReplicaReport {
    ReplicaReport {
        variant: VariantId::new(variant).expect("good"),
        engine: EngineKind::Profiled,
        device: String::new(),
        state: ReplicaState::Ready,
        load: Load { slots: 4, active: 0, queued: 0, queue_max: 8, backlog: Tokens(0), ..Load::default() },
        memory: Bytes(1_000),
        context: Tokens(2_048),
        weights_sha256: None,
        layers: None,
        capabilities: Vec::new(),
        profile: Some(Profile {
            prompt: TokenRate::new(1_000.0).expect("good"),
            decode: TokenRate::new(100.0).expect("good"),
            overhead: Micros::from_millis(1),
            spread: Fraction::new(0.1).expect("good"),
            source: ProfileSource::WarmUp,
            samples: 3,
            pace: None,
            load: None,
        }),
    }
}

pub(crate) fn inventory(node: &NodeId) -> Inventory {
    Inventory {
        node: node.clone(),
        tier: Tier::Site,
        labels: Default::default(),
        machine: Machine::default(),
        costs: Costs::default(),
        addresses: Vec::new(),
        version: "test".to_owned(),
        binary_sha256: String::new(),
        survey: Survey::default(),
    }
}

impl Agent {
    pub(crate) async fn join(world: &World, token: &JoinToken, name: &str) -> Self {
        let _ = world;
        let clock = CertClock::new(0);
        let joined = shared_net::join::join(token, name, &clock).await.expect("joined");
        let local = (Ipv4Addr::LOCALHOST, 0).into();
        let endpoint = Endpoint::bind(local, &joined.identity, Admit::Members, &clock, &ResetSecret::random()).expect("a socket");
        let node = joined.identity.node().clone();
        Self { node, hub: joined.hub, identity: joined.identity, clock, endpoint, tasks: Tasks::new() }
    }

    pub(crate) async fn dial(&self, world: &World) -> Link {
        self.endpoint.connect(world.addresses().quic, &self.hub, shared::fleet::Transport::Quic).await.expect("connected")
    }

    pub(crate) fn hello(&self, instance: u64, replicas: Vec<ReplicaReport>) -> Hello {
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            node: self.node.clone(),
            instance: Instance(instance),
            plan_epoch_seen: PlanEpoch::default(),
            session_epoch_seen: SessionEpoch(0),
            replicas,
        }
    }

    /// Connects and says hello; answers pings from then on.
    pub(crate) async fn connect(&self, world: &World, hello: Hello) -> Session_ {
        let link = self.dial(world).await;
        let mut control = link.open().await.expect("a stream");
        let instance = hello.instance;
        control.writer.write(&Frame::Hello(hello)).await.expect("written");
        let answer = timeout(PATIENCE, control.reader.read()).await.expect("in time").expect("read");
        let Some(Frame::Welcome(welcome)) = answer else { panic!("{answer:?}") };
        let session = Session { epoch: welcome.session, instance };
        let (said, goodbye) = watch::channel(None);
        self.tasks.spawn("control", answer_pings(control, said));
        Session_ { link, welcome, session, goodbye }
    }

    /// Publishes birth, inventory and one report.
    pub(crate) async fn report(
        &self,
        world: &World,
        session: Session,
        replicas: Vec<ReplicaReport>,
    ) -> (Mqtt, mpsc::Receiver<MqttEvent>) {
        let (mqtt, mut events) = self.mqtt(world, vec![Topic::View(self.node.clone()).name()]);
        let event = timeout(PATIENCE, events.recv()).await.expect("in time");
        assert_eq!(event, Some(MqttEvent::Connected));
        self.publish(&mqtt, &Topic::Status(self.node.clone()), session, Status { online: true });
        self.publish(&mqtt, &Topic::Inventory(self.node.clone()), session, inventory(&self.node));
        let telemetry = Telemetry { replicas, ..Telemetry::of(self.node.clone()) };
        self.publish(&mqtt, &Topic::Telemetry(self.node.clone()), session, telemetry);
        (mqtt, events)
    }

    pub(crate) fn mqtt(&self, world: &World, subscriptions: Vec<String>) -> (Mqtt, mpsc::Receiver<MqttEvent>) {
        let settings = MqttSettings {
            address: world.addresses().broker.clone(),
            expected: self.hub.clone(),
            client_id: self.node.topic_level(),
            will: None,
            subscriptions,
        };
        shared_net::mqtt::start(settings, &self.identity, &self.clock, &self.tasks).expect("started")
    }

    pub(crate) fn publish(&self, mqtt: &Mqtt, topic: &Topic, session: Session, message: impl Serialize) {
        let payload = serde_json::to_vec(&Signed { session, message }).expect("JSON");
        // What a node is, is kept by the broker for a hub that comes later; how it is, is said again and again.
        let kept = matches!(topic, Topic::Status(_) | Topic::Inventory(_));
        let note = if kept { Note::state(topic.name(), payload) } else { Note::answer(topic.name(), payload) };
        mqtt.publish(note).expect("taken");
    }
}

async fn answer_pings(mut control: Stream, said: watch::Sender<Option<Goodbye>>) {
    while let Ok(Some(frame)) = control.reader.read().await {
        match frame {
            Frame::Ping(pulse) => {
                let pong = Frame::Pong(Pulse { number: pulse.number, ..Pulse::default() });
                if control.writer.write(&pong).await.is_err() {
                    return;
                }
            }
            Frame::Goodbye(goodbye) => drop(said.send(Some(goodbye))),
            _ => {}
        }
    }
}
