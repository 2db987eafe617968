//! The hub: certificate authority, slow scheduling rounds, relay, ledger.
//!
//! [`logic`] decides, sans IO; everything that touches the world stands behind the feature `io`.

pub mod logic;

#[cfg(feature = "io")]
pub mod ca;
#[cfg(feature = "io")]
pub mod clock;
#[cfg(feature = "io")]
pub mod config;
#[cfg(feature = "io")]
pub mod join;
#[cfg(feature = "io")]
pub mod state;
#[cfg(feature = "io")]
pub mod store;
