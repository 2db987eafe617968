//! The output of a managed server: a file, since a pipe would break with the agent, and bounded, since nobody else bounds it.
//!
//! Servers may write texts of requests into it. So it is for the operator alone, and nothing of it is ever read into a report or a log.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// Above this the file is emptied, and its last quarter kept in a second one: a start and a few hours of a talkative server.
const BYTES_MAX: u64 = 4 * 1024 * 1024;
/// So much of the end is kept.
const KEPT_BYTES: u64 = BYTES_MAX / 4;

/// Opens the file for a server. It writes to the end, wherever that is by then: so the file can be emptied beneath it.
pub(super) fn open(path: &Path) -> io::Result<File> {
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)
}

/// Empties the file when it is too large.
pub(super) fn bound(path: &Path) -> io::Result<()> {
    if fs::metadata(path)?.len() <= BYTES_MAX {
        return Ok(());
    }
    let mut old = open(&path.with_extension("old.log"))?;
    old.set_len(0)?;
    old.write_all(&tail(path, KEPT_BYTES)?)?;
    OpenOptions::new().write(true).open(path)?.set_len(0)
}

fn tail(path: &Path, bytes: u64) -> io::Result<Vec<u8>> {
    let mut file = File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
    let mut end = Vec::new();
    file.take(bytes).read_to_end(&mut end)?;
    Ok(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_talkative_server_fills_no_disk_and_goes_on_writing() {
        let folder = tempfile::tempdir().expect("folder");
        let path = folder.path().join("managed/v.log");
        let mut server = open(&path).expect("opened");
        let line = [b'x'; 1023].iter().chain(b"\n").copied().collect::<Vec<u8>>();
        for round in 0..3 * BYTES_MAX / 1024 {
            server.write_all(&line).expect("written");
            if round % 64 == 0 {
                bound(&path).expect("bounded");
            }
            assert!(fs::metadata(&path).expect("there").len() <= BYTES_MAX + 64 * 1024);
        }
        server.write_all(b"last words\n").expect("written");
        assert!(fs::read(&path).expect("read").ends_with(b"last words\n"));
        assert_eq!(fs::metadata(path.with_extension("old.log")).expect("kept").len(), KEPT_BYTES);
    }
}
