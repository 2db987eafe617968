//! Servers that the agent starts: they outlive it, are found again, and are never left behind. The numbers are those of the list of
//! complaints about neighbouring systems.

use scenarios::emulate::client::Question;
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use shared::ids::NodeId;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use tests::{SOON, World, service};

/// A server that the agent manages, with further lines of its table.
fn server(lifeline: &Path, args: &[&str], more: &str) -> String {
    let program = env!("CARGO_BIN_EXE_canned-server");
    let args: Vec<_> = ["--port", "{port}", "--lifeline", &lifeline.to_string_lossy()]
        .iter()
        .chain(args)
        .map(|arg| format!("{arg:?}"))
        .collect();
    format!(
        "[[engines]]\nengine = \"upstream\"\nvariant = \"v\"\nmodel = \"canned\"\nslots = 4\nhealth_ms = 50\n\
         rates = {{ prompt_per_s = 1000.0, decode_per_s = 50.0 }}\n\
         [engines.managed]\ncommand = {program:?}\nargs = [{}]\npause_ms = 50\n{more}\n",
        args.join(", ")
    )
}

/// A hub and one edge with a managed server that serves.
async fn world(args: &[&str], more: &str) -> (World, NodeId) {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let config = server(world.folder(), args, more);
    let edge = world.edge("bay/edge-1", &config).await;
    world.until_ready(&edge, "s").await;
    (world, edge)
}

fn record_path(world: &World, edge: &NodeId) -> PathBuf {
    world.fleet.agent(edge).expect("there").folder().join("state/managed/v.json")
}

/// What the agent wrote down of its server.
fn record(world: &World, edge: &NodeId) -> Value {
    serde_json::from_slice(&fs::read(record_path(world, edge)).expect("a record")).expect("JSON")
}

fn pid(world: &World, edge: &NodeId) -> u64 {
    record(world, edge)["process"]["pid"].as_u64().expect("a process")
}

/// All processes of a server: those that carry its mark.
fn marked(record: &Value) -> Vec<u32> {
    let wanted = format!("TIDEGATE_MANAGED={}", record["mark"].as_str().expect("a mark"));
    let carries = |pid: &u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let pids = fs::read_dir("/proc").expect("listed").flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(carries).collect()
}

async fn until_gone(what: &str, record: &Value) {
    let gone = until(what, SOON, || async {
        let left = marked(record);
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?} run")) }
    });
    gone.await.unwrap_or_else(|late| panic!("{late}"));
}

/// Kills the agent with -9, lets `meanwhile` happen, and starts it again.
async fn kill_and_restart(world: &mut World, edge: &NodeId, meanwhile: impl FnOnce(&World)) {
    world.fleet.agent_mut(edge).expect("there").kill();
    meanwhile(world);
    world.fleet.agent_mut(edge).expect("there").start().await.expect("it starts again");
}

fn edit_config(world: &World, edge: &NodeId, edit: impl FnOnce(String) -> String) {
    let path = world.fleet.agent(edge).expect("there").folder().join("agent.toml");
    let text = fs::read_to_string(&path).expect("read");
    fs::write(&path, edit(text)).expect("written");
}

fn local(tokens: u32) -> Question {
    Question::new("s", "go on", tokens).needing(json!({ "residency": "node" }))
}

fn words(word: &str, count: u32) -> String {
    (0..count).map(|number| format!("{word}{number} ")).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn row_12_an_agent_that_boots_without_its_hub_starts_its_server_and_answers() {
    let (mut world, edge) = world(&[], "").await;
    let first = record(&world, &edge);
    world.fleet.hub_mut().kill();
    assert!(world.fleet.agent_mut(&edge).expect("there").stop(), "it ends when asked");
    until_gone("the server to end with its agent", &first).await;
    assert!(!record_path(&world, &edge).exists(), "nothing is left to take over");

    world.fleet.agent_mut(&edge).expect("there").start().await.expect("it starts without a hub");
    world.until_degraded(&edge, true).await;
    let reply = world.until_answered(&edge, &local(3)).await;
    assert_eq!(reply.text.0, words("word", 3));
    assert!(reply.served.is_some_and(|served| served.degraded), "and says that it is cut off");
    assert_ne!(record(&world, &edge)["mark"], first["mark"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_13_a_partition_touches_neither_the_server_nor_a_stream_through_it() {
    let (world, edge) = world(&[], "").await;
    let before = record(&world, &edge);
    let (client, base) = (world.client.clone(), world.base(&edge));
    // Three seconds of words: longer than it takes to notice the cut, and to be back.
    let stream = tokio::spawn(async move { client.ask(&base, &local(150)).await });
    world.cable(&edge).cut();
    world.until_degraded(&edge, true).await;
    world.cable(&edge).restore();
    world.until_degraded(&edge, false).await;
    let reply = stream.await.expect("no panic").expect("no broken connection");
    assert_eq!((reply.answered(), reply.text.0), (true, words("word", 150)));
    assert_eq!(record(&world, &edge), before, "the same process, and nothing was started beside it");
    assert_eq!(marked(&before).len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn row_13_an_agent_that_is_killed_finds_its_server_again() {
    let (mut world, edge) = world(&[], "").await;
    let before = record(&world, &edge);
    for _ in 0..2 {
        kill_and_restart(&mut world, &edge, |_| {}).await;
        let reply = world.until_answered(&edge, &local(20)).await;
        assert_eq!(reply.text.0, words("word", 20), "a whole stream through the server that was taken over");
        assert_eq!(record(&world, &edge), before, "the same process at the same port");
    }
    // One that died between starting the server and writing its process down.
    let mut half = before.clone();
    half["process"] = Value::Null;
    kill_and_restart(&mut world, &edge, |world| fs::write(record_path(world, &edge), half.to_string()).expect("written")).await;
    world.until_answered(&edge, &local(1)).await;
    assert_eq!(record(&world, &edge), before, "found by its mark");
    assert!(world.fleet.agent_mut(&edge).expect("there").stop());
    until_gone("a server that was taken over to end with its agent", &before).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn row_14_no_server_stays_whose_engine_is_gone_from_the_configuration() {
    let (mut world, edge) = world(&["--child"], "").await;
    let orphan = record(&world, &edge);
    assert_eq!(marked(&orphan).len(), 2, "the server and a process of its own");
    kill_and_restart(&mut world, &edge, |world| {
        edit_config(world, &edge, |text| {
            let (engine, rest) = (text.find("[[engines]]").expect("there"), text.find("[http]").expect("there"));
            format!("{}{}", &text[..engine], &text[rest..])
        });
        assert_eq!(marked(&orphan).len(), 2, "they survive their agent");
    })
    .await;
    assert_eq!(marked(&orphan), [0_u32; 0], "gone before the agent answers");
    assert!(!record_path(&world, &edge).exists());
}

#[tokio::test(flavor = "multi_thread")]
async fn row_14_a_server_that_was_started_otherwise_is_ended_and_started_anew() {
    let (mut world, edge) = world(&[], "").await;
    let old = record(&world, &edge);
    kill_and_restart(&mut world, &edge, |world| {
        edit_config(world, &edge, |text| text.replace("\"--lifeline\"", "\"--word\", \"other\", \"--lifeline\""));
    })
    .await;
    let reply = world.until_answered(&edge, &local(2)).await;
    assert_eq!(reply.text.0, words("other", 2));
    assert_eq!(marked(&old), [0_u32; 0]);
    assert_ne!(pid(&world, &edge), old["process"]["pid"].as_u64().expect("a process"));
}

/// A process of somebody else; it ends with the test.
struct Foreign(Child);

impl Drop for Foreign {
    fn drop(&mut self) {
        self.0.kill().and_then(|()| self.0.wait()).ok();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_14_a_process_id_that_belongs_to_somebody_else_by_now_is_left_alone() {
    let (mut world, edge) = world(&[], "").await;
    let mut foreign = Foreign(Command::new("sleep").arg("600").spawn().expect("it starts"));
    let old = record(&world, &edge);
    let mut reused = old.clone();
    reused["process"]["pid"] = foreign.0.id().into();
    // Both as a server to take over, and as an orphan.
    for configured in [true, false] {
        kill_and_restart(&mut world, &edge, |world| {
            let mut reused = reused.clone();
            if !configured {
                reused["variant"] = "w".into();
            }
            let path = record_path(world, &edge).with_file_name(if configured { "v.json" } else { "w.json" });
            fs::write(path, reused.to_string()).expect("written");
        })
        .await;
        world.until_answered(&edge, &local(1)).await;
        assert!(foreign.0.try_wait().expect("looked").is_none(), "it runs on");
        assert_ne!(pid(&world, &edge), u64::from(foreign.0.id()));
        assert_eq!(marked(&old), [0_u32; 0], "what carries the mark is ours, and was ended");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_dies_is_started_again_and_one_that_cannot_run_says_why() {
    let (mut world, edge) = world(&[], "").await;
    let old = record(&world, &edge);
    let id = pid(&world, &edge).to_string();
    assert!(Command::new("sh").args(["-c", "kill -KILL \"$1\"", "sh", &id]).status().expect("runs").success());
    until("another server", SOON, || async {
        let path = record_path(&world, &edge);
        let now: Option<Value> = fs::read(path).ok().and_then(|bytes| serde_json::from_slice(&bytes).ok());
        if now.as_ref().is_some_and(|now| now["mark"] != old["mark"]) { Ok(()) } else { Err(format!("{now:?}")) }
    })
    .await
    .unwrap_or_else(|late| panic!("{late}"));
    world.until_answered(&edge, &local(1)).await;

    kill_and_restart(&mut world, &edge, |world| {
        edit_config(world, &edge, |text| text.replace("\"--lifeline\"", "\"--crash\", \"--lifeline\""));
    })
    .await;
    let failed = until("the reason", SOON, || async {
        let state = world.status(&edge).await["replicas"][0]["state"].clone();
        let why = state["failed"].as_str().unwrap_or_default().to_owned();
        if why.contains("exit status: 3") && why.contains("v.log") { Ok(()) } else { Err(state.to_string()) }
    });
    failed.await.unwrap_or_else(|late| panic!("{late}"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_that_shall_be_kept_outlives_a_clean_stop() {
    let (mut world, edge) = world(&[], "keep = true").await;
    let before = record(&world, &edge);
    assert!(world.fleet.agent_mut(&edge).expect("there").stop());
    assert_eq!(marked(&before).len(), 1, "it goes on");
    world.fleet.agent_mut(&edge).expect("there").start().await.expect("it starts again");
    world.until_answered(&edge, &local(1)).await;
    assert_eq!(record(&world, &edge), before);
    // Nobody would end it after this story but its lifeline: the world's folder.
}
