//! Processes of this machine, told apart so that none is ever taken for another.
//!
//! A process id alone is reused by the kernel. A process of ours is known by its id with the time of its start, and each process that
//! comes from it by a mark in its environment, a random number that nobody else has. What has neither is never signalled.

use serde::{Deserialize, Serialize};
use std::fs;
use std::time::Duration;
use sysinfo::{Pid, ProcessRefreshKind, ProcessesToUpdate, Signal, System};
use tokio::time::Instant;

/// The variable that carries the mark.
pub(super) const MARK: &str = "TIDEGATE_MANAGED";
/// How often a process that shall end is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(50);
/// How long the kernel may take to end a process that was killed: it is waited for, so that its memory and port are free again.
const KILLED_WITHIN: Duration = Duration::from_secs(2);

/// One process, for as long as the machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Identity {
    pub(super) pid: u32,
    /// When it was started, in the kernel's ticks since boot.
    pub(super) started: u64,
}

impl Identity {
    /// The process that has this id now.
    pub(super) fn of(pid: u32) -> Option<Self> {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // The name in parentheses may hold anything, also parentheses and spaces.
        let mut fields = stat.get(stat.rfind(')')? + 1..)?.split_ascii_whitespace();
        let state = fields.next()?;
        // Field 22 of the line; the state is field 3.
        let started = fields.nth(18)?.parse().ok()?;
        // What has ended and was not collected yet holds nothing any more.
        (!matches!(state, "Z" | "X")).then_some(Self { pid, started })
    }

    /// Whether it runs.
    pub(super) fn alive(self) -> bool {
        Self::of(self.pid) == Some(self)
    }
}

/// This run of the machine: after a restart ids and ticks begin anew.
pub(super) fn boot() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|id| id.trim().to_owned()).unwrap_or_default()
}

/// All processes that carry the mark, as far as this user may look.
pub(super) fn marked(mark: &str) -> Vec<Identity> {
    let wanted = format!("{MARK}={mark}");
    let carries = |pid: u32| {
        let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == wanted.as_bytes())
    };
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    pids.filter(|pid| carries(*pid)).filter_map(Identity::of).collect()
}

/// Ends a process and all that came from it: asks, and kills what is still there after `grace`. False when something stayed.
pub(super) async fn end(main: Option<Identity>, mark: &str, grace: Duration) -> bool {
    gone(main, mark, Signal::Term, grace).await || gone(main, mark, Signal::Kill, KILLED_WITHIN).await
}

/// Sends a signal and waits. Looks again each time: a process may start others while it is asked to end.
async fn gone(main: Option<Identity>, mark: &str, signal: Signal, within: Duration) -> bool {
    let until = Instant::now() + within;
    let mut told = Vec::new();
    loop {
        let mut left = marked(mark);
        left.extend(main.filter(|main| main.alive() && !left.contains(main)));
        if left.is_empty() {
            return true;
        }
        for process in left {
            if !told.contains(&process) {
                told.push(process);
                send(process, signal);
            }
        }
        if Instant::now() >= until {
            return false;
        }
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

fn send(process: Identity, signal: Signal) {
    let pid = Pid::from_u32(process.pid);
    let Ok(mut system) = System::new() else { return };
    system.refresh_processes_specifics(ProcessesToUpdate::Some(&[pid]), true, ProcessRefreshKind::nothing());
    // Looked at last of all: between here and the signal lie microseconds, and an id comes back after thousands of processes.
    if let Some(found) = system.process(pid).filter(|_| process.alive()) {
        found.kill_with(signal);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::{Child, Command, Stdio};

    /// A mark that no other run of these tests has.
    fn fresh() -> String {
        format!("test-{:032x}", rand::random::<u128>())
    }

    fn child(script: &str, mark: &str) -> Child {
        let mut command = Command::new("/bin/sh");
        command.args(["-c", script]).env(MARK, mark).stdin(Stdio::null()).stdout(Stdio::piped());
        command.spawn().expect("a shell")
    }

    /// Waits until the child has said something.
    fn said(child: &mut Child) {
        use std::io::Read;
        let mut byte = [0];
        child.stdout.as_mut().expect("piped").read_exact(&mut byte).expect("said");
    }

    #[tokio::test]
    async fn a_process_and_its_children_end_and_a_stranger_does_not() {
        let mark = fresh();
        let mut server = child("sh -c 'echo a; sleep 600' & wait", &mark);
        let mut stranger = child("echo a; exec sleep 600", &fresh());
        said(&mut server);
        said(&mut stranger);
        let identity = Identity::of(server.id()).expect("it runs");
        assert!(marked(&mark).len() >= 2, "the shell in the shell");
        // As after a restart of the agent: the id that was kept belongs to somebody else by now.
        let somebody = Identity::of(stranger.id()).expect("it runs");
        let reused = Identity { started: somebody.started + 1, ..somebody };
        assert!(end(Some(reused), &fresh(), Duration::from_secs(5)).await, "nothing of ours is left");
        assert!(Identity::of(stranger.id()).is_some() && identity.alive());

        assert!(end(Some(identity), &mark, Duration::from_secs(5)).await);
        assert_eq!((identity.alive(), marked(&mark).len()), (false, 0));
        assert!(Identity::of(stranger.id()).is_some());
        server.wait().expect("collected");
        stranger.kill().and_then(|()| stranger.wait()).expect("collected");
    }

    #[tokio::test]
    async fn one_that_will_not_hear_is_killed() {
        let mark = fresh();
        let mut deaf = child("trap '' TERM; echo a; while :; do sleep 0.05; done", &mark);
        said(&mut deaf);
        let identity = Identity::of(deaf.id()).expect("it runs");
        assert!(end(Some(identity), &mark, Duration::from_millis(100)).await);
        assert!(!identity.alive());
        deaf.wait().expect("collected");
    }
}
