//! Choice, residency, bounds, and what operators and clients wish.

use crate::fleet::{Fleet, node, request, variant, whole, within};
use cloud_hub::logic::AdminOperation;
use scenarios::sim::Answer;
use shared::fleet::{Hop, NodeState};
use shared::ids::NodeId;
use shared::plan::{Failure, Outcome, Verdict};
use shared::units::{Micros, Quality};
use shared::work::{Needs, Residency, Slo};

#[test]
fn a_request_goes_where_it_is_answered_soonest_and_says_why() {
    let mut fleet = Fleet::new();
    let id = fleet.ask(fleet.left, Needs::default());
    assert!(whole(&fleet.finish(id)));
    assert_eq!(fleet.served_by(id), Some(node("cloud/gpu")), "ten times as fast, 40 ms away");
    let record = fleet.universe.client(id).record.clone().expect("record");
    let decision = &record.attempts[0].decision;
    assert!(decision.others.iter().any(|other| other.candidate.node == node("site-1/left")));
    let Verdict::Assign(choice) = &decision.verdict else { panic!("{decision:?}") };
    assert_eq!(choice.candidate.hop, Hop::Relay);
    let (predicted, actual) = (choice.estimate.total.as_secs_f64(), record.actual.total.as_secs_f64());
    assert!((predicted / actual - 1.0).abs() < 0.5, "predicted {predicted} s, took {actual} s");
    fleet.over();
}

#[test]
fn residency_holds_at_every_hop() {
    for (residency, allowed) in [(Residency::Site, &["site-1/left", "site-1/right"][..]), (Residency::Node, &["site-1/left"][..])]
    {
        let mut fleet = Fleet::new();
        let mut asked = vec![];
        for _ in 0..4 {
            asked.push(fleet.ask(fleet.left, within(residency)));
            fleet.universe.pass(Micros::from_millis(100));
        }
        fleet.universe.break_engine(fleet.left, Some("its memory failed"));
        fleet.universe.cut(fleet.left);
        asked.push(fleet.ask(fleet.left, within(residency)));
        fleet.universe.pass(Micros::from_secs(1));
        fleet.universe.heal(fleet.left);
        asked.push(fleet.ask(fleet.left, within(residency)));
        for id in asked {
            let answer = fleet.finish(id);
            if let Answer::Error(failure) = &answer {
                assert!(matches!(failure, Failure::Refused(_) | Failure::Engine(_)), "{failure:?}");
            }
            let seen: Vec<_> = fleet.universe.client(id).seen_by.iter().map(NodeId::as_str).collect();
            assert!(seen.iter().all(|host| allowed.contains(host)), "{residency:?} {id}: {seen:?}");
        }
        fleet.over();
    }
}

#[test]
fn the_hub_refuses_what_may_not_pass_it() {
    let mut fleet = Fleet::new();
    for residency in [Residency::Site, Residency::Node] {
        let id = fleet.universe.ask_hub(|id| request(id, within(residency), 40));
        assert!(matches!(fleet.finish(id), Answer::Error(Failure::Refused(_))));
    }
    let id = fleet.universe.ask_hub(|id| request(id, Needs::default(), 40));
    assert!(whole(&fleet.finish(id)), "{:?}", fleet.universe.client(id).answer);
    fleet.over();
}

#[test]
fn a_busy_fleet_queues_and_refuses_within_its_bounds() {
    let mut fleet = Fleet::new();
    let needs = within(Residency::Node);
    let asked: Vec<_> = (0..200).map(|_| fleet.ask(fleet.left, needs.clone())).collect();
    let mut answered = 0;
    for id in asked {
        match fleet.finish(id) {
            answer @ Answer::Whole(..) => answered += u32::from(whole(&answer)),
            Answer::Error(failure) => assert!(matches!(failure, Failure::Refused(_)), "{failure:?}"),
        }
    }
    assert!((8..200).contains(&answered), "{answered} of 200: some are served, some are told at once");
    fleet.over();
}

#[test]
fn row_23_a_client_that_leaves_frees_the_slot_on_every_hop() {
    let mut fleet = Fleet::new();
    let id = fleet.ask(fleet.left, Needs::default());
    assert!(fleet.universe.until(Micros::from_secs(5), |universe| universe.client(id).tokens > 3));
    assert_eq!(fleet.universe.executing(fleet.cloud), 1);
    fleet.universe.leave(fleet.left, id);
    let cloud = fleet.cloud;
    assert!(fleet.universe.until(Micros::from_millis(500), |universe| universe.executing(cloud) == 0));
    let record = fleet.universe.client(id).record.clone().expect("record");
    assert_eq!(record.outcome, Outcome::Failed(Failure::ClientGone));
    fleet.over();
}

#[test]
fn drain_and_revoke_are_obeyed() {
    let mut fleet = Fleet::new();
    fleet.universe.admin(AdminOperation::Drain { node: node("cloud/gpu"), drain: true });
    fleet.universe.pass(Micros::from_secs(2));
    let id = fleet.ask(fleet.left, Needs::default());
    assert_ne!(fleet.chosen(id).map(|candidate| candidate.node), Some(node("cloud/gpu")));
    fleet.universe.admin(AdminOperation::Drain { node: node("cloud/gpu"), drain: false });
    fleet.universe.pass(Micros::from_secs(3));
    let again = fleet.ask(fleet.right, Needs::default());
    assert_eq!(fleet.chosen(again).map(|candidate| candidate.node), Some(node("cloud/gpu")));
    for id in [id, again] {
        assert!(whole(&fleet.finish(id)));
    }
    fleet.universe.admin(AdminOperation::Revoke(node("cloud/gpu")));
    fleet.universe.pass(Micros::from_secs(10));
    let last = fleet.ask(fleet.left, Needs::default());
    assert_ne!(fleet.chosen(last).map(|candidate| candidate.node), Some(node("cloud/gpu")));
    assert!(whole(&fleet.finish(last)));
    assert_ne!(fleet.universe.state_of(&node("cloud/gpu")), Some(NodeState::Online));
    fleet.over();
}

#[test]
fn deadlines_and_quality_steer_the_choice() {
    let mut fleet = Fleet::new();
    let good = Needs { slo: Slo { min_quality: Quality::new(0.7).expect("quality"), ..Slo::default() }, ..Needs::default() };
    let id = fleet.ask(fleet.left, good.clone());
    assert_eq!(fleet.chosen(id).map(|candidate| candidate.variant), Some(variant("large")));
    let home = Needs { residency: Residency::Site, ..good };
    let never = fleet.ask(fleet.left, home);
    assert!(matches!(fleet.finish(never), Answer::Error(Failure::Refused(_))), "no good model inside the site");
    let hurry = Needs { slo: Slo { end_to_end: Some(Micros::from_millis(1)), ..Slo::default() }, ..Needs::default() };
    let late = fleet.ask(fleet.left, hurry);
    assert!(matches!(fleet.finish(late), Answer::Error(Failure::Refused(_) | Failure::DeadlineExceeded)));
    assert!(whole(&fleet.finish(id)));
    fleet.over();
}
