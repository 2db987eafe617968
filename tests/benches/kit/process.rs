//! Programs that are measured, as child processes: killed when their owner is gone, and looked at through `/proc`.

use std::fs::File;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// A running program.
#[derive(Debug)]
pub(crate) struct Program {
    child: Child,
    log: PathBuf,
}

impl Program {
    /// Starts it, with its output in `log`.
    pub(crate) fn start(command: &mut Command, log: PathBuf) -> io::Result<Self> {
        let output = File::create(&log)?;
        let child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output).spawn();
        let child = child.map_err(|error| io::Error::new(error.kind(), format!("{command:?}: {error}")))?;
        Ok(Self { child, log })
    }

    /// Waits until `ready` says so.
    pub(crate) fn until(&mut self, within: Duration, mut ready: impl FnMut() -> bool) -> io::Result<()> {
        let begun = Instant::now();
        while !ready() {
            let ended = self.child.try_wait()?;
            if ended.is_some() || begun.elapsed() > within {
                let log = std::fs::read_to_string(&self.log).unwrap_or_default();
                let state = ended.map_or_else(|| format!("not ready after {within:?}"), |status| format!("ended with {status}"));
                return Err(io::Error::other(format!("{state}: {log}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    pub(crate) fn id(&self) -> u32 {
        self.child.id()
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        // Both fail only for a child that has been collected already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A program of this workspace, built with the same profile as this one.
pub(crate) fn ours(name: &str) -> io::Result<PathBuf> {
    let own = std::env::current_exe()?;
    let found = own.ancestors().skip(1).take(2).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| io::Error::other(format!("no program `{name}`: cargo build --release --workspace --bins")))
}

/// A program of others.
pub(crate) fn theirs(name: &str) -> io::Result<PathBuf> {
    let paths = std::env::var_os("PATH").unwrap_or_default();
    let extra = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    let found = std::env::split_paths(&paths).chain(extra).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| io::Error::other(format!("no program `{name}`: see the Makefile for what brings it")))
}

/// A free address of this machine.
pub(crate) fn free() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Bytes of a process that are in memory.
pub(crate) fn resident(id: u32) -> io::Result<u64> {
    let status = std::fs::read_to_string(Path::new("/proc").join(id.to_string()).join("status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
    let kilobytes: u64 = line.trim().trim_end_matches(" kB").parse().map_err(io::Error::other)?;
    Ok(kilobytes * 1024)
}

/// Time that a process has spent on processors: what its threads that live sum up to, in nanoseconds, or what the kernel counts for
/// the whole process, in hundredths of a second, whichever is more (threads that have ended are only in the latter).
pub(crate) fn spent(id: u32) -> io::Result<Duration> {
    let folder = Path::new("/proc").join(id.to_string());
    let mut nanoseconds = 0;
    for thread in std::fs::read_dir(folder.join("task"))? {
        // A thread may end while it is looked at.
        let text = std::fs::read_to_string(thread?.path().join("schedstat")).unwrap_or_default();
        nanoseconds += text.split(' ').next().and_then(|field| field.parse::<u64>().ok()).unwrap_or(0);
    }
    let stat = std::fs::read_to_string(folder.join("stat"))?;
    // The name may hold anything; what follows its bracket is numbers. User and system time are the 14th and 15th field.
    let fields: Vec<&str> = stat.rsplit_once(')').map(|(_, rest)| rest.split_whitespace().collect()).unwrap_or_default();
    let ticks: u64 = fields.get(11..13).unwrap_or_default().iter().filter_map(|field| field.parse::<u64>().ok()).sum();
    Ok(Duration::from_nanos(nanoseconds).max(Duration::from_millis(ticks * 10)))
}
