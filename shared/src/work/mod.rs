//! What is asked: services with their variants, requests with their needs.

mod header;
mod layers;
mod loose;
mod needs;
mod request;
mod residency;
mod service;

pub use header::ExecHeader;
pub use layers::{HeldLayers, LayerRange, Precision};
pub use needs::{Needs, Priority, Slo};
pub use request::{Features, LlmRequest, PromptKind};
pub use residency::{Residency, ResidencyBound};
pub use service::{BadCatalogue, Catalogue, EngineKind, Named, Service, Variant};
