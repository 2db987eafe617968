//! What the hub must not forget, in one SQLite file: registry, certificates, tokens, services, plan epochs, records.
//!
//! One thread writes, fed by a bounded inbox, so that no async task ever waits for a disk. [`Db`] holds the plain synchronous
//! functions; [`Store`] is the handle to the thread. Everything but records is durable when the call returns (kill -9 and power
//! loss alike); records may lose the last moments at power loss, never at a kill. Text of requests must never come here.

pub(crate) mod copies;
mod keys;
mod meta;
mod plans;
mod records;
pub(crate) mod registry;
mod schema;
mod services;
pub(crate) mod tokens;

#[cfg(test)]
mod tests;

pub use meta::Meta;
pub use records::{RecordLimits, StoredRecord};
pub use registry::{Certified, NodeRow, StoredCertificate};
pub use services::CatalogueError;
pub use tokens::{NewToken, TokenRow};

use crate::clock::UnixTime;
use rusqlite::Connection;
use shared::ids::NodeId;
use shared::plan::Record;
use std::path::{Path, PathBuf};
use std::thread::JoinHandle;
use tokio::sync::{mpsc, oneshot};

/// Calls that may wait for the writer. At about 1 ms a durable write this is a second of work; further callers wait their turn,
/// and further records are dropped and counted.
const INBOX_MAX: usize = 1024;

/// What went wrong with the database.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// SQLite refused.
    #[error("{doing}")]
    Sqlite {
        /// What was being done.
        doing: &'static str,
        /// What SQLite said.
        #[source]
        source: rusqlite::Error,
    },
    /// There is none.
    #[error("there is no database at {0}: make one with `cloud-hub init`")]
    Missing(PathBuf),
    /// A newer program wrote it.
    #[error("the database has schema version {found}, this program knows up to {known}: use the newer program that wrote it")]
    TooNew {
        /// Of the file.
        found: i64,
        /// Highest known.
        known: i64,
    },
    /// A row does not hold what it should.
    #[error("{what} in the database is damaged: {why}")]
    Damaged {
        /// Which.
        what: &'static str,
        /// What is wrong.
        why: String,
    },
    /// More than the store may hold.
    #[error("there are already {max} {what}")]
    Full {
        /// Of what.
        what: &'static str,
        /// How many at most.
        max: u64,
    },
    /// The writer has ended: the hub is stopping.
    #[error("the hub's store is closed")]
    Closed,
}

/// Names what was being done when SQLite refused.
pub(crate) fn doing(doing: &'static str) -> impl FnOnce(rusqlite::Error) -> StoreError {
    move |source| StoreError::Sqlite { doing, source }
}

/// The open database: plain functions, for the writer's thread and for commands while no hub runs.
#[derive(Debug)]
pub struct Db {
    /// Durable at commit.
    pub(crate) durable: Connection,
    /// For records: survives a kill, may lose the last moments at power loss, and does not wait for the disk.
    pub(crate) quick: Connection,
    pub(crate) held: records::Held,
    pub(crate) limits: RecordLimits,
}

type Job = Box<dyn FnOnce(&mut Db) + Send>;

/// Handle to the writer's thread.
#[derive(Clone, Debug)]
pub struct Store {
    inbox: mpsc::Sender<Job>,
}

/// Owns the writer's thread.
#[derive(Debug)]
pub struct StoreThread(JoinHandle<()>);

impl StoreThread {
    /// Waits until everything that was asked for is written. All [`Store`] handles must be gone.
    pub fn join(self) {
        // A panic of the writer has already been printed; there is nothing left to save.
        let _ = self.0.join();
    }
}

impl Store {
    /// Makes an empty database.
    ///
    /// # Errors
    /// [`StoreError`] when the file cannot be written.
    pub fn create(path: &Path, hub: &NodeId, address: &str, now: UnixTime) -> Result<(), StoreError> {
        schema::create(path, &Meta::new(hub.clone(), address.to_owned(), now))
    }

    /// Starts the writer.
    ///
    /// # Errors
    /// [`StoreError`] when its thread cannot be had.
    pub fn start(db: Db) -> Result<(Self, StoreThread), StoreError> {
        let (inbox, mut jobs) = mpsc::channel::<Job>(INBOX_MAX);
        let mut db = db;
        let thread = std::thread::Builder::new().name("hub-store".to_owned()).spawn(move || {
            while let Some(job) = jobs.blocking_recv() {
                job(&mut db);
            }
        });
        let thread = thread.map_err(|error| StoreError::Damaged { what: "the writer's thread", why: error.to_string() })?;
        Ok((Self { inbox }, StoreThread(thread)))
    }

    /// Runs `call` on the writer's thread and waits for its answer.
    ///
    /// # Errors
    /// [`StoreError::Closed`] when the hub is stopping, else whatever `call` returns.
    pub async fn call<T, E, F>(&self, call: F) -> Result<T, E>
    where
        T: Send + 'static,
        E: From<StoreError> + Send + 'static,
        F: FnOnce(&mut Db) -> Result<T, E> + Send + 'static,
    {
        let (answer, answered) = oneshot::channel();
        // The caller may have gone away; then nobody wants the answer.
        let job: Job = Box::new(move |db| drop(answer.send(call(db))));
        self.inbox.send(job).await.map_err(|_| StoreError::Closed)?;
        answered.await.map_err(|_| StoreError::Closed)?
    }

    /// Keeps a record without waiting. False when the writer is too far behind: the record is then lost, and should be counted.
    #[must_use]
    pub fn keep_record(&self, record: Box<Record>, at: UnixTime) -> bool {
        let job: Job = Box::new(move |db| {
            if let Err(error) = db.add_record(&record, at) {
                tracing::error!(error = &error as &dyn std::error::Error, "a record could not be kept");
            }
        });
        self.inbox.try_send(job).is_ok()
    }
}
