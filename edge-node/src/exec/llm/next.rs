//! The way from a stage to the one after it: hidden states go there, drawn tokens come back.

use super::claim::Wait;
use super::hidden;
use super::model::States;
use crate::exec::Downstream;
use shared::plan::Failure;
use shared::units::Micros;
use shared::wire::StageBody;
use shared::wire::frame::{Drawn, Hidden};
use shared::work::Precision;
use std::task::{Context, Poll, ready};
use std::time::{Duration, Instant};
use tokio::sync::mpsc::Receiver;
use tokio_util::sync::PollSender;

/// The next stage, as seen from the computing thread, which never waits for it.
pub(super) struct Next {
    room: PollSender<Hidden>,
    outgoing: Option<Hidden>,
    full: Wait,
    /// Tokens that were asked for and have not come.
    awaited: u32,
    drawn: Receiver<Result<Drawn, Failure>>,
    precision: Precision,
}

impl Next {
    /// Opens the way, and sends what the next stage needs before any hidden states.
    pub(super) fn open(way: Downstream, body: StageBody, precision: Precision) -> Self {
        // Refused, the next stage is gone already, and what comes back says why.
        let _ = way.body.send(body);
        Self { room: PollSender::new(way.hidden), outgoing: None, full: Wait::default(), awaited: 0, drawn: way.drawn, precision }
    }

    /// Whether more can be computed for it.
    pub(super) fn has_room(&self) -> bool {
        self.outgoing.is_none()
    }

    /// Most rows of this width that it takes at once.
    pub(super) fn rows_max(&self, width: usize) -> usize {
        hidden::rows_max(width, self.precision)
    }

    /// Takes rows of hidden states; [`Self::flush`] sends them.
    pub(super) fn take(&mut self, states: &States, start: usize, draw: bool) -> Result<(), Failure> {
        let frame = hidden::encode(states, start, draw, self.precision);
        self.outgoing = Some(frame.ok_or_else(|| Failure::Engine("more hidden states than a frame holds".to_owned()))?);
        self.awaited += u32::from(draw);
        Ok(())
    }

    /// Sends what was taken, if there is room.
    pub(super) fn flush(&mut self, cx: &mut Context<'_>, now: Instant, stall_max: Duration) -> Result<(), Failure> {
        let Some(frame) = self.outgoing.take() else { return Ok(()) };
        match self.room.poll_reserve(cx) {
            Poll::Ready(Ok(())) => {
                self.full.end();
                // Gone in between, the next stage says why with its last word.
                let _ = self.room.send_item(frame);
            }
            Poll::Ready(Err(_)) => {}
            Poll::Pending if self.full.lasts(now, stall_max) => {
                return Err(Failure::Stalled(Micros::from_secs_f64(stall_max.as_secs_f64())));
            }
            Poll::Pending => self.outgoing = Some(frame),
        }
        Ok(())
    }

    /// The next token that was drawn.
    pub(super) fn poll_drawn(&mut self, cx: &mut Context<'_>) -> Poll<Result<u32, Failure>> {
        Poll::Ready(match ready!(self.drawn.poll_recv(cx)) {
            Some(Ok(Drawn(id))) => match self.awaited.checked_sub(1) {
                Some(awaited) => {
                    self.awaited = awaited;
                    Ok(id)
                }
                None => Err(Failure::Engine("the next stage drew a token that nobody had asked for".to_owned())),
            },
            Some(Err(failure)) => Err(failure),
            None => Err(Failure::Engine("the next stage left without a word".to_owned())),
        })
    }
}
