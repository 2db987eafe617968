//! What a fleet needs of its broker, with the embedded one and with Mosquitto: that members come and go, and that a certificate
//! gives a voice and ears in its own name only.

use scenarios::emulate::client::Question;
use scenarios::emulate::fleet::Broker;
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use shared::ids::{NodeId, PlanEpoch};
use shared::plan::Layer;
use shared::wire::mqtt::{PREFIX, Topic};
use std::time::Duration;
use tests::{BrokerClient, Pace, SOON, World, node_row, profiled, service};

/// Messages that [`forged`] makes.
const LIES: usize = 7;

async fn until_state(world: &World, node: &NodeId, state: &str) -> Duration {
    let told = until(format!("{node} {state}"), SOON, || async {
        let row = node_row(world, node);
        if row["state"] == state { Ok(()) } else { Err(row["state"].to_string()) }
    });
    told.await.unwrap_or_else(|late| panic!("{late}")).1
}

/// The newest plan that a node has in force.
async fn plan_epoch(world: &World, node: &NodeId) -> PlanEpoch {
    let status = world.status(node).await;
    let plans = status["plans"].as_array().cloned().unwrap_or_default();
    plans.iter().filter_map(|plan| serde_json::from_value(plan["epoch"].clone()).ok()).max().unwrap_or_default()
}

async fn members_come_and_go(broker: Broker) {
    let mut world = World::with(broker, vec![service("s", &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &profiled("v", Pace::default())).await;
    world.until_ready(&edge, "s").await;
    let hub = world.fleet.hub().name().clone();
    world.until_answered(&hub, &Question::new("s", "through the hub", 2)).await;

    world.fleet.agent_mut(&edge).expect("there").kill();
    println!("its death was known after {:?}", until_state(&world, &edge, "offline").await);
    let reply = world.ask(&hub, &Question::new("s", "anybody?", 2)).await;
    assert!(reply.error.is_some_and(|error| error.code.is_some()), "nobody is left, and the error is typed");
    world.fleet.agent_mut(&edge).expect("there").start().await.expect("starts again");
    until_state(&world, &edge, "online").await;
    world.until_answered(&hub, &Question::new("s", "back?", 2)).await;

    let before = plan_epoch(&world, &edge).await;
    world.fleet.hub_mut().kill();
    assert!(world.ask(&edge, &Question::new("s", "alone", 2)).await.answered(), "what is local goes on");
    world.fleet.hub_mut().start().await.expect("starts again");
    until_state(&world, &edge, "online").await;
    let risen = until("a plan of the hub's next life in force", SOON, || async {
        let now = plan_epoch(&world, &edge).await;
        if now > before { Ok(()) } else { Err(format!("{now} after {before}")) }
    });
    risen.await.unwrap_or_else(|late| panic!("{late}"));
    world.until_answered(&hub, &Question::new("s", "and through the hub", 2)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go_with_the_embedded_broker() {
    members_come_and_go(Broker::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn members_come_and_go_with_mosquitto() {
    members_come_and_go(Broker::Mosquitto).await;
}

/// Everything that a node says of itself, and all that it is told, forged: well formed, of the victim's own present session.
fn forged(world: &World, victim: &NodeId, mark: &str) -> [(Topic, Vec<u8>); LIES] {
    let row = node_row(world, victim);
    let session = json!({"epoch": row["session"], "instance": row["instance"]});
    let own = |more: Value| {
        let mut whole = json!({"session": session, "mark": mark, "node": victim, "tier": "site"});
        if let (Some(whole), Value::Object(more)) = (whole.as_object_mut(), more) {
            whole.extend(more);
        }
        whole.to_string().into_bytes()
    };
    let acked = json!({"layer": "offload", "epoch": row["plans"][0]["plan"]["epoch"], "state": "applied"});
    [
        (Topic::Status(victim.clone()), own(json!({"online": false}))),
        (Topic::Inventory(victim.clone()), own(json!({"labels": {"forged": "yes"}}))),
        (Topic::Telemetry(victim.clone()), own(json!({"load_1m": -1.0}))),
        (Topic::PlanAck(victim.clone()), own(acked)),
        (Topic::Records(victim.clone()), own(json!({"records": []}))),
        (Topic::Plan(victim.clone(), Layer::Offload), own(json!({}))),
        (Topic::View(victim.clone()), own(json!({}))),
    ]
}

async fn a_certificate_speaks_and_hears_for_itself_only(broker: Broker) {
    let mut world = World::with(broker, vec![service("s", &[("v", 50)])], "").await;
    let own = world.agent("bay/edge-1", &profiled("v", Pace::default())).await;
    let victim = world.agent("bay/edge-2", &profiled("v", Pace::default())).await;
    for node in [&own, &victim] {
        world.until_ready(node, "s").await;
        until_state(&world, node, "online").await;
        let planned = until(format!("a plan for {node}"), SOON, || async {
            let now = plan_epoch(&world, node).await;
            if now > PlanEpoch::default() { Ok(()) } else { Err(now.to_string()) }
        });
        planned.await.unwrap_or_else(|late| panic!("{late}"));
    }
    let lies = forged(&world, &victim, &mark(&victim));
    if broker == Broker::Mosquitto {
        // It knows a client by its certificate alone, so each certificate has one connection: the story's. The broker goes on.
        world.fleet.agent_mut(&own).expect("there").kill();
        assert!(world.fleet.hub_mut().stop(), "it ends when asked");
    }
    let mut observer = BrokerClient::as_hub(&world, &[format!("{PREFIX}/#")]).await;
    let (plan, view) = (Topic::Plan(victim.clone(), Layer::Offload).name(), Topic::View(victim.clone()).name());
    let wild = [format!("{PREFIX}/#"), format!("{PREFIX}/views/+"), format!("{PREFIX}/plans/{}/+", victim.topic_level())];
    let filters: Vec<String> = wild.into_iter().chain([plan.clone(), view.clone(), Topic::View(own.clone()).name()]).collect();
    let mut intruder = BrokerClient::as_node(&world, &own, &filters).await;

    // A word in its own name after the lies, on the same connection: what was delivered of them came before it.
    let last = mark(&own);
    for (topic, payload) in lies {
        intruder.publish(topic.name(), payload, true);
    }
    intruder.publish(Topic::PlanAck(own.clone()).name(), last.clone().into_bytes(), false);
    intruder.acknowledged(LIES + 1).await;
    loop {
        let (topic, payload) = observer.next("the intruder's own word").await;
        let text = String::from_utf8_lossy(&payload);
        assert!(!text.contains(&mark(&victim)), "a lie was delivered on {topic}");
        if text == last {
            break;
        }
    }
    // The victim's plan and view and then one for the intruder, on the same connection.
    for (topic, text) in [(plan, mark(&victim)), (view.clone(), mark(&victim)), (Topic::View(own.clone()).name(), last.clone())] {
        observer.publish(topic, text.into_bytes(), false);
    }
    observer.acknowledged(3).await;
    loop {
        let (topic, payload) = intruder.next("what is meant for the intruder").await;
        assert!(Topic::parse(&topic).is_some_and(|topic| topic.node() == &own), "overheard {topic}");
        if payload.as_ref() == last.as_bytes() {
            break;
        }
    }
    if broker == Broker::Mosquitto {
        drop((observer, intruder));
        world.fleet.hub_mut().start().await.expect("starts again");
    }
    until_state(&world, &victim, "online").await;
    let row = node_row(&world, &victim);
    assert_eq!(row["faults"], json!({}), "the hub took nothing of it: {row}");
    assert!(row["inventory"]["labels"].get("forged").is_none(), "{row}");
    world.until_answered(&victim, &Question::new("s", "well?", 2)).await;
}

/// A text about a node that nobody else writes.
fn mark(node: &NodeId) -> String {
    format!("a mark about {node}")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_speaks_for_itself_only_with_the_embedded_broker() {
    a_certificate_speaks_and_hears_for_itself_only(Broker::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_certificate_speaks_for_itself_only_with_mosquitto() {
    a_certificate_speaks_and_hears_for_itself_only(Broker::Mosquitto).await;
}
