//! Something that is known of a machine, and how well.

use crate::units::{Fraction, Micros, Moment};
use serde::{Deserialize, Serialize};

/// How a fact came to be known, most trusted first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// We did it and took the time, or read a counter of energy or bytes before and after.
    Measured,
    /// A driver, the system or a tool says so.
    Reported,
    /// An operator says so.
    Declared,
    /// A formula over other facts says so.
    Modelled,
}

impl Origin {
    /// As people and metrics call it.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Measured => "measured",
            Self::Reported => "reported",
            Self::Declared => "declared",
            Self::Modelled => "modelled",
        }
    }
}

/// A value with where it comes from, how old it is and how far it is to be trusted. What is not known is no fact: absent, never zero.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Fact<T> {
    /// What is known.
    pub value: T,
    /// How it came to be known.
    pub origin: Origin,
    /// By which instrument, such as `wgsl matmul`, `vulkan heaps`, `rapl`.
    pub by: String,
    /// How old it was when this was sent.
    #[serde(default)]
    pub age: Micros,
    /// Share of trust, from 0 to 1: one less the relative spread of repeated measurements, or a fixed share for what is not measured.
    pub confidence: Fraction,
}

impl<T> Fact<T> {
    /// The same fact after `passed`.
    #[must_use]
    pub fn aged(self, passed: Micros) -> Self {
        Self { age: Micros(self.age.0.saturating_add(passed.0)), ..self }
    }

    /// When it was found, for one who takes this for just sent.
    #[must_use]
    pub fn found(&self, now: Moment) -> Moment {
        now.before(self.age)
    }
}
