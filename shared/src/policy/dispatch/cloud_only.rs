//! `cloud-only`: everything is sent to the highest tier that has a replica.
//!
//! Idea: the cloud has the big machines. Wins on fast links with weak edges. Loses on round trips, thin uplinks and outages. A
//! baseline of every offloading study.

use super::{Action, DispatchEvent, DispatchPolicy, Scene, best_by};
use crate::fleet::Tier;
use crate::plan::Reason;
use crate::policy::Parts;
use serde::{Deserialize, Serialize};

/// Nothing to configure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {}

/// The policy.
#[derive(Debug)]
pub struct CloudOnly;

impl Parts for CloudOnly {
    type Config = Config;
    type State = ();
    const NAME: &'static str = "cloud-only";
    const SUMMARY: &'static str = "everything is executed by a node of the cloud tier";
}

impl DispatchPolicy for CloudOnly {
    fn on_event(_: &Config, (): &mut (), scene: &Scene<'_>, event: &DispatchEvent<'_>, actions: &mut Vec<Action>) {
        let may_use = |node: &_| match scene.view.node(node) {
            Some(entry) if entry.tier == Tier::Cloud => Ok(()),
            _ => Err(Reason::Policy(Self::NAME.to_owned())),
        };
        best_by(event, scene, actions, may_use, |_, choice| choice.estimate.total);
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{LARGE, SMALL, Story, node};
    use super::*;
    use crate::fleet::{FleetDelta, NodeState};

    fn story() -> Story {
        Story::new().here(SMALL, 1_000.0).there("cloud/a", Tier::Cloud, LARGE, 50.0, 100).there(
            "cloud/b",
            Tier::Cloud,
            LARGE,
            60.0,
            100,
        )
    }

    #[test]
    fn takes_the_fastest_of_the_cloud() {
        assert_eq!(story().chosen::<CloudOnly>(), "cloud/b with large");
    }

    #[test]
    fn a_server_of_the_region_is_no_cloud() {
        let story = Story::new().there("eu/server", Tier::Region, LARGE, 100.0, 1);
        let reason = Reason::Policy("cloud-only".to_owned());
        assert_eq!(story.decide::<CloudOnly>(), Action::Refuse { request: story.request.id, reason });
    }

    #[test]
    fn waits_for_a_busy_cloud_though_the_edge_is_idle() {
        let story = story().busy("cloud/a", LARGE, 4, 8).busy("cloud/b", LARGE, 4, 8);
        assert_eq!(story.decide::<CloudOnly>(), Action::Wait { request: story.request.id, reason: Reason::Busy });
    }

    #[test]
    fn refuses_when_the_cloud_is_gone() {
        let mut story = story();
        for name in ["cloud/a", "cloud/b"] {
            story.tell(FleetDelta::State { node: node(name), state: NodeState::Offline });
        }
        assert!(matches!(story.decide::<CloudOnly>(), Action::Refuse { .. }));
    }
}
