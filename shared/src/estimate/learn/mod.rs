//! What estimates learn from what really happened: the pace of an engine, and how long the answers of a service become.
//!
//! States are plain values that can be written down; time is an argument. Never here: a request's text, or a clock.

mod fit;
mod lengths;
mod pace;

pub use lengths::{Lengths, LengthsReport};
pub use pace::{Guess, PaceLearner};
