//! A machine with an agent: what it is, and how it is.

use super::{Hardware, Survey};
use crate::ids::NodeId;
use crate::units::{Bytes, MicroDollars, Watts};
use serde::{Deserialize, Deserializer, Serialize};
use std::collections::BTreeMap;

/// Level of a node in the hierarchy, lowest first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Tier {
    /// A board or mini-PC.
    #[default]
    Device,
    /// A server at a site.
    Site,
    /// A server of a region.
    Region,
    /// A server in the cloud.
    Cloud,
}

/// Whether a node may be given work, as its observer sees it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NodeState {
    /// Heard of, but no path has carried data yet.
    #[default]
    Seen,
    /// Reachable, and its lease runs.
    Online,
    /// Silent for longer than it should be.
    Suspect,
    /// An operator wants it empty.
    Draining,
    /// Two live instances claim to be it: neither is given work.
    Cloned,
    /// Its lease ran out, or it said goodbye.
    Offline,
}

/// What the machine is. Unknown is absent, not zero.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Processor model.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<String>,
    /// Cores that the agent may use.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cores: Option<u32>,
    /// Memory of the machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory: Option<Bytes>,
    /// Operating system and kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub os: Option<String>,
    /// What it was measured to do.
    #[serde(skip_serializing_if = "Hardware::is_unset")]
    pub hardware: Hardware,
}

/// What work on a node costs, declared by its operator. Unknown is absent.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Costs {
    /// Power that one busy replica adds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busy: Option<Watts>,
    /// Price of a million prompt tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub prompt_per_million: Option<MicroDollars>,
    /// Price of a million generated tokens.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output_per_million: Option<MicroDollars>,
}

/// [`Costs`] for reading what a newer sender wrote: unknown fields are ignored here, while in a configuration they are mistakes.
#[derive(Default, Deserialize)]
#[serde(default)]
struct LooseCosts {
    busy: Option<Watts>,
    prompt_per_million: Option<MicroDollars>,
    output_per_million: Option<MicroDollars>,
}

impl Costs {
    /// For `#[serde(deserialize_with = …)]` in messages.
    ///
    /// # Errors
    /// The deserializer's.
    pub(crate) fn loosely<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let LooseCosts { busy, prompt_per_million, output_per_million } = LooseCosts::deserialize(deserializer)?;
        Ok(Self { busy, prompt_per_million, output_per_million })
    }
}

/// What a node is: published retained, when it changes.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Inventory {
    /// Whose.
    pub node: NodeId,
    /// Its level.
    pub tier: Tier,
    /// Free labels, from its join token and configuration.
    #[serde(default)]
    pub labels: BTreeMap<String, String>,
    /// What the machine is.
    #[serde(default)]
    pub machine: Machine,
    /// What work on it costs.
    #[serde(default, deserialize_with = "Costs::loosely")]
    pub costs: Costs,
    /// Addresses (`host:port`) where other agents reach its QUIC endpoint.
    #[serde(default)]
    pub addresses: Vec<String>,
    /// Version of the agent that runs.
    #[serde(default)]
    pub version: String,
    /// SHA-256 in hex of the program file that runs, as it was when it started; empty while it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub binary_sha256: String,
    /// Its accelerators.
    #[serde(default, skip_serializing_if = "Survey::is_unset")]
    pub survey: Survey,
}
