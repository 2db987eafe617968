//! Programs of ours as child processes: found beside the own executable, logged to a file, and gone when their owner is.

use std::env;
use std::ffi::{OsStr, OsString};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// How often a child that shall end is looked at.
const LOOK_EVERY: Duration = Duration::from_millis(10);
/// How much of the end of a log an error shows: the last few lines.
const LOG_TAIL_BYTES: u64 = 1_500;

static SPAWNING: Mutex<()> = Mutex::new(());

/// Held while a child is being made: between fork and exec it holds every socket of this process open, so a port that is
/// probed and let go meanwhile would be taken for a moment longer.
pub(super) fn spawning() -> MutexGuard<'static, ()> {
    SPAWNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What went wrong with a child process.
#[derive(Debug, thiserror::Error)]
pub enum ProcessError {
    /// The program was not built.
    #[error("no program `{name}` beside {beside}: build it with `cargo build --workspace --bins`")]
    NotBuilt {
        /// Its name.
        name: String,
        /// Where it was looked for.
        beside: PathBuf,
    },
    /// A program of others is not on this machine.
    #[error("no {name}: install it; it was looked for at {looked}")]
    Missing {
        /// Its name.
        name: &'static str,
        /// Where it was looked for.
        looked: String,
    },
    /// It could not be started, or its log not be written.
    #[error("starting {name}")]
    Start {
        /// Which.
        name: String,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It ended although it should not have, or not well.
    #[error("{name} ended with {status}:\n{tail}")]
    Ended {
        /// Which.
        name: String,
        /// How.
        status: ExitStatus,
        /// The end of its log.
        tail: String,
    },
    /// It took too long.
    #[error("{name} was not done within {within:?}:\n{tail}")]
    Late {
        /// Which.
        name: String,
        /// How long it was given.
        within: Duration,
        /// The end of its log.
        tail: String,
    },
}

/// The program `name` of this workspace: beside the own executable, or one folder up (where test executables live).
///
/// # Errors
/// [`ProcessError::NotBuilt`] with the command that builds it.
pub fn beside(name: &str) -> Result<PathBuf, ProcessError> {
    let folder = env::current_exe().ok().and_then(|own| own.parent().map(Path::to_owned)).unwrap_or_default();
    let candidates = [Some(folder.as_path()), folder.parent()];
    let found = candidates.into_iter().flatten().map(|folder| folder.join(name)).find(|path| path.is_file());
    found.ok_or_else(|| ProcessError::NotBuilt { name: name.to_owned(), beside: folder.clone() })
}

/// What to start, as often as wanted.
#[derive(Clone, Debug)]
pub struct Program {
    name: String,
    path: PathBuf,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    log: PathBuf,
}

impl Program {
    /// The program at `path`, called `name` in messages, writing its output to the file `log`.
    #[must_use]
    pub fn new(name: &str, path: PathBuf, log: PathBuf) -> Self {
        Self { name: name.to_owned(), path, arguments: Vec::new(), environment: Vec::new(), log }
    }

    /// With one more argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// With more arguments.
    #[must_use]
    pub fn args<A: AsRef<OsStr>>(mut self, arguments: impl IntoIterator<Item = A>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|argument| argument.as_ref().to_owned()));
        self
    }

    /// With one more environment variable.
    #[must_use]
    pub fn env(mut self, key: &str, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((key.into(), value.as_ref().to_owned()));
        self
    }

    /// Where its output goes.
    #[must_use]
    pub fn log(&self) -> &Path {
        &self.log
    }

    /// Starts it. Its output is appended to its log. Call this from a thread that lives as long as the child shall: where the
    /// system can, it ends the child with the thread that started it, so that nothing is left even after a kill -9.
    ///
    /// # Errors
    /// [`ProcessError::Start`].
    pub fn start(&self) -> Result<Process, ProcessError> {
        let output = |log: &File| log.try_clone().map(Stdio::from);
        let log = self.open_log()?;
        let _alone = spawning();
        let child = output(&log).and_then(|out| self.command().stdout(out).stderr(log).spawn());
        let child = child.map_err(|source| self.not_started(source))?;
        Ok(Process { program: self.clone(), child })
    }

    /// Runs it to its end and returns what it printed. What it says on standard error goes to its log.
    ///
    /// # Errors
    /// [`ProcessError::Ended`] when it fails, [`ProcessError::Late`] when it takes longer than `within` (it is then killed).
    pub fn run(&self, within: Duration) -> Result<String, ProcessError> {
        let log = self.open_log()?;
        let child = {
            let _alone = spawning();
            self.command().stdout(Stdio::piped()).stderr(log).spawn()
        };
        let mut process = Process { program: self.clone(), child: child.map_err(|source| self.not_started(source))? };
        // A pipe holds 64 KiB; what prints more than that runs into the deadline. The commands run here print a line or two.
        let Some(status) = process.ended_within(within) else {
            process.kill();
            return Err(ProcessError::Late { name: self.name.clone(), within, tail: self.log_tail() });
        };
        let mut printed = String::new();
        if let Some(mut out) = process.child.stdout.take() {
            out.read_to_string(&mut printed).map_err(|source| self.not_started(source))?;
        }
        if status.success() {
            return Ok(printed);
        }
        Err(ProcessError::Ended { name: self.name.clone(), status, tail: format!("{printed}{}", self.log_tail()) })
    }

    fn command(&self) -> Command {
        // setpriv keeps the process id and asks the kernel to kill the child when the thread that started it ends.
        let wrapper = Path::new("/usr/bin/setpriv");
        let mut command = if wrapper.is_file() {
            let mut command = Command::new(wrapper);
            command.args(["--pdeathsig", "KILL", "--"]).arg(&self.path);
            command
        } else {
            Command::new(&self.path)
        };
        command.args(&self.arguments).envs(self.environment.iter().map(|(key, value)| (key, value))).stdin(Stdio::null());
        command
    }

    fn open_log(&self) -> Result<File, ProcessError> {
        OpenOptions::new().create(true).append(true).open(&self.log).map_err(|source| self.not_started(source))
    }

    fn log_tail(&self) -> String {
        let read = || -> io::Result<String> {
            let mut file = File::open(&self.log)?;
            let length = file.metadata()?.len();
            file.seek(SeekFrom::Start(length.saturating_sub(LOG_TAIL_BYTES)))?;
            let mut bytes = Vec::new();
            file.read_to_end(&mut bytes)?;
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        };
        read().unwrap_or_else(|error| format!("(its log {} cannot be read: {error})", self.log.display()))
    }

    fn not_started(&self, source: io::Error) -> ProcessError {
        ProcessError::Start { name: self.name.clone(), source }
    }

    fn ended(&self, status: ExitStatus) -> ProcessError {
        ProcessError::Ended { name: self.name.clone(), status, tail: self.log_tail() }
    }
}

/// A running child. Dropping it kills it.
#[derive(Debug)]
pub struct Process {
    program: Program,
    child: Child,
}

impl Process {
    /// Its process id.
    #[must_use]
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// What was started.
    #[must_use]
    pub fn program(&self) -> &Program {
        &self.program
    }

    /// Whether it still runs.
    ///
    /// # Errors
    /// [`ProcessError::Ended`] with the end of its log.
    pub fn check(&mut self) -> Result<(), ProcessError> {
        match self.child.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(self.program.ended(status)),
            Err(source) => Err(self.program.not_started(source)),
        }
    }

    /// Kills it at once, as kill -9 does, and collects it.
    pub fn kill(&mut self) {
        // Both fail only for a child that has been collected already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end (SIGTERM) and kills it when it has not after `within`. Returns how it ended; absent when it was killed.
    pub fn stop(&mut self, within: Duration) -> Option<ExitStatus> {
        if let Ok(Some(status)) = self.child.try_wait() {
            return Some(status);
        }
        let id = self.child.id().to_string();
        let asked = Command::new("sh").args(["-c", "kill -TERM \"$1\"", "sh", &id]).status().is_ok_and(|status| status.success());
        let status = if asked { self.ended_within(within) } else { None };
        if status.is_none() {
            self.kill();
        }
        status
    }

    fn ended_within(&mut self, within: Duration) -> Option<ExitStatus> {
        let until = Instant::now() + within;
        loop {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Some(status);
            }
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.kill();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> (tempfile::TempDir, Program) {
        let folder = tempfile::tempdir().expect("folder");
        let program = Program::new("shell", "/bin/sh".into(), folder.path().join("log")).args(["-c", script]);
        (folder, program)
    }

    #[test]
    fn a_command_returns_what_it_prints() {
        let (_folder, program) = shell("echo said; echo logged >&2");
        assert_eq!(program.run(Duration::from_secs(10)).expect("runs"), "said\n");
        assert_eq!(program.log_tail(), "logged\n");
    }

    #[test]
    fn a_failure_shows_the_end_of_the_log() {
        let (_folder, program) = shell("echo because >&2; exit 3");
        let error = program.run(Duration::from_secs(10)).expect_err("fails").to_string();
        assert!(error.contains("because") && error.contains('3'), "{error}");
    }

    #[test]
    fn a_late_command_is_killed() {
        let (_folder, program) = shell("sleep 600");
        assert!(matches!(program.run(Duration::from_millis(50)), Err(ProcessError::Late { .. })));
    }

    #[test]
    fn a_child_is_asked_first_and_killed_when_it_will_not_hear() {
        let (_folder, program) = shell("trap 'exit 7' TERM; echo ready; while :; do sleep 0.01; done");
        let mut process = program.start().expect("starts");
        while program.log_tail() != "ready\n" {
            process.check().expect("runs");
            thread::yield_now();
        }
        assert_eq!(process.stop(Duration::from_secs(10)).and_then(|status| status.code()), Some(7));
        let (_folder, program) = shell("trap '' TERM; echo ready; while :; do sleep 0.01; done");
        let mut process = program.start().expect("starts");
        while program.log_tail() != "ready\n" {
            process.check().expect("runs");
            thread::yield_now();
        }
        assert!(process.stop(Duration::from_millis(50)).is_none());
        assert!(matches!(process.check(), Err(ProcessError::Ended { .. })));
    }

    #[test]
    fn a_dropped_child_is_gone() {
        let (_folder, program) = shell("sleep 600");
        let process = program.start().expect("starts");
        let proc = PathBuf::from(format!("/proc/{}", process.id()));
        assert!(proc.exists());
        drop(process);
        assert!(!proc.exists());
    }

    #[test]
    fn a_child_does_not_outlive_the_thread_that_started_it() {
        if !Path::new("/usr/bin/setpriv").is_file() {
            return; // the guard alone must do here
        }
        let (_folder, program) = shell("echo ready; sleep 600");
        let log = program.clone();
        let mut process = thread::spawn(move || {
            let process = program.start().expect("starts");
            while program.log_tail() != "ready\n" {
                thread::yield_now();
            }
            process
        })
        .join()
        .expect("started");
        assert!(process.ended_within(Duration::from_secs(10)).is_some(), "{}", log.log_tail());
    }
}
