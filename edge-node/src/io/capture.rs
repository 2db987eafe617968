//! Captures: the agent's snapshot and everything it was told, so that the same decisions can be made again elsewhere.
//!
//! One JSON value a line: first the snapshot, then each event with its moment and a digest of the effects. No text of a request
//! is in it: none ever reaches the agent's logic.

use crate::logic::{Agent, AgentEffect, AgentEvent};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shared::units::Moment;
use std::fs::File;
use std::io::{self, BufRead, BufReader, BufWriter, Write};
use std::path::{Path, PathBuf};

/// Largest capture. A busy node writes about this in an hour; beyond it nothing more is captured, and the log says so.
pub const BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Why a capture cannot be made or replayed.
#[derive(Debug, thiserror::Error)]
pub enum CaptureError {
    /// The file cannot be read or written.
    #[error("{doing} the capture `{path}`")]
    File {
        /// What was being done.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A line cannot be understood.
    #[error("the capture `{path}`, line {line}: {why}")]
    Unreadable {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
        /// What the reader said.
        why: String,
    },
    /// The same event had other effects.
    #[error("the capture `{path}`, line {line}: the same event now has other effects")]
    Differs {
        /// Which file.
        path: PathBuf,
        /// Which line, from 1.
        line: usize,
    },
}

/// One line after the first.
#[derive(Serialize, Deserialize)]
struct Noted {
    now: Moment,
    event: AgentEvent,
    effects_sha256: String,
}

/// A capture that is being written.
pub(super) struct Capture {
    path: PathBuf,
    file: Option<BufWriter<File>>,
    bytes: u64,
}

impl Capture {
    /// Begins a capture with the agent as it is.
    pub(super) fn begin(path: &Path, agent: &Agent) -> Result<Self, CaptureError> {
        let failed = |source| CaptureError::File { doing: "beginning", path: path.to_owned(), source };
        let file = BufWriter::new(File::create(path).map_err(failed)?);
        let mut capture = Self { path: path.to_owned(), file: Some(file), bytes: 0 };
        capture.write(agent).map_err(failed)?;
        Ok(capture)
    }

    /// Notes an event and what came of it.
    pub(super) fn note(&mut self, now: Moment, event: &AgentEvent, effects: &[AgentEffect]) {
        #[derive(Serialize)]
        struct Line<'a> {
            now: Moment,
            event: &'a AgentEvent,
            effects_sha256: String,
        }
        if self.file.is_some()
            && let Err(error) = self.write(&Line { now, event, effects_sha256: digest(effects) })
        {
            tracing::error!(%error, path = %self.path.display(), "the capture ends here");
            self.file = None;
        }
    }

    fn write<T: Serialize>(&mut self, value: &T) -> io::Result<()> {
        let Some(file) = &mut self.file else { return Ok(()) };
        let mut line = serde_json::to_vec(value)?;
        line.push(b'\n');
        self.bytes += u64::try_from(line.len()).unwrap_or(u64::MAX);
        if self.bytes > BYTES_MAX {
            return Err(io::Error::other(format!("it has reached {BYTES_MAX} bytes")));
        }
        file.write_all(&line)
    }

    /// Brings everything to disk.
    pub(super) fn close(&mut self) {
        if let Some(Err(error)) = self.file.as_mut().map(Write::flush) {
            tracing::error!(%error, path = %self.path.display(), "the end of the capture was not written");
        }
    }
}

fn digest(effects: &[AgentEffect]) -> String {
    // Values of our own types always serialise.
    hex::encode(Sha256::digest(serde_json::to_vec(effects).unwrap_or_default()))
}

/// Tells the captured agent everything again. Returns how many events had the same effects.
///
/// # Errors
/// [`CaptureError`] names the first line that cannot be read or whose effects differ.
pub fn replay(path: &Path) -> Result<usize, CaptureError> {
    let failed = |source| CaptureError::File { doing: "reading", path: path.to_owned(), source };
    let mut agent: Option<Agent> = None;
    let mut replayed = 0;
    for (number, text) in (1..).zip(BufReader::new(File::open(path).map_err(failed)?).lines()) {
        let text = text.map_err(failed)?;
        let unreadable =
            |error: serde_json::Error| CaptureError::Unreadable { path: path.to_owned(), line: number, why: error.to_string() };
        let Some(agent) = &mut agent else {
            agent = Some(serde_json::from_str(&text).map_err(unreadable)?);
            continue;
        };
        let noted: Noted = serde_json::from_str(&text).map_err(unreadable)?;
        let mut effects = Vec::new();
        agent.handle(noted.now, noted.event, &mut effects);
        if digest(&effects) != noted.effects_sha256 {
            return Err(CaptureError::Differs { path: path.to_owned(), line: number });
        }
        replayed += 1;
    }
    Ok(replayed)
}
