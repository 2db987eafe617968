//! An edge that starts with no hub in reach.

use scenarios::emulate::client::Question;
use scenarios::emulate::wait::until;
use std::time::{Duration, Instant};
use tests::{Canary, Pace, SOON, World, files_with, profiled, service};

/// From the issue: local answers within 5 s of the model being loaded. A profiled engine loads at once.
const ANSWERS_WITHIN: Duration = Duration::from_secs(5);

#[tokio::test(flavor = "multi_thread")]
async fn row_12_an_agent_that_boots_without_its_hub_answers_and_says_so() {
    // A name that is found on disk when the agent has learnt it.
    let name = Canary::fresh();
    let mut world = World::new(vec![service(name.text(), &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &profiled("v", Pace::default())).await;
    world.until_ready(&edge, name.text()).await;
    let state = world.fleet.agent(&edge).expect("there").folder().join("state");
    let kept = until("the service on the agent's disk", SOON, || async {
        let kept = files_with(&state, &name);
        if kept.contains(&state.join("agent.json")) { Ok(()) } else { Err(format!("only in {kept:?}")) }
    });
    kept.await.expect("kept");
    world.fleet.hub_mut().kill();
    let agent = world.fleet.agent_mut(&edge).expect("there");
    agent.kill();
    agent.start().await.expect("starts without a hub");
    let begun = Instant::now();
    let reply = world.until_answered(&edge, &Question::new(name.text(), "anybody there?", 3)).await;
    assert!(begun.elapsed() < ANSWERS_WITHIN, "took {:?}", begun.elapsed());
    assert_eq!(reply.served.map(|served| (served.node, served.degraded)), Some((Some(edge), true)));
}
