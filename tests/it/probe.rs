//! Looking for accelerators goes wrong, and the agent goes on. Row 5 of the list of complaints about neighbouring systems.

use edge_node::probe::accelerator::{Listing, Look};
use edge_node::probe::page::page;
use edge_node::probe::report::ProbeReport;
use scenarios::emulate::client::Question;
use scenarios::emulate::process::beside;
use scenarios::emulate::wait::until;
use serde_json::Value;
use shared::fleet::Machine;
use shared::ids::NodeId;
use std::fs;
use std::process::{Command, Output, Stdio};
use tests::{Pace, SOON, World, node_row, profiled, service};

fn survey(world: &World, node: &NodeId) -> Value {
    node_row(world, node)["inventory"]["survey"].clone()
}

/// Waits until the hub knows how the node's probe went, and returns what it knows.
async fn known(world: &World, node: &NodeId, good: impl Fn(&Value) -> bool) -> Value {
    let told = until(format!("the probe of {node} at the hub"), SOON, || async {
        let survey = survey(world, node);
        if good(&survey["state"]) { Ok(survey) } else { Err(survey.to_string()) }
    });
    told.await.unwrap_or_else(|late| panic!("{late}")).0
}

fn failed(state: &Value) -> bool {
    state["failed"].is_string()
}

/// A fleet whose edge looks for accelerators in vain.
async fn world(drill: &str) -> (World, NodeId) {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let config = format!("{}\n[probe]\ndrill = \"{drill}\"\nlimit_ms = 700\n", profiled("v", Pace::default()));
    let edge = world.agent("bay/edge-1", &config).await;
    world.until_ready(&edge, "s").await;
    (world, edge)
}

fn gone(pid: u64) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_none_or(|(_, rest)| rest.trim_start().starts_with('Z'))
}

#[tokio::test(flavor = "multi_thread")]
async fn row_5_a_probe_that_hangs_is_killed_with_all_it_started_and_the_agent_serves_on() {
    let (world, edge) = world("hang").await;
    let survey = known(&world, &edge, failed).await;
    let why = survey["state"]["failed"].as_str().expect("a reason");
    assert!(why.contains("probe failed") && why.contains("killed at its limit of 0.7 s"), "{why}");
    let left: u64 =
        why.rsplit("process ").next().and_then(|rest| rest.parse().ok()).unwrap_or_else(|| panic!("a process: {why}"));
    let ended = until("the process that the probe had started", SOON, || async {
        if gone(left) { Ok(()) } else { Err(left.to_string()) }
    });
    ended.await.unwrap_or_else(|late| panic!("{late}"));
    assert!(world.ask(&edge, &Question::new("s", "still there?", 4)).await.answered());
    let page = world.fleet.hub().command(&["nodes", edge.as_str()]).expect("told");
    assert!(page.contains("probe failed"), "{page}");
    let status = world.fleet.agent(&edge).expect("there").command(&["status"]).expect("told");
    assert!(status.contains("probe failed"), "{status}");
}

#[tokio::test(flavor = "multi_thread")]
async fn row_5_a_probe_that_crashes_is_tried_three_times_and_again_when_an_operator_asks() {
    let (world, edge) = world("crash").await;
    let agent = world.fleet.agent(&edge).expect("there");
    let with = |text: &'static str| move |state: &Value| state["failed"].as_str().is_some_and(|why| why.contains(text));
    known(&world, &edge, with("failure 1 of 3")).await;
    let file = agent.folder().join("state/accelerators.json");
    let kept = fs::read_to_string(&file).expect("kept");
    assert!(kept.contains("\"failures\":1"), "{kept}");
    let written = || fs::metadata(&file).and_then(|file| file.modified()).expect("kept");
    let before = written();
    agent.command(&["probe", "--renew"]).expect("asked");
    let again =
        until("another look", SOON, || async { if written() > before { Ok(()) } else { Err("the same file".to_owned()) } });
    again.await.unwrap_or_else(|late| panic!("{late}"));
    assert!(world.ask(&edge, &Question::new("s", "still there?", 4)).await.answered());
    // An operator's wish begins anew, so it is the first failure again, and no more than three ever follow by themselves.
    let survey = known(&world, &edge, with("SIGABRT")).await;
    assert!(survey["accelerators"].as_array().is_none_or(Vec::is_empty), "{survey}");
}

#[tokio::test(flavor = "multi_thread")]
async fn row_5_a_probe_that_talks_without_end_is_cut_off() {
    let (world, edge) = world("flood").await;
    let survey = known(&world, &edge, failed).await;
    assert!(survey["state"]["failed"].as_str().is_some_and(|why| why.contains("more than any machine has to say")), "{survey}");
}

#[cfg(target_os = "linux")]
#[tokio::test(flavor = "multi_thread")]
async fn row_5_after_a_probe_the_agent_holds_no_device_and_no_driver() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let edge = world.agent("bay/edge-1", &profiled("v", Pace::default())).await;
    known(&world, &edge, |state| state == "done").await;
    let config = world.fleet.agent(&edge).expect("there").folder().join("agent.toml");
    let pid = running(&config.to_string_lossy());
    let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("listed").flatten();
    let open: Vec<_> = open.filter_map(|entry| fs::read_link(entry.path()).ok()).collect();
    assert!(!open.is_empty(), "the agent's files can be seen");
    let device =
        |path: &std::path::PathBuf| ["/dev/dri", "/dev/nvidia", "/dev/dxg", "/dev/kfd"].iter().any(|d| path.starts_with(d));
    assert!(!open.iter().any(device), "{open:?}");
    let maps = fs::read_to_string(format!("/proc/{pid}/maps")).expect("read");
    for driver in ["libvulkan", "libEGL", "libGL", "libnvidia", "vulkan_"] {
        assert!(!maps.contains(driver), "{driver} is loaded:\n{maps}");
    }
}

/// The agent that runs with this configuration.
#[cfg(target_os = "linux")]
fn running(config: &str) -> u32 {
    let pids = fs::read_dir("/proc").expect("listed").flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let mut found = pids.filter(|pid: &u32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let words: Vec<_> = line.split(|byte| *byte == 0).collect();
        words.contains(&b"run".as_slice()) && words.contains(&config.as_bytes())
    });
    found.next().expect("it runs")
}

fn probe(arguments: &[&str]) -> Output {
    let program = beside("edge-node").expect("built");
    let folder = tempfile::tempdir().expect("an empty folder");
    let mut command = Command::new(program);
    command.arg("probe").args(arguments).current_dir(folder.path()).stdin(Stdio::null());
    command.output().expect("runs")
}

fn schema() -> jsonschema::Validator {
    let printed = probe(&["--schema"]);
    let schema: Value = serde_json::from_slice(&printed.stdout).expect("JSON");
    jsonschema::validator_for(&schema).expect("a schema")
}

fn faults(validator: &jsonschema::Validator, report: &Value) -> Vec<String> {
    validator.iter_errors(report).map(|error| error.to_string()).collect()
}

#[test]
fn what_the_probe_prints_is_what_its_schema_says() {
    let validator = schema();
    let output = probe(&["--json"]);
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|error| panic!("{error}: {said}"));
    assert!(output.status.success(), "{report}");
    assert_eq!(faults(&validator, &report), Vec::<String>::new(), "{report:#}");
    assert_eq!(report["probe"], "done");
    assert!(report["cpu"]["matmul_f32"]["value"].as_f64().is_some_and(|rate| rate > 0.0), "{report:#}");
    assert!(report["cost"]["wall"].as_u64().is_some_and(|wall| wall < 10_000_000), "{report:#}");
    let page = probe(&[]);
    let page = String::from_utf8_lossy(&page.stdout).into_owned();
    assert!(page.contains("Machine") && page.contains("Accelerators") && page.contains("CPU"), "{page}");

    let failed = probe(&["--json", "--set", "probe.drill=crash"]);
    assert_eq!(failed.status.code(), Some(1));
    let report: Value = serde_json::from_slice(&failed.stdout).expect("JSON all the same");
    assert_eq!(faults(&validator, &report), Vec::<String>::new(), "{report:#}");
    assert!(report["probe"]["failed"].as_str().is_some_and(|why| why.contains("a drill: crash")), "{report:#}");
}

#[test]
fn the_schema_refuses_what_cannot_be() {
    let validator = schema();
    let fact = |value: Value| serde_json::json!({"value": value, "origin": "measured", "by": "x", "age": 0, "confidence": 0.9});
    let with = |memory: Value, rate: Value| {
        serde_json::json!({"version": "1", "machine": {}, "probe": "done", "dropped": [], "hints": [], "cost": {}, "accelerators": [
            {"id": "name:a", "name": "a", "vendor": "", "kind": "discrete", "backends": ["vulkan"],
             "memory": fact(memory), "rates": {"matmul_f32": fact(rate)}}]})
    };
    assert_eq!(faults(&validator, &with(1.into(), 1e12.into())), Vec::<String>::new());
    for (memory, rate) in [(0, 1e12), (1, 0.0), (1, -1.0), (1, 1e30)] {
        assert!(!faults(&validator, &with(memory.into(), rate.into())).is_empty(), "{memory} {rate}");
    }
}

#[test]
fn what_is_made_of_every_recorded_listing_is_what_the_schema_says() {
    let validator = schema();
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../edge-node/tests/listings");
    let mut accelerators = 0;
    for entry in fs::read_dir(folder).expect("listed").flatten() {
        let listing: Listing = serde_json::from_slice(&fs::read(entry.path()).expect("read")).expect("a listing");
        let look = Look { listing, wall: std::time::Duration::from_secs(1) };
        let report = ProbeReport::of(Machine::default(), Ok(look));
        accelerators += report.accelerators.len();
        let printed = serde_json::to_value(&report).expect("JSON");
        assert_eq!(faults(&validator, &printed), Vec::<String>::new(), "{}: {printed:#}", entry.path().display());
        let shown = page(&report);
        for one in &report.accelerators {
            assert!(shown.contains(&one.name), "{shown}");
        }
    }
    assert!(accelerators >= 8, "{accelerators}");
}
