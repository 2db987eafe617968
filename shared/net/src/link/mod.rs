//! Work between members: one connection for each pair, one bidirectional stream for each request, over QUIC where UDP carries
//! and over TLS on TCP where it does not.
//!
//! [`Endpoint`] dials and listens on one port of UDP and TCP; [`Link`] is a connection whose other end is known by its
//! certificate; [`FrameReader`] and [`FrameWriter`] carry the frames of `shared::wire`; [`splice()`] is the relay's cut-through.
//! Nothing above this module knows the transports apart, but by [`Link::transport`]. Never here: what a frame means, which
//! transport to take, 0-RTT (a request must not be replayed), streams without a limit.

mod connection;
mod endpoint;
mod frames;
mod halves;
mod limits;
mod listen;
mod lost;
mod race;
mod reset;
mod splice;
mod tcp;

pub use connection::{Code, Link, Stream};
pub use endpoint::{Endpoint, resolve};
pub use frames::{FrameReader, FrameWriter, StreamError};
pub use limits::{CONNECTIONS_MAX, DIAL_TIME_MAX, IDLE_TIME_MAX, JOIN_TIME_MAX, KEEP_ALIVE, STREAMS_MAX};
pub use listen::Acceptor;
pub use lost::{LinkError, Lost};
pub use race::{Neither, race};
pub use reset::{ResetSecret, ResetSecretError};
pub use splice::{Spliced, splice};
