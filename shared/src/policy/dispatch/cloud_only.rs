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
