//! API keys on the agent's disk: those of this node alone, and what all keys used of their day. Never a secret.

use super::store::{StoreError, read, write};
use shared::work::ClientKey;
use shared_net::host::StateFolder;
use shared_net::openai::{KeyRing, KeySource, KeyUsage};
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};
use tokio_util::sync::CancellationToken;

const KEYS_FILE: &str = "keys.json";
const USAGE_FILE: &str = "key-usage.json";
/// How often the file of keys is looked at, since a command may have changed it, and what was used is written down, where it
/// changed. A crash forgets this much of a day's use.
const EVERY: Duration = Duration::from_secs(1);

/// The keys of this node alone.
///
/// # Errors
/// [`StoreError`] when there is a file that cannot be used.
pub fn load(folder: &Path) -> Result<Vec<ClientKey>, StoreError> {
    Ok(read(&folder.join(KEYS_FILE))?.transpose()?.unwrap_or_default())
}

/// Writes them, whole or not at all. A running agent has them within a second.
///
/// # Errors
/// [`StoreError::File`].
pub fn save(folder: &Path, keys: &[ClientKey]) -> Result<(), StoreError> {
    write(&folder.join(KEYS_FILE), &keys)
}

/// What an earlier life counted. A damaged file counts as none: a board that lost power must not refuse its clients for it.
fn load_usage(folder: &Path) -> Vec<KeyUsage> {
    match read(&folder.join(USAGE_FILE)) {
        Ok(Some(Ok(usage))) => usage,
        Ok(None) => Vec::new(),
        Ok(Some(Err(error))) | Err(error) => {
            let error: StoreError = error;
            tracing::warn!(%error, "starting the day of API keys anew");
            Vec::new()
        }
    }
}

/// Keeps the ring and the disk alike.
#[derive(Debug)]
pub(super) struct Keeper {
    folder: Arc<StateFolder>,
    ring: KeyRing,
    seen: Option<(SystemTime, u64)>,
    kept: Vec<KeyUsage>,
}

impl Keeper {
    /// With the keys and the counts that are there.
    pub(super) fn start(folder: Arc<StateFolder>, ring: KeyRing) -> Result<Self, StoreError> {
        ring.set(KeySource::Node, load(folder.path())?);
        let kept = load_usage(folder.path());
        ring.restore(&kept);
        let seen = stamp(folder.path());
        Ok(Self { folder, ring, seen, kept })
    }

    /// Until `stop`, and once more then.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        loop {
            let stopped = tokio::select! {
                biased;
                () = stop.cancelled() => true,
                () = tokio::time::sleep(EVERY) => false,
            };
            self.once().await;
            if stopped {
                return;
            }
        }
    }

    async fn once(&mut self) {
        let seen = stamp(self.folder.path());
        if seen != self.seen {
            self.seen = seen;
            match load(self.folder.path()) {
                Ok(keys) => self.ring.set(KeySource::Node, keys),
                Err(error) => tracing::error!(%error, "the node's API keys stay as they were"),
            }
        }
        let usage = self.ring.usage();
        if usage == self.kept {
            return;
        }
        let (path, written) = (self.folder.join(USAGE_FILE), usage.clone());
        match tokio::task::spawn_blocking(move || write(&path, &written)).await {
            Ok(Ok(())) => self.kept = usage,
            Ok(Err(error)) => tracing::error!(%error, "what API keys used was not kept"),
            // The process ends.
            Err(_) => {}
        }
    }
}

fn stamp(folder: &Path) -> Option<(SystemTime, u64)> {
    let data = std::fs::metadata(folder.join(KEYS_FILE)).ok()?;
    Some((data.modified().ok()?, data.len()))
}
