//! The hub: certificate authority, slow scheduling rounds, relay, ledger.
//!
//! [`logic`] decides, sans IO; everything that touches the world stands behind the feature `io`. Read [`start`] to see what
//! runs: the store's thread, the embedded broker, the core with its driver (`io::driver`), the listeners for agents, clients
//! and operators. They stop in the order in which strangers reach them: clients, agents and core, broker, store.

pub mod logic;

#[cfg(feature = "io")]
pub mod backup;
#[cfg(feature = "io")]
pub mod ca;
#[cfg(feature = "io")]
mod chores;
#[cfg(feature = "io")]
pub mod cli;
#[cfg(feature = "io")]
pub mod clock;
#[cfg(feature = "io")]
pub mod config;
#[cfg(feature = "io")]
pub mod io;
#[cfg(feature = "io")]
pub mod join;
#[cfg(feature = "io")]
mod run;
#[cfg(feature = "io")]
pub mod state;
#[cfg(feature = "io")]
pub mod store;

#[cfg(feature = "io")]
pub use run::{Handle, StartError, StopError, start};
