//! Copies of the database: made while a hub writes, checked, and put back.
//!
//! A copy holds further files beside the tables, so that one file is a whole backup. What must not live twice is taken out when a
//! copy is put back: join tokens, which would otherwise be good once more.

use super::{Db, StoreError, doing};
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// Files beside the tables of a copy.
const FILES: &str = "CREATE TABLE backup_files (name TEXT PRIMARY KEY, bytes BLOB NOT NULL) STRICT";

/// A file that is part of a copy.
pub(crate) type NamedBytes = (String, Vec<u8>);

impl Db {
    /// Writes a copy of everything, as of one moment, to a file that must not be there.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub(crate) fn copy_to(&self, path: &Path, files: &[NamedBytes]) -> Result<(), StoreError> {
        // Made empty and private first: SQLite takes over the mode of the file.
        shared_net::host::write_private(path, b"")
            .map_err(|error| StoreError::Damaged { what: "the folder of the copy", why: error.to_string() })?;
        self.durable.execute("VACUUM INTO ?1", [path.to_string_lossy()]).map_err(doing("copying the database"))?;
        let copy = Connection::open(path).map_err(doing("opening the copy"))?;
        let add = || -> rusqlite::Result<()> {
            copy.execute_batch(FILES)?;
            for (name, bytes) in files {
                copy.execute("INSERT INTO backup_files (name, bytes) VALUES (?1, ?2)", (name, bytes))?;
            }
            Ok(())
        };
        add().map_err(doing("adding the keys to the copy"))
    }

    /// What SQLite finds wrong with the file; nothing when it is whole.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read at all.
    pub(crate) fn faults(&self) -> Result<Vec<String>, StoreError> {
        faults(&self.quick)
    }
}

/// The files beside the tables of a copy. An error for a file that is none, or is damaged.
pub(crate) fn files_of(path: &Path) -> Result<Vec<NamedBytes>, StoreError> {
    if !path.is_file() {
        return Err(StoreError::Damaged { what: "the backup", why: format!("there is no file {}", path.display()) });
    }
    let copy = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(doing("opening the backup"))?;
    let faults = faults(&copy)?;
    if let Some(first) = faults.first() {
        return Err(StoreError::Damaged { what: "the backup", why: first.clone() });
    }
    let read = || -> rusqlite::Result<Vec<NamedBytes>> {
        let mut query = copy.prepare("SELECT name, bytes FROM backup_files ORDER BY name")?;
        let rows = query.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.collect()
    };
    read().map_err(|_| StoreError::Damaged { what: "the backup", why: "it is no file of `cloud-hub backup`".to_owned() })
}

/// Makes the database of a fresh folder from a copy. Join tokens are void: one that was used after the copy was made would be good
/// again. Returns how many there were.
pub(crate) fn put_back(copy: &Path, database: &Path) -> Result<usize, StoreError> {
    let from = Connection::open_with_flags(copy, OpenFlags::SQLITE_OPEN_READ_ONLY).map_err(doing("opening the backup"))?;
    shared_net::host::write_private(database, b"")
        .map_err(|error| StoreError::Damaged { what: "the state folder", why: error.to_string() })?;
    from.execute("VACUUM INTO ?1", [database.to_string_lossy()]).map_err(doing("copying the backup"))?;
    let restored = Connection::open(database).map_err(doing("opening the restored database"))?;
    restored.execute_batch("DROP TABLE backup_files").map_err(doing("cleaning the restored database"))?;
    restored.execute("DELETE FROM tokens", []).map_err(doing("voiding join tokens"))
}

fn faults(connection: &Connection) -> Result<Vec<String>, StoreError> {
    let check = || -> rusqlite::Result<Vec<String>> {
        let mut query = connection.prepare("PRAGMA integrity_check(5)")?;
        let rows = query.query_map([], |row| row.get(0))?;
        rows.collect()
    };
    let mut found = check().map_err(doing("checking the database"))?;
    found.retain(|line| line != "ok");
    Ok(found)
}
