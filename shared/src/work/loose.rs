//! Shapes for reading what a newer sender wrote: unknown fields are ignored here, while in a configuration, an operator's command
//! or a client's request they are mistakes.

use super::{BadCatalogue, Catalogue, Needs, Priority, Residency, Service, Slo, Variant};
use crate::ids::{ServiceId, VariantId};
use crate::units::{Bytes, Joules, MicroDollars, Micros, Quality, Tokens};
use serde::{Deserialize, Deserializer};
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

#[derive(Default, Deserialize)]
#[serde(default)]
struct LooseNeeds {
    slo: LooseSlo,
    residency: Residency,
    session: Option<u64>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct LooseSlo {
    first_token: Option<Micros>,
    per_token: Option<Micros>,
    end_to_end: Option<Micros>,
    priority: Priority,
    energy: Option<Joules>,
    money: Option<MicroDollars>,
    min_quality: Quality,
}

impl Needs {
    /// For `#[serde(deserialize_with = …)]` in messages.
    ///
    /// # Errors
    /// The deserializer's.
    pub(crate) fn loosely<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let LooseNeeds { slo, residency, session } = LooseNeeds::deserialize(deserializer)?;
        let LooseSlo { first_token, per_token, end_to_end, priority, energy, money, min_quality } = slo;
        let slo = Slo { first_token, per_token, end_to_end, priority, energy, money, min_quality };
        Ok(Self { slo, residency, session })
    }
}
