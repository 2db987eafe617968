//! The few facts about the hub itself.

use super::{Db, StoreError, doing};
use crate::clock::UnixTime;
use rusqlite::{Connection, OptionalExtension};
use serde::{Deserialize, Serialize};
use shared::ids::{NodeId, SessionEpoch};
use shared::plan::DispatchSetting;

/// Who this hub is and how far it has come.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// The hub's name.
    pub hub: NodeId,
    /// `host:port` that join tokens carry.
    pub address: String,
    /// How often a hub has started on this database; logic raises it above what nodes have seen.
    pub incarnation: u64,
    /// Highest session epoch ever issued.
    pub session_epoch: SessionEpoch,
    /// Latest wall-clock time that was ever believed.
    pub clock: UnixTime,
    /// The dispatch policy that an operator set last, if one did.
    #[serde(default)]
    pub dispatch: Option<DispatchSetting>,
}

const KEY: &str = "hub";

pub(super) fn write(connection: &Connection, meta: &Meta) -> Result<(), StoreError> {
    let json = serde_json::to_string(meta).map_err(|error| damaged(&error))?;
    connection
        .execute(
            "INSERT INTO meta (key, value) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            [KEY, &json],
        )
        .map_err(doing("writing the facts about the hub"))?;
    Ok(())
}

fn damaged(error: &serde_json::Error) -> StoreError {
    StoreError::Damaged { what: "the table of facts about the hub", why: error.to_string() }
}

impl Meta {
    pub(super) fn new(hub: NodeId, address: String, now: UnixTime) -> Self {
        Self { hub, address, incarnation: 0, session_epoch: SessionEpoch(0), clock: now, dispatch: None }
    }
}

impl Db {
    /// The facts about the hub.
    ///
    /// # Errors
    /// [`StoreError`] when they are missing or damaged.
    pub fn meta(&self) -> Result<Meta, StoreError> {
        let json: Option<String> = self
            .durable
            .query_row("SELECT value FROM meta WHERE key = ?1", [KEY], |row| row.get(0))
            .optional()
            .map_err(doing("reading the facts about the hub"))?;
        let json =
            json.ok_or_else(|| StoreError::Damaged { what: "the table of facts about the hub", why: "it is empty".to_owned() })?;
        serde_json::from_str(&json).map_err(|error| damaged(&error))
    }

    /// Changes the facts about the hub. Incarnation, session epoch and clock never go back, whatever `change` does.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be written.
    pub fn update_meta(&mut self, change: impl FnOnce(&mut Meta)) -> Result<Meta, StoreError> {
        let before = self.meta()?;
        let mut meta = before.clone();
        change(&mut meta);
        meta.incarnation = meta.incarnation.max(before.incarnation);
        meta.session_epoch = meta.session_epoch.max(before.session_epoch);
        meta.clock = meta.clock.max(before.clock);
        if meta != before {
            write(&self.durable, &meta)?;
        }
        Ok(meta)
    }
}
