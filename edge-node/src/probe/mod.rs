//! What this machine really is, and how it is. Nothing here is declared: what cannot be measured is absent.
//!
//! [`machine`] asks the operating system, [`accelerator`] finds and measures accelerators in a short-lived process, and [`report`] is
//! what `edge-node probe` tells of all of it. The agent itself never opens a device: see [`accelerator`].

pub mod accelerator;
mod config;
pub mod hardware;
pub mod machine;
pub mod page;
mod ran;
pub mod report;

pub use config::{BadProbe, ProbeSection};
