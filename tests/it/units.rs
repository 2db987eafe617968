//! The installer and the units of `deploy/`, as far as they can be tried without a service manager; `make test-units` has one.

use scenarios::emulate::process::{Program, beside};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const UNITS: [&str; 2] = ["tidegate-agent.service", "tidegate-hub.service"];
/// How long a word of a program may take.
const WORD_MAX: Duration = Duration::from_secs(30);

fn deploy() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy")
}

/// What an archive holds, with the programs of this build, installed below a folder.
fn installed(folder: &Path) -> PathBuf {
    let (archive, prefix) = (folder.join("archive"), folder.join("prefix"));
    for name in ["bin", "examples", "systemd"] {
        fs::create_dir_all(archive.join(name)).expect("made");
    }
    for program in ["edge-node", "cloud-hub"] {
        fs::copy(beside(program).expect("built"), archive.join("bin").join(program)).expect("copied");
    }
    for name in ["agent.toml", "hub.toml", "cloud-agent.toml"] {
        fs::copy(deploy().join(name), archive.join("examples").join(name)).expect("copied");
    }
    for entry in fs::read_dir(deploy().join("systemd")).expect("listed").flatten() {
        fs::copy(entry.path(), archive.join("systemd").join(entry.file_name())).expect("copied");
    }
    fs::copy(deploy().join("install"), archive.join("install")).expect("copied");
    for _ in 0..2 {
        let done = Command::new(archive.join("install")).arg(&prefix).output().expect("runs");
        assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
        // A person's own configuration; the second run must leave it.
        fs::write(prefix.join("etc/tidegate/agent.toml"), "# mine\n").expect("written");
    }
    assert_eq!(fs::read_to_string(prefix.join("etc/tidegate/agent.toml")).expect("there"), "# mine\n");
    prefix
}

#[test]
fn what_is_installed_can_be_run_by_the_units() {
    let folder = tempfile::tempdir().expect("folder");
    let prefix = installed(folder.path());
    let units = folder.path().join("units");
    fs::create_dir(&units).expect("made");
    for unit in UNITS {
        let text = fs::read_to_string(prefix.join("etc/systemd/system").join(unit)).expect("installed");
        let programs =
            text.lines().filter_map(|line| line.strip_prefix("ExecStart=").or_else(|| line.strip_prefix("ExecStartPre=+")));
        for program in programs.filter_map(|command| command.split_whitespace().next()) {
            let path = prefix.join(program.trim_start_matches('/'));
            let mode = fs::metadata(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display())).permissions().mode();
            assert_eq!(mode & 0o111, 0o111, "{} can be executed", path.display());
        }
        let here = text.replace("/opt/tidegate", &prefix.join("opt/tidegate").to_string_lossy());
        fs::write(units.join(unit), here).expect("written");
    }
    let Ok(_) = Command::new("systemd-analyze").arg("--version").output() else {
        eprintln!("skipped: no systemd-analyze here to verify the units with");
        return;
    };
    for unit in UNITS {
        let done = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(units.join(unit)).output().expect("runs");
        let said = String::from_utf8_lossy(&done.stderr);
        let ours: Vec<_> = said.lines().filter(|line| line.contains("tidegate")).collect();
        assert!(done.status.success() && ours.is_empty(), "{unit}: {said}");
    }
}

/// Runs a program as its unit does, and listens to what it tells the service manager.
fn tells_the_manager(program: &str, arguments: &[&str], folder: &Path) {
    let socket = folder.join(format!("{program}.notify"));
    let heard = UnixDatagram::bind(&socket).expect("bound");
    heard.set_read_timeout(Some(WORD_MAX)).expect("set");
    let word = || {
        let mut bytes = [0; 64];
        let length = heard.recv(&mut bytes).expect("a word in time");
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    };
    let run = Program::new(program, beside(program).expect("built"), folder.join(format!("{program}.log")));
    let run = run.args(arguments).env("NOTIFY_SOCKET", &socket).env("WATCHDOG_USEC", "300000");
    let mut process = run.start().expect("starts");
    assert_eq!(word(), "READY=1");
    assert_eq!((word(), word()), ("WATCHDOG=1".to_owned(), "WATCHDOG=1".to_owned()));
    assert!(process.stop(WORD_MAX).is_some_and(|status| status.success()), "{program} ends when it is asked to");
    assert!(std::iter::repeat_with(word).take(100).any(|said| said == "STOPPING=1"));
}

#[test]
fn both_programs_tell_the_service_manager_how_they_are() {
    let folder = tempfile::tempdir().expect("folder");
    let (state, hub) = (folder.path().join("agent"), folder.path().join("hub"));
    let (state, hub) = (state.to_string_lossy(), hub.to_string_lossy());
    tells_the_manager("edge-node", &["run", "--listen", "127.0.0.1:0", "--state", &state], folder.path());
    let made = Program::new("cloud-hub", beside("cloud-hub").expect("built"), folder.path().join("init.log"));
    made.args(["init", "--state", &hub]).run(WORD_MAX).expect("made");
    let any = "127.0.0.1:0";
    let serve = ["serve", "--quic", any, "--http", any, "--admin", any, "--mqtt", any, "--state", &hub];
    tells_the_manager("cloud-hub", &serve, folder.path());
}
