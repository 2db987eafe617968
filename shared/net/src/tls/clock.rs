//! Which time it is for a certificate.

use rustls::pki_types::UnixTime;
use rustls::time_provider::TimeProvider;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

/// No build of this source runs before 1 November 2026; raised with each release. A board without a battery wakes up in 1970,
/// and must not refuse the whole fleet as not yet valid.
const BUILT_AT_SECS: u64 = 1_793_491_200;

const FILE: &str = "last-time";

/// The largest of the system's time, the last one that was persisted and the build's.
///
/// Only for validity of certificates and for display: nothing else in the fleet depends on wall clocks. It never goes
/// backwards within one process. Clones share one value.
#[derive(Clone, Debug)]
pub struct CertClock {
    floor_secs: Arc<AtomicU64>,
    system: fn() -> u64,
}

fn system_secs() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

impl CertClock {
    /// A clock that never shows less than `persisted_secs` since the Unix epoch; zero when nothing was persisted.
    #[must_use]
    pub fn new(persisted_secs: u64) -> Self {
        Self::with_system(persisted_secs, system_secs)
    }

    /// A clock over another source of seconds since the Unix epoch, for tests and for hosts with a better clock.
    #[must_use]
    pub fn with_system(persisted_secs: u64, system: fn() -> u64) -> Self {
        Self { floor_secs: Arc::new(AtomicU64::new(persisted_secs.max(BUILT_AT_SECS))), system }
    }

    /// The clock of a state folder, with the time that was last persisted there. An unreadable file counts as none: a damaged
    /// clock must not keep a node from starting.
    #[must_use]
    pub fn load(folder: &Path) -> Self {
        let persisted = std::fs::read_to_string(folder.join(FILE)).ok().and_then(|text| text.trim().parse().ok());
        Self::new(persisted.unwrap_or(0))
    }

    /// What the clock started from: the persisted time, or the build's where that is later or nothing was persisted.
    #[must_use]
    pub fn kept_secs(&self) -> u64 {
        self.floor_secs.load(Ordering::Relaxed)
    }

    /// Persists the present time in a state folder. Hosts do so at start, hourly and when they stop.
    ///
    /// # Errors
    /// The folder's file could not be written.
    pub fn save(&self, folder: &Path) -> Result<(), super::TlsError> {
        crate::host::write_private(&folder.join(FILE), self.secs().to_string().as_bytes())
            .map_err(|source| super::TlsError::File { doing: "writing the last time to", path: folder.join(FILE), source })
    }

    /// Seconds since the Unix epoch.
    #[must_use]
    pub fn secs(&self) -> u64 {
        let now = (self.system)();
        self.floor_secs.fetch_max(now, Ordering::Relaxed).max(now)
    }
}

impl TimeProvider for CertClock {
    fn current_time(&self) -> Option<UnixTime> {
        Some(UnixTime::since_unix_epoch(Duration::from_secs(self.secs())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_the_largest_that_is_known() {
        assert_eq!(CertClock::with_system(0, || 5).secs(), BUILT_AT_SECS);
        assert_eq!(CertClock::with_system(BUILT_AT_SECS + 9, || 5).secs(), BUILT_AT_SECS + 9);
        assert_eq!(CertClock::with_system(0, || BUILT_AT_SECS + 7).secs(), BUILT_AT_SECS + 7);
    }

    #[test]
    fn time_survives_a_restart_with_a_dead_battery() {
        let folder = tempfile::tempdir().expect("folder");
        CertClock::with_system(0, || BUILT_AT_SECS + 100).save(folder.path()).expect("saved");
        let persisted = CertClock::load(folder.path()).floor_secs.load(Ordering::Relaxed);
        assert_eq!(persisted, BUILT_AT_SECS + 100);
        std::fs::write(folder.path().join(FILE), "garbage").expect("written");
        assert!(CertClock::load(folder.path()).secs() >= BUILT_AT_SECS);
    }
}
