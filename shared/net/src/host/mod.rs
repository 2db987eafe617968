//! What both programs do when they start: read their configuration, open their state folder, start a clock, own their tasks,
//! listen for signals, and log.
//!
//! Never here: anything that only one of the two programs needs.

pub mod checks;
mod checkup;
mod clock;
mod config;
mod layers;
mod log;
mod nearest;
mod out;
mod refusals;
mod service;
mod span;
mod state;
mod tasks;

pub use checkup::{Checkup, Finding, Verdict};
pub use clock::Clock;
pub use config::{BadValue, ConfigError, Loaded, Origin, Shown, Sources, load};
pub use log::{LogError, LogFormat, LogSettings, init_tracing};
pub use out::{say, try_say};
pub(crate) use refusals::Quiet;
pub use refusals::Refusals;
pub use service::ServiceManager;
pub use span::parse_span;
pub use state::{StateError, StateFolder, write_private};
pub use tasks::{NotStopped, Tasks, shutdown_signal};
