//! The two directions of a stream, over whichever transport.

use super::connection::Code;
use super::frames::StreamError;
use super::tcp;
use bytes::Bytes;
use quinn::{ReadError, StoppedError, WriteError};

impl From<ReadError> for StreamError {
    fn from(error: ReadError) -> Self {
        match error {
            ReadError::Reset(code) => Self::Reset(Code::from_quinn(code)),
            ReadError::ConnectionLost(error) => Self::Lost(error.into()),
            ReadError::ClosedStream | ReadError::IllegalOrderedRead | ReadError::ZeroRttRejected => Self::Closed,
        }
    }
}

impl From<WriteError> for StreamError {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Stopped(code) => Self::Reset(Code::from_quinn(code)),
            WriteError::ConnectionLost(error) => Self::Lost(error.into()),
            WriteError::ClosedStream | WriteError::ZeroRttRejected => Self::Closed,
        }
    }
}

/// Towards the other end.
#[derive(Debug)]
pub(super) enum SendHalf {
    Quic(quinn::SendStream),
    Tcp(tcp::Sender),
}

impl SendHalf {
    /// Hands over as many of the bytes as there is room for; waits while there is none.
    pub(super) async fn write(&mut self, bytes: &[u8]) -> Result<usize, StreamError> {
        match self {
            Self::Quic(stream) => Ok(stream.write(bytes).await?),
            Self::Tcp(stream) => stream.write(bytes).await,
        }
    }

    pub(super) fn finish(&mut self) -> Result<(), StreamError> {
        match self {
            Self::Quic(stream) => stream.finish().map_err(|_| StreamError::Closed),
            Self::Tcp(stream) => stream.finish(),
        }
    }

    /// Without effect on a stream that has ended already.
    pub(super) fn reset(&mut self, code: Code) {
        match self {
            Self::Quic(stream) => drop(stream.reset(code.to_quinn())),
            Self::Tcp(stream) => stream.reset(code),
        }
    }

    /// Waits until the other end wants no more (`Some`) or has everything (`None`). Holds nothing of the stream.
    pub(super) fn stopped(&self) -> impl Future<Output = Option<Code>> + Send + 'static {
        let stopped = match self {
            Self::Quic(stream) => Ok(stream.stopped()),
            Self::Tcp(stream) => Err(stream.stopped()),
        };
        async move {
            match stopped {
                Ok(quic) => match quic.await {
                    Ok(code) => code.map(Code::from_quinn),
                    Err(StoppedError::ConnectionLost(_) | StoppedError::ZeroRttRejected) => Some(Code::GONE),
                },
                Err(tcp) => tcp.await,
            }
        }
    }
}

/// From the other end.
#[derive(Debug)]
pub(super) enum RecvHalf {
    Quic(quinn::RecvStream),
    Tcp(tcp::Receiver),
}

impl RecvHalf {
    /// The next bytes, at most so many; absent at the proper end. Cancel-safe.
    pub(super) async fn read_chunk(&mut self, max: usize) -> Result<Option<Bytes>, StreamError> {
        match self {
            Self::Quic(stream) => Ok(stream.read_chunk(max, true).await?.map(|chunk| chunk.bytes)),
            Self::Tcp(stream) => stream.read_chunk(max).await,
        }
    }

    /// Waits until the other end gives up (`Some`) or everything has come (`None`).
    pub(super) async fn received_reset(&mut self) -> Result<Option<Code>, StreamError> {
        match self {
            Self::Quic(stream) => match stream.received_reset().await {
                Ok(code) => Ok(code.map(Code::from_quinn)),
                Err(_) => Err(StreamError::Closed),
            },
            Self::Tcp(stream) => stream.received_reset().await,
        }
    }

    /// Without effect on a stream that has ended already.
    pub(super) fn stop(&mut self, code: Code) {
        match self {
            Self::Quic(stream) => drop(stream.stop(code.to_quinn())),
            Self::Tcp(stream) => stream.stop(code),
        }
    }
}
