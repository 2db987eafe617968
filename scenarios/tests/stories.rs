//! Stories told in the tiny universe: the code of hub and agents, virtual time, links that are cut and processes that die.
//!
//! Every story ends with `over`, which replays each process' capture and demands equal effects. While a story runs, the universe
//! itself checks that no client gets two answers, a token twice, or a token too few.

use cloud_hub::logic::{AdminOperation, Note};
use scenarios::sim::{AgentSpec, Answer, Truth, Universe, UniverseConfig};
use shared::fleet::{Hop, NodeState, Tier};
use shared::ids::{NodeId, RequestId, ServiceId, VariantId};
use shared::plan::{Candidate, Failure, Finish, Outcome, Verdict};
use shared::units::{Bytes, Micros, Quality, Tokens};
use shared::work::{Features, LlmRequest, Needs, PromptKind, Residency, Service, Slo, Variant};

const HEARTBEAT: Micros = Micros::from_secs(5);

fn node(name: &str) -> NodeId {
    NodeId::new(name).expect("name")
}

fn variant(name: &str) -> VariantId {
    VariantId::new(name).expect("name")
}

fn offer(name: &str, quality: f64) -> Variant {
    Variant {
        id: variant(name),
        weights_sha256: None,
        quantisation: "q8_0".to_owned(),
        context: Tokens(8_192),
        memory: Bytes(100_000_000),
        quality: Quality::new(quality).expect("quality"),
        quality_source: "made up for this story".to_owned(),
    }
}

/// Hub, a cloud agent with a good and fast model, and two agents of one site with a small one.
struct Fleet {
    universe: Universe,
    cloud: usize,
    left: usize,
    right: usize,
}

impl Fleet {
    fn new() -> Self {
        let config = UniverseConfig {
            hub: node("cloud/hub"),
            services: vec![Service {
                id: ServiceId::new("assistant").expect("name"),
                aliases: vec![],
                variants: vec![offer("small", 0.4), offer("large", 0.8)],
            }],
            uplink_delay: Micros::from_millis(20),
            site_delay: Micros::from_millis(1),
            will_delay: Micros::from_millis(1),
            seed: 7,
        };
        let mut universe = Universe::new(config);
        let agent = |name: &str, tier, model: &str, slots, rate| AgentSpec {
            node: node(name),
            tier,
            engines: vec![Truth::new(&variant(model), slots, rate)],
        };
        let cloud = universe.add(agent("cloud/gpu", Tier::Cloud, "large", 4, 200));
        let left = universe.add(agent("site-1/left", Tier::Device, "small", 1, 20));
        let right = universe.add(agent("site-1/right", Tier::Device, "small", 1, 20));
        let mut fleet = Self { universe, cloud, left, right };
        fleet.settle();
        fleet
    }

    /// Until everybody is online and each edge has been granted its targets.
    fn settle(&mut self) {
        let ready = |universe: &Universe| {
            let online = ["cloud/gpu", "site-1/left", "site-1/right"]
                .iter()
                .all(|n| universe.state_of(&node(n)) == Some(NodeState::Online));
            let granted = [self.left, self.right].iter().all(|host| {
                universe.agent(*host).is_some_and(|agent| agent.core().grant().targets.values().flatten().count() >= 2)
            });
            online && granted
        };
        assert!(self.universe.until(Micros::from_secs(30), ready), "the fleet comes up");
        self.universe.pass(Micros::from_secs(2));
    }

    fn ask(&mut self, host: usize, needs: Needs) -> RequestId {
        self.universe.ask(host, |id| request(id, needs, 40))
    }

    fn finish(&mut self, id: RequestId) -> Answer {
        assert!(self.universe.until(Micros::from_secs(120), |universe| universe.client(id).answer.is_some()), "{id} ends");
        self.universe.client(id).answer.clone().expect("just seen")
    }

    fn served_by(&self, id: RequestId) -> Option<NodeId> {
        let record = self.universe.client(id).record.as_ref()?;
        record.served_by.as_ref().map(|(node, _)| node.clone())
    }

    fn chosen(&self, id: RequestId) -> Option<Candidate> {
        match &self.universe.client(id).decision.as_ref()?.verdict {
            Verdict::Assign(choice) => Some(choice.candidate.clone()),
            _ => None,
        }
    }

    fn over(self) {
        assert!(self.universe.replay_all() > 100, "something was captured");
    }
}

fn request(id: RequestId, needs: Needs, output_max: u32) -> LlmRequest {
    LlmRequest {
        id,
        service: ServiceId::new("assistant").expect("name"),
        pinned: None,
        kind: PromptKind::Chat,
        prompt: Tokens(50),
        output_max: Tokens(output_max),
        features: Features::default(),
        stream: true,
        body: Bytes(400),
        needs,
    }
}

fn within(residency: Residency) -> Needs {
    Needs { residency, ..Needs::default() }
}

fn whole(answer: &Answer) -> bool {
    matches!(answer, Answer::Whole(Finish::Length, usage) if usage.output == Tokens(40))
}

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
fn hub_lost_and_back_no_local_request_fails_and_epochs_rise() {
    let mut fleet = Fleet::new();
    let before = fleet.universe.agent(fleet.left).expect("lives").core().grant().epoch;
    let backup = fleet.universe.backup();
    fleet.universe.kill_hub();
    let mut asked = vec![];
    for _ in 0..20 {
        asked.push(fleet.ask(fleet.left, Needs::default()));
        fleet.universe.pass(Micros::from_secs(3));
    }
    for id in &asked {
        assert!(whole(&fleet.finish(*id)), "{id}: {:?}", fleet.universe.client(*id).answer);
    }
    let late = fleet.universe.client(asked[10]).decision.clone().expect("decided");
    assert!(late.degraded, "it says that the hub is away");
    fleet.universe.restart_hub();
    let all_back = |universe: &Universe| {
        ["cloud/gpu", "site-1/left", "site-1/right"].iter().all(|n| universe.state_of(&node(n)) == Some(NodeState::Online))
    };
    assert!(fleet.universe.until(HEARTBEAT, all_back), "all are back within one heartbeat");
    let left = fleet.left;
    let rose = |universe: &Universe, before| universe.agent(left).expect("lives").core().grant().epoch > before;
    assert!(fleet.universe.until(HEARTBEAT.scale(2.0), |universe| rose(universe, before)), "plans go on rising");
    // And also on yesterday's store.
    fleet.universe.kill_hub();
    fleet.universe.restore_hub(backup);
    let before = fleet.universe.agent(left).expect("lives").core().grant().epoch;
    fleet.universe.pass(Micros::from_secs(20));
    fleet.universe.restart_hub();
    assert!(fleet.universe.until(HEARTBEAT.scale(3.0), |universe| rose(universe, before)), "above what the nodes have seen");
    fleet.over();
}

#[test]
fn an_agent_dies_in_mid_request_and_the_stream_goes_on_elsewhere() {
    let mut fleet = Fleet::new();
    // Only the site has this variant twice.
    let needs = within(Residency::Site);
    let busy = fleet.ask(fleet.left, needs.clone());
    fleet.universe.pass(Micros::from_millis(100));
    let id = fleet.ask(fleet.left, needs);
    assert_eq!(fleet.chosen(id).map(|candidate| candidate.node), Some(node("site-1/right")), "its own slot is taken");
    assert!(fleet.universe.until(Micros::from_secs(5), |universe| universe.client(id).tokens >= 10));
    fleet.universe.kill(fleet.right);
    assert!(whole(&fleet.finish(id)), "{:?}", fleet.universe.client(id).answer);
    let client = fleet.universe.client(id);
    assert_eq!((client.tokens, client.fed_by.len()), (40, 2), "no token twice, none missing");
    assert!(whole(&fleet.finish(busy)));
    fleet.over();
}

#[test]
fn an_agent_dies_before_any_content_and_the_request_is_answered_elsewhere() {
    let mut fleet = Fleet::new();
    let id = fleet.ask(fleet.left, Needs::default());
    assert_eq!(fleet.chosen(id).map(|candidate| candidate.node), Some(node("cloud/gpu")));
    fleet.universe.kill(fleet.cloud);
    assert!(whole(&fleet.finish(id)));
    assert_ne!(fleet.served_by(id), Some(node("cloud/gpu")));
    // Nobody sends it anything more; the others know within one heartbeat.
    fleet.universe.pass(HEARTBEAT);
    for host in [fleet.left, fleet.right] {
        let next = fleet.ask(host, Needs::default());
        assert_ne!(fleet.chosen(next).map(|candidate| candidate.node), Some(node("cloud/gpu")));
    }
    fleet.over();
}

#[test]
fn an_agent_that_restarts_five_times_quickly_stays_online() {
    let mut fleet = Fleet::new();
    for _ in 0..5 {
        fleet.universe.kill(fleet.right);
        fleet.universe.pass(Micros::from_millis(300));
        fleet.universe.restart(fleet.right);
        fleet.universe.pass(Micros::from_millis(700));
    }
    let online = |universe: &Universe| universe.state_of(&node("site-1/right")) == Some(NodeState::Online);
    assert!(fleet.universe.until(HEARTBEAT, online), "{:?}", fleet.universe.state_of(&node("site-1/right")));
    fleet.universe.pass(Micros::from_secs(30));
    assert!(online(&fleet.universe), "and nothing late throws it out again");
    fleet.over();
}

#[test]
fn a_late_last_will_of_an_older_session_is_ignored() {
    let mut fleet = Fleet::new();
    fleet.universe.delay_wills(Micros::from_secs(8));
    fleet.universe.kill(fleet.right);
    fleet.universe.pass(Micros::from_millis(500));
    fleet.universe.restart(fleet.right);
    // The hub finds out whether the old instance still lives, then takes in the new one.
    fleet.universe.pass(HEARTBEAT);
    for _ in 0..20 {
        fleet.universe.pass(Micros::from_secs(1));
        assert_eq!(fleet.universe.state_of(&node("site-1/right")), Some(NodeState::Online), "{:?}", fleet.universe.notes());
    }
    assert!(fleet.universe.notes().iter().any(|note| matches!(note, Note::StaleMessage { kind, .. } if kind.contains("status"))));
    fleet.over();
}

#[test]
fn a_cloned_identity_is_flagged_and_given_nothing() {
    let mut fleet = Fleet::new();
    let clone = fleet.universe.clone_identity(fleet.right);
    let flagged = |universe: &Universe| universe.state_of(&node("site-1/right")) == Some(NodeState::Cloned);
    assert!(fleet.universe.until(Micros::from_secs(10), flagged), "{:?}", fleet.universe.state_of(&node("site-1/right")));
    fleet.universe.pass(Micros::from_secs(3));
    let busy = fleet.ask(fleet.left, within(Residency::Site));
    let id = fleet.ask(fleet.left, within(Residency::Site));
    assert_ne!(fleet.chosen(id).map(|candidate| candidate.node), Some(node("site-1/right")), "neither copy is given work");
    fleet.universe.kill(clone);
    let healed = |universe: &Universe| universe.state_of(&node("site-1/right")) == Some(NodeState::Online);
    assert!(fleet.universe.until(Micros::from_secs(120), healed), "with one instance left it is a node again");
    for id in [busy, id] {
        assert!(whole(&fleet.finish(id)));
    }
    fleet.over();
}

#[test]
fn a_cut_uplink_leaves_the_site_to_itself_and_heals() {
    let mut fleet = Fleet::new();
    fleet.universe.cut(fleet.left);
    fleet.universe.pass(Micros::from_secs(8));
    let first = fleet.ask(fleet.left, Needs::default());
    let second = fleet.ask(fleet.left, Needs::default());
    for id in [first, second] {
        assert!(whole(&fleet.finish(id)));
        assert!(fleet.universe.client(id).decision.as_ref().is_some_and(|decision| decision.degraded));
    }
    assert_eq!(fleet.served_by(first), Some(node("site-1/left")));
    assert_eq!(fleet.served_by(second), Some(node("site-1/right")), "the peer is still there");
    fleet.universe.heal(fleet.left);
    let online = |universe: &Universe| universe.state_of(&node("site-1/left")) == Some(NodeState::Online);
    assert!(fleet.universe.until(HEARTBEAT.scale(2.0), online));
    fleet.universe.pass(Micros::from_secs(3));
    let third = fleet.ask(fleet.left, Needs::default());
    assert!(whole(&fleet.finish(third)));
    assert_eq!(fleet.served_by(third), Some(node("cloud/gpu")));
    fleet.over();
}

#[test]
fn a_flapping_uplink_loses_nothing() {
    let mut fleet = Fleet::new();
    let mut asked = vec![];
    for round in 0..12 {
        asked.push(fleet.ask(fleet.left, Needs::default()));
        fleet.universe.pass(Micros::from_millis(150));
        fleet.universe.cut(fleet.left);
        fleet.universe.pass(Micros::from_millis(500 * (round % 5) + 400));
        fleet.universe.heal(fleet.left);
        fleet.universe.pass(Micros::from_millis(1_500));
    }
    for id in asked {
        assert!(whole(&fleet.finish(id)), "{id}: {:?}", fleet.universe.client(id).record);
    }
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
fn a_client_that_leaves_frees_the_slot_on_every_hop() {
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
fn orphans_of_a_dead_ingress_are_cancelled() {
    let mut fleet = Fleet::new();
    let long = fleet.universe.ask(fleet.left, |id| request(id, Needs::default(), 4_000));
    assert!(fleet.universe.until(Micros::from_secs(5), |universe| universe.client(long).tokens > 3));
    fleet.universe.kill(fleet.left);
    let cloud = fleet.cloud;
    let idle = |universe: &Universe| universe.executing(cloud) == 0;
    assert!(fleet.universe.until(Micros::from_secs(2), idle), "its last will says at once that it died");
    fleet.over();
}

#[test]
fn a_stale_view_is_not_acted_upon() {
    let mut fleet = Fleet::new();
    // The agent lives and its link to the hub does, but the cloud agent's reports no longer come: its uplink is cut.
    fleet.universe.cut(fleet.cloud);
    fleet.universe.pass(HEARTBEAT);
    let id = fleet.ask(fleet.left, Needs::default());
    assert_ne!(fleet.chosen(id).map(|candidate| candidate.node), Some(node("cloud/gpu")));
    assert!(whole(&fleet.finish(id)));
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

#[test]
fn an_agent_boots_without_its_hub_and_serves() {
    let mut fleet = Fleet::new();
    fleet.universe.kill_hub();
    fleet.universe.kill(fleet.left);
    fleet.universe.pass(Micros::from_secs(20));
    fleet.universe.restart(fleet.left);
    fleet.universe.pass(Micros::from_secs(2));
    let id = fleet.ask(fleet.left, Needs::default());
    assert!(whole(&fleet.finish(id)), "{:?}", fleet.universe.client(id).answer);
    assert!(fleet.universe.client(id).decision.as_ref().is_some_and(|decision| decision.degraded));
    fleet.over();
}

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
    let seed = seed();
    println!("TIDEGATE_SEED={seed}");
    let mut sums = [0; 4];
    for day in 0..100 {
        let mut dice = Dice(seed.wrapping_add(day).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        println!("day {day}");
        for (sum, more) in sums.iter_mut().zip(trouble(&mut dice)) {
            *sum += more;
        }
    }
    let [whole, resumed, errors, lost] = sums;
    println!(
        "{whole} whole answers, {resumed} of them continued elsewhere, {errors} typed errors, {lost} died with their ingress"
    );
    assert!(whole > 200 && resumed > 0 && errors > 20, "these were no troubled days");
}

/// Returns how many answers were whole, how many of those were fed by several attempts, how many failed, how many had no end.
fn trouble(dice: &mut Dice) -> [usize; 4] {
    let mut fleet = Fleet::new();
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
    for host in hosts {
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
    for (id, host, residency) in asked {
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
    ];
    fleet.settle();
    let id = fleet.ask(fleet.left, Needs::default());
    assert!(whole(&fleet.finish(id)), "all is well again: {:?}", fleet.universe.client(id).record);
    fleet.over();
    counts
}

#[test]
fn orphans_of_a_dead_hub_are_cancelled_within_two_seconds() {
    let mut fleet = Fleet::new();
    let relayed = fleet.universe.ask(fleet.left, |id| request(id, Needs::default(), 4_000));
    let own = fleet.universe.ask_hub(|id| request(id, Needs::default(), 4_000));
    let cloud = fleet.cloud;
    assert!(
        fleet.universe.until(Micros::from_secs(5), |universe| [relayed, own].iter().all(|id| universe.client(*id).tokens > 3))
    );
    fleet.universe.kill_hub();
    assert!(
        fleet.universe.until(Micros::from_secs(2), |universe| universe.executing(cloud) == 0),
        "nobody can read what it writes"
    );
    // Only the cloud has that variant: the stream waits a while for the hub to come back, then its client is told.
    let told = |universe: &Universe| matches!(universe.client(relayed).answer, Some(Answer::Error(_)));
    assert!(fleet.universe.until(Micros::from_secs(15), told), "{:?}", fleet.universe.client(relayed).answer);
    fleet.over();
}
