//! A connection whose other end is known.

use super::frames::{FrameReader, FrameWriter};
use super::halves::{RecvHalf, SendHalf};
use super::lost::LinkError;
use super::{limits, tcp};
use crate::tls::{node_of, serial_of};
use quinn::VarInt;
use rustls::pki_types::CertificateDer;
use shared::fleet::{Hop, PathReport, Transport};
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
    fn new(send: SendHalf, recv: RecvHalf) -> Self {
        Self { reader: FrameReader::new(recv), writer: FrameWriter::new(send) }
    }

    fn quic((send, recv): (quinn::SendStream, quinn::RecvStream)) -> Self {
        Self::new(SendHalf::Quic(send), RecvHalf::Quic(recv))
    }

    fn tcp((send, recv): (tcp::Sender, tcp::Receiver)) -> Self {
        Self::new(SendHalf::Tcp(send), RecvHalf::Tcp(recv))
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

/// An established connection, over either transport. Clones are the same connection, which stays open until it is closed,
/// lost, or the last clone and stream are dropped.
#[derive(Clone, Debug)]
pub struct Link {
    carrier: Carrier,
    peer: Option<Arc<Peer>>,
    /// Held as long as the connection is; frees a place in the endpoint.
    _place: Option<Arc<OwnedSemaphorePermit>>,
}

#[derive(Clone, Debug)]
enum Carrier {
    Quic(quinn::Connection),
    Tcp(tcp::Connection),
}

fn identified(chain: Option<&[CertificateDer<'_>]>) -> Result<Option<Arc<Peer>>, LinkError> {
    let Some(own) = chain.and_then(<[_]>::first) else { return Ok(None) };
    Ok(Some(Arc::new(Peer { node: node_of(own)?, serial: serial_of(own)? })))
}

impl Link {
    pub(super) fn quic(connection: quinn::Connection, place: Option<OwnedSemaphorePermit>) -> Result<Self, LinkError> {
        let certificates = connection.peer_identity().and_then(|any| any.downcast::<Vec<CertificateDer<'static>>>().ok());
        let peer = identified(certificates.as_deref().map(Vec::as_slice))?;
        if peer.is_some() {
            limits::trust(&connection);
        }
        Ok(Self { carrier: Carrier::Quic(connection), peer, _place: place.map(Arc::new) })
    }

    /// `begin` makes the connection once it is known whether the other end is a member.
    pub(super) fn tcp(
        chain: Option<&[CertificateDer<'_>]>,
        place: Option<OwnedSemaphorePermit>,
        begin: impl FnOnce(bool) -> tcp::Connection,
    ) -> Result<Self, LinkError> {
        let peer = identified(chain)?;
        Ok(Self { carrier: Carrier::Tcp(begin(peer.is_some())), peer, _place: place.map(Arc::new) })
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

    /// What carries it.
    #[must_use]
    pub const fn transport(&self) -> Transport {
        match self.carrier {
            Carrier::Quic(_) => Transport::Quic,
            Carrier::Tcp(_) => Transport::Tcp,
        }
    }

    /// Where packets of the other end come from now; changes when it migrates.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        let address = match &self.carrier {
            Carrier::Quic(connection) => connection.remote_address(),
            Carrier::Tcp(connection) => connection.remote(),
        };
        // A socket that serves both families shows IPv4 as a part of IPv6, which nobody would recognise.
        SocketAddr::new(address.ip().to_canonical(), address.port())
    }

    /// Tells connections of one process apart.
    #[must_use]
    pub fn id(&self) -> usize {
        match &self.carrier {
            Carrier::Quic(connection) => connection.stable_id(),
            Carrier::Tcp(connection) => connection.id(),
        }
    }

    /// Opens a stream; waits while the other end's limit of streams is reached.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the connection ends first.
    pub async fn open(&self) -> Result<Stream, LinkError> {
        match &self.carrier {
            Carrier::Quic(connection) => Ok(Stream::quic(connection.open_bi().await?)),
            Carrier::Tcp(connection) => Ok(Stream::tcp(connection.open().await?)),
        }
    }

    /// The next stream that the other end opened. Cancel-safe.
    ///
    /// # Errors
    /// [`LinkError::Lost`] when the connection has ended.
    pub async fn accept(&self) -> Result<Stream, LinkError> {
        match &self.carrier {
            Carrier::Quic(connection) => Ok(Stream::quic(connection.accept_bi().await?)),
            Carrier::Tcp(connection) => Ok(Stream::tcp(connection.accept().await?)),
        }
    }

    /// What the connection has measured of its path: round-trip time, and loss where the transport shows it. What was not
    /// measured is absent.
    #[must_use]
    pub fn report(&self, hop: Hop) -> PathReport {
        let micros = |rtt: std::time::Duration| Micros(u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX));
        let (rtt, loss) = match &self.carrier {
            Carrier::Quic(connection) => {
                let path = connection.stats().path;
                let (lost, sent) = (path.lost_packets.min(path.sent_packets), path.sent_packets);
                // Below a hundred packets a share in percent says nothing.
                let loss = if sent < 100 { None } else { Fraction::new(share(lost, sent)).ok() };
                (Some(micros(path.rtt)), loss)
            }
            Carrier::Tcp(connection) => (connection.rtt().map(micros), None),
        };
        PathReport { hop, rtt, loss, transport: Some(self.transport()), ..PathReport::local() }
    }

    /// Packets of this end that got lost, since the beginning. None over TCP, which repairs what is lost unseen.
    #[must_use]
    pub fn losses(&self) -> u64 {
        match &self.carrier {
            Carrier::Quic(connection) => connection.stats().path.lost_packets,
            Carrier::Tcp(_) => 0,
        }
    }

    /// Bytes sent and received: in UDP datagrams with all overhead within them, or within TLS on TCP.
    #[must_use]
    pub fn bytes(&self) -> (u64, u64) {
        match &self.carrier {
            Carrier::Quic(connection) => {
                let stats = connection.stats();
                (stats.udp_tx.bytes, stats.udp_rx.bytes)
            }
            Carrier::Tcp(connection) => connection.bytes(),
        }
    }

    /// Ends the connection with all its streams; the other end is told why.
    pub fn close(&self, code: Code, why: &str) {
        match &self.carrier {
            Carrier::Quic(connection) => connection.close(code.to_quinn(), why.as_bytes()),
            Carrier::Tcp(connection) => connection.close(code, why),
        }
    }

    /// Waits until the connection has ended, and says why.
    pub async fn closed(&self) -> LinkError {
        match &self.carrier {
            Carrier::Quic(connection) => connection.closed().await.into(),
            Carrier::Tcp(connection) => connection.closed().await.into(),
        }
    }

    /// Whether the connection has ended.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        match &self.carrier {
            Carrier::Quic(connection) => connection.close_reason().is_some(),
            Carrier::Tcp(connection) => connection.ended().is_some(),
        }
    }
}

#[expect(clippy::cast_precision_loss, reason = "a share, not an identity")]
fn share(part: u64, whole: u64) -> f64 {
    part as f64 / whole as f64
}
