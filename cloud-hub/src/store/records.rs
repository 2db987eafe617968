//! Records of requests, within a bound of bytes and of count: the oldest go first, and their space goes back to the disk.

use super::{Db, StoreError, doing};
use crate::clock::UnixTime;
use rusqlite::{Connection, params};
use serde::{Deserialize, Serialize};
use shared::ids::RequestId;
use shared::plan::Record;

/// How many records are kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RecordLimits {
    /// Most bytes of all records together. Reaching it deletes the oldest.
    pub bytes_max: u64,
    /// Most records. Reaching it deletes the oldest.
    pub count_max: u64,
}

impl Default for RecordLimits {
    /// 256 MiB are about 100,000 requests with a few rejected candidates each: days of a small fleet, and little on any disk.
    fn default() -> Self {
        Self { bytes_max: 256 * 1024 * 1024, count_max: 100_000 }
    }
}

/// Pages given back to the file system in one go after a deletion; bounds how long a write can take.
const VACUUM_PAGES: u32 = 256;

/// Records that one reader may ask for at once; more are cut to this, newest first.
pub(super) const READ_MAX: usize = 10_000;

/// What is held now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Held {
    bytes: u64,
    count: u64,
}

impl Held {
    pub(super) fn count(connection: &Connection) -> Result<Self, StoreError> {
        let (bytes, count): (i64, i64) = connection
            .query_row("SELECT COALESCE(SUM(bytes), 0), COUNT(*) FROM records", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .map_err(doing("counting the records"))?;
        Ok(Self { bytes: u64::try_from(bytes).unwrap_or(0), count: u64::try_from(count).unwrap_or(0) })
    }

    const fn within(self, limits: &RecordLimits) -> bool {
        self.bytes <= limits.bytes_max && self.count <= limits.count_max
    }
}

/// A record with the wall-clock time at which it was kept, for display.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StoredRecord {
    /// When it was kept.
    pub at: UnixTime,
    /// The record.
    pub record: Record,
}

impl Db {
    /// Keeps a record, and deletes the oldest ones beyond the limits.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub fn add_record(&mut self, record: &Record, at: UnixTime) -> Result<(), StoreError> {
        let json =
            serde_json::to_string(record).map_err(|error| StoreError::Damaged { what: "a record", why: error.to_string() })?;
        let bytes = json.len() as u64;
        self.quick
            .execute(
                "INSERT INTO records (request, at, bytes, json) VALUES (?1, ?2, ?3, ?4)",
                params![
                    record.request.to_string(),
                    i64::try_from(at.0).unwrap_or(i64::MAX),
                    i64::try_from(bytes).unwrap_or(i64::MAX),
                    json
                ],
            )
            .map_err(doing("writing a record"))?;
        self.held.bytes += bytes;
        self.held.count += 1;
        if self.held.within(&self.limits) { Ok(()) } else { self.make_room() }
    }

    /// Deletes down to nine tenths of the limits, so that not every record needs a deletion.
    fn make_room(&mut self) -> Result<(), StoreError> {
        let goal = RecordLimits { bytes_max: self.limits.bytes_max / 10 * 9, count_max: self.limits.count_max / 10 * 9 };
        let transaction = self.quick.transaction().map_err(doing("deleting old records"))?;
        let mut held = self.held;
        let mut last = None;
        {
            let mut query = transaction
                .prepare("SELECT number, bytes FROM records ORDER BY number")
                .map_err(doing("looking for old records"))?;
            let mut rows = query.query([]).map_err(doing("looking for old records"))?;
            while !held.within(&goal) {
                let Some(row) = rows.next().map_err(doing("looking for old records"))? else { break };
                let (number, bytes): (i64, i64) =
                    row.get(0).and_then(|number| Ok((number, row.get(1)?))).map_err(doing("looking for old records"))?;
                held.bytes = held.bytes.saturating_sub(u64::try_from(bytes).unwrap_or(0));
                held.count = held.count.saturating_sub(1);
                last = Some(number);
            }
        }
        if let Some(number) = last {
            transaction.execute("DELETE FROM records WHERE number <= ?1", [number]).map_err(doing("deleting old records"))?;
        }
        transaction.commit().map_err(doing("deleting old records"))?;
        self.held = held;
        self.give_space_back().map_err(doing("giving space back to the disk"))
    }

    /// The pragma frees one page a step, so it must be stepped to its end.
    fn give_space_back(&self) -> rusqlite::Result<()> {
        let mut freeing = self.quick.prepare(&format!("PRAGMA incremental_vacuum({VACUUM_PAGES})"))?;
        let mut steps = freeing.query([])?;
        while steps.next()?.is_some() {}
        Ok(())
    }

    /// The newest records, newest first; at most 10,000.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read.
    pub fn last_records(&self, count: usize) -> Result<Vec<StoredRecord>, StoreError> {
        let count = i64::try_from(count.min(READ_MAX)).unwrap_or(0);
        self.read_records("SELECT at, json FROM records ORDER BY number DESC LIMIT ?1", params![count])
    }

    /// What is kept of one request: one record for each ingress that saw it.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read.
    pub fn record(&self, request: RequestId) -> Result<Vec<StoredRecord>, StoreError> {
        self.read_records(
            "SELECT at, json FROM records WHERE request = ?1 ORDER BY number DESC LIMIT 8",
            params![request.to_string()],
        )
    }

    fn read_records(&self, sql: &str, params: impl rusqlite::Params) -> Result<Vec<StoredRecord>, StoreError> {
        let mut query = self.quick.prepare(sql).map_err(doing("reading records"))?;
        let rows = query
            .query_map(params, |row| Ok((row.get::<_, i64>(0)?, row.get::<_, String>(1)?)))
            .map_err(doing("reading records"))?;
        rows.map(|row| {
            let (at, json) = row.map_err(doing("reading records"))?;
            let record =
                serde_json::from_str(&json).map_err(|error| StoreError::Damaged { what: "a record", why: error.to_string() })?;
            Ok(StoredRecord { at: UnixTime(u64::try_from(at).unwrap_or(0)), record })
        })
        .collect()
    }
}
