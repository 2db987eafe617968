//! The folder where a program keeps what must survive it.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

const LOCK: &str = "lock";

/// Why a state folder cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Another process has it.
    #[error("the state folder `{0}` is in use by another process: stop that one, or give this one a folder of its own")]
    InUse(PathBuf),
    /// It cannot be made or opened.
    #[error("opening the state folder `{path}`: want a folder that this user may write")]
    Unusable {
        /// Which folder.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
}

/// A state folder that this process alone uses. The lock is the kernel's: it ends with the process, however that ends.
#[derive(Debug)]
pub struct StateFolder {
    path: PathBuf,
    _lock: File,
}

impl StateFolder {
    /// Makes the folder where there is none (for its owner only) and locks it.
    ///
    /// # Errors
    /// [`StateError`] when another process has it or it cannot be written.
    pub fn open(path: &Path) -> Result<Self, StateError> {
        let unusable = |source| StateError::Unusable { path: path.to_owned(), source };
        make_folder(path).map_err(unusable)?;
        let lock = private_options().open(path.join(LOCK)).map_err(unusable)?;
        match lock.try_lock() {
            Ok(()) => Ok(Self { path: path.to_owned(), _lock: lock }),
            Err(TryLockError::WouldBlock) => Err(StateError::InUse(path.to_owned())),
            Err(TryLockError::Error(source)) => Err(unusable(source)),
        }
    }

    /// Whether a process has the folder at `path`. One that is not there, or that cannot be looked into, nobody has.
    #[must_use]
    pub fn is_held(path: &Path) -> bool {
        File::open(path.join(LOCK)).is_ok_and(|lock| matches!(lock.try_lock_shared(), Err(TryLockError::WouldBlock)))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of a file or folder in it.
    #[must_use]
    pub fn join(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }
}

fn make_folder(path: &Path) -> io::Result<()> {
    let mut builder = std::fs::DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

fn private_options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}

/// Replaces the file at `path` by one that holds `bytes` and that only its owner may read; after a crash there is the old file
/// or the new one, never a part.
///
/// # Errors
/// The file could not be written, synced or renamed; the old one is then still there.
pub fn write_private(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let name = path.file_name().ok_or_else(|| io::Error::new(io::ErrorKind::InvalidInput, "a path without a file name"))?;
    let folder = path.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or_else(|| Path::new("."));
    let mut temporary_name = std::ffi::OsString::from(".");
    temporary_name.push(name);
    temporary_name.push(format!(".{}.new", std::process::id()));
    let temporary = folder.join(temporary_name);
    let written = write_whole(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // The error that matters is the first; a leftover is overwritten next time.
        drop(std::fs::remove_file(&temporary));
        return written;
    }
    #[cfg(unix)]
    File::open(folder)?.sync_all()?;
    Ok(())
}

fn write_whole(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut file = private_options().open(path)?;
    file.set_len(0)?;
    file.write_all(bytes)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_folder_has_one_user() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("state");
        let first = StateFolder::open(&path).expect("free");
        assert!(matches!(StateFolder::open(&path), Err(StateError::InUse(_))));
        assert!(StateFolder::is_held(&path) && !StateFolder::is_held(folder.path()));
        drop(first);
        assert!(!StateFolder::is_held(&path));
        StateFolder::open(&path).expect("free again");
    }

    #[cfg(unix)]
    #[test]
    fn files_are_private_and_replaced_whole() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("key");
        for text in ["a longer text", "short"] {
            write_private(&path, text.as_bytes()).expect("written");
            assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
        }
        assert_eq!(std::fs::metadata(&path).expect("there").permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 1, "no leftovers");
    }
}
