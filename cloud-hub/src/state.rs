//! The hub's state folder: what lies where, who may read it, and that only one hub uses it at a time.

use crate::ca::{Authority, CaError};
use crate::clock::UnixTime;
use crate::store::{Store, StoreError};
use serde::{Deserialize, Serialize};
use shared::ids::NodeId;
use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const ADMIN_KEY_FILE: &str = "admin.key";
const ADDRESSES_FILE: &str = "addresses.json";
const DATABASE_FILE: &str = "hub.db";
const LOCK_FILE: &str = "hub.lock";

/// What went wrong with the state folder.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// There is nothing there.
    #[error("{0} is no state folder of a hub: make one with `cloud-hub init --state {0}`")]
    NotInitialised(PathBuf),
    /// There is already something there.
    #[error("{0} already holds a hub's state: every node trusts the authority in it, so it is not overwritten")]
    Already(PathBuf),
    /// A running hub holds it.
    #[error("another hub is using {0}: two hubs must not share a state folder")]
    Locked(PathBuf),
    /// A file could not be read or written.
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
    /// A file does not hold what it should.
    #[error("{path} is damaged: {why}")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
    /// The authority could not be made or read.
    #[error("opening the fleet's authority")]
    Ca(#[from] CaError),
    /// The database could not be made or read.
    #[error("opening the hub's database")]
    Store(#[from] StoreError),
}

/// Where a running hub really listens, for tools and tests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Addresses {
    /// The QUIC endpoint of the agents (UDP).
    pub quic: SocketAddr,
    /// The OpenAI API.
    pub http: SocketAddr,
    /// The admin API and metrics.
    pub admin: SocketAddr,
    /// `host:port` of the MQTT broker, embedded or not.
    pub broker: String,
    /// Process id of the hub.
    pub pid: u32,
}

/// The state folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateDir(PathBuf);

/// Holds the folder for one hub; let go on drop, or by the system when the process dies.
#[derive(Debug)]
pub struct StateLock {
    _file: File,
}

impl StateDir {
    /// The folder at this path; nothing is read yet.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The database file.
    #[must_use]
    pub fn database(&self) -> PathBuf {
        self.0.join(DATABASE_FILE)
    }

    /// Where the embedded broker keeps retained messages.
    #[must_use]
    pub fn broker(&self) -> PathBuf {
        self.0.join("broker")
    }

    /// Makes the folder with authority, admin key and an empty database.
    ///
    /// # Errors
    /// [`StateError::Already`] when there is one.
    pub fn init(&self, hub: &NodeId, address: &str, now: UnixTime) -> Result<Authority, StateError> {
        fs::create_dir_all(&self.0).map_err(|source| self.file("making", "", source))?;
        restrict_folder(&self.0).map_err(|source| self.file("restricting", "", source))?;
        let _lock = self.lock()?;
        if self.database().exists() || self.0.join(ADMIN_KEY_FILE).exists() {
            return Err(StateError::Already(self.0.clone()));
        }
        let authority = Authority::create(&self.0, hub, now)?;
        let key = hex::encode(rand::random::<[u8; 32]>());
        write_private(&self.0.join(ADMIN_KEY_FILE), key.as_bytes(), true)
            .map_err(|source| self.file("writing", ADMIN_KEY_FILE, source))?;
        Store::create(&self.database(), hub, address, now)?;
        Ok(authority)
    }

    /// Takes the folder for this process.
    ///
    /// # Errors
    /// [`StateError::Locked`] when a hub has it.
    pub fn lock(&self) -> Result<StateLock, StateError> {
        let path = self.0.join(LOCK_FILE);
        let open = OpenOptions::new().create(true).write(true).truncate(false).open(&path);
        let file = open.map_err(|source| match source.kind() {
            io::ErrorKind::NotFound => StateError::NotInitialised(self.0.clone()),
            _ => self.file("opening", LOCK_FILE, source),
        })?;
        match file.try_lock() {
            Ok(()) => Ok(StateLock { _file: file }),
            Err(TryLockError::WouldBlock) => Err(StateError::Locked(self.0.clone())),
            Err(TryLockError::Error(source)) => Err(self.file("locking", LOCK_FILE, source)),
        }
    }

    /// The fleet's authority.
    ///
    /// # Errors
    /// [`StateError`] says what is missing.
    pub fn authority(&self) -> Result<Authority, StateError> {
        self.initialised()?;
        Ok(Authority::open(&self.0)?)
    }

    /// The secret of the admin API, made by `init`; there is no default one.
    ///
    /// # Errors
    /// [`StateError`] says what is missing.
    pub fn admin_key(&self) -> Result<String, StateError> {
        self.initialised()?;
        let path = self.0.join(ADMIN_KEY_FILE);
        let key = fs::read_to_string(&path).map_err(|source| self.file("reading", ADMIN_KEY_FILE, source))?;
        let key = key.trim().to_owned();
        if key.len() < 32 {
            return Err(StateError::Damaged { path, why: "want a key of at least 32 characters".to_owned() });
        }
        Ok(key)
    }

    /// Where the hub that uses this folder listens, or last listened.
    ///
    /// # Errors
    /// [`StateError::File`] when no hub ever ran here.
    pub fn addresses(&self) -> Result<Addresses, StateError> {
        let path = self.0.join(ADDRESSES_FILE);
        let text = fs::read_to_string(&path).map_err(|source| self.file("reading", ADDRESSES_FILE, source))?;
        serde_json::from_str(&text).map_err(|error| StateError::Damaged { path, why: error.to_string() })
    }

    /// Writes where the hub listens: whole or not at all, since tools read it at any time.
    ///
    /// # Errors
    /// [`StateError::File`] when the folder cannot be written.
    pub fn write_addresses(&self, addresses: &Addresses) -> Result<(), StateError> {
        let text = serde_json::to_vec_pretty(addresses).unwrap_or_default();
        let scratch = self.0.join("addresses.json.new");
        write_private(&scratch, &text, false)
            .and_then(|()| fs::rename(&scratch, self.0.join(ADDRESSES_FILE)))
            .map_err(|source| self.file("writing", ADDRESSES_FILE, source))
    }

    fn initialised(&self) -> Result<(), StateError> {
        if self.0.join(ADMIN_KEY_FILE).exists() { Ok(()) } else { Err(StateError::NotInitialised(self.0.clone())) }
    }

    fn file(&self, doing: &'static str, name: &str, source: io::Error) -> StateError {
        StateError::File { doing, path: self.0.join(name), source }
    }
}

/// Writes a file that only its owner may read, and makes it durable. With `fresh`, an existing file is an error.
pub(crate) fn write_private(path: &Path, bytes: &[u8], fresh: bool) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true);
    if fresh {
        options.create_new(true);
    } else {
        options.create(true).truncate(true);
    }
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(unix)]
fn restrict_folder(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o700))
}

#[cfg(not(unix))]
fn restrict_folder(_path: &Path) -> io::Result<()> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hub() -> NodeId {
        NodeId::new("cloud/hub").expect("good")
    }

    #[test]
    fn a_folder_is_made_once_and_held_once() {
        let temp = tempfile::tempdir().expect("temp");
        let state = StateDir::at(temp.path().join("hub"));
        assert!(matches!(state.admin_key(), Err(StateError::NotInitialised(_))));
        assert!(matches!(state.lock(), Err(StateError::NotInitialised(_))));
        let made = state.init(&hub(), "127.0.0.1:7443", UnixTime(1_800_000_000)).expect("made");
        assert_eq!(state.authority().expect("read").fingerprint(), made.fingerprint());
        assert!(matches!(state.init(&hub(), "127.0.0.1:7443", UnixTime(1_800_000_000)), Err(StateError::Already(_))));
        let held = state.lock().expect("free");
        assert!(matches!(state.lock(), Err(StateError::Locked(_))));
        drop(held);
        state.lock().expect("free again");
        assert_eq!(state.admin_key().expect("made").len(), 64);
    }

    #[cfg(unix)]
    #[test]
    fn secrets_are_for_the_owner_only() {
        use std::os::unix::fs::PermissionsExt;
        let temp = tempfile::tempdir().expect("temp");
        let state = StateDir::at(temp.path());
        state.init(&hub(), "127.0.0.1:7443", UnixTime(1_800_000_000)).expect("made");
        for name in ["ca.key", "admin.key", "hub.db"] {
            let mode = fs::metadata(temp.path().join(name)).expect("there").permissions().mode();
            assert_eq!(mode & 0o077, 0, "{name} has mode {mode:o}");
        }
    }
}
