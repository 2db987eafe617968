//! What both programs do when they start: read their configuration, open their state folder, start a clock, own their tasks,
//! listen for signals, and log.
//!
//! Never here: anything that only one of the two programs needs.

mod state;

pub use state::{StateError, StateFolder, write_private};
