//! What the fleet serves.

use super::{Db, StoreError, doing};
use shared::ids::ServiceId;
use shared::work::{BadCatalogue, Catalogue, Service};

/// Why the catalogue was not changed.
#[derive(Debug, thiserror::Error)]
pub enum CatalogueError {
    /// It would contradict itself.
    #[error(transparent)]
    Bad(#[from] BadCatalogue),
    /// The database refused.
    #[error("changing the catalogue")]
    Store(#[from] StoreError),
}

impl Db {
    /// All services.
    ///
    /// # Errors
    /// [`StoreError`] when they cannot be read.
    pub fn catalogue(&self) -> Result<Catalogue, StoreError> {
        let mut query = self.durable.prepare("SELECT json FROM services ORDER BY id").map_err(doing("reading the services"))?;
        let rows = query.query_map([], |row| row.get::<_, String>(0)).map_err(doing("reading the services"))?;
        let mut catalogue = Catalogue::default();
        for row in rows {
            let json = row.map_err(doing("reading the services"))?;
            let damaged = |why: String| StoreError::Damaged { what: "a service", why };
            let service: Service = serde_json::from_str(&json).map_err(|error| damaged(error.to_string()))?;
            catalogue.insert(service).map_err(|error| damaged(error.to_string()))?;
        }
        Ok(catalogue)
    }

    /// Adds a service, or replaces the one of the same name. Returns the new catalogue.
    ///
    /// # Errors
    /// [`CatalogueError::Bad`] when it contradicts another.
    pub fn put_service(&mut self, service: &Service) -> Result<Catalogue, CatalogueError> {
        let mut catalogue = self.catalogue()?;
        catalogue.insert(service.clone())?;
        let json = serde_json::to_string(service)
            .map_err(|error| StoreError::Damaged { what: "the service", why: error.to_string() })?;
        self.durable
            .execute(
                "INSERT INTO services (id, json) VALUES (?1, ?2) ON CONFLICT (id) DO UPDATE SET json = excluded.json",
                [service.id.as_str(), &json],
            )
            .map_err(doing("writing a service"))?;
        Ok(catalogue)
    }

    /// Removes a service. Returns the new catalogue, or nothing when there was no such service.
    ///
    /// # Errors
    /// [`StoreError`] when it cannot be written.
    pub fn remove_service(&mut self, id: &ServiceId) -> Result<Option<Catalogue>, StoreError> {
        let removed =
            self.durable.execute("DELETE FROM services WHERE id = ?1", [id.as_str()]).map_err(doing("removing a service"))?;
        if removed == 0 { Ok(None) } else { self.catalogue().map(Some) }
    }
}
