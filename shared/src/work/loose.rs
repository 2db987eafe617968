//! The shapes of a catalogue for reading what a newer sender wrote: unknown fields are ignored here, while in a configuration or
//! an operator's request they are mistakes.

use super::{BadCatalogue, Catalogue, Service, Variant};
use crate::ids::{ServiceId, VariantId};
use crate::units::{Bytes, Quality, Tokens};
use serde::Deserialize;
use std::collections::BTreeMap;

/// A catalogue as it travels and is kept. The keys repeat the services' own ids.
#[derive(Deserialize)]
#[serde(transparent)]
pub(super) struct LooseCatalogue(BTreeMap<ServiceId, LooseService>);

#[derive(Deserialize)]
struct LooseService {
    id: ServiceId,
    #[serde(default)]
    aliases: Vec<ServiceId>,
    variants: Vec<LooseVariant>,
}

#[derive(Deserialize)]
struct LooseVariant {
    id: VariantId,
    #[serde(default)]
    weights_sha256: Option<String>,
    #[serde(default)]
    quantisation: String,
    context: Tokens,
    #[serde(default)]
    memory: Bytes,
    quality: Quality,
    quality_source: String,
}

impl TryFrom<LooseCatalogue> for Catalogue {
    type Error = BadCatalogue;
    fn try_from(loose: LooseCatalogue) -> Result<Self, BadCatalogue> {
        Self::new(loose.0.into_values().map(Service::from))
    }
}

impl From<LooseService> for Service {
    fn from(LooseService { id, aliases, variants }: LooseService) -> Self {
        Self { id, aliases, variants: variants.into_iter().map(Variant::from).collect() }
    }
}

impl From<LooseVariant> for Variant {
    fn from(loose: LooseVariant) -> Self {
        let LooseVariant { id, weights_sha256, quantisation, context, memory, quality, quality_source } = loose;
        Self { id, weights_sha256, quantisation, context, memory, quality, quality_source }
    }
}
