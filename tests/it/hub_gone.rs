//! The hub is killed with -9, under load.

use futures_util::future::join_all;
use scenarios::emulate::client::Question;
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use shared::ids::{NodeId, PlanEpoch};
use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};
use tests::{HEARTBEAT, Pace, SOON, World, profiled, service};

/// Enough rounds for the hub to be killed and be back among them.
const ROUNDS: u32 = 6;
const AT_ONCE: usize = 4;

/// How many nodes the hub calls online, and the highest plan epoch that any of them has.
fn seen_by_hub(world: &World) -> (usize, PlanEpoch) {
    let printed = world.fleet.hub().command(&["nodes", "--json"]).expect("its nodes");
    let rows: Vec<Value> = serde_json::from_str(&printed).expect("JSON");
    let online = rows.iter().filter(|row| row["state"] == "online").count();
    let epochs = rows.iter().flat_map(|row| row["plans"].as_array().into_iter().flatten());
    let epochs = epochs.filter_map(|plan| serde_json::from_value::<PlanEpoch>(plan["plan"]["epoch"].clone()).ok());
    (online, epochs.max().unwrap_or_default())
}

#[tokio::test(flavor = "multi_thread")]
async fn row_20_no_local_request_fails_and_all_nodes_are_back_within_a_heartbeat() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let fast = Pace { decode_per_s: 200, slots: 8, ..Pace::default() };
    let mut edges = Vec::new();
    for name in ["bay/edge-1", "bay/edge-2", "cape/edge-1"] {
        edges.push(world.agent(name, &profiled("v", fast)).await);
    }
    for edge in &edges {
        world.until_ready(edge, "s").await;
    }
    let before = until("plans for all", SOON, || async {
        let (online, epoch) = seen_by_hub(&world);
        if online == edges.len() && epoch > PlanEpoch::default() { Ok(epoch) } else { Err(format!("{online} online, {epoch}")) }
    });
    let (before, _) = before.await.expect("all are there");
    let local = Question::new("s", "still there?", 20).needing(json!({"residency": "node"}));
    for round in 0..ROUNDS {
        if round == 2 {
            world.fleet.hub_mut().kill();
        }
        let asks = edges.iter().flat_map(|edge| (0..AT_ONCE).map(|_| world.ask(edge, &local))).collect::<Vec<_>>();
        for reply in join_all(asks).await {
            assert!(reply.answered(), "round {round}: {:?}", reply.error);
        }
    }
    world.fleet.hub_mut().start().await.expect("it starts again");
    let begun = Instant::now();
    let back = until("all nodes back", SOON, || async {
        let (online, epoch) = seen_by_hub(&world);
        if online == edges.len() { Ok(begun.elapsed()) } else { Err(format!("{online} online, {epoch}")) }
    });
    let (took, _) = back.await.expect("back");
    // One heartbeat, and the time that the command takes to ask.
    assert!(took < HEARTBEAT + Duration::from_secs(1), "took {took:?}");
    until("higher plan epochs", SOON, || async {
        let (_, epoch) = seen_by_hub(&world);
        if epoch > before { Ok(()) } else { Err(format!("{epoch} after {before}")) }
    })
    .await
    .expect("they go on rising");
}

/// A folder with everything in it.
fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("listed") {
        let entry = entry.expect("listed");
        let target = to.join(entry.file_name());
        if entry.file_type().expect("a kind").is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn plan_epochs_rise_above_those_of_a_newer_database() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &profiled("v", Pace::default())).await;
    world.until_ready(&edge, "s").await;
    assert!(world.fleet.hub_mut().stop(), "it ends when asked");
    let (state, yesterday) = (world.fleet.hub().state(), world.folder().join("yesterday"));
    copy(&state, &yesterday);
    // Two more lives, of which yesterday's copy knows nothing.
    let mut newest = PlanEpoch::default();
    for _ in 0..2 {
        world.fleet.hub_mut().start().await.expect("starts");
        let risen = until("a newer plan at the node", SOON, || async {
            let epoch = applied(&world, &edge).await;
            if epoch > newest { Ok(epoch) } else { Err(epoch.to_string()) }
        });
        newest = risen.await.expect("plans come").0;
        world.fleet.hub_mut().kill();
    }
    fs::remove_dir_all(&state).expect("removed");
    copy(&yesterday, &state);
    world.fleet.hub_mut().start().await.expect("starts");
    let risen = until("a plan of the restored hub in force", SOON, || async {
        let epoch = applied(&world, &edge).await;
        if epoch > newest { Ok(epoch) } else { Err(format!("{epoch} after {newest}")) }
    });
    risen.await.expect("epochs go on rising");
}

/// The newest plan that a node holds.
async fn applied(world: &World, node: &NodeId) -> PlanEpoch {
    let status = world.status(node).await;
    let plans = status["plans"].as_array().cloned().unwrap_or_default();
    plans.iter().filter_map(|plan| serde_json::from_value(plan["epoch"].clone()).ok()).max().unwrap_or_default()
}
