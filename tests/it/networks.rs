//! Networks that treat datagrams badly: drop all of them, drop some, forget where they came from. Requests go on.

use scenarios::emulate::client::{Client, Question, Reply};
use scenarios::emulate::relay::Way;
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use shared::ids::NodeId;
use std::time::{Duration, Instant};
use tests::{Pace, SOON, World, agent_metric, node_row, profiled, service};

/// So many of a thousand datagrams are lost on a bad path, each way.
const LOST_PER_MILLE: u64 = 200;

fn served_by(reply: &Reply) -> Option<(NodeId, String)> {
    let served = reply.served.clone()?;
    Some((served.node?, served.hop?))
}

async fn until_over(world: &World, node: &NodeId, transport: &str) -> Value {
    let told = until(format!("the uplink of {node} over {transport}"), SOON, || async {
        let status = world.status(node).await;
        let uplink = &status["uplink"];
        if uplink["state"] == "up" && uplink["transport"] == transport { Ok(status) } else { Err(uplink.to_string()) }
    });
    told.await.unwrap_or_else(|late| panic!("{late}")).0
}

#[tokio::test(flavor = "multi_thread")]
async fn udp_blocked() {
    let services = vec![service("s", &[("small", 50), ("large", 90)]), service("t", &[("rare", 50)])];
    let mut world = World::new(services, "").await;
    let fast = Pace { decode_per_s: 500, slots: 8, ..Pace::default() };
    // Joining goes over TCP, too.
    let edge = world.edge_without_udp("bay/edge-1", &profiled("small", fast)).await;
    let peer = world.edge_without_udp("bay/edge-2", &profiled("rare", fast)).await;
    let cloud = world.agent("cloud/gpu-1", &profiled("large", fast)).await;
    let hub = world.fleet.hub().name().clone();
    for (node, model) in [(&edge, "small"), (&peer, "rare"), (&cloud, "large")] {
        world.until_ready(node, model).await;
    }
    let status = until_over(&world, &edge, "tcp").await;
    assert!(status["uplink"]["avoids_quic"].is_string(), "{status}");
    until_over(&world, &cloud, "quic").await;

    let local = world.until_answered(&edge, &Question::new("small", "here", 4)).await;
    assert_eq!(served_by(&local), Some((edge.clone(), "local".to_owned())));
    let demanding = Question::new("s", "a question", 4).needing(json!({"min_quality": 0.8}));
    let relayed = world.until_answered(&edge, &demanding).await;
    assert_eq!(served_by(&relayed), Some((cloud, "relay".to_owned())));
    let direct = world.until_answered(&edge, &Question::new("t", "a neighbour's", 4).needing(json!({"residency": "site"}))).await;
    assert_eq!(served_by(&direct), Some((peer.clone(), "direct".to_owned())));
    let id = direct.request.as_deref().expect("an id");
    let told = world.fleet.agent(&edge).expect("there").command(&["explain", id]).expect("explained");
    assert!(told.contains("over TCP"), "{told}");
    let from_hub = world.until_answered(&hub, &Question::new("t", "from the hub", 4)).await;
    assert_eq!(from_hub.served.and_then(|served| served.node), Some(peer.clone()));

    let row = until("the hub to say so", SOON, || async {
        let row = node_row(&world, &edge);
        if row["transport"] == "tcp" { Ok(row) } else { Err(row.to_string()) }
    });
    row.await.unwrap_or_else(|late| panic!("{late}"));
    let status = world.status(&edge).await;
    let line = status["peers"].as_array().and_then(|peers| peers.iter().find(|line| line["node"] == peer.as_str()).cloned());
    assert_eq!(line.map(|line| line["transport"].clone()), Some(json!("tcp")), "{status}");
    let over_tcp = agent_metric(&world, &edge, "tidegate_agent_uplink_up{transport=\"tcp\"}").await;
    assert!((over_tcp - 1.0).abs() < f64::EPSILON, "{over_tcp}");
    assert!(world.fleet.stop().is_empty(), "every process ends when asked");
}

#[tokio::test(flavor = "multi_thread")]
async fn udp_lossy() {
    let mut world = World::new(vec![service("s", &[("large", 90)])], "").await;
    let edge = world.edge("bay/edge-1", "").await;
    let cloud = world.agent("cloud/gpu-1", &profiled("large", Pace::default())).await;
    let question = Question::new("s", "a question", 20);
    world.until_answered(&edge, &question).await;
    until_over(&world, &edge, "quic").await;
    let session = world.status(&edge).await["uplink"]["session"].clone();
    // A stream that begins on the good path and lasts longer than the move: it stays where it is, and is not cut.
    let lasting = Question::new("s", "a long one", 1_500);
    let long = world.ask(&edge, &lasting);
    let seed = 7;
    println!("seed {seed}");
    let moved = async {
        world.cable(&edge).lose_datagrams(LOST_PER_MILLE, seed);
        let begun = Instant::now();
        let status = until_over(&world, &edge, "tcp").await;
        println!("moved after {:?}", begun.elapsed());
        for _ in 0..5 {
            let reply = world.ask(&edge, &question).await;
            assert_eq!(served_by(&reply), Some((cloud.clone(), "relay".to_owned())), "{:?}", reply.error);
        }
        status
    };
    let (long, status) = tokio::join!(long, moved);
    assert!(long.answered(), "{:?}", long.error);
    let uplink = &status["uplink"];
    assert!(uplink["avoids_quic"].as_str().is_some_and(|why| why.contains("losses")), "{uplink}");
    assert_ne!(uplink["session"], session);
    assert!(uplink["demotions"].as_u64().is_some_and(|count| count >= 1), "{uplink}");
}

/// What passes between two changes of the port at the least: some tokens, each in a datagram of its own.
const BYTES_BETWEEN: u64 = 4_000;

/// When the port changes next.
#[derive(Clone, Copy)]
enum Next {
    /// As soon as so much of the answer has come.
    Bytes(u64),
    After(Duration),
}

impl Next {
    async fn comes(self, world: &World, edge: &NodeId) {
        let wanted = match self {
            Self::After(time) => return tokio::time::sleep(time).await,
            Self::Bytes(bytes) => bytes,
        };
        let begun = world.cable(edge).passed(Way::Down).bytes;
        let passed = until("some tokens", SOON, || async {
            let bytes = world.cable(edge).passed(Way::Down).bytes - begun;
            if bytes >= wanted { Ok(()) } else { Err(format!("{bytes} bytes")) }
        });
        passed.await.unwrap_or_else(|late| panic!("{late}"));
    }
}

/// A relayed stream of so many tokens over a cable that changes its port so many times meanwhile.
async fn rebinding(decode_per_s: u32, tokens: u32, times: u32, next: Next) {
    let mut world = World::new(vec![service("s", &[("large", 90)])], "").await;
    let edge = world.edge("bay/edge-1", "").await;
    let cloud = world.agent("cloud/gpu-1", &profiled("large", Pace { decode_per_s, ..Pace::default() })).await;
    world.until_answered(&edge, &Question::new("s", "ready?", 1)).await;
    let before = until_over(&world, &edge, "quic").await;
    let patient = Client::patient(Duration::from_secs(300)).expect("a client");
    let base = world.base(&edge);
    let question = Question::new("s", "a long one", tokens);
    let rebound = async {
        for number in 1..=times {
            next.comes(&world, &edge).await;
            world.cable(&edge).rebind();
            println!("rebound for the {number}. time");
        }
    };
    let (reply, ()) = tokio::join!(patient.ask(&base, &question), rebound);
    let reply = reply.expect("a reply");
    assert!(reply.answered(), "{:?}", reply.error);
    assert_eq!(reply.tokens, u64::from(tokens), "not one token is lost");
    assert_eq!(served_by(&reply), Some((cloud, "relay".to_owned())));
    assert_eq!(reply.served.and_then(|served| served.attempts), Some(1), "at one go");
    let after = world.status(&edge).await;
    assert_eq!(after["uplink"]["session"], before["uplink"]["session"], "the connection is the same: {}", after["uplink"]);
    assert_eq!(after["uplink"]["transport"], "quic");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_survives_ports_that_change() {
    rebinding(30, 150, 3, Next::Bytes(BYTES_BETWEEN)).await;
}

#[tokio::test(flavor = "multi_thread")]
#[ignore = "three minutes long: run by hand"]
async fn a_stream_of_three_minutes_survives_ports_that_change_each_minute() {
    rebinding(10, 1_900, 3, Next::After(Duration::from_secs(60))).await;
}
