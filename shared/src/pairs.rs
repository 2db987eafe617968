//! Maps whose keys are no texts, written as lists of pairs: JSON, in which captures are kept, knows only text keys.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::BTreeMap;

/// For `#[serde(with = "crate::pairs")]`.
///
/// # Errors
/// The serializer's.
pub fn serialize<K: Serialize, V: Serialize, S: Serializer>(map: &BTreeMap<K, V>, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.collect_seq(map)
}

/// For `#[serde(with = "crate::pairs")]`.
///
/// # Errors
/// The deserializer's.
pub fn deserialize<'de, K: DeserializeOwned + Ord, V: DeserializeOwned, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<BTreeMap<K, V>, D::Error> {
    Ok(Vec::<(K, V)>::deserialize(deserializer)?.into_iter().collect())
}
