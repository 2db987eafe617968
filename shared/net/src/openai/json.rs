//! JSON of strangers, read member by member, so that each fault names its parameter, unknown members cost nothing, and no
//! message ever repeats what was sent.

use super::error::ApiError;
use serde::Deserialize;
use serde::de::{IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::error::Category;
use serde_json::value::RawValue;
use std::collections::BTreeMap;
use std::fmt;

/// Most members of one object. The API has about forty; more is a flood of keys.
const MEMBERS_MAX: usize = 256;
/// Most entries of one array: messages of a conversation, parts of a message. Each costs an allocation before it is checked.
pub(super) const ENTRIES_MAX: usize = 4_096;

/// The members of an object, still as text. Members that are `null` count as absent, as in OpenAI's API.
#[derive(Debug)]
pub(super) struct Members<'a> {
    naming: Naming,
    members: BTreeMap<String, &'a RawValue>,
}

/// Start of every header that says what a body could say under `tidegate`.
pub(super) const HEADER_PREFIX: &str = "x-tidegate-";

/// How members are called in messages.
#[derive(Debug)]
enum Naming {
    /// By their path in the body, which starts so.
    Path(String),
    /// By the header that they came from.
    Header,
}

impl<'a> Members<'a> {
    /// The body of a request.
    pub(super) fn of_body(bytes: &'a [u8]) -> Result<Self, ApiError> {
        let text = std::str::from_utf8(bytes)
            .map_err(|error| invalid_json(format!("the body is not UTF-8 (after {} bytes)", error.valid_up_to())))?;
        let Raw(members) = serde_json::from_str(text).map_err(|error| {
            let (line, column) = (error.line(), error.column());
            invalid_json(match error.classify() {
                Category::Eof => format!("the body is JSON that ends too early (line {line}, column {column})"),
                Category::Data => "the body is no JSON object: want {\"model\": …}".to_owned(),
                Category::Syntax | Category::Io => format!("the body is not valid JSON (line {line}, column {column})"),
            })
        })?;
        Self::within(Naming::Path(String::new()), members)
    }

    /// The object at `path`.
    pub(super) fn of_raw(path: &str, raw: &'a RawValue) -> Result<Self, ApiError> {
        let Raw(members) =
            serde_json::from_str(raw.get()).map_err(|_| ApiError::value(path, format!("`{path}`: want an object")))?;
        Self::within(Naming::Path(format!("{path}.")), members)
    }

    /// An object that was made of headers.
    pub(super) fn of_headers(raw: &'a RawValue) -> Result<Self, ApiError> {
        let members = Self::of_raw("", raw)?;
        Ok(Self { naming: Naming::Header, ..members })
    }

    fn within(naming: Naming, members: Option<BTreeMap<String, &'a RawValue>>) -> Result<Self, ApiError> {
        let members = members.ok_or_else(|| invalid_json(format!("an object with more than {MEMBERS_MAX} members")))?;
        Ok(Self { naming, members })
    }

    /// The full name of a member, for messages.
    pub(super) fn path(&self, name: &str) -> String {
        match &self.naming {
            Naming::Path(start) => format!("{start}{name}"),
            Naming::Header => format!("{HEADER_PREFIX}{}", name.replace('_', "-")),
        }
    }

    /// The names of all members.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.members.keys().map(String::as_str)
    }

    /// A member as it was written.
    pub(super) fn raw(&self, name: &str) -> Option<&'a RawValue> {
        self.members.get(name).copied().filter(|raw| raw.get() != "null")
    }

    fn read<T: Deserialize<'a>>(&self, name: &str, want: &str) -> Result<Option<T>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        serde_json::from_str(raw.get()).map(Some).map_err(|_| self.wrong(name, want))
    }

    /// The error of a member that is not what it should be.
    pub(super) fn wrong(&self, name: &str, want: &str) -> ApiError {
        let path = self.path(name);
        let message = format!("`{path}`: want {want}");
        ApiError::value(path, message)
    }

    /// A member that is true or false.
    pub(super) fn boolean(&self, name: &str) -> Result<Option<bool>, ApiError> {
        self.read(name, "true or false")
    }

    /// A member that is a text.
    pub(super) fn string(&self, name: &str) -> Result<Option<String>, ApiError> {
        self.read(name, "a string")
    }

    /// A member that is a whole number within bounds. `3.0` is whole.
    pub(super) fn integer(&self, name: &str, min: i64, max: i64) -> Result<Option<i64>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let exact = serde_json::from_str::<i64>(raw.get()).ok().or_else(|| whole(serde_json::from_str(raw.get()).ok()?));
        exact
            .filter(|n| (min..=max).contains(n))
            .map(Some)
            .ok_or_else(|| self.wrong(name, &format!("a whole number from {min} to {max}")))
    }

    /// A member that is a finite number within bounds.
    pub(super) fn number(&self, name: &str, min: f64, max: f64) -> Result<Option<f64>, ApiError> {
        let Some(raw) = self.raw(name) else { return Ok(None) };
        let value = serde_json::from_str::<f64>(raw.get()).ok().filter(|value| value.is_finite() && (min..=max).contains(value));
        value.map(Some).ok_or_else(|| self.wrong(name, &format!("a number from {min} to {max}")))
    }

    /// A member that is an object.
    pub(super) fn object(&self, name: &str) -> Result<Option<Self>, ApiError> {
        self.raw(name).map(|raw| Self::of_raw(&self.path(name), raw)).transpose()
    }

    /// A member that is an array.
    pub(super) fn array(&self, name: &str) -> Result<Option<Vec<&'a RawValue>>, ApiError> {
        let Some(Entries(entries)) = self.read(name, "an array")? else { return Ok(None) };
        entries.map(Some).ok_or_else(|| self.wrong(name, &format!("at most {ENTRIES_MAX} entries")))
    }
}

/// The float as an integer, if it is one. The bound keeps the cast exact.
fn whole(value: f64) -> Option<i64> {
    #[expect(clippy::cast_possible_truncation, reason = "checked to be whole and exactly representable")]
    (value.fract() == 0.0 && value.abs() < 9e15).then_some(value as i64)
}

fn invalid_json(message: String) -> ApiError {
    use super::error::INVALID;
    ApiError::new(axum::http::StatusCode::BAD_REQUEST, INVALID, "invalid_json", message)
}

/// What kind of value a raw JSON text is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Text,
    Array,
    Object,
    Other,
}

/// The kind of value that `raw` is; its first byte tells.
pub(super) fn shape(raw: &RawValue) -> Shape {
    match raw.get().as_bytes().first() {
        Some(b'"') => Shape::Text,
        Some(b'[') => Shape::Array,
        Some(b'{') => Shape::Object,
        _ => Shape::Other,
    }
}

/// Members; absent when there are too many of them.
struct Raw<'a>(Option<BTreeMap<String, &'a RawValue>>);

impl<'de: 'a, 'a> Deserialize<'de> for Raw<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Raw<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }
            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Raw<'de>, A::Error> {
                let mut members = BTreeMap::new();
                while let Some(name) = map.next_key::<String>()? {
                    members.insert(name, map.next_value()?);
                    if members.len() > MEMBERS_MAX {
                        while map.next_entry::<IgnoredAny, IgnoredAny>()?.is_some() {}
                        return Ok(Raw(None));
                    }
                }
                Ok(Raw(Some(members)))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// Entries; absent when there are too many of them.
struct Entries<'a>(Option<Vec<&'a RawValue>>);

impl<'de: 'a, 'a> Deserialize<'de> for Entries<'a> {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Entries<'de>;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an array")
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Entries<'de>, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = items.next_element()? {
                    entries.push(entry);
                    if entries.len() > ENTRIES_MAX {
                        while items.next_element::<IgnoredAny>()?.is_some() {}
                        return Ok(Entries(None));
                    }
                }
                Ok(Entries(Some(entries)))
            }
        }
        deserializer.deserialize_seq(Read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &[u8]) -> String {
        Members::of_body(body).expect_err("refused").message
    }

    #[test]
    fn bad_bodies_say_where_and_quote_nothing() {
        assert!(message(b"{\n  \"canary\": tru }").contains("line 2"));
        assert!(message(b"{\"canary\": \"x").contains("ends too early"));
        assert!(message(b"\"canary\"").contains("no JSON object"));
        assert!(message(b"[1]").contains("no JSON object"));
        assert!(message(b"\xff").contains("not UTF-8"));
        assert!(message(b"{\"a\": NaN}").contains("not valid JSON"));
        assert!(message(b"").contains("ends too early"));
        for body in [b"{\"canary\": canary}".as_slice(), b"{\"x\": \"canary", b"\"canary\"", b"{} canary"] {
            assert!(!message(body).contains("canary"));
        }
    }

    #[test]
    fn floods_are_refused() {
        let keys: Vec<String> = (0..1_000).map(|i| format!("\"k{i}\": 0")).collect();
        assert!(message(format!("{{{}}}", keys.join(",")).as_bytes()).contains("more than 256 members"));
        let body = format!("{{\"messages\": [{}0]}}", "0,".repeat(10_000));
        let error = Members::of_body(body.as_bytes()).expect("an object").array("messages").expect_err("too many");
        assert_eq!(error.param.as_deref(), Some("messages"));
        let deep = format!("{{\"x\": {}}}", "[".repeat(100_000));
        assert!(message(deep.as_bytes()).contains("line 1"));
    }

    #[test]
    fn numbers_are_checked() {
        let body = br#"{"a": 3.0, "b": 3.5, "c": -1, "d": 1e300, "e": "3", "f": null, "g": 9223372036854775807}"#;
        let members = Members::of_body(body).expect("an object");
        assert_eq!(members.integer("a", 0, 9).ok(), Some(Some(3)));
        assert_eq!(members.integer("f", 0, 9).ok(), Some(None));
        assert_eq!(members.integer("g", 0, i64::MAX).ok(), Some(Some(i64::MAX)));
        for name in ["b", "c", "d", "e"] {
            assert_eq!(members.integer(name, 0, 9).expect_err("refused").param.as_deref(), Some(name));
        }
        for name in ["c", "d", "e"] {
            assert!(members.number(name, 0.0, 2.0).is_err(), "{name}");
        }
    }
}
