//! The other end of a connection: who it is, and whether it is still there.

use bytes::BytesMut;
use futures_util::FutureExt;
use std::io::{self, IoSlice};
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;
use tokio::io::ReadBuf;
use tokio::net::TcpStream;
use tokio::net::tcp::OwnedReadHalf;
use tokio::time::{Instant, sleep};

/// How often a waiting request looks whether its client is there: an unread answer costs the engine so long at most.
const LOOK_EVERY: Duration = Duration::from_millis(100);
/// A client that has ended its side may wait for its answer, or be gone: which of both only shows when something is sent to it. As
/// soon as it has ended its side, and then so often, it is sent an interim answer that means nothing (`100 Continue`).
const PROBE_EVERY: Duration = Duration::from_secs(1);
/// A client that is gone answers a probe with a reset, within a round trip.
const RESET_WITHIN: Duration = Duration::from_millis(50);
const PROBE: &[u8] = b"HTTP/1.1 100 Continue\r\n\r\n";

/// One client's end of a connection.
#[derive(Debug)]
pub(in crate::openai) struct Peer {
    half: OwnedReadHalf,
    address: IpAddr,
    /// Something of the newest answer was written.
    answering: AtomicBool,
    /// The last write was taken in part only: nothing may be put between.
    in_part: AtomicBool,
    /// The newest request's client understands interim answers.
    interim: AtomicBool,
}

impl Peer {
    pub(super) fn new(half: OwnedReadHalf, address: IpAddr) -> Arc<Self> {
        let (answering, in_part, interim) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        Arc::new(Self { half, address, answering, in_part, interim })
    }

    /// The whole socket: reading and writing need no more than a look at it.
    pub(super) fn socket(&self) -> &TcpStream {
        self.half.as_ref()
    }

    /// As it is called in logs.
    pub(in crate::openai) fn who(&self) -> String {
        self.address.to_string()
    }

    /// Whether the client has ended its side, as far as can be seen: what it sent before that and nobody has read hides it.
    pub(in crate::openai) fn has_ended(&self) -> bool {
        let mut one = [0; 1];
        matches!(self.socket().peek(&mut one).now_or_never(), Some(Ok(0) | Err(_)))
    }

    /// Waits until the client is gone. One that has only ended its side is not.
    pub(in crate::openai) async fn gone(&self) {
        let mut probed: Option<Instant> = None;
        loop {
            sleep(if probed.is_some() { RESET_WITHIN } else { LOOK_EVERY }).await;
            if !matches!(self.socket().take_error(), Ok(None)) {
                return;
            }
            if !self.has_ended() {
                continue;
            }
            if probed.is_none_or(|at| at.elapsed() >= PROBE_EVERY) {
                probed = Some(Instant::now());
                if self.probe().is_err() {
                    return;
                }
            }
        }
    }

    /// Where nothing can be sent in between, the answer itself will show it.
    fn probe(&self) -> io::Result<()> {
        let may = self.interim.load(Ordering::Relaxed)
            && !self.answering.load(Ordering::Relaxed)
            && !self.in_part.load(Ordering::Relaxed);
        if !may {
            return Ok(());
        }
        match self.socket().try_write(PROBE) {
            // A full socket of a client that has nothing to read yet: it cannot be, and does not matter.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error),
            Ok(count) if count == PROBE.len() => Ok(()),
            Ok(_) => Err(io::ErrorKind::WriteZero.into()),
        }
    }

    /// A request has come whole.
    pub(super) fn request_came(&self, interim: bool) {
        self.answering.store(false, Ordering::Relaxed);
        self.interim.store(interim, Ordering::Relaxed);
    }

    /// Something of an answer was written, or was to be.
    pub(super) fn answered(&self, offered: usize, written: &Poll<io::Result<usize>>) {
        self.answering.store(true, Ordering::Relaxed);
        let whole = matches!(written, Poll::Ready(Ok(count)) if *count == offered);
        self.in_part.store(!whole, Ordering::Relaxed);
    }

    pub(super) fn poll_read(&self, cx: &mut Context<'_>, out: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket().poll_read_ready(cx))?;
            match self.socket().try_read(out.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Ok(count) => {
                    out.advance(count);
                    return Poll::Ready(Ok(()));
                }
                Err(error) => return Poll::Ready(Err(error)),
            }
        }
    }

    /// Appends what has come, as far as there is room; zero at the end.
    pub(super) fn poll_read_into(&self, cx: &mut Context<'_>, into: &mut BytesMut) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket().poll_read_ready(cx))?;
            match self.socket().try_read_buf(into) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }

    pub(super) fn poll_write(&self, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.poll_write_vectored(cx, &[IoSlice::new(bytes)])
    }

    pub(super) fn poll_write_vectored(&self, cx: &mut Context<'_>, parts: &[IoSlice<'_>]) -> Poll<io::Result<usize>> {
        loop {
            ready!(self.socket().poll_write_ready(cx))?;
            match self.socket().try_write_vectored(parts) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                result => return Poll::Ready(result),
            }
        }
    }
}
