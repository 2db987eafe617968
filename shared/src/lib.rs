//! What Tidegate knows and how it decides, as plain values and functions.
//!
//! Everything here is pure. A decision is a synchronous function of state, view, grant and event; time arrives as a
//! [`units::Moment`] argument and chance as a seed. There is no socket, no clock, no environment, no thread and no async
//! runtime in this crate, and there must never be: hub, agent, simulator and replay all run exactly this code.
//!
//! Read it in this order: [`ids`] and [`units`] (the nouns), [`fleet`] and [`work`] (what there is and what is asked),
//! [`estimate`] (what it would cost), [`plan`] (what was decided), [`policy`] (how it is decided), [`request`] (the life of
//! one request), [`wire`] (how it travels). [`backoff`] is how long anything waits that is tried again.
#![warn(missing_docs)]
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]
#![warn(clippy::cast_possible_truncation, clippy::cast_possible_wrap, clippy::cast_precision_loss, clippy::cast_sign_loss)]

pub mod backoff;
pub mod estimate;
pub mod fleet;
pub mod ids;
pub mod pairs;
pub mod plan;
pub mod policy;
pub mod request;
pub mod units;
pub mod wire;
pub mod work;
