//! Layered configuration: defaults, then the file, then environment variables, then flags; the later wins.
//!
//! Each value remembers where it came from. An unknown key is an error, since a misspelt limit that is silently ignored is
//! worse than a program that does not start. Never here: what a key means.

use super::layers::{Path, Tree, at, flatten, is_known};
use super::nearest::nearest;
use config::{Config, FileFormat, Value, ValueKind};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value as Json;
use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

/// Divides prefix, sections and key in the name of an environment variable.
const DIVIDER: &str = "__";
/// Values of keys that contain one of these are not shown.
const SECRET_WORDS: [&str; 4] = ["secret", "password", "api_key", "token"];

/// Where values may come from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// A TOML file. When one is named it must be there.
    pub file: Option<PathBuf>,
    /// Start of the environment variables' names: with `TIDEGATE_HUB`, `TIDEGATE_HUB__QUIC__LISTEN` sets `quic.listen`.
    pub prefix: String,
    /// The environment, for programs that of the process ([`Sources::with_process_environment`]).
    pub environment: BTreeMap<String, String>,
    /// Flags as key and value, such as `("quic.listen", "[::]:7100")`.
    pub flags: Vec<(String, String)>,
}

impl Sources {
    /// Takes over this process's environment. Variables that are not Unicode cannot be ours, and are passed over.
    #[must_use]
    pub fn with_process_environment(mut self) -> Self {
        self.environment =
            std::env::vars_os().filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?))).collect();
        self
    }
}

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub enum Origin {
    /// Nobody set it.
    Default,
    /// This file.
    File(PathBuf),
    /// The environment variable of this name.
    Environment(String),
    /// A flag of this call.
    Flag,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File(path) => write!(f, "file {}", path.display()),
            Self::Environment(name) => write!(f, "environment {name}"),
            Self::Flag => f.write_str("flag"),
        }
    }
}

/// One line of `config show`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Shown {
    /// Which key.
    pub key: String,
    /// Its value, as in the file; secrets are hidden.
    pub value: String,
    /// Where it came from.
    pub origin: Origin,
}

/// A configuration with the origin of each value.
#[derive(Clone, Debug)]
pub struct Loaded<T> {
    /// The configuration.
    pub value: T,
    /// Every key with value and origin, in order of keys.
    pub shown: Vec<Shown>,
}

/// Why there is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read as TOML.
    #[error("reading the configuration file `{path}`: {why}")]
    File {
        /// Which file.
        path: PathBuf,
        /// What is wrong, with the line where it is.
        why: String,
    },
    /// There is no such key.
    #[error("unknown configuration key `{key}` ({origin}){}", .nearest.as_ref().map_or_else(String::new, |n| format!(": did you mean `{n}`?")))]
    UnknownKey {
        /// The key.
        key: String,
        /// Where it was set.
        origin: Origin,
        /// The closest key there is.
        nearest: Option<String>,
    },
    /// A value does not fit its key.
    #[error(transparent)]
    BadValue(Box<BadValue>),
    /// The values do not fit together, or the defaults themselves are wrong.
    #[error("the configuration does not fit together: {0}")]
    Whole(String),
}

/// A value that does not fit its key.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("bad value {value} for `{key}` ({origin}): {why}; the default is {default}")]
pub struct BadValue {
    /// The key.
    pub key: String,
    /// What was given; hidden for secrets.
    pub value: String,
    /// Where it was set.
    pub origin: Origin,
    /// What would be right.
    pub why: String,
    /// The default, as an example of what is right.
    pub default: String,
}

/// Reads a configuration. Its defaults must name every key (absent values as `null`, not skipped).
///
/// # Errors
/// [`ConfigError`] names the key, where it was set, and what would be right.
pub fn load<T: Serialize + DeserializeOwned + Default>(sources: &Sources) -> Result<Loaded<T>, ConfigError> {
    let defaults = serde_json::to_value(T::default()).map_err(|error| ConfigError::Whole(error.to_string()))?;
    let leaves = user_leaves(sources, &defaults)?;
    for leaf in &leaves {
        check_known(leaf, &defaults)?;
    }
    let base = Tree::of_json(&defaults);
    let value: T = match read(&base, leaves.iter()) {
        Ok(value) => value,
        Err(whole) => {
            return Err(blame::<T>(&base, &leaves, &defaults).unwrap_or_else(|| ConfigError::Whole(dotted(&whole.to_string()))));
        }
    };
    let shown = show(&value, &leaves)?;
    Ok(Loaded { value, shown })
}

/// One value that somebody set.
#[derive(Debug)]
struct Leaf {
    path: Path,
    value: Value,
    origin: Origin,
}

impl Leaf {
    fn key(&self) -> String {
        self.path.join(".")
    }
}

/// What file, environment and flags set, the later after the earlier.
fn user_leaves(sources: &Sources, defaults: &Json) -> Result<Vec<Leaf>, ConfigError> {
    let mut leaves = Vec::new();
    if let Some(path) = &sources.file {
        let failed = |why: String| ConfigError::File { path: path.clone(), why };
        let text = std::fs::read_to_string(path).map_err(|error| failed(error.to_string()))?;
        let file = config::File::from_str(&text, FileFormat::Toml);
        let tree = Tree(config::Source::collect(&file).map_err(|error| failed(error.to_string()))?);
        leaves.extend(tree.leaves().into_iter().map(|(path_in, value)| Leaf {
            path: path_in,
            value,
            origin: Origin::File(path.clone()),
        }));
    }
    let start = format!("{}{DIVIDER}", sources.prefix);
    for (name, text) in &sources.environment {
        if let Some(key) = name.strip_prefix(&start) {
            let path: Path = key.to_lowercase().split(DIVIDER).map(str::to_owned).collect();
            let value = from_text(text, at(defaults, &path));
            leaves.push(Leaf { path, value, origin: Origin::Environment(name.clone()) });
        }
    }
    for (key, text) in &sources.flags {
        let path: Path = key.split('.').map(str::to_owned).collect();
        let value = from_text(text, at(defaults, &path));
        leaves.push(Leaf { path, value, origin: Origin::Flag });
    }
    Ok(leaves)
}

/// The value of a text from a variable or flag. `config` turns text into numbers where a number is wanted; lists are written
/// with commas.
fn from_text(text: &str, default: Option<&Json>) -> Value {
    let kind = match default {
        Some(Json::Array(_)) => ValueKind::Array(
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(|item| Value::new(None, item)).collect(),
        ),
        _ => ValueKind::String(text.to_owned()),
    };
    Value::new(None, kind)
}

fn check_known(leaf: &Leaf, defaults: &Json) -> Result<(), ConfigError> {
    if is_known(defaults, &leaf.path) {
        return Ok(());
    }
    let key = leaf.key();
    let keys: Vec<String> = flatten(defaults).into_iter().map(|(path, _)| path.join(".")).collect();
    let nearest = nearest(&key, keys.iter().map(String::as_str)).map(str::to_owned);
    Err(ConfigError::UnknownKey { key, origin: leaf.origin.clone(), nearest })
}

fn read<'a, T: DeserializeOwned>(base: &Tree, leaves: impl Iterator<Item = &'a Leaf>) -> Result<T, config::ConfigError> {
    let mut builder = Config::builder().add_source(base.clone());
    for leaf in leaves {
        builder = builder.add_source(Tree::of_leaf(&leaf.path, leaf.value.clone()));
    }
    builder.build()?.try_deserialize()
}

/// The value that alone, on top of the defaults, already does not fit.
fn blame<T: DeserializeOwned>(base: &Tree, leaves: &[Leaf], defaults: &Json) -> Option<ConfigError> {
    leaves.iter().find_map(|leaf| {
        let error = read::<T>(base, std::iter::once(leaf)).err()?;
        let hidden = is_secret(&leaf.path);
        Some(ConfigError::BadValue(Box::new(BadValue {
            key: leaf.key(),
            value: if hidden { "(hidden)".to_owned() } else { format!("`{}`", leaf.value) },
            origin: leaf.origin.clone(),
            why: if hidden {
                "of another kind than wanted".to_owned()
            } else {
                choices::<T>(leaf, defaults).unwrap_or_else(|| dotted(&error.to_string()))
            },
            default: at(defaults, &leaf.path).map_or_else(|| "absent".to_owned(), |default| format!("`{default}`")),
        })))
    })
}

/// `config` forgets a dot: `engines[0]rates` is the key `engines[0].rates`.
fn dotted(text: &str) -> String {
    let mut parts = text.split(']');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |whole, part| {
        let dot = if whole.contains('[') && part.starts_with(|c: char| c.is_ascii_alphabetic()) { "." } else { "" };
        format!("{whole}]{dot}{part}")
    })
}

/// The choices that there are, where the value is none of them.
fn choices<T: DeserializeOwned>(leaf: &Leaf, defaults: &Json) -> Option<String> {
    let mut whole = defaults.clone();
    let place = leaf.path.iter().try_fold(&mut whole, |at, key| at.get_mut(key))?;
    *place = Json::String(leaf.value.clone().into_string().ok()?);
    let why = serde_json::from_value::<T>(whole).err()?.to_string();
    why.starts_with("unknown variant").then_some(why)
}

fn show<T: Serialize>(value: &T, leaves: &[Leaf]) -> Result<Vec<Shown>, ConfigError> {
    let json = serde_json::to_value(value).map_err(|error| ConfigError::Whole(error.to_string()))?;
    let origin_of = |path: &Path| {
        let last = leaves.iter().rev().find(|leaf| path.starts_with(&leaf.path) || leaf.path.starts_with(path));
        last.map_or(Origin::Default, |leaf| leaf.origin.clone())
    };
    let shown = |(path, value): (Path, Json)| Shown {
        key: path.join("."),
        value: if is_secret(&path) && !value.is_null() { "(hidden)".to_owned() } else { value.to_string() },
        origin: origin_of(&path),
    };
    Ok(flatten(&json).into_iter().map(shown).collect())
}

fn is_secret(path: &[String]) -> bool {
    path.iter().any(|segment| SECRET_WORDS.iter().any(|word| segment.contains(word)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde::Deserialize;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Program {
        listen: String,
        limits: Limits,
        peers: Vec<String>,
        addresses: BTreeMap<String, String>,
        file: Option<PathBuf>,
        api_keys: Vec<String>,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    #[serde(default, deny_unknown_fields)]
    struct Limits {
        connections: u16,
        share: f64,
        strict: bool,
    }

    impl Default for Limits {
        fn default() -> Self {
            Self { connections: 10, share: 0.5, strict: false }
        }
    }

    impl Default for Program {
        fn default() -> Self {
            let (limits, addresses) = (Limits::default(), BTreeMap::new());
            Self { listen: "[::]:1".to_owned(), limits, peers: Vec::new(), addresses, file: None, api_keys: Vec::new() }
        }
    }

    fn sources(file: &str, environment: &[(&str, &str)], flags: &[(&str, &str)]) -> (Sources, tempfile::NamedTempFile) {
        let kept = tempfile::NamedTempFile::new().expect("file");
        std::fs::write(kept.path(), file).expect("written");
        let owned = |pairs: &[(&str, &str)]| pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect::<Vec<_>>();
        let environment = owned(environment).into_iter().collect();
        let sources = Sources { file: Some(kept.path().to_owned()), prefix: "TG".to_owned(), environment, flags: owned(flags) };
        (sources, kept)
    }

    #[test]
    fn the_later_layer_wins_and_every_value_knows_its_origin() {
        let file = "listen = 'file'\nfile = 'x'\n[limits]\nconnections = 1\nshare = 0.25\n[addresses]\n'a/b' = 'c'\n";
        let environment =
            [("TG__LIMITS__CONNECTIONS", "2"), ("TG__LIMITS__STRICT", "true"), ("OTHER__X", "y"), ("TG__PEERS", "p, q")];
        let (sources, kept) = sources(file, &environment, &[("limits.connections", "3")]);
        let Loaded { value, shown } = load::<Program>(&sources).expect("good");
        assert_eq!(value.limits, Limits { connections: 3, share: 0.25, strict: true });
        assert_eq!((value.listen.as_str(), value.peers.len()), ("file", 2));
        assert_eq!(value.addresses.get("a/b").map(String::as_str), Some("c"));
        let origin = |key: &str| shown.iter().find(|line| line.key == key).map(|line| line.origin.clone());
        assert_eq!(origin("limits.connections"), Some(Origin::Flag));
        assert_eq!(origin("limits.strict"), Some(Origin::Environment("TG__LIMITS__STRICT".to_owned())));
        assert_eq!(origin("limits.share"), Some(Origin::File(kept.path().to_owned())));
        assert_eq!(origin("api_keys"), Some(Origin::Default));
        assert_eq!(value.file, Some(PathBuf::from("x")));
    }

    #[test]
    fn unknown_keys_are_named_with_their_nearest() {
        for (file, environment, flags) in [
            ("[limits]\nconections = 1\n", vec![], vec![]),
            ("", vec![("TG__LIMITS__CONECTIONS", "1")], vec![]),
            ("", vec![], vec![("limits.conections", "1")]),
        ] {
            let (sources, _kept) = sources(file, &environment, &flags);
            match load::<Program>(&sources) {
                Err(ConfigError::UnknownKey { key, nearest, .. }) => {
                    assert_eq!((key.as_str(), nearest.as_deref()), ("limits.conections", Some("limits.connections")));
                }
                other => panic!("{other:?}"),
            }
        }
    }

    #[test]
    fn bad_values_are_blamed_on_whoever_set_them() {
        for bad in ["many", "-1", "70000", "1.5"] {
            let (sources, _kept) = sources("[limits]\nshare = 0.1", &[("TG__LIMITS__CONNECTIONS", bad)], &[]);
            match load::<Program>(&sources) {
                Err(ConfigError::BadValue(blamed)) => {
                    assert_eq!(blamed.key, "limits.connections");
                    assert_eq!(blamed.origin, Origin::Environment("TG__LIMITS__CONNECTIONS".to_owned()));
                    assert!(blamed.to_string().contains("the default is `10`"), "{blamed}");
                }
                other => panic!("{bad}: {other:?}"),
            }
        }
    }

    #[test]
    fn keys_in_lists_have_their_dot() {
        assert_eq!(dotted("missing configuration field \"engines[0]rates\""), "missing configuration field \"engines[0].rates\"");
        assert_eq!(dotted("no list, a[1], b]"), "no list, a[1], b]");
    }

    #[test]
    fn broken_files_and_secrets() {
        let (broken, _kept) = sources("listen = ", &[], &[]);
        assert!(matches!(load::<Program>(&broken), Err(ConfigError::File { .. })));
        let (secret, _kept) = sources("", &[("TG__API_KEYS", "s3cr3t")], &[]);
        let loaded = load::<Program>(&secret).expect("good");
        assert_eq!(loaded.value.api_keys, ["s3cr3t"]);
        assert!(!format!("{:?}", loaded.shown).contains("s3cr3t"));
    }
}
