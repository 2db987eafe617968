//! Text that must not leave a site does not, whatever fails.

use scenarios::emulate::client::Question;
use serde_json::json;
use tests::{Canary, Recorder, World, files_with, hub_metric, service};

/// Streams that the hub opened towards an executor.
const RELAYED: &str = "tidegate_hub_relay_streams_total";

#[tokio::test(flavor = "multi_thread")]
async fn row_30_no_canary_leaves_the_site_while_the_engine_is_dead_and_the_uplink_flaps() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "[log]\nfilter = \"trace\"\n").await;
    // The edge's engine is dead; the cloud could serve, and must not. Its engine keeps all that it is sent.
    let dead = "[log]\nfilter = \"trace\"\n[[engines]]\nengine = \"upstream\"\nvariant = \"v\"\nurl = \"http://127.0.0.1:9/v1\"\n\
                model = \"dead\"\nslots = 1\ncontext = 2048\nrates = { prompt_per_s = 1000.0, decode_per_s = 1000.0 }\n";
    let edge = world.edge("bay/edge-1", dead).await;
    let engine = Recorder::start().await;
    let cloud = world.agent("cloud/gpu-1", &engine.engine("v")).await;
    world.until_ready(&cloud, "s").await;
    let free = Canary::fresh();
    world.until_answered(&edge, &Question::new("s", free.text(), 1)).await;
    assert!(engine.heard(free.text()), "what may travel is found where it arrives, so what may not would be found too");
    let relayed = hub_metric(&world, RELAYED).await;
    assert!(relayed >= 1.0, "it went through the hub");
    let mut canaries = Vec::new();
    for round in 0..8 {
        if round % 2 == 0 {
            world.cable(&edge).restore()
        } else {
            world.cable(&edge).cut()
        }
        for residency in ["site", "node"] {
            let canary = Canary::fresh();
            let needs = json!({"residency": residency, "deadline_ms": 2_000});
            let reply = world.ask(&edge, &Question::new("s", canary.text(), 4).needing(needs)).await;
            let error = reply.error.unwrap_or_else(|| panic!("round {round}, {residency}: answered"));
            assert!(error.code.is_some(), "round {round}, {residency}: no typed refusal: {error:?}");
            canaries.push(canary);
        }
        let canary = Canary::fresh();
        let needs = json!({"residency": "site"});
        let hub = world.fleet.hub().name().clone();
        let reply = world.ask(&hub, &Question::new("s", canary.text(), 4).needing(needs)).await;
        assert!(reply.error.is_some(), "a hub stands outside every site");
        canaries.push(canary);
    }
    assert_eq!(hub_metric(&world, RELAYED).await, relayed, "none of them passed the hub");
    world.cable(&edge).restore();
    world.until_degraded(&edge, false).await;
    world.until_answered(&edge, &Question::new("s", "free to go", 1)).await;
    assert!(world.fleet.stop().is_empty(), "all end when asked");
    for canary in &canaries {
        let found = files_with(world.folder(), canary);
        assert!(found.is_empty(), "{} is in {found:?}", canary.text());
        assert!(!engine.heard(canary.text()), "{} reached the cloud", canary.text());
    }
}
