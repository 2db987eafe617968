//! What travels between hub and agents: JSON payloads on MQTT topics, CBOR frames on QUIC streams.
//!
//! Unknown fields are ignored, so that a newer sender is understood. No absolute time travels: only remaining durations, and
//! ages at sending. Golden messages of every released version lie in `golden/` and must decode for ever.

pub mod body;
pub mod frame;
pub mod mqtt;
mod token;

pub use body::{Body, StageBody};
pub use frame::Frame;
pub use token::{BadToken, JoinToken};

/// Versions of the protocol that this build speaks, lowest and highest.
pub const VERSION_MIN: u16 = 1;
/// See [`VERSION_MIN`].
pub const VERSION_MAX: u16 = 1;

/// Application protocol of the work connection in the TLS handshake.
pub const ALPN: &[u8] = b"tidegate/1";
