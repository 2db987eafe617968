//! Where splits are granted, which, and where they are not.

use super::{AllWithReplica, OffloadPolicy, Scene};
use crate::fleet::{FleetDelta, Hop, PathReport, ReplicaReport, Tier};
use crate::plan::{OffloadRow, Target};
use crate::policy::Budget;
use crate::policy::dispatch::story::{LARGE, ME, SMALL, Story, catalogue, node, replica};
use crate::units::{Bytes, Micros};
use crate::work::{HeldLayers, LayerRange};

/// A replica of the large model with these layers of thirty, through which it decodes so many tokens a second.
fn part(from: u16, to: u16, decode: f64) -> ReplicaReport {
    let range = LayerRange { from, to, of: 30 };
    ReplicaReport { layers: Some(HeldLayers { range, hidden: Bytes(2_304) }), ..replica(LARGE, decode) }
}

/// The hub's view: all paths are direct to the hub.
fn uplink(ms: u64) -> PathReport {
    PathReport::with_rtt(Hop::Direct, Micros::from_millis(ms))
}

trait Fleet {
    fn with(self, name: &str, replica: ReplicaReport) -> Self;
    fn neighbours(self, a: &str, b: &str, ms: u64) -> Self;
}

impl Fleet for Story {
    fn with(self, name: &str, replica: ReplicaReport) -> Self {
        self.add(name, Tier::Site, uplink(20), replica)
    }

    fn neighbours(mut self, a: &str, b: &str, ms: u64) -> Self {
        self.tell(FleetDelta::Peers { node: node(a), peers: [(node(b), uplink(ms))].into() });
        self
    }
}

fn round(story: &Story, held: &[OffloadRow], steps: u64) -> Vec<OffloadRow> {
    let hub = node("core/hub");
    let scene = Scene {
        now: story.now,
        edge: &story.me,
        me: &hub,
        view: &story.view,
        catalogue: &catalogue(),
        placed: None,
        stale_after: Micros::from_secs(15),
        seed: 0,
    };
    AllWithReplica::round(&Default::default(), &mut (), &scene, held, &mut Budget::new(steps))
}

fn targets(story: &Story) -> Vec<Target> {
    round(story, &[], 1_000).into_iter().flat_map(|row| row.targets).collect()
}

/// The splits that are granted, as text.
fn splits(story: &Story) -> Vec<String> {
    let stage = |stage: &crate::plan::StageGrant| format!("{} {}..{}", stage.node, stage.layers.from, stage.layers.to);
    let text = |target: &Target| target.stages.iter().map(stage).collect::<Vec<_>>().join(", ");
    targets(story).iter().filter(|target| !target.stages.is_empty()).map(text).collect()
}

#[test]
fn halves_that_nobody_has_whole_are_granted_together() {
    let story = Story::new().with(ME, part(0, 15, 50.0)).with("site/back", part(15, 30, 50.0)).neighbours(ME, "site/back", 1);
    assert_eq!(splits(&story), ["site/me 0..15, site/back 15..30"]);
    let target = targets(&story).remove(0);
    assert_eq!(target.node, node(ME), "the edge itself is the first");
    assert_eq!(target.stages.iter().map(|stage| stage.path.hop).collect::<Vec<_>>(), [Hop::Local, Hop::Direct]);
    assert_eq!(target.open_max, 5);
}

#[test]
fn parts_are_no_whole_targets() {
    let story = Story::new().with(ME, replica(SMALL, 5.0)).with("site/back", part(15, 30, 50.0));
    assert_eq!(targets(&story), [], "half of a model serves nobody");
}

#[test]
fn open_requests_are_bounded_by_the_stage_with_fewest_slots() {
    let mut narrow = part(15, 30, 50.0);
    narrow.load.slots = 1;
    let story = Story::new().with(ME, part(0, 15, 50.0)).with("site/back", narrow).neighbours(ME, "site/back", 1);
    assert_eq!(targets(&story)[0].open_max, 2);
}

#[test]
fn what_both_hold_is_computed_by_the_faster() {
    let overlap = |first: f64, last: f64| {
        let story = Story::new().with(ME, part(0, 20, first)).with("site/back", part(10, 30, last));
        splits(&story.neighbours(ME, "site/back", 1))
    };
    assert_eq!(overlap(50.0, 100.0), ["site/me 0..10, site/back 10..30"]);
    assert_eq!(overlap(100.0, 50.0), ["site/me 0..20, site/back 20..30"]);
}

#[test]
fn a_whole_replica_takes_over_behind_an_edge_that_holds_the_beginning() {
    // The whole one is so slow that half of it is better left to the edge.
    let story = Story::new().with(ME, part(0, 15, 100.0)).with("site/slow", part(0, 30, 4.0)).neighbours(ME, "site/slow", 1);
    assert_eq!(splits(&story), ["site/me 0..15, site/slow 15..30"]);
    assert_eq!(targets(&story)[0].node, node("site/slow"), "whole candidates come first");
    let two = Story::new().with(ME, part(0, 30, 100.0)).with("site/slow", part(0, 30, 4.0)).neighbours(ME, "site/slow", 1);
    assert_eq!(splits(&two), [""; 0], "nodes that all hold the whole model serve a request each");
}

#[test]
fn beside_a_fast_whole_one_a_split_has_nothing_to_do() {
    let story = Story::new()
        .with(ME, part(0, 15, 20.0))
        .with("site/back", part(15, 30, 20.0))
        .with("site/fast", part(0, 30, 200.0))
        .neighbours(ME, "site/back", 1)
        .neighbours("site/fast", ME, 1);
    assert_eq!(splits(&story), [""; 0]);
    assert_eq!(targets(&story).len(), 1);
}

#[test]
fn what_may_not_leave_the_site_is_split_within_it() {
    let story = Story::new()
        .with(ME, part(0, 15, 20.0))
        .with("site/back", part(15, 30, 20.0))
        .with("cloud/fast", part(0, 30, 500.0))
        .with("cloud/back", part(15, 30, 500.0));
    // Without a way between the two the site has nothing of its own.
    assert!(splits(&story).iter().all(|split| split.contains("cloud")), "{:?}", splits(&story));
    let story = story.neighbours(ME, "site/back", 1);
    assert_eq!(splits(&story)[0], "site/me 0..15, site/back 15..30");
}

#[test]
fn three_are_taken_only_where_two_do_not_do() {
    let thirds = Story::new().with(ME, part(0, 10, 50.0)).with("site/b", part(10, 20, 50.0)).with("site/c", part(20, 30, 50.0));
    assert_eq!(splits(&thirds), ["site/me 0..10, site/b 10..20, site/c 20..30"]);
    let with_two = thirds.with("site/d", part(10, 30, 1.0));
    assert_eq!(splits(&with_two), ["site/me 0..10, site/d 10..30"], "a round trip more for each token is the last resort");
}

#[test]
fn whole_targets_keep_at_least_five_places() {
    let crowd = (0..20)
        .fold(Story::new().with(ME, part(0, 15, 50.0)), |story, i| story.with(&format!("cloud/n{i}"), replica(SMALL, 50.0)));
    let all = targets(&crowd.with("site/back", part(15, 30, 50.0)).with("cloud/back", part(15, 30, 50.0)));
    assert_eq!(all.len(), OffloadRow::TARGETS_MAX);
    let staged = all.iter().filter(|target| !target.stages.is_empty()).count();
    assert!((1..=3).contains(&staged), "{staged}");
    assert!(all.iter().take(8 - staged).all(|target| target.stages.is_empty()), "splits come last");
}

#[test]
fn the_unmeasured_and_the_wrong_are_no_stages() {
    let with_back = |change: fn(&mut ReplicaReport)| {
        let mut back = part(15, 30, 50.0);
        change(&mut back);
        splits(&Story::new().with(ME, part(0, 15, 50.0)).with("site/back", back).neighbours(ME, "site/back", 1))
    };
    assert_eq!(with_back(|_| {}).len(), 1);
    assert_eq!(with_back(|back| back.profile = None), [""; 0]);
    assert_eq!(with_back(|back| back.layers = part(16, 30, 1.0).layers), [""; 0], "a gap");
    assert_eq!(with_back(|back| back.layers = None), [""; 0]);
    assert_eq!(with_back(|back| back.load.slots = 0), [""; 0]);
}

#[test]
fn held_splits_stay_without_a_budget_as_far_as_they_are_good() {
    let mut story = Story::new().with(ME, part(0, 15, 50.0)).with("site/back", part(15, 30, 50.0)).neighbours(ME, "site/back", 1);
    let held = round(&story, &[], 1_000);
    assert_eq!(round(&story, &held, 0), held);
    story.tell(FleetDelta::Replicas { node: node("site/back"), replicas: vec![part(16, 30, 50.0)], age: Micros::ZERO });
    assert_eq!(round(&story, &held, 0), []);
}

#[test]
fn a_round_trip_that_trembles_does_not_make_another_plan() {
    let mut story =
        Story::new().with(ME, part(0, 15, 50.0)).with("site/back", part(15, 30, 50.0)).neighbours(ME, "site/back", 10);
    let held = round(&story, &[], 1_000);
    story.tell(FleetDelta::Peers { node: node(ME), peers: [(node("site/back"), uplink(12))].into() });
    assert_eq!(round(&story, &held, 1_000), held);
    story.tell(FleetDelta::Peers { node: node(ME), peers: [(node("site/back"), uplink(40))].into() });
    assert_ne!(round(&story, &held, 1_000), held, "it became another path");
}
