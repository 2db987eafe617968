//! A job that holds a slot and has a way out: all that is needed to end it properly.

use crate::exec::ExecEvent;
use crate::exec::hold::Hold;
use crate::exec::outlet::{Offered, Outlet};
use shared::work::ExecHeader;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Sender;
use tokio_util::sync::{CancellationToken, PollSender};

/// A slot, and the way to whoever wants the answer.
#[derive(Debug)]
pub(super) struct Claim {
    hold: Hold,
    outlet: Outlet,
    /// The same way, for waiting until there is room in it.
    room: PollSender<ExecEvent>,
    full: Wait,
    pub(super) cancel: CancellationToken,
    deadline: Option<Instant>,
    told: Instant,
    /// When the job was taken.
    pub(super) accepted: Instant,
}

/// What became of something that was to be delivered.
#[derive(Debug)]
pub(super) enum Delivered {
    /// It is on its way.
    Sent,
    /// There is no room; the thread is woken when there is.
    Kept(ExecEvent),
    /// There was no room for too long.
    Stalled,
    /// Nobody listens any more.
    Gone,
}

/// Since when somebody does not read.
#[derive(Debug, Default)]
pub(super) struct Wait(Option<Instant>);

impl Wait {
    /// Waits on, and says whether that has lasted too long.
    pub(super) fn lasts(&mut self, now: Instant, stall_max: Duration) -> bool {
        now.duration_since(*self.0.get_or_insert(now)) >= stall_max
    }

    fn waits(&self) -> bool {
        self.0.is_some()
    }

    /// It is over.
    pub(super) fn end(&mut self) {
        self.0 = None;
    }
}

impl Claim {
    pub(super) fn new(header: &ExecHeader, sink: Sender<ExecEvent>, cancel: CancellationToken, hold: Hold) -> Self {
        let accepted = Instant::now();
        let remaining = header.remaining.map(|remaining| Duration::from_micros(remaining.0));
        let deadline = remaining.and_then(|remaining| accepted.checked_add(remaining));
        let room = PollSender::new(sink.clone());
        Self { hold, outlet: Outlet::new(sink), room, full: Wait::default(), cancel, deadline, told: accepted, accepted }
    }

    pub(super) fn overdue(&self, now: Instant) -> bool {
        self.deadline.is_some_and(|deadline| deadline <= now)
    }

    /// Says that the job lives, unless that was said within `pause`.
    pub(super) fn tell(&mut self, now: Instant, pause: Duration) {
        if now.duration_since(self.told) >= pause {
            self.told = now;
            self.outlet.progress();
        }
    }

    /// Delivers an event, or keeps it until there is room.
    pub(super) fn deliver(&mut self, mut event: ExecEvent, cx: &mut Context<'_>, now: Instant, stall_max: Duration) -> Delivered {
        if !self.full.waits() {
            match self.outlet.offer(event) {
                Offered::Sent => return Delivered::Sent,
                Offered::Gone => return Delivered::Gone,
                Offered::Full(back) => event = back,
            }
        }
        match self.room.poll_reserve(cx) {
            Poll::Ready(Ok(())) => {
                self.full.end();
                if self.room.send_item(event).is_ok() { Delivered::Sent } else { Delivered::Gone }
            }
            Poll::Ready(Err(_)) => Delivered::Gone,
            Poll::Pending if self.full.lasts(now, stall_max) => Delivered::Stalled,
            Poll::Pending => Delivered::Kept(event),
        }
    }

    /// Frees the slot, then says how the job ended: whoever reads it can submit the next one at once.
    pub(super) fn finish(self, event: ExecEvent) {
        drop(self.hold);
        self.outlet.finish(event);
    }

    /// Frees the slot without a word.
    pub(super) fn close(self) {
        drop(self.hold);
        self.outlet.close();
    }
}
