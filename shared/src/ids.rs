//! Names of things. Parsed once at the edge of the program, so that the inside needs no checks.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// Longest name that is accepted, in bytes: a topic, a certificate name and a log line all carry it.
pub const NAME_LENGTH_MAX: usize = 120;

/// A text that is no name of the wanted kind.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{given}` is no {what}: {why}")]
pub struct BadName {
    /// The kind of name that was wanted.
    pub what: &'static str,
    /// What was given, shortened.
    pub given: String,
    /// What would be right.
    pub why: &'static str,
}

fn check_segments(what: &'static str, text: &str, segments_min: usize, extra: &str) -> Result<(), BadName> {
    let fail = |why| Err(BadName { what, given: text.chars().take(40).collect(), why });
    if text.is_empty() || text.len() > NAME_LENGTH_MAX {
        return fail("want 1 to 120 characters");
    }
    let mut segments = 0;
    for segment in text.split('/') {
        segments += 1;
        if segment.is_empty() || segment.starts_with('-') {
            return fail("want names divided by single slashes, none empty or starting with a dash");
        }
        if !segment.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-' || c == '_' || extra.contains(c)) {
            return fail("want lower-case letters, digits, dashes and underscores only");
        }
    }
    if segments < segments_min {
        return fail("want a path such as `site-7/node-2`: a site and a name");
    }
    Ok(())
}

macro_rules! name {
    ($(#[$doc:meta])* $name:ident, $what:literal, $segments_min:literal, $extra:literal) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Parses a name.
            ///
            /// # Errors
            /// [`BadName`] says what would be right.
            pub fn new(text: &str) -> Result<Self, BadName> {
                check_segments($what, text, $segments_min, $extra)?;
                Ok(Self(text.into()))
            }

            /// The text of the name.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                Self::new(text)
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                Self::new(&text)
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.as_ref().to_owned()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{}", self.0)
            }
        }
    };
}

name!(
    /// A machine with an agent, or a hub: a path from its region or site down to itself, such as `eu/site-7/node-2`.
    NodeId, "node id", 2, ""
);
name!(
    /// A part of the fleet: a region, a site, or one node. `eu/site-7` contains `eu/site-7/node-2`.
    ScopeId, "scope", 1, ""
);
name!(
    /// What clients ask for, as `model` in the OpenAI API, such as `assistant`.
    ServiceId, "service name", 1, ".:"
);
name!(
    /// One thing that can serve a service: model file, quantisation, context and engine, such as `smollm2-135m-q8`.
    VariantId, "variant name", 1, ".:"
);

name!(
    /// An API key, as operators call it, such as `kiosk-7` or `team/app`.
    KeyName, "key name", 1, ".:"
);

impl NodeId {
    /// The site (or region) where the node stands: its path without the last name.
    #[must_use]
    pub fn site(&self) -> ScopeId {
        ScopeId(self.0.rsplit_once('/').map_or(&*self.0, |(site, _)| site).into())
    }

    /// The scope that holds this node alone.
    #[must_use]
    pub fn scope(&self) -> ScopeId {
        ScopeId(Arc::clone(&self.0))
    }

    /// The node's name as one MQTT topic level and certificate common name: slashes become dots, which no name contains.
    #[must_use]
    pub fn topic_level(&self) -> String {
        self.0.replace('/', ".")
    }

    /// The inverse of [`Self::topic_level`].
    ///
    /// # Errors
    /// [`BadName`] when the text is not the topic level of any node.
    pub fn from_topic_level(level: &str) -> Result<Self, BadName> {
        if level.contains('/') {
            return Err(BadName { what: "topic level", given: level.chars().take(40).collect(), why: "want no slash" });
        }
        Self::new(&level.replace('.', "/"))
    }
}

impl ScopeId {
    /// Whether `node` stands inside this scope.
    #[must_use]
    pub fn contains(&self, node: &NodeId) -> bool {
        node.as_str().strip_prefix(self.as_str()).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }
}

macro_rules! hex_id {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(pub u128);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:032x}", self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{self}")
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }

        impl FromStr for $name {
            type Err = BadName;
            fn from_str(text: &str) -> Result<Self, BadName> {
                let bad = || BadName { what: "request id", given: text.chars().take(40).collect(), why: "want 32 hexadecimal digits" };
                if text.len() != 32 {
                    return Err(bad());
                }
                u128::from_str_radix(text, 16).map(Self).map_err(|_| bad())
            }
        }

        impl TryFrom<String> for $name {
            type Error = BadName;
            fn try_from(text: String) -> Result<Self, BadName> {
                text.parse()
            }
        }
    };
}

hex_id!(
    /// One request of a client, everywhere the same; also its trace id (W3C trace context, 16 bytes).
    RequestId
);

/// One try to execute a request somewhere. A request has at most one live attempt at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct AttemptId {
    /// The request that is tried.
    pub request: RequestId,
    /// 0 for the first try.
    pub number: u16,
    /// Which part of a try that several nodes serve one after the other; 0 for the first part and for a whole.
    #[serde(default, skip_serializing_if = "is_first")]
    pub stage: u8,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "as serde calls it")]
const fn is_first(stage: &u8) -> bool {
    *stage == 0
}

impl AttemptId {
    /// A try as its ingress knows it.
    #[must_use]
    pub const fn new(request: RequestId, number: u16) -> Self {
        Self { request, number, stage: 0 }
    }

    /// The same try at its part `stage`.
    #[must_use]
    pub const fn at_stage(self, stage: u8) -> Self {
        Self { stage, ..self }
    }
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.request, self.number)?;
        if self.stage > 0 { write!(f, "/{}", self.stage) } else { Ok(()) }
    }
}

/// Issued by the hub at each connect of a node, rising; messages of an older session are ignored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SessionEpoch(pub u64);

/// A random number that a process draws when it starts; tells a restart from a second live copy of one identity.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Instance(pub u64);

/// Version of one layer's plan for one scope. Ordered by incarnation, then sequence.
///
/// The incarnation rises each time a hub starts, above every incarnation that any node reports having seen, so that plans go
/// on rising even after yesterday's database was restored.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct PlanEpoch {
    /// Which life of the hub made the plan.
    pub incarnation: u64,
    /// Counts the plans of that life.
    pub sequence: u64,
}

impl fmt::Display for PlanEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.incarnation, self.sequence)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_nest() {
        let node = NodeId::new("eu/site-7/node-2").expect("good");
        assert_eq!(node.site().as_str(), "eu/site-7");
        assert!(node.site().contains(&node));
        assert!(node.scope().contains(&node));
        assert!(!ScopeId::new("eu/site-7/node").expect("good").contains(&node), "a prefix of a name is no parent");
        assert_eq!(NodeId::from_topic_level(&node.topic_level()), Ok(node));
    }

    #[test]
    fn bad_names_are_refused() {
        for bad in ["", "node", "a//b", "/a", "a/", "a/B", "a/+", "a/#", "a/$x", "a/b.c", "a/é", "-a/b"] {
            assert!(NodeId::new(bad).is_err(), "{bad}");
        }
        assert!("zz".parse::<RequestId>().is_err());
        let id = RequestId(0xabc);
        assert_eq!(id.to_string().parse(), Ok(id));
    }
}
