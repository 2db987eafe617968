//! How one node reaches another.

use crate::units::{ByteRate, Bytes, Fraction, Micros};
use serde::{Deserialize, Serialize};

/// The way a path takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Hop {
    /// It is the node itself.
    Local,
    /// A connection between the two.
    Direct,
    /// Through the hub.
    Relay,
}

/// What carries the bytes of a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Transport {
    /// QUIC on UDP.
    Quic,
    /// The same frames over TLS on TCP, where UDP does not carry.
    Tcp,
}

impl Transport {
    /// As people and metrics call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Quic => "quic",
            Self::Tcp => "tcp",
        }
    }

    /// The one that is tried where this one does not carry.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Quic => Self::Tcp,
            Self::Tcp => Self::Quic,
        }
    }
}

/// In which order the transports are tried. The first over which data went both ways is kept, not the first to shake hands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TransportOrder {
    /// Tried at once.
    pub first: Transport,
    /// When the other one is begun beside it, if data has not gone both ways by then; absent when it is not tried at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub other_after: Option<Micros>,
}

impl TransportOrder {
    /// How long the first has for itself. A handshake and an answer take two round trips, so up to 150 ms of distance the other
    /// is not begun at all; farther away it is begun, and loses if the first carries.
    pub const HEAD_START: Micros = Micros::from_millis(300);

    /// This one with a head start before the other.
    #[must_use]
    pub const fn prefer(first: Transport) -> Self {
        Self { first, other_after: Some(Self::HEAD_START) }
    }

    /// This one alone.
    #[must_use]
    pub const fn only(first: Transport) -> Self {
        Self { first, other_after: None }
    }
}

/// What is known of a path. What was not measured is absent, not zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct PathReport {
    /// The way it takes.
    pub hop: Hop,
    /// Round-trip time, smoothed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rtt: Option<Micros>,
    /// Mean deviation of the round-trip time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub jitter: Option<Micros>,
    /// Rate towards the other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_out: Option<ByteRate>,
    /// Rate from the other end.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate_in: Option<ByteRate>,
    /// Lost share of packets.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<Fraction>,
    /// Bytes cost money here.
    #[serde(default)]
    pub metered: bool,
    /// What carries it; absent where nobody said, or where its parts differ.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub transport: Option<Transport>,
}

impl PathReport {
    /// The path of a node to itself.
    #[must_use]
    pub fn local() -> Self {
        Self {
            hop: Hop::Local,
            rtt: Some(Micros::ZERO),
            jitter: None,
            rate_out: None,
            rate_in: None,
            loss: None,
            metered: false,
            transport: None,
        }
    }

    /// A path of this kind of which only the round-trip time is known.
    #[must_use]
    pub fn with_rtt(hop: Hop, rtt: Micros) -> Self {
        Self { hop, rtt: Some(rtt), ..Self::local() }
    }

    /// The same seen from the other end.
    #[must_use]
    pub fn reversed(self) -> Self {
        Self { rate_out: self.rate_in, rate_in: self.rate_out, ..self }
    }

    /// Time to carry `bytes` outwards beyond the round trip; zero where the rate is not known.
    #[must_use]
    pub fn carry(&self, bytes: Bytes) -> Micros {
        match self.rate_out {
            Some(rate) if rate.get() > 0.0 => Micros::from_secs_f64(bytes.as_f64() / rate.get()),
            _ => Micros::ZERO,
        }
    }
}
