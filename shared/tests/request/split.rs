//! A request that is split over several nodes, as its ingress and as one of its executors sees it.

use super::{Story, USAGE, broken, node, replica, request, variant};
use shared::fleet::{Costs, FleetDelta, Hop, Load, NodeState, PathReport, ReplicaReport, Tier};
use shared::ids::{AttemptId, NodeId, RequestId, ServiceId};
use shared::plan::{Failure, Grant, Reason, Split, Stage, StageGrant, Target, Verdict};
use shared::policy::dispatch::SplitRules;
use shared::request::{AttemptEvent, Effect, Event};
use shared::units::{Bytes, Fraction, Micros, Tokens};
use shared::work::{ExecHeader, HeldLayers, LayerRange, LlmRequest, Precision, Residency};

const ME: &str = "s/edge";
const PEER: &str = "s/peer";
const CLOUD: &str = "cloud/big";

const fn layers(from: u16, to: u16) -> LayerRange {
    LayerRange { from, to, of: 12 }
}

fn part(range: LayerRange, slots: u32) -> ReplicaReport {
    ReplicaReport { layers: Some(HeldLayers { range, hidden: Bytes(64) }), ..replica(slots, 50.0) }
}

fn split(stages: &[(&str, u16, u16)]) -> Target {
    let stage = |(name, from, to): &(&str, u16, u16)| StageGrant {
        node: node(name),
        layers: layers(*from, *to),
        path: PathReport::with_rtt(Hop::Relay, Micros::from_millis(20)),
    };
    Target {
        node: node(stages[0].0),
        variant: variant(),
        share: Fraction::default(),
        open_max: 8,
        stages: stages.iter().map(stage).collect(),
    }
}

/// The edge and a fourth node hold the first half, peer and cloud the second.
fn halves(targets: Vec<Target>) -> Story {
    let mut story = Story::new(1.0, 1.0, 1.0);
    story.tell(Event::Replicas(vec![part(layers(0, 6), 1)]));
    for name in [PEER, CLOUD] {
        story.fleet(FleetDelta::Replicas { node: node(name), replicas: vec![part(layers(6, 12), 2)], age: Micros::ZERO });
    }
    let front = node("s/front");
    story.fleet(FleetDelta::Node { node: front.clone(), tier: Tier::Device, costs: Costs::default(), addresses: vec![] });
    story.fleet(FleetDelta::State { node: front.clone(), state: NodeState::Online });
    story.fleet(FleetDelta::Path { node: front.clone(), path: PathReport::with_rtt(Hop::Direct, Micros::from_millis(1)) });
    story.fleet(FleetDelta::Replicas { node: front, replicas: vec![part(layers(0, 6), 2)], age: Micros::ZERO });
    let id = ServiceId::new("assistant").expect("name");
    story.tell(Event::Granted(Grant { targets: [(id, targets)].into(), ..Grant::default() }));
    story
}

fn from_here(second: &str) -> Target {
    split(&[(ME, 0, 6), (second, 6, 12)])
}

fn header(story: &Story) -> ExecHeader {
    let found = story.effects.iter().find_map(|effect| match effect {
        Effect::Send { header, .. } | Effect::Run(header) => Some(header.clone()),
        _ => None,
    });
    found.expect("an attempt begins")
}

fn stage_failed(at: &str, failure: Failure) -> AttemptEvent {
    AttemptEvent::Failed(Failure::Stage { node: node(at), failure: Box::new(failure) })
}

fn nodes(header: &ExecHeader) -> Vec<NodeId> {
    header.stages.iter().map(|stage| stage.node.clone()).collect()
}

#[test]
fn the_header_carries_the_stages_and_the_record_names_them() {
    let mut story = halves(vec![from_here(PEER)]);
    story.tell(Event::Arrived(request(1)));
    let header = header(&story);
    assert!(
        matches!(story.effects.iter().find(|effect| matches!(effect, Effect::Run(_))), Some(Effect::Run(_))),
        "it runs here first"
    );
    assert_eq!(nodes(&header), [node(ME), node(PEER)]);
    assert_eq!((header.attempt.stage, header.precision), (0, Precision::F32));
    let next = header.next_stage().expect("one more");
    assert_eq!((next.target.clone(), next.attempt.stage, next.sender().cloned()), (node(PEER), 1, Some(node(ME))));
    assert_eq!(story.core.replicas()[0].load.active, 1, "the first stage has a slot here");
    story.tell(Event::Engine(header.attempt, AttemptEvent::Content(Tokens(1))));
    story.tell(Event::Engine(header.attempt, AttemptEvent::Ended(shared::plan::Finish::Stop, USAGE)));
    let record = story.record().expect("record");
    let Verdict::Assign(choice) = &record.attempts[0].decision.verdict else { panic!("{record:?}") };
    let Split::Layers(stages) = &choice.candidate.split else { panic!("{choice:?}") };
    assert_eq!(stages.iter().map(|stage| &stage.node).collect::<Vec<_>>(), [&node(ME), &node(PEER)]);
    assert_eq!(record.served_by, Some((node(ME), variant())));
    assert_eq!(story.core.replicas()[0].load.active, 0);
}

#[test]
fn a_failed_stage_is_to_blame_and_not_the_first() {
    let mut story = halves(vec![from_here(PEER), from_here(CLOUD)]);
    story.tell(Event::Arrived(request(1)));
    let first = header(&story);
    let (failed, other) = if nodes(&first)[1] == node(PEER) { (PEER, CLOUD) } else { (CLOUD, PEER) };
    story.tell(Event::Engine(first.attempt, stage_failed(failed, Failure::Engine("its memory failed".to_owned()))));
    let second = header(&story);
    assert_eq!(nodes(&second), [node(ME), node(other)], "the first stage was not at fault");
    assert_eq!(second.attempt.number, 1);
    story.tell(Event::Engine(second.attempt, AttemptEvent::Ended(shared::plan::Finish::Stop, USAGE)));
    // The next request does not go there either.
    story.tell(Event::Arrived(request(2)));
    assert_eq!(nodes(&header(&story))[1], node(other));
}

#[test]
fn a_failure_from_far_down_the_chain_is_the_last_ones() {
    let inner = Failure::Stage { node: node("s/last"), failure: Box::new(Failure::Broken("s/last".to_owned())) };
    let outer = Failure::Stage { node: node("s/middle"), failure: Box::new(inner) };
    assert_eq!(outer.origin(), (Some(&node("s/last")), &Failure::Broken("s/last".to_owned())));
    assert!(outer.elsewhere());
    assert_eq!(outer.code(), "broken");
}

#[test]
fn who_blames_a_stranger_is_to_blame() {
    let mut story = halves(vec![split(&[("s/front", 0, 6), (PEER, 6, 12)]), from_here(CLOUD)]);
    story.fleet(FleetDelta::Replicas { node: node(CLOUD), replicas: vec![], age: Micros::ZERO });
    story.tell(Event::Arrived(request(1)));
    let first = header(&story);
    assert_eq!(nodes(&first), [node("s/front"), node(PEER)]);
    story.tell(Event::Remote(first.attempt, stage_failed(CLOUD, Failure::Engine("so it says".to_owned()))));
    let decided = story.effects.iter().find_map(|effect| match effect {
        Effect::Decided(decision) => Some(decision.rejected.clone()),
        _ => None,
    });
    let rejected = decided.expect("it is decided anew");
    let split = rejected.iter().find(|one| one.stages.contains(&node("s/front"))).expect("looked at");
    assert_eq!((&split.node, &split.reason), (&node("s/front"), &Reason::Suspect));
}

#[test]
fn a_busy_stage_is_no_suspect_and_is_waited_for() {
    let mut story = halves(vec![from_here(PEER)]);
    story.tell(Event::Arrived(request(1)));
    let first = header(&story);
    story.tell(Event::Engine(first.attempt, stage_failed(PEER, Failure::Refused(Reason::Busy))));
    assert_eq!(story.failure(), None, "it waits");
    let free = Load { slots: 2, queue_max: 4, ..Load::default() };
    story.fleet(FleetDelta::Load { node: node(PEER), variant: variant(), load: free });
    assert_eq!(nodes(&header(&story)), [node(ME), node(PEER)], "and goes there once there is room");
}

#[test]
fn open_attempts_count_at_every_stage() {
    let mut target = split(&[("s/front", 0, 6), (PEER, 6, 12)]);
    target.open_max = 1;
    let mut story = halves(vec![target]);
    story.tell(Event::Arrived(request(1)));
    let first = header(&story);
    story.tell(Event::Arrived(request(2)));
    assert!(!story.effects.iter().any(|effect| matches!(effect, Effect::Send { .. })), "the bound is one");
    story.tell(Event::Remote(first.attempt, AttemptEvent::Ended(shared::plan::Finish::Stop, USAGE)));
    assert!(story.effects.iter().any(|effect| matches!(effect, Effect::Send { .. })));
}

#[test]
fn a_broken_stream_goes_on_only_if_its_states_were_not_rounded() {
    for (precision, goes_on) in [(Precision::F32, true), (Precision::F16, false)] {
        let mut story = halves(vec![split(&[("s/front", 0, 6), (PEER, 6, 12)]), split(&[("s/front", 0, 6), (CLOUD, 6, 12)])]);
        let rules = SplitRules { precision, ..SplitRules::default() };
        let mut json = serde_json::to_value(&story.core).expect("a snapshot");
        json["config"]["splits"] = serde_json::to_value(rules).expect("written");
        story.core = serde_json::from_value(json).expect("read");
        story.tell(Event::Arrived(request(1)));
        let first = header(&story);
        assert_eq!(first.precision, precision);
        let failed = nodes(&first)[1].to_string();
        story.tell(Event::Remote(first.attempt, AttemptEvent::Accepted(Load { slots: 2, ..Load::default() })));
        story.tell(Event::Remote(first.attempt, AttemptEvent::Content(Tokens(3))));
        story.tell(Event::Remote(first.attempt, stage_failed(&failed, Failure::Broken(failed.clone()))));
        let resumed = story.effects.iter().find_map(|effect| match effect {
            Effect::Send { header, .. } => Some((header.resume_from, nodes(header)[1].to_string() == failed)),
            _ => None,
        });
        assert_eq!(resumed, goes_on.then_some((Tokens(3), false)), "{precision:?}");
        assert_eq!(story.failure().is_some(), !goes_on);
    }
}

/// The header of a later stage as another ingress' attempt, or the own one's, brings it here.
fn offered(ingress: &str, stages: &[(&str, u16, u16)], number: u8) -> ExecHeader {
    let attempt = AttemptId::new(RequestId(77), 0);
    let target = stages[usize::from(number)].0;
    let mut header = ExecHeader::new(&request(77), attempt.at_stage(number), node(ingress), node(target), variant());
    let stage = |(name, from, to): &(&str, u16, u16)| Stage { node: node(name), hop: Hop::Relay, layers: layers(*from, *to) };
    header.stages = stages.iter().map(stage).collect();
    header
}

fn answer(story: &mut Story, from: &str, header: ExecHeader) -> Option<Reason> {
    story.tell(Event::Offered { from: node(from), header });
    let answer = story.effects.iter().find_map(|effect| match effect {
        Effect::Accept(..) => Some(None),
        Effect::Refuse(_, reason, _) => Some(Some(reason.clone())),
        _ => None,
    });
    answer.expect("each offer is answered")
}

#[test]
fn a_stage_is_taken_from_the_stage_before_it_and_from_nobody_else() {
    let stages = [("s/front", 0, 6), (ME, 6, 12)];
    let mut story = halves(vec![]);
    story.tell(Event::Replicas(vec![part(layers(6, 12), 1)]));
    for from in ["s/peer", "cloud/big"] {
        assert_eq!(answer(&mut story, from, offered("s/peer", &stages, 1)), Some(Reason::NotGranted), "{from}");
    }
    assert_eq!(answer(&mut story, "s/front", offered("s/peer", &stages, 1)), None);
    assert_eq!(story.core.replicas()[0].load.active, 1, "a stage has its slot");
    story.tell(Event::Withdrawn(AttemptId::new(RequestId(77), 0).at_stage(1)));
    assert!(story.effects.iter().any(|effect| matches!(effect, Effect::Abort(attempt) if attempt.stage == 1)));
}

#[test]
fn an_executor_refuses_layers_that_it_does_not_hold() {
    let mut story = halves(vec![]);
    let held = Reason::Part(layers(0, 6));
    assert_eq!(answer(&mut story, "s/front", offered("s/peer", &[("s/front", 0, 6), (ME, 6, 12)], 1)), Some(held.clone()));
    assert_eq!(answer(&mut story, "s/peer", offered("s/peer", &[(ME, 0, 7), ("s/front", 7, 12)], 0)), Some(held.clone()));
    let whole = ExecHeader::new(&request(5), AttemptId::new(RequestId(5), 0), node("s/peer"), node(ME), variant());
    assert_eq!(answer(&mut story, "s/peer", whole), Some(held), "half of it is not all of it");
    story.tell(Event::Replicas(vec![replica(1, 50.0)]));
    let unable = answer(&mut story, "s/peer", offered("s/peer", &[(ME, 0, 6), ("s/front", 6, 12)], 0));
    assert_eq!(unable, Some(Reason::Capability("layers".to_owned())));
}

#[test]
fn stages_that_make_no_split_are_refused() {
    let mut story = halves(vec![]);
    for stages in [
        &[(ME, 0, 6)][..],
        &[(ME, 0, 5), ("s/front", 6, 12)],
        &[(ME, 0, 6), ("s/front", 6, 11)],
        &[(ME, 0, 6), ("s/b", 6, 7), ("s/c", 7, 8), ("s/d", 8, 9), ("s/e", 9, 12)],
    ] {
        assert_eq!(answer(&mut story, "s/peer", offered("s/peer", stages, 0)), Some(Reason::NotGranted), "{stages:?}");
    }
    let mut beyond = offered("s/peer", &[(ME, 0, 6), ("s/front", 6, 12)], 0);
    beyond.attempt.stage = 9;
    assert_eq!(answer(&mut story, "s/peer", beyond), Some(Reason::NotGranted));
    let mut none = offered("s/peer", &[(ME, 0, 6), ("s/front", 6, 12)], 0);
    (none.stages, none.attempt.stage) = (Vec::new(), 1);
    assert_eq!(answer(&mut story, "s/peer", none), Some(Reason::NotGranted), "a later stage of nothing");
}

#[test]
fn an_executor_refuses_a_split_that_would_carry_the_text_out() {
    let mut story = halves(vec![]);
    let inside = |hop| {
        let mut header = offered("s/peer", &[(ME, 0, 6), ("s/front", 6, 12)], 0);
        header.residency = Residency::Site.resolve(&node("s/peer"));
        header.stages[0].hop = Hop::Direct;
        header.stages[1].hop = hop;
        header
    };
    assert_eq!(answer(&mut story, "s/peer", inside(Hop::Relay)), Some(Reason::Residency), "the hub is outside");
    let mut outside = inside(Hop::Direct);
    outside.stages[1].node = node("cloud/big");
    assert_eq!(answer(&mut story, "s/peer", outside), Some(Reason::Residency));
    assert_eq!(answer(&mut story, "s/peer", inside(Hop::Direct)), None);
}

#[test]
fn the_ingress_may_be_a_later_stage_of_its_own_request() {
    let mut story = halves(vec![split(&[("s/front", 0, 6), (ME, 6, 12)])]);
    story.tell(Event::Replicas(vec![part(layers(6, 12), 1)]));
    story.tell(Event::Arrived(request(1)));
    let first = header(&story);
    assert_eq!((first.target.clone(), nodes(&first)), (node("s/front"), vec![node("s/front"), node(ME)]));
    let second = first.next_stage().expect("here");
    story.tell(Event::Offered { from: node("s/front"), header: second.clone() });
    assert!(
        matches!(story.effects.first(), Some(Effect::Accept(attempt, _)) if *attempt == second.attempt),
        "{:?}",
        story.effects
    );
    // News of the stage here are no news of the attempt.
    assert!(
        !story.tell(Event::Engine(second.attempt, AttemptEvent::Content(Tokens(1)))).contains(&Effect::Deliver(first.attempt))
    );
    assert!(story.tell(Event::Remote(first.attempt, AttemptEvent::Content(Tokens(1)))).contains(&Effect::Deliver(first.attempt)));
    story.tell(Event::Engine(second.attempt, AttemptEvent::Failed(Failure::ClientGone)));
    assert_eq!(story.core.requests_open(), 1, "what ends the stage here ends the attempt by way of the first stage");
    assert_eq!(story.core.replicas()[0].load.active, 0);
    story.tell(Event::Remote(first.attempt, AttemptEvent::Ended(shared::plan::Finish::Stop, USAGE)));
    assert_eq!(story.record().map(|record| record.served_by), Some(Some((node("s/front"), variant()))));
}

#[test]
fn a_dead_first_stage_is_a_dead_node_like_any_other() {
    let mut story = halves(vec![split(&[("s/front", 0, 6), (PEER, 6, 12)]), from_here(PEER)]);
    story.tell(Event::Arrived(LlmRequest { output_max: Tokens(50), ..request(1) }));
    let first = header(&story);
    let failed = if first.target == node(ME) {
        story.tell(Event::Engine(first.attempt, broken()));
        node(ME)
    } else {
        story.tell(Event::Remote(first.attempt, broken()));
        node("s/front")
    };
    let second = header(&story);
    assert_ne!(second.target, failed);
    assert_eq!(nodes(&second)[1], node(PEER), "the second half is as good as ever");
}
