//! Tables, and how a file of an older version becomes one of this.

use super::records::Held;
use super::{Db, Meta, RecordLimits, StoreError, doing};
use rusqlite::{Connection, OpenFlags};
use std::path::Path;
use std::time::Duration;

/// Version of the tables below, kept in SQLite's `user_version`.
const SCHEMA_VERSION: i64 = 1;

/// How long a command waits while the hub writes, before it gives up.
const BUSY_WAIT: Duration = Duration::from_secs(5);

/// The write-ahead log shrinks back to this after a checkpoint: a burst must not keep the disk.
const LOG_BYTES_KEPT: u64 = 4 * 1024 * 1024;

const TABLES: &str = "
CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT;
CREATE TABLE nodes (
    id TEXT PRIMARY KEY, labels TEXT NOT NULL, joined INTEGER NOT NULL, drained INTEGER NOT NULL DEFAULT 0,
    revoked INTEGER, key_sha256 BLOB, token BLOB
) STRICT;
CREATE TABLE certificates (serial TEXT PRIMARY KEY, node TEXT NOT NULL, expires INTEGER NOT NULL, revoked INTEGER) STRICT;
CREATE INDEX certificates_by_node ON certificates (node);
CREATE TABLE tokens (
    secret_sha256 BLOB PRIMARY KEY, site TEXT NOT NULL, labels TEXT NOT NULL, uses INTEGER NOT NULL, uses_left INTEGER NOT NULL,
    expires INTEGER NOT NULL, created INTEGER NOT NULL
) STRICT;
CREATE TABLE services (id TEXT PRIMARY KEY, json TEXT NOT NULL) STRICT;
CREATE TABLE plans (
    scope TEXT NOT NULL, layer TEXT NOT NULL, incarnation INTEGER NOT NULL, sequence INTEGER NOT NULL, json TEXT NOT NULL,
    PRIMARY KEY (scope, layer)
) STRICT;
CREATE TABLE records (
    number INTEGER PRIMARY KEY AUTOINCREMENT, request TEXT NOT NULL, at INTEGER NOT NULL, bytes INTEGER NOT NULL, json TEXT NOT NULL
) STRICT;
CREATE INDEX records_by_request ON records (request);
";

/// Makes a new file with empty tables.
pub(super) fn create(path: &Path, meta: &Meta) -> Result<(), StoreError> {
    // SQLite would make the file readable for others; its log files take over the mode of the file.
    shared_net::host::write_private(path, b"")
        .map_err(|error| StoreError::Damaged { what: "the folder", why: error.to_string() })?;
    let mut connection = Connection::open(path).map_err(doing("making the database"))?;
    // Must stand before the first table: lets deleted records give their space back.
    connection.pragma_update(None, "auto_vacuum", "INCREMENTAL").map_err(doing("making the database"))?;
    tune(&connection, "FULL")?;
    let transaction = connection.transaction().map_err(doing("making the tables"))?;
    transaction.execute_batch(TABLES).map_err(doing("making the tables"))?;
    transaction.pragma_update(None, "user_version", SCHEMA_VERSION).map_err(doing("making the tables"))?;
    super::meta::write(&transaction, meta)?;
    transaction.commit().map_err(doing("making the tables"))
}

fn tune(connection: &Connection, synchronous: &str) -> Result<(), StoreError> {
    let set = || -> rusqlite::Result<()> {
        connection.busy_timeout(BUSY_WAIT)?;
        connection.pragma_update(None, "journal_mode", "WAL")?;
        connection.pragma_update(None, "synchronous", synchronous)?;
        connection.pragma_update(None, "journal_size_limit", LOG_BYTES_KEPT)
    };
    set().map_err(doing("setting up the database"))
}

fn connect(path: &Path, synchronous: &str) -> Result<Connection, StoreError> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags(path, flags).map_err(doing("opening the database"))?;
    tune(&connection, synchronous)?;
    Ok(connection)
}

impl Db {
    /// Opens an existing database.
    ///
    /// # Errors
    /// [`StoreError::TooNew`] for a file of a newer program, [`StoreError::Missing`] when there is none.
    pub fn open(path: &Path, limits: RecordLimits) -> Result<Self, StoreError> {
        if !path.exists() {
            return Err(StoreError::Missing(path.to_owned()));
        }
        let durable = connect(path, "FULL")?;
        let found: i64 =
            durable.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(doing("reading the schema version"))?;
        match found {
            SCHEMA_VERSION => {}
            _ if found > SCHEMA_VERSION => return Err(StoreError::TooNew { found, known: SCHEMA_VERSION }),
            _ => return Err(StoreError::Damaged { what: "the schema version", why: format!("{found}, want {SCHEMA_VERSION}") }),
        }
        let quick = connect(path, "NORMAL")?;
        let held = Held::count(&quick)?;
        Ok(Self { durable, quick, held, limits })
    }
}

#[cfg(test)]
mod tests {
    use super::super::Store;
    use super::*;
    use crate::clock::UnixTime;
    use shared::ids::NodeId;

    #[test]
    fn a_newer_file_is_refused_by_name() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("hub.db");
        assert!(matches!(Db::open(&path, RecordLimits::default()), Err(StoreError::Missing(_))));
        Store::create(&path, &NodeId::new("cloud/hub").expect("good"), "h:1", UnixTime(7)).expect("made");
        Connection::open(&path).expect("open").pragma_update(None, "user_version", 99).expect("set");
        let error = Db::open(&path, RecordLimits::default()).expect_err("too new");
        assert!(matches!(error, StoreError::TooNew { found: 99, known: SCHEMA_VERSION }), "{error}");
    }
}
