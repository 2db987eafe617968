//! What every dispatch policy owes.

use crate::asks::Ask;
use crate::brute::{Verdict, judge_all};
use crate::fleets::{Flavour, Instance, Naming, run_seed};
use shared::plan::{Actual, Candidate, Choice, DispatchSetting, Finish, Outcome, Reason, Split};
use shared::policy::dispatch::{Action, Assessment, DispatchEvent, Dispatcher, TABLE};
use shared::units::Micros;
use shared::work::Needs;

const ROUNDS: u64 = 150;
const PLAIN: Naming = Naming { reversed: false };
const REVERSED: Naming = Naming { reversed: true };

fn instances(seed: u64) -> impl Iterator<Item = (u64, Flavour, Instance)> {
    let each = move |round| Flavour::ALL.into_iter().map(move |flavour| (seed.wrapping_add(round), flavour));
    (0..ROUNDS).flat_map(each).map(|(seed, flavour)| (seed, flavour, Instance::generate(seed, PLAIN, flavour)))
}

fn policy(name: &str) -> Dispatcher {
    Dispatcher::new(&DispatchSetting { policy: name.to_owned(), config: serde_json::Value::Null }).expect("a row of the table")
}

fn arrival(policy: &mut Dispatcher, instance: &Instance, ask: &Ask) -> Vec<Action> {
    let scene = instance.scene();
    let pending = ask.pending();
    let assessment = scene.assess(&pending);
    let mut actions = Vec::new();
    policy.on_event(&scene, &DispatchEvent::Arrival(&pending, &assessment), &mut actions);
    actions
}

fn chosen<'a>(action: &Action, assessment: &'a Assessment) -> Option<&'a Choice> {
    match action {
        Action::Assign { candidate, .. } => assessment.feasible.iter().find(|choice| choice.candidate == *candidate),
        _ => None,
    }
}

#[test]
fn an_assessment_holds_exactly_the_feasible_candidates() {
    let mut splits = 0;
    for (seed, flavour, instance) in instances(run_seed()) {
        for ask in &instance.asks {
            let assessment = instance.scene().assess(&ask.pending());
            splits += assessment.feasible.iter().filter(|choice| choice.candidate.split != Split::Whole).count();
            let mut found: Vec<_> = assessment.feasible.iter().map(|choice| &choice.candidate).collect();
            found.sort();
            let nodes = |c: &Candidate| c.nodes().cloned().collect::<Vec<_>>();
            let mut found: Vec<_> = found.iter().map(|c| (nodes(c), Some(c.hop), &c.variant)).collect();
            found.sort();
            let verdicts = judge_all(&instance, ask);
            let mut wanted: Vec<_> =
                verdicts.iter().filter(|v| v.feasible()).map(|v| (v.nodes.clone(), v.hop, &v.variant)).collect();
            wanted.sort();
            assert_eq!(found, wanted, "seed {seed} {flavour:?} {ask:?}");
            for rejected in &assessment.rejected {
                let nodes: Vec<_> = rejected.nodes().cloned().collect();
                let verdict = verdicts
                    .iter()
                    .find(|v| v.nodes == nodes && v.split != rejected.stages.is_empty() && v.variant == rejected.variant);
                let code = rejected.reason.code();
                let known = verdict.is_none_or(|v| v.hurdles.iter().any(|hurdle| hurdle.code == code));
                assert!(known, "seed {seed} {flavour:?}: {rejected:?} is not so");
            }
        }
    }
    assert!(splits > 10, "{splits} splits were feasible: too few to say anything");
}

#[test]
fn each_arrival_is_answered_once_and_rightly() {
    let seed = run_seed();
    for row in TABLE {
        let mut assigned = 0;
        for (seed, flavour, instance) in instances(seed) {
            for ask in &instance.asks {
                let actions = arrival(&mut policy(row.name), &instance, ask);
                let [action] = actions.as_slice() else { panic!("seed {seed} {flavour:?}: {} gave {actions:?}", row.name) };
                assert_eq!(action.request(), ask.request.id);
                let fault = unjustified(row.name, action, &judge_all(&instance, ask));
                assert_eq!(fault, None, "seed {seed} {flavour:?}: {} gave {action:?} for {ask:?}", row.name);
                assigned += u32::from(matches!(action, Action::Assign { .. }));
            }
        }
        assert!(assigned > 0, "{} never serves anybody", row.name);
    }
}

/// What is wrong with an answer in view of all candidates, if anything.
fn unjustified(policy: &str, action: &Action, verdicts: &[Verdict]) -> Option<&'static str> {
    match action {
        Action::Assign { candidate, .. } => {
            let nodes: Vec<_> = candidate.nodes().cloned().collect();
            let split = candidate.split != Split::Whole;
            let fits = |v: &&Verdict| {
                v.nodes == nodes && v.split == split && v.variant == candidate.variant && v.hop == Some(candidate.hop)
            };
            (!verdicts.iter().find(fits).is_some_and(Verdict::feasible)).then_some("the candidate is not feasible")
        }
        Action::Wait { reason, .. } => {
            let so = verdicts.iter().flat_map(|v| &v.hurdles).any(|hurdle| hurdle.passes && hurdle.code == reason.code());
            // A granted node that is not in the view has no verdict, and `Unknown` never passes.
            (!so || !reason.passes()).then_some("nothing to wait for")
        }
        Action::Refuse { reason: Reason::Policy(name), .. } => (name != policy).then_some("speaks for another policy"),
        Action::Refuse { .. } if verdicts.iter().any(Verdict::feasible) => Some("somebody could serve it"),
        Action::Refuse { .. } if verdicts.iter().any(Verdict::hopeful) => Some("somebody may serve it soon"),
        Action::Refuse { .. } => None,
    }
}

#[test]
fn waiting_requests_are_answered_at_most_once_each() {
    for row in TABLE {
        for (seed, _, instance) in instances(run_seed()) {
            let scene = instance.scene();
            let pendings: Vec<_> = instance.asks.iter().map(Ask::pending).collect();
            for event in [DispatchEvent::SlotIdle(&pendings), DispatchEvent::Tick(&pendings)] {
                let mut actions = Vec::new();
                policy(row.name).on_event(&scene, &event, &mut actions);
                let mut about: Vec<_> = actions.iter().map(Action::request).collect();
                about.sort();
                about.dedup();
                assert_eq!(about.len(), actions.len(), "seed {seed}: {} answers twice", row.name);
                for action in &actions {
                    let ask = instance.asks.iter().find(|ask| ask.request.id == action.request());
                    let ask = ask.expect("an answer about a request that waits");
                    assert_eq!(unjustified(row.name, action, &judge_all(&instance, ask)), None, "seed {seed}: {action:?}");
                }
            }
        }
    }
}

/// Feeds everything that can happen to a policy, in a fixed order.
fn live(policy: &mut Dispatcher, instance: &Instance) -> Vec<Action> {
    let scene = instance.scene();
    let mut all = Vec::new();
    for ask in &instance.asks {
        let pending = ask.pending();
        let assessment = scene.assess(&pending);
        let actions = arrival(policy, instance, ask);
        for choice in actions.iter().filter_map(|action| chosen(action, &assessment)) {
            let actual =
                Actual { first_token: Some(choice.estimate.first_token), total: choice.estimate.total, ..Actual::default() };
            let event = DispatchEvent::Outcome {
                request: ask.request.id,
                node: &choice.candidate.node,
                variant: &choice.candidate.variant,
                choice,
                actual: &actual,
                outcome: &Outcome::Answered(Finish::Stop),
            };
            let mut said = Vec::new();
            policy.on_event(&scene, &event, &mut said);
            assert!(said.iter().all(|action| action.request() != ask.request.id), "a finished request needs no answer");
        }
        all.extend(actions);
    }
    let pendings: Vec<_> = instance.asks.iter().map(Ask::pending).collect();
    policy.on_event(&scene, &DispatchEvent::Tick(&pendings), &mut all);
    all
}

#[test]
fn same_input_gives_the_same_output_also_after_being_written_down() {
    for row in TABLE {
        let mut original = policy(row.name);
        for (seed, _, instance) in instances(run_seed()).take(200) {
            let written = serde_json::to_string(&original).expect("can be written");
            let mut restored: Dispatcher = serde_json::from_str(&written).expect("can be read");
            assert_eq!(restored, original);
            assert_eq!(live(&mut restored, &instance), live(&mut original, &instance), "seed {seed}: {}", row.name);
            assert_eq!(restored, original, "seed {seed}: {} ends in another state", row.name);
        }
    }
}

#[test]
fn names_and_order_of_nodes_do_not_matter() {
    let seed = run_seed();
    for row in TABLE {
        for (seed, flavour, one) in instances(seed) {
            let other = Instance::generate(seed, REVERSED, flavour);
            for (ask, renamed) in one.asks.iter().zip(&other.asks) {
                let quality = |instance: &Instance, ask: &Ask| {
                    let assessment = instance.scene().assess(&ask.pending());
                    let action = arrival(&mut policy(row.name), instance, ask).remove(0);
                    (std::mem::discriminant(&action), chosen(&action, &assessment).map(|choice| choice.estimate.clone()))
                };
                assert_eq!(quality(&one, ask), quality(&other, renamed), "seed {seed} {flavour:?}: {}", row.name);
            }
        }
    }
}

#[test]
fn claims_over_other_policies_hold() {
    let seed = run_seed();
    for (row, claim) in TABLE.iter().flat_map(|row| row.claims.iter().map(move |claim| (row, claim))) {
        let mut compared = 0;
        for (seed, flavour, mut instance) in instances(seed) {
            for ask in &mut instance.asks {
                ask.request.needs = Needs::default();
            }
            for ask in &instance.asks {
                let assessment = instance.scene().assess(&ask.pending());
                let total = |name| {
                    let action = arrival(&mut policy(name), &instance, ask).remove(0);
                    chosen(&action, &assessment).map(|choice| choice.estimate.total)
                };
                if let Some(naive) = total(claim.never_worse_than) {
                    let own = total(row.name).expect("serves whatever the other one serves");
                    let most = naive.scale(1.0 + claim.slack) + Micros(1);
                    assert!(own <= most, "seed {seed} {flavour:?}: {} {own}, {claim:?} {naive}", row.name);
                    compared += 1;
                }
            }
        }
        assert!(compared > 0, "{} and {} never met", row.name, claim.never_worse_than);
    }
}
