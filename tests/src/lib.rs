//! A real hub and real agents on loopback, and the stories that must hold.
//!
//! [`World`] is a fleet of processes in a folder of its own; the stories are in `it/`. Nothing here sleeps for time: stories wait
//! for conditions, each with a deadline and a name. When one fails, its folder stays, and its logs are shown.

mod canary;
mod engines;
mod metrics;
mod mqtt;
mod recorder;
pub mod report;
mod world;

pub use canary::{Canary, files_with};
pub use engines::{Pace, llm, model, profiled, service};
pub use metrics::{agent_metric, hub_metric, node_row};
pub use mqtt::BrokerClient;
pub use recorder::Recorder;
pub use world::{HEARTBEAT, SOON, World};
