//! A catalogue finds what a name means, and refuses to contradict itself.

use shared::ids::{ServiceId, VariantId};
use shared::units::{Bytes, Quality, Tokens};
use shared::work::{BadCatalogue, Catalogue, Named, Service, Variant};

fn id(name: &str) -> ServiceId {
    ServiceId::new(name).expect("good")
}

fn variant(name: &str, quality: f64) -> Variant {
    Variant {
        id: VariantId::new(name).expect("good"),
        weights_sha256: None,
        quantisation: "q8_0".to_owned(),
        context: Tokens(2048),
        memory: Bytes(1),
        quality: Quality::new(quality).expect("good"),
        quality_source: "a test".to_owned(),
    }
}

fn service(name: &str, aliases: &[&str], variants: Vec<Variant>) -> Service {
    Service { id: id(name), aliases: aliases.iter().map(|alias| id(alias)).collect(), variants }
}

fn catalogue() -> Catalogue {
    let chat = service("chat", &["gpt-4o", "assistant"], vec![variant("small", 0.3), variant("large", 0.8)]);
    Catalogue::new([chat, service("code", &[], vec![variant("coder", 0.5)])]).expect("no contradiction")
}

#[test]
fn names_mean_services_aliases_and_variants() {
    let catalogue = catalogue();
    let meaning = |name: &str| match catalogue.resolve(name) {
        Some(Named::Service(service)) => format!("service {}", service.id),
        Some(Named::Variant(service, variant)) => format!("variant {} of {}", variant.id, service.id),
        None => "nothing".to_owned(),
    };
    assert_eq!(meaning("chat"), "service chat");
    assert_eq!(meaning("gpt-4o"), "service chat");
    assert_eq!(meaning("large"), "variant large of chat");
    for nonsense in ["", "Chat", "chat ", "gpt-4", "../chat"] {
        assert_eq!(meaning(nonsense), "nothing", "{nonsense}");
    }
}

#[test]
fn contradictions_are_refused_and_change_nothing() {
    let mut catalogue = catalogue();
    let before = catalogue.clone();
    let refused = [
        (service("new", &["chat"], vec![variant("n", 0.1)]), BadCatalogue::NameTaken(id("chat"), id("chat"))),
        (service("assistant", &[], vec![variant("n", 0.1)]), BadCatalogue::NameTaken(id("assistant"), id("chat"))),
        (service("empty", &[], Vec::new()), BadCatalogue::NoVariant(id("empty"))),
        (service("new", &[], vec![variant("coder", 0.6)]), BadCatalogue::VariantTwice(variant("coder", 0.6).id)),
        (service("new", &[], vec![variant("n", 0.1), variant("n", 0.1)]), BadCatalogue::VariantTwice(variant("n", 0.1).id)),
    ];
    for (service, fault) in refused {
        assert_eq!(catalogue.insert(service), Err(fault));
    }
    assert_eq!(catalogue, before);
}

#[test]
fn one_variant_may_serve_two_services_if_it_is_the_same() {
    let mut catalogue = catalogue();
    assert_eq!(catalogue.insert(service("new", &[], vec![variant("coder", 0.5)])), Ok(()));
}

#[test]
fn a_service_is_replaced_under_its_own_names() {
    let mut catalogue = catalogue();
    let changed = service("chat", &["assistant", "helper"], vec![variant("large", 0.9)]);
    assert_eq!(catalogue.insert(changed.clone()), Ok(()));
    assert_eq!(catalogue.service(&id("chat")), Some(&changed));
    assert_eq!(catalogue.resolve("gpt-4o"), None);
    assert_eq!(catalogue.remove(&id("chat")), Some(changed));
    assert_eq!(catalogue.resolve("assistant"), None);
}

#[test]
fn more_than_it_may_hold_is_refused() {
    let many = (0..=Catalogue::SERVICES_MAX).map(|n| service(&format!("s{n}"), &[], vec![variant(&format!("v{n}"), 0.1)]));
    let too_many = BadCatalogue::TooMany(Catalogue::SERVICES_MAX);
    assert_eq!(Catalogue::new(many), Err(too_many.clone()));
    let crowd = (0..=Catalogue::SERVICES_MAX).map(|n| variant(&format!("v{n}"), 0.1)).collect();
    assert_eq!(Catalogue::new([service("s", &[], crowd)]), Err(too_many));
}

#[test]
fn a_contradiction_is_also_refused_when_it_is_read() {
    let written = serde_json::to_string(&catalogue()).expect("writable");
    assert_eq!(serde_json::from_str::<Catalogue>(&written).expect("readable"), catalogue());
    let mut json: serde_json::Value = serde_json::from_str(&written).expect("JSON");
    json["code"]["aliases"] = serde_json::json!(["chat"]);
    assert!(serde_json::from_value::<Catalogue>(json).is_err());
}

#[test]
fn typing_errors_of_an_operator_are_errors() {
    let typed = r#"{"id":"chat","variants":[],"alias":["x"]}"#;
    let error = serde_json::from_str::<Service>(typed).expect_err("no such key");
    assert!(error.to_string().contains("alias"), "{error}");
}
