//! The newest plan of each layer and scope, so that a restarted hub goes on above it.

use super::{Db, StoreError, doing};
use rusqlite::params;
use shared::ids::ScopeId;
use shared::plan::{Layer, Plan};

fn signed(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

impl Db {
    /// Keeps a plan unless a newer one of the same layer and scope is kept.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub fn put_plans(&mut self, plans: &[Plan]) -> Result<(), StoreError> {
        let transaction = self.durable.transaction().map_err(doing("writing plans"))?;
        for plan in plans {
            let json =
                serde_json::to_string(plan).map_err(|error| StoreError::Damaged { what: "a plan", why: error.to_string() })?;
            transaction
                .execute(
                    "INSERT INTO plans (scope, layer, incarnation, sequence, json) VALUES (?1, ?2, ?3, ?4, ?5)
                     ON CONFLICT (scope, layer) DO UPDATE SET incarnation = excluded.incarnation, sequence = excluded.sequence,
                     json = excluded.json WHERE (excluded.incarnation, excluded.sequence) > (incarnation, sequence)",
                    params![
                        plan.scope.as_str(),
                        plan.rows.layer().name(),
                        signed(plan.epoch.incarnation),
                        signed(plan.epoch.sequence),
                        json
                    ],
                )
                .map_err(doing("writing a plan"))?;
        }
        transaction.commit().map_err(doing("writing plans"))
    }

    /// All plans that are kept. A row that cannot be read any more is left out: the next round makes a new one.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read.
    pub fn plans(&self) -> Result<Vec<Plan>, StoreError> {
        let mut query =
            self.durable.prepare("SELECT json FROM plans ORDER BY scope, layer").map_err(doing("reading the plans"))?;
        let rows = query.query_map([], |row| row.get::<_, String>(0)).map_err(doing("reading the plans"))?;
        let texts = rows.collect::<rusqlite::Result<Vec<_>>>().map_err(doing("reading the plans"))?;
        Ok(texts.iter().filter_map(|json| serde_json::from_str(json).ok()).collect())
    }

    /// Forgets the plan of one layer for a scope that is no more.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be deleted.
    pub fn forget_plan(&mut self, scope: &ScopeId, layer: Layer) -> Result<(), StoreError> {
        self.durable
            .execute("DELETE FROM plans WHERE scope = ?1 AND layer = ?2", [scope.as_str(), layer.name()])
            .map_err(doing("deleting a plan"))?;
        Ok(())
    }
}
