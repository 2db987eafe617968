//! The checks of a `doctor` that are the same for both programs: disk, files, clock, ports.
//!
//! They look and do not mend: nothing here changes what it examines, but for a file that is written and removed again.

use super::checkup::Finding;
use super::state::write_private;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, SystemTime};
use tokio::process::Command;

/// Below this nothing can be kept any more for long: a record file alone may take 16 MiB.
const FREE_KIB_MIN: u64 = 64 * 1024;
/// Below this it is time to look what fills the disk.
const FREE_KIB_LOW: u64 = 512 * 1024;
/// How long the system may take to tell of a disk; a network share that hangs takes for ever.
const DISK_TIME_MAX: Duration = Duration::from_secs(5);
/// Clocks of machines that set theirs by network differ by less than this.
const CLOCK_SLACK_S: u64 = 5 * 60;
/// Written and removed again to see whether the folder takes files.
const PROBE_FILE: &str = ".doctor";

/// What the system's clock shows, in seconds since 1970, whatever anybody else believes.
#[must_use]
pub fn system_secs() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// A span for people.
#[must_use]
pub fn span(seconds: u64) -> String {
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7_200 => format!("{} min", seconds / 60),
        7_200..172_800 => format!("{} h", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

/// Compares the system's clock with the latest time that this state folder has seen. `kept` says where that is written.
#[must_use]
pub fn clock(latest_secs: u64, kept: &str) -> Finding {
    let now = system_secs();
    if now + CLOCK_SLACK_S >= latest_secs {
        return Finding::ok("clock", "not behind the latest time seen here");
    }
    let behind = span(latest_secs - now);
    Finding::fail(
        "clock",
        format!("the system's clock is {behind} behind the latest time seen here"),
        format!(
            "set the clock (`timedatectl set-ntp true`); if it is right now and was ahead before, stop the program and remove {kept}"
        ),
    )
}

/// Whether the folder takes files, and whether its disk has room.
pub async fn disk(folder: &Path) -> Finding {
    let probe = folder.join(PROBE_FILE);
    let written = write_private(&probe, b"doctor\n");
    drop(std::fs::remove_file(&probe));
    let free = free_kib(folder).await;
    let room = free.map_or_else(|| "unknown room".to_owned(), |free| format!("{} MiB free", free / 1024));
    let make_room = format!("make room on the disk of {0}: `df -h {0}`, `du -xh {0}`", folder.display());
    match (written, free) {
        (Err(error), _) if error.kind() == ErrorKind::StorageFull => Finding::fail("disk", "the disk is full", make_room),
        (Err(error), _) => Finding::fail(
            "disk",
            format!("{} takes no files: {error}", folder.display()),
            "give the folder to the user of the service (`chown -R`), and mount its disk for writing",
        ),
        (Ok(()), Some(free)) if free < FREE_KIB_MIN => Finding::fail("disk", room, make_room),
        (Ok(()), Some(free)) if free < FREE_KIB_LOW => Finding::warn("disk", room, make_room),
        (Ok(()), _) => Finding::ok("disk", room),
    }
}

/// What `df` says, which is on every board: no call of the standard library tells it.
async fn free_kib(folder: &Path) -> Option<u64> {
    let mut command = Command::new("df");
    command.arg("-Pk").arg(folder).stdin(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(DISK_TIME_MAX, command.output()).await.ok()?.ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    text.lines().nth(1)?.split_whitespace().nth(3)?.parse().ok()
}

/// Whether the files that hold secrets are readable by their owner only. Those that are not there are no fault.
#[must_use]
pub fn private_files(folder: &Path, names: &[&str]) -> Finding {
    let open: Vec<String> = names
        .iter()
        .map(|name| folder.join(name))
        .chain([folder.to_owned()])
        .filter(|path| is_open(path))
        .map(|path| path.display().to_string())
        .collect();
    if open.is_empty() {
        return Finding::ok("files", "keys are for their owner only");
    }
    Finding::fail("files", format!("others may read {}", open.join(", ")), format!("chmod go= {}", open.join(" ")))
}

#[cfg(unix)]
fn is_open(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    std::fs::metadata(path).is_ok_and(|about| about.permissions().mode() & 0o077 != 0)
}

#[cfg(not(unix))]
fn is_open(_path: &Path) -> bool {
    false
}

/// Which kind of port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Port {
    /// A listener.
    Tcp,
    /// A socket.
    Udp,
}

/// Whether the address of `key` could be listened on now. For a program that does not run.
#[must_use]
pub fn port(kind: Port, key: &'static str, address: SocketAddr) -> Finding {
    let (name, tool) = match kind {
        Port::Tcp => ("TCP", "ss -ltnp"),
        Port::Udp => ("UDP", "ss -lunp"),
    };
    let opened = match kind {
        Port::Tcp => TcpListener::bind(address).map(drop),
        Port::Udp => UdpSocket::bind(address).map(drop),
    };
    match opened {
        Ok(()) => Finding::ok(key, format!("{name} {address} is free")),
        Err(error) if error.kind() == ErrorKind::AddrInUse => Finding::fail(
            key,
            format!("{name} {address} is held by another program"),
            format!("`{tool} 'sport = :{}'` names it: stop it, or give `{key}` another port", address.port()),
        ),
        Err(error) if error.kind() == ErrorKind::AddrNotAvailable => Finding::fail(
            key,
            format!("{} is no address of this machine", address.ip()),
            format!("give `{key}` one of those that `ip address` lists"),
        ),
        Err(error) => Finding::fail(
            key,
            format!("{name} {address} cannot be opened: {error}"),
            format!(
                "give `{key}` a port above 1023, or the service the right to lower ones (`AmbientCapabilities=CAP_NET_BIND_SERVICE`)"
            ),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::super::checkup::Verdict;
    use super::*;

    #[test]
    fn a_port_is_free_held_or_not_here() {
        let held = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = held.local_addr().expect("an address");
        let finding = port(Port::Tcp, "http.listen", address);
        assert_eq!(finding.verdict, Verdict::Fail);
        assert!(finding.remedy.is_some_and(|remedy| remedy.contains("ss -ltnp")));
        assert_eq!(port(Port::Udp, "quic.listen", "127.0.0.1:0".parse().expect("good")).verdict, Verdict::Ok);
        let far = port(Port::Udp, "quic.listen", "192.0.2.1:0".parse().expect("good"));
        assert!(far.seen.contains("no address of this machine"), "{far:?}");
    }

    #[test]
    fn a_clock_that_went_back_is_told_from_one_that_goes_right() {
        assert_eq!(clock(system_secs() + 60, "x").verdict, Verdict::Ok);
        let finding = clock(system_secs() + 3 * 86_400 + 60, "x");
        assert!(finding.verdict == Verdict::Fail && finding.seen.contains("3 days"), "{finding:?}");
    }

    #[tokio::test]
    async fn a_folder_that_is_none_takes_no_files() {
        let folder = tempfile::tempdir().expect("folder");
        assert_ne!(disk(folder.path()).await.verdict, Verdict::Fail);
        assert_eq!(std::fs::read_dir(folder.path()).expect("listed").count(), 0, "nothing is left");
        std::fs::write(folder.path().join("file"), "").expect("written");
        assert_eq!(disk(&folder.path().join("file")).await.verdict, Verdict::Fail);
    }
}
