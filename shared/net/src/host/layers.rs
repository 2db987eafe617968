//! The layers of a configuration as trees of values, and which keys there are.

use config::{Map, Value, ValueKind};
use serde_json::Value as Json;

/// A key as its segments: `quic.listen` is `["quic", "listen"]`.
pub(super) type Path = Vec<String>;

/// A tree of values as a source of the crate `config`.
#[derive(Clone, Debug)]
pub(super) struct Tree(pub(super) Map<String, Value>);

impl config::Source for Tree {
    fn clone_into_box(&self) -> Box<dyn config::Source + Send + Sync> {
        Box::new(self.clone())
    }

    fn collect(&self) -> Result<Map<String, Value>, config::ConfigError> {
        Ok(self.0.clone())
    }
}

impl Tree {
    /// The tree of a serialised value; what is no object is an empty tree.
    pub(super) fn of_json(json: &Json) -> Self {
        match from_json(json).kind {
            ValueKind::Table(table) => Self(table),
            _ => Self(Map::new()),
        }
    }

    /// A tree with one leaf.
    pub(super) fn of_leaf(path: &[String], value: Value) -> Self {
        let mut value = value;
        for segment in path.iter().skip(1).rev() {
            value = Value::new(None, ValueKind::Table(Map::from_iter([(segment.clone(), value)])));
        }
        Self(path.first().map(|first| Map::from_iter([(first.clone(), value)])).unwrap_or_default())
    }

    /// Every leaf with its path; lists and empty tables are leaves.
    pub(super) fn leaves(&self) -> Vec<(Path, Value)> {
        let mut found = Vec::new();
        for (key, value) in &self.0 {
            collect(vec![key.clone()], value, &mut found);
        }
        found.sort_by(|a, b| a.0.cmp(&b.0));
        found
    }
}

fn collect(path: Path, value: &Value, found: &mut Vec<(Path, Value)>) {
    match &value.kind {
        ValueKind::Table(table) if !table.is_empty() => {
            for (key, value) in table {
                let mut longer = path.clone();
                longer.push(key.clone());
                collect(longer, value, found);
            }
        }
        _ => found.push((path, value.clone())),
    }
}

fn from_json(json: &Json) -> Value {
    let kind = match json {
        Json::Null => ValueKind::Nil,
        Json::Bool(flag) => ValueKind::Boolean(*flag),
        Json::Number(number) => match (number.as_i64(), number.as_u64()) {
            (Some(signed), _) => ValueKind::I64(signed),
            (None, Some(unsigned)) => ValueKind::U64(unsigned),
            (None, None) => ValueKind::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        Json::String(text) => ValueKind::String(text.clone()),
        Json::Array(items) => ValueKind::Array(items.iter().map(from_json).collect()),
        Json::Object(members) => ValueKind::Table(members.iter().map(|(key, value)| (key.clone(), from_json(value))).collect()),
    };
    Value::new(None, kind)
}

/// Whether `path` is a key of a configuration whose defaults are `defaults`. Below an empty table, a list or an absent value
/// everything is possible: what it holds is checked when it is read.
pub(super) fn is_known(defaults: &Json, path: &[String]) -> bool {
    match (defaults, path) {
        (_, []) => true,
        (Json::Object(members), [first, rest @ ..]) if !members.is_empty() => {
            members.get(first).is_some_and(|member| is_known(member, rest))
        }
        (Json::Object(_) | Json::Null | Json::Array(_), _) => true,
        (_, _) => false,
    }
}

/// The default at `path`.
pub(super) fn at<'a>(json: &'a Json, path: &[String]) -> Option<&'a Json> {
    path.iter().try_fold(json, |inside, segment| inside.get(segment))
}

/// All leaves of a serialised configuration: key and value.
pub(super) fn flatten(json: &Json) -> Vec<(Path, Json)> {
    let mut found = Vec::new();
    flatten_into(Vec::new(), json, &mut found);
    found
}

fn flatten_into(path: Path, json: &Json, found: &mut Vec<(Path, Json)>) {
    match json {
        Json::Object(members) if !members.is_empty() => {
            for (key, value) in members {
                let mut longer = path.clone();
                longer.push(key.clone());
                flatten_into(longer, value, found);
            }
        }
        _ => found.push((path, json.clone())),
    }
}
