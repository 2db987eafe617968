//! The agent: takes requests in, decides where each runs, executes what runs here, and goes on when the hub is gone.
//!
//! [`logic`] decides and never touches the world; the other modules carry out what it decides and tell it what happened.

#[cfg(feature = "io")]
pub mod config;
#[cfg(feature = "io")]
pub mod exec;
#[cfg(feature = "io")]
pub mod io;
pub mod logic;
#[cfg(feature = "io")]
pub mod probe;
