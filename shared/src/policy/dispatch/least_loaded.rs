//! `least-loaded`: the feasible candidate with the smallest share of its slots in use.
//!
//! Idea: balance. Wins among equal machines on equal links. Loses where machines differ, since it knows no speed. Ties go to the
//! smaller estimate, then to the earlier candidate, so the ingress itself comes first.

use super::{Action, DispatchEvent, DispatchPolicy, Scene, anyone, best_by};
use crate::ids::NodeId;
use crate::policy::Parts;
use serde::{Deserialize, Serialize};

/// Nothing to configure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {}

/// The policy.
#[derive(Debug)]
pub struct LeastLoaded;

impl Parts for LeastLoaded {
    type Config = Config;
    type State = ();
    const NAME: &'static str = "least-loaded";
    const SUMMARY: &'static str = "the candidate with the smallest share of its slots in use";
}

impl DispatchPolicy for LeastLoaded {
    fn on_event(_: &Config, (): &mut (), scene: &Scene<'_>, event: &DispatchEvent<'_>, actions: &mut Vec<Action>) {
        best_by(event, scene, actions, anyone, |_, choice| {
            let used = |node: &NodeId| {
                let replica = scene.view.node(node).and_then(|node| node.replicas.get(&choice.candidate.variant));
                let load = replica.map(|replica| replica.value.load).unwrap_or_default();
                f64::from(load.active.saturating_add(load.queued)) / f64::from(load.slots.max(1))
            };
            // A split is as loaded as the most loaded of its nodes.
            (choice.candidate.nodes().map(used).fold(0.0, f64::max), choice.estimate.total)
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{LARGE, SMALL, Story};
    use super::*;
    use crate::fleet::Tier;

    fn story() -> Story {
        Story::new().here(SMALL, 10.0).there("site/peer", Tier::Site, SMALL, 10.0, 5)
    }

    #[test]
    fn goes_where_the_smaller_share_of_slots_is_in_use() {
        assert_eq!(
            story().busy("site/me", SMALL, 2, 0).busy("site/peer", SMALL, 1, 0).chosen::<LeastLoaded>(),
            "site/peer with small"
        );
        assert_eq!(
            story().busy("site/me", SMALL, 1, 0).busy("site/peer", SMALL, 2, 0).chosen::<LeastLoaded>(),
            "site/me with small"
        );
    }

    #[test]
    fn of_equally_loaded_ones_the_faster_and_so_the_nearer_wins() {
        assert_eq!(story().chosen::<LeastLoaded>(), "site/me with small");
    }

    #[test]
    fn loses_on_unequal_machines() {
        let story = story().busy("site/me", SMALL, 1, 0).there("cloud/snail", Tier::Cloud, LARGE, 0.1, 300);
        assert_eq!(story.busy("site/peer", SMALL, 1, 0).chosen::<LeastLoaded>(), "cloud/snail with large", "it knows no speed");
    }

    #[test]
    fn whoever_queues_is_more_loaded_than_whoever_is_just_full() {
        let story = story().busy("site/me", SMALL, 4, 2).busy("site/peer", SMALL, 4, 1);
        assert_eq!(story.chosen::<LeastLoaded>(), "site/peer with small");
    }
}
