//! The official client, against both kinds of server.

use scenarios::emulate::client::Question;
use scenarios::emulate::process::Program;
use serde_json::{Value, json};
use shared::ids::NodeId;
use std::path::Path;
use std::time::Duration;
use tests::{Canary, Pace, Recorder, World, files_with, llm, profiled, service};

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
    script_with(world, base, &["--model", "assistant"]);
}

fn script_with(world: &World, base: &str, arguments: &[&str]) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let python = root.join(".venv/bin/python");
    assert!(python.is_file(), "no {}: `make test` makes it", python.display());
    let log = world.fleet.logs().join("openai-client.log");
    let script = Program::new("the OpenAI client", python, log).arg(root.join("tests/python/openai_client.py"));
    let printed = script
        .args(["--base-url", &format!("{base}/v1")])
        .args(arguments)
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

/// Tools, schemas, pictures and vectors go to the variant that has them: here through the hub, over QUIC. The one at the edge lacks them.
#[tokio::test(flavor = "multi_thread")]
async fn the_official_client_uses_what_only_a_variant_far_away_can_do() {
    let mut world = World::new(vec![service("assistant", &[("plain", 50), ("able", 50)])], "").await;
    let edge = world.edge("bay/edge-1", &profiled("plain", Pace::default())).await;
    let engine = Recorder::start().await;
    let able = ["tools", "json_schema", "vision", "embeddings"];
    let cloud = world.agent("cloud/gpu-1", &engine.engine_with("able", &able)).await;
    world.until_ready(&edge, "plain").await;
    world.until_answered(&edge, &Question::new("able", "ready?", 1)).await;
    script_with(&world, &world.base(&edge), &["--model", "assistant", "--lacking", "plain"]);
    assert!(engine.heard("iVBORw0KGgo"), "the picture arrived");
    let canary = Canary::fresh();
    let vectors = |residency: &str| json!({"model": "able", "input": canary.text(), "tidegate": {"residency": residency}});
    let ask =
        |residency| world.client.http().post(format!("{}/v1/embeddings", world.base(&edge))).json(&vectors(residency)).send();
    let refused = ask("site").await.expect("an answer");
    assert!(!refused.status().is_success() && !engine.heard(canary.text()), "vectors keep to their residency like text");
    let answer: Value = ask("anywhere").await.expect("an answer").json().await.expect("JSON");
    assert_eq!((&answer["tidegate"]["node"], &answer["usage"]["prompt_tokens"]), (&json!(cloud), &json!(5)), "{answer}");
    assert!(engine.heard(canary.text()), "the text arrived");
    let found = files_with(world.folder(), &canary);
    assert!(found.is_empty(), "a text for vectors is in {found:?}");
    let site = Question::new("assistant", "x", 1).with("response_format", json!({"type": "json_object"}));
    let refused = world.ask(&edge, &site.needing(json!({"residency": "site"}))).await.error.expect("nobody at the site can");
    assert_eq!(refused.code.as_deref(), Some("unsupported_parameter"));
    assert!(refused.message.contains("`json_schema`") && refused.message.contains("able"), "{}", refused.message);
}
