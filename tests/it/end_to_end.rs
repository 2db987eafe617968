//! The main job, with either broker: here, a peer, the cloud, through the hub, cut off, and back; and why.

use scenarios::emulate::client::{Question, Reply};
use scenarios::emulate::fleet::Broker;
use serde_json::{Value, json};
use shared::ids::NodeId;
use tests::{Pace, World, profiled, service};

const FLOOR: f64 = 0.8;

fn plain() -> Question {
    Question::new("s", "a question", 4)
}

fn demanding() -> Question {
    plain().needing(json!({"min_quality": FLOOR, "deadline_ms": 5_000}))
}

fn served_by(reply: &Reply) -> Option<(NodeId, String)> {
    let served = reply.served.clone()?;
    Some((served.node?, served.hop?))
}

async fn story(broker: Broker) {
    let mut world = World::with(broker, vec![service("s", &[("small", 50), ("large", 90)])], "").await;
    let fast = Pace { decode_per_s: 500, slots: 8, ..Pace::default() };
    let edge = world.edge("bay/edge-1", &profiled("small", fast)).await;
    let peer = world.edge("bay/edge-2", &profiled("small", fast)).await;
    let cloud = world.agent("cloud/gpu-1", &profiled("large", fast)).await;
    let hub = world.fleet.hub().name().clone();
    for (node, model) in [(&edge, "small"), (&peer, "small"), (&cloud, "large")] {
        world.until_ready(node, model).await;
    }

    let reply = world.until_answered(&edge, &demanding()).await;
    assert_eq!(served_by(&reply), Some((cloud.clone(), "relay".to_owned())), "only the cloud is good enough");
    explained(&world, &edge, &reply);
    let reply = world.ask(&edge, &plain()).await;
    assert_eq!(served_by(&reply), Some((edge.clone(), "local".to_owned())), "what can be done here is done here");
    assert_eq!(world.until_answered(&hub, &demanding()).await.served.and_then(|served| served.node), Some(cloud.clone()));

    world.cable(&edge).cut();
    world.until_degraded(&edge, true).await;
    let reply = world.ask(&edge, &plain()).await;
    assert_eq!(served_by(&reply), Some((edge.clone(), "local".to_owned())));
    assert!(reply.served.is_some_and(|served| served.degraded), "and it says that it is alone");
    assert!(!world.ask(&edge, &demanding()).await.answered(), "nobody in reach is good enough");
    let reply = world.ask(&peer, &demanding()).await;
    assert_eq!(reply.served.and_then(|served| served.node), Some(cloud.clone()), "the neighbour is not cut");

    world.cable(&edge).restore();
    world.until_degraded(&edge, false).await;
    let reply = world.until_answered(&edge, &demanding()).await;
    assert_eq!(served_by(&reply), Some((cloud, "relay".to_owned())));
    assert!(world.fleet.stop().is_empty(), "every process ends when asked");
}

/// Headers, the answer's own member and `explain` tell the same: chosen, rejected with reasons, predicted against actual.
fn explained(world: &World, at: &NodeId, reply: &Reply) {
    let header = |name: &str| reply.headers.get(name).unwrap_or_else(|| panic!("no header {name}: {:?}", reply.headers));
    let (node, _) = served_by(reply).expect("told");
    assert_eq!(header("x-tidegate-node"), node.as_str());
    assert!(header("x-tidegate-rejected").contains("quality="), "{:?}", reply.headers);
    assert!(header("x-tidegate-predicted-first-token-ms").parse::<f64>().is_ok_and(|ms| ms > 0.0));
    let served = reply.served.clone().expect("told");
    assert!(served.actual.first_token_ms.is_some() && served.predicted.is_some());
    let id = reply.request.as_deref().expect("an id");
    let agent = world.fleet.agent(at).expect("there");
    let printed = agent.command(&["explain", id, "--json"]).expect("explained");
    let record: Value = serde_json::from_str(&printed).expect("JSON");
    let told = record.to_string();
    assert_eq!(record["served_by"][0], node.as_str(), "{told}");
    let decision = &record["attempts"][0]["decision"];
    assert!(decision["rejected"].as_array().is_some_and(|rejected| !rejected.is_empty()), "{told}");
    assert!(decision["verdict"]["assign"]["estimate"]["first_token"].as_u64().is_some_and(|micros| micros > 0), "{told}");
    assert!(record["actual"]["first_token"].as_u64().is_some_and(|micros| micros > 0), "{told}");
    let for_people = agent.command(&["explain", id]).expect("explained");
    assert!(for_people.contains(node.as_str()) && for_people.contains("quality"), "{for_people}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_main_job_with_the_embedded_broker() {
    story(Broker::Embedded).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_main_job_with_mosquitto() {
    story(Broker::Mosquitto).await;
}
