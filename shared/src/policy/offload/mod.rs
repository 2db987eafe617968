//! Offload: where an edge may send the requests of each service, besides executing them itself. One round each heartbeat for
//! an edge, by the hub, or by the edge itself while cut off.

pub mod all_with_replica;
mod chains;
#[cfg(test)]
mod chains_tests;
mod path;

pub use all_with_replica::AllWithReplica;

use super::{Answers, Budget, Holder, Kind, Parts, Round, Row};
use crate::fleet::FleetView;
use crate::ids::NodeId;
use crate::plan::{OffloadRow, PlacementRow};
use crate::units::{Micros, Moment};
use crate::work::Catalogue;

/// Every offload policy there is.
pub static TABLE: &[Row<Offloading>] = &[Row::of::<AllWithReplica>()];

/// Everything that a round may know besides the held rows, its own configuration and state.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The time.
    pub now: Moment,
    /// The edge to decide for: rows of other edges are faults.
    pub edge: &'a NodeId,
    /// Who decides: the hub, whose paths in the view are the uplinks of all nodes; or the edge itself while cut off.
    pub me: &'a NodeId,
    /// The fleet as known here.
    pub view: &'a FleetView,
    /// What there is to serve.
    pub catalogue: &'a Catalogue,
    /// The placement in force, sorted: only replicas in it are granted. Absent while no placement is in force, then whatever is
    /// reported may be granted.
    pub placed: Option<&'a [PlacementRow]>,
    /// Facts older than this are not acted upon.
    pub stale_after: Micros,
    /// Seed for chance; mix it with the name of what is drawn for.
    pub seed: u64,
}

/// An offload policy: functions over its configuration and state.
pub trait OffloadPolicy: Parts {
    /// The rows that shall be in force: one for each service that has targets, in the order of the catalogue, targets best
    /// first. When the budget runs out, held rows stand for services that were not looked at, as far as they are still good.
    fn round(
        config: &Self::Config,
        state: &mut Self::State,
        scene: &Scene<'_>,
        held: &[OffloadRow],
        budget: &mut Budget,
    ) -> Vec<OffloadRow>;
}

/// The offload layer.
#[derive(Debug)]
pub struct Offloading;

impl Kind for Offloading {
    const LAYER: &'static str = "offload";
    type Call<'a> = Round<'a, Scene<'a>, OffloadRow>;
    type Answer = Vec<OffloadRow>;
    fn table() -> &'static [Row<Self>] {
        TABLE
    }
}

impl<P: OffloadPolicy> Answers<Offloading> for P {
    fn answer(config: &P::Config, state: &mut P::State, call: <Offloading as Kind>::Call<'_>) -> Vec<OffloadRow> {
        P::round(config, state, call.scene, call.held, call.budget)
    }
}

/// A running offload policy with its configuration and state.
pub type Offloader = Holder<Offloading>;

impl Holder<Offloading> {
    /// The rows that shall be in force.
    pub fn round(&mut self, scene: &Scene<'_>, held: &[OffloadRow], budget: &mut Budget) -> Vec<OffloadRow> {
        self.ask(Round { scene, held, budget })
    }
}
