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
