//! The agent: takes requests in, decides where each runs, executes what runs here, and goes on when the hub is gone.
//!
//! [`logic`] decides and never touches the world; the other modules carry out what it decides and tell it what happened.
//! `commands` is what an operator can ask of the program, `io::Running` the agent as a whole. Only `exec` and `probe` touch an
//! accelerator.

#[cfg(feature = "io")]
pub mod commands;
#[cfg(feature = "io")]
pub mod config;
#[cfg(feature = "io")]
mod doctor;
#[cfg(feature = "io")]
pub mod exec;
#[cfg(feature = "io")]
pub mod io;
pub mod logic;
#[cfg(feature = "io")]
mod net;
#[cfg(feature = "io")]
pub mod pages;
#[cfg(feature = "io")]
pub mod probe;
#[cfg(feature = "io")]
pub mod release;
