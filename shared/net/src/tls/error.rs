//! What can be wrong with an identity.

use std::path::PathBuf;

/// Why there is no usable identity or no trust.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file of the state folder could not be read or written.
    #[error("{doing} `{path}`")]
    File {
        /// What was being done.
        doing: &'static str,
        /// With which file.
        path: PathBuf,
        /// Why not.
        #[source]
        source: std::io::Error,
    },
    /// PEM text does not hold what it should.
    #[error("no usable {what} in the identity: want PEM as the hub issued it; join again to get a fresh one")]
    Pem {
        /// What was looked for.
        what: &'static str,
    },
    /// A certificate could not be parsed.
    #[error("not a certificate: {0}")]
    Unreadable(String),
    /// A certificate from outside the fleet, or of another kind.
    #[error("the certificate names no node: want exactly one URI `tidegate:node:<node id>` among its alternative names")]
    Nameless,
    /// The rustls configuration was refused, for example because key and certificate do not match.
    #[error("setting up TLS")]
    Rustls(#[from] rustls::Error),
    /// A key or a request could not be made.
    #[error("making a key and a certificate request")]
    Request(#[from] rcgen::Error),
    /// The authority of an identity is no acceptable root.
    #[error("the fleet's authority cannot be trusted: {0}")]
    Authority(String),
}
