//! One story for each reason that keeps a candidate from being used.

use super::story::{LARGE, ME, SMALL, Story, assistant, node, replica, variant};
use super::{Action, LeastLoaded};
use crate::fleet::{Costs, FleetDelta, Hop, NodeState, PathReport, ReplicaReport, ReplicaState, Tier};
use crate::plan::Reason;
use crate::units::{Joules, MicroDollars, Micros, Quality, Tokens, Watts};
use crate::work::Residency;

const CLOUD: &str = "cloud/gpu";

/// An ingress without a replica of its own, and a good one in the cloud.
fn story() -> Story {
    Story::new().there(CLOUD, Tier::Cloud, LARGE, 100.0, 50)
}

/// The only reason of the only rejected candidate.
fn reason(story: &Story) -> Reason {
    let assessment = story.assess();
    assert_eq!(assessment.feasible, [], "nobody may be feasible");
    let large = assessment.rejected.iter().find(|rejected| rejected.variant == variant(LARGE));
    large.expect("the candidate is accounted for").reason.clone()
}

fn with_replica(change: impl FnOnce(&mut ReplicaReport)) -> Story {
    let mut changed = replica(LARGE, 100.0);
    change(&mut changed);
    let path = PathReport::with_rtt(Hop::Relay, Micros::from_millis(50));
    Story::new().add(CLOUD, Tier::Cloud, path, changed).granted(CLOUD, LARGE)
}

fn in_state(state: NodeState) -> Story {
    let mut story = story();
    story.tell(FleetDelta::State { node: node(CLOUD), state });
    story
}

#[test]
fn nothing_is_wrong() {
    let assessment = story().here(SMALL, 10.0).assess();
    let nodes: Vec<_> = assessment.feasible.iter().map(|choice| choice.candidate.node.as_str()).collect();
    assert_eq!(nodes, [ME, CLOUD], "the ingress itself comes first");
    assert_eq!(assessment.rejected, []);
}

#[test]
fn stale() {
    let mut story = story();
    story.now = story.now + Micros::from_secs(16);
    assert_eq!(reason(&story), Reason::Stale { age: Micros::from_secs(16) });
}

#[test]
fn own_facts_do_not_grow_stale() {
    let mut story = Story::new().here(LARGE, 10.0);
    story.now = story.now + Micros::from_secs(3_600);
    assert_eq!(story.assess().feasible.len(), 1);
}

#[test]
fn unknown() {
    assert_eq!(reason(&Story::new().granted(CLOUD, LARGE)), Reason::Unknown);
}

#[test]
fn states_of_a_node() {
    for (state, expected) in [
        (NodeState::Seen, Reason::NoPath),
        (NodeState::Suspect, Reason::Suspect),
        (NodeState::Draining, Reason::Draining),
        (NodeState::Cloned, Reason::Cloned),
        (NodeState::Offline, Reason::Offline),
    ] {
        assert_eq!(reason(&in_state(state)), expected, "{state:?}");
    }
}

#[test]
fn suspected_by_this_ingress_until_a_moment() {
    let mut story = story();
    story.suspects.insert((node(CLOUD), variant(LARGE)), story.now + Micros(1));
    assert_eq!(reason(&story), Reason::Suspect);
    story.now = story.now + Micros(1);
    assert_eq!(story.assess().feasible.len(), 1);
}

#[test]
fn no_path() {
    let mut story = story();
    story.tell(FleetDelta::PathLost { node: node(CLOUD), hop: Hop::Relay });
    assert_eq!(reason(&story), Reason::NoPath);
}

#[test]
fn a_path_that_was_not_heard_of_for_long_is_none() {
    let mut story = story();
    story.now = story.now + Micros::from_secs(16);
    story.tell(FleetDelta::Replicas { node: node(CLOUD), replicas: vec![replica(LARGE, 100.0)], age: Micros::ZERO });
    assert_eq!(reason(&story), Reason::NoPath);
}

#[test]
fn not_granted() {
    let mut story = story();
    story.grant.targets.clear();
    assert_eq!(reason(&story), Reason::NotGranted);
}

#[test]
fn bound_reached() {
    let mut story = story();
    story.open.insert((node(CLOUD), variant(LARGE)), 4);
    assert_eq!(reason(&story), Reason::BoundReached { open_max: 4 });
    story.open.insert((node(CLOUD), variant(LARGE)), 3);
    assert_eq!(story.assess().feasible.len(), 1);
}

#[test]
fn no_replica() {
    assert_eq!(reason(&Story::new()), Reason::NoReplica);
    let mut gone = story();
    gone.tell(FleetDelta::Replicas { node: node(CLOUD), replicas: Vec::new(), age: Micros::ZERO });
    assert_eq!(reason(&gone), Reason::NoReplica);
}

#[test]
fn states_of_a_replica() {
    for (state, expected) in [
        (ReplicaState::Loading, Reason::Loading),
        (ReplicaState::Draining, Reason::Draining),
        (ReplicaState::Failed("broke".to_owned()), Reason::ReplicaFailed("broke".to_owned())),
    ] {
        assert_eq!(reason(&with_replica(|replica| replica.state = state)), expected);
    }
}

#[test]
fn no_profile() {
    assert_eq!(reason(&with_replica(|replica| replica.profile = None)), Reason::NoProfile);
}

#[test]
fn residency_of_the_node_and_of_the_site() {
    for residency in [Residency::Node, Residency::Site] {
        let mut story = story();
        story.request.needs.residency = residency;
        assert_eq!(reason(&story), Reason::Residency, "{residency:?}");
    }
}

#[test]
fn residency_of_the_relay() {
    let peer = "site/peer";
    let mut story = Story::new().there(peer, Tier::Site, LARGE, 100.0, 50);
    story.request.needs.residency = Residency::Site;
    assert_eq!(reason(&story), Reason::Residency, "the peer may see the text, the hub may not");
    story.tell(FleetDelta::Path { node: node(peer), path: PathReport::with_rtt(Hop::Direct, Micros(300)) });
    assert_eq!(story.assess().feasible[0].candidate.hop, Hop::Direct);
    story.request.needs.residency = Residency::Node;
    assert_eq!(reason(&story), Reason::Residency);
}

#[test]
fn quality() {
    let mut story = story();
    story.request.needs.slo.min_quality = Quality::new(0.9).expect("good");
    let has = Quality::new(0.8).expect("good");
    assert_eq!(reason(&story), Reason::Quality { has, wanted: story.request.needs.slo.min_quality });
}

#[test]
fn context() {
    let mut story = story();
    story.request.prompt = Tokens(4096);
    assert_eq!(reason(&story), Reason::Context { wanted: Tokens(4097), context: Tokens(2048) });
    story.request.prompt = Tokens(4095);
    assert_eq!(story.assess().feasible.len(), 1, "half of the estimate fits: the executor will count");
}

#[test]
fn capability() {
    let mut story = story();
    story.request.features.tools = true;
    assert_eq!(reason(&story), Reason::Capability("tools".to_owned()));
    let mut able = with_replica(|replica| replica.capabilities.push("tools".to_owned()));
    able.request.features.tools = true;
    assert_eq!(able.assess().feasible.len(), 1);
}

#[test]
fn not_pinned() {
    let mut story = story();
    story.request.pinned = Some(variant(SMALL));
    assert_eq!(reason(&story), Reason::NotPinned);
}

#[test]
fn weights() {
    let holding = |weights: &str| {
        let mut story = Story::new();
        let mut service = story.catalogue.service(&assistant()).expect("there").clone();
        for variant in &mut service.variants {
            variant.weights_sha256 = Some("aa".to_owned());
        }
        story.catalogue.insert(service).expect("no contradiction");
        let report = ReplicaReport { weights_sha256: Some(weights.to_owned()), ..replica(LARGE, 50.0) };
        story.add(CLOUD, Tier::Cloud, PathReport::with_rtt(Hop::Relay, Micros::from_millis(20)), report).granted(CLOUD, LARGE)
    };
    assert_eq!(holding("AA").assess().feasible.len(), 1, "the same, however it is written");
    assert_eq!(reason(&holding("bb")), Reason::Weights);
}

#[test]
fn busy() {
    assert_eq!(reason(&story().busy(CLOUD, LARGE, 4, 8)), Reason::Busy);
    assert_eq!(story().busy(CLOUD, LARGE, 4, 7).assess().feasible.len(), 1);
}

#[test]
fn deadline() {
    let mut story = story();
    story.request.needs.slo.end_to_end = Some(Micros::from_millis(150));
    // Two round trips of 50 ms, and a prompt of 100 tokens at 1,000 a second.
    let predicted = Micros::from_millis(200);
    assert_eq!(reason(&story), Reason::Deadline { predicted, remaining: Micros::from_millis(150) });
    story.request.needs.slo.end_to_end = Some(predicted);
    assert_eq!(story.assess().feasible.len(), 1, "the first token just comes in time");
    story.now = story.now + Micros(1);
    assert_eq!(story.assess().feasible.len(), 0, "time already spent counts");
}

#[test]
fn energy() {
    let mut story = story();
    story.request.needs.slo.energy = Some(Joules::new(5.0).expect("good"));
    assert_eq!(reason(&story), Reason::Energy(Joules::new(5.0).expect("good")), "unknown energy meets no budget");
    // 1.1 s of work.
    for (watts, feasible) in [(4.0, 1), (5.0, 0)] {
        let costs = Costs { busy: Watts::new(watts).ok(), ..Costs::default() };
        story.tell(FleetDelta::Node { node: node(CLOUD), tier: Tier::Cloud, costs, addresses: Vec::new() });
        assert_eq!(story.assess().feasible.len(), feasible, "{watts} W");
    }
}

#[test]
fn money() {
    let mut story = story();
    story.request.needs.slo.money = Some(MicroDollars(50));
    assert_eq!(reason(&story), Reason::Money(MicroDollars(50)), "an unknown price meets no budget");
    for (price, feasible) in [(250_000, 1), (260_000, 0)] {
        let price = Some(MicroDollars(price));
        let costs = Costs { prompt_per_million: price, output_per_million: price, busy: None };
        story.tell(FleetDelta::Node { node: node(CLOUD), tier: Tier::Cloud, costs, addresses: Vec::new() });
        assert_eq!(story.assess().feasible.len(), feasible, "{price:?}");
    }
}

#[test]
fn tried() {
    let mut story = story();
    story.tried.push((node(CLOUD), variant(LARGE)));
    assert_eq!(reason(&story), Reason::Tried);
}

#[test]
fn not_resumable() {
    let mut story = story();
    story.resume = Some(variant(SMALL));
    assert!(matches!(reason(&story), Reason::NotResumable(_)));
}

#[test]
fn no_candidate_for_a_service_that_nobody_knows() {
    let mut story = story();
    story.request.service = crate::ids::ServiceId::new("other").expect("good");
    assert!(matches!(story.decide::<LeastLoaded>(), Action::Refuse { reason: Reason::NoCandidate, .. }));
}

#[test]
fn what_time_may_lift_is_waited_for() {
    let story = story().here(SMALL, 10.0).busy(CLOUD, LARGE, 4, 8);
    let mut strict = story;
    strict.request.needs.slo.min_quality = Quality::new(0.5).expect("good");
    assert!(matches!(strict.decide::<LeastLoaded>(), Action::Wait { reason: Reason::Busy, .. }));
}

#[test]
fn a_refusal_gives_the_reason_of_whoever_came_closest() {
    let mut story = story().here(SMALL, 10.0);
    story.request.needs.slo.min_quality = Quality::new(0.5).expect("good");
    story.request.needs.slo.end_to_end = Some(Micros::from_millis(150));
    let action = story.decide::<LeastLoaded>();
    assert!(matches!(action, Action::Refuse { reason: Reason::Deadline { .. }, .. }), "{action:?}");
}
