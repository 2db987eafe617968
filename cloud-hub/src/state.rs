//! The hub's state folder: what lies where, who may read it, and that only one hub uses it at a time.

use crate::ca::{Authority, CaError};
use crate::clock::UnixTime;
use crate::store::{Db, Meta, RecordLimits, Store, StoreError};
use serde::{Deserialize, Serialize};
use shared::ids::NodeId;
use shared_net::host::{StateError as LockError, StateFolder, write_private};
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

const ADMIN_KEY_FILE: &str = "admin.key";
const ADDRESSES_FILE: &str = "addresses.json";
const DATABASE_FILE: &str = "hub.db";

/// What went wrong with the state folder.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// There is nothing there.
    #[error("{0} is no state folder of a hub: make one with `cloud-hub init --state {0}`")]
    NotInitialised(PathBuf),
    /// There is already something there.
    #[error("{0} already holds a hub's state: every node trusts the authority in it, so it is not overwritten")]
    Already(PathBuf),
    /// A running hub holds it, or it cannot be used at all.
    #[error(transparent)]
    Folder(#[from] LockError),
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

    /// Makes the folder with authority, admin key and an empty database. Where only the database is missing, it alone is made anew:
    /// every node trusts the authority that is there, and is known again when it next says hello.
    ///
    /// # Errors
    /// [`StateError::Already`] when there is one.
    pub fn init(&self, hub: &NodeId, address: &str, now: UnixTime) -> Result<Authority, StateError> {
        let _held = StateFolder::open(&self.0)?;
        if self.database().exists() {
            return Err(StateError::Already(self.0.clone()));
        }
        let authority = if self.initialised().is_ok() {
            Authority::open(&self.0)?
        } else {
            let authority = Authority::create(&self.0, hub, now)?;
            let key = hex::encode(rand::random::<[u8; 32]>());
            write_private(&self.0.join(ADMIN_KEY_FILE), key.as_bytes())
                .map_err(|source| self.file("writing", ADMIN_KEY_FILE, source))?;
            authority
        };
        Store::create(&self.database(), hub, address, now)?;
        Ok(authority)
    }

    /// Takes the folder for this process.
    ///
    /// # Errors
    /// [`StateError::Folder`] when a hub has it.
    pub fn lock(&self) -> Result<StateFolder, StateError> {
        self.initialised()?;
        Ok(StateFolder::open(&self.0)?)
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

    /// Who the hub is. May be read while it runs.
    ///
    /// # Errors
    /// [`StateError`] says what is missing.
    pub fn read_meta(&self) -> Result<Meta, StateError> {
        self.initialised()?;
        Ok(Db::open(&self.database(), RecordLimits::default())?.meta()?)
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
        write_private(&self.0.join(ADDRESSES_FILE), &text).map_err(|source| self.file("writing", ADDRESSES_FILE, source))
    }

    fn initialised(&self) -> Result<(), StateError> {
        if self.0.join(ADMIN_KEY_FILE).exists() { Ok(()) } else { Err(StateError::NotInitialised(self.0.clone())) }
    }

    fn file(&self, doing: &'static str, name: &str, source: io::Error) -> StateError {
        StateError::File { doing, path: self.0.join(name), source }
    }
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
        // A lost database is made anew under the same authority.
        fs::remove_file(state.database()).expect("there");
        let again = state.init(&hub(), "127.0.0.1:7443", UnixTime(1_800_000_000)).expect("made again");
        assert_eq!(again.fingerprint(), made.fingerprint());
        let held = state.lock().expect("free");
        assert!(matches!(state.lock(), Err(StateError::Folder(LockError::InUse(_)))));
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
