//! Frames on a stream.

use super::connection::Code;
use super::halves::{RecvHalf, SendHalf};
use super::lost::Lost;
use bytes::{Buf, Bytes, BytesMut};
use shared::wire::Frame;
use shared::wire::frame::{BadFrame, FRAME_BYTES_MAX};

/// Bytes of the length before each frame.
const LENGTH_BYTES: usize = 4;
/// Most bytes taken from the stream at a time: more would only move waiting from the transport's bounded window to our buffer.
const READ_BYTES_MAX: usize = 64 * 1024;

/// Why a stream carries no more frames.
#[derive(Debug, thiserror::Error)]
pub enum StreamError {
    /// The other end gave up on it.
    #[error("the other end reset the stream (code {})", .0.0)]
    Reset(Code),
    /// The connection is gone.
    #[error("the connection was lost in the middle of a stream")]
    Lost(#[source] Lost),
    /// What came is no frame.
    #[error(transparent)]
    BadFrame(#[from] BadFrame),
    /// The stream ended inside a frame.
    #[error("the stream ended inside a frame")]
    Truncated,
    /// This end has already finished or reset it.
    #[error("the stream is already closed at this end")]
    Closed,
}

/// Reads frames. Dropping it tells the other end to stop sending.
#[derive(Debug)]
pub struct FrameReader {
    stream: RecvHalf,
    /// Bytes that came and are no whole frame yet: less than one frame and one read.
    buffer: BytesMut,
}

impl FrameReader {
    pub(super) fn new(stream: RecvHalf) -> Self {
        Self { stream, buffer: BytesMut::new() }
    }

    /// The next frame; `None` at the stream's proper end. Cancel-safe.
    ///
    /// # Errors
    /// [`StreamError`]; after one, the stream is of no more use.
    pub async fn read(&mut self) -> Result<Option<Frame>, StreamError> {
        loop {
            if let Some(frame) = self.buffered()? {
                return Ok(Some(frame));
            }
            match self.stream.read_chunk(READ_BYTES_MAX).await? {
                Some(bytes) => self.buffer.extend_from_slice(&bytes),
                None if self.buffer.is_empty() => return Ok(None),
                None => return Err(StreamError::Truncated),
            }
        }
    }

    fn buffered(&mut self) -> Result<Option<Frame>, StreamError> {
        let Some(prefix) = self.buffer.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = usize::try_from(u32::from_be_bytes(*prefix)).unwrap_or(usize::MAX);
        if length > FRAME_BYTES_MAX {
            return Err(BadFrame::TooLong(length).into());
        }
        let Some(item) = self.buffer.get(LENGTH_BYTES..LENGTH_BYTES + length) else { return Ok(None) };
        let frame = Frame::decode(item)?;
        self.buffer.advance(LENGTH_BYTES + length);
        Ok(Some(frame))
    }

    /// Tells the other end that nothing more is read.
    pub fn stop(&mut self, code: Code) {
        self.stream.stop(code);
    }

    /// The stream, and bytes that were read from it but not yet taken as frames.
    pub(super) fn into_parts(self) -> (RecvHalf, Bytes) {
        (self.stream, self.buffer.freeze())
    }
}

/// Writes frames. Dropping it before [`Self::finish`] resets the stream, so that the other end never takes a part for the whole.
#[derive(Debug)]
pub struct FrameWriter {
    stream: SendHalf,
    /// The rest of the frame that is being written.
    pending: Bytes,
    ended: bool,
}

impl FrameWriter {
    pub(super) fn new(stream: SendHalf) -> Self {
        Self { stream, pending: Bytes::new(), ended: false }
    }

    /// Writes a frame; waits while the other end's window is full. When this future is dropped, the rest of the frame goes out
    /// before the next one (or with [`Self::finish`]), so the stream stays whole.
    ///
    /// # Errors
    /// [`StreamError`]; after one, the stream is of no more use.
    pub async fn write(&mut self, frame: &Frame) -> Result<(), StreamError> {
        let bytes = Bytes::from(frame.encode()?);
        self.flush().await?;
        self.pending = bytes;
        self.flush().await
    }

    async fn flush(&mut self) -> Result<(), StreamError> {
        while !self.pending.is_empty() {
            let written = self.stream.write(&self.pending).await?;
            self.pending.advance(written);
        }
        Ok(())
    }

    /// Says that no more frames come, after what is pending.
    ///
    /// # Errors
    /// [`StreamError`] when the other end gave up before.
    pub async fn finish(&mut self) -> Result<(), StreamError> {
        self.flush().await?;
        self.ended = true;
        self.stream.finish()
    }

    /// Gives up: what was not delivered yet is thrown away.
    pub fn reset(&mut self, code: Code) {
        self.ended = true;
        self.stream.reset(code);
    }

    /// Waits until the other end reads no more: `Some` when it gave up, `None` when it has everything (after
    /// [`Self::finish`]). A lost connection counts as [`Code::GONE`]. The future holds nothing of the writer.
    pub fn stopped(&self) -> impl Future<Output = Option<Code>> + Send + 'static {
        self.stream.stopped()
    }

    /// The stream and the rest of a frame that was being written. The caller now ends the stream.
    pub(super) fn stream(&mut self) -> &mut SendHalf {
        &mut self.stream
    }

    pub(super) fn take_pending(&mut self) -> Bytes {
        std::mem::take(&mut self.pending)
    }

    pub(super) fn mark_ended(&mut self) {
        self.ended = true;
    }
}

impl Drop for FrameWriter {
    fn drop(&mut self) {
        if !self.ended {
            self.reset(Code::CANCELLED);
        }
    }
}
