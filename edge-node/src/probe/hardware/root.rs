//! Reading small files below a root: `/` on a live machine, a made-up tree in tests. No read takes more than some bytes, none
//! waits for a writer, and what cannot be read is absent.

use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// Most bytes of one file. Those of the kernel that are read here are shorter by far; the rest of a longer one is left.
const BYTES_MAX: u64 = 64 * 1024;
/// Most entries of one folder. A machine with more sensors of one kind is none that we know.
const ENTRIES_MAX: usize = 512;

/// Where the files of the system are found.
#[derive(Clone, Debug)]
pub struct Root(PathBuf);

impl Root {
    /// The machine's own.
    #[must_use]
    pub fn live() -> Self {
        Self(PathBuf::from("/"))
    }

    /// A tree that looks like one.
    #[must_use]
    pub fn at(folder: impl Into<PathBuf>) -> Self {
        Self(folder.into())
    }

    /// Where a path of the system lies.
    #[must_use]
    pub fn path(&self, path: &str) -> PathBuf {
        self.0.join(path.trim_start_matches('/'))
    }

    /// A file's text, without white space around it; absent where it is empty or cannot be read.
    #[must_use]
    pub fn text(&self, path: &str) -> Option<String> {
        text(&self.path(path))
    }

    /// The entries of a folder in the order of their names.
    #[must_use]
    pub fn entries(&self, folder: &str) -> Vec<PathBuf> {
        let Ok(entries) = std::fs::read_dir(self.path(folder)) else { return Vec::new() };
        let mut paths: Vec<_> = entries.flatten().take(ENTRIES_MAX).map(|entry| entry.path()).collect();
        paths.sort();
        paths
    }
}

/// As [`Root::text`], of a path that is there already.
pub(super) fn text(path: &Path) -> Option<String> {
    // Without waiting: a pipe where a file should be has no reader's time.
    let flags = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).ok()?;
    let file = OpenOptions::new().read(true).custom_flags(flags).open(path).ok()?;
    let mut bytes = Vec::new();
    file.take(BYTES_MAX).read_to_end(&mut bytes).ok()?;
    // Device trees end their texts with a zero.
    let text = String::from_utf8_lossy(&bytes).trim_matches(|c: char| c.is_whitespace() || c == '\0').to_owned();
    (!text.is_empty()).then_some(text)
}

/// A number in a file; absent where it is none, such as `N/A`.
pub(super) fn number(path: &Path) -> Option<f64> {
    text(path)?.parse().ok().filter(|number: &f64| number.is_finite())
}
