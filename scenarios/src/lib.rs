//! Fleets in simulated and emulated time.
pub mod sim;
