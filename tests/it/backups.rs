//! A hub that is lost and put back from a backup: who it was, above what its nodes have seen.

use scenarios::emulate::client::Question;
use scenarios::emulate::wait::until;
use std::fs;
use tests::{Pace, SOON, World, node_row, profiled, service};

#[tokio::test(flavor = "multi_thread")]
async fn a_restored_hub_continues_above_what_its_nodes_have_seen() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let early = world.agent("bay/edge-1", &profiled("v", Pace::default())).await;
    world.until_ready(&early, "s").await;
    // While it runs.
    let backup = world.folder().join("hub.backup");
    world.fleet.hub().command(&["backup", &backup.to_string_lossy()]).expect("backed up");
    // What the backup does not know: another node, and two lives of the hub.
    let late = world.agent("bay/edge-2", &profiled("v", Pace::default())).await;
    for _ in 0..2 {
        world.fleet.hub_mut().stop();
        world.fleet.hub_mut().start().await.expect("starts");
    }
    let epoch = |world: &World, node| {
        let row = node_row(world, node);
        (row["plans"][0]["plan"]["epoch"]["incarnation"].as_u64(), row["session"].as_u64())
    };
    let in_force = until("a plan of the third life", SOON, || async {
        match epoch(&world, &early) {
            (Some(incarnation), Some(session)) => Ok((incarnation, session)),
            other => Err(format!("{other:?}")),
        }
    });
    let (seen, _) = in_force.await.unwrap_or_else(|late| panic!("{late}"));

    world.fleet.hub_mut().kill();
    let state = world.fleet.hub().state();
    fs::rename(&state, world.folder().join("lost")).expect("lost");
    let told = world.fleet.hub().command(&["restore", &backup.to_string_lossy()]).expect("restored");
    assert!(told.contains("revoke") && told.contains("Join tokens are void"), "{told}");
    world.fleet.hub_mut().start().await.expect("starts");

    let above = until("plans above those that were seen", SOON, || async {
        match epoch(&world, &early) {
            (Some(incarnation), Some(session)) if incarnation > seen.0 && session > seen.1 => Ok(()),
            other => Err(format!("{other:?}, want above {seen:?}")),
        }
    });
    above.await.unwrap_or_else(|late| panic!("{late}"));
    // The node that joined after the backup is known by its certificate, and all of them serve.
    let known = until("the later node", SOON, || async {
        let printed = world.fleet.hub().command(&["nodes", "--json"]).expect("listed");
        let rows: Vec<serde_json::Value> = serde_json::from_str(&printed).expect("JSON");
        let online = |row: &&serde_json::Value| row["node"] == late.as_str() && row["state"] == "online";
        if rows.iter().any(|row| online(&row)) { Ok(()) } else { Err(printed) }
    });
    known.await.unwrap_or_else(|late| panic!("{late}"));
    let hub = world.fleet.hub().name().clone();
    world.until_answered(&hub, &Question::new("s", "does the tide still come?", 2)).await;
}
