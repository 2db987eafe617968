//! The two directions of a stream, as programs hold them.

use super::line::{Received, Sending};
use super::mux::Mux;
use super::wire::{Head, Word};
use super::{Connection, Shared};
use crate::link::connection::Code;
use crate::link::frames::StreamError;
use bytes::Bytes;
use std::sync::Arc;
use tokio::sync::Notify;

/// What both directions need.
#[derive(Debug)]
struct Half {
    connection: Connection,
    id: u32,
    changed: Arc<Notify>,
}

/// Both directions of a stream that was just opened or accepted.
pub(super) fn halves(connection: &Connection, id: u32) -> (Sender, Receiver) {
    let changed = connection.shared().mux().line(id).map(|line| Arc::clone(&line.changed)).unwrap_or_default();
    let half = || Half { connection: connection.clone(), id, changed: Arc::clone(&changed) };
    (Sender(half()), Receiver(half()))
}

impl Half {
    fn shared(&self) -> &Arc<Shared> {
        self.connection.shared()
    }

    async fn until<T>(&self, look: impl FnMut(&mut Mux) -> Option<T>) -> T {
        self.shared().until(&self.changed, look).await
    }
}

fn lost(mux: &Mux) -> Option<StreamError> {
    mux.ended().map(|lost| StreamError::Lost(lost.clone()))
}

/// Towards the other end. Dropping it without [`Self::finish`] resets it.
#[derive(Debug)]
pub(in crate::link) struct Sender(Half);

impl Sender {
    /// Hands over as many of the bytes as there is room for; waits while there is none.
    pub(in crate::link) async fn write(&self, bytes: &[u8]) -> Result<usize, StreamError> {
        let id = self.0.id;
        let put = |mux: &mut Mux| {
            if let Some(lost) = lost(mux) {
                return Some(Err(lost));
            }
            let Some(line) = mux.line(id) else { return Some(Err(StreamError::Closed)) };
            if let Some(code) = line.out.stopped {
                return Some(Err(StreamError::Reset(code)));
            }
            if line.out.sending != Sending::Open {
                return Some(Err(StreamError::Closed));
            }
            let taken = line.out.put(bytes);
            mux.queue(id);
            (taken > 0 || bytes.is_empty()).then_some(Ok(taken))
        };
        let taken = self.0.until(put).await?;
        self.0.shared().out.notify_one();
        Ok(taken)
    }

    /// Says that nothing follows what was written.
    pub(in crate::link) fn finish(&self) -> Result<(), StreamError> {
        let id = self.0.id;
        self.0.shared().change(|mux| {
            if let Some(lost) = lost(mux) {
                return Err(lost);
            }
            let Some(line) = mux.line(id) else { return Err(StreamError::Closed) };
            if line.out.sending != Sending::Open {
                return Err(line.out.stopped.map_or(StreamError::Closed, StreamError::Reset));
            }
            line.out.sending = Sending::Finishing;
            mux.queue(id);
            Ok(())
        })
    }

    /// Gives up; no effect after a finish.
    pub(in crate::link) fn reset(&self, code: Code) {
        self.0.shared().change(|mux| mux.reset(self.0.id, code));
    }

    /// Waits until the other end wants no more (`Some`) or has everything (`None`).
    pub(in crate::link) fn stopped(&self) -> impl Future<Output = Option<Code>> + Send + 'static {
        let (shared, changed, id) = (Arc::clone(self.0.shared()), Arc::clone(&self.0.changed), self.0.id);
        async move {
            let look = |mux: &mut Mux| {
                let over = mux.ended().is_some();
                let Some(line) = mux.line(id) else { return Some(None) };
                match (line.out.stopped, line.out.sending) {
                    (Some(code), _) => Some(Some(code)),
                    (None, Sending::Delivered | Sending::Reset) => Some(None),
                    (None, _) => over.then_some(Some(Code::GONE)),
                }
            };
            shared.until(&changed, look).await
        }
    }
}

impl Drop for Sender {
    fn drop(&mut self) {
        let id = self.0.id;
        self.0.shared().change(|mux| {
            // What was finished goes out also when nobody holds the stream any more.
            let part = mux.line(id).is_some_and(|line| {
                line.out.held = false;
                line.out.sending == Sending::Open
            });
            if part {
                mux.reset(id, Code::CANCELLED);
            }
            mux.tidy(id);
        });
    }
}

/// From the other end. Dropping it before the end tells the other end to stop.
#[derive(Debug)]
pub(in crate::link) struct Receiver(Half);

impl Receiver {
    /// The next bytes, at most so many; absent at the proper end. Cancel-safe.
    pub(in crate::link) async fn read_chunk(&self, max: usize) -> Result<Option<Bytes>, StreamError> {
        let id = self.0.id;
        let pop = |mux: &mut Mux| {
            let over = lost(mux);
            let Some(line) = mux.line(id) else { return Some(Err(StreamError::Closed)) };
            if line.inc.unwanted {
                return Some(Err(StreamError::Closed));
            }
            if let Some(bytes) = line.inc.pop(max) {
                if let Some(grant) = line.inc.grant() {
                    mux.say(Head::new(id, Word::Credit(grant)));
                }
                mux.took(bytes.len());
                return Some(Ok(Some(bytes)));
            }
            match line.inc.end {
                Some(Received::Whole) => Some(Ok(None)),
                Some(Received::Reset(code)) => Some(Err(StreamError::Reset(code))),
                None => over.map(Err),
            }
        };
        let chunk = self.0.until(pop).await;
        self.0.shared().out.notify_one();
        chunk
    }

    /// Waits until the other end gives up (`Some`) or everything has come (`None`).
    pub(in crate::link) async fn received_reset(&self) -> Result<Option<Code>, StreamError> {
        let id = self.0.id;
        let look = |mux: &mut Mux| {
            let over = lost(mux);
            match mux.line(id).map(|line| line.inc.end) {
                None => Some(Err(StreamError::Closed)),
                Some(Some(Received::Whole)) => Some(Ok(None)),
                Some(Some(Received::Reset(code))) => Some(Ok(Some(code))),
                Some(None) => over.map(Err),
            }
        };
        self.0.until(look).await
    }

    /// Wants no more.
    pub(in crate::link) fn stop(&self, code: Code) {
        self.0.shared().change(|mux| mux.stop(self.0.id, code));
    }
}

impl Drop for Receiver {
    fn drop(&mut self) {
        let id = self.0.id;
        self.0.shared().change(|mux| {
            mux.stop(id, Code::DONE);
            if let Some(line) = mux.line(id) {
                line.inc.held = false;
            }
            mux.tidy(id);
        });
    }
}
