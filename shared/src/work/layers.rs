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

    /// Which share of the model's layers.
    #[must_use]
    pub fn share(self) -> f64 {
        f64::from(self.count()) / f64::from(if self.of == 0 { 1 } else { self.of })
    }

    /// How many layers.
    #[must_use]
    pub const fn count(self) -> u16 {
        self.to.saturating_sub(self.from)
    }
}

/// Most stages of one request. Each more adds a round trip to every token and a node that can fail; four nodes of which each
/// holds a quarter are as much as the figures of any link in use can bear.
pub const STAGES_MAX: usize = 4;

/// Whether these ranges, one after the other, are a split: at least two and at most [`STAGES_MAX`], without gap or overlap,
/// from the first layer to the last.
///
/// # Errors
/// Says what is wrong.
pub fn chained(ranges: impl IntoIterator<Item = LayerRange>) -> Result<(), &'static str> {
    let (mut count, mut next, mut layers) = (0, 0, None);
    for range in ranges {
        if !range.valid() {
            return Err("a stage has no layer, or layers beyond the model");
        }
        if *layers.get_or_insert(range.of) != range.of {
            return Err("the stages speak of models with different numbers of layers");
        }
        if range.from != next {
            return Err("the layers of a stage do not begin where those of the stage before it end");
        }
        (count, next) = (count + 1, range.to);
        if count > STAGES_MAX {
            return Err("more stages than one request may have");
        }
    }
    match layers {
        _ if count < 2 => Err("a split has at least two stages"),
        Some(of) if next == of => Ok(()),
        _ => Err("the last layers are missing"),
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

    /// Bytes of one token's hidden state that has `as_f32` in [`Self::F32`].
    #[must_use]
    pub const fn carries(self, as_f32: Bytes) -> Bytes {
        match self {
            Self::F32 => as_f32,
            Self::F16 => Bytes(as_f32.0 / 2),
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(cuts: &[(u16, u16)]) -> Result<(), &'static str> {
        chained(cuts.iter().map(|(from, to)| LayerRange { from: *from, to: *to, of: 30 }))
    }

    #[test]
    fn a_split_covers_each_layer_once() {
        assert_eq!(ranges(&[(0, 15), (15, 30)]), Ok(()));
        assert_eq!(ranges(&[(0, 1), (1, 2), (2, 3), (3, 30)]), Ok(()));
        for bad in [
            &[][..],
            &[(0, 30)],
            &[(0, 15)],
            &[(0, 15), (16, 30)],
            &[(0, 15), (14, 30)],
            &[(1, 15), (15, 30)],
            &[(0, 15), (15, 29)],
            &[(0, 15), (15, 15), (15, 30)],
            &[(0, 15), (15, 31)],
            &[(0, 1), (1, 2), (2, 3), (3, 4), (4, 30)],
        ] {
            assert!(ranges(bad).is_err(), "{bad:?}");
        }
        let other = [LayerRange { from: 0, to: 15, of: 30 }, LayerRange { from: 15, to: 24, of: 24 }];
        assert!(chained(other).is_err(), "two models");
    }
}
