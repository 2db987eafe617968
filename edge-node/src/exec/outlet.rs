//! The way out of a job: a bounded sink whose reader may be slow, stalled or gone.

use super::{ExecEvent, SINK_EVENTS_MIN};
use shared::plan::Failure;
use std::time::Duration;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{OwnedPermit, Sender};

/// Sends a job's events, and sees to it that the last one always finds room: its place is kept from the start.
///
/// Dropped without an end (a panic on the engine's side) it says so to the reader; [`Self::close`] ends it silently.
#[derive(Debug)]
pub(super) struct Outlet {
    sink: Sender<ExecEvent>,
    last: Option<OwnedPermit<ExecEvent>>,
}

/// What became of an event that was offered.
#[derive(Debug, PartialEq)]
pub(super) enum Offered {
    /// It is in the sink.
    Sent,
    /// The sink is full: offer it again later.
    Full(ExecEvent),
    /// Nobody listens any more.
    Gone,
}

/// Why an event could not be sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// The reader did not drain its sink for too long.
    Stalled,
    /// Nobody listens any more.
    Gone,
}

impl Outlet {
    pub(super) fn new(sink: Sender<ExecEvent>) -> Self {
        // A sink for one event has no place to spare.
        let roomy = sink.max_capacity() >= SINK_EVENTS_MIN;
        let last = if roomy { sink.clone().try_reserve_owned().ok() } else { None };
        Self { sink, last }
    }

    /// Puts an event into the sink if there is room; never waits.
    pub(super) fn offer(&self, event: ExecEvent) -> Offered {
        match self.sink.try_send(event) {
            Ok(()) => Offered::Sent,
            Err(TrySendError::Full(event)) => Offered::Full(event),
            Err(TrySendError::Closed(_)) => Offered::Gone,
        }
    }

    /// Says that the job lives. A full sink needs no such sign.
    pub(super) fn progress(&self) {
        let _ = self.sink.try_send(ExecEvent::Progress);
    }

    /// Waits for room, at most `stall_max`.
    pub(super) async fn send(&self, event: ExecEvent, stall_max: Duration) -> Result<(), Lost> {
        match tokio::time::timeout(stall_max, self.sink.send(event)).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) => Err(Lost::Gone),
            Err(_) => Err(Lost::Stalled),
        }
    }

    /// Sends the last event.
    pub(super) fn finish(mut self, event: ExecEvent) {
        if let Some(last) = self.last.take() {
            last.send(event);
        } else {
            let _ = self.sink.try_send(event);
        }
    }

    /// Ends without a word: nobody wants to know.
    pub(super) fn close(mut self) {
        self.last = None;
    }
}

impl Drop for Outlet {
    fn drop(&mut self) {
        if let Some(last) = self.last.take() {
            last.send(ExecEvent::Failed(Failure::Engine("ended without an answer".to_owned())));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::plan::{Finish, Usage};
    use tokio::sync::mpsc;

    #[test]
    fn the_last_event_always_finds_room() {
        let (sink, mut reader) = mpsc::channel(2);
        let outlet = Outlet::new(sink);
        assert_eq!(outlet.offer(ExecEvent::Progress), Offered::Sent);
        assert_eq!(outlet.offer(ExecEvent::Progress), Offered::Full(ExecEvent::Progress));
        outlet.finish(ExecEvent::End(Finish::Stop, Usage::default()));
        assert_eq!(reader.try_recv(), Ok(ExecEvent::Progress));
        assert_eq!(reader.try_recv(), Ok(ExecEvent::End(Finish::Stop, Usage::default())));
        assert!(reader.try_recv().is_err());
    }

    #[test]
    fn a_job_that_was_dropped_says_so_and_a_closed_one_does_not() {
        let (sink, mut reader) = mpsc::channel(2);
        drop(Outlet::new(sink.clone()));
        assert!(matches!(reader.try_recv(), Ok(ExecEvent::Failed(Failure::Engine(_)))));
        Outlet::new(sink).close();
        assert_eq!(reader.try_recv(), Err(mpsc::error::TryRecvError::Disconnected));
    }
}
