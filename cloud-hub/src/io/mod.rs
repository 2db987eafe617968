//! Drivers: bytes become events, effects become actions. Nothing is decided here.
//!
//! `driver` owns the core and is the only one that touches it; everything else is a task that sends it `input::Input`s and
//! does what its effects say: `links` (agents over QUIC), `relay`, `attempt` (the hub's own requests on their way to an
//! executor), `ingress` (the OpenAI API), `mqtt`, `admin` and `metrics`.

pub mod admin;
pub mod api;
pub(crate) mod attempt;
pub(crate) mod broker;
pub(crate) mod clients;
pub(crate) mod driver;
pub(crate) mod effects;
pub(crate) mod ingress;
pub(crate) mod input;
pub(crate) mod links;
mod machines;
pub mod metrics;
pub mod mosquitto;
pub(crate) mod mqtt;
pub(crate) mod relay;

/// Makes ring the process's provider of cryptography, for libraries that ask for the default one.
pub fn use_ring() {
    // Fails when it was done before, and then it is what we want already.
    drop(rustls::crypto::ring::default_provider().install_default());
}
