//! Messages as a newer sender might write them: with a field more.

use ciborium::Value as Cbor;
use serde_json::Value as Json;

/// Members whose keys are data: what is added there is no unknown field.
const KEYED_BY_DATA: [&str; 6] = ["labels", "loads", "peers", "catalogue", "config", "counts"];

/// Enumerations are maps of one entry whose key is the variant's name: what is added there makes two variants.
fn is_enumeration(keys: &[&str]) -> bool {
    const VARIANTS: [&str; 15] = [
        "wait",
        "assign",
        "answered",
        "broken",
        "failed",
        "unsupported",
        "placement",
        "offload",
        "allocation",
        "dispatch",
        "chat",
        "plain",
        "inputs",
        "within",
        "exactly",
    ];
    matches!(keys, [only] if VARIANTS.contains(only))
}

/// Frames whose payload is an enumeration itself.
const ENUMERATED: [&str; 3] = ["goodbye", "refused", "failed"];

/// Whether the frame's payload is a structure: the frame itself is an enumeration.
pub(crate) fn has_structure(item: &Cbor) -> bool {
    item.as_map().is_some_and(|entries| entries.iter().any(|(key, payload)| is_structure(key, payload)))
}

fn is_structure(key: &Cbor, payload: &Cbor) -> bool {
    payload.is_map() && !key.as_text().is_some_and(|name| ENUMERATED.contains(&name))
}

pub(crate) fn grow_frame(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let item = cbor(&bytes[4..]);
    let Cbor::Map(entries) = &item else { return Vec::new() };
    let mut grown = Vec::new();
    for (place, (key, payload)) in entries.iter().enumerate().filter(|(_, (key, payload))| is_structure(key, payload)) {
        for (path, payload) in grow_cbor(payload, key.as_text().unwrap_or_default()) {
            let mut entries = entries.clone();
            entries[place].1 = payload;
            let item = written(&Cbor::Map(entries));
            let length = u32::try_from(item.len()).expect("small").to_be_bytes();
            grown.push((path, length.into_iter().chain(item).collect()));
        }
    }
    grown
}

pub(crate) fn grow_body(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    grow_cbor(&cbor(bytes), "body").into_iter().map(|(path, value)| (path, written(&value))).collect()
}

fn grow_cbor(value: &Cbor, path: &str) -> Vec<(String, Cbor)> {
    let mut grown = Vec::new();
    match value {
        Cbor::Map(entries) => {
            let keys: Vec<_> = entries.iter().filter_map(|(key, _)| key.as_text()).collect();
            if !is_enumeration(&keys) && !keyed_by_data(path) {
                let extra = (Cbor::Text("of_a_newer_version".to_owned()), Cbor::Array(vec![Cbor::Null]));
                grown.push((path.to_owned(), Cbor::Map(entries.iter().cloned().chain([extra]).collect())));
            }
            for (place, (key, inner)) in entries.iter().enumerate() {
                for (path, inner) in grow_cbor(inner, &format!("{path}.{}", key.as_text().unwrap_or_default())) {
                    let mut entries = entries.clone();
                    entries[place].1 = inner;
                    grown.push((path, Cbor::Map(entries)));
                }
            }
        }
        Cbor::Array(items) => {
            for (place, inner) in items.iter().enumerate() {
                for (path, inner) in grow_cbor(inner, &format!("{path}.{place}")) {
                    let mut items = items.clone();
                    items[place] = inner;
                    grown.push((path, Cbor::Array(items)));
                }
            }
        }
        _ => {}
    }
    grown
}

pub(crate) fn grow_json(bytes: &[u8]) -> Vec<(String, Vec<u8>)> {
    let value: Json = serde_json::from_slice(bytes).expect("golden");
    let mut places = Vec::new();
    structures(&value, String::new(), &mut places);
    let grow = |place: String| {
        let mut value = value.clone();
        let object = value.pointer_mut(&place).and_then(Json::as_object_mut).expect("found a moment ago");
        object.insert("of_a_newer_version".to_owned(), Json::Array(vec![Json::Null]));
        (place, serde_json::to_vec(&value).expect("writable"))
    };
    places.into_iter().map(grow).collect()
}

fn structures(value: &Json, place: String, places: &mut Vec<String>) {
    match value {
        Json::Object(members) => {
            let keys: Vec<_> = members.keys().map(String::as_str).collect();
            if !is_enumeration(&keys) && !keyed_by_data(&place.replace('/', ".")) {
                places.push(place.clone());
            }
            for (key, inner) in members {
                structures(inner, format!("{place}/{}", key.replace('/', "~1")), places);
            }
        }
        Json::Array(items) => {
            for (number, inner) in items.iter().enumerate() {
                structures(inner, format!("{place}/{number}"), places);
            }
        }
        _ => {}
    }
}

fn keyed_by_data(path: &str) -> bool {
    KEYED_BY_DATA.contains(&path.rsplit('.').next().unwrap_or_default())
}

pub(crate) fn cbor(item: &[u8]) -> Cbor {
    ciborium::from_reader(item).expect("golden")
}

fn written(value: &Cbor) -> Vec<u8> {
    let mut bytes = Vec::new();
    ciborium::into_writer(value, &mut bytes).expect("writable");
    bytes
}
