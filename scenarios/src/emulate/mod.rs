//! Real binaries as processes, behind links that can be cut.
//!
//! The demo and the end-to-end tests build their fleets from these parts. Nothing here decides anything about a request: it
//! starts, stops, cuts, asks and measures.

pub mod addresses;
pub mod client;
pub mod fleet;
pub mod ports;
pub mod process;
pub mod relay;
pub mod wait;
