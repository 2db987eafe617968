//! One file that holds a hub: its database, its authority, its keys. Made while it runs, put back into a fresh folder.
//!
//! What happened after a backup is not in it. The hub continues above what its nodes have seen, since each of them says so; but
//! nobody tells it whom it had thrown out meanwhile, so a restore says how old the backup is and that revocations must be repeated.

use crate::clock::UnixTime;
use crate::state::{StateDir, StateError};
use crate::store::{Db, RecordLimits, StoreError, copies};
use serde::{Deserialize, Serialize};
use shared::ids::NodeId;
use shared_net::host::{StateFolder, write_private};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// What a hub has beside its database. A missing one is no fault: some are made when they are first needed.
const FILES: [&str; 4] = ["ca.pem", "ca.key", "admin.key", "reset-secret"];
/// Those without which the file is no backup.
const NEEDED: [&str; 3] = ["ca.pem", "ca.key", "admin.key"];
/// Tells in a backup when it was made, and in a state folder when the last one was.
const MADE: &str = "last-backup";

/// Why there is no backup, or none was put back.
#[derive(Debug, thiserror::Error)]
pub enum BackupError {
    /// The state folder.
    #[error(transparent)]
    State(#[from] StateError),
    /// The database.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// There is such a file.
    #[error("{0} exists: give each backup a name of its own")]
    Exists(PathBuf),
    /// A file.
    #[error("{doing} {path}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It lacks something.
    #[error("{path} is no backup of a hub: it holds no {lacks}")]
    Lacks {
        /// Which file.
        path: PathBuf,
        /// What is missing.
        lacks: &'static str,
    },
}

/// What was put back.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Restored {
    /// The hub's name.
    pub hub: NodeId,
    /// When the backup was made.
    pub made: UnixTime,
    /// Join tokens that are void now.
    pub tokens: usize,
}

/// Writes a backup to `path`. The hub may run.
///
/// # Errors
/// [`BackupError`]; nothing is left at `path` then.
pub fn back_up(state: &StateDir, path: &Path, now: UnixTime) -> Result<(), BackupError> {
    if path.exists() {
        return Err(BackupError::Exists(path.to_owned()));
    }
    // Says by name what is missing.
    state.authority()?;
    state.admin_key()?;
    let mut files = vec![(MADE.to_owned(), now.0.to_string().into_bytes())];
    for name in FILES {
        let file = state.path().join(name);
        match fs::read(&file) {
            Ok(bytes) => files.push((name.to_owned(), bytes)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(BackupError::File { doing: "reading", path: file, source }),
        }
    }
    let partial = path.with_extension("partial");
    drop(fs::remove_file(&partial));
    let written = Db::open(&state.database(), RecordLimits::default()).and_then(|db| db.copy_to(&partial, &files));
    if let Err(error) = written {
        drop(fs::remove_file(&partial));
        return Err(error.into());
    }
    let file = |doing| move |source| BackupError::File { doing, path: path.to_owned(), source };
    fs::File::open(&partial).and_then(|copy| copy.sync_all()).map_err(file("writing"))?;
    fs::rename(&partial, path).map_err(file("naming"))?;
    let noted = state.path().join(MADE);
    write_private(&noted, now.0.to_string().as_bytes()).map_err(|source| BackupError::File {
        doing: "writing",
        path: noted,
        source,
    })
}

/// Makes a state folder from a backup. There must be none.
///
/// # Errors
/// [`BackupError`] says what is in the way.
pub fn restore(state: &StateDir, path: &Path) -> Result<Restored, BackupError> {
    if state.database().exists() || state.admin_key().is_ok() {
        return Err(StateError::Already(state.path().to_owned()).into());
    }
    let files = copies::files_of(path)?;
    let lacking = NEEDED.into_iter().find(|name| !files.iter().any(|(held, _)| held == name));
    if let Some(lacks) = lacking {
        return Err(BackupError::Lacks { path: path.to_owned(), lacks });
    }
    let _held = StateFolder::open(state.path()).map_err(StateError::from)?;
    let tokens = copies::put_back(path, &state.database())?;
    for (name, bytes) in files.iter().filter(|(name, _)| FILES.contains(&name.as_str()) || name == MADE) {
        let file = state.path().join(name);
        write_private(&file, bytes).map_err(|source| BackupError::File { doing: "writing", path: file.clone(), source })?;
    }
    // Reads all of it once, as a hub would.
    let hub = state.read_meta()?.hub;
    state.authority()?;
    Ok(Restored { hub, made: made(state).unwrap_or_default(), tokens })
}

/// When the last backup of this folder was made, if one was.
#[must_use]
pub fn made(state: &StateDir) -> Option<UnixTime> {
    fs::read_to_string(state.path().join(MADE)).ok()?.trim().parse().ok().map(UnixTime)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::NewToken;
    use shared::ids::ScopeId;

    const NOW: UnixTime = UnixTime(1_800_000_000);

    fn hub(folder: &Path) -> StateDir {
        let state = StateDir::at(folder.join("hub"));
        state.init(&NodeId::new("cloud/hub").expect("good"), "127.0.0.1:7443", NOW).expect("made");
        let mut db = Db::open(&state.database(), RecordLimits::default()).expect("open");
        db.update_meta(|meta| meta.incarnation = 7).expect("written");
        let site = ScopeId::new("bay").expect("good");
        let token = NewToken { site, labels: Default::default(), uses: 1, expires: UnixTime(NOW.0 + 60) };
        db.add_token(&[7; 32], &token, NOW).expect("kept");
        state
    }

    #[test]
    fn what_is_put_back_is_the_same_hub_without_its_tokens() {
        let temp = tempfile::tempdir().expect("temp");
        let state = hub(temp.path());
        let file = temp.path().join("hub.backup");
        back_up(&state, &file, NOW).expect("backed up");
        assert_eq!(made(&state), Some(NOW));
        assert!(matches!(back_up(&state, &file, NOW), Err(BackupError::Exists(_))));
        assert!(matches!(restore(&state, &file), Err(BackupError::State(StateError::Already(_)))));

        let fresh = StateDir::at(temp.path().join("fresh"));
        let restored = restore(&fresh, &file).expect("restored");
        assert_eq!((restored.hub.as_str(), restored.made, restored.tokens), ("cloud/hub", NOW, 1));
        assert_eq!(fresh.read_meta().expect("whole").incarnation, 7);
        assert_eq!(fresh.authority().expect("there").fingerprint(), state.authority().expect("there").fingerprint());
        assert_eq!(fresh.admin_key().expect("there"), state.admin_key().expect("there"));
    }

    #[cfg(unix)]
    #[test]
    fn a_backup_is_for_its_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().expect("temp");
        let file = temp.path().join("hub.backup");
        back_up(&hub(temp.path()), &file, NOW).expect("backed up");
        let fresh = StateDir::at(temp.path().join("fresh"));
        restore(&fresh, &file).expect("restored");
        for path in [file, fresh.database(), fresh.path().join("ca.key"), fresh.path().join("admin.key")] {
            let mode = fs::metadata(&path).expect("there").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{} has mode {mode:o}", path.display());
        }
    }

    #[test]
    fn what_is_no_backup_is_told() {
        let temp = tempfile::tempdir().expect("temp");
        let fresh = StateDir::at(temp.path().join("fresh"));
        let file = temp.path().join("other");
        assert!(restore(&fresh, &file).expect_err("none").to_string().contains("no file"));
        fs::write(&file, "not a database at all, but long enough to be taken for the head of one, perhaps").expect("written");
        restore(&fresh, &file).expect_err("no database");
        let state = hub(temp.path());
        let error = restore(&fresh, &state.database()).expect_err("a database, and no backup").to_string();
        assert!(error.contains("backup"), "{error}");
        // Cut short.
        let whole = temp.path().join("hub.backup");
        back_up(&state, &whole, NOW).expect("backed up");
        let bytes = fs::read(&whole).expect("read");
        fs::write(&whole, &bytes[..bytes.len() / 2]).expect("cut");
        restore(&fresh, &whole).expect_err("damaged");
        assert!(!fresh.path().exists(), "nothing is left of what failed");
    }
}
