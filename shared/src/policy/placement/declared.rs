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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{FleetDelta, FleetView};
    use crate::ids::{NodeId, ScopeId};
    use crate::policy::dispatch::story;
    use crate::units::{Micros, Moment};

    fn tell(view: &mut FleetView, name: &str, state: NodeState, variants: &[&str]) {
        let replicas = variants.iter().map(|variant| story::replica(variant, 10.0)).collect();
        let node = NodeId::new(name).expect("good");
        view.apply(Moment(1), FleetDelta::State { node: node.clone(), state });
        view.apply(Moment(1), FleetDelta::Replicas { node, replicas, age: Micros::ZERO });
    }

    fn round(view: &FleetView, held: &[PlacementRow], steps: u64) -> Vec<String> {
        let scope = ScopeId::new("site").expect("good");
        let scene = Scene { now: Moment(1), scope: &scope, view, catalogue: &story::catalogue(), seed: 0 };
        let rows = Declared::round(&Config {}, &mut (), &scene, held, &mut Budget::new(steps));
        rows.iter().map(|row| format!("{} {}", row.node, row.variant)).collect()
    }

    #[test]
    fn what_is_reported_is_what_is_placed() {
        let mut view = FleetView::default();
        tell(&mut view, "site/b", NodeState::Online, &["small"]);
        tell(&mut view, "site/a", NodeState::Online, &["small", "large", "unheard-of"]);
        tell(&mut view, "site/off", NodeState::Offline, &["small"]);
        tell(&mut view, "elsewhere/c", NodeState::Online, &["small"]);
        assert_eq!(round(&view, &[], 100), ["site/a large", "site/a small", "site/b small"]);
    }

    #[test]
    fn without_budget_only_what_was_held_and_still_is_there_remains() {
        let mut view = FleetView::default();
        tell(&mut view, "site/a", NodeState::Online, &["small", "large"]);
        let row = |name: &str, variant: &str| PlacementRow { node: story::node(name), variant: story::variant(variant) };
        assert_eq!(round(&view, &[row("site/a", "small"), row("site/gone", "small")], 0), ["site/a small"]);
    }
}
