//! One story for each reason that keeps a split from being used, and for the margin.

use super::story::{LARGE, ME, Story, assistant, node, replica, variant};
use super::{Action, CloudOnly, EdgeOnly, LeastLoaded, MinLatency};
use crate::fleet::{FleetDelta, Hop, NodeState, PathReport, ReplicaReport, ReplicaState, Tier};
use crate::plan::{Reason, Split, StageGrant, Target};
use crate::units::{Bytes, Fraction, Micros, Tokens};
use crate::work::{HeldLayers, LayerRange, Precision, Residency};

const FRONT: &str = "site/front";
const BACK: &str = "site/back";
const MS: Micros = Micros::from_millis(1);

const fn layers(from: u16, to: u16) -> LayerRange {
    LayerRange { from, to, of: 30 }
}

type Change = fn(&mut ReplicaReport);

/// A replica of the large model with these layers, through which it decodes so many tokens a second.
fn part(range: LayerRange, decode: f64) -> ReplicaReport {
    ReplicaReport { layers: Some(HeldLayers { range, hidden: Bytes(2_304) }), ..replica(LARGE, decode) }
}

fn direct() -> PathReport {
    PathReport::with_rtt(Hop::Direct, MS)
}

fn stage(at: &str, range: LayerRange, path: PathReport) -> StageGrant {
    StageGrant { node: node(at), layers: range, path }
}

fn split(stages: Vec<StageGrant>) -> Target {
    let first = stages[0].node.clone();
    Target { node: first, variant: variant(LARGE), share: Fraction::default(), open_max: 4, stages }
}

impl Story {
    fn grants(mut self, target: Target) -> Self {
        self.grant.targets.entry(assistant()).or_default().push(target);
        self
    }

    fn with_back(self, change: impl FnOnce(&mut ReplicaReport)) -> Self {
        let mut back = part(layers(15, 30), 100.0);
        change(&mut back);
        self.add(FRONT, Tier::Site, direct(), part(layers(0, 15), 100.0)).add(BACK, Tier::Site, direct(), back)
    }
}

/// Two neighbours with half of the model each, in reach of each other and of the ingress.
fn story() -> Story {
    Story::new()
        .with_back(|_| {})
        .grants(split(vec![stage(FRONT, layers(0, 15), direct()), stage(BACK, layers(15, 30), direct())]))
}

/// Who stands in the way of the only split, and how.
fn hindrance(story: &Story) -> (String, Reason) {
    let assessment = story.assess();
    assert_eq!(assessment.feasible, [], "nobody may be feasible");
    let split = assessment.rejected.iter().find(|rejected| !rejected.stages.is_empty()).expect("the split is accounted for");
    (split.node.to_string(), split.reason.clone())
}

fn nodes(story: &Story) -> Vec<String> {
    let assessment = story.assess();
    assessment
        .feasible
        .iter()
        .map(|choice| choice.candidate.nodes().map(ToString::to_string).collect::<Vec<_>>().join("+"))
        .collect()
}

#[test]
fn nothing_is_wrong() {
    let story = story();
    assert_eq!(nodes(&story), ["site/front+site/back"]);
    let choice = &story.assess().feasible[0];
    assert_eq!(choice.candidate.stages().iter().map(|stage| stage.hop).collect::<Vec<_>>(), [Hop::Direct, Hop::Direct]);
    // 10 ms at each, a round trip of one, and what a cut costs.
    assert_eq!(choice.estimate.per_token, Micros(10_000 + 10_000 + 1_000 + 500));
}

#[test]
fn a_part_serves_nothing_alone() {
    let story = Story::new().here(LARGE, 10.0).add(ME, Tier::Device, PathReport::local(), part(layers(0, 15), 100.0));
    let story = story.add(BACK, Tier::Site, direct(), part(layers(15, 30), 100.0)).granted(BACK, LARGE);
    let assessment = story.assess();
    assert_eq!(assessment.feasible, []);
    let reasons: Vec<_> = assessment.rejected.iter().map(|one| (one.node.as_str(), one.reason.clone())).collect();
    assert_eq!(reasons[..2], [(ME, Reason::Part(layers(0, 15))), (BACK, Reason::Part(layers(15, 30)))]);
    let whole = Story::new().add(BACK, Tier::Site, direct(), part(layers(0, 30), 100.0)).granted(BACK, LARGE);
    assert_eq!(whole.assess().feasible.len(), 1, "all layers are the whole");
}

#[test]
fn the_ingress_may_be_any_stage() {
    let grants = |stages| split(stages);
    let here = |range| Story::new().add(ME, Tier::Device, PathReport::local(), part(range, 100.0));
    let unknown = PathReport::with_rtt(Hop::Relay, Micros::from_secs(9));
    let first = here(layers(0, 15))
        .add(BACK, Tier::Site, direct(), part(layers(15, 30), 100.0))
        .grants(grants(vec![stage(ME, layers(0, 15), PathReport::local()), stage(BACK, layers(15, 30), unknown.clone())]));
    let last = here(layers(15, 30))
        .add(FRONT, Tier::Site, direct(), part(layers(0, 15), 100.0))
        .grants(grants(vec![stage(FRONT, layers(0, 15), direct()), stage(ME, layers(15, 30), unknown)]));
    for (story, hops) in [(first, [Hop::Local, Hop::Direct]), (last, [Hop::Direct, Hop::Direct])] {
        let choice = story.assess().feasible.remove(0);
        assert_eq!(choice.candidate.stages().iter().map(|stage| stage.hop).collect::<Vec<_>>(), hops);
        assert!(choice.estimate.per_token < Micros::from_millis(30), "its own path counts, not what the grant says of it");
    }
}

#[test]
fn a_whole_replica_is_a_stage_too() {
    let story = Story::new()
        .add(ME, Tier::Device, PathReport::local(), part(layers(0, 15), 100.0))
        .add(BACK, Tier::Site, direct(), part(layers(0, 30), 50.0))
        .grants(split(vec![stage(ME, layers(0, 15), PathReport::local()), stage(BACK, layers(15, 30), direct())]));
    let assessment = story.assess();
    assert_eq!(
        assessment.feasible[0].estimate.per_token,
        Micros(10_000 + 10_000 + 1_500),
        "half of its layers, half of its time"
    );
}

#[test]
fn every_stage_is_judged_like_a_whole_candidate() {
    let cases: [(&str, Change, Reason); 8] = [
        ("loading", |back| back.state = ReplicaState::Loading, Reason::Loading),
        ("draining", |back| back.state = ReplicaState::Draining, Reason::Draining),
        ("no profile", |back| back.profile = None, Reason::NoProfile),
        ("other layers", |back| back.layers = part(layers(16, 30), 1.0).layers, Reason::Part(layers(16, 30))),
        (
            "other model",
            |back| back.layers = part(LayerRange { from: 12, to: 24, of: 24 }, 1.0).layers,
            Reason::Part(LayerRange { from: 12, to: 24, of: 24 }),
        ),
        ("no layers", |back| back.layers = None, Reason::Capability("layers".to_owned())),
        ("short context", |back| back.context = Tokens(16), Reason::Context { wanted: Tokens(101), context: Tokens(16) }),
        ("busy", |back| (back.load.active, back.load.queued) = (4, 8), Reason::Busy),
    ];
    for (what, change, reason) in cases {
        let stages = vec![stage(FRONT, layers(0, 15), direct()), stage(BACK, layers(15, 30), direct())];
        let story = Story::new().with_back(change).grants(split(stages));
        let expected = if reason == Reason::NoProfile { FRONT } else { BACK };
        let (who, why) = hindrance(&story);
        assert_eq!(why, reason, "{what}");
        assert!(who == BACK || who == expected, "{what}: {who}");
    }
}

#[test]
fn states_of_a_stages_node() {
    for (state, reason) in [
        (NodeState::Seen, Reason::NoPath),
        (NodeState::Suspect, Reason::Suspect),
        (NodeState::Draining, Reason::Draining),
        (NodeState::Cloned, Reason::Cloned),
        (NodeState::Offline, Reason::Offline),
    ] {
        let mut story = story();
        story.tell(FleetDelta::State { node: node(BACK), state });
        assert_eq!(hindrance(&story), (BACK.to_owned(), reason), "{state:?}");
    }
    let mut gone = story();
    gone.tell(FleetDelta::Gone { node: node(BACK) });
    assert_eq!(hindrance(&gone), (BACK.to_owned(), Reason::Unknown));
}

#[test]
fn stale_suspected_tried_and_bounded_stages() {
    let mut stale = story();
    stale.now = stale.now + Micros::from_secs(16);
    stale.tell(FleetDelta::Replicas { node: node(FRONT), replicas: vec![part(layers(0, 15), 100.0)], age: Micros::ZERO });
    stale.tell(FleetDelta::Path { node: node(FRONT), path: direct() });
    assert_eq!(hindrance(&stale), (BACK.to_owned(), Reason::Stale { age: Micros::from_secs(16) }));
    let mut suspect = story();
    suspect.suspects.insert((node(BACK), variant(LARGE)), suspect.now + MS);
    assert_eq!(hindrance(&suspect), (BACK.to_owned(), Reason::Suspect));
    let mut tried = story();
    tried.tried.push((node(BACK), variant(LARGE)));
    assert_eq!(hindrance(&tried), (BACK.to_owned(), Reason::Tried));
    let mut bound = story();
    bound.open.insert((node(BACK), variant(LARGE)), 4);
    assert_eq!(hindrance(&bound), (BACK.to_owned(), Reason::BoundReached { open_max: 4 }));
}

#[test]
fn hidden_states_are_text() {
    let outside = || {
        Story::new()
            .add(FRONT, Tier::Site, direct(), part(layers(0, 15), 100.0))
            .add("cloud/back", Tier::Cloud, direct(), part(layers(15, 30), 100.0))
            .grants(split(vec![stage(FRONT, layers(0, 15), direct()), stage("cloud/back", layers(15, 30), direct())]))
    };
    let mut story_out = outside();
    assert_eq!(nodes(&story_out).len(), 1);
    story_out.request.needs.residency = Residency::Site;
    assert_eq!(hindrance(&story_out), ("cloud/back".to_owned(), Reason::Residency));
    // Both in the site, but what goes from one to the other would leave it.
    let relayed = PathReport::with_rtt(Hop::Relay, MS);
    let mut relay = Story::new()
        .with_back(|_| {})
        .grants(split(vec![stage(FRONT, layers(0, 15), direct()), stage(BACK, layers(15, 30), relayed)]));
    assert_eq!(nodes(&relay).len(), 1);
    relay.request.needs.residency = Residency::Site;
    assert_eq!(hindrance(&relay), (BACK.to_owned(), Reason::Residency));
    let mut node_only = story();
    node_only.request.needs.residency = Residency::Node;
    assert_eq!(hindrance(&node_only), (FRONT.to_owned(), Reason::Residency));
}

#[test]
fn a_relay_out_of_reach_carries_nothing_between_two_others() {
    let relayed = PathReport::with_rtt(Hop::Relay, MS);
    let story = Story::new()
        .with_back(|_| {})
        .grants(split(vec![stage(FRONT, layers(0, 15), direct()), stage(BACK, layers(15, 30), relayed)]));
    let mut scene = story.scene();
    scene.degraded = true;
    let assessment = scene.assess(&story.pending());
    assert_eq!(assessment.feasible, []);
    assert!(assessment.rejected.iter().any(|one| one.node == node(BACK) && one.reason == Reason::NoPath), "{assessment:?}");
}

#[test]
fn a_grant_that_is_no_split_is_none() {
    for stages in [
        vec![stage(FRONT, layers(0, 15), direct())],
        vec![stage(FRONT, layers(0, 14), direct()), stage(BACK, layers(15, 30), direct())],
        vec![stage(FRONT, layers(0, 15), direct()), stage(FRONT, layers(15, 30), direct())],
    ] {
        let story = Story::new().with_back(|_| {}).grants(split(stages));
        assert_eq!(hindrance(&story).1, Reason::NotGranted);
    }
}

#[test]
fn a_stream_of_the_whole_model_is_not_continued_with_rounded_states() {
    let mut story = story();
    story.resume = Some(variant(LARGE));
    assert_eq!(nodes(&story).len(), 1, "in f32 it is the same stream");
    let mut scene = story.scene();
    scene.splits.precision = Precision::F16;
    let assessment = scene.assess(&story.pending());
    assert!(assessment.rejected.iter().any(|one| matches!(one.reason, Reason::NotResumable(_))), "{assessment:?}");
}

/// Beside a whole candidate of the ingress itself, which takes so many tokens a second.
fn beside(whole: f64) -> Story {
    story().here(LARGE, whole)
}

#[test]
fn a_split_must_beat_the_best_whole_by_the_margin() {
    // 21.5 ms a token when split; the margin of 15 % lies at about 25 ms, so that 40 ms whole is beaten and 23 ms is not.
    assert_eq!(nodes(&beside(25.0)), ["site/me", "site/front+site/back"]);
    let close = beside(43.0);
    let assessment = close.assess();
    assert_eq!(nodes(&close), [ME]);
    let whole = assessment.feasible[0].estimate.total;
    let margin = assessment.rejected.iter().find(|one| matches!(one.reason, Reason::SplitMargin { .. })).expect("it says so");
    let Reason::SplitMargin { split, whole: said } = margin.reason else { panic!("{margin:?}") };
    assert_eq!(said, whole, "the numbers are shown");
    assert!(split < whole, "faster, but not by enough: {split} and {whole}");
    assert_eq!(margin.stages, [node(FRONT), node(BACK)], "the dropped are named");
    // The margin is a setting of all policies.
    let mut scene = close.scene();
    scene.splits.margin = Fraction::default();
    assert_eq!(scene.assess(&close.pending()).feasible.len(), 2);
}

#[test]
fn without_a_feasible_whole_there_is_no_margin() {
    let busy = beside(1_000.0).busy(ME, LARGE, 4, 8);
    assert_eq!(nodes(&busy), ["site/front+site/back"]);
}

#[test]
fn policies_look_at_all_nodes_of_a_split() {
    let first_here = Story::new()
        .add(ME, Tier::Device, PathReport::local(), part(layers(0, 15), 100.0))
        .add(BACK, Tier::Site, direct(), part(layers(15, 30), 100.0))
        .grants(split(vec![stage(ME, layers(0, 15), PathReport::local()), stage(BACK, layers(15, 30), direct())]));
    let refuses = |action: Action, name: &str| matches!(action, Action::Refuse { reason: Reason::Policy(by), .. } if by == name);
    assert!(refuses(first_here.decide::<EdgeOnly>(), "edge-only"), "half of it would leave the edge");
    assert!(refuses(first_here.decide::<CloudOnly>(), "cloud-only"));
    assert_eq!(first_here.chosen::<MinLatency>(), "site/me with large");
    // As loaded as the most loaded stage: the idle snail wins over a split with a busy end.
    let loaded = beside(10.0).busy(ME, LARGE, 1, 0).busy(BACK, LARGE, 2, 0);
    let Action::Assign { candidate, .. } = loaded.decide::<LeastLoaded>() else { panic!("assigned") };
    assert_eq!(candidate.split, Split::Whole);
    let loaded = beside(10.0).busy(ME, LARGE, 3, 0).busy(BACK, LARGE, 2, 0);
    let Action::Assign { candidate, .. } = loaded.decide::<LeastLoaded>() else { panic!("assigned") };
    assert_ne!(candidate.split, Split::Whole);
}

#[test]
fn what_time_may_lift_at_any_stage_is_waited_for() {
    let story = story().busy(BACK, LARGE, 4, 8);
    assert!(matches!(story.decide::<MinLatency>(), Action::Wait { reason: Reason::Busy, .. }));
}
