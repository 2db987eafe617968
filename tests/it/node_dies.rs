//! An agent is killed with -9.

use scenarios::emulate::client::Question;
use serde_json::json;
use std::time::Duration;
use tests::{Pace, SOON, World, profiled, service};

#[tokio::test(flavor = "multi_thread")]
async fn row_28_a_request_without_content_yet_is_answered_elsewhere() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    // So slow at the prompt that it is killed before the first token, but better than nothing for dispatch.
    let dying = world.agent("cloud/gpu-1", &profiled("v", Pace { prompt_per_s: 2, decode_per_s: 500, slots: 8 })).await;
    world.until_ready(&dying, "s").await;
    let hub = world.fleet.hub().name().clone();
    world.until_answered(&hub, &Question::new("s", "ready?", 1)).await;
    let (client, base) = (world.client.clone(), world.base(&hub));
    let asked =
        tokio::spawn(async move { client.ask(&base, &Question::new("s", "a longer question for a slow reader", 5)).await });
    scenarios::emulate::wait::until("the request at the slow node", SOON, || async {
        let active = world.active(&dying).await;
        if active == 1 { Ok(()) } else { Err(format!("{active} active")) }
    })
    .await
    .expect("it runs there");
    let other = world.agent("cloud/gpu-2", &profiled("v", Pace::default())).await;
    world.until_ready(&other, "s").await;
    world.fleet.agent_mut(&dying).expect("there").kill();
    let reply = asked.await.expect("no panic").expect("a reply");
    assert!(reply.answered(), "{:?}", reply.error);
    let served = reply.served.expect("told");
    assert_eq!((served.node, served.attempts), (Some(other), Some(2)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_restarted_five_times_quickly_stays_a_member() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let edge = world.edge("bay/edge-1", &profiled("v", Pace::default())).await;
    for _ in 0..5 {
        let agent = world.fleet.agent_mut(&edge).expect("there");
        agent.kill();
        agent.start().await.expect("starts again");
    }
    world.until_degraded(&edge, false).await;
    let hub = world.fleet.hub().name().clone();
    let through = Question::new("s", "there?", 2).needing(json!({"deadline_ms": Duration::from_secs(10).as_millis() as u64}));
    let reply = world.until_answered(&hub, &through).await;
    assert_eq!(reply.served.and_then(|served| served.node), Some(edge));
}
