//! `min-latency`: the feasible candidate with the smallest predicted time, wishes kept first.
//!
//! Idea: predict travel, waiting, prompt and decoding of each candidate, and take the fastest among those that keep the wished
//! times; among those that do not, the one that misses least. Wins wherever profiles and loads are fresh. Loses when many
//! ingresses see the same idle replica at once (herding); the bound on open requests in the grant limits that. Claims never to
//! predict a later end than the naive policies, but for its margin.

use super::{Action, DispatchEvent, DispatchPolicy, Scene, anyone, best_by};
use crate::policy::{Claim, Parts};
use crate::units::Micros;
use serde::{Deserialize, Serialize};

/// Default of [`Config::margin`]: about the relative error of a fresh estimate.
const MARGIN: f64 = 0.1;

/// What may be tuned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// A remote candidate must beat the ingress itself by this share of the predicted time: estimates are uncertain, and
    /// what stays here cannot be lost on the way.
    pub margin: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self { margin: MARGIN }
    }
}

/// The policy.
#[derive(Debug)]
pub struct MinLatency;

impl Parts for MinLatency {
    type Config = Config;
    type State = ();
    const NAME: &'static str = "min-latency";
    const SUMMARY: &'static str = "the candidate with the smallest predicted time, wishes kept first";
    const CLAIMS: &'static [Claim] = &[
        Claim { never_worse_than: "edge-only", slack: 0.0 },
        Claim { never_worse_than: "cloud-only", slack: MARGIN },
        Claim { never_worse_than: "least-loaded", slack: MARGIN },
    ];
}

impl DispatchPolicy for MinLatency {
    fn on_event(config: &Config, (): &mut (), scene: &Scene<'_>, event: &DispatchEvent<'_>, actions: &mut Vec<Action>) {
        best_by(event, scene, actions, anyone, |pending, choice| {
            let slo = &pending.request.needs.slo;
            let elapsed = scene.now.since(pending.arrived);
            let late = |predicted: Micros, wish: Option<Micros>| wish.map_or(Micros::ZERO, |wish| predicted - wish);
            let estimate = &choice.estimate;
            let miss = late(elapsed + estimate.first_token, slo.first_token)
                + late(estimate.per_token, slo.per_token).scale(pending.request.output_max.as_f64())
                + late(elapsed + estimate.total, slo.end_to_end);
            let stays = choice.candidate.nodes().all(|node| node == scene.me);
            let penalty = if stays { 1.0 } else { 1.0 + config.margin.max(0.0) };
            (miss, estimate.total.scale(penalty))
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::story::{LARGE, SMALL, Story};
    use super::*;
    use crate::fleet::Tier;
    use crate::units::Quality;

    /// A slow edge and a fast, distant cloud: 11 s here, 1.3 s there.
    fn story() -> Story {
        Story::new().here(SMALL, 10.0).there("cloud/gpu", Tier::Cloud, LARGE, 100.0, 100)
    }

    #[test]
    fn long_answers_go_where_they_are_written_fast() {
        assert_eq!(story().chosen::<MinLatency>(), "cloud/gpu with large");
    }

    #[test]
    fn short_ones_are_not_worth_the_way() {
        let mut story = story();
        (story.request.prompt.0, story.request.output_max.0) = (5, 1);
        assert_eq!(story.chosen::<MinLatency>(), "site/me with small");
    }

    #[test]
    fn a_queue_in_the_cloud_brings_them_back() {
        assert_eq!(story().busy("cloud/gpu", LARGE, 4, 8).chosen::<MinLatency>(), "site/me with small", "no room there");
        let slower = Story::new().here(SMALL, 60.0).there("cloud/gpu", Tier::Cloud, LARGE, 100.0, 100);
        assert_eq!(slower.chosen::<MinLatency>(), "cloud/gpu with large");
        assert_eq!(slower.busy("cloud/gpu", LARGE, 4, 6).chosen::<MinLatency>(), "site/me with small", "a long wait there");
    }

    #[test]
    fn a_wish_for_an_early_first_token_outweighs_the_total() {
        let mut story = Story::new().here(SMALL, 50.0).there("cloud/gpu", Tier::Cloud, LARGE, 100.0, 150);
        story.request.output_max.0 = 200;
        assert_eq!(story.chosen::<MinLatency>(), "cloud/gpu with large");
        story.request.needs.slo.first_token = Some(Micros::from_millis(250));
        assert_eq!(story.chosen::<MinLatency>(), "site/me with small");
    }

    #[test]
    fn quality_is_a_floor_that_speed_does_not_buy() {
        let mut story = Story::new().here(SMALL, 1_000.0).there("cloud/gpu", Tier::Cloud, LARGE, 1.0, 300);
        assert_eq!(story.chosen::<MinLatency>(), "site/me with small");
        story.request.needs.slo.min_quality = Quality::new(0.5).expect("good");
        assert_eq!(story.chosen::<MinLatency>(), "cloud/gpu with large");
    }

    #[test]
    fn a_hair_faster_is_not_worth_leaving() {
        let story = Story::new().here(SMALL, 100.0).there("site/peer", Tier::Site, SMALL, 105.0, 1);
        assert_eq!(story.chosen::<MinLatency>(), "site/me with small");
        let story = Story::new().here(SMALL, 100.0).there("site/peer", Tier::Site, SMALL, 150.0, 1);
        assert_eq!(story.chosen::<MinLatency>(), "site/peer with small");
    }
}
