//! The relay's cut-through: bytes from one stream to another, both ways, unread.

use super::connection::{Code, Stream};
use super::frames::{FrameWriter, StreamError};
use super::halves::RecvHalf;
use bytes::Buf;

/// Most bytes in hand for each direction. Everything else waits in the sender, by flow control.
const CHUNK_BYTES: usize = 32 * 1024;

/// What a relayed stream carried.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spliced {
    /// Bytes from the first to the second stream.
    pub forth: u64,
    /// Bytes from the second to the first.
    pub back: u64,
    /// The code with which it was cut off, if it did not end by itself.
    pub cut: Option<Code>,
}

/// How one direction ended.
enum Ended {
    /// With its last byte, or because the reader wanted no more.
    Itself,
    /// With a reset or a lost connection: the request is off.
    Cut(Code),
}

/// Copies both ways until both directions have ended.
///
/// The end of one direction is passed on; so is a reader's wish to have no more of it. A reset or a lost connection of either
/// side ends both directions of both streams with the same code. Bytes that the readers already hold go first. Dropping the
/// future cancels both streams.
pub async fn splice(a: Stream, b: Stream) -> Spliced {
    let mut spliced = Spliced::default();
    let (mut a_recv, a_rest) = a.reader.into_parts();
    let (mut b_recv, b_rest) = b.reader.into_parts();
    let (mut a_send, mut b_send) = (a.writer, b.writer);
    spliced.cut = {
        let forth = carry(&mut a_recv, a_rest, &mut b_send, &mut spliced.forth);
        let back = carry(&mut b_recv, b_rest, &mut a_send, &mut spliced.back);
        tokio::pin!(forth, back);
        let first = tokio::select! {
            ended = &mut forth => (ended, true),
            ended = &mut back => (ended, false),
        };
        match first {
            (Ended::Cut(code), _) => Some(code),
            (Ended::Itself, forth_ended) => match if forth_ended { back.await } else { forth.await } {
                Ended::Cut(code) => Some(code),
                Ended::Itself => None,
            },
        }
    };
    if let Some(code) = spliced.cut {
        for (send, recv) in [(&mut a_send, &mut a_recv), (&mut b_send, &mut b_recv)] {
            send.reset(code);
            recv.stop(code);
        }
    }
    spliced
}

async fn carry(from: &mut RecvHalf, rest: bytes::Bytes, to: &mut FrameWriter, bytes: &mut u64) -> Ended {
    let stopped = to.stopped();
    tokio::pin!(stopped);
    let mut in_hand = vec![to.take_pending(), rest];
    loop {
        for chunk in in_hand.drain(..) {
            *bytes += chunk.len() as u64;
            if let Err(ended) = forward(from, chunk, to).await {
                return ended;
            }
        }
        let chunk = tokio::select! {
            biased;
            code = &mut stopped => return no_more_wanted(from, code.unwrap_or(Code::DONE)),
            chunk = from.read_chunk(CHUNK_BYTES) => chunk,
        };
        match chunk {
            Ok(Some(chunk)) => in_hand.push(chunk),
            Ok(None) => {
                to.mark_ended();
                // Fails only when the reader has stopped in the meantime.
                drop(to.stream().finish());
                return Ended::Itself;
            }
            Err(StreamError::Reset(code)) => return Ended::Cut(code),
            Err(_) => return Ended::Cut(Code::GONE),
        }
    }
}

/// Writes a chunk, and notices meanwhile when its sender gives up: a full window must not delay a cancel.
async fn forward(from: &mut RecvHalf, mut chunk: bytes::Bytes, to: &mut FrameWriter) -> Result<(), Ended> {
    let mut whole = false;
    while !chunk.is_empty() {
        let written = {
            let write = to.stream().write(&chunk);
            tokio::pin!(write);
            tokio::select! {
                biased;
                written = &mut write => written,
                reset = from.received_reset(), if !whole => match reset {
                    Ok(Some(code)) => return Err(Ended::Cut(code)),
                    Ok(None) => {
                        whole = true;
                        write.await
                    }
                    Err(_) => return Err(Ended::Cut(Code::GONE)),
                },
            }
        };
        match written {
            Ok(bytes) => chunk.advance(bytes),
            Err(StreamError::Reset(code)) => return Err(no_more_wanted(from, code)),
            Err(_) => return Err(Ended::Cut(Code::GONE)),
        }
    }
    Ok(())
}

fn no_more_wanted(from: &mut RecvHalf, code: Code) -> Ended {
    from.stop(code);
    if code == Code::GONE { Ended::Cut(code) } else { Ended::Itself }
}
