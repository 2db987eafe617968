//! What is asked: services with their variants, requests with their needs.

mod header;
mod key;
mod layers;
mod loose;
mod needs;
mod request;
mod residency;
mod service;

pub use header::ExecHeader;
pub use key::{BadHash, ClientKey, KeyHash, KeyScope};
pub use layers::{HeldLayers, LayerRange, Precision, STAGES_MAX, chained};
pub use needs::{Needs, Priority, Slo};
pub use request::{Capability, Features, Likely, LlmRequest, PromptKind};
pub use residency::{Residency, ResidencyBound};
pub use service::{BadCatalogue, Catalogue, EngineKind, Named, Service, Variant};
