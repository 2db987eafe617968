//! Why there is no connection, or none any more.

use super::connection::Code;
use super::limits::{DIAL_TIME_MAX, IDLE_TIME_MAX};
use crate::tls::TlsError;
use shared::fleet::Transport;
use shared::wire::ALPN;
use std::io;
use std::net::SocketAddr;

/// What went wrong with a connection.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The sockets could not be opened.
    #[error("listening on UDP and TCP {address}: want a port of an own address that is free for both")]
    Bind {
        /// The wanted address.
        address: SocketAddr,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// A name has no address.
    #[error("looking up `{address}`: want `host:port`")]
    Resolve {
        /// What was looked up.
        address: String,
        /// Why not.
        #[source]
        source: io::Error,
    },
    /// The identity is of no use.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// The endpoint cannot dial there.
    #[error("dialling {address}: {why}")]
    Dial {
        /// Where.
        address: String,
        /// Why not.
        why: String,
    },
    /// Nobody answered in time.
    #[error("no answer from {address} by {by} within {s} seconds", by = .by.name(), s = DIAL_TIME_MAX.as_secs())]
    Silent {
        /// Where.
        address: String,
        /// Over what.
        by: Transport,
    },
    /// The other end speaks something else.
    #[error("the other end does not speak `{}`", String::from_utf8_lossy(ALPN))]
    Protocol,
    /// The connection has ended.
    #[error("connection ended: {0}")]
    Lost(#[from] Lost),
}

/// How a connection ended.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Lost {
    /// The other end closed it.
    #[error("closed by the other end: {why} (code {})", code.0)]
    Closed {
        /// Why, for programs.
        code: Code,
        /// Why, for people.
        why: String,
    },
    /// This end closed it.
    #[error("closed by this end")]
    Here,
    /// Nothing came for so long that the other end counts as dead.
    #[error("silent for {s} seconds", s = IDLE_TIME_MAX.as_secs())]
    Silent,
    /// The other end has forgotten it, as after a restart.
    #[error("reset by the other end, which does not know this connection")]
    Reset,
    /// It broke, or what came was against the protocol.
    #[error("{0}")]
    Broken(String),
}

impl From<quinn::ConnectionError> for Lost {
    fn from(error: quinn::ConnectionError) -> Self {
        use quinn::ConnectionError::{ApplicationClosed, LocallyClosed, Reset, TimedOut};
        match error {
            ApplicationClosed(close) => Self::Closed {
                code: Code::from_quinn(close.error_code),
                why: String::from_utf8_lossy(&close.reason).into_owned(),
            },
            LocallyClosed => Self::Here,
            TimedOut => Self::Silent,
            Reset => Self::Reset,
            other => Self::Broken(other.to_string()),
        }
    }
}

impl From<quinn::ConnectionError> for LinkError {
    fn from(error: quinn::ConnectionError) -> Self {
        Self::Lost(error.into())
    }
}
