//! `fixed`: each layer is refreshed when its period has passed.
//!
//! Idea: a clock for each layer, slow ones above fast ones, as in every hierarchical controller. Wins by being predictable.
//! Loses when little changes (work for nothing) and when much changes inside a period; `eager` softens the latter.

use super::{Pace, Scene, TimescalePolicy};
use crate::plan::Layer;
use crate::policy::Parts;
use crate::units::Micros;
use serde::{Deserialize, Serialize};

/// The periods. The defaults are the layers' of the architecture.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Of placement. Loading a replica takes seconds to minutes, so deciding more often only makes nodes load and unload.
    pub placement: Micros,
    /// Of offload: one heartbeat, since nothing new is known sooner.
    pub offload: Micros,
    /// Of allocation.
    pub allocation: Micros,
    /// Of the choice of the dispatch policy.
    pub dispatch: Micros,
    /// Also refresh at once when the slower layer's plan or the make-up of the fleet has changed. At most once a tick.
    pub eager: bool,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            placement: Micros::from_secs(60),
            offload: Micros::from_secs(5),
            allocation: Micros::from_secs(1),
            dispatch: Micros::from_secs(60),
            eager: true,
        }
    }
}

impl Config {
    const fn period(&self, layer: Layer) -> Micros {
        match layer {
            Layer::Placement => self.placement,
            Layer::Offload => self.offload,
            Layer::Allocation => self.allocation,
            Layer::Dispatch => self.dispatch,
        }
    }
}

/// The policy.
#[derive(Debug)]
pub struct Fixed;

impl Parts for Fixed {
    type Config = Config;
    type State = ();
    const NAME: &'static str = "fixed";
    const SUMMARY: &'static str = "each layer is refreshed when its period has passed";
}

impl TimescalePolicy for Fixed {
    fn decide(config: &Config, (): &mut (), scene: &Scene<'_>) -> Pace {
        let due = scene.last_refresh.is_none_or(|last| scene.now.since(last) >= config.period(scene.layer));
        let pressing = config.eager && (scene.upper_changed || scene.fleet_changed);
        if due || pressing { Pace::Refresh } else { Pace::Hold }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::ScopeId;
    use crate::units::Moment;

    /// Whether a layer that was made at 100 s is made anew so many milliseconds later.
    fn after(config: &Config, layer: Layer, ms: u64, upper_changed: bool, fleet_changed: bool) -> bool {
        let scope = ScopeId::new("site").expect("good");
        let last = Moment(100_000_000);
        let now = last + Micros::from_millis(ms);
        let scene = Scene { now, layer, scope: &scope, last_refresh: Some(last), upper_changed, fleet_changed };
        Fixed::decide(config, &mut (), &scene) == Pace::Refresh
    }

    #[test]
    fn each_layer_keeps_its_own_period() {
        let config = Config::default();
        for (layer, ms) in
            [(Layer::Placement, 60_000), (Layer::Offload, 5_000), (Layer::Allocation, 1_000), (Layer::Dispatch, 60_000)]
        {
            assert!(!after(&config, layer, ms - 1, false, false), "{layer}");
            assert!(after(&config, layer, ms, false, false), "{layer}");
            assert!(after(&config, layer, ms * 100, false, false), "{layer}: a missed round is made up for once");
        }
    }

    #[test]
    fn changes_do_not_wait_for_the_period_unless_told_to() {
        let patient = Config { eager: false, ..Config::default() };
        for (upper, fleet) in [(true, false), (false, true)] {
            assert!(after(&Config::default(), Layer::Placement, 0, upper, fleet));
            assert!(!after(&patient, Layer::Placement, 0, upper, fleet));
        }
    }
}
