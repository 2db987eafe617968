//! The agent's mind, sans IO: the uplink's state, the plans held, what is known of the fleet, peers, the division of the node,
//! reports and the spool; around the request core that `shared` provides.
//!
//! [`Agent::handle`] takes one event at one moment and says what shall be done; [`Agent::next_deadline`] says when it wants to be
//! called without one. There must never be a clock, a socket, a thread, an environment variable or unseeded chance in here: the
//! driver in `io`, the simulator and a replayed capture all run exactly this code.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod agent;
mod event;
mod follow;
mod liveness;
mod moving;
mod peer;
mod peers;
mod persisted;
mod plans;
mod quarantine;
mod shares;
mod spool;
mod status;
mod telemetry;
#[cfg(test)]
mod tests;
mod told;
mod uplink;
mod view;
mod ways;

pub use agent::{Agent, AgentConfig};
pub use event::{AgentEffect, AgentEvent, BrokerEvent, Ended, Gauges, LinkId, PeerEvent, Publication, UplinkEvent};
pub use persisted::{Neighbour, Persisted};
pub use quarantine::Kind;
pub use spool::SpoolChange;
pub use status::{LearntStatus, NodeStatus, PeerStatus, PlanStatus, SpoolStatus, UplinkStatus};
