//! Simulated time: real `logic` values of one hub and a few agents, and a model of everything around them.
//!
//! [`Universe`] is tiny on purpose: virtual time, links that can be cut, processes that can be killed, engines that emit tokens at a
//! rate. It calls exactly the code that the live programs call. There must never be a clock, a socket or a thread in here.
//!
//! Files: `universe` (time, what a story can ask), `knobs` (what it can do), `agents` and `hub` (effects of each carried out), `net` (links and
//! connections), `routes` (request streams), `engine` (executors' truth), `stages` (requests that several of them serve one after the other), `clients` (what applications saw, and what they must never see), `capture` (replay).

mod agents;
mod capture;
mod clients;
mod engine;
mod hub;
mod knobs;
mod net;
mod routes;
mod stages;
mod universe;

pub use capture::Capture;
pub use clients::{Answer, Client};
pub use engine::Truth;
pub use universe::{AgentSpec, Universe, UniverseConfig};
