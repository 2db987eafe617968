//! Reads all sensors in a bounded time, whatever one of them does.
//!
//! A read from the kernel cannot be cut short. So sensors are read by a thread of their own; when it does not come back in time, the
//! sensor at which it hangs is given up for good, and a new thread goes on with the others.

use super::root::Root;
use super::sensors::{Reading, Sensed, find, sum_up};
use shared::units::Micros;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// Longest wait for one round: a sensor on a slow bus takes some milliseconds, and there may be some dozens.
const ROUND_MAX: Duration = Duration::from_millis(500);
/// Sensors that may hang before none is read any more: each holds a thread for as long as the kernel does not answer.
const GIVEN_UP_MAX: usize = 4;

/// All sensors of a machine.
#[derive(Debug)]
pub struct Sensors {
    root: Root,
    given_up: BTreeSet<usize>,
    reader: Option<Reader>,
    last: Option<Instant>,
}

#[derive(Debug)]
struct Reader {
    ask: SyncSender<()>,
    answers: Receiver<Vec<Reading>>,
    at: Arc<AtomicUsize>,
}

impl Sensors {
    /// Those that are there.
    #[must_use]
    pub const fn new(root: Root) -> Self {
        Self { root, given_up: BTreeSet::new(), reader: None, last: None }
    }

    /// Which ones were given up.
    #[must_use]
    pub fn given_up(&self) -> usize {
        self.given_up.len()
    }

    /// What they say. Power from counters is the mean since the last read, and absent at the first.
    pub fn read(&mut self) -> Sensed {
        while self.given_up.len() < GIVEN_UP_MAX {
            if self.reader.is_none() {
                self.reader = Reader::start(&self.root, &self.given_up);
            }
            let Some(reader) = &self.reader else { break };
            let asked = reader.ask.try_send(()).is_ok();
            if let Some(readings) = reader.answers.recv_timeout(ROUND_MAX).ok().filter(|_| asked) {
                let now = Instant::now();
                let passed = self.last.replace(now).map(|last| now.duration_since(last));
                let micros = passed.map(|passed| Micros(u64::try_from(passed.as_micros()).unwrap_or(u64::MAX)));
                return sum_up(&readings, micros);
            }
            // New counters begin anew.
            self.last = None;
            self.given_up.insert(reader.at.load(Ordering::Relaxed));
            self.reader = None;
        }
        Sensed::default()
    }
}

impl Reader {
    fn start(root: &Root, given_up: &BTreeSet<usize>) -> Option<Self> {
        let all = find(root).into_iter().enumerate();
        let mut sensors: Vec<_> = all.filter(|(index, _)| !given_up.contains(index)).collect();
        let (ask, asked) = sync_channel::<()>(1);
        let (answer, answers) = sync_channel(1);
        let at = Arc::new(AtomicUsize::new(0));
        let here = Arc::clone(&at);
        // Ends when its other ends are dropped, or, if it hangs, when the kernel answers.
        let thread = std::thread::Builder::new().name("sensors".to_owned()).stack_size(256 * 1024);
        let body = move || {
            while asked.recv().is_ok() {
                let readings = sensors.iter_mut().filter_map(|(index, sensor)| {
                    here.store(*index, Ordering::Relaxed);
                    sensor.read()
                });
                if answer.send(readings.collect()).is_err() {
                    return;
                }
            }
        };
        thread.spawn(body).ok()?;
        Some(Self { ask, answers, at })
    }
}
