//! `declared`: each node holds what its own configuration says and it therefore reports.
//!
//! Idea: operators know their machines. Wins in small fleets and wherever models are shipped with the device. Loses when demand
//! moves: nothing follows it.

use super::{PlacementPolicy, Scene};
use crate::fleet::{NodeState, ReplicaState};
use crate::plan::PlacementRow;
use crate::policy::{Budget, Parts};
use serde::{Deserialize, Serialize};

/// Nothing to configure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {}

/// The policy.
#[derive(Debug)]
pub struct Declared;

impl Parts for Declared {
    type Config = Config;
    type State = ();
    const NAME: &'static str = "declared";
    const SUMMARY: &'static str = "each node holds what it reports";
}

impl PlacementPolicy for Declared {
    fn round(_: &Config, (): &mut (), scene: &Scene<'_>, held: &[PlacementRow], budget: &mut Budget) -> Vec<PlacementRow> {
        let mut rows = Vec::new();
        for (node, entry) in scene.view.nodes_in(scene.scope) {
            if entry.state != NodeState::Online {
                continue;
            }
            for (variant, replica) in &entry.replicas {
                let serves = matches!(replica.value.state, ReplicaState::Ready | ReplicaState::Loading);
                let known = scene.catalogue.variant(variant).is_some();
                let row = PlacementRow { node: node.clone(), variant: variant.clone() };
                // What a node reports is the truth; once the budget is spent, only what was held before is repeated.
                if serves && known && (budget.spend(1) || held.contains(&row)) {
                    rows.push(row);
                }
            }
        }
        rows
    }
}
