//! What is written down of a managed server, so that the next agent finds it: one file each in the state folder.
//!
//! It is written before the server is started (with its mark) and again when its process is known. An agent that dies between the two
//! leaves a server that is found by the mark.

use super::process::{self, Identity};
use serde::{Deserialize, Serialize};
use shared::ids::VariantId;
use shared_net::host::write_private;
use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The folder in the state folder.
const FOLDER: &str = "managed";
/// How long a server may take to end that nobody wants any more.
const ORPHAN_GRACE: Duration = Duration::from_secs(2);

/// A server that was started.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// For whom.
    pub(super) variant: VariantId,
    /// Hash of what it was started with.
    pub(super) spec: String,
    /// What it and its children carry in their environment.
    pub(super) mark: String,
    /// Where it listens.
    pub(super) port: u16,
    /// In which run of the machine.
    pub(super) boot: String,
    /// Its process; absent when the agent that started it did not get to write it down.
    pub(super) process: Option<Identity>,
}

impl Record {
    /// The process, if it is still the one that was started.
    pub(super) fn found(&self) -> Option<Identity> {
        if self.boot != process::boot() {
            return None;
        }
        match self.process {
            Some(process) => Some(process).filter(|process| process.alive()),
            // The first that carried the mark started the others.
            None => process::marked(&self.mark).into_iter().min_by_key(|process| process.started),
        }
    }

    /// Ends whatever of it is left. False when something stayed.
    pub(super) async fn end(&self, grace: Duration) -> bool {
        process::end(self.found(), &self.mark, grace).await
    }
}

/// The files of one server.
#[derive(Clone, Debug)]
pub(super) struct Files {
    folder: PathBuf,
    stem: String,
}

impl Files {
    pub(super) fn of(state: &Path, variant: &VariantId) -> Self {
        // No name holds a plus, so no two servers share a file.
        Self { folder: state.join(FOLDER), stem: variant.as_str().replace('/', "+") }
    }

    fn record(&self) -> PathBuf {
        self.folder.join(format!("{}.json", self.stem))
    }

    /// Where its output goes.
    pub(super) fn log(&self) -> PathBuf {
        self.folder.join(format!("{}.log", self.stem))
    }

    /// What was written down. A file that cannot be understood is as good as none, and is said so.
    pub(super) fn read(&self) -> Option<Record> {
        read(&self.record())
    }

    pub(super) fn write(&self, record: &Record) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        write_private(&self.record(), &serde_json::to_vec(record).map_err(io::Error::other)?)
    }

    pub(super) fn remove(&self) {
        remove(&self.record());
    }
}

fn read(path: &Path) -> Option<Record> {
    let bytes = fs::read(path).ok()?;
    let record = serde_json::from_slice(&bytes);
    if let Err(error) = &record {
        tracing::warn!(path = %path.display(), %error, "the record of a managed server cannot be understood");
    }
    record.ok()
}

fn remove(path: &Path) {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "the record of a managed server stays");
        }
        _ => {}
    }
}

/// Ends the servers of engines that are not configured any more. To be called before engines start: memory that an orphan holds is
/// missing then.
pub async fn sweep(state: &Path, configured: &BTreeSet<VariantId>) {
    for entry in fs::read_dir(state.join(FOLDER)).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.extension().is_none_or(|extension| extension != "json") {
            continue;
        }
        let Some(record) = read(&path).filter(|record| !configured.contains(&record.variant)) else { continue };
        if let Some(process) = record.found() {
            tracing::warn!(variant = %record.variant, pid = process.pid, "ending a server whose engine is not configured any more");
        }
        if record.end(ORPHAN_GRACE).await {
            remove(&path);
        } else {
            tracing::error!(variant = %record.variant, "a server whose engine is not configured any more cannot be ended");
        }
    }
}
