//! The files that people copy.

use scenarios::emulate::process::beside;
use std::path::Path;
use std::process::Command;
use tests::{World, profiled};

/// From the repository's root, since a model's path in a file is relative to where the command is called.
fn check(program: &str, file: &str) {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mut command = Command::new(beside(program).expect("built"));
    let checked = command.args(["config", "check", "--config"]).arg(format!("deploy/{file}")).current_dir(root).output();
    let checked = checked.expect("runs");
    assert!(checked.status.success(), "{file}: {}", String::from_utf8_lossy(&checked.stderr));
}

#[test]
fn the_example_configurations_can_be_used() {
    check("cloud-hub", "hub.toml");
    check("edge-node", "agent.toml");
    check("edge-node", "cloud-agent.toml");
    check("edge-node", "llama-server.toml");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_example_service_can_be_added() {
    let world = World::new(Vec::new(), "").await;
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/services/assistant.toml");
    world.fleet.hub().command(&["service", "add", "--file", &file.to_string_lossy()]).expect("added");
    let listed = world.fleet.hub().command(&["service", "list"]).expect("listed");
    assert!(listed.contains("assistant") && listed.contains("smollm2-135m-q8"), "{listed}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_key_is_named_with_the_nearest_one() {
    let mut world = World::new(vec![tests::service("s", &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &profiled("v", tests::Pace::default())).await;
    let agent = world.fleet.agent(&edge).expect("there");
    let error = agent.command(&["config", "check", "--set", "http.lisen=127.0.0.1:1"]).expect_err("no such key").to_string();
    assert!(error.contains("http.lisen") && error.contains("http.listen"), "{error}");
}
