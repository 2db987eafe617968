//! Records of requests that are over, kept until the hub has them: bounded by bytes, count and age, oldest out first, losses counted.
//!
//! A record is an event, so the older ones go first, both out and away. What is a state (status, inventory, telemetry) is not kept
//! here at all: the newest is published when there is a connection, and that is all that anybody wants of it.
//!
//! A record that was sent is kept until the connection has lived long enough afterwards that it must have arrived; when the
//! connection is lost before, it is sent again. The hub takes each request once. The same records lie on disk, as far as
//! [`SpoolChange`] was carried out, so that a restart loses none.

use super::SpoolStatus;
use serde::{Deserialize, Serialize};
use shared::plan::Record;
use shared::units::{Micros, Moment};
use std::collections::VecDeque;

/// Most records kept. A busy hour of a board; older ones say little about now.
const RECORDS_MAX: usize = 4_096;
/// Most bytes kept, as JSON: what a small board can spare. Reached first when records are rich.
pub(super) const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Oldest record kept. Whoever looks at yesterday's requests has gone home, and the hub keeps no longer either.
const AGE_MAX: Micros = Micros::from_secs(24 * 3_600);
/// Most records in one message.
const BATCH_MAX: usize = 64;
/// Most bytes in one message: a quarter of what a payload may have, so that the envelope never matters.
const BATCH_BYTES_MAX: usize = 128 * 1024;

/// A connection that lives so long after a message has delivered it: two heartbeats of the broker's keep-alive, which notices a
/// dead connection after one and a half.
const ARRIVED_AFTER: Micros = Micros::from_secs(10);

/// What the disk shall do to hold the same records.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SpoolChange {
    /// Keep this one under this number; numbers rise.
    Keep(u64, Box<Record>),
    /// Forget all up to this number, and give their room back.
    Forget(u64),
}

/// A record that is kept.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Kept {
    number: u64,
    at: Moment,
    bytes: usize,
    record: Record,
}

/// The spool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Spool {
    /// Not sent yet.
    records: VecDeque<Kept>,
    /// Sent at that moment, and perhaps not arrived; all older than those not sent.
    sent: VecDeque<(Moment, Kept)>,
    /// Size of both.
    bytes: usize,
    /// Number of the newest.
    newest: u64,
    dropped: u64,
    changes: Vec<SpoolChange>,
}

impl Spool {
    pub(super) fn push(&mut self, now: Moment, record: Record) {
        let number = self.newest + 1;
        if self.keep(now, number, record.clone()) {
            self.changes.push(SpoolChange::Keep(number, Box::new(record)));
            self.shrink();
        }
    }

    /// What an earlier life could not send. How old it is nobody knows, so it counts as new.
    pub(super) fn restore(&mut self, now: Moment, records: Vec<(u64, Record)>) {
        for (number, record) in records {
            if number > self.newest {
                self.keep(now, number, record);
            }
        }
        self.shrink();
    }

    fn keep(&mut self, at: Moment, number: u64, record: Record) -> bool {
        let bytes = serde_json::to_vec(&record).map_or(0, |json| json.len());
        if bytes > BATCH_BYTES_MAX {
            self.dropped += 1;
            return false;
        }
        self.newest = number;
        self.bytes += bytes;
        self.records.push_back(Kept { number, at, bytes, record });
        true
    }

    /// What was sent has most likely arrived, so it goes first.
    fn shrink(&mut self) {
        while self.records.len() + self.sent.len() > RECORDS_MAX || self.bytes > BYTES_MAX {
            self.drop_oldest();
        }
    }

    /// Lets go of what is too old.
    pub(super) fn age(&mut self, now: Moment) {
        while self.oldest().is_some_and(|at| now.since(at) > AGE_MAX) {
            self.drop_oldest();
        }
    }

    fn oldest(&self) -> Option<Moment> {
        self.sent.front().map(|(_, kept)| kept.at).or_else(|| self.records.front().map(|kept| kept.at))
    }

    fn drop_oldest(&mut self) {
        if let Some((_, kept)) = self.sent.pop_front() {
            self.forget(&kept);
        } else if let Some(kept) = self.records.pop_front() {
            self.forget(&kept);
            self.dropped += 1;
        }
    }

    fn forget(&mut self, kept: &Kept) {
        self.bytes -= kept.bytes;
        // One word for a row of them.
        if let Some(SpoolChange::Forget(number)) = self.changes.last_mut() {
            *number = kept.number;
        } else {
            self.changes.push(SpoolChange::Forget(kept.number));
        }
    }

    /// The oldest records that fit one message; empty when there are none. They count as sent.
    pub(super) fn batch(&mut self, now: Moment) -> Vec<Record> {
        let (mut batch, mut size) = (Vec::new(), 0);
        while let Some(next) = self.records.front()
            && batch.len() < BATCH_MAX
            && size + next.bytes <= BATCH_BYTES_MAX
            && let Some(kept) = self.records.pop_front()
        {
            size += kept.bytes;
            batch.push(kept.record.clone());
            self.sent.push_back((now, kept));
        }
        batch
    }

    /// The connection lives: what was sent long enough ago has arrived.
    pub(super) fn alive(&mut self, now: Moment) {
        while let Some((_, kept)) = self.sent.pop_front_if(|(at, _)| now.since(*at) >= ARRIVED_AFTER) {
            self.forget(&kept);
        }
    }

    /// The connection is lost: what may not have arrived is sent again by the next.
    pub(super) fn lost(&mut self) {
        while let Some((_, kept)) = self.sent.pop_back() {
            self.records.push_front(kept);
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// What the disk has to do since this was last asked.
    pub(super) fn changes(&mut self) -> Vec<SpoolChange> {
        std::mem::take(&mut self.changes)
    }

    pub(super) fn status(&self, now: Moment) -> SpoolStatus {
        SpoolStatus {
            records: self.records.len(),
            bytes: self.bytes,
            dropped: self.dropped,
            bytes_max: BYTES_MAX,
            oldest: self.oldest().map(|at| now.since(at)),
            disk: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::ids::{NodeId, RequestId, ServiceId};
    use shared::plan::{Actual, Failure, Outcome};
    use shared::units::{Micros, Moment};

    fn record(id: u128) -> Record {
        Record {
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
        }
    }

    #[test]
    fn row_18_two_offline_days_do_not_fill_the_memory_and_the_newest_stay() {
        let mut spool = Spool::default();
        let pushed = 3 * RECORDS_MAX as u128;
        for id in 0..pushed {
            spool.push(Moment(0), record(id));
        }
        let status = spool.status(Moment(0));
        assert!(status.records <= RECORDS_MAX && status.bytes <= BYTES_MAX, "{status:?}");
        assert_eq!(status.dropped + status.records as u64, pushed as u64);
        // All that stayed comes out once, in order, in messages of bounded size; and the room is given back.
        let mut seen = Vec::new();
        while !spool.is_empty() {
            let batch = spool.batch(Moment(0));
            assert!(!batch.is_empty() && batch.len() <= BATCH_MAX);
            seen.extend(batch.into_iter().map(|record| record.request.0));
        }
        let expected: Vec<_> = (pushed - seen.len() as u128..pushed).collect();
        assert_eq!(seen, expected);
        spool.alive(Moment(0) + ARRIVED_AFTER);
        assert_eq!(spool.status(Moment(0)).bytes, 0);
    }

    #[test]
    fn what_may_not_have_arrived_is_sent_again_and_what_has_is_not() {
        let mut spool = Spool::default();
        spool.push(Moment(0), record(1));
        spool.batch(Moment(0));
        spool.push(Moment(0), record(2));
        spool.push(Moment(0), record(3));
        let later = Moment(0) + ARRIVED_AFTER;
        spool.batch(later);
        spool.alive(later);
        spool.lost();
        let again: Vec<_> = spool.batch(later).iter().map(|record| record.request.0).collect();
        assert_eq!(again, [2, 3]);
    }

    #[test]
    fn a_day_is_enough_and_the_disk_is_told_of_everything() {
        let mut spool = Spool::default();
        let at = |hours: u64| Moment(0) + Micros::from_secs(hours * 3_600);
        for hour in 0..30 {
            spool.push(at(hour), record(u128::from(hour)));
            spool.age(at(hour));
        }
        assert_eq!(spool.status(at(29)).dropped, 5, "those of more than a day ago");
        assert_eq!(spool.status(at(29)).oldest, Some(Micros::from_secs(24 * 3_600)));
        // Carried out in order, the changes leave what the spool holds.
        let mut disk = std::collections::BTreeMap::new();
        for change in spool.changes() {
            match change {
                SpoolChange::Keep(number, record) => drop(disk.insert(number, *record)),
                SpoolChange::Forget(number) => disk = disk.split_off(&(number + 1)),
            }
        }
        let mut next_life = Spool::default();
        next_life.restore(at(0), disk.into_iter().collect());
        let ids = |spool: &mut Spool| spool.batch(at(0)).iter().map(|record| record.request.0).collect::<Vec<_>>();
        assert_eq!(ids(&mut next_life), ids(&mut spool));
        next_life.push(at(1), record(99));
        assert_eq!(next_life.changes(), [SpoolChange::Keep(31, Box::new(record(99)))], "numbers go on rising");
    }
}
