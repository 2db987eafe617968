//! Joining, renewing, leaving.

use crate::agent::{Agent, replica};
use crate::world::{PATIENCE, World};
use shared::fleet::NodeState;
use shared::wire::Frame;
use shared::wire::frame::Goodbye;
use shared_net::join::JoinError;
use shared_net::link::Endpoint;
use shared_net::tls::CertClock;
use std::net::Ipv4Addr;
use tokio::time::timeout;

#[tokio::test(flavor = "multi_thread")]
async fn a_token_lets_one_node_in_and_no_more() {
    let mut world = World::start().await;
    let token = world.token("eu/site-7", 1).await;
    let agent = Agent::join(&world, &token, "node-1").await;
    assert_eq!(agent.node.as_str(), "eu/site-7/node-1");
    assert_eq!(agent.hub.as_str(), "cloud/hub");
    let row = world.until(&agent.node, "known", |_| true).await;
    assert_eq!(row.labels.get("made").map(String::as_str), Some("by-test"));
    let denied = shared_net::join::join(&token, "node-2", &CertClock::new(0)).await.expect_err("used");
    assert!(matches!(&denied, JoinError::Denied(why) if why.contains("cloud-hub token")), "{denied:?}");
    let mut foreign = token.clone();
    foreign.secret = "ab".repeat(32);
    let denied = shared_net::join::join(&foreign, "node-3", &CertClock::new(0)).await.expect_err("unknown");
    assert!(matches!(&denied, JoinError::Denied(why) if why.contains("does not know")), "{denied:?}");
    assert!((world.metric("tidegate_hub_joins_total{result=\"joined\"}").await - 1.0).abs() < f64::EPSILON);
    assert!((world.metric("tidegate_hub_joins_total{result=\"unknown_token\"}").await - 1.0).abs() < f64::EPSILON);
    world.stop_hub().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_certificate_there_is_nothing_but_joining() {
    let mut world = World::start().await;
    let token = world.token("eu/site-7", 2).await;
    let agent = Agent::join(&world, &token, "node-1").await;
    let clock = CertClock::new(0);
    let stranger = Endpoint::nameless((Ipv4Addr::LOCALHOST, 0).into(), &clock).expect("a socket");
    let link = stranger
        .connect_to_join(world.addresses().quic, &token.authority_sha256, shared::fleet::Transport::Quic)
        .await
        .expect("connected");
    let mut stream = link.open().await.expect("a stream");
    stream.writer.write(&Frame::Hello(agent.hello(1, Vec::new()))).await.expect("written");
    timeout(PATIENCE, link.closed()).await.expect("the hub closes the connection");
    let (mqtt, mut events) = agent.mqtt(&world, Vec::new());
    assert_eq!(timeout(PATIENCE, events.recv()).await.expect("in time"), Some(shared_net::mqtt::MqttEvent::Connected));
    drop(mqtt);
    world.stop_hub().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_comes_online_reports_and_can_be_drained() {
    let mut world = World::start().await;
    let token = world.token("eu/site-7", 1).await;
    let agent = Agent::join(&world, &token, "node-1").await;
    let session = agent.connect(&world, agent.hello(7, vec![replica("tiny")])).await;
    assert!(session.welcome.broker.starts_with("hub:"), "{}", session.welcome.broker);
    let (mqtt, _events) = agent.report(&world, session.session, vec![replica("tiny")]).await;
    world.until_state(&agent.node, NodeState::Online).await;
    world.until(&agent.node, "reported", |row| row.report_age.is_some() && row.inventory.is_some()).await;
    mqtt.publish(shared_net::mqtt::Note::answer(
        shared::wire::mqtt::Topic::Telemetry(agent.node.clone()).name(),
        br#"{"session": {"epoch": 1, "instance": 7}, "node": "eu/site-7/node-1", "cpu": -3}"#.to_vec(),
    ))
    .expect("taken");
    world.until(&agent.node, "at fault", |row| row.last_fault.is_some()).await;
    world.until_state(&agent.node, NodeState::Online).await;
    let order = serde_json::json!({"node": agent.node, "drain": true});
    assert_eq!(world.post("drain", &order).await.0, 200);
    world.until_state(&agent.node, NodeState::Draining).await;
    world.stop_hub().await;
    let goodbye = session.goodbye.borrow().clone();
    assert_eq!(goodbye, Some(Goodbye::Shutdown), "agents are told");
    world.start_hub().await;
    let row = world.until(&agent.node, "known", |_| true).await;
    assert!(row.draining, "an operator's wish survives a restart");
    world.stop_hub().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_is_renewed_and_a_revoked_node_is_gone() {
    let mut world = World::start().await;
    let token = world.token("eu/site-7", 2).await;
    let agent = Agent::join(&world, &token, "node-1").await;
    let other = Agent::join(&world, &token, "node-2").await;
    let mut session = agent.connect(&world, agent.hello(7, Vec::new())).await;
    let renewed = shared_net::join::renew(&session.link, &agent.node).await.expect("renewed");
    assert_ne!(renewed.identity.serial(), agent.identity.serial());
    assert_eq!(renewed.identity.node(), &agent.node);
    let (status, _) = world.post("revoke", &serde_json::json!({"node": agent.node})).await;
    assert_eq!(status, 200);
    timeout(PATIENCE, session.goodbye.wait_for(Option::is_some)).await.expect("in time").expect("told");
    assert_eq!(*session.goodbye.borrow(), Some(Goodbye::Revoked));
    timeout(PATIENCE, session.link.closed()).await.expect("closed");

    agent.endpoint.set_identity(&renewed.identity).expect("good");
    let link = agent.dial(&world).await;
    let mut control = link.open().await.expect("a stream");
    control.writer.write(&Frame::Hello(agent.hello(8, Vec::new()))).await.expect("written");
    let answer = timeout(PATIENCE, control.reader.read()).await.expect("in time");
    assert!(matches!(answer, Ok(Some(Frame::Goodbye(Goodbye::Revoked)))), "the renewed certificate is revoked too: {answer:?}");
    let (_mqtt, mut events) = agent.mqtt(&world, Vec::new());
    let refused = timeout(PATIENCE, events.recv()).await.expect("in time");
    assert!(matches!(refused, Some(shared_net::mqtt::MqttEvent::Disconnected { .. })), "{refused:?}");
    let again = other.connect(&world, other.hello(9, Vec::new())).await;
    assert!(!again.link.is_closed(), "nobody else is disturbed");
    let (status, answer) = world.post("revoke", &serde_json::json!({"node": "eu/site-7/nobody"})).await;
    assert_eq!(status, 404, "{answer}");
    world.stop_hub().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn epochs_go_on_rising_across_restarts_and_a_restored_copy() {
    let mut world = World::start().await;
    let token = world.token("eu/site-7", 1).await;
    world.stop_hub().await;
    let database = world.state().database();
    let copy = std::fs::read(&database).expect("a copy of yesterday");
    world.start_hub().await;
    let token = shared::wire::JoinToken { address: world.addresses().quic.to_string(), ..token };
    let agent = Agent::join(&world, &token, "node-1").await;
    let first = agent.connect(&world, agent.hello(7, Vec::new())).await;
    world.stop_hub().await;
    for leftover in ["hub.db-wal", "hub.db-shm"] {
        assert!(!world.folder.path().join(leftover).exists(), "{leftover} is left after a proper stop");
    }
    std::fs::write(&database, copy).expect("restored");
    world.start_hub().await;
    let mut hello = agent.hello(7, Vec::new());
    hello.session_epoch_seen = first.welcome.session;
    hello.plan_epoch_seen = shared::ids::PlanEpoch { incarnation: 40, sequence: 2 };
    let second = agent.connect(&world, hello).await;
    assert!(second.welcome.session > first.welcome.session, "{:?} then {:?}", first.welcome.session, second.welcome.session);
    world.until(&agent.node, "known again", |row| !row.revoked).await;
    world.stop_hub().await;
    let meta = world.state().read_meta().expect("read");
    assert!(meta.incarnation > 40, "{meta:?}");
}
