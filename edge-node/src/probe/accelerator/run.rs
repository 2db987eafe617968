//! The parent's side of a look: starts the child, listens, and ends it with everything that it started, whatever it does.

use super::child::Line;
use super::listing::Listing;
use serde::{Deserialize, Serialize};
use std::collections::VecDeque;
use std::io;
use std::path::PathBuf;
use std::pin::pin;
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::{Instant, timeout};

/// Set for the child: whatever it starts can never begin a look of its own.
const MARK: &str = "TIDEGATE_PROBE";
/// Bytes that the child may say. A server with sixteen cards under three back ends says a tenth of it.
const SAID_MAX: u64 = 256 * 1024;
/// Lines of drivers' chatter that are told on, and bytes of each.
const NOISE_LINES_MAX: usize = 4;
/// Longer lines are cut.
const NOISE_BYTES_MAX: usize = 160;
/// How long the kernel may take to end a child that was killed. One that sits in a driver may never end; it is left then.
const KILLED_WITHIN: Duration = Duration::from_secs(2);
/// How long drivers' last words are waited for.
const LAST_WORDS: Duration = Duration::from_millis(200);
/// What the child gets of the limit to measure in; the rest is for drivers that start and end slowly.
const WORK_SHARE: f64 = 0.7;

/// How a look shall go wrong, for operators and tests that want to see the agent go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, clap::ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Drill {
    /// Not at all.
    #[default]
    Off,
    /// It never ends, and neither does a process that it starts.
    Hang,
    /// That process.
    #[serde(skip)]
    HangAlone,
    /// It dies of a signal.
    Crash,
    /// It never stops talking.
    Flood,
}

impl Drill {
    /// As the command line has it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Off => "off",
            Self::Hang => "hang",
            Self::HangAlone => "hang-alone",
            Self::Crash => "crash",
            Self::Flood => "flood",
        }
    }
}

/// How to look.
#[derive(Clone, Debug)]
pub struct Orders {
    /// The program that has the hidden command `probe-child`: this one.
    pub program: PathBuf,
    /// How long it may take.
    pub limit: Duration,
    /// Measure the CPU even where nothing is to be compared with it.
    pub always_cpu: bool,
    /// How to go wrong.
    pub drill: Drill,
}

impl Orders {
    /// The program that runs, even when its file was replaced meanwhile.
    #[must_use]
    pub fn own_program() -> PathBuf {
        if cfg!(target_os = "linux") { PathBuf::from("/proc/self/exe") } else { std::env::current_exe().unwrap_or_default() }
    }
}

/// Why a look failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// This is a child itself.
    #[error("a probe does not begin another one")]
    Nested,
    /// The child does not start.
    #[error("starting the probe's process")]
    Start(#[source] io::Error),
    /// Its output cannot be read.
    #[error("reading what the probe's process says")]
    Read(#[source] io::Error),
    /// It took too long.
    #[error("killed at its limit of {:.1} s while {doing}{noise}", .limit.as_secs_f64())]
    Limit {
        /// The limit.
        limit: Duration,
        /// What it did.
        doing: String,
        /// What drivers said.
        noise: String,
    },
    /// It died.
    #[error("ended with {status} while {doing}{noise}")]
    Died {
        /// How.
        status: ExitStatus,
        /// What it did.
        doing: String,
        /// What drivers said.
        noise: String,
    },
    /// It said too much, or nonsense.
    #[error("{what} while {doing}{noise}")]
    Nonsense {
        /// What was wrong.
        what: &'static str,
        /// What it did.
        doing: String,
        /// What drivers said.
        noise: String,
    },
}

/// A look that ended well.
#[derive(Clone, Debug)]
pub struct Look {
    /// What was seen.
    pub listing: Listing,
    /// How long it took.
    pub wall: Duration,
}

/// Looks once. The child is gone when this returns, and when its future is dropped.
///
/// # Errors
/// [`Failure`] with what the child did last, and what drivers said.
pub async fn look(orders: &Orders) -> Result<Look, Failure> {
    if std::env::var_os(MARK).is_some() {
        return Err(Failure::Nested);
    }
    let begun = Instant::now();
    let mut child = Group::new(command(orders).spawn().map_err(Failure::Start)?);
    let (mut story, mut noise) = (Story::default(), Noise::default());
    let ended = timeout(orders.limit, listen(&mut child, &mut story, &mut noise)).await;
    child.end().await;
    let (doing, noise) = (story.doing(), noise.summary());
    match ended {
        Err(_) => Err(Failure::Limit { limit: orders.limit, doing, noise }),
        Ok(Err(error)) => Err(Failure::Read(error)),
        Ok(Ok(None)) => Err(Failure::Nonsense { what: story.fault.unwrap_or("it made no sense"), doing, noise }),
        Ok(Ok(Some(status))) if !status.success() => Err(Failure::Died { status, doing, noise }),
        Ok(Ok(Some(_))) if !story.ended => Err(Failure::Nonsense { what: "it stopped in the middle", doing, noise }),
        Ok(Ok(Some(_))) => Ok(Look { listing: story.listing, wall: begun.elapsed() }),
    }
}

fn command(orders: &Orders) -> Command {
    let time = orders.limit.mul_f64(WORK_SHARE).as_millis();
    let mut command = Command::new(&orders.program);
    command.arg("probe-child").args(["--time-ms", &time.to_string()]);
    command.args(orders.always_cpu.then_some("--always-cpu"));
    command.args(["--drill", orders.drill.name()]);
    command.env(MARK, "1");
    // Nobody's screen is looked at, and no layer that a desktop puts between programs and drivers is measured.
    command.env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY").env("VK_LOADER_LAYERS_DISABLE", "~implicit~");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    #[cfg(unix)]
    command.process_group(0);
    command
}

/// Listens until the child has ended; nothing when it talks too much or nonsense, which is not waited for.
async fn listen(child: &mut Group, story: &mut Story, noise: &mut Noise) -> io::Result<Option<ExitStatus>> {
    let (out, err) = (child.process.stdout.take(), child.process.stderr.take());
    let (mut story, mut noise) = (pin!(story.listen(out)), pin!(noise.listen(err)));
    let mut quiet = false;
    let heard = loop {
        tokio::select! {
            heard = &mut story => break heard,
            () = &mut noise, if !quiet => quiet = true,
        }
    };
    match heard {
        Ok(()) => {}
        Err(Heard::Read(error)) => return Err(error),
        Err(Heard::Nonsense) => return Ok(None),
    }
    let status = child.process.wait().await?;
    if !quiet {
        // Whatever it left behind may hold the other end open.
        drop(timeout(LAST_WORDS, noise).await);
    }
    Ok(Some(status))
}

/// The child with everything that it starts: a process group of its own.
struct Group {
    process: Child,
    id: Option<u32>,
}

impl Group {
    fn new(process: Child) -> Self {
        Self { id: process.id(), process }
    }

    async fn end(&mut self) {
        self.kill();
        // An error says that there is nobody left to wait for.
        drop(timeout(KILLED_WITHIN, self.process.wait()).await);
    }

    /// Once. When the child was collected, that was microseconds ago: an id comes back after thousands of processes, and as long as
    /// something is left of its group it cannot come back at all.
    fn kill(&mut self) {
        let id = self.id.take();
        #[cfg(unix)]
        if let Some(group) = id.and_then(|id| rustix::process::Pid::from_raw(i32::try_from(id).ok()?)) {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        #[cfg(not(unix))]
        let _ = id.map(|_| self.process.start_kill());
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
    }
}

/// What was heard, and cannot be used.
enum Heard {
    Read(io::Error),
    Nonsense,
}

/// What the child says.
#[derive(Default)]
struct Story {
    listing: Listing,
    doing: Option<String>,
    ended: bool,
    fault: Option<&'static str>,
}

impl Story {
    async fn listen(&mut self, out: Option<impl AsyncRead + Unpin>) -> Result<(), Heard> {
        let Some(out) = out else { return Ok(()) };
        let (mut lines, mut text, mut said) = (BufReader::new(out.take(SAID_MAX)), String::new(), 0);
        loop {
            text.clear();
            match lines.read_line(&mut text).await {
                Ok(0) if said >= SAID_MAX => return self.give_up("it said more than any machine has to say"),
                Ok(0) => return Ok(()),
                Ok(bytes) => said += u64::try_from(bytes).unwrap_or(SAID_MAX),
                Err(error) if error.kind() == io::ErrorKind::InvalidData => return self.give_up("it said what is no text"),
                Err(error) => return Err(Heard::Read(error)),
            }
            match serde_json::from_str(&text) {
                Ok(Line::Doing(what)) => self.doing = Some(what.chars().take(NOISE_BYTES_MAX).collect()),
                Ok(line) => self.ended |= line.add_to(&mut self.listing),
                Err(_) if said >= SAID_MAX => {}
                Err(_) => return self.give_up("it said what nobody understands"),
            }
        }
    }

    fn give_up(&mut self, what: &'static str) -> Result<(), Heard> {
        self.fault = Some(what);
        Err(Heard::Nonsense)
    }

    fn doing(&self) -> String {
        self.doing.clone().unwrap_or_else(|| "starting".to_owned())
    }
}

/// What drivers print on standard error: often much, seldom useful, and sometimes the only word on why they crashed.
#[derive(Default)]
struct Noise {
    last: VecDeque<String>,
    more: u64,
}

impl Noise {
    async fn listen(&mut self, err: Option<impl AsyncRead + Unpin>) {
        let Some(err) = err else { return };
        let mut reader = BufReader::new(err);
        let mut bytes = Vec::new();
        loop {
            bytes.clear();
            // A line without end is cut into pieces.
            match (&mut reader).take(1_024).read_until(b'\n', &mut bytes).await {
                Ok(0) | Err(_) => return,
                Ok(_) => self.hear(String::from_utf8_lossy(&bytes).trim()),
            }
        }
    }

    fn hear(&mut self, line: &str) {
        let line: String = line.chars().filter(|c| !c.is_control()).take(NOISE_BYTES_MAX).collect();
        if line.is_empty() || self.last.contains(&line) {
            return;
        }
        self.last.push_back(line);
        if self.last.len() > NOISE_LINES_MAX {
            self.last.pop_front();
            self.more += 1;
        }
    }

    fn summary(&self) -> String {
        if self.last.is_empty() {
            return String::new();
        }
        let more = if self.more > 0 { format!(" ({} lines before)", self.more) } else { String::new() };
        format!("; drivers said{more}: {}", self.last.iter().map(String::as_str).collect::<Vec<_>>().join(" / "))
    }
}
