//! Drivers: bytes become events, effects become actions. Nothing here decides where a request runs.
//!
//! The way of a request: `http` (a client asks) → `driver` (the agent decides) → `hands` (carries out) → `execute` (here) or
//! `remote` (a stream to a peer, or through the hub) → back through `driver`, which lets content through to the client exactly
//! when the core says so. Requests of other ingresses come in by `uplink` or `peers` and live in `offered`. Where several nodes
//! serve one request, `execute` and `offered` pass on through `stage` to the `offered` of the next node.

mod advertise;
pub mod capture;
mod control;
mod driver;
mod execute;
mod foresight;
mod hands;
mod health;
mod http;
pub(crate) mod joined;
pub mod keys;
mod links;
mod machine;
mod meters;
pub(crate) mod mqtt;
mod offered;
mod peers;
mod remote;
mod renewal;
mod replicas;
mod running;
mod spool;
mod stage;
pub mod store;
mod uplink;

pub(crate) use machine::models_folder;

pub use driver::{Handle, Stopped};
pub use running::{Running, StartError};
