//! Placement: which node holds which replica. One round each minute for a site or pool, by the hub.

pub mod declared;

pub use declared::Declared;

use super::{Answers, Budget, Holder, Kind, Parts, Round, Row};
use crate::fleet::FleetView;
use crate::ids::ScopeId;
use crate::plan::PlacementRow;
use crate::units::Moment;
use crate::work::Catalogue;

/// Every placement policy there is.
pub static TABLE: &[Row<Placing>] = &[Row::of::<Declared>()];

/// Everything that a round may know besides the held rows, its own configuration and state.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The time.
    pub now: Moment,
    /// The part of the fleet to decide for: rows outside it are faults.
    pub scope: &'a ScopeId,
    /// The fleet as known here.
    pub view: &'a FleetView,
    /// What there is to serve.
    pub catalogue: &'a Catalogue,
    /// Seed for chance; mix it with the name of what is drawn for.
    pub seed: u64,
}

/// A placement policy: functions over its configuration and state.
pub trait PlacementPolicy: Parts {
    /// The rows that shall be in force, sorted, without duplicates, for nodes inside the scope only. When the budget runs out,
    /// held rows stand for what was not looked at.
    fn round(
        config: &Self::Config,
        state: &mut Self::State,
        scene: &Scene<'_>,
        held: &[PlacementRow],
        budget: &mut Budget,
    ) -> Vec<PlacementRow>;
}

/// The placement layer.
#[derive(Debug)]
pub struct Placing;

impl Kind for Placing {
    const LAYER: &'static str = "placement";
    type Call<'a> = Round<'a, Scene<'a>, PlacementRow>;
    type Answer = Vec<PlacementRow>;
    fn table() -> &'static [Row<Self>] {
        TABLE
    }
}

impl<P: PlacementPolicy> Answers<Placing> for P {
    fn answer(config: &P::Config, state: &mut P::State, call: <Placing as Kind>::Call<'_>) -> Vec<PlacementRow> {
        P::round(config, state, call.scene, call.held, call.budget)
    }
}

/// A running placement policy with its configuration and state.
pub type Placer = Holder<Placing>;

impl Holder<Placing> {
    /// The rows that shall be in force.
    pub fn round(&mut self, scene: &Scene<'_>, held: &[PlacementRow], budget: &mut Budget) -> Vec<PlacementRow> {
        self.ask(Round { scene, held, budget })
    }
}
