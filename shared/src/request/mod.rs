//! The life of one request, sans IO: admission, queue, dispatch, execution slots, retry, cancel. Hosted by agent and hub alike.

mod event;

pub use event::{AttemptEvent, Effect, Event};
