//! The last measurement, kept in the state folder so that a restart costs nothing.

use serde::{Deserialize, Serialize};
use shared::fleet::Hardware;
use shared::units::{Cores, Micros};
use shared_net::host::write_private;
use std::io;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Longest file that is read.
const BYTES_MAX: u64 = 64 * 1024;

/// What is in the file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Kept {
    /// Seconds since 1970 when it was measured.
    pub at: u64,
    /// The processor that was measured; another one is measured anew.
    pub cpu: Option<String>,
    /// What was found.
    pub hardware: Hardware,
}

fn file(state: &Path) -> PathBuf {
    state.join("machine.json")
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// What was measured before, with its age, if it is of this processor with as many cores, and not older than that. A file that
/// cannot be read is no measurement: it is made anew.
#[must_use]
pub fn load(state: &Path, cpu: Option<&str>, usable: Option<Cores>, good_for: Duration) -> Option<Hardware> {
    let path = file(state);
    if std::fs::metadata(&path).ok()?.len() > BYTES_MAX {
        return None;
    }
    let kept: Kept = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
    // A clock that was set back makes it no younger.
    let age = now().checked_sub(kept.at)?;
    let same = kept.cpu.as_deref() == cpu && kept.hardware.usable.as_ref().map(|fact| fact.value) == usable;
    let good = same && age <= good_for.as_secs() && kept.hardware.validate().is_ok();
    good.then(|| kept.hardware.aged(Micros::from_secs(age)))
}

/// Keeps what was just measured.
///
/// # Errors
/// When the state folder cannot be written.
pub fn store(state: &Path, cpu: Option<&str>, hardware: &Hardware) -> io::Result<()> {
    let kept = Kept { at: now(), cpu: cpu.map(str::to_owned), hardware: hardware.clone() };
    let text = serde_json::to_vec_pretty(&kept).map_err(io::Error::other)?;
    write_private(&file(state), &text)
}
