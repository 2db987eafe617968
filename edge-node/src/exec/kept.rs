//! The measured pace of an engine on disk, so that a restart does not measure again.
//!
//! One small file for each variant, named after it; what it was measured on stands inside. A file for other weights, another engine,
//! device or program is as good as none, and is replaced. Never here: anything of a request.

use serde::{Deserialize, Serialize};
use shared::estimate::PaceLearner;
use shared::ids::VariantId;
use shared_net::host::write_private;
use std::path::{Path, PathBuf};

/// The folder in the state folder.
const FOLDER: &str = "profiles";
/// Form of these files; another form is as good as none.
const FORM: u32 = 1;
/// A file of this kind has about a kilobyte; a larger one is none of ours.
const BYTES_MAX: u64 = 64 * 1024;

/// What a pace was measured on: if any of it differs, it says nothing.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct PaceKey {
    /// SHA-256 of the weights in hex, or what else tells them apart.
    pub(super) weights: String,
    /// Which engine, and in which form it holds weights and caches.
    pub(super) engine: String,
    /// Where it computes, and on how many threads.
    pub(super) device: String,
    /// Version of the program, and of the kernels that this machine can run.
    pub(super) program: String,
}

#[derive(Serialize, Deserialize)]
struct Kept {
    form: u32,
    key: PaceKey,
    pace: PaceLearner,
}

/// Where the pace of one engine is kept.
#[derive(Clone, Debug)]
pub(super) struct Shelf {
    path: Option<PathBuf>,
    key: PaceKey,
}

impl Shelf {
    /// In this state folder, or nowhere.
    pub(super) fn new(state: Option<&Path>, variant: &VariantId, key: PaceKey) -> Self {
        Self { path: state.map(|state| state.join(FOLDER).join(file_name(variant))), key }
    }

    /// What was kept for this key.
    pub(super) fn read(&self) -> Option<PaceLearner> {
        let path = self.path.as_deref()?;
        if std::fs::metadata(path).ok()?.len() > BYTES_MAX {
            return None;
        }
        let kept: Kept = serde_json::from_slice(&std::fs::read(path).ok()?).ok()?;
        (kept.form == FORM && kept.key == self.key && kept.pace.sound()).then_some(kept.pace)
    }

    /// Keeps it. A disk that refuses costs a measurement at the next start, and a line in the log.
    pub(super) fn write(&self, pace: &PaceLearner) {
        let Some(path) = self.path.as_deref() else { return };
        let kept = Kept { form: FORM, key: self.key.clone(), pace: pace.clone() };
        let folder = path.parent().map_or(Ok(()), std::fs::create_dir_all);
        let written = folder.and_then(|()| Ok(serde_json::to_vec(&kept)?)).and_then(|bytes| write_private(path, &bytes));
        if let Err(error) = written {
            tracing::warn!(path = %path.display(), %error, "the measured pace was not kept");
        }
    }
}

/// A name for any variant: what file systems might object to is written as its number.
fn file_name(variant: &VariantId) -> String {
    let mut name = String::new();
    for character in variant.as_str().chars() {
        match character {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '-' | '_' => name.push(character),
            other => name += &format!("%{:x}", u32::from(other)),
        }
    }
    name + ".json"
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::estimate::Guess;

    fn key(weights: &str) -> PaceKey {
        let text = str::to_owned;
        PaceKey { weights: text(weights), engine: text("llm auto f32"), device: text("cpu 1"), program: text("0.1.0 avx2") }
    }

    #[test]
    fn a_pace_is_found_again_for_the_same_key_only() {
        let folder = tempfile::tempdir().expect("a folder");
        let variant = VariantId::new("org/model:q8.0").expect("good");
        let shelf = |key: PaceKey| Shelf::new(Some(folder.path()), &variant, key);
        assert_eq!(shelf(key("a")).read(), None);
        let mut pace = PaceLearner::begin(Guess { prompt: 0.001, decode: 0.01, chunk: 32 });
        pace.overhead(0.002);
        shelf(key("a")).write(&pace);
        assert_eq!(shelf(key("a")).read(), Some(pace.clone()));
        for other in [
            key("b"),
            PaceKey { engine: "llm q4_0 f32".to_owned(), ..key("a") },
            PaceKey { device: "cpu 2".to_owned(), ..key("a") },
            PaceKey { program: "0.2.0 avx2".to_owned(), ..key("a") },
        ] {
            assert_eq!(shelf(other).read(), None);
        }
        shelf(key("b")).write(&pace);
        assert_eq!(shelf(key("a")).read(), None, "replaced by what runs now");
        let path = folder.path().join(FOLDER).join(file_name(&variant));
        std::fs::write(&path, "{half").expect("written");
        assert_eq!(shelf(key("b")).read(), None, "damaged");
    }
}
