use super::super::process::ProcessError;
use super::super::wait::Late;
use shared::ids::{BadName, NodeId};
use shared::wire::BadToken;
use std::io;
use std::path::PathBuf;

/// Why a fleet cannot be had, or is no more what it should be.
#[derive(Debug, thiserror::Error)]
pub enum FleetError {
    /// A program could not be started, or ended.
    #[error(transparent)]
    Process(#[from] ProcessError),
    /// Something did not happen in time.
    #[error(transparent)]
    Late(#[from] Late),
    /// A file of the fleet.
    #[error("{doing} {path}")]
    File {
        /// What was being done.
        doing: &'static str,
        /// To which file or folder.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// No port, or no cable.
    #[error("{doing}")]
    Network {
        /// What was being done.
        doing: &'static str,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// The hub printed something else.
    #[error("the hub printed no join token")]
    Token(#[from] BadToken),
    /// A plan with a name that is none.
    #[error(transparent)]
    Name(#[from] BadName),
    /// The HTTP client cannot be made.
    #[error("making an HTTP client")]
    Client(#[source] reqwest::Error),
    /// No addresses left.
    #[error("a fleet here has fewer than {0} agents and sites")]
    Full(u8),
    /// No such agent.
    #[error("no agent `{0}` in this fleet")]
    NoAgent(NodeId),
}
