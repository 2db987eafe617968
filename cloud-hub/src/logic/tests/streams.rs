//! Whose streams the hub carries, and its own ingress.

use super::*;
use shared::fleet::Hop;
use shared::ids::{AttemptId, RequestId};
use shared::plan::{Failure, Finish, Reason, Stage, Usage};
use shared::request::{AttemptEvent, Effect};
use shared::work::{ExecHeader, Features, HeldLayers, LayerRange, Likely, LlmRequest, Needs, PromptKind, Residency};

fn request(number: u128, residency: Residency) -> LlmRequest {
    LlmRequest {
        id: RequestId(number),
        service: "assistant".parse().expect("a good name"),
        pinned: None,
        kind: PromptKind::Chat,
        prompt: Tokens(20),
        output_max: Tokens(20),
        features: Features::default(),
        stream: true,
        body: Bytes(80),
        needs: Needs { residency, ..Needs::default() },
        likely: Likely::default(),
    }
}

fn header(from: &str, to: &str, residency: Residency) -> ExecHeader {
    let request = request(1, residency);
    let attempt = AttemptId::new(request.id, 0);
    ExecHeader::new(&request, attempt, node(from), node(to), "tiny".parse().expect("a good name"))
}

/// Asks for a relay, and returns the reason of its refusal, or nothing if it is opened.
fn ask(universe: &mut Universe, connection: Connection, number: u64, header: ExecHeader) -> Option<Reason> {
    let stream = Stream(number);
    let effects = universe.tell(HubEvent::RelayAsked { connection, stream, header });
    let answer = effects.into_iter().find_map(|effect| match effect {
        HubEffect::RelayOpen { stream: opened, .. } if opened == stream => Some(None),
        HubEffect::RelayRefuse { stream: refused, reason } if refused == stream => Some(Some(reason)),
        _ => None,
    });
    answer.expect("each asked stream is answered")
}

fn pair() -> (Universe, Connection, Connection) {
    let mut universe = Universe::new();
    let a = universe.join("site/a");
    let b = universe.join("far/b");
    universe.pass(SECOND);
    (universe, a, b)
}

#[test]
fn a_granted_stream_is_carried() {
    let (mut universe, a, b) = pair();
    let asked = HubEvent::RelayAsked { connection: a, stream: Stream(1), header: header("site/a", "far/b", Residency::Anywhere) };
    assert!(universe.tell(asked).contains(&HubEffect::RelayOpen { stream: Stream(1), to: b }));
    assert_eq!(universe.row("far/b").relays_open, 1);
    universe.tell(HubEvent::RelayClosed { stream: Stream(1) });
    assert_eq!(universe.row("far/b").relays_open, 0);
}

#[test]
fn what_must_stay_at_a_site_does_not_cross_the_hub() {
    let (mut universe, a, _) = pair();
    for residency in [Residency::Site, Residency::Node] {
        let refused = ask(&mut universe, a, 1, header("site/a", "far/b", residency));
        assert_eq!(refused, Some(Reason::Residency));
    }
    // Not even between two nodes of one site: the hub is outside of it.
    universe.join("site/c");
    let refused = ask(&mut universe, a, 2, header("site/a", "site/c", Residency::Site));
    assert_eq!(refused, Some(Reason::Residency));
}

#[test]
fn nobody_spends_the_grant_of_another() {
    let (mut universe, a, b) = pair();
    let refused = ask(&mut universe, b, 1, header("site/a", "far/b", Residency::Anywhere));
    assert_eq!(refused, Some(Reason::NotGranted), "b says that it is a");
    let refused = ask(&mut universe, a, 2, header("site/a", "site/a", Residency::Anywhere));
    assert_eq!(refused, Some(Reason::NotGranted), "to itself");
    let refused = ask(&mut universe, a, 3, header("site/a", "no/where", Residency::Anywhere));
    assert_eq!(refused, Some(Reason::Unknown));
    let mut other = header("site/a", "far/b", Residency::Anywhere);
    other.variant = VariantId::new("another").expect("a good name");
    assert_eq!(ask(&mut universe, a, 4, other), Some(Reason::NotGranted));
    let gone = Connection(9_999);
    assert_eq!(ask(&mut universe, gone, 5, header("site/a", "far/b", Residency::Anywhere)), Some(Reason::NotGranted));
}

#[test]
fn the_state_of_the_target_is_the_reason() {
    let (mut universe, a, b) = pair();
    universe.operate(AdminOperation::Drain { node: node("far/b"), drain: true });
    assert_eq!(ask(&mut universe, a, 1, header("site/a", "far/b", Residency::Anywhere)), Some(Reason::Draining));
    universe.operate(AdminOperation::Drain { node: node("far/b"), drain: false });
    universe.hello("far/b");
    universe.pass(SECOND);
    assert_eq!(ask(&mut universe, a, 2, header("site/a", "far/b", Residency::Anywhere)), Some(Reason::Cloned));
    universe.tell(HubEvent::ConnectionLost { connection: b });
    universe.pass(Micros::from_secs(61));
    assert_eq!(ask(&mut universe, a, 3, header("site/a", "far/b", Residency::Anywhere)), Some(Reason::Offline));
}

/// `site/a` and `far/b` hold half of `tiny` each, for `site/c` that has nothing.
fn halves() -> (Universe, [Connection; 3]) {
    let mut universe = Universe::new();
    let connections = ["site/a", "far/b", "site/c"].map(|name| universe.join(name));
    let part = |from, to| {
        let held = HeldLayers { range: LayerRange { from, to, of: 10 }, hidden: Bytes(64) };
        ReplicaReport { layers: Some(held), ..replica() }
    };
    for (name, replicas) in [("site/a", vec![part(0, 5)]), ("far/b", vec![part(5, 10)]), ("site/c", Vec::new())] {
        universe.holding.insert(node(name), replicas);
    }
    universe.pass(Micros::from_secs(12));
    (universe, connections)
}

/// The header of one stage of a request of `site/c`.
fn staged(residency: Residency, number: u8) -> ExecHeader {
    let mut first = header("site/c", "site/a", residency);
    let stage = |name, from, to| Stage { node: node(name), hop: Hop::Relay, layers: LayerRange { from, to, of: 10 } };
    first.stages = vec![stage("site/a", 0, 5), stage("far/b", 5, 10)];
    if number == 0 { first } else { first.next_stage().expect("two stages") }
}

#[test]
fn a_later_stage_is_carried_for_the_node_of_the_stage_before_it_alone() {
    let (mut universe, [a, b, c]) = halves();
    let targets = universe.plans[&node("site/c")][&Layer::Offload].clone();
    assert!(format!("{targets:?}").contains("far/b"), "{targets:?}");
    assert_eq!(ask(&mut universe, c, 1, staged(Residency::Anywhere, 0)), None, "the ingress asks for the first");
    assert_eq!(ask(&mut universe, a, 2, staged(Residency::Anywhere, 1)), None, "the first for the second");
    assert_eq!((universe.row("site/a").relays_open, universe.row("far/b").relays_open), (2, 1));
    for (connection, number) in [(c, 1), (b, 1), (a, 0), (b, 0)] {
        let refused = ask(&mut universe, connection, 9, staged(Residency::Anywhere, number));
        assert_eq!(refused, Some(Reason::NotGranted), "stage {number}");
    }
    // Other layers, another order, or a stage that was not granted.
    let mut other = staged(Residency::Anywhere, 1);
    (other.stages[0].layers.to, other.stages[1].layers.from) = (4, 4);
    assert_eq!(ask(&mut universe, a, 10, other), Some(Reason::NotGranted));
    let mut gap = staged(Residency::Anywhere, 1);
    gap.stages[1].layers.from = 6;
    assert_eq!(ask(&mut universe, a, 11, gap), Some(Reason::NotGranted));
    let mut beyond = staged(Residency::Anywhere, 1);
    beyond.attempt.stage = 7;
    assert_eq!(ask(&mut universe, a, 12, beyond), Some(Reason::NotGranted));
    let whole = header("site/c", "site/a", Residency::Anywhere);
    assert_eq!(ask(&mut universe, c, 13, whole), Some(Reason::NotGranted), "half of the model was not granted as the whole");
}

#[test]
fn hidden_states_do_not_cross_the_hub_where_text_may_not() {
    let (mut universe, [a, _, c]) = halves();
    for residency in [Residency::Site, Residency::Node] {
        assert_eq!(ask(&mut universe, c, 1, staged(residency, 0)), Some(Reason::Residency));
        assert_eq!(ask(&mut universe, a, 2, staged(residency, 1)), Some(Reason::Residency));
    }
}

#[test]
fn parts_are_shown_as_such() {
    let (universe, _) = halves();
    assert_eq!(universe.row("far/b").replicas[0].layers.map(|layers| layers.to_string()), Some("5..10 of 10".to_owned()));
}

#[test]
fn open_streams_are_bounded_and_end_with_their_connection() {
    let (mut universe, a, b) = pair();
    let max = u64::from(relay::RELAYS_OPEN_MAX);
    for number in 0..max {
        assert_eq!(ask(&mut universe, a, number, header("site/a", "far/b", Residency::Anywhere)), None);
    }
    let refused = ask(&mut universe, a, max, header("site/a", "far/b", Residency::Anywhere));
    assert_eq!(refused, Some(Reason::BoundReached { open_max: relay::RELAYS_OPEN_MAX }));
    let effects = universe.tell(HubEvent::ConnectionLost { connection: b });
    let cut = effects.iter().filter(|effect| matches!(effect, HubEffect::RelayClose { .. })).count();
    assert_eq!(cut as u64, max);
    assert_eq!(universe.row("site/a").relays_open, 0);
}

#[test]
fn revocation_cuts_what_is_open() {
    let (mut universe, a, _) = pair();
    assert_eq!(ask(&mut universe, a, 1, header("site/a", "far/b", Residency::Anywhere)), None);
    universe.operate(AdminOperation::Revoke(node("far/b")));
    assert!(universe.effects.contains(&HubEffect::RelayClose { stream: Stream(1) }));
    assert_eq!(ask(&mut universe, a, 2, header("site/a", "far/b", Residency::Anywhere)), Some(Reason::Unknown));
}

#[test]
fn a_plan_that_is_still_applied_is_honoured() {
    let (mut universe, a, _) = pair();
    let session = universe.session(a);
    let plan = universe.plans[&node("site/a")][&Layer::Offload].clone();
    let state = AckState::Applied;
    let ack = PlanAck { layer: Layer::Offload, epoch: plan.epoch, state };
    universe.mqtt("site/a", session, NodeMessage::PlanAck(ack));
    // The service goes, a new plan is published, but its ack has not come: the older grant is what the node knows.
    universe.operate(AdminOperation::RemoveService("assistant".parse().expect("a good name")));
    universe.pass(Micros::from_secs(2));
    assert_eq!(universe.targets("site/a"), []);
    assert_eq!(ask(&mut universe, a, 1, header("site/a", "far/b", Residency::Anywhere)), None);
    let newer = universe.plans[&node("site/a")][&Layer::Offload].epoch;
    let state = AckState::Applied;
    let ack = PlanAck { layer: Layer::Offload, epoch: newer, state };
    universe.mqtt("site/a", session, NodeMessage::PlanAck(ack));
    assert_eq!(ask(&mut universe, a, 2, header("site/a", "far/b", Residency::Anywhere)), Some(Reason::NotGranted));
}

#[test]
fn the_hub_serves_its_own_clients_from_the_fleet() {
    let (mut universe, _, _) = pair();
    let effects = universe.tell(HubEvent::Arrived(request(77, Residency::Anywhere)));
    let (to, sent) = effects
        .iter()
        .find_map(|effect| if let HubEffect::Send { to, header } = effect { Some((*to, header.clone())) } else { None })
        .expect("it is sent to somebody");
    assert_eq!(universe.hub.fleet.node_of(to), Some(&sent.target));
    assert!(effects.iter().any(|effect| matches!(effect, HubEffect::Request(Effect::Decided(decision))
        if matches!(&decision.verdict, shared::plan::Verdict::Assign(choice) if choice.candidate.hop == Hop::Direct))));

    let slots = Load { slots: 4, active: 1, ..Load::default() };
    for news in [
        AttemptEvent::Accepted(slots),
        AttemptEvent::Content(Tokens(3)),
        AttemptEvent::Ended(Finish::Stop, Usage { prompt: Tokens(20), output: Tokens(3), cached: Tokens(0) }),
    ] {
        universe.pass(Micros::from_millis(50));
        universe.tell(HubEvent::Remote(sent.attempt, news));
    }
    let stored = universe.effects.iter().filter(|effect| matches!(effect, HubEffect::StoreRecord(_))).count();
    assert_eq!(stored, 1);
    let totals = universe.hub.totals();
    assert_eq!((totals.len(), totals[0].outcome.as_str()), (1, "answered"));
    assert_eq!((totals[0].totals.output_tokens, totals[0].node.as_ref()), (3, Some(&sent.target)));
}

#[test]
fn the_hub_is_outside_every_site() {
    let (mut universe, _, _) = pair();
    for (number, residency) in [(1, Residency::Site), (2, Residency::Node)] {
        let effects = universe.tell(HubEvent::Arrived(request(number, residency)));
        let refusal = Effect::Fail(RequestId(number), Failure::Refused(Reason::Residency));
        assert!(effects.contains(&HubEffect::Request(refusal)));
        assert!(!effects.iter().any(|effect| matches!(effect, HubEffect::Send { .. })));
    }
    assert_eq!(universe.hub.totals()[0].outcome, "residency");
}
