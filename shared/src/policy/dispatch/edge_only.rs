//! `edge-only`: everything is executed at the ingress.
//!
//! Idea: no link, no bill. Wins where the ingress is fast enough and links are slow, metered or gone. Loses when the ingress is
//! overloaded while others idle. A baseline: at a hub, which executes nothing, it refuses everything.

use super::{Action, DispatchEvent, DispatchPolicy, Scene, best_by};
use crate::plan::Reason;
use crate::policy::Parts;
use serde::{Deserialize, Serialize};

/// Nothing to configure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {}

/// The policy.
#[derive(Debug)]
pub struct EdgeOnly;

impl Parts for EdgeOnly {
    type Config = Config;
    type State = ();
    const NAME: &'static str = "edge-only";
    const SUMMARY: &'static str = "everything is executed at the ingress";
}

impl DispatchPolicy for EdgeOnly {
    fn on_event(_: &Config, (): &mut (), scene: &Scene<'_>, event: &DispatchEvent<'_>, actions: &mut Vec<Action>) {
        let may_use = |node: &_| if node == scene.me { Ok(()) } else { Err(Reason::Policy(Self::NAME.to_owned())) };
        best_by(event, scene, actions, may_use, |_, choice| choice.estimate.total);
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{LARGE, SMALL, Story};
    use super::*;
    use crate::fleet::Tier;

    #[test]
    fn stays_here_however_slow_here_is() {
        let story = Story::new().here(SMALL, 1.0).there("cloud/gpu", Tier::Cloud, LARGE, 1_000.0, 1);
        assert_eq!(story.chosen::<EdgeOnly>(), "site/me with small");
    }

    #[test]
    fn refuses_by_name_where_nothing_is_executed() {
        let story = Story::new().there("cloud/gpu", Tier::Cloud, LARGE, 100.0, 1);
        let reason = Reason::Policy("edge-only".to_owned());
        assert_eq!(story.decide::<EdgeOnly>(), Action::Refuse { request: story.request.id, reason });
    }

    #[test]
    fn waits_for_its_own_slot() {
        let story = Story::new().here(SMALL, 10.0).busy("site/me", SMALL, 4, 8).there("cloud/gpu", Tier::Cloud, LARGE, 100.0, 1);
        assert_eq!(story.decide::<EdgeOnly>(), Action::Wait { request: story.request.id, reason: Reason::Busy });
    }
}
