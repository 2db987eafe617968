//! A client's connection, guarded: what the parser behind it gets is framed in one way only, comes within its time, and a client that
//! does not read is dropped. Nothing here knows the API.

mod framing;
mod head;
mod peer;

pub(super) use peer::Peer;

use super::counters::FrontCounters;
use bytes::{Buf, BytesMut};
use framing::{Framing, Step};
use head::Fault;
use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedWriteHalf;
use tokio::time::Sleep;

/// Read at once while a head is looked for: heads with the bodies of most requests fit.
const READ_BYTES: usize = 8 * 1024;
/// Most that is read, after the last answer, of what the client still sends, and how long. Closing on a client that still writes
/// resets the connection, and most clients then never see the answer; one that goes on beyond this is not worth more.
const LINGER_BYTES_MAX: u64 = 64 * 1024 * 1024;
const LINGER: Duration = Duration::from_secs(5);

/// What a connection keeps to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Patience {
    pub(super) header_bytes_max: usize,
    /// For a head, from its first byte.
    pub(super) header_read: Duration,
    /// For the first byte of the next request.
    pub(super) idle: Duration,
    /// For a client that takes nothing from its full socket.
    pub(super) stall: Duration,
}

/// A refusal that the parser behind never hears of.
const TIMEOUT: Fault = Fault::new(408, "header_timeout", "the request's header did not arrive in time");

/// The connection as the parser sees it.
#[derive(Debug)]
pub(super) struct Gate {
    peer: Arc<Peer>,
    /// Ends our side when it is told to, or dropped.
    half: OwnedWriteHalf,
    counters: Arc<FrontCounters>,
    patience: Patience,
    framing: Framing,
    /// What has come and not gone on.
    held: BytesMut,
    /// So much of its front may go on.
    cleared: usize,
    /// Runs while a head is awaited, and whether its first byte has come.
    reading: Option<(Pin<Box<Sleep>>, bool)>,
    writing: Option<Pin<Box<Sleep>>>,
    /// Nothing is read any more; what is here is said last.
    refusal: Option<Vec<u8>>,
    over: bool,
    closing: Option<(Pin<Box<Sleep>>, u64)>,
}

impl Gate {
    pub(super) fn new(socket: TcpStream, address: IpAddr, patience: Patience, counters: Arc<FrontCounters>) -> Self {
        let (reading, half) = socket.into_split();
        Self {
            peer: Peer::new(reading, address),
            half,
            counters,
            patience,
            framing: Framing::new(patience.header_bytes_max),
            held: BytesMut::new(),
            cleared: 0,
            reading: None,
            writing: None,
            refusal: None,
            over: false,
            closing: None,
        }
    }

    /// The client, for those who serve it.
    pub(super) fn peer(&self) -> Arc<Peer> {
        Arc::clone(&self.peer)
    }

    /// Whether the client may still be sending: then closing at once would reset the connection.
    fn must_linger(&self) -> bool {
        self.refusal.is_some() || !self.framing.at_head() || !self.held.is_empty()
    }

    /// Nothing more is read. At the beginning of a request the fault is the answer; within one, the request fails by itself.
    fn refuse(&mut self, fault: Fault) -> Poll<io::Result<()>> {
        self.counters.refused(&self.peer.who(), fault.code);
        let within = !self.framing.at_head();
        self.over = true;
        self.held.clear();
        self.reading = None;
        if within {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::InvalidData, fault.message)));
        }
        self.refusal = Some(answer(fault));
        Poll::Ready(Ok(()))
    }

    /// Hands on what may go on.
    fn hand_on(&mut self, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let count = self.cleared.min(out.remaining());
        out.put_slice(self.held.get(..count).unwrap_or_default());
        self.held.advance(count);
        self.cleared -= count;
        if self.framing.at_head() && self.cleared == 0 {
            self.peer.request_came(self.framing.interim());
        }
        Poll::Ready(Ok(()))
    }

    /// Clears as much as can be judged now.
    fn clear(&mut self) -> Result<(), Fault> {
        while let Some(rest) = self.held.get(self.cleared..) {
            let began = self.framing.at_head();
            let count = match self.framing.step(rest) {
                Ok(Step::Pass(count)) => count,
                Ok(Step::More) => break,
                // What came before it goes on first; then the same fault is found again.
                Err(_) if self.cleared > 0 => break,
                Err(fault) => return Err(fault),
            };
            self.cleared += count;
            // One request at a time: what follows it is judged when it is its turn, so that a fault there does not spoil this one.
            let empty_line = began && count == 2;
            if self.framing.at_head() && !empty_line {
                break;
            }
        }
        Ok(())
    }

    /// Time for the head, or for its first byte.
    fn watch(&mut self, cx: &mut Context<'_>) -> Poll<bool> {
        if !self.framing.at_head() {
            self.reading = None;
            return Poll::Pending;
        }
        let begun = !self.held.is_empty();
        let span = if begun { self.patience.header_read } else { self.patience.idle };
        match &mut self.reading {
            Some((_, before)) if *before == begun => {}
            reading => *reading = Some((Box::pin(tokio::time::sleep(span)), begun)),
        }
        let Some((sleep, _)) = &mut self.reading else { return Poll::Pending };
        ready!(sleep.as_mut().poll(cx));
        self.reading = None;
        Poll::Ready(begun)
    }

    fn watch_writing<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.writing = None;
            return written;
        }
        let stall = self.patience.stall;
        let waiting = self.writing.get_or_insert_with(|| Box::pin(tokio::time::sleep(stall)));
        ready!(waiting.as_mut().poll(cx));
        self.writing = None;
        self.counters.client_stalled();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client did not read for too long")))
    }

    /// Tells what is to be said last, ends our side, and reads on for a while, so that the client can read it.
    fn close(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while let Some(rest) = self.refusal.as_ref().filter(|rest| !rest.is_empty()) {
            let count = ready!(self.peer.poll_write(cx, rest))?;
            if let Some(refusal) = &mut self.refusal {
                refusal.drain(..count);
            }
        }
        if self.closing.is_none() {
            ready!(Pin::new(&mut self.half).poll_shutdown(cx))?;
            if !self.must_linger() {
                return Poll::Ready(Ok(()));
            }
        }
        let (sleep, read) = self.closing.get_or_insert_with(|| (Box::pin(tokio::time::sleep(LINGER)), 0));
        let mut waste = [0; READ_BYTES];
        loop {
            let mut unread = ReadBuf::new(&mut waste);
            match self.peer.poll_read(cx, &mut unread) {
                Poll::Ready(Ok(())) if !unread.filled().is_empty() && *read < LINGER_BYTES_MAX => {
                    *read += u64::try_from(unread.filled().len()).unwrap_or(0);
                }
                Poll::Ready(_) => return Poll::Ready(Ok(())),
                Poll::Pending => return sleep.as_mut().poll(cx).map(Ok),
            }
        }
    }
}

/// The whole response of a refusal: the connection ends with it.
fn answer(fault: Fault) -> Vec<u8> {
    let error = serde_json::json!({"error": {
        "message": fault.message, "type": "invalid_request_error", "param": null, "code": fault.code,
    }});
    let (body, status) = (error.to_string(), fault.status);
    let reason = axum::http::StatusCode::from_u16(status).ok().and_then(|status| status.canonical_reason()).unwrap_or_default();
    let length = body.len();
    format!(
        "HTTP/1.1 {status} {reason}\r\ncontent-type: application/json\r\nconnection: close\r\ncontent-length: {length}\r\n\r\n{body}"
    )
    .into_bytes()
}

impl AsyncRead for Gate {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = &mut *self;
        loop {
            if this.over {
                return Poll::Ready(Ok(()));
            }
            if this.cleared > 0 {
                return this.hand_on(out);
            }
            if !this.held.is_empty() {
                if let Err(fault) = this.clear() {
                    return this.refuse(fault);
                }
                if this.cleared > 0 {
                    this.reading = None;
                    continue;
                }
            }
            if let Some(left) = this.framing.plain().filter(|_| this.held.is_empty()) {
                return this.read_plain(cx, out, left);
            }
            this.held.reserve(READ_BYTES);
            match this.peer.poll_read_into(cx, &mut this.held) {
                Poll::Ready(Ok(0)) => {
                    this.over = true;
                    return Poll::Ready(Ok(()));
                }
                Poll::Ready(Ok(_)) => {}
                Poll::Ready(Err(error)) => return Poll::Ready(Err(error)),
                Poll::Pending => {
                    // The clock is looked at only where nothing has come.
                    return match ready!(this.watch(cx)) {
                        true => this.refuse(TIMEOUT),
                        false => {
                            this.over = true;
                            Poll::Ready(Ok(()))
                        }
                    };
                }
            }
        }
    }
}

impl Gate {
    /// A body of known size goes straight through.
    fn read_plain(&mut self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>, left: u64) -> Poll<io::Result<()>> {
        let room = out.remaining().min(usize::try_from(left).unwrap_or(usize::MAX));
        let mut part = ReadBuf::new(out.initialize_unfilled_to(room));
        ready!(self.peer.poll_read(cx, &mut part))?;
        let count = part.filled().len();
        out.advance(count);
        self.framing.went_by(u64::try_from(count).unwrap_or(left));
        self.over |= count == 0;
        if self.framing.at_head() {
            self.peer.request_came(self.framing.interim());
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Gate {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = self.peer.poll_write(cx, bytes);
        self.peer.answered(bytes.len(), &written);
        self.watch_writing(cx, written)
    }

    fn poll_write_vectored(mut self: Pin<&mut Self>, cx: &mut Context<'_>, parts: &[io::IoSlice<'_>]) -> Poll<io::Result<usize>> {
        let written = self.peer.poll_write_vectored(cx, parts);
        self.peer.answered(parts.iter().map(|part| part.len()).sum(), &written);
        self.watch_writing(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.peer.socket().is_write_vectored()
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        // A socket keeps nothing back.
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.close(cx)
    }
}
