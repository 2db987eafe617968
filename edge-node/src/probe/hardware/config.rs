//! The section `machine` of the configuration.

use serde::{Deserialize, Serialize};
use std::num::NonZero;
use std::time::Duration;

/// Whether and how often the machine is measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MachineSection {
    /// Whether processor, memory and disk are measured: some six seconds on all processors at low priority. Without, only what the
    /// system says is told.
    pub measure: bool,
    /// Days for which a measurement is good; it is kept in the state folder, and made anew at the first start after.
    pub good_days: NonZero<u16>,
}

impl Default for MachineSection {
    fn default() -> Self {
        // Machines change by updates of firmware and kernel, and by dust: monthly is often enough.
        Self { measure: true, good_days: NonZero::new(30).unwrap_or(NonZero::<u16>::MIN) }
    }
}

impl MachineSection {
    /// How long a measurement is good.
    #[must_use]
    pub fn good_for(&self) -> Duration {
        Duration::from_secs(u64::from(self.good_days.get()) * 86_400)
    }
}
