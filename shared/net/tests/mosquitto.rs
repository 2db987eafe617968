//! The client of this crate with Mosquitto in place of the embedded broker: what is delivered, and what is not.
//!
//! Mosquitto must be installed (Debian: `apt-get install mosquitto`); without it this test fails, since an untested way out is
//! none.

#[expect(dead_code, reason = "this crate uses a part of it")]
mod fleet;

use fleet::{Fleet, node, soon, until};
use shared::plan::Layer;
use shared::wire::mqtt::{PREFIX, Topic};
use shared_net::host::Tasks;
use shared_net::mqtt::{Mqtt, MqttEvent, MqttSettings, Note, start};
use shared_net::tls::{Identity, Role};
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use tokio::sync::mpsc::Receiver;

/// A running Mosquitto; killed when it is dropped.
struct Mosquitto(Child);

impl Drop for Mosquitto {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Each certificate's common name is user name and client id, and the rights are those of the embedded broker.
const RIGHTS: &str = "user hub.main
topic readwrite tidegate/v1/#
pattern write tidegate/v1/nodes/%u/status
pattern write tidegate/v1/nodes/%u/inventory
pattern write tidegate/v1/nodes/%u/telemetry
pattern write tidegate/v1/nodes/%u/plan-ack
pattern read tidegate/v1/plans/%u/+
pattern read tidegate/v1/views/%u
";

fn run(folder: &Path, port: u16, identity: &Identity) -> Mosquitto {
    identity.save(folder).expect("saved");
    let pem = std::fs::read_to_string(folder.join("identity.pem")).expect("read");
    let blocks: Vec<&str> = pem.split_inclusive("-----END CERTIFICATE-----\n").collect();
    let (key, own) = blocks[0].split_at(blocks[0].find("-----BEGIN CERTIFICATE-----").expect("a certificate"));
    for (name, text) in [("key.pem", key), ("own.pem", own), ("authority.pem", blocks[1]), ("rights", RIGHTS)] {
        std::fs::write(folder.join(name), text).expect("written");
    }
    let path = |name: &str| folder.join(name).display().to_string();
    let settings = format!(
        "listener {port} 127.0.0.1\ncafile {}\ncertfile {}\nkeyfile {}\nacl_file {}\nrequire_certificate true\n\
         use_identity_as_username true\nuse_username_as_clientid true\nallow_anonymous false\npersistence false\n\
         max_packet_size 540672\nuser root\n",
        path("authority.pem"),
        path("own.pem"),
        path("key.pem"),
        path("rights"),
    );
    std::fs::write(folder.join("mosquitto.conf"), settings).expect("written");
    let found = ["/usr/sbin/mosquitto", "/usr/local/sbin/mosquitto"].into_iter().find(|path| Path::new(path).exists());
    let mut command = Command::new(found.unwrap_or("mosquitto"));
    command.arg("-c").arg(folder.join("mosquitto.conf")).stdout(Stdio::null()).stderr(Stdio::null());
    Mosquitto(command.spawn().expect("mosquitto is installed"))
}

fn connect(
    fleet: &Fleet,
    port: u16,
    name: &str,
    role: Role,
    subscriptions: &[String],
    tasks: &Tasks,
) -> (Mqtt, Receiver<MqttEvent>) {
    let settings = MqttSettings {
        address: format!("127.0.0.1:{port}"),
        expected: node("hub/main"),
        client_id: node(name).topic_level(),
        will: Some(Note::state(Topic::Status(node(name)).name(), b"gone".to_vec())),
        subscriptions: subscriptions.to_vec(),
    };
    start(settings, &fleet.member(name, role), &fleet.clock, tasks).expect("started")
}

async fn message(events: &mut Receiver<MqttEvent>) -> (String, Vec<u8>) {
    loop {
        if let MqttEvent::Message { topic, payload } = soon("a message", events.recv()).await.expect("runs") {
            return (topic, payload.to_vec());
        }
    }
}

#[tokio::test]
async fn nodes_speak_and_hear_for_themselves_only() {
    let (fleet, tasks, folder) = (Fleet::new(), Tasks::new(), tempfile::tempdir().expect("folder"));
    let port = TcpListener::bind(fleet::local()).and_then(|free| free.local_addr()).expect("a free port").port();
    let _mosquitto = run(folder.path(), port, &fleet.member("hub/main", Role::Hub));
    until("mosquitto listens", || TcpStream::connect(("127.0.0.1", port)).is_ok()).await;

    let (hub, mut to_hub) = connect(&fleet, port, "hub/main", Role::Hub, &[format!("{PREFIX}/nodes/+/+")], &tasks);
    let own_plan = Topic::Plan(node("site/a"), Layer::Offload).name();
    let foreign = [Topic::Plan(node("site/b"), Layer::Offload).name(), format!("{PREFIX}/#"), own_plan.clone()];
    let (a, mut to_a) = connect(&fleet, port, "site/a", Role::Node, &foreign, &tasks);
    until("both are connected", || hub.is_connected() && a.is_connected()).await;

    a.publish(Note::answer(Topic::Status(node("site/b")).name(), b"forged".to_vec())).expect("taken");
    a.publish(Note::state(Topic::Status(node("site/a")).name(), b"here".to_vec())).expect("taken");
    assert_eq!(message(&mut to_hub).await, (Topic::Status(node("site/a")).name(), b"here".to_vec()));
    hub.publish(Note::state(Topic::Plan(node("site/b"), Layer::Offload).name(), b"not yours".to_vec())).expect("taken");
    hub.publish(Note::state(own_plan.clone(), b"yours".to_vec())).expect("taken");
    assert_eq!(message(&mut to_a).await, (own_plan, b"yours".to_vec()));
    // A polite end leaves no last will; another client sees what was kept.
    tasks.stop(fleet::DEADLINE).await.expect("stopped");
    let tasks = Tasks::new();
    let (_hub, mut to_hub) = connect(&fleet, port, "hub/main", Role::Hub, &[Topic::Status(node("site/a")).name()], &tasks);
    assert_eq!(message(&mut to_hub).await.1, b"here");
    tasks.stop(fleet::DEADLINE).await.expect("stopped");
}
