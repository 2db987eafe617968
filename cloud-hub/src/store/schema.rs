//! Tables, and how a file of an older version becomes one of this.

use super::records::Held;
use super::{Db, Meta, RecordLimits, StoreError, doing};
use rusqlite::{Connection, OpenFlags, TransactionBehavior};
use std::path::Path;
use std::time::Duration;

/// Version of the tables below, kept in SQLite's `user_version`.
const SCHEMA_VERSION: i64 = 3;

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
    number INTEGER PRIMARY KEY AUTOINCREMENT, request TEXT NOT NULL, ingress TEXT NOT NULL, at INTEGER NOT NULL,
    bytes INTEGER NOT NULL, json TEXT NOT NULL
) STRICT;
CREATE UNIQUE INDEX records_once ON records (request, ingress);
CREATE TABLE keys (name TEXT PRIMARY KEY, json TEXT NOT NULL) STRICT;
CREATE TABLE key_usage (sha256 TEXT PRIMARY KEY, day INTEGER NOT NULL, tokens INTEGER NOT NULL) STRICT;
";

/// Version 1 kept a record as often as it came.
const FROM_VERSION_1: &str = "
ALTER TABLE records ADD COLUMN ingress TEXT NOT NULL DEFAULT '';
UPDATE records SET ingress = json_extract(json, '$.ingress');
DELETE FROM records WHERE number NOT IN (SELECT MIN(number) FROM records GROUP BY request, ingress);
DROP INDEX records_by_request;
CREATE UNIQUE INDEX records_once ON records (request, ingress);
PRAGMA user_version = 2;
";

/// Version 2 knew no API keys.
const FROM_VERSION_2: &str = "
CREATE TABLE keys (name TEXT PRIMARY KEY, json TEXT NOT NULL) STRICT;
CREATE TABLE key_usage (sha256 TEXT PRIMARY KEY, day INTEGER NOT NULL, tokens INTEGER NOT NULL) STRICT;
PRAGMA user_version = 3;
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

/// All of it, or nothing. Whoever opens the file at the same moment waits, and then finds it done.
fn bring_up(connection: &mut Connection) -> Result<(), StoreError> {
    let doing = || doing("bringing the tables of an older version up");
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate).map_err(doing())?;
    let found: i64 = transaction.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(doing())?;
    for (version, steps) in [(1, FROM_VERSION_1), (2, FROM_VERSION_2)] {
        if found <= version {
            transaction.execute_batch(steps).map_err(doing())?;
        }
    }
    transaction.commit().map_err(doing())
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
        let mut durable = connect(path, "FULL")?;
        let found: i64 =
            durable.pragma_query_value(None, "user_version", |row| row.get(0)).map_err(doing("reading the schema version"))?;
        match found {
            SCHEMA_VERSION => {}
            1 | 2 => bring_up(&mut durable)?,
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

    /// The tables as version 1 had them.
    const RECORDS_OF_VERSION_1: &str = "
        DROP TABLE keys;
        DROP TABLE key_usage;
        DROP TABLE records;
        CREATE TABLE records (
            number INTEGER PRIMARY KEY AUTOINCREMENT, request TEXT NOT NULL, at INTEGER NOT NULL, bytes INTEGER NOT NULL,
            json TEXT NOT NULL
        ) STRICT;
        CREATE INDEX records_by_request ON records (request);
        PRAGMA user_version = 1;
    ";

    #[test]
    fn a_file_of_version_1_keeps_each_record_once() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("hub.db");
        Store::create(&path, &NodeId::new("cloud/hub").expect("good"), "h:1", UnixTime(7)).expect("made");
        let old = Connection::open(&path).expect("open");
        old.execute_batch(RECORDS_OF_VERSION_1).expect("as it was");
        for (ingress, at) in [("eu/a", 1), ("eu/a", 2), ("eu/b", 3)] {
            let json = format!(r#"{{"ingress": "{ingress}"}}"#);
            old.execute("INSERT INTO records (request, at, bytes, json) VALUES ('7', ?1, 9, ?2)", (at, json)).expect("kept");
        }
        drop(old);
        for _ in 0..2 {
            let db = Db::open(&path, RecordLimits::default()).expect("brought up");
            let kept = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?));
            let mut query = db.quick.prepare("SELECT ingress, at FROM records ORDER BY number").expect("a query");
            let rows: Vec<_> = query.query_map([], kept).expect("read").map(|row| row.expect("a row")).collect();
            assert_eq!(rows, [("eu/a".to_owned(), 1), ("eu/b".to_owned(), 3)]);
            assert_eq!(db.keys().expect("a table"), []);
        }
    }

    #[test]
    fn a_file_of_version_2_gets_tables_for_keys() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("hub.db");
        Store::create(&path, &NodeId::new("cloud/hub").expect("good"), "h:1", UnixTime(7)).expect("made");
        let old = Connection::open(&path).expect("open");
        old.execute_batch("DROP TABLE keys; DROP TABLE key_usage; PRAGMA user_version = 2;").expect("as it was");
        drop(old);
        for _ in 0..2 {
            let db = Db::open(&path, RecordLimits::default()).expect("brought up");
            assert!(db.keys().expect("a table").is_empty() && db.key_usage().expect("a table").is_empty());
            assert_eq!(db.meta().expect("kept").clock, UnixTime(7));
        }
    }
}
