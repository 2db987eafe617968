//! The store under kill -9: what was acknowledged is there afterwards.
#![cfg(unix)]

use cloud_hub::clock::UnixTime;
use cloud_hub::store::{Db, NewToken, RecordLimits, Store};
use shared::ids::{NodeId, ScopeId, SessionEpoch};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

const FOLDER: &str = "TIDEGATE_TEST_FOLDER";
const NOW: UnixTime = UnixTime(1_800_000_000);

fn database(folder: &Path) -> PathBuf {
    folder.join("hub.db")
}

fn secret_hash(number: u64) -> [u8; 32] {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&number.to_be_bytes());
    hash
}

/// Not a test of its own: the process that is killed. Writes for ever and says after each write how far it has come.
#[test]
#[ignore = "started by the test below as a child process"]
fn child_that_writes_for_ever() {
    let Some(folder) = std::env::var_os(FOLDER) else { return };
    let mut db = Db::open(&database(Path::new(&folder)), RecordLimits::default()).expect("open");
    let mut out = std::io::stdout();
    // Goes on above what it finds, as a hub does. The number of a token is taken only with the session epoch after it.
    let start = db.meta().expect("read").session_epoch.0 + 2;
    for number in start.. {
        let site = ScopeId::new("eu").expect("good");
        let token = NewToken { site, labels: BTreeMap::new(), uses: 1, expires: NOW };
        db.add_token(&secret_hash(number), &token, NOW).expect("kept");
        db.update_meta(|meta| meta.session_epoch = SessionEpoch(number)).expect("kept");
        writeln!(out, "written {number}").expect("the parent listens");
    }
}

#[test]
fn what_was_acknowledged_survives_a_kill() {
    let temp = tempfile::tempdir().expect("temp");
    Store::create(&database(temp.path()), &NodeId::new("cloud/hub").expect("good"), "h:1", NOW).expect("made");
    let mut acknowledged = 0;
    for round in 1..=3_u64 {
        let mut child = Command::new(std::env::current_exe().expect("this program"))
            .args(["--exact", "child_that_writes_for_ever", "--ignored", "--nocapture"])
            .env(FOLDER, temp.path())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let mut lines = BufReader::new(child.stdout.take().expect("piped")).lines();
        let goal = acknowledged + 20 * round;
        while acknowledged < goal {
            let line = lines.next().expect("the child writes on").expect("text");
            if let Some(number) = line.rsplit_once("written ").and_then(|(_, number)| number.parse::<u64>().ok()) {
                acknowledged = number;
            }
        }
        child.kill().expect("killed");
        child.wait().expect("gone");
        let db = Db::open(&database(temp.path()), RecordLimits::default()).expect("opens after a kill");
        let epoch = db.meta().expect("read").session_epoch.0;
        assert!(epoch >= acknowledged, "round {round}: {epoch} is on disk, {acknowledged} was acknowledged");
    }
}
