//! Who may publish and hear what, on the embedded broker and on Mosquitto with our files. Delivery is tested, not what the
//! broker answers: Mosquitto acknowledges subscriptions that it never serves.

use crate::agent::{Agent, replica};
use crate::world::{PATIENCE, World};
use cloud_hub::clock::UnixTime;
use cloud_hub::io::mosquitto::{self, Settings};
use shared::fleet::NodeState;
use shared::ids::NodeId;
use shared::plan::Layer;
use shared::wire::mqtt::{Status, Topic};
use shared_net::mqtt::{MqttEvent, Note};
use shared_net::tls::CertClock;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use tokio::sync::mpsc;
use tokio::time::timeout;

/// Mosquitto as a child process.
struct Mosquitto(Child);

impl Drop for Mosquitto {
    fn drop(&mut self) {
        // Fails only when it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A port that was free a moment ago: Mosquitto cannot be told to take any.
fn free_port() -> SocketAddr {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|socket| socket.local_addr()).expect("a free port")
}

async fn with_mosquitto() -> (World, Mosquitto) {
    let world = World::prepare();
    let state = world.state();
    let settings = Settings { listen: free_port(), user: Some("root".to_owned()) };
    let dir = world.folder.path().join("mosquitto");
    let hub = state.read_meta().expect("made").hub;
    let now = UnixTime::now(&CertClock::new(0));
    mosquitto::write(&dir, &state.authority().expect("made"), (&hub, &[]), &settings, now).expect("written");
    let path =
        std::env::var_os("PATH").map(|path| std::env::join_paths(std::env::split_paths(&path).chain(["/usr/sbin".into()])));
    let broker = Command::new("mosquitto")
        .env("PATH", path.expect("a PATH").expect("paths"))
        .arg("-c")
        .arg(dir.join("mosquitto.conf"))
        .stdin(Stdio::null())
        .spawn()
        .expect("Mosquitto is part of what this is tested with: install the package `mosquitto`");
    (world.start_with(settings.listen.to_string()).await, Mosquitto(broker))
}

/// Waits for the next view that a node gets; the hub publishes one each second.
async fn hear_view(heard: &mut mpsc::Receiver<MqttEvent>, node: &NodeId) {
    let view = timeout(PATIENCE, async {
        loop {
            if let Some(MqttEvent::Message { topic, .. }) = heard.recv().await {
                return topic;
            }
        }
    });
    assert_eq!(view.await.expect("a view in time"), Topic::View(node.clone()).name());
}

/// A node is seen by the hub through the broker, and hears what is for it; another node can neither speak nor listen for it.
async fn nodes_have_their_own_topics_only(world: &World) {
    let token = world.token("eu/site-7", 2).await;
    let victim = Agent::join(world, &token, "victim").await;
    let thief = Agent::join(world, &token, "thief").await;
    world.put_service("assistant", "tiny").await;
    let session = victim.connect(world, victim.hello(1, vec![replica("tiny")])).await;
    let (_victim_mqtt, mut heard) = victim.report(world, session.session, vec![replica("tiny")]).await;
    world.until(&victim.node, "reported", |row| row.inventory.is_some() && row.report_age.is_some()).await;
    world.until_state(&victim.node, NodeState::Online).await;
    // The way is open for those who may.
    hear_view(&mut heard, &victim.node).await;

    let its_own = thief.connect(world, thief.hello(2, Vec::new())).await;
    let wanted = [Topic::View(victim.node.clone()).name(), Topic::Plan(victim.node.clone(), Layer::Offload).name()];
    for filter in wanted.into_iter().chain(["tidegate/v1/#".to_owned(), "tidegate/v1/views/+".to_owned(), "#".to_owned()]) {
        let (_listening, mut events) = thief.mqtt(world, vec![filter.clone()]);
        // Connected and subscribed, or turned away.
        timeout(PATIENCE, events.recv()).await.expect("in time");
        while heard.try_recv().is_ok() {}
        // Two views of the victim have come and gone since then; plans are kept, and came at once if at all.
        hear_view(&mut heard, &victim.node).await;
        hear_view(&mut heard, &victim.node).await;
        while let Ok(event) = events.try_recv() {
            if let MqttEvent::Message { topic, .. } = event {
                let of = Topic::parse(&topic).map(|topic| topic.node().clone());
                assert_eq!(of.as_ref(), Some(&thief.node), "`{filter}` gave the thief `{topic}`");
            }
        }
    }
    let (speaking, mut events) = thief.mqtt(world, Vec::new());
    assert_eq!(timeout(PATIENCE, events.recv()).await.expect("in time"), Some(MqttEvent::Connected));
    let lie = serde_json::to_vec(&shared::wire::mqtt::Signed { session: session.session, message: Status { online: false } });
    let lie = Note::answer(Topic::Status(victim.node.clone()).name(), lie.expect("JSON"));
    // A broker may end the connection for it, so it may not be taken; that is as good.
    drop(speaking.publish(lie));
    thief.publish(&speaking, &Topic::Status(thief.node.clone()), its_own.session, Status { online: true });
    thief.publish(&speaking, &Topic::Inventory(thief.node.clone()), its_own.session, crate::agent::inventory(&thief.node));
    // Whatever came before the inventory has been seen when the inventory has.
    world.until(&thief.node, "reported", |row| row.inventory.is_some()).await;
    let rows = world.nodes().await;
    let row = rows.iter().find(|row| row.node == victim.node).expect("known");
    assert_eq!(row.state, NodeState::Online, "the thief's word about the victim counts for nothing");
}

#[tokio::test(flavor = "multi_thread")]
async fn on_the_embedded_broker() {
    let mut world = World::start().await;
    nodes_have_their_own_topics_only(&world).await;
    world.stop_hub().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn on_mosquitto() {
    let (mut world, _broker) = with_mosquitto().await;
    nodes_have_their_own_topics_only(&world).await;
    world.stop_hub().await;
}
