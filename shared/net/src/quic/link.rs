//! A connection whose other end is known.

use super::endpoint::QuicError;
use super::frames::{FrameReader, FrameWriter};
use super::limits;
use crate::tls::{node_of, serial_of};
use quinn::VarInt;
use rustls::pki_types::CertificateDer;
use shared::fleet::{Hop, PathReport};
use shared::ids::NodeId;
use shared::units::{Fraction, Micros};
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::sync::OwnedSemaphorePermit;

/// Why a stream was reset or a connection closed, for the other end's log and metrics. What to do does not depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Code(pub u32);

impl Code {
    /// Nothing is wrong.
    pub const DONE: Self = Self(0);
    /// The request is no longer wanted.
    pub const CANCELLED: Self = Self(1);
    /// What came was not understood, or came out of order.
    pub const PROTOCOL: Self = Self(2);
    /// The hop behind this one is gone.
    pub const GONE: Self = Self(3);
    /// Too much at a time.
    pub const BUSY: Self = Self(4);
    /// Not allowed, or no longer.
    pub const FORBIDDEN: Self = Self(5);
    /// A newer connection of the same node took over.
    pub const REPLACED: Self = Self(6);

    pub(super) fn to_quinn(self) -> VarInt {
        VarInt::from_u32(self.0)
    }

    /// What a peer sent; codes above 32 bits are none of ours.
    pub(super) fn from_quinn(code: VarInt) -> Self {
        Self(u32::try_from(code.into_inner()).unwrap_or(u32::MAX))
    }
}

/// Both directions of one stream. Dropping it cancels: the other end sees a reset.
#[derive(Debug)]
pub struct Stream {
    /// From the other end.
    pub reader: FrameReader,
    /// To the other end.
    pub writer: FrameWriter,
}

impl Stream {
    fn new((send, recv): (quinn::SendStream, quinn::RecvStream)) -> Self {
        Self { reader: FrameReader::new(recv), writer: FrameWriter::new(send) }
    }

    /// Ends both directions at once, with a reason.
    pub fn cancel(mut self, code: Code) {
        self.writer.reset(code);
        self.reader.stop(code);
    }
}

/// Who is at the other end, by its certificate.
#[derive(Clone, Debug)]
struct Peer {
    node: NodeId,
    serial: String,
}

/// An established connection. Clones are the same connection, which stays open until it is closed, lost, or the last clone and
/// stream are dropped.
#[derive(Clone, Debug)]
pub struct Link {
    connection: quinn::Connection,
    peer: Option<Arc<Peer>>,
    /// Held as long as the connection is; frees a place in the endpoint.
    _place: Option<Arc<OwnedSemaphorePermit>>,
}

impl Link {
    pub(super) fn new(connection: quinn::Connection, place: Option<OwnedSemaphorePermit>) -> Result<Self, QuicError> {
        let certificates = connection.peer_identity().and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
        let peer = match certificates.as_deref().and_then(|chain| chain.first()) {
            Some(own) => Some(Arc::new(Peer { node: node_of(own)?, serial: serial_of(own)? })),
            None => None,
        };
        if peer.is_some() {
            limits::trust(&connection);
        }
        Ok(Self { connection, peer, _place: place.map(Arc::new) })
    }

    /// Who is at the other end. A client without a certificate is nobody: it may ask to join, and nothing else.
    #[must_use]
    pub fn peer(&self) -> Option<&NodeId> {
        self.peer.as_ref().map(|peer| &peer.node)
    }

    /// Serial number of the peer's certificate, as revocations list it.
    #[must_use]
    pub fn serial(&self) -> Option<&str> {
        self.peer.as_ref().map(|peer| peer.serial.as_str())
    }

    /// Where packets of the other end come from now; changes when it migrates.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let address = self.connection.remote_address();
        // A socket that serves both families shows IPv4 as a part of IPv6, which nobody would recognise.
        SocketAddr::new(address.ip().to_canonical(), address.port())
    }

    /// Tells connections of one process apart.
    #[must_use]
    pub fn id(&self) -> usize {
        self.connection.stable_id()
    }

    /// Opens a stream; waits while the other end's limit of streams is reached.
    ///
    /// # Errors
    /// [`QuicError::Lost`] when the connection ends first.
    pub async fn open(&self) -> Result<Stream, QuicError> {
        Ok(Stream::new(self.connection.open_bi().await?))
    }

    /// The next stream that the other end opened. Cancel-safe.
    ///
    /// # Errors
    /// [`QuicError::Lost`] when the connection has ended.
    pub async fn accept(&self) -> Result<Stream, QuicError> {
        Ok(Stream::new(self.connection.accept_bi().await?))
    }

    /// What the connection has measured of its path: round-trip time and loss. What was not measured is absent.
    #[must_use]
    pub fn report(&self, hop: Hop) -> PathReport {
        let path = self.connection.stats().path;
        let (lost, sent) = (path.lost_packets.min(path.sent_packets), path.sent_packets);
        // Below a hundred packets a share in percent says nothing.
        let loss = if sent < 100 { None } else { Fraction::new(share(lost, sent)).ok() };
        let rtt = Micros(u64::try_from(path.rtt.as_micros()).unwrap_or(u64::MAX));
        PathReport { loss, ..PathReport::with_rtt(hop, rtt) }
    }

    /// Bytes sent and received in UDP datagrams, all overhead within them counted.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        let stats = self.connection.stats();
        (stats.udp_tx.bytes, stats.udp_rx.bytes)
    }

    /// Ends the connection with all its streams; the other end is told why.
    pub fn close(&self, code: Code, why: &str) {
        self.connection.close(code.to_quinn(), why.as_bytes());
    }

    /// Waits until the connection has ended, and says why.
    pub async fn closed(&self) -> QuicError {
        self.connection.closed().await.into()
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.connection.close_reason().is_some()
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share, not an identity")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
