//! The task of one TCP connection: bytes of the socket to the multiplexer and back, signs of life, and the end.

use super::Shared;
use super::mux::REASON_BYTES_MAX;
use super::wire::{CONNECTION, HEAD_BYTES, Head, Word};
use crate::link::connection::Code;
use crate::link::limits::{IDLE_TIME_MAX, KEEP_ALIVE};
use crate::link::lost::Lost;
use bytes::{Bytes, BytesMut};
use std::io;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, BufReader};
use tokio::time::{Instant, timeout, timeout_at};

/// Bytes that are collected for one write: a few TLS records, so that a cancel waits for no more than these.
const WRITE_BYTES: usize = 64 * 1024;
/// Bytes that are read at a time.
const READ_BYTES: usize = 32 * 1024;
/// How long the last words may take; then the socket is closed without them.
const FAREWELL_TIME_MAX: Duration = Duration::from_secs(1);

/// The ping that waits for its pong.
type Asked = Mutex<Option<(u32, Instant)>>;

/// Drives the connection until it has ended and the other end was told.
pub(super) async fn drive<T: AsyncRead + AsyncWrite + Send + Unpin>(shared: Arc<Shared>, tls: T) {
    let (read, write) = tokio::io::split(tls);
    let asked = Asked::default();
    let reading = read_all(&shared, &asked, BufReader::with_capacity(READ_BYTES, read));
    let writing = write_all(&shared, &asked, write);
    tokio::pin!(reading, writing);
    let first = tokio::select! {
        biased;
        lost = &mut reading => Ok(lost),
        written = &mut writing => Err(written),
    };
    match first {
        Ok(lost) => {
            shared.end(lost);
            // With what the other end did wrong, if it did.
            drop(timeout(FAREWELL_TIME_MAX, writing).await);
        }
        Err(Ok(())) => {
            // The last words are out. Whoever hangs up with bytes unread may cut them off: the other end goes first.
            drop(timeout(FAREWELL_TIME_MAX, reading).await);
        }
        Err(Err(error)) => shared.end(Lost::Broken(error.to_string())),
    }
}

/// Reads until the connection ends, and says how it did.
async fn read_all(shared: &Shared, asked: &Asked, mut from: impl AsyncRead + Unpin) -> Lost {
    loop {
        match read_one(shared, asked, &mut from).await {
            Ok(()) => {}
            Err(lost) => return lost,
        }
    }
}

async fn read_one(shared: &Shared, asked: &Asked, from: &mut (impl AsyncRead + Unpin)) -> Result<(), Lost> {
    let mut head = [0; HEAD_BYTES];
    exactly(from, &mut head).await?;
    let head = Head::decode(head).ok_or_else(|| Lost::Broken("against the protocol: an unknown word".to_owned()))?;
    shared.received.fetch_add(HEAD_BYTES as u64, Ordering::Relaxed);
    match head.word {
        Word::Data(length) => {
            let came = shared.mux().expect(head.stream, length)?;
            let bytes = payload(from, length).await?;
            shared.received.fetch_add(u64::from(length), Ordering::Relaxed);
            shared.change(|mux| mux.data(head.stream, bytes));
            if came {
                shared.changed.notify_waiters();
            }
        }
        Word::Close(length) if length <= REASON_BYTES_MAX => {
            let why = String::from_utf8_lossy(&payload(from, length).await?).into_owned();
            return Err(Lost::Closed { code: Code(head.stream), why });
        }
        Word::Close(_) => return Err(Lost::Broken("against the protocol: a long reason".to_owned())),
        Word::Pong(number) => {
            let sent = asked.lock().unwrap_or_else(PoisonError::into_inner).take_if(|(asked, _)| *asked == number);
            if let Some((_, at)) = sent {
                shared.measured(at.elapsed());
            }
        }
        _ => {
            shared.change(|mux| mux.word(head))?;
            if matches!(head.word, Word::Streams(_)) {
                shared.changed.notify_waiters();
            }
        }
    }
    Ok(())
}

async fn payload(from: &mut (impl AsyncRead + Unpin), length: u32) -> Result<Bytes, Lost> {
    let mut bytes = BytesMut::zeroed(length as usize);
    exactly(from, &mut bytes).await?;
    Ok(bytes.freeze())
}

/// A silent other end is dead: it pings once in each [`KEEP_ALIVE`].
async fn exactly(from: &mut (impl AsyncRead + Unpin), bytes: &mut [u8]) -> Result<(), Lost> {
    match timeout(IDLE_TIME_MAX, from.read_exact(bytes)).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
            Err(Lost::Broken("the other end hung up without a word".to_owned()))
        }
        Ok(Err(error)) => Err(Lost::Broken(error.to_string())),
        Err(_) => Err(Lost::Silent),
    }
}

/// Writes what there is to write, until the connection has ended and the last words are out.
async fn write_all(shared: &Shared, asked: &Asked, mut to: impl AsyncWrite + Unpin) -> io::Result<()> {
    let mut buffer = BytesMut::with_capacity(WRITE_BYTES);
    let (mut ping_at, mut number) = (Instant::now(), 0);
    loop {
        let over = {
            let mut mux = shared.mux();
            if Instant::now() >= ping_at && mux.ended().is_none() {
                ping_at = Instant::now() + KEEP_ALIVE;
                number += 1;
                asked.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert((number, Instant::now()));
                mux.say(Head::new(CONNECTION, Word::Ping(number)));
            }
            mux.fill(&mut buffer, WRITE_BYTES);
            mux.ended().is_some()
        };
        if !buffer.is_empty() {
            shared.sent.fetch_add(buffer.len() as u64, Ordering::Relaxed);
            flush(&mut to, &buffer).await?;
            buffer.clear();
        } else if !over {
            // Whatever comes first: something to say, or the next sign of life.
            drop(timeout_at(ping_at, shared.out.notified()).await);
        }
        if over {
            return to.shutdown().await;
        }
    }
}

/// An other end that takes nothing for so long is as dead as a silent one.
async fn flush(to: &mut (impl AsyncWrite + Unpin), bytes: &[u8]) -> io::Result<()> {
    let written = async {
        to.write_all(bytes).await?;
        to.flush().await
    };
    timeout(IDLE_TIME_MAX, written).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
}
