//! How it is decided: one folder a layer, one file a policy, one table a folder.
//!
//! A policy is a pair of plain data, a configuration and a state, with functions over them. It is told everything it may know and
//! returns what shall be done. To add one: write the file, add its `mod` line and its row in the folder's table. Hub, agent,
//! simulator, conformance suite and documentation read the tables; there is no second place to register.

pub mod allocation;
mod budget;
pub mod dispatch;
mod holder;
pub mod offload;
mod parts;
pub mod placement;
pub mod timescale;

pub use budget::Budget;
pub use holder::{Answers, Holder, Kind, Round, Row};
pub use parts::{BadPolicy, Claim, Parts, Snapshot};
