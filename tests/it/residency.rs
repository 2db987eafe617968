//! Text that must not leave a site does not, whatever fails.

use scenarios::emulate::client::Question;
use serde_json::json;
use tests::{Canary, Pace, World, files_with, profiled, service};

#[tokio::test(flavor = "multi_thread")]
async fn no_canary_leaves_the_site_while_the_engine_is_dead_and_the_uplink_flaps() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "[log]\nfilter = \"trace\"\n").await;
    // The edge has no engine at all; the cloud could serve, and must not.
    let edge = world.edge("bay/edge-1", "[log]\nfilter = \"trace\"\n").await;
    let cloud = world.agent("cloud/gpu-1", &profiled("v", Pace::default())).await;
    world.until_ready(&cloud, "s").await;
    world.until_answered(&edge, &Question::new("s", "ready?", 1)).await;
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
    world.cable(&edge).restore();
    world.until_degraded(&edge, false).await;
    // A text that may travel arrives, so the search below would find one that did.
    world.until_answered(&edge, &Question::new("s", "free to go", 1)).await;
    assert!(world.fleet.stop().is_empty(), "all end when asked");
    for canary in &canaries {
        let found = files_with(world.folder(), canary);
        assert!(found.is_empty(), "{} is in {found:?}", canary.text());
    }
}
