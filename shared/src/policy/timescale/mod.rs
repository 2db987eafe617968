//! Timescale: whether a layer's plan for a scope is made anew now. Asked once a tick for each (layer, scope) by its owner.

pub mod fixed;

pub use fixed::Fixed;

use super::{Answers, Holder, Kind, Parts, Row};
use crate::ids::ScopeId;
use crate::plan::Layer;
use crate::units::Moment;

/// Every timescale policy there is.
pub static TABLE: &[Row<Pacing>] = &[Row::of::<Fixed>()];

/// Everything that the answer may depend on besides configuration and state.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The time.
    pub now: Moment,
    /// Of which layer.
    pub layer: Layer,
    /// For which part of the fleet.
    pub scope: &'a ScopeId,
    /// When the plan was last made; absent if never.
    pub last_refresh: Option<Moment>,
    /// Whether the slower layer's plan changed since: then this one is based on something that is no longer in force.
    pub upper_changed: bool,
    /// Whether nodes or replicas came, went or changed state since. Loads alone do not count.
    pub fleet_changed: bool,
}

/// What to do with the plan of a layer for a scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Keep it.
    Hold,
    /// Make it anew, from everything that is known.
    Refresh,
}

/// A timescale policy: functions over its configuration and state.
pub trait TimescalePolicy: Parts {
    /// Whether to make the plan anew. Must not read a clock.
    fn decide(config: &Self::Config, state: &mut Self::State, scene: &Scene<'_>) -> Pace;
}

/// The timescale layer.
#[derive(Debug)]
pub struct Pacing;

impl Kind for Pacing {
    const LAYER: &'static str = "timescale";
    type Call<'a> = &'a Scene<'a>;
    type Answer = Pace;
    fn table() -> &'static [Row<Self>] {
        TABLE
    }
}

impl<P: TimescalePolicy> Answers<Pacing> for P {
    fn answer(config: &P::Config, state: &mut P::State, scene: &Scene<'_>) -> Pace {
        P::decide(config, state, scene)
    }
}

/// A running timescale policy with its configuration and state.
pub type Pacer = Holder<Pacing>;

impl Holder<Pacing> {
    /// Whether to make the plan anew.
    pub fn decide(&mut self, scene: &Scene<'_>) -> Pace {
        self.ask(scene)
    }
}
