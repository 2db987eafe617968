//! `least-loaded`: the feasible candidate with the smallest share of its slots in use.
//!
//! Idea: balance. Wins among equal machines on equal links. Loses where machines differ, since it knows no speed. Ties go to the
//! smaller estimate, then to the earlier candidate, so the ingress itself comes first.

use super::{Action, DispatchEvent, DispatchPolicy, Scene, anyone, best_by};
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
            let replica = scene.view.node(&choice.candidate.node).and_then(|node| node.replicas.get(&choice.candidate.variant));
            let load = replica.map(|replica| replica.value.load).unwrap_or_default();
            let used = f64::from(load.active.saturating_add(load.queued)) / f64::from(load.slots.max(1));
            (used, choice.estimate.total)
        });
    }
}
