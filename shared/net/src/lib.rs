//! What hub and agent both do as programs on a network: start up, prove who they are, and talk.
//!
//! [`host`] starts a program (configuration, clock, tasks, signals, state folder); [`tls`] is identity and trust; [`link`]
//! carries work, and [`join`] gets a node its certificate over it; [`openai`] is the HTTP front; [`mqtt`] carries telemetry and
//! plans, and `broker` is the broker inside the hub.
//!
//! Nothing here decides anything: no policy, no placement, no retry of requests, no knowledge of what a frame or a message
//! means beyond its shape. Those live in `shared` and in the programs' `logic`, and reach this crate as values. Members speak
//! to each other over mutual TLS alone, except where a machine joins, and every queue has an end.
#![warn(missing_docs)]

#[cfg(feature = "broker")]
pub mod broker;
pub mod host;
pub mod join;
pub mod link;
pub mod mqtt;
pub mod openai;
pub mod tls;
