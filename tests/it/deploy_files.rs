//! The files that people copy.

use scenarios::emulate::process::{Program, beside};
use std::path::Path;
use std::time::Duration;
use tests::{World, profiled};

const CHECKED_WITHIN: Duration = Duration::from_secs(20);

fn check(program: &str, file: &str) {
    let folder = tempfile::tempdir().expect("folder");
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy").join(file);
    let program = Program::new(program, beside(program).expect("built"), folder.path().join("log"));
    let checked = program.args(["config", "check", "--config"]).arg(&path).run(CHECKED_WITHIN);
    checked.unwrap_or_else(|error| panic!("{file}: {error}"));
}

#[test]
fn the_example_configurations_can_be_used() {
    check("cloud-hub", "hub.toml");
    check("edge-node", "agent.toml");
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
