//! Allocation: how a node divides itself among its replicas. One round each second, by the agent, within the hub's bound.

pub mod equal;

pub use equal::Equal;

use super::{Answers, Budget, Holder, Kind, Parts, Round, Row};
use crate::fleet::ReplicaReport;
use crate::ids::NodeId;
use crate::plan::AllocationRow;
use crate::units::Moment;

/// Every allocation policy there is.
pub static TABLE: &[Row<Allocating>] = &[Row::of::<Equal>()];

/// Everything that a round may know besides the held rows, its own configuration and state.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The time.
    pub now: Moment,
    /// The node that is divided.
    pub node: &'a NodeId,
    /// Cores that its agent may use, if known.
    pub cores: Option<u32>,
    /// Its replicas as their engines report them: `load.slots` is what the engine itself can run at once, not what an earlier
    /// round allowed it.
    pub replicas: &'a [ReplicaReport],
    /// Seed for chance; mix it with the name of what is drawn for.
    pub seed: u64,
}

/// An allocation policy: functions over its configuration and state.
pub trait AllocationPolicy: Parts {
    /// The rows that shall be in force: one for each replica that serves or loads, sorted by variant, slots at least 1. When the
    /// budget runs out, held rows stand for replicas that were not looked at.
    fn round(
        config: &Self::Config,
        state: &mut Self::State,
        scene: &Scene<'_>,
        held: &[AllocationRow],
        budget: &mut Budget,
    ) -> Vec<AllocationRow>;
}

/// The allocation layer.
#[derive(Debug)]
pub struct Allocating;

impl Kind for Allocating {
    const LAYER: &'static str = "allocation";
    type Call<'a> = Round<'a, Scene<'a>, AllocationRow>;
    type Answer = Vec<AllocationRow>;
    fn table() -> &'static [Row<Self>] {
        TABLE
    }
}

impl<P: AllocationPolicy> Answers<Allocating> for P {
    fn answer(config: &P::Config, state: &mut P::State, call: <Allocating as Kind>::Call<'_>) -> Vec<AllocationRow> {
        P::round(config, state, call.scene, call.held, call.budget)
    }
}

/// A running allocation policy with its configuration and state.
pub type Allocator = Holder<Allocating>;

impl Holder<Allocating> {
    /// The rows that shall be in force.
    pub fn round(&mut self, scene: &Scene<'_>, held: &[AllocationRow], budget: &mut Budget) -> Vec<AllocationRow> {
        self.ask(Round { scene, held, budget })
    }
}
