//! What clients ask for, and what can serve it.

use super::loose::LooseCatalogue;
use crate::ids::{ServiceId, VariantId};
use crate::units::{Bytes, Quality, Tokens};
use serde::{Deserialize, Serialize, Serializer};
use std::collections::BTreeMap;

/// Which engine executes a variant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum EngineKind {
    /// In the agent's own process, from a GGUF file.
    Llm,
    /// In the agent's own process, by llama.cpp, from a GGUF file.
    #[serde(rename = "llama-cpp")]
    LlamaCpp,
    /// Any server that speaks the OpenAI API.
    Upstream,
    /// Tokens at the rates of a device profile, for fleets larger than the machine.
    Profiled,
}

/// One thing that can serve a service. Variants of one service are interchangeable above the request's minimum quality.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its name, unique in the fleet.
    pub id: VariantId,
    /// SHA-256 of the weights file in lower-case hex; absent where an upstream holds the weights.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weights_sha256: Option<String>,
    /// Form of the weights in memory, such as `q8_0`.
    #[serde(default)]
    pub quantisation: String,
    /// Longest prompt and output together.
    pub context: Tokens,
    /// Memory for weights, and for the cache of one full context.
    #[serde(default)]
    pub memory: Bytes,
    /// How good its answers are.
    pub quality: Quality,
    /// Where that figure comes from, such as `IFEval 2025, model card`.
    pub quality_source: String,
}

impl Variant {
    /// What stands as the source of a quality that nobody has rated; the figure itself then means nothing but that all are alike.
    pub const NOT_RATED: &'static str = "not rated";

    /// Its quality with its source, if it was rated.
    #[must_use]
    pub fn rated(&self) -> Option<(Quality, &str)> {
        (self.quality_source != Self::NOT_RATED).then_some((self.quality, self.quality_source.as_str()))
    }

    /// Whether weights with this hash are this variant's, as far as both sides know theirs.
    #[must_use]
    pub fn may_weigh(&self, weights_sha256: Option<&str>) -> bool {
        match (&self.weights_sha256, weights_sha256) {
            (Some(wanted), Some(has)) => wanted.eq_ignore_ascii_case(has),
            _ => true,
        }
    }
}

/// An alias with the variants behind it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Service {
    /// What clients ask for.
    pub id: ServiceId,
    /// Other names for the same.
    #[serde(default)]
    pub aliases: Vec<ServiceId>,
    /// What can serve it.
    pub variants: Vec<Variant>,
}

/// A set of services that contradicts itself.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadCatalogue {
    /// Two services claim one name.
    #[error("the name `{0}` is taken by the service `{1}`")]
    NameTaken(ServiceId, ServiceId),
    /// A service nobody can serve.
    #[error("the service `{0}` has no variant: give at least one")]
    NoVariant(ServiceId),
    /// The same variant in two services, or twice in one, with different properties.
    #[error("the variant `{0}` is described twice and differently")]
    VariantTwice(VariantId),
    /// More than a catalogue may hold.
    #[error("more than {0} services or variants")]
    TooMany(usize),
}

/// What a name in a request refers to.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Named<'a> {
    /// A service by its id or an alias.
    Service(&'a Service),
    /// One variant of a service by its own name.
    Variant(&'a Service, &'a Variant),
}

/// All services of the fleet.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(try_from = "LooseCatalogue")]
pub struct Catalogue {
    services: BTreeMap<ServiceId, Service>,
}

impl Serialize for Catalogue {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.services.serialize(serializer)
    }
}

impl Catalogue {
    /// Most services, and most variants of one. Every node holds the catalogue and every ingress searches it: more than
    /// this is a mistake of a script, and is refused.
    pub const SERVICES_MAX: usize = 1_000;

    /// A catalogue of these services.
    ///
    /// # Errors
    /// [`BadCatalogue`] names the first contradiction.
    pub fn new(services: impl IntoIterator<Item = Service>) -> Result<Self, BadCatalogue> {
        let mut catalogue = Self::default();
        for service in services {
            catalogue.insert(service)?;
        }
        Ok(catalogue)
    }

    /// Adds a service, or replaces the one of the same id.
    ///
    /// # Errors
    /// [`BadCatalogue`]; the catalogue is then unchanged.
    pub fn insert(&mut self, service: Service) -> Result<(), BadCatalogue> {
        if service.variants.is_empty() {
            return Err(BadCatalogue::NoVariant(service.id));
        }
        if service.variants.len() > Self::SERVICES_MAX
            || (self.services.len() >= Self::SERVICES_MAX && !self.services.contains_key(&service.id))
        {
            return Err(BadCatalogue::TooMany(Self::SERVICES_MAX));
        }
        let others = || self.services.values().filter(|other| other.id != service.id);
        for name in std::iter::once(&service.id).chain(&service.aliases) {
            if let Some(other) = others().find(|other| other.id == *name || other.aliases.contains(name)) {
                return Err(BadCatalogue::NameTaken(name.clone(), other.id.clone()));
            }
        }
        for (i, variant) in service.variants.iter().enumerate() {
            let twice = service.variants[..i].iter().any(|other| other.id == variant.id);
            let differs = others().flat_map(|o| &o.variants).any(|other| other.id == variant.id && other != variant);
            if twice || differs {
                return Err(BadCatalogue::VariantTwice(variant.id.clone()));
            }
        }
        self.services.insert(service.id.clone(), service);
        Ok(())
    }

    /// Removes a service.
    pub fn remove(&mut self, id: &ServiceId) -> Option<Service> {
        self.services.remove(id)
    }

    /// All services, in the order of their ids.
    pub fn iter(&self) -> impl Iterator<Item = &Service> {
        self.services.values()
    }

    /// The service of this id.
    #[must_use]
    pub fn service(&self, id: &ServiceId) -> Option<&Service> {
        self.services.get(id)
    }

    /// The variant of this id, in whichever service.
    #[must_use]
    pub fn variant(&self, id: &VariantId) -> Option<&Variant> {
        self.services.values().flat_map(|service| &service.variants).find(|variant| variant.id == *id)
    }

    /// What `model` in a request refers to: a service, an alias, or a variant.
    #[must_use]
    pub fn resolve(&self, model: &str) -> Option<Named<'_>> {
        let service = self
            .services
            .values()
            .find(|service| service.id.as_str() == model || service.aliases.iter().any(|alias| alias.as_str() == model));
        service.map(Named::Service).or_else(|| {
            self.services.values().find_map(|service| {
                let variant = service.variants.iter().find(|variant| variant.id.as_str() == model)?;
                Some(Named::Variant(service, variant))
            })
        })
    }
}
