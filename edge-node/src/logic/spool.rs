//! Records of requests that are over, kept until the hub has them: bounded, oldest out first, losses counted.
//!
//! A record that was sent is kept until the connection has lived long enough afterwards that it must have arrived; when the
//! connection is lost before, it is sent again. The hub takes each request once.

use super::SpoolStatus;
use serde::{Deserialize, Serialize};
use shared::plan::Record;
use shared::units::{Micros, Moment};
use std::collections::VecDeque;

/// Most records kept. A busy hour of a board; older ones say little about now.
const RECORDS_MAX: usize = 4_096;
/// Most bytes kept, as JSON: what a small board can spare. Reached first when records are rich.
const BYTES_MAX: usize = 8 * 1024 * 1024;
/// Most records in one message.
const BATCH_MAX: usize = 64;
/// Most bytes in one message: a quarter of what a payload may have, so that the envelope never matters.
const BATCH_BYTES_MAX: usize = 128 * 1024;

/// A connection that lives so long after a message has delivered it: two heartbeats of the broker's keep-alive, which notices a
/// dead connection after one and a half.
const ARRIVED_AFTER: Micros = Micros::from_secs(10);

/// The spool.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Spool {
    /// Not sent yet, with their sizes.
    records: VecDeque<(usize, Record)>,
    /// Sent at that moment, and perhaps not arrived.
    sent: VecDeque<(Moment, usize, Record)>,
    /// Size of both.
    bytes: usize,
    dropped: u64,
}

impl Spool {
    pub(super) fn push(&mut self, record: Record) {
        let bytes = serde_json::to_vec(&record).map_or(0, |json| json.len());
        if bytes > BATCH_BYTES_MAX {
            self.dropped += 1;
            return;
        }
        self.bytes += bytes;
        self.records.push_back((bytes, record));
        self.shrink();
    }

    /// What was sent has most likely arrived, so it goes first.
    fn shrink(&mut self) {
        while self.records.len() + self.sent.len() > RECORDS_MAX || self.bytes > BYTES_MAX {
            if let Some((_, bytes, _)) = self.sent.pop_front() {
                self.bytes -= bytes;
            } else if let Some((bytes, _)) = self.records.pop_front() {
                self.bytes -= bytes;
                self.dropped += 1;
            } else {
                return;
            }
        }
    }

    /// The oldest records that fit one message; empty when there are none. They count as sent.
    pub(super) fn batch(&mut self, now: Moment) -> Vec<Record> {
        let (mut batch, mut size) = (Vec::new(), 0);
        while let Some((bytes, _)) = self.records.front()
            && batch.len() < BATCH_MAX
            && size + bytes <= BATCH_BYTES_MAX
            && let Some((bytes, record)) = self.records.pop_front()
        {
            size += bytes;
            batch.push(record.clone());
            self.sent.push_back((now, bytes, record));
        }
        batch
    }

    /// The connection lives: what was sent long enough ago has arrived.
    pub(super) fn alive(&mut self, now: Moment) {
        while let Some((at, bytes, _)) = self.sent.front()
            && now.since(*at) >= ARRIVED_AFTER
        {
            self.bytes -= bytes;
            self.sent.pop_front();
        }
    }

    /// The connection is lost: what may not have arrived is sent again by the next.
    pub(super) fn lost(&mut self) {
        while let Some((_, bytes, record)) = self.sent.pop_back() {
            self.records.push_front((bytes, record));
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub(super) fn status(&self) -> SpoolStatus {
        SpoolStatus { records: self.records.len(), bytes: self.bytes, dropped: self.dropped }
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
    fn two_offline_days_do_not_fill_the_memory_and_the_newest_stay() {
        let mut spool = Spool::default();
        let pushed = 3 * RECORDS_MAX as u128;
        for id in 0..pushed {
            spool.push(record(id));
        }
        let status = spool.status();
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
        assert_eq!(spool.status().bytes, 0);
    }

    #[test]
    fn what_may_not_have_arrived_is_sent_again_and_what_has_is_not() {
        let mut spool = Spool::default();
        spool.push(record(1));
        spool.batch(Moment(0));
        spool.push(record(2));
        spool.push(record(3));
        let later = Moment(0) + ARRIVED_AFTER;
        spool.batch(later);
        spool.alive(later);
        spool.lost();
        let again: Vec<_> = spool.batch(later).iter().map(|record| record.request.0).collect();
        assert_eq!(again, [2, 3]);
    }
}
