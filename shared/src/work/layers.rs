//! Which layers of a model a replica holds, or a stage computes.

use crate::units::Bytes;
use serde::{Deserialize, Serialize};
use std::fmt;

/// Layers `from` up to, not including, `to` of a model that has `of`. Whoever computes the first layers turns tokens into hidden
/// states before them; whoever computes the last draws tokens after them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct LayerRange {
    /// First layer, counted from 0.
    pub from: u16,
    /// The layer after the last.
    pub to: u16,
    /// Layers of the whole model.
    pub of: u16,
}

impl LayerRange {
    /// All layers of a model that has `of`.
    #[must_use]
    pub const fn whole(of: u16) -> Self {
        Self { from: 0, to: of, of }
    }

    /// Whether there is at least one layer, and none beyond the model.
    #[must_use]
    pub const fn valid(self) -> bool {
        self.from < self.to && self.to <= self.of
    }

    /// Whether it is the whole model.
    #[must_use]
    pub const fn is_whole(self) -> bool {
        self.from == 0 && self.to == self.of
    }

    /// Whether tokens enter here.
    #[must_use]
    pub const fn is_first(self) -> bool {
        self.from == 0
    }

    /// Whether tokens are drawn here.
    #[must_use]
    pub const fn is_last(self) -> bool {
        self.to == self.of
    }

    /// Whether `other` lies within, of the same model.
    #[must_use]
    pub const fn holds(self, other: Self) -> bool {
        self.of == other.of && self.from <= other.from && other.to <= self.to
    }

    /// How many layers.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.to.saturating_sub(self.from)
    }
}

impl fmt::Display for LayerRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{} of {}", self.from, self.to, self.of)
    }
}

/// The layers that a replica holds, and what travels between two of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HeldLayers {
    /// Which.
    pub range: LayerRange,
    /// Bytes of one token's hidden state in f32.
    pub hidden: Bytes,
}

/// How numbers of hidden states travel.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// As they were computed: a split answer equals the whole one token for token.
    #[default]
    F32,
    /// Half the bytes, and another text sooner or later.
    F16,
}

impl Precision {
    pub(crate) fn is_default(&self) -> bool {
        *self == Self::default()
    }

    /// Bytes of one number.
    #[must_use]
    pub const fn bytes(self) -> usize {
        match self {
            Self::F32 => 4,
            Self::F16 => 2,
        }
    }
}
