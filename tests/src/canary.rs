//! Texts that must not be found where they do not belong.

use std::fs;
use std::path::{Path, PathBuf};
use std::process;
use std::sync::atomic::{AtomicU32, Ordering};

/// A text that occurs nowhere else.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Canary(String);

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Canary {
    /// A fresh one: unlike every other of this and of other test processes.
    #[must_use]
    pub fn fresh() -> Self {
        // Words that no log would write by itself, in one piece that no tokeniser or JSON escape changes.
        Self(format!("kanarienvogel{}x{}", process::id(), COUNT.fetch_add(1, Ordering::Relaxed)))
    }

    /// The text.
    #[must_use]
    pub fn text(&self) -> &str {
        &self.0
    }
}

/// All files below `folder` that hold the text: plain, in hex, or with its letters as UTF-16.
///
/// # Panics
/// When a folder cannot be read: then nothing is proven.
#[must_use]
pub fn files_with(folder: &Path, canary: &Canary) -> Vec<PathBuf> {
    let plain = canary.0.as_bytes();
    let hexed: String = plain.iter().map(|byte| format!("{byte:02x}")).collect();
    let wide: Vec<u8> = plain.iter().flat_map(|byte| [*byte, 0]).collect();
    let forms: [&[u8]; 3] = [plain, hexed.as_bytes(), &wide];
    let mut found = Vec::new();
    visit(folder, &mut |path| match fs::read(path) {
        Ok(bytes) => {
            if forms.iter().any(|form| holds(&bytes, form)) {
                found.push(path.to_owned());
            }
        }
        // A database's side file may go away between listing and reading; what is gone holds nothing.
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::NotFound, "reading {}", path.display()),
    });
    found
}

fn holds(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|window| window == wanted)
}

fn visit(folder: &Path, see: &mut impl FnMut(&Path)) {
    let entries = fs::read_dir(folder).unwrap_or_else(|error| panic!("listing {}: {error}", folder.display()));
    for entry in entries {
        let entry = match entry {
            Ok(entry) => entry,
            // As with what goes away between listing and reading.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
            Err(error) => panic!("listing {}: {error}", folder.display()),
        };
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => visit(&path, see),
            Ok(kind) if kind.is_file() => see(&path),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_canary_is_found_in_each_form_and_only_there() {
        let folder = tempfile::tempdir().expect("folder");
        let (canary, other) = (Canary::fresh(), Canary::fresh());
        let inner = folder.path().join("deep/er");
        fs::create_dir_all(&inner).expect("made");
        let hexed: String = canary.text().bytes().map(|byte| format!("{byte:02x}")).collect();
        fs::write(inner.join("plain"), format!("before {} after", canary.text())).expect("written");
        fs::write(folder.path().join("hexed"), hexed).expect("written");
        fs::write(folder.path().join("none"), "nothing").expect("written");
        let mut found = files_with(folder.path(), &canary);
        found.sort();
        assert_eq!(found, [inner.join("plain"), folder.path().join("hexed")]);
        assert!(files_with(folder.path(), &other).is_empty());
    }
}
