//! Storms: thousands of random events, sensible and senseless, on one small fleet. Whatever comes, numbers rise, bounds hold, and
//! the capture replays.

use super::*;
use shared::ids::{AttemptId, RequestId};
use shared::plan::{Failure, Reason};
use shared::request::AttemptEvent;
use shared::wire::mqtt::{AckState, PlanAck};
use shared::work::{ExecHeader, Features, Likely, LlmRequest, Needs, PromptKind, Residency};

const NAMES: [&str; 6] = ["site/a", "site/b", "far/c", "far/d", "away/e", "cloud/f"];

/// A generator of numbers (splitmix64).
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (mixed ^ (mixed >> 31)) % end
    }

    fn of<T: Clone>(&mut self, choices: &[T]) -> Option<T> {
        let place = usize::try_from(self.below(choices.len().max(1) as u64)).ok()?;
        choices.get(place).cloned()
    }

    fn name(&mut self) -> &'static str {
        self.of(&NAMES).expect("there are names")
    }

    fn connection(&mut self, universe: &Universe) -> Connection {
        let known: Vec<_> = universe.agents.keys().copied().collect();
        self.of(&known).filter(|_| self.below(8) > 0).unwrap_or_else(|| Connection(self.below(1 << 40)))
    }

    fn session(&mut self, universe: &Universe) -> (&'static str, Session) {
        let name = self.name();
        let live = universe.agents.values().filter(|(of, agent)| of.as_str() == name && agent.session.is_some());
        let live: Vec<_> =
            live.map(|(_, agent)| Session { epoch: agent.session.unwrap_or_default(), instance: agent.instance }).collect();
        (name, self.of(&live).filter(|_| self.below(5) > 0).unwrap_or_default())
    }
}

fn request(dice: &mut Dice) -> LlmRequest {
    LlmRequest {
        id: RequestId(u128::from(dice.below(500))),
        service: "assistant".parse().expect("a good name"),
        pinned: None,
        kind: PromptKind::Chat,
        prompt: Tokens(20),
        output_max: Tokens(20),
        features: Features::default(),
        stream: true,
        body: Bytes(80),
        needs: Needs {
            residency: dice.of(&[Residency::Anywhere, Residency::Site, Residency::Node]).unwrap_or_default(),
            ..Needs::default()
        },
        likely: Likely::default(),
    }
}

fn asked(dice: &mut Dice, connection: Connection, name: &str) -> HubEvent {
    let (request, stream) = (request(dice), Stream(dice.below(1 << 30)));
    let attempt = AttemptId::new(request.id, 0);
    let variant = "tiny".parse().expect("a good name");
    let header = ExecHeader::new(&request, attempt, node(name), node(dice.name()), variant);
    HubEvent::RelayAsked { connection, stream, header }
}

fn wish(dice: &mut Dice, name: &str) -> AdminOperation {
    match dice.below(12) {
        0 => AdminOperation::Revoke(node(name)),
        1 => AdminOperation::PutService(assistant()),
        2 => AdminOperation::RemoveService("assistant".parse().expect("a good name")),
        3 => AdminOperation::Nodes,
        more => AdminOperation::Drain { node: node(name), drain: more % 2 == 0 },
    }
}

fn gust(universe: &mut Universe, dice: &mut Dice) {
    let connection = dice.connection(universe);
    let (name, session) = dice.session(universe);
    let event = match dice.below(16) {
        0 => {
            universe.hello(name);
            return;
        }
        1 => {
            let magnitude = dice.below(64);
            let absurd = PlanEpoch { incarnation: dice.below(1 << magnitude), sequence: dice.below(u64::MAX) };
            universe.hello_as(name, Instance(dice.below(3)), |hello| hello.plan_epoch_seen = absurd);
            return;
        }
        2 => return universe.kill(connection),
        3 => HubEvent::ConnectionLost { connection },
        4 => HubEvent::Pong { connection, pulse: Pulse { number: dice.below(1 << 20), loads: BTreeMap::new() } },
        5 => {
            let loads = BTreeMap::from([("not a name!".to_owned(), Load::default()), ("tiny".to_owned(), Load::default())]);
            HubEvent::Pinged { connection, pulse: Pulse { number: 1, loads } }
        }
        6 => HubEvent::Mqtt { node: node(name), session, message: NodeMessage::Status(Status { online: dice.below(2) == 0 }) },
        7 => {
            let of = node(dice.name());
            HubEvent::Mqtt { node: node(name), session, message: NodeMessage::Telemetry(telemetry(&of)) }
        }
        8 => {
            let epoch = PlanEpoch { incarnation: dice.below(4), sequence: dice.below(400) };
            let ack = PlanAck { layer: Layer::Offload, epoch, state: AckState::Applied };
            HubEvent::Mqtt { node: node(name), session, message: NodeMessage::PlanAck(ack) }
        }
        9 => HubEvent::BadPayload { node: node(name), topic: "telemetry".to_owned(), why: "storm".to_owned() },
        10 | 11 => asked(dice, connection, name),
        12 => HubEvent::Arrived(request(dice)),
        13 => {
            let attempt = AttemptId::new(RequestId(u128::from(dice.below(500))), 0);
            let news = dice.of(&[
                AttemptEvent::Accepted(Load::default()),
                AttemptEvent::Refused(Reason::Busy, None),
                AttemptEvent::Content(Tokens(1)),
                AttemptEvent::Failed(Failure::Broken("storm".to_owned())),
            ]);
            HubEvent::Remote(attempt, news.expect("there is news"))
        }
        14 => {
            let operation = wish(dice, name);
            HubEvent::Admin { token: ReplyToken(1), operation }
        }
        _ => HubEvent::Enrolled { node: node(name), serial: format!("5e{:02x}", name.len()), labels: BTreeMap::new() },
    };
    universe.tell(event);
}

/// What must hold whatever came.
fn judge(universe: &Universe, seed: u64) {
    let mut plans: BTreeMap<(NodeId, Layer), PlanEpoch> = BTreeMap::new();
    let mut views: BTreeMap<NodeId, PlanEpoch> = BTreeMap::new();
    let mut session = SessionEpoch::default();
    let mut kept = 0;
    for effect in &universe.effects {
        match effect {
            HubEffect::Persist(Change::Incarnation(incarnation)) => kept = *incarnation,
            HubEffect::PublishPlan { node, plan } => {
                assert_eq!(plan.epoch.incarnation, kept, "seed {seed}: an incarnation is kept before it is used");
                let older = plans.insert((node.clone(), plan.rows.layer()), plan.epoch);
                assert!(older < Some(plan.epoch), "seed {seed}: plan epochs of {node} rise");
            }
            HubEffect::PublishView { node, view } => {
                let older = views.insert(node.clone(), view.epoch);
                assert!(older < Some(view.epoch), "seed {seed}: view epochs of {node} rise");
                assert!(view.nodes.iter().all(|row| row.node != *node), "seed {seed}: {node} is not in its own view");
            }
            HubEffect::Welcome { welcome, .. } => {
                assert!(welcome.session > session, "seed {seed}: session epochs rise");
                session = welcome.session;
            }
            HubEffect::Note(Note::FaultyPlan { node, layer, faults }) => {
                panic!("seed {seed}: the {layer} plan of {node} has faults: {faults:?}");
            }
            _ => {}
        }
    }
    for (_, event) in &universe.log {
        if let HubEvent::RelayAsked { stream, header, .. } = event
            && header.residency != shared::work::ResidencyBound::Anywhere
        {
            let opened = |effect: &HubEffect| matches!(effect, HubEffect::RelayOpen { stream: opened, .. } if opened == stream);
            assert!(!universe.effects.iter().any(opened), "seed {seed}: what must stay at a site crossed the hub");
        }
    }
    for row in universe.hub.nodes(universe.now) {
        assert!(row.relays_open <= 2 * relay::RELAYS_OPEN_MAX, "seed {seed}");
        assert!(!row.revoked || row.session.is_none(), "seed {seed}: {} is revoked and connected", row.node);
    }
}

#[test]
fn whatever_comes_numbers_rise_and_bounds_hold() {
    let mut happened: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..20 {
        let (mut universe, mut dice) = (Universe::new(), Dice(seed));
        for name in NAMES {
            universe.hello(name);
        }
        for _ in 0..400 {
            gust(&mut universe, &mut dice);
            let wait = Micros::from_millis(dice.below(400));
            universe.pass(wait);
        }
        judge(&universe, seed);
        for (name, count) in universe.hub.counters() {
            *happened.entry(name).or_default() += count;
        }
        // When the storm is over, whoever says hello anew is back.
        universe.operate(AdminOperation::PutService(assistant()));
        for name in NAMES {
            universe.tell(HubEvent::Enrolled { node: node(name), serial: format!("fresh-{seed}"), labels: BTreeMap::new() });
            universe.operate(AdminOperation::Drain { node: node(name), drain: false });
        }
        for connection in universe.agents.keys().copied().collect::<Vec<_>>() {
            universe.tell(HubEvent::ConnectionLost { connection });
        }
        universe.pass(Micros::from_secs(61));
        for name in NAMES {
            universe.hello_with(name, &format!("fresh-{seed}"), Instance(7), |_| {});
        }
        universe.pass(Micros::from_secs(2));
        for name in NAMES {
            assert_eq!(universe.state(name), NodeState::Online, "seed {seed}: {name}");
            assert_eq!(universe.targets(name).len(), NAMES.len() - 1, "seed {seed}: {name}");
        }
    }
    // A storm in which nothing happens proves nothing.
    for name in ["relays_opened", "relays_refused", "relays_cut", "attempts_sent", "records", "identities_cloned", "epoch_jumps"]
    {
        assert!(happened.get(name).is_some_and(|count| *count > 0), "{name}: {happened:?}");
    }
}
