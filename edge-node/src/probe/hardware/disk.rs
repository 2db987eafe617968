//! How fast the folder of models is read when nothing of it is in memory.

use super::rates::Rate;
use rustix::fs::{Advice, OFlags, fadvise};
use shared::units::Fraction;
use std::fs::{File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// Size of the file that is written and read: long against the answer time of a disk, and a second on a card of 60 MB/s.
const FILE: usize = 64 << 20;
/// Bytes of one read.
const PIECE: usize = 4 << 20;
/// Time for reading in all; a slower disk is judged by what it read until then.
const READ_MAX: Duration = Duration::from_millis(1_500);
/// The kernel's mark of a file system in memory: no disk at all.
const TMPFS: rustix::fs::FsWord = 0x0102_1994;
/// Parts of the file that are timed apart.
const PARTS: usize = 4;

/// Reads a file of its own in this folder after telling the kernel to forget it. Says which instrument was used. Absent where the
/// folder cannot be written, or has not four times the file's size to spare.
#[must_use]
pub(super) fn read_rate(folder: &Path, go_on: &dyn Fn() -> bool) -> Option<(Rate, &'static str)> {
    if rustix::fs::statfs(folder).ok()?.f_type == TMPFS {
        return None;
    }
    let free = rustix::fs::statvfs(folder).ok().map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize))?;
    if free < 4 * u64::try_from(FILE).ok()? {
        return None;
    }
    // Without a name from the beginning where that is possible: nothing is left, however this ends.
    let mut file =
        OpenOptions::new().read(true).write(true).custom_flags(i32::try_from(OFlags::TMPFILE.bits()).ok()?).open(folder).ok()?;
    let mut piece = vec![0_u8; PIECE];
    // Not zeros: some file systems write those as nothing.
    for (index, byte) in piece.iter_mut().enumerate() {
        *byte = u8::try_from((index.wrapping_mul(0x9e37_79b1) >> 13) & 0xff).unwrap_or_default();
    }
    for _ in 0..FILE / PIECE {
        if !go_on() {
            return None;
        }
        file.write_all(&piece).ok()?;
    }
    file.sync_all().ok()?;
    fadvise(&file, 0, None, Advice::DontNeed).ok()?;
    file.seek(SeekFrom::Start(0)).ok()?;
    timed(&mut file, &mut piece, go_on).map(|rate| (rate, "64 MiB, page cache dropped"))
}

fn timed(file: &mut File, piece: &mut [u8], go_on: &dyn Fn() -> bool) -> Option<Rate> {
    let begin = Instant::now();
    let mut rates = Vec::new();
    let mut whole = 0.0;
    for _ in 0..PARTS {
        let (started, mut bytes) = (Instant::now(), 0_usize);
        while bytes < FILE / PARTS && begin.elapsed() < READ_MAX && go_on() {
            file.read_exact(piece).ok()?;
            bytes += piece.len();
        }
        if bytes > 0 {
            #[expect(clippy::cast_precision_loss, reason = "a rate")]
            let bytes = bytes as f64;
            whole += bytes;
            rates.push(bytes / started.elapsed().as_secs_f64());
        }
    }
    let value = whole / begin.elapsed().as_secs_f64();
    let (least, most) = (rates.iter().copied().min_by(f64::total_cmp)?, rates.iter().copied().max_by(f64::total_cmp)?);
    let confidence = Fraction::new((1.0 - (most - least) / value).clamp(0.0, 1.0)).ok()?;
    (value.is_finite() && value > 0.0).then_some(Rate { value, confidence })
}
