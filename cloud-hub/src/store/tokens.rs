//! Join tokens: only the hash of a secret is kept, so that a stolen database lets nobody in.

use super::{Db, StoreError, doing};
use crate::clock::UnixTime;
use rusqlite::{Connection, OptionalExtension, params};
use serde::{Deserialize, Serialize};
use shared::ids::ScopeId;
use std::collections::BTreeMap;

/// Most tokens that are kept. Expired ones are deleted first; beyond it none is made, since a script is likely at fault.
pub(crate) const TOKENS_MAX: u64 = 10_000;

/// A token to be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NewToken {
    /// Where nodes that join with it stand.
    pub site: ScopeId,
    /// Labels that they get.
    pub labels: BTreeMap<String, String>,
    /// How many nodes may join with it.
    pub uses: u32,
    /// When it ends.
    pub expires: UnixTime,
}

/// A token that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenRow {
    /// Where nodes that join with it stand.
    pub site: ScopeId,
    /// Labels that they get.
    pub labels: BTreeMap<String, String>,
    /// How many nodes may still join with it.
    pub uses_left: u32,
    /// When it ends.
    pub expires: UnixTime,
}

fn seconds(at: UnixTime) -> i64 {
    i64::try_from(at.0).unwrap_or(i64::MAX)
}

pub(crate) fn find(connection: &Connection, secret_sha256: &[u8; 32]) -> Result<Option<TokenRow>, StoreError> {
    let found = connection
        .query_row(
            "SELECT site, labels, uses_left, expires FROM tokens WHERE secret_sha256 = ?1",
            [secret_sha256.as_slice()],
            |row| Ok((row.get::<_, String>(0)?, row.get::<_, String>(1)?, row.get::<_, u32>(2)?, row.get::<_, i64>(3)?)),
        )
        .optional()
        .map_err(doing("looking for a join token"))?;
    let damaged = |why: String| StoreError::Damaged { what: "a join token", why };
    found
        .map(|(site, labels, uses_left, expires)| {
            Ok(TokenRow {
                site: ScopeId::new(&site).map_err(|error| damaged(error.to_string()))?,
                labels: serde_json::from_str(&labels).map_err(|error| damaged(error.to_string()))?,
                uses_left,
                expires: UnixTime(u64::try_from(expires).unwrap_or(0)),
            })
        })
        .transpose()
}

/// Takes one use; false when none was left.
pub(crate) fn consume(connection: &Connection, secret_sha256: &[u8; 32]) -> Result<bool, StoreError> {
    connection
        .execute(
            "UPDATE tokens SET uses_left = uses_left - 1 WHERE secret_sha256 = ?1 AND uses_left > 0",
            [secret_sha256.as_slice()],
        )
        .map(|changed| changed == 1)
        .map_err(doing("using a join token"))
}

impl Db {
    /// Keeps a new token under the hash of its secret.
    ///
    /// # Errors
    /// [`StoreError::Full`] when there are too many.
    pub fn add_token(&mut self, secret_sha256: &[u8; 32], token: &NewToken, now: UnixTime) -> Result<(), StoreError> {
        let transaction = self.durable.transaction().map_err(doing("making a join token"))?;
        // Used and expired tokens stay a week, so that their owner is told what is wrong instead of `not known`.
        let week_ago = UnixTime(now.0.saturating_sub(7 * 24 * 3600));
        transaction
            .execute("DELETE FROM tokens WHERE expires < ?1", [seconds(week_ago)])
            .map_err(doing("deleting old tokens"))?;
        let count: i64 =
            transaction.query_row("SELECT COUNT(*) FROM tokens", [], |row| row.get(0)).map_err(doing("counting tokens"))?;
        if count >= seconds(UnixTime(TOKENS_MAX)) {
            return Err(StoreError::Full { what: "join tokens", max: TOKENS_MAX });
        }
        let labels = serde_json::to_string(&token.labels).unwrap_or_else(|_| "{}".to_owned());
        transaction
            .execute(
                "INSERT INTO tokens (secret_sha256, site, labels, uses, uses_left, expires, created) VALUES (?1, ?2, ?3, ?4, ?4, ?5, ?6)",
                params![secret_sha256, token.site.as_str(), labels, token.uses, seconds(token.expires), seconds(now)],
            )
            .map_err(doing("making a join token"))?;
        transaction.commit().map_err(doing("making a join token"))
    }
}
