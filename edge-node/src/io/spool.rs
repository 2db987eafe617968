//! The records that wait for the hub, on disk: one line each, appended; what the hub has is forgotten, and its room given back.
//!
//! The logic decides what is kept; the file is its shadow. It is at most twice the logic's quota and a little: as soon as more than half of
//! it is forgotten, it is written anew, and when all is, it is empty.

use super::store::chain;
use crate::logic::SpoolChange;
use serde::{Deserialize, Serialize};
use shared::plan::Record;
use shared_net::host::{StateFolder, Tasks, write_private};
use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::mpsc;

pub(super) const FILE: &str = "spool.jsonl";
/// Forgotten bytes that are not worth writing the file anew for.
const SLACK_BYTES: u64 = 64 * 1024;
/// Changes that wait for the disk. A disk that stalls for longer costs records their place in the next life, not in this one.
const CHANGES_MAX: usize = 4_096;
/// Longest line that is read: what the logic takes, and its number. A longer one is no record.
const LINE_BYTES_MAX: usize = 256 * 1024;

#[derive(Serialize, Deserialize)]
struct Line {
    number: u64,
    record: Record,
}

/// The file, and which lines of it are kept.
struct Shadow {
    path: PathBuf,
    /// Number and length of each kept line.
    kept: VecDeque<(u64, u64)>,
    kept_bytes: u64,
    bytes: u64,
}

/// Hands changes to the writer.
#[derive(Clone, Debug)]
pub(super) struct Spool {
    changes: mpsc::Sender<SpoolChange>,
    bytes: Arc<AtomicU64>,
}

impl Spool {
    pub(super) fn change(&self, change: SpoolChange) {
        if self.changes.try_send(change).is_err() {
            tracing::warn!("the records that wait for the hub could not all be written: the disk is too slow");
        }
    }

    /// What it takes on disk, in bytes.
    pub(super) fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }
}

/// Opens the spool of a state folder. Returns what an earlier life left in it.
///
/// # Errors
/// When the file cannot be read or written.
pub(super) fn open(folder: &Arc<StateFolder>, tasks: &Tasks) -> io::Result<(Spool, Vec<(u64, Record)>)> {
    let (shadow, records) = Shadow::load(folder.path().join(FILE))?;
    let bytes = Arc::new(AtomicU64::new(shadow.bytes));
    let (changes, waiting) = mpsc::channel(CHANGES_MAX);
    tasks.spawn("spool", keep(shadow, waiting, Arc::clone(&bytes), Arc::clone(folder)));
    Ok((Spool { changes, bytes }, records))
}

/// Ends when the driver has dropped its end, after its last word. The folder's lock is held until then.
async fn keep(mut shadow: Shadow, mut changes: mpsc::Receiver<SpoolChange>, bytes: Arc<AtomicU64>, folder: Arc<StateFolder>) {
    while let Some(first) = changes.recv().await {
        let mut batch = vec![first];
        while let Ok(next) = changes.try_recv() {
            batch.push(next);
        }
        let carried_out = tokio::task::spawn_blocking(move || {
            let done = shadow.carry_out(batch);
            (shadow, done)
        });
        let Ok((back, done)) = carried_out.await else { return };
        shadow = back;
        bytes.store(shadow.bytes, Ordering::Relaxed);
        if let Err(error) = done {
            tracing::error!(error = %chain(&error), "the records that wait for the hub were not written");
        }
    }
    drop(folder);
}

impl Shadow {
    /// A line that a crash cut short ends what can be read; what follows it is forgotten.
    fn load(path: PathBuf) -> io::Result<(Self, Vec<(u64, Record)>)> {
        let mut records = Vec::new();
        match File::open(&path) {
            Ok(file) => {
                for line in BufReader::new(file).split(b'\n') {
                    let line = line?;
                    match serde_json::from_slice::<Line>(&line) {
                        Ok(line) => records.push((line.number, line.record)),
                        Err(_) => break,
                    }
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        let mut shadow = Self { path, kept: VecDeque::new(), kept_bytes: 0, bytes: 0 };
        let lines: Vec<u8> = records.iter().flat_map(|(number, record)| shadow.line(*number, record)).collect();
        shadow.replace(&lines)?;
        Ok((shadow, records))
    }

    fn line(&mut self, number: u64, record: &Record) -> Vec<u8> {
        #[derive(Serialize)]
        struct Borrowed<'a> {
            number: u64,
            record: &'a Record,
        }
        // Values of our own types always serialise.
        let mut line = serde_json::to_vec(&Borrowed { number, record }).unwrap_or_default();
        if line.is_empty() || line.len() > LINE_BYTES_MAX {
            return Vec::new();
        }
        line.push(b'\n');
        self.kept.push_back((number, line.len() as u64));
        self.kept_bytes += line.len() as u64;
        line
    }

    fn replace(&mut self, lines: &[u8]) -> io::Result<()> {
        if lines.is_empty() && !self.path.exists() {
            return Ok(());
        }
        write_private(&self.path, lines)?;
        self.bytes = lines.len() as u64;
        Ok(())
    }

    fn carry_out(&mut self, batch: Vec<SpoolChange>) -> io::Result<()> {
        let mut lines = Vec::new();
        for change in batch {
            match change {
                SpoolChange::Keep(number, record) => lines.extend(self.line(number, &record)),
                SpoolChange::Forget(up_to) => {
                    while let Some((_, length)) = self.kept.pop_front_if(|(number, _)| *number <= up_to) {
                        self.kept_bytes -= length;
                    }
                }
            }
        }
        if !lines.is_empty() {
            append(&self.path, &lines)?;
            self.bytes += lines.len() as u64;
        }
        let forgotten = self.bytes - self.kept_bytes;
        if self.bytes > 0 && (self.kept.is_empty() || forgotten > self.kept_bytes + SLACK_BYTES) {
            // Kept lines are the last ones of the file.
            let all = std::fs::read(&self.path)?;
            let from = all.len().saturating_sub(usize::try_from(self.kept_bytes).unwrap_or(usize::MAX));
            self.replace(all.get(from..).unwrap_or_default())?;
        }
        Ok(())
    }
}

fn append(path: &Path, lines: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path)?.write_all(lines)
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::ids::{NodeId, RequestId, ServiceId};
    use shared::plan::{Actual, Failure, Outcome};
    use shared::units::{Micros, Moment};

    fn record(id: u128) -> Box<Record> {
        Box::new(Record {
            request: RequestId(id),
            ingress: NodeId::new("lab/a").expect("good"),
            service: ServiceId::new("assistant").expect("good"),
            needs: shared::work::Needs::default(),
            arrived: Moment(0),
            waited: Micros::ZERO,
            attempts: Vec::new(),
            served_by: None,
            quality: None,
            actual: Actual::default(),
            outcome: Outcome::Failed(Failure::DeadlineExceeded),
            attained: None,
        })
    }

    fn size(folder: &Path) -> u64 {
        std::fs::metadata(folder.join(FILE)).map_or(0, |file| file.len())
    }

    #[test]
    fn row_18_the_file_stays_within_its_bounds_and_is_empty_in_the_end() {
        let folder = tempfile::tempdir().expect("folder");
        let (mut shadow, found) = Shadow::load(folder.path().join(FILE)).expect("new");
        assert!(found.is_empty());
        // Two hours without a hub, ten records a second, of which the logic keeps the newest thousand.
        let (mut most, mut kept) = (0, 0);
        for last in (10..=72_000_u64).step_by(10) {
            let keep = |number| SpoolChange::Keep(number, record(u128::from(number)));
            let mut batch: Vec<_> = (last - 9..=last).map(keep).collect();
            batch.extend((last > 1_000).then(|| SpoolChange::Forget(last - 1_000)));
            shadow.carry_out(batch).expect("written");
            kept = shadow.kept_bytes;
            most = most.max(size(folder.path()));
            assert_eq!(shadow.bytes, size(folder.path()));
        }
        assert!(most <= 2 * kept + SLACK_BYTES + 1_000, "{most} for {kept}");
        // A crash in the middle of a line, and a new life.
        append(&folder.path().join(FILE), b"{\"number\":72001,\"rec").expect("written");
        let (mut shadow, found) = Shadow::load(folder.path().join(FILE)).expect("readable");
        let numbers: Vec<_> = found.iter().map(|(number, _)| *number).filter(|number| *number > 71_000).collect();
        assert_eq!(numbers, (71_001..=72_000).collect::<Vec<_>>());
        // The hub is back and has everything.
        shadow.carry_out(vec![SpoolChange::Forget(72_000)]).expect("written");
        assert_eq!(size(folder.path()), 0, "the room is given back");
    }
}
