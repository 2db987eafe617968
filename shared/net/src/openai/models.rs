//! `/v1/models`: services first, then their aliases, then variants, since `model` may name each of them.

use serde_json::{Value, json};
use shared::work::{Catalogue, Service, Variant};
use std::collections::BTreeSet;

/// The list object.
pub(super) fn list(catalogue: &Catalogue, created: u64) -> Value {
    let mut seen = BTreeSet::new();
    let services = catalogue.iter().map(|service| service_object(service.id.as_str(), service, created));
    let aliases = catalogue
        .iter()
        .flat_map(|service| service.aliases.iter().map(move |alias| service_object(alias.as_str(), service, created)));
    let variants = catalogue.iter().flat_map(|service| service.variants.iter().map(move |variant| (service, variant)));
    let data: Vec<Value> = services
        .chain(aliases)
        .chain(variants.map(|(service, variant)| variant_object(service, variant, created)))
        .filter(|object| seen.insert(object["id"].to_string()))
        .collect();
    json!({"object": "list", "data": data})
}

/// The object of one name, if there is such a model.
pub(super) fn one(catalogue: &Catalogue, name: &str, created: u64) -> Option<Value> {
    use shared::work::Named;
    catalogue.resolve(name).map(|named| match named {
        Named::Service(service) => service_object(name, service, created),
        Named::Variant(service, variant) => variant_object(service, variant, created),
    })
}

fn service_object(name: &str, service: &Service, created: u64) -> Value {
    let variants: Vec<Value> = service.variants.iter().map(variant_facts).collect();
    object(name, created, &json!({"service": service.id, "aliases": service.aliases, "variants": variants}))
}

fn variant_object(service: &Service, variant: &Variant, created: u64) -> Value {
    object(variant.id.as_str(), created, &json!({"service": service.id, "variants": [variant_facts(variant)]}))
}

fn variant_facts(variant: &Variant) -> Value {
    json!({
        "id": variant.id,
        "quantisation": variant.quantisation,
        "context_tokens": variant.context.0,
        "quality": variant.rated().map(|(quality, _)| quality.get()),
        "quality_source": variant.rated().map(|(_, source)| source),
    })
}

/// `created` is when this front began to offer it: nobody knows more of a model's birth.
fn object(name: &str, created: u64, tidegate: &Value) -> Value {
    json!({"id": name, "object": "model", "created": created, "owned_by": "tidegate", "tidegate": tidegate})
}
