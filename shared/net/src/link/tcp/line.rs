//! One stream of a TCP connection, as this end sees it.

use crate::link::connection::Code;
use bytes::{Buf, Bytes, BytesMut};
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::Notify;

/// Bytes of one stream that wait here for their turn on the connection. With [`super::super::STREAMS_MAX`] streams that are all
/// held back it is 8 MiB a connection; whoever writes more waits.
const SEND_BYTES_MAX: usize = 32 * 1024;

/// Both directions.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) out: Outgoing,
    pub(super) inc: Incoming,
    /// Whether the other end opened it.
    pub(super) theirs: bool,
    /// Told at every change that somebody may wait for.
    pub(super) changed: Arc<Notify>,
}

/// How far sending has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sending {
    Open,
    /// The finish goes out after what waits.
    Finishing,
    /// The finish is out.
    Finished,
    /// The other end has everything.
    Delivered,
    /// Given up, by whichever end.
    Reset,
}

/// Towards the other end.
#[derive(Debug)]
pub(super) struct Outgoing {
    waiting: BytesMut,
    /// Bytes that the other end will still take.
    pub(super) credit: u32,
    pub(super) sending: Sending,
    /// The other end wants no more, with this code.
    pub(super) stopped: Option<Code>,
    /// Whether it stands in the queue of streams with something to send.
    pub(super) queued: bool,
    /// Whether the program still holds the writer.
    pub(super) held: bool,
}

/// How receiving ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Received {
    Whole,
    Reset(Code),
}

/// From the other end.
#[derive(Debug)]
pub(super) struct Incoming {
    chunks: VecDeque<Bytes>,
    /// Bytes that the other end may still send.
    credit: u32,
    /// Bytes that the program took and that were not granted anew.
    taken: u32,
    window: u32,
    pub(super) end: Option<Received>,
    /// Whether what comes is thrown away.
    pub(super) unwanted: bool,
    /// Whether the program still holds the reader.
    pub(super) held: bool,
}

impl Line {
    pub(super) fn new(theirs: bool, window: u32) -> Self {
        Self {
            out: Outgoing {
                waiting: BytesMut::new(),
                credit: window,
                sending: Sending::Open,
                stopped: None,
                queued: false,
                held: true,
            },
            inc: Incoming { chunks: VecDeque::new(), credit: window, taken: 0, window, end: None, unwanted: false, held: true },
            theirs,
            changed: Arc::default(),
        }
    }

    /// Whether neither the program nor the other end will say anything about it any more.
    pub(super) const fn is_over(&self) -> bool {
        let sent = matches!(self.out.sending, Sending::Delivered | Sending::Reset);
        sent && self.inc.end.is_some() && !self.out.held && !self.inc.held
    }
}

impl Outgoing {
    /// Takes as much as there is room for; zero when there is none.
    pub(super) fn put(&mut self, bytes: &[u8]) -> usize {
        let room = SEND_BYTES_MAX - self.waiting.len().min(SEND_BYTES_MAX);
        let taken = bytes.get(..room).unwrap_or(bytes);
        self.waiting.extend_from_slice(taken);
        taken.len()
    }

    /// Whether there is something that may go out now.
    pub(super) fn is_ready(&self) -> bool {
        let data = !self.waiting.is_empty() && self.credit > 0;
        data || (self.sending == Sending::Finishing && self.waiting.is_empty())
    }

    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// The next bytes to go out, at most so many; their credit is spent.
    pub(super) fn take(&mut self, max: u32) -> Bytes {
        let length = self.waiting.len().min(max.min(self.credit) as usize);
        self.credit -= u32::try_from(length).unwrap_or(u32::MAX);
        self.waiting.split_to(length).freeze()
    }

    /// Throws away what waits.
    pub(super) fn give_up(&mut self) {
        self.waiting.clear();
        self.sending = Sending::Reset;
    }
}

impl Incoming {
    /// Whether so many more bytes are within what was granted; they are then spent.
    pub(super) const fn spend(&mut self, length: u32) -> bool {
        let Some(left) = self.credit.checked_sub(length) else { return false };
        self.credit = left;
        self.end.is_none()
    }

    pub(super) fn push(&mut self, chunk: Bytes) {
        self.chunks.push_back(chunk);
    }

    /// The next bytes, at most so many.
    pub(super) fn pop(&mut self, max: usize) -> Option<Bytes> {
        let chunk = self.chunks.front_mut()?;
        let part = chunk.split_to(chunk.len().min(max));
        if !chunk.has_remaining() {
            self.chunks.pop_front();
        }
        self.taken = self.taken.saturating_add(u32::try_from(part.len()).unwrap_or(u32::MAX));
        Some(part)
    }

    /// What to grant now: nothing until half the window is gone, so that not every chunk costs a word.
    pub(super) const fn grant(&mut self) -> Option<u32> {
        if self.taken < self.window / 2 || self.end.is_some() || self.unwanted {
            return None;
        }
        let grant = self.taken;
        self.taken = 0;
        self.credit += grant;
        Some(grant)
    }

    /// Throws away what came and was not read; says how much it was.
    pub(super) fn discard(&mut self) -> usize {
        self.chunks.drain(..).map(|chunk| chunk.len()).sum()
    }
}
