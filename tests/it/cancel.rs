//! Clients that go away.

use futures_util::StreamExt;
use scenarios::emulate::client::Question;
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use shared::ids::NodeId;
use std::time::{Duration, Instant};
use tests::{Pace, World, profiled, service};

/// From the issue.
const FREE_WITHIN: Duration = Duration::from_millis(500);

async fn open_stream(world: &World, at: &NodeId, body: Value) -> impl futures_util::Stream<Item = usize> + use<> {
    let url = format!("{}/v1/chat/completions", world.base(at));
    let response = world.client.http().post(url).json(&body).send().await.expect("sent");
    assert_eq!(response.status(), 200);
    response.bytes_stream().map(|bytes| bytes.map_or(0, |bytes| bytes.len()))
}

#[tokio::test(flavor = "multi_thread")]
async fn row_23_a_client_that_leaves_frees_its_slot_here_and_across_a_hop() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let slow = Pace { decode_per_s: 20, slots: 1, ..Pace::default() };
    let cloud = world.agent("cloud/gpu-1", &profiled("v", slow)).await;
    let hub = world.fleet.hub().name().clone();
    world.until_ready(&cloud, "s").await;
    world.until_answered(&hub, &Question::new("s", "ready?", 1)).await;
    for at in [&cloud, &hub] {
        let long = json!({"model": "s", "stream": true, "max_tokens": 1_000, "messages": [{"role": "user", "content": "go on"}]});
        let mut stream = Box::pin(open_stream(&world, at, long).await);
        stream.next().await.expect("it begins");
        assert_eq!(world.active(&cloud).await, 1);
        drop(stream);
        let left = Instant::now();
        let freed = until("a free slot", Duration::from_secs(10), || async {
            let now = world.active(&cloud).await;
            if now == 0 { Ok(left.elapsed()) } else { Err(format!("{now} active")) }
        });
        let (took, _) = freed.await.expect("freed");
        assert!(took < FREE_WITHIN, "asked at {at}: {took:?}");
    }
}
