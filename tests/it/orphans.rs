//! Executions that nobody waits for any more.

use scenarios::emulate::client::Question;
use scenarios::emulate::wait::until;
use shared::ids::NodeId;
use std::time::{Duration, Instant};
use tests::{Pace, SOON, World, profiled, service};

/// From the issue.
const CANCELLED_WITHIN: Duration = Duration::from_secs(2);

/// A long answer for a client of `at`, which runs at `executor` when this returns.
async fn long_answer(world: &World, at: &NodeId, executor: &NodeId) {
    let (client, base) = (world.client.clone(), world.base(at));
    // Ends with the connection that is about to break; the answer is nobody's business.
    tokio::spawn(async move { client.ask(&base, &Question::new("s", "go on", 2_000)).await.map(drop) });
    let runs = until("the request at its executor", SOON, || async {
        let active = world.active(executor).await;
        if active == 1 { Ok(()) } else { Err(format!("{active} active")) }
    });
    runs.await.expect("runs");
}

async fn until_free(world: &World, executor: &NodeId) -> Duration {
    let begun = Instant::now();
    let free = until("a free slot", SOON, || async {
        let active = world.active(executor).await;
        if active == 0 { Ok(begun.elapsed()) } else { Err(format!("{active} active")) }
    });
    free.await.expect("freed").0
}

/// A slow executor in the cloud, an ingress without an engine, and a hub, all of which know each other.
async fn world() -> (World, NodeId, NodeId, NodeId) {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let slow = Pace { decode_per_s: 20, slots: 2, ..Pace::default() };
    let cloud = world.agent("cloud/gpu-1", &profiled("v", slow)).await;
    let edge = world.edge("bay/edge-1", "").await;
    let hub = world.fleet.hub().name().clone();
    world.until_ready(&cloud, "s").await;
    for at in [&hub, &edge] {
        world.until_answered(at, &Question::new("s", "ready?", 1)).await;
    }
    (world, hub, edge, cloud)
}

#[tokio::test(flavor = "multi_thread")]
async fn row_14_a_dead_ingress_leaves_no_execution_behind() {
    let (mut world, _, edge, cloud) = world().await;
    long_answer(&world, &edge, &cloud).await;
    world.fleet.agent_mut(&edge).expect("there").kill();
    let took = until_free(&world, &cloud).await;
    assert!(took < CANCELLED_WITHIN, "{took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn row_14_a_dead_hub_leaves_no_execution_behind() {
    let (mut world, hub, _, cloud) = world().await;
    long_answer(&world, &hub, &cloud).await;
    world.fleet.hub_mut().kill();
    let took = until_free(&world, &cloud).await;
    assert!(took < CANCELLED_WITHIN, "of the hub's own: {took:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn row_14_a_dead_hub_leaves_no_relayed_execution_behind() {
    let (mut world, _, edge, cloud) = world().await;
    long_answer(&world, &edge, &cloud).await;
    world.fleet.hub_mut().kill();
    let took = until_free(&world, &cloud).await;
    assert!(took < CANCELLED_WITHIN, "{took:?}");
}
