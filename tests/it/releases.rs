//! Releases side by side: what runs is shown, and what does not work is taken back (complaint 22).

use scenarios::emulate::process::{Process, Program, beside};
use scenarios::emulate::wait::until;
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;
use tests::{Pace, SOON, World, node_row, profiled, service};

/// Longer than a debug program of two hundred megabytes takes to be copied and hashed beside a compiler.
const COMMAND_WITHIN: Duration = Duration::from_secs(120);

fn sha256(path: &Path) -> String {
    let printed = Command::new("sha256sum").arg(path).output().expect("runs").stdout;
    String::from_utf8_lossy(&printed).split_whitespace().next().expect("a hash").to_owned()
}

/// Where releases are installed, and the state of an agent that never joined.
struct Board {
    folder: tempfile::TempDir,
}

impl Board {
    fn new() -> Self {
        let board = Self { folder: tempfile::tempdir().expect("folder") };
        fs::create_dir(board.state()).expect("made");
        board
    }

    fn root(&self) -> PathBuf {
        self.folder.path().join("root")
    }

    fn state(&self) -> PathBuf {
        self.folder.path().join("state")
    }

    fn upgrade(&self, from: &Path) -> Result<String, String> {
        let program = Program::new("edge-node", beside("edge-node").expect("built"), self.folder.path().join("upgrades.log"));
        let program = program.arg("upgrade").arg(from).arg("--root").arg(self.root());
        program.run(COMMAND_WITHIN).map_err(|error| error.to_string())
    }

    /// What the service manager does before each start.
    fn boot(&self) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/systemd/boot");
        let done = Command::new("sh").arg(script).arg(self.root()).arg(self.state()).output().expect("runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        done
    }

    fn current(&self) -> PathBuf {
        self.root().join("current/bin/edge-node")
    }

    fn start(&self) -> Process {
        let program = Program::new("the installed agent", self.current(), self.folder.path().join("agent.log"));
        program.args(["run", "--listen", "127.0.0.1:0", "--state"]).arg(self.state()).start().expect("starts")
    }

    /// A program that answers like an agent, and ends at once when it is to run.
    fn broken(&self) -> PathBuf {
        let path = self.folder.path().join("broken");
        fs::write(&path, "#!/bin/sh\n[ \"$1\" = --version ] && exit 0\nexit 1\n").expect("written");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o755)).expect("made executable");
        path
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn row_22_a_release_that_does_not_work_is_taken_back() {
    let board = Board::new();
    let good = beside("edge-node").expect("built");
    let hash = sha256(&good);
    assert!(board.upgrade(&good).expect("installed").contains(&hash));
    assert!(board.upgrade(&good).expect("the same again").contains("already"));
    assert!(!board.root().join("trial").exists(), "the first one has nothing to be taken back to");

    let broken = board.broken();
    let bad = sha256(&broken);
    board.upgrade(&broken).expect("it does answer");
    for start in 1..=3 {
        let said = board.boot();
        assert!(String::from_utf8_lossy(&said.stdout).contains(&format!("start {start} of 3")));
        assert!(!Command::new(board.current()).arg("run").status().expect("starts").success(), "it does not work");
    }
    board.boot();
    assert_eq!(sha256(&board.current()), hash, "the one before is the present one again");
    assert!(fs::read_to_string(board.root().join("rolled-back")).expect("noted").contains(&bad));
    let _agent = board.start();
    let log = board.folder.path().join("agent.log");
    let told = until("the agent to say that a release was taken back", SOON, || async {
        let text = fs::read_to_string(&log).unwrap_or_default();
        if text.contains("taken back") && text.contains(&bad) { Ok(()) } else { Err(text) }
    });
    told.await.unwrap_or_else(|late| panic!("{late}"));
    board.boot();
    assert_eq!(sha256(&board.current()), hash, "and it stays");
    let doctor = Command::new(board.current()).args(["doctor", "--state"]).arg(board.state()).output().expect("runs");
    assert!(String::from_utf8_lossy(&doctor.stdout).contains("was taken back"));
}

#[test]
fn a_release_that_became_healthy_is_kept() {
    let board = Board::new();
    board.upgrade(&board.broken()).expect("an older one");
    let good = beside("edge-node").expect("built");
    board.upgrade(&good).expect("a newer one");
    board.boot();
    // What the agent writes when it has its hub.
    fs::write(board.state().join("healthy"), sha256(&good)).expect("written");
    for _ in 0..5 {
        board.boot();
    }
    assert_eq!(sha256(&board.current()), sha256(&good));
    assert!(!board.root().join("trial").exists() && !board.root().join("rolled-back").exists());
}

#[test]
fn a_damaged_release_is_refused_and_changes_nothing() {
    let board = Board::new();
    let broken = board.broken();
    board.upgrade(&broken).expect("installed");
    let before = fs::read_link(board.root().join("current")).expect("a link");
    // Cut off, as a download is; what is missing at the end of an unstripped program may be nothing that it needs.
    let cut = board.folder.path().join("cut");
    let bytes = fs::read(beside("edge-node").expect("built")).expect("read");
    fs::write(&cut, &bytes[..100_000]).expect("written");
    let told = board.upgrade(&cut).expect_err("it does not run");
    assert!(told.contains("does not run on this machine"), "{told}");
    // Another file than the one that was packed.
    let folder = board.folder.path().join("unpacked");
    fs::create_dir_all(folder.join("bin")).expect("made");
    fs::copy(&broken, folder.join("bin/edge-node")).expect("copied");
    fs::write(folder.join("SHA256SUMS"), format!("{}  ./bin/edge-node\n", "0".repeat(64))).expect("written");
    let told = board.upgrade(&folder).expect_err("damaged");
    assert!(told.contains("SHA256SUMS"), "{told}");
    assert_eq!(fs::read_link(board.root().join("current")).expect("a link"), before);
    let left: Vec<_> = fs::read_dir(board.root().join("releases")).expect("listed").flatten().collect();
    assert_eq!(left.len(), 1, "{left:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn row_22_the_hub_shows_what_really_runs_and_the_agent_notes_that_it_works() {
    let mut world = World::new(vec![service("s", &[("v", 50)])], "").await;
    let node = world.agent("bay/edge-1", &profiled("v", Pace::default())).await;
    let hash = sha256(&beside("edge-node").expect("built"));
    let shown = until("the hash at the hub", SOON, || async {
        let row: Value = node_row(&world, &node);
        if row["inventory"]["binary_sha256"] == json!(hash) { Ok(()) } else { Err(row["inventory"].to_string()) }
    });
    shown.await.unwrap_or_else(|late| panic!("{late}"));
    let table = world.fleet.hub().command(&["nodes"]).expect("listed");
    assert!(table.contains(&hash[..12]), "{table}");
    let healthy = world.fleet.agent(&node).expect("there").folder().join("state/healthy");
    let noted = until("the note that the release works", SOON, || async {
        let text = fs::read_to_string(&healthy).unwrap_or_default();
        if text == hash { Ok(()) } else { Err(text) }
    });
    noted.await.unwrap_or_else(|late| panic!("{late}"));
}
