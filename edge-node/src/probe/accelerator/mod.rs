//! Accelerators: found, told apart, measured, and compared with the CPU.
//!
//! Listing a machine's adapters makes graphics drivers open devices, take memory for as long as the process lives, and now and then
//! crash or hang. So all of it happens in a process of its own (`child`), which lives some seconds at low priority, and is killed with
//! everything that it started when it does not end (`run`). It writes down what it saw, line by line: a [`Listing`]. Everything else is
//! a function of that: which adapters are one device ([`merge`]), what they are and how much memory they may give ([`memory`]), which of
//! them is an accelerator ([`judge()`]), and what an operator could do about the others ([`hints`]). These functions never touch the
//! machine, and recorded listings are their tests.
//!
//! Never here: a handle of a device in the agent's own process.

mod budget;
pub mod child;
pub mod hints;
pub mod judge;
mod listing;
#[cfg(feature = "wgpu")]
mod measure;
pub mod memory;
pub mod merge;
mod run;
mod signs;
pub mod watch;

pub use budget::{CrashBudget, Kept};
pub use judge::judge;
pub use listing::{
    Adapter, DeviceFile, DeviceType, Heap, Listing, Measured, MemoryInfo, PciDevice, RawRates, Signs, VendorReading,
};
pub use run::{Drill, Failure, Look, Orders, look};
