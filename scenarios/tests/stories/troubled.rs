//! A hundred days on which anything may happen.

use crate::fleet::{Fleet, node, variant, whole, within};
use scenarios::sim::{Answer, Truth};
use shared::ids::RequestId;
use shared::plan::{Decision, Split, Verdict};
use shared::units::Micros;
use shared::work::{LayerRange, Needs, Residency};

/// Chance that is an argument: xorshift, seeded and printed.
struct Dice(u64);

impl Dice {
    fn roll(&mut self, sides: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % sides
    }
}

fn seed() -> u64 {
    let given = std::env::var("TIDEGATE_SEED").ok().and_then(|text| text.parse().ok());
    let fresh = || std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_secs());
    given.unwrap_or_else(fresh).max(1)
}

/// Anything may happen at any time: processes die and come back, links are cut and heal, engines break, clients leave. Every request
/// ends, no client gets two answers or a wrong token, what may not leave a site does not, and in the end everything is as before.
#[test]
fn a_hundred_troubled_days() {
    troubled_days(Fleet::new, [200, 1, 0]);
}

/// The same where the good model fits nobody: left and right hold half of it each, the cloud the second half too. Attempts of two
/// nodes break at either, and their hidden states stay where the text may be.
#[test]
fn a_hundred_troubled_days_of_splits() {
    let part = |from, to| {
        let range = LayerRange { from, to, of: 30 };
        vec![Truth::new(&variant("large"), 2, 90).holding(range)]
    };
    let fleet = || {
        let mut left = part(0, 15);
        left.push(Truth::new(&variant("small"), 1, 20));
        Fleet::of([part(15, 30), left, part(15, 30)], 2)
    };
    troubled_days(fleet, [100, 0, 20]);
}

/// `least` says how many answers must be whole, how many of them continued elsewhere, and how many given by several nodes: with fewer,
/// little was tried.
fn troubled_days(make: impl Fn() -> Fleet, least: [usize; 3]) {
    let seed = seed();
    println!("TIDEGATE_SEED={seed}");
    let mut sums = [0; 5];
    for day in 0..100 {
        let mut dice = Dice(seed.wrapping_add(day).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        println!("day {day}");
        for (sum, more) in sums.iter_mut().zip(trouble(&mut dice, make())) {
            *sum += more;
        }
    }
    let [whole, resumed, errors, lost, split] = sums;
    println!(
        "{whole} whole answers, {resumed} of them continued elsewhere and {split} by several nodes, {errors} typed errors, {lost} died with their ingress"
    );
    assert!(whole >= least[0] && resumed >= least[1] && errors > 20 && split >= least[2], "these were no troubled days");
}

/// Returns how many answers were whole, how many of those were fed by several attempts, how many failed, how many had no end, and how
/// many of the whole ones several nodes gave together.
fn trouble(dice: &mut Dice, mut fleet: Fleet) -> [usize; 5] {
    let hosts = [fleet.cloud, fleet.left, fleet.right];
    let mut asked: Vec<(RequestId, usize, Residency)> = vec![];
    for _ in 0..60 {
        let host = hosts[usize::try_from(dice.roll(3)).expect("small")];
        match dice.roll(14) {
            0 => fleet.universe.kill(host),
            1 | 2 if fleet.universe.agent(host).is_none() => fleet.universe.restart(host),
            3 => fleet.universe.cut(host),
            4 => fleet.universe.isolate(host),
            5 | 6 => fleet.universe.heal(host),
            7 => fleet.universe.kill_hub(),
            8 if fleet.universe.hub().is_none() => fleet.universe.restart_hub(),
            9 => fleet.universe.break_engine(host, Some("it broke")),
            10 => fleet.universe.break_engine(host, None),
            11 => {
                if let Some((id, at, _)) = asked.last().copied()
                    && fleet.universe.client(id).answer.is_none()
                    && fleet.universe.agent(at).is_some()
                {
                    fleet.universe.leave(at, id);
                }
            }
            _ => {
                if fleet.universe.agent(host).is_some() {
                    let residency =
                        [Residency::Anywhere, Residency::Site, Residency::Node][usize::try_from(dice.roll(3)).expect("small")];
                    asked.push((fleet.ask(host, within(residency)), host, residency));
                }
            }
        }
        fleet.universe.pass(Micros::from_millis(dice.roll(1_500)));
    }
    recover(&mut fleet);
    for (id, host, residency) in asked {
        judge(&fleet, id, host, residency);
    }
    for host in hosts {
        assert_eq!(fleet.universe.executing(host), 0, "no execution without an owner");
    }
    let all: Vec<_> = fleet.universe.clients().map(|(_, client)| client.clone()).collect();
    let is_whole = |client: &&scenarios::sim::Client| client.answer.as_ref().is_some_and(whole);
    let counts = [
        all.iter().filter(is_whole).count(),
        all.iter().filter(is_whole).filter(|client| client.fed_by.len() > 1).count(),
        all.iter().filter(|client| matches!(client.answer, Some(Answer::Error(_)))).count(),
        all.iter().filter(|client| client.answer.is_none()).count(),
        all.iter().filter(is_whole).filter(|client| client.decision.as_ref().is_some_and(is_split)).count(),
    ];
    fleet.settle();
    let id = fleet.ask(fleet.left, Needs::default());
    assert!(whole(&fleet.finish(id)), "all is well again: {:?}", fleet.universe.client(id).record);
    fleet.over();
    counts
}

fn is_split(decision: &Decision) -> bool {
    matches!(&decision.verdict, Verdict::Assign(choice) if choice.candidate.split != Split::Whole)
}

/// All links heal, all engines work, all processes run, and time enough passes for everything to end.
fn recover(fleet: &mut Fleet) {
    for host in [fleet.cloud, fleet.left, fleet.right] {
        fleet.universe.heal(host);
        fleet.universe.break_engine(host, None);
        if fleet.universe.agent(host).is_none() {
            fleet.universe.restart(host);
        }
    }
    if fleet.universe.hub().is_none() {
        fleet.universe.restart_hub();
    }
    fleet.universe.pass(Micros::from_secs(400));
}

/// What must hold of one request, whatever happened.
fn judge(fleet: &Fleet, id: RequestId, host: usize, residency: Residency) {
    let client = fleet.universe.client(id);
    // The ingress may have died with the request: then its client lost the connection, which is an answer too.
    let lives = fleet.universe.agent(host).is_some_and(|agent| agent.core().requests_open() == 0);
    assert!(lives, "{id}: its ingress still holds a request");
    let site = ["cloud/gpu", "site-1/left", "site-1/right"].map(node)[host].site();
    for seen in &client.seen_by {
        let fine = match residency {
            Residency::Anywhere => true,
            Residency::Site => site.contains(seen),
            Residency::Node => *seen == ["cloud/gpu", "site-1/left", "site-1/right"].map(node)[host],
        };
        assert!(fine, "{id}: {residency:?}, yet {seen} saw it");
    }
}
