//! The life of one request, sans IO: admission, queue, dispatch, execution slots, retry, cancel. Hosted by agent and hub alike.

mod core;
mod event;

pub use self::core::{CoreConfig, RequestCore};
pub use event::{AttemptEvent, Effect, Event};
