//! The program itself, as an operator uses it: commands with and without a running hub, and a kill in the middle.
#![cfg(unix)]

use shared::wire::JoinToken;
use shared_net::link::{Endpoint, ResetSecret};
use shared_net::tls::{Admit, CertClock};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

const HUB: &str = env!("CARGO_BIN_EXE_cloud-hub");

fn command(state: &Path, arguments: &[&str]) -> Command {
    let mut command = Command::new(HUB);
    command.args(arguments).arg("--state").arg(state);
    for key in ["quic.listen", "http.listen", "admin.listen", "mqtt.listen"] {
        command.arg("--set").arg(format!("{key}=127.0.0.1:0"));
    }
    command
}

fn run(state: &Path, arguments: &[&str]) -> Output {
    command(state, arguments).output().expect("started")
}

/// Standard output of a command that must succeed.
fn done(state: &Path, arguments: &[&str]) -> String {
    let output = run(state, arguments);
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).expect("text")
}

/// Standard error of a command that must fail.
fn refused(state: &Path, arguments: &[&str]) -> String {
    let output = run(state, arguments);
    assert!(!output.status.success(), "{arguments:?} should fail");
    String::from_utf8(output.stderr).expect("text")
}

/// A hub in its own process, killed in the end if it still runs.
struct Serving(Child);

impl Serving {
    fn start(state: &Path) -> Self {
        let mut child = command(state, &["serve"]).stdout(Stdio::piped()).spawn().expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let told: Vec<String> = (0..4).map(|_| lines.next().expect("a line for each listener").expect("text")).collect();
        assert!(told.iter().all(|line| line.contains("127.0.0.1:")), "{told:?}");
        Self(child)
    }
}

impl Drop for Serving {
    fn drop(&mut self) {
        // Fails only when it is gone already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

const ADD: [&str; 11] =
    ["service", "add", "assistant", "--variant", "tiny", "--quality", "0.4", "--quality-source", "a test", "--context", "2048"];

#[test]
fn commands_work_with_and_without_a_hub() {
    let temp = tempfile::tempdir().expect("temp");
    let state = temp.path().join("hub");
    assert!(refused(&state, &["serve"]).contains("cloud-hub init"));
    assert!(refused(&state, &["nodes"]).contains("cloud-hub init"));
    done(&state, &["init", "--address", "127.0.0.1:0"]);
    assert!(refused(&state, &["init"]).contains("already"));
    done(&state, &ADD);
    assert!(refused(&state, &["token", "--site", "eu/site-7"]).contains("a hub that runs"), "its port is not known yet");
    done(&state, &["token", "--site", "eu/site-7", "--address", "hub.example.org:7443"])
        .trim()
        .parse::<JoinToken>()
        .expect("a token");

    let mut hub = Serving::start(&state);
    assert!(refused(&state, &["serve"]).contains("in use"));
    let token: JoinToken = done(&state, &["token", "--site", "eu/site-7", "--expires", "5m"]).trim().parse().expect("a token");
    assert!(!token.address.ends_with(":0"), "{token:?}");
    assert!(done(&state, &["service", "list"]).contains("assistant"));
    assert!(done(&state, &["nodes", "--json"]).starts_with('['));
    assert!(done(&state, &["records"]).contains("request"));
    assert!(refused(&state, &["explain", &"0".repeat(32)]).contains("no record"));
    assert!(refused(&state, &["revoke", "eu/site-7/nobody"]).contains("nobody"));
    done(&state, &["service", "remove", "assistant"]);
    assert!(refused(&state, &["service", "remove", "assistant"]).contains("assistant"));

    let terminated = Command::new("kill").arg(hub.0.id().to_string()).status().expect("kill");
    assert!(terminated.success());
    assert!(hub.0.wait().expect("ended").success(), "SIGTERM is a clean end");
    assert!(!done(&state, &["service", "list"]).contains("assistant"));
}

#[test]
fn what_cannot_be_configured_is_named() {
    let temp = tempfile::tempdir().expect("temp");
    let file = temp.path().join("hub.toml");
    std::fs::write(&file, "[quic]\nlisen = \"127.0.0.1:1\"\n").expect("written");
    let path = file.to_str().expect("text");
    let said = refused(temp.path(), &["config", "check", "--config", path]);
    assert!(said.contains("quic.lisen") && said.contains("quic.listen"), "{said}");
    std::fs::write(&file, "[policies.dispatch]\npolicy = \"guess\"\n").expect("written");
    let said = refused(temp.path(), &["config", "check", "--config", path]);
    assert!(said.contains("policies.dispatch") && said.contains("min-latency"), "{said}");
    std::fs::write(&file, "[policies.dispatch]\npolicy = \"edge-only\"\n").expect("written");
    let shown = done(temp.path(), &["config", "show", "--config", path]);
    assert!(shown.lines().any(|line| line.starts_with("policies.dispatch.policy") && line.contains("hub.toml")), "{shown}");
    assert!(done(temp.path(), &["policies"]).contains("min-latency"));

    let state = temp.path().join("hub");
    done(&state, &["init", "--address", "127.0.0.1:0"]);
    for wish in [&["config", "check"][..], &["serve"]] {
        // Later settings win, so this one comes after those that `command` adds.
        let output = command(&state, wish).args(["--set", "http.listen=0.0.0.0:0"]).output().expect("started");
        let said = String::from_utf8(output.stderr).expect("text");
        assert!(!output.status.success() && said.contains("api_keys_sha256"), "{wish:?}: {said}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_killed_hub_knows_its_nodes_and_goes_on_above_its_epochs() {
    let temp = tempfile::tempdir().expect("temp");
    let state = temp.path().join("hub");
    done(&state, &["init", "--address", "127.0.0.1:0"]);
    let mut hub = Serving::start(&state);
    let token: JoinToken = done(&state, &["token", "--site", "eu/site-7"]).trim().parse().expect("a token");
    let clock = CertClock::new(0);
    let joined = shared_net::join::join(&token, "node-1", &clock).await.expect("joined");
    hub.0.kill().expect("killed");
    hub.0.wait().expect("gone");
    let offline = done(&state, &["nodes", "--json"]);
    let _hub = Serving::start(&state);
    for told in [offline, done(&state, &["nodes", "--json"])] {
        let rows: serde_json::Value = serde_json::from_str(&told).expect("JSON");
        assert_eq!(rows[0]["node"], "eu/site-7/node-1");
        let left = rows[0]["certificate_expires"].as_u64().expect("a time").saturating_sub(clock.secs());
        assert!((29 * 86_400..=30 * 86_400).contains(&left), "{left} seconds left");
    }
    let table = done(&state, &["nodes"]);
    assert!(table.contains("29 d") || table.contains("30 d"), "{table}");
    let addresses = cloud_hub::state::StateDir::at(&state).addresses().expect("written");
    let local = (std::net::Ipv4Addr::LOCALHOST, 0).into();
    let endpoint = Endpoint::bind(local, &joined.identity, Admit::Members, &clock, &ResetSecret::random()).expect("a socket");
    let link = endpoint
        .connect(addresses.quic, &joined.hub, shared::fleet::Transport::Quic)
        .await
        .expect("the certificate is still good");
    shared_net::join::renew(&link, joined.identity.node()).await.expect("and can be renewed");
    let denied = shared_net::join::join(&JoinToken { address: addresses.quic.to_string(), ..token }, "node-2", &clock).await;
    assert!(denied.is_err(), "a used token stays used");
    let meta = cloud_hub::state::StateDir::at(&state).read_meta().expect("read");
    assert!(meta.incarnation >= 2, "{meta:?}");
}
