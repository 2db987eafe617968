//! The hub: certificate authority, slow scheduling rounds, relay, ledger.
//!
//! [`logic`] decides, sans IO; everything that touches the world stands behind the feature `io`.

pub mod logic;
