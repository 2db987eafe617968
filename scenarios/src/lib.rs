//! Fleets in simulated and emulated time, and the demo.

#[cfg(feature = "emulate")]
pub mod demo;
#[cfg(feature = "emulate")]
pub mod emulate;
pub mod sim;
