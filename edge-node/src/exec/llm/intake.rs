//! The hidden states that a later stage computes on, as they come from the stage before it.

use super::hidden;
use super::model::States;
use shared::plan::Failure;
use shared::wire::frame::Hidden;
use shared::work::Precision;
use std::task::{Context, Poll, ready};
use tokio::sync::mpsc::Receiver;

/// Rows that came and rows that will come. What comes is from outside and is believed only after a check.
pub(super) struct Intake {
    inbox: Receiver<Hidden>,
    frame: Option<Hidden>,
    /// Rows of the frame that were given out.
    used: usize,
    /// Position of the next row that may come.
    expected: usize,
    /// Positions there are at most.
    length_max: usize,
    width: usize,
    precision: Precision,
}

/// Some rows.
pub(super) struct Rows {
    pub(super) states: States,
    /// Whether a token shall be drawn after the last of them.
    pub(super) draw: bool,
}

impl Intake {
    pub(super) fn new(inbox: Receiver<Hidden>, length_max: usize, width: usize, precision: Precision) -> Self {
        Self { inbox, frame: None, used: 0, expected: 0, length_max, width, precision }
    }

    /// Waits for rows. False when the request is over; what came before is then wanted no more.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<bool, Failure>> {
        if self.inbox.is_closed() {
            return Poll::Ready(Ok(false));
        }
        if self.frame.is_some() {
            return Poll::Ready(Ok(true));
        }
        let Some(frame) = ready!(self.inbox.poll_recv(cx)) else { return Poll::Ready(Ok(false)) };
        if let Err(why) = self.check(&frame) {
            return Poll::Ready(Err(Failure::Engine(format!("the stage before sent {why}"))));
        }
        self.expected += usize::from(frame.count);
        (self.frame, self.used) = (Some(frame), 0);
        Poll::Ready(Ok(true))
    }

    fn check(&self, frame: &Hidden) -> Result<(), String> {
        let count = usize::from(frame.count);
        if u64::from(frame.start) != self.expected as u64 {
            return Err(format!("hidden states of position {}, want {}", frame.start, self.expected));
        }
        if count == 0 || self.expected + count > self.length_max {
            return Err(format!(
                "{count} hidden states at position {}: want 1 or more, and at most {}",
                frame.start, self.length_max
            ));
        }
        let bytes = count * self.width * self.precision.bytes();
        if frame.bytes.len() != bytes {
            return Err(format!("{} bytes for {count} hidden states, want {bytes}", frame.bytes.len()));
        }
        Ok(())
    }

    /// How many rows are there.
    pub(super) fn waiting(&self) -> usize {
        self.frame.as_ref().map_or(0, |frame| usize::from(frame.count) - self.used)
    }

    /// Takes at most so many rows.
    pub(super) fn take(&mut self, rows_max: usize) -> Option<Rows> {
        let to = self.used + self.waiting().min(rows_max.max(1));
        let frame = self.frame.as_ref()?;
        let last = to == usize::from(frame.count);
        let states = hidden::decode(frame, self.used, to, self.width, self.precision)?;
        let draw = frame.draw && last;
        self.used = to;
        if last {
            self.frame = None;
        }
        Some(Rows { states, draw })
    }
}
