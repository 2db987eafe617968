//! Work between members: one QUIC connection for each pair, one bidirectional stream for each request.
//!
//! [`Endpoint`] dials and listens on one UDP socket; [`Link`] is a connection whose other end is known by its certificate;
//! [`FrameReader`] and [`FrameWriter`] carry the frames of `shared::wire`; [`splice()`] is the relay's cut-through. Never here:
//! what a frame means, 0-RTT (a request must not be replayed), streams without a limit.

mod endpoint;
mod frames;
mod limits;
mod link;
mod reset;
mod splice;

pub use endpoint::{Acceptor, Endpoint, QuicError, resolve};
pub use frames::{FrameReader, FrameWriter, StreamError};
pub use limits::{CONNECTIONS_MAX, DIAL_TIME_MAX, IDLE_TIME_MAX, JOIN_TIME_MAX, KEEP_ALIVE, STREAMS_MAX};
pub use link::{Code, Link, Stream};
pub use reset::{ResetSecret, ResetSecretError};
pub use splice::{Spliced, splice};
