//! The official client, against both kinds of server.

use scenarios::emulate::client::Question;
use scenarios::emulate::process::Program;
use shared::ids::NodeId;
use std::path::Path;
use std::time::Duration;
use tests::{World, llm, service};

/// Some thirty small requests to a real model on one thread.
const SCRIPT_WITHIN: Duration = Duration::from_secs(180);
const VARIANT: &str = "smollm2-135m-q8";

async fn world() -> (World, NodeId) {
    let mut world = World::new(vec![service("assistant", &[(VARIANT, 30)])], "").await;
    let edge = world.agent("bay/edge-1", &llm(VARIANT, 2)).await;
    world.until_ready(&edge, "assistant").await;
    (world, edge)
}

fn script(world: &World, base: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = root.join(".venv/bin/python");
    assert!(python.is_file(), "no {}: `make test` makes it", python.display());
    let log = world.fleet.logs().join("openai-client.log");
    let script = Program::new("the OpenAI client", python, log).arg(root.join("tests/python/openai_client.py"));
    let printed = script
        .args(["--base-url", &format!("{base}/v1"), "--model", "assistant"])
        .run(SCRIPT_WITHIN)
        .unwrap_or_else(|error| panic!("{error}"));
    println!("{printed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_is_content_with_an_agent() {
    let (world, edge) = world().await;
    script(&world, &world.base(&edge));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_is_content_with_the_hub() {
    let (world, _) = world().await;
    let hub = world.fleet.hub().name().clone();
    world.until_answered(&hub, &Question::new("assistant", "ready?", 1)).await;
    script(&world, &world.base(&hub));
}
