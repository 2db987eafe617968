//! The life of one request, sans IO: admission, queue, dispatch, execution slots, retry, cancel. Hosted by agent and hub alike.
//!
//! [`RequestCore`] is told [`Event`]s and returns [`Effect`]s; it asks for [`Event::Tick`] at its `next_deadline`. It has two halves.
//! The *ingress* half (`ingress`, `deciding`, `ticket`) owns the requests of clients here and has at most one live attempt for each. The
//! *executor* half (`executor`) owns the slots of this node's replicas, for attempts of the own ingress and of others.
//! A forwarded request is never dispatched again: it is executed, queued, or refused.

mod core;
mod deciding;
mod event;
mod executor;
mod fingerprint;
mod ingress;
mod learnt;
pub mod limits;
mod prompts;
mod retry;
mod ticket;

pub use self::core::{CoreConfig, RequestCore};
pub use event::{AttemptEvent, Effect, Event};
pub use learnt::Learnt;
pub use retry::not_resumable;
