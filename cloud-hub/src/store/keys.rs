//! API keys, by the hash of their secrets, and what was used of their days at the hub's own API.

use super::{Db, StoreError, doing};
use rusqlite::params;
use shared::ids::KeyName;
use shared::work::{ClientKey, KeyHash};
use shared_net::openai::KeyUsage;

fn damaged(error: &impl ToString) -> StoreError {
    StoreError::Damaged { what: "an API key", why: error.to_string() }
}

/// SQLite has no unsigned numbers.
fn signed(number: u64) -> i64 {
    i64::try_from(number).unwrap_or(i64::MAX)
}

impl Db {
    /// All keys, in the order of their names.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read.
    pub fn keys(&self) -> Result<Vec<ClientKey>, StoreError> {
        let doing = || doing("reading the API keys");
        let mut query = self.durable.prepare("SELECT json FROM keys ORDER BY name").map_err(doing())?;
        let rows = query.query_map([], |row| row.get::<_, String>(0)).map_err(doing())?;
        rows.map(|row| serde_json::from_str(&row.map_err(doing())?).map_err(|error| damaged(&error))).collect()
    }

    /// Keeps a new key. False when there is one of this name already.
    ///
    /// # Errors
    /// [`StoreError::Full`] when there are as many as may be.
    pub fn add_key(&mut self, key: &ClientKey) -> Result<bool, StoreError> {
        let doing = || doing("writing an API key");
        let transaction = self.durable.transaction().map_err(doing())?;
        let count: i64 = transaction.query_row("SELECT COUNT(*) FROM keys", [], |row| row.get(0)).map_err(doing())?;
        let max = u64::try_from(ClientKey::KEYS_MAX).unwrap_or(u64::MAX);
        if count >= signed(max) {
            return Err(StoreError::Full { what: "API keys: revoke some", max });
        }
        let json = serde_json::to_string(key).map_err(|error| damaged(&error))?;
        let added = transaction
            .execute("INSERT INTO keys (name, json) VALUES (?1, ?2) ON CONFLICT DO NOTHING", [key.name.as_str(), &json])
            .map_err(doing())?;
        transaction.commit().map_err(doing())?;
        Ok(added == 1)
    }

    /// Removes a key. False when there is none of this name.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub fn revoke_key(&mut self, name: &KeyName) -> Result<bool, StoreError> {
        let removed =
            self.durable.execute("DELETE FROM keys WHERE name = ?1", [name.as_str()]).map_err(doing("removing an API key"))?;
        Ok(removed == 1)
    }

    /// What was used of the keys' days.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be read.
    pub fn key_usage(&self) -> Result<Vec<KeyUsage>, StoreError> {
        let doing = || doing("reading what API keys used");
        let mut query = self.durable.prepare("SELECT sha256, day, tokens FROM key_usage").map_err(doing())?;
        let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)?, row.get::<_, i64>(2)?));
        let rows = query.query_map([], row).map_err(doing())?;
        let usage = rows.map(|row| {
            let (sha256, day, tokens) = row.map_err(doing())?;
            let sha256 = KeyHash::parse(&sha256).map_err(|error| damaged(&error))?;
            Ok(KeyUsage { sha256, day: day.unsigned_abs(), tokens: tokens.unsigned_abs() })
        });
        usage.collect()
    }

    /// Writes it down; days before the newest go.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub fn put_key_usage(&mut self, usage: &[KeyUsage]) -> Result<(), StoreError> {
        let doing = || doing("writing what API keys used");
        let transaction = self.quick.transaction().map_err(doing())?;
        let today = usage.iter().map(|used| used.day).max().unwrap_or_default();
        transaction.execute("DELETE FROM key_usage WHERE day < ?1", [signed(today)]).map_err(doing())?;
        for used in usage.iter().filter(|used| used.day == today) {
            transaction
                .execute(
                    "INSERT INTO key_usage (sha256, day, tokens) VALUES (?1, ?2, ?3)
                     ON CONFLICT (sha256) DO UPDATE SET day = excluded.day, tokens = excluded.tokens",
                    params![String::from(used.sha256), signed(used.day), signed(used.tokens)],
                )
                .map_err(doing())?;
        }
        transaction.commit().map_err(doing())
    }
}

#[cfg(test)]
mod tests {
    use super::super::{RecordLimits, Store};
    use super::*;
    use crate::clock::UnixTime;
    use shared::ids::NodeId;
    use shared::work::KeyScope;

    #[test]
    fn keys_and_their_use_are_kept_and_secrets_are_not() {
        let temp = tempfile::tempdir().expect("temp");
        let path = temp.path().join("hub.db");
        Store::create(&path, &NodeId::new("cloud/hub").expect("good"), "h:1", UnixTime(7)).expect("made");
        let mut db = Db::open(&path, RecordLimits::default()).expect("opened");
        let key = ClientKey {
            name: KeyName::new("team/app").expect("a name"),
            sha256: KeyHash::of(b"tg-canary"),
            scope: KeyScope::Inference,
            services: Vec::new(),
            rate_per_minute: Some(60),
            tokens_per_day: Some(9),
            expires: None,
        };
        assert!(db.add_key(&key).expect("kept") && !db.add_key(&key).expect("there already"));
        let used = |day, tokens| KeyUsage { sha256: key.sha256, day, tokens };
        db.put_key_usage(&[used(3, 7)]).expect("written");
        db.put_key_usage(&[used(4, 2)]).expect("written");
        drop(db);
        let mut db = Db::open(&path, RecordLimits::default()).expect("opened again");
        assert_eq!((db.keys().expect("kept"), db.key_usage().expect("kept")), (vec![key.clone()], vec![used(4, 2)]));
        assert!(db.revoke_key(&key.name).expect("removed") && !db.revoke_key(&key.name).expect("gone"));
        drop(db);
        for file in std::fs::read_dir(temp.path()).expect("listed").flatten() {
            let bytes = std::fs::read(file.path()).expect("read");
            assert!(!bytes.windows(9).any(|nine| nine == b"tg-canary"), "{file:?}");
        }
    }
}
