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
}

impl PathReport {
    /// The path of a node to itself.
    #[must_use]
    pub fn local() -> Self {
        Self { hop: Hop::Local, rtt: Some(Micros::ZERO), jitter: None, rate_out: None, rate_in: None, loss: None, metered: false }
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
