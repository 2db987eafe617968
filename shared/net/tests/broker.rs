//! The embedded broker and the client of this crate, together: who gets in, what is delivered, what survives.
#![cfg(feature = "broker")]

#[expect(dead_code, reason = "this crate uses a part of it")]
mod fleet;

use fleet::{Fleet, node, soon, until};
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::{AsyncClient, MqttOptions};
use rumqttc::{TlsConfiguration, Transport};
use shared::ids::NodeId;
use shared::plan::Layer;
use shared::wire::mqtt::{PREFIX, Topic};
use shared_net::broker::{Admission, Broker, BrokerSettings};
use shared_net::host::Tasks;
use shared_net::mqtt::{Mqtt, MqttError, MqttEvent, MqttSettings, Note, start};
use shared_net::tls::{Identity, Role, client_config};
use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::mpsc::Receiver;

/// Serial numbers that are no longer good.
#[derive(Default)]
struct Revoked(Mutex<BTreeSet<String>>);

impl Admission for Revoked {
    fn admits(&self, _node: &NodeId, serial: &str) -> bool {
        !self.0.lock().expect("not poisoned").contains(serial)
    }
}

struct World {
    fleet: Fleet,
    broker: Broker,
    revoked: Arc<Revoked>,
    store: TempDir,
    tasks: Tasks,
}

struct Client {
    mqtt: Mqtt,
    events: Receiver<MqttEvent>,
    identity: Identity,
}

impl World {
    async fn new() -> Self {
        let (fleet, store, revoked) = (Fleet::new(), tempfile::tempdir().expect("folder"), Arc::new(Revoked::default()));
        let broker = start_broker(&fleet, &store, &revoked, fleet::local()).await;
        Self { fleet, broker, revoked, store, tasks: Tasks::new() }
    }

    fn settings(&self, client_id: &str, subscriptions: &[String]) -> MqttSettings {
        MqttSettings {
            address: self.broker.local_addr().to_string(),
            expected: node("hub/main"),
            client_id: client_id.to_owned(),
            will: None,
            subscriptions: subscriptions.to_vec(),
        }
    }

    fn start(&self, identity: &Identity, settings: MqttSettings, tasks: &Tasks) -> Client {
        let (mqtt, events) = start(settings, identity, &self.fleet.clock, tasks).expect("started");
        Client { mqtt, events, identity: identity.clone() }
    }

    /// A connected client of a member, by the member's own name.
    async fn connect(&self, name: &str, role: Role, subscriptions: &[String]) -> Client {
        let identity = self.fleet.member(name, role);
        let mut client = self.start(&identity, self.settings(&node(name).topic_level(), subscriptions), &self.tasks);
        client.expect_connected().await;
        client
    }

    async fn hub(&self) -> Client {
        self.connect("hub/main", Role::Hub, &[format!("{PREFIX}/nodes/+/+")]).await
    }
}

async fn start_broker(fleet: &Fleet, store: &TempDir, revoked: &Arc<Revoked>, listen: SocketAddr) -> Broker {
    let settings = BrokerSettings { listen, store: store.path().to_owned(), hub: node("hub/main") };
    let identity = fleet.member("hub/main", Role::Hub);
    let admission: Arc<dyn Admission> = revoked.clone();
    Broker::start(settings, &identity, &fleet.clock, admission).await.expect("a broker")
}

impl Client {
    async fn next(&mut self) -> MqttEvent {
        soon("an MQTT event", self.events.recv()).await.expect("the task runs")
    }

    async fn expect_connected(&mut self) {
        assert_eq!(self.next().await, MqttEvent::Connected);
    }

    async fn expect_message(&mut self) -> (String, Vec<u8>) {
        loop {
            match self.next().await {
                MqttEvent::Message { topic, payload } => return (topic, payload.to_vec()),
                MqttEvent::Connected => {}
                MqttEvent::Disconnected { why } => panic!("disconnected: {why}"),
            }
        }
    }

    async fn expect_refusal(&mut self) -> String {
        match self.next().await {
            MqttEvent::Disconnected { why } => why,
            other => panic!("{other:?}"),
        }
    }
}

fn status(name: &str) -> String {
    Topic::Status(node(name)).name()
}

#[tokio::test]
async fn telemetry_goes_up_and_plans_come_down() {
    let world = World::new().await;
    let mut hub = world.hub().await;
    let (plan, view) = (Topic::Plan(node("site/a"), Layer::Offload).name(), Topic::View(node("site/a")).name());
    let mut a = world.connect("site/a", Role::Node, &[plan.clone(), view.clone()]).await;
    a.mqtt.publish(Note::state(status("site/a"), b"here".to_vec())).expect("taken");
    a.mqtt.publish(Note::reading(Topic::Telemetry(node("site/a")).name(), b"warm".to_vec())).expect("taken");
    // Readings and what must arrive go separate ways through the broker, so that either may come first.
    let both = BTreeSet::from([hub.expect_message().await, hub.expect_message().await]);
    let telemetry = Topic::Telemetry(node("site/a")).name();
    assert_eq!(both, BTreeSet::from([(status("site/a"), b"here".to_vec()), (telemetry, b"warm".to_vec())]));
    hub.mqtt.publish(Note::state(plan.clone(), b"do".to_vec())).expect("taken");
    hub.mqtt.publish(Note::reading(view.clone(), b"see".to_vec())).expect("taken");
    let both = BTreeSet::from([a.expect_message().await, a.expect_message().await]);
    assert_eq!(both, BTreeSet::from([(plan, b"do".to_vec()), (view, b"see".to_vec())]));
    let huge = Note::state(status("site/a"), vec![0; 600 * 1024]);
    assert!(matches!(a.mqtt.publish(huge), Err(MqttError::TooLong(_))));
    world.tasks.stop(fleet::DEADLINE).await.expect("stopped");
    world.broker.stop(fleet::DEADLINE).await.expect("stopped");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn strangers_and_impostors_do_not_get_in() {
    let world = World::new().await;
    let mut hub = world.hub().await;
    let a = world.fleet.member("site/a", Role::Node);
    // A good certificate under another's name.
    let mut impostor = world.start(&a, world.settings("site.b", &[]), &world.tasks);
    assert!(impostor.expect_refusal().await.contains("ClientIdentifierNotValid"));
    // Another fleet's certificate, the same name.
    let other = Fleet::new();
    let settings = world.settings("site.a", &[]);
    let (_, mut events) = start(settings, &other.member("site/a", Role::Node), &other.clock, &world.tasks).expect("started");
    assert!(matches!(soon("a refusal", events.recv()).await, Some(MqttEvent::Disconnected { .. })));
    // A revoked one.
    world.revoked.0.lock().expect("not poisoned").insert(a.serial().to_owned());
    let mut revoked = world.start(&a, world.settings("site.a", &[]), &world.tasks);
    assert!(revoked.expect_refusal().await.contains("NotAuthorized"));
    // No certificate at all, and no TLS at all.
    assert!(soon("no certificate", no_certificate(&world)).await.is_err());
    assert!(soon("TLS 1.2", old_tls(&world)).await.is_err_and(|error| error.to_string().contains("ProtocolVersion")));
    let mut plain = TcpStream::connect(world.broker.local_addr()).expect("connected");
    plain.write_all(b"\x10\x0f\x00\x04MQTT\x05\x02\x00\x05\x00\x00\x02aa").expect("sent");
    plain.set_read_timeout(Some(fleet::DEADLINE)).expect("set");
    let mut answer = Vec::new();
    drop(plain.read_to_end(&mut answer));
    assert_ne!(answer.first(), Some(&0x20), "CONNACK in plain text");
    // An answer that the broker is another member than expected is not accepted either.
    let settings = MqttSettings { expected: node("hub/other"), ..world.settings("site.c", &[]) };
    let mut careful = world.start(&world.fleet.member("site/c", Role::Node), settings, &world.tasks);
    assert!(careful.expect_refusal().await.contains("want `hub/other`"));
    until("all are counted", || world.broker.refused() >= 6).await;
    // Meanwhile the others are served.
    let good = world.connect("site/d", Role::Node, &[]).await;
    good.mqtt.publish(Note::state(status("site/d"), b"here".to_vec())).expect("taken");
    assert_eq!(hub.expect_message().await.0, status("site/d"));
}

async fn no_certificate(world: &World) -> Result<(), rumqttc::v5::ConnectionError> {
    let tls = shared_net::tls::joining_config(&world.fleet.sha256(), &world.fleet.clock, b"").expect("config");
    raw_client(world, "site.a", tls).1.poll().await.map(drop)
}

async fn old_tls(world: &World) -> Result<(), rumqttc::v5::ConnectionError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider).with_protocol_versions(&[&rustls::version::TLS12]);
    let tls = builder.expect("versions").with_root_certificates(rustls::RootCertStore::empty()).with_no_client_auth();
    raw_client(world, "site.a", tls).1.poll().await.map(drop)
}

/// A client that restores nothing and asks for whatever it is told to.
fn raw_client(world: &World, id: &str, tls: rustls::ClientConfig) -> (AsyncClient, rumqttc::v5::EventLoop) {
    let address = world.broker.local_addr();
    let mut options = MqttOptions::new(id, address.ip().to_string(), address.port());
    options.set_transport(Transport::tls_with_config(TlsConfiguration::Rustls(Arc::new(tls))));
    AsyncClient::new(options, 64)
}

/// Topics and payloads.
type Received = Mutex<Vec<(String, Vec<u8>)>>;

/// Polls a raw client in the background; what it receives is noted.
fn drive(mut event_loop: rumqttc::v5::EventLoop, tasks: &Tasks) -> Arc<Received> {
    let received = Arc::new(Mutex::new(Vec::new()));
    let noting = Arc::clone(&received);
    let stop = tasks.cancelled();
    tasks.spawn("raw client", async move {
        while let Some(Ok(event)) = stop.run_until_cancelled(event_loop.poll()).await {
            if let rumqttc::v5::Event::Incoming(rumqttc::v5::Incoming::Publish(publish)) = event {
                let topic = String::from_utf8_lossy(&publish.topic).into_owned();
                noting.lock().expect("not poisoned").push((topic, publish.payload.to_vec()));
            }
        }
    });
    received
}

#[tokio::test]
async fn what_is_forbidden_is_not_delivered() {
    let world = World::new().await;
    let mut hub = world.hub().await;
    let spy = world.fleet.member("site/spy", Role::Node);
    let tls = client_config(&spy, &world.fleet.clock, &node("hub/main"), b"").expect("config");
    let (raw, event_loop) = raw_client(&world, "site.spy", tls);
    let received = drive(event_loop, &world.tasks);
    let own_view = Topic::View(node("site/spy")).name();
    for filter in [
        "#",
        "tidegate/#",
        "tidegate/v1/nodes/+/+",
        "tidegate/v1/nodes/site.a/status",
        "tidegate/v1/plans/+/offload",
        "tidegate/v1/plans/site.spy/+",
        "tidegate/v1/plans/#",
        "tidegate/v1/views/+",
        "$share/g/tidegate/v1/views/site.a",
        "$SYS/#",
    ] {
        raw.subscribe(filter, QoS::AtLeastOnce).await.expect("asked");
    }
    raw.subscribe(own_view.clone(), QoS::AtLeastOnce).await.expect("asked");
    // It publishes as others, as the hub, to itself, and outside of everything; then once where it may.
    for topic in [
        status("site/a"),
        Topic::Plan(node("site/a"), Layer::Offload).name(),
        Topic::View(node("site/spy")).name(),
        Topic::Plan(node("site/spy"), Layer::Offload).name(),
        "tidegate/v1/nodes/site.spy/else".to_owned(),
        "elsewhere".to_owned(),
    ] {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
            raw.publish(topic.clone(), qos, true, "forged").await.expect("asked");
        }
    }
    raw.publish(status("site/spy"), QoS::AtLeastOnce, false, "honest").await.expect("asked");
    assert_eq!(hub.expect_message().await, (status("site/spy"), b"honest".to_vec()), "the first that arrives");
    // The hub and a node say things that the spy must not hear, and then one that it may.
    let a = world.connect("site/a", Role::Node, &[]).await;
    a.mqtt.publish(Note::state(status("site/a"), b"secret".to_vec())).expect("taken");
    hub.mqtt.publish(Note::state(Topic::Plan(node("site/a"), Layer::Offload).name(), b"secret".to_vec())).expect("taken");
    hub.mqtt.publish(Note::state(Topic::View(node("site/a")).name(), b"secret".to_vec())).expect("taken");
    assert_eq!(hub.expect_message().await.0, status("site/a"));
    hub.mqtt.publish(Note::answer(own_view.clone(), b"yours".to_vec())).expect("taken");
    until("its own view", || !received.lock().expect("not poisoned").is_empty()).await;
    assert_eq!(*received.lock().expect("not poisoned"), [(own_view, b"yours".to_vec())]);
    assert_eq!(world.broker.forbidden(), 10 + 12, "subscriptions and publications");
    // Nothing forged was kept either.
    let mut late = world.connect("site/b", Role::Node, &[Topic::View(node("site/b")).name()]).await;
    hub.mqtt.publish(Note::reading(Topic::View(node("site/b")).name(), b"first".to_vec())).expect("taken");
    assert_eq!(late.expect_message().await.1, b"first");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn silent_and_garbled_sockets_disturb_nobody() {
    let world = World::new().await;
    let mut hub = world.hub().await;
    let address = world.broker.local_addr();
    let silent: Vec<TcpStream> = (0..150).map(|_| TcpStream::connect(address).expect("connected")).collect();
    for number in 0..200_u8 {
        let mut socket = TcpStream::connect(address).expect("connected");
        let bytes: Vec<u8> = (0..64).map(|i: u8| i.wrapping_mul(number) ^ number).collect();
        // Whether the broker reads it or has already hung up is the same to us.
        drop(socket.write_all(&bytes));
    }
    let a = world.connect("site/a", Role::Node, &[]).await;
    a.mqtt.publish(Note::state(status("site/a"), b"here".to_vec())).expect("taken");
    assert_eq!(hub.expect_message().await.0, status("site/a"));
    drop(silent);
}

#[tokio::test]
async fn retained_messages_survive_a_restart_and_a_stop_keeps_no_last_wills() {
    let world = World::new().await;
    let hub = world.hub().await;
    let will = Note::state(status("site/a"), b"gone".to_vec());
    let settings = MqttSettings { will: Some(will), ..world.settings("site.a", &[]) };
    let mut a = world.start(&world.fleet.member("site/a", Role::Node), settings, &world.tasks);
    a.expect_connected().await;
    a.mqtt.publish(Note::state(status("site/a"), b"here".to_vec())).expect("taken");
    let (mut hub, address) = (hub, world.broker.local_addr());
    assert_eq!(hub.expect_message().await.1, b"here");
    world.broker.stop(fleet::DEADLINE).await.expect("stopped");
    assert!(matches!(hub.next().await, MqttEvent::Disconnected { .. }));
    // The port is free at once, the store can be opened again, and both clients find back by themselves.
    let broker = start_broker(&world.fleet, &world.store, &world.revoked, address).await;
    loop {
        match hub.next().await {
            MqttEvent::Connected => break,
            MqttEvent::Disconnected { .. } => {}
            MqttEvent::Message { .. } => panic!("a message before the connection"),
        }
    }
    assert_eq!(hub.expect_message().await, (status("site/a"), b"here".to_vec()), "kept, and not overwritten by the last will");
    broker.stop(fleet::DEADLINE).await.expect("stopped");
}

#[tokio::test]
async fn a_vanished_node_leaves_its_last_will_and_a_polite_one_does_not() {
    let world = World::new().await;
    let mut hub = world.hub().await;
    for (name, polite) in [("site/polite", true), ("site/rude", false)] {
        let identity = world.fleet.member(name, Role::Node);
        let will = Note::state(status(name), b"gone".to_vec());
        let settings = MqttSettings { will: Some(will), ..world.settings(&node(name).topic_level(), &[]) };
        let life = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("runtime");
        let (clock, tasks) = (world.fleet.clock.clone(), Tasks::new());
        let started = {
            let tasks = tasks.clone();
            life.spawn(async move { start(settings, &identity, &clock, &tasks).expect("started") })
        };
        let (mqtt, mut events) = started.await.expect("task");
        assert_eq!(soon("connecting", events.recv()).await, Some(MqttEvent::Connected));
        mqtt.publish(Note::state(status(name), b"here".to_vec())).expect("taken");
        assert_eq!(hub.expect_message().await, (status(name), b"here".to_vec()));
        if polite {
            mqtt.publish(Note::state(status(name), b"goodbye".to_vec())).expect("taken");
            tasks.stop(fleet::DEADLINE).await.expect("stopped");
            assert_eq!(hub.expect_message().await, (status(name), b"goodbye".to_vec()));
        }
        // Rude: the whole runtime goes, sockets and all, without a word.
        soon("the end", tokio::task::spawn_blocking(move || life.shutdown_timeout(Duration::from_millis(10))))
            .await
            .expect("over");
        drop(tasks);
    }
    assert_eq!(hub.expect_message().await, (status("site/rude"), b"gone".to_vec()), "the polite one's will was not published");
}

#[tokio::test]
async fn a_second_connection_of_a_node_takes_over() {
    let world = World::new().await;
    let view = Topic::View(node("site/a")).name();
    let hub = world.hub().await;
    let (identity, settings) = (world.fleet.member("site/a", Role::Node), world.settings("site.a", std::slice::from_ref(&view)));
    let (first_tasks, second_tasks) = (Tasks::new(), Tasks::new());
    let mut first = world.start(&identity, settings.clone(), &first_tasks);
    first.expect_connected().await;
    let mut second = world.start(&identity, settings.clone(), &second_tasks);
    second.expect_connected().await;
    first.expect_refusal().await;
    first_tasks.stop(fleet::DEADLINE).await.expect("stopped");
    // The first may have come back for a moment, so the second may have to as well.
    until("the second is back", || second.mqtt.is_connected()).await;
    hub.mqtt.publish(Note::state(view.clone(), b"once".to_vec())).expect("taken");
    soon("the view", async { while !matches!(second.next().await, MqttEvent::Message { .. }) {} }).await;
    // With a word of its own, another part of the same node connects beside it.
    let beside = MqttSettings { client_id: "site.a~probe".to_owned(), ..settings };
    let mut beside = world.start(&identity, beside, &second_tasks);
    beside.expect_connected().await;
    assert_eq!(beside.expect_message().await, (view, b"once".to_vec()));
    assert!(second.mqtt.is_connected());
    second_tasks.stop(fleet::DEADLINE).await.expect("stopped");
}

#[tokio::test]
async fn a_revoked_node_is_cut_off_and_stays_out() {
    let world = World::new().await;
    let mut a = world.connect("site/a", Role::Node, &[]).await;
    let b = world.connect("site/b", Role::Node, &[]).await;
    world.revoked.0.lock().expect("not poisoned").insert(a.identity.serial().to_owned());
    assert_eq!(world.broker.disconnect(&node("site/a")), 1);
    a.expect_refusal().await;
    let why = a.expect_refusal().await;
    assert!(why.contains("NotAuthorized"), "{why}");
    assert!(b.mqtt.is_connected());
    until("only b is left", || world.broker.clients() == 1).await;
}

#[tokio::test]
async fn a_changed_last_will_is_the_one_that_is_left() {
    let world = World::new().await;
    let mut hub = world.hub().await;
    let mut a = world.connect("site/a", Role::Node, &[]).await;
    a.mqtt.set_will(Some(Note::state(status("site/a"), b"session 2 gone".to_vec())));
    a.expect_connected().await;
    world.broker.disconnect(&node("site/a"));
    assert_eq!(hub.expect_message().await, (status("site/a"), b"session 2 gone".to_vec()));
}

#[tokio::test]
async fn a_slow_reader_keeps_its_connection_and_loses_only_readings() {
    let world = World::new().await;
    let hub = world.hub().await;
    let view = Topic::View(node("site/a")).name();
    let a = world.connect("site/a", Role::Node, std::slice::from_ref(&view)).await;
    let mut sent = 0;
    soon("readings are dropped", async {
        while a.mqtt.dropped() == 0 {
            match hub.mqtt.publish(Note::reading(view.clone(), vec![0; 16])) {
                Ok(()) => sent += 1,
                Err(MqttError::Busy) => tokio::time::sleep(Duration::from_millis(1)).await,
                Err(error) => panic!("{error}"),
            }
        }
    })
    .await;
    assert!(sent > 3_000 && a.mqtt.is_connected(), "{sent}");
}
