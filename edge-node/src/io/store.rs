//! What the agent keeps on disk: its state for the next start, and the records of the last requests.

use crate::logic::Persisted;
use serde::{Deserialize, Serialize};
use shared::ids::{NodeId, RequestId};
use shared::plan::Record;
use shared::units::Micros;
use shared_net::host::{StateFolder, Tasks, write_private};
use std::collections::{BTreeMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// What the agent knows, written whenever something of it changes.
pub const AGENT_FILE: &str = "agent.json";
const MEMBER_FILE: &str = "member.json";
/// Where a running agent answers, for the commands that ask it.
const HTTP_FILE: &str = "http-address";
const RECORDS_FILE: &str = "records.jsonl";
const RECORDS_OLD_FILE: &str = "records.old.jsonl";
/// Bytes of the newer of the two files of records. When it is full it becomes the older one, so at most twice this is on disk, and
/// at least this much of the past is always there: about 10,000 requests.
const RECORDS_BYTES_MAX: u64 = 8 * 1024 * 1024;
/// Records that wait to be written. A disk that stalls so long costs records, which are counted, and nothing else.
const QUEUE_MAX: usize = 1_024;
/// Records are written at most this often: opening and writing a file for each of thousands a second would cost more than serving
/// them. A process that is killed may lose as much.
const RECORDS_EVERY: Duration = Duration::from_millis(100);
/// Records that are found without the disk.
const RECENT_MAX: usize = 512;

/// A file of the state folder that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// It cannot be read or written.
    #[error("{doing} `{path}`")]
    File {
        /// What was being done.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// Its content cannot be understood.
    #[error("`{path}` is damaged: {why}; join again with a fresh token (`edge-node join --replace`)")]
    Damaged {
        /// Which file.
        path: PathBuf,
        /// What is wrong.
        why: String,
    },
}

/// What a node keeps of its joining, beside its certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Member {
    /// The fleet's hub.
    pub hub: NodeId,
    /// `host:port` of the hub's QUIC endpoint.
    pub address: String,
    /// Labels from the token.
    pub labels: BTreeMap<String, String>,
    /// How long the present certificate was to last when it was issued.
    pub lifetime: Micros,
}

impl Member {
    /// The membership in a state folder, if there is one.
    ///
    /// # Errors
    /// [`StoreError`] when there is one that cannot be used.
    pub fn load(folder: &Path) -> Result<Option<Self>, StoreError> {
        read(&folder.join(MEMBER_FILE))?.transpose()
    }

    /// Writes it to a state folder, whole or not at all.
    ///
    /// # Errors
    /// [`StoreError::File`].
    pub fn save(&self, folder: &Path) -> Result<(), StoreError> {
        write(&folder.join(MEMBER_FILE), self)
    }
}

/// Removes what an earlier member of a fleet left in its state folder, but for its certificate ([`shared_net::tls::Identity`]).
///
/// # Errors
/// [`StoreError::File`].
pub fn forget(folder: &Path) -> Result<(), StoreError> {
    for name in [MEMBER_FILE, AGENT_FILE, RECORDS_FILE, RECORDS_OLD_FILE, HTTP_FILE, super::spool::FILE] {
        let path = folder.join(name);
        match std::fs::remove_file(&path) {
            Err(source) if source.kind() != io::ErrorKind::NotFound => {
                return Err(StoreError::File { doing: "removing", path, source });
            }
            _ => {}
        }
    }
    Ok(())
}

/// Notes where this agent answers.
///
/// # Errors
/// [`StoreError::File`].
pub(super) fn note_http_address(folder: &Path, address: SocketAddr) -> Result<(), StoreError> {
    let path = folder.join(HTTP_FILE);
    write_private(&path, address.to_string().as_bytes()).map_err(|source| StoreError::File { doing: "writing", path, source })
}

/// Takes the note back.
pub(super) fn forget_http_address(folder: &Path) {
    // One that is left over leads to nobody, and the next start replaces it.
    drop(std::fs::remove_file(folder.join(HTTP_FILE)));
}

/// Where the agent with this state folder answers, if one runs.
#[must_use]
pub fn http_address_of(folder: &Path) -> Option<SocketAddr> {
    std::fs::read_to_string(folder.join(HTTP_FILE)).ok()?.trim().parse().ok()
}

/// What an earlier life left. A damaged file counts as none and is named in the log: it holds nothing that the hub does not know,
/// and a node without its hub should rather start poorer than not at all.
///
/// # Errors
/// [`StoreError::File`] when the folder cannot be read.
pub fn load_agent(folder: &Path) -> Result<Option<Persisted>, StoreError> {
    match read(&folder.join(AGENT_FILE))? {
        Some(Ok(persisted)) => Ok(Some(persisted)),
        Some(Err(damaged)) => {
            let damaged: StoreError = damaged;
            tracing::warn!(%damaged, "starting without what an earlier life knew");
            Ok(None)
        }
        None => Ok(None),
    }
}

pub(super) fn read<T: serde::de::DeserializeOwned>(path: &Path) -> Result<Option<Result<T, StoreError>>, StoreError> {
    match std::fs::read(path) {
        Ok(bytes) => {
            let damaged = |error: serde_json::Error| StoreError::Damaged { path: path.to_owned(), why: error.to_string() };
            Ok(Some(serde_json::from_slice(&bytes).map_err(damaged)))
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(StoreError::File { doing: "reading", path: path.to_owned(), source }),
    }
}

pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), StoreError> {
    let failed = |source| StoreError::File { doing: "writing", path: path.to_owned(), source };
    let bytes = serde_json::to_vec_pretty(value).map_err(|error| failed(io::Error::other(error)))?;
    write_private(path, &bytes).map_err(failed)
}

/// Writes in the background; the driver never waits for a disk.
pub(super) struct Store {
    persisted: watch::Sender<Option<Box<Persisted>>>,
    queue: mpsc::Sender<Arc<Record>>,
    book: RecordBook,
}

/// Finds records again, also those of earlier lives.
#[derive(Clone, Debug)]
pub struct RecordBook {
    folder: PathBuf,
    recent: Arc<Mutex<VecDeque<Arc<Record>>>>,
}

/// Starts the writer. It ends when the [`Store`] is dropped, after what was handed to it is on disk.
pub(super) fn open(folder: &Arc<StateFolder>, tasks: &Tasks) -> (Store, RecordBook) {
    let (persisted, states) = watch::channel(None);
    let (queue, records) = mpsc::channel(QUEUE_MAX);
    let book = RecordBook { folder: folder.path().to_owned(), recent: Arc::default() };
    tasks.spawn("store", keep(Arc::clone(folder), states, records));
    (Store { persisted, queue, book: book.clone() }, book)
}

impl Store {
    pub(super) fn persist(&self, persisted: Box<Persisted>) {
        self.persisted.send_replace(Some(persisted));
    }

    pub(super) fn record(&self, record: Box<Record>) {
        let record: Arc<Record> = record.into();
        self.book.remember(Arc::clone(&record));
        if self.queue.try_send(record).is_err() {
            tracing::warn!("a record could not be kept: the disk is too slow");
        }
    }
}

impl RecordBook {
    fn remember(&self, record: Arc<Record>) {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_back(record);
        if recent.len() > RECENT_MAX {
            recent.pop_front();
        }
    }

    /// The record of a request, if it is not too long ago.
    ///
    /// # Errors
    /// [`StoreError::File`] when the files cannot be read.
    pub async fn find(&self, request: RequestId) -> Result<Option<Record>, StoreError> {
        let recent = {
            let recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            recent.iter().rev().find(|record| record.request == request).map(|record| (**record).clone())
        };
        if recent.is_some() {
            return Ok(recent);
        }
        let folder = self.folder.clone();
        let searched = tokio::task::spawn_blocking(move || search(&folder, request)).await;
        searched.unwrap_or_else(|error| {
            Err(StoreError::File { doing: "searching", path: PathBuf::from(RECORDS_FILE), source: io::Error::other(error) })
        })
    }
}

fn search(folder: &Path, request: RequestId) -> Result<Option<Record>, StoreError> {
    let wanted = request.to_string();
    for name in [RECORDS_FILE, RECORDS_OLD_FILE] {
        let path = folder.join(name);
        let file = match File::open(&path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(source) => return Err(StoreError::File { doing: "reading", path, source }),
        };
        let mut found = None;
        for line in BufReader::new(file).lines() {
            // A line that a crash cut short is no record.
            let Ok(line) = line else { break };
            if line.contains(&wanted)
                && let Ok(record) = serde_json::from_str::<Record>(&line)
                && record.request == request
            {
                found = Some(record);
            }
        }
        if found.is_some() {
            return Ok(found);
        }
    }
    Ok(None)
}

async fn keep(
    folder: Arc<StateFolder>,
    mut states: watch::Receiver<Option<Box<Persisted>>>,
    mut records: mpsc::Receiver<Arc<Record>>,
) {
    let mut written: Option<Instant> = None;
    loop {
        // It ends when the driver has dropped its end, which it does after its last word.
        tokio::select! {
            biased;
            record = records.recv() => match record {
                Some(record) => {
                    // The first one after a pause is written at once, many together.
                    if let Some(next) = written.map(|written| written + RECORDS_EVERY) {
                        company(&records, next).await;
                    }
                    append(&folder, record, &mut records).await;
                    written = Some(Instant::now());
                }
                None => break,
            },
            Ok(()) = states.changed() => save(&folder, &mut states).await,
        }
    }
    save(&folder, &mut states).await;
}

async fn save(folder: &Arc<StateFolder>, states: &mut watch::Receiver<Option<Box<Persisted>>>) {
    let Some(state) = states.borrow_and_update().clone() else { return };
    let path = folder.join(AGENT_FILE);
    let written = tokio::task::spawn_blocking(move || write(&path, &state)).await;
    if let Ok(Err(error)) = written {
        tracing::error!(error = %chain(&error), "the agent's state was not kept");
    }
}

/// Waits for more records until `until`, or until there are many, or there will be none.
async fn company(records: &mpsc::Receiver<Arc<Record>>, until: Instant) {
    while Instant::now() < until && records.len() < QUEUE_MAX / 2 && !records.is_closed() {
        tokio::time::sleep(RECORDS_EVERY / 10).await;
    }
}

async fn append(folder: &Arc<StateFolder>, first: Arc<Record>, more: &mut mpsc::Receiver<Arc<Record>>) {
    let mut records = vec![first];
    while let Ok(record) = more.try_recv() {
        records.push(record);
    }
    let folder = Arc::clone(folder);
    // Writing them as text takes a while too, for which no request shall wait.
    let written = tokio::task::spawn_blocking(move || append_lines(folder.path(), &lines(&records))).await;
    if let Ok(Err(error)) = written {
        tracing::error!(%error, "records were not kept");
    }
}

/// Records as text, one a line.
fn lines(records: &[Arc<Record>]) -> Vec<u8> {
    let mut lines = Vec::new();
    for record in records {
        // Values of our own types always serialise.
        if serde_json::to_writer(&mut lines, record).is_ok() {
            lines.push(b'\n');
        }
    }
    lines
}

fn append_lines(folder: &Path, lines: &[u8]) -> io::Result<()> {
    let path = folder.join(RECORDS_FILE);
    let mut options = OpenOptions::new();
    options.create(true).append(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(&path)?;
    if file.metadata()?.len() + u64::try_from(lines.len()).unwrap_or(u64::MAX) > RECORDS_BYTES_MAX {
        std::fs::rename(&path, folder.join(RECORDS_OLD_FILE))?;
        file = options.open(&path)?;
    }
    file.write_all(lines)
}

/// An error with its causes, on one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::ids::ServiceId;
    use shared::plan::{Actual, Failure, Outcome};
    use shared::units::Moment;

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

    #[tokio::test]
    async fn records_and_state_outlive_the_process() {
        let folder = tempfile::tempdir().expect("folder");
        {
            let state = Arc::new(StateFolder::open(folder.path()).expect("free"));
            let tasks = Tasks::new();
            let (store, _) = open(&state, &tasks);
            for id in 0..2_000 {
                store.queue.send(record(id).into()).await.expect("the writer runs");
            }
            let persisted = Persisted { drain: true, ..Persisted::default() };
            store.persist(Box::new(persisted));
            drop(store);
            tasks.stop(Duration::from_secs(10)).await.expect("everything is on disk");
        }
        let state = Arc::new(StateFolder::open(folder.path()).expect("free again"));
        let (_, book) = open(&state, &Tasks::new());
        assert_eq!(book.find(RequestId(7)).await.expect("readable").map(|record| record.request), Some(RequestId(7)));
        assert_eq!(book.find(RequestId(1_999)).await.expect("readable").map(|record| record.request), Some(RequestId(1_999)));
        assert_eq!(book.find(RequestId(5_000)).await.expect("readable"), None);
        assert!(load_agent(folder.path()).expect("readable").is_some_and(|persisted| persisted.drain));
        std::fs::write(folder.path().join(AGENT_FILE), "{half").expect("damaged");
        assert_eq!(load_agent(folder.path()).expect("a damaged one is none"), None);
    }

    #[test]
    fn the_files_of_records_stay_bounded() {
        let folder = tempfile::tempdir().expect("folder");
        let line = vec![b'x'; 1024 * 1024];
        for _ in 0..30 {
            append_lines(folder.path(), &line).expect("written");
        }
        let size = |name| std::fs::metadata(folder.path().join(name)).expect("there").len();
        assert!(size(RECORDS_FILE) <= RECORDS_BYTES_MAX && size(RECORDS_OLD_FILE) <= RECORDS_BYTES_MAX);
    }
}
