//! Stories of one agent: a hub that comes and goes, plans, views, peers.

use super::world::{World, node, offload, published, replica, request, shown};
use crate::logic::{Agent, AgentEffect, AgentEvent, BrokerEvent, Ended, PeerEvent, Publication, UplinkEvent};
use shared::fleet::{Hop, Load, NodeState};
use shared::ids::{RequestId, VariantId};
use shared::plan::Layer;
use shared::request::{AttemptEvent, Effect, Event};
use shared::units::Micros;
use shared::wire::frame::{Goodbye, Pulse};
use shared::wire::mqtt::AckState;

#[test]
fn the_hub_comes_goes_and_comes_back_and_local_work_never_stops() {
    let mut world = World::new(None);
    assert!(world.agent.degraded());
    world.tell(AgentEvent::Replicas(vec![replica()]));
    world.pass(Micros::from_secs(60));
    world.tell(AgentEvent::Request(Event::Arrived(request(1))));
    assert!(world.last.iter().any(|effect| matches!(effect, AgentEffect::Request(Effect::Run(_)))), "no hub was ever there");
    world.pass(Micros::from_millis(1));
    let greeting = world.connect();
    assert!(!world.agent.degraded());
    assert!(
        matches!(&published(&greeting)[..], [Publication::Status(status), Publication::Inventory(_), Publication::Telemetry(_)] if status.online),
        "{greeting:?}"
    );
    // Silence for three seconds ends it.
    let effects = world.pass(Micros::from_secs(4));
    assert!(effects.iter().any(|effect| matches!(effect, AgentEffect::HangUp(_))));
    assert!(effects.contains(&AgentEffect::DisconnectBroker));
    assert!(world.agent.degraded());
    world.connect();
    assert!(!world.agent.degraded());
}

#[test]
fn late_news_of_an_older_connection_change_nothing() {
    let mut world = World::new(None);
    let first = world.dial();
    world.tell(AgentEvent::Uplink(first, UplinkEvent::Ended(Ended::Broken("refused".to_owned()))));
    world.connect();
    world.tell(AgentEvent::Uplink(first, UplinkEvent::Ended(Ended::Broken("again".to_owned()))));
    assert!(!world.agent.degraded());
}

#[test]
fn a_node_that_was_revoked_says_so_and_asks_rarely() {
    let mut world = World::new(None);
    world.connect();
    let dial = world.dial_number();
    let thrown_out = world.now;
    world.tell(AgentEvent::Uplink(dial, UplinkEvent::Ended(Ended::Goodbye(Goodbye::Revoked))));
    assert!(world.agent.status(world.now).uplink.revoked);
    world.dial();
    assert!(world.now.since(thrown_out) >= Micros::from_secs(60), "{}", world.now.since(thrown_out));
    assert!(world.agent.status(world.now).uplink.revoked, "until a hub lets it in");
    world.connect();
    assert!(!world.agent.status(world.now).uplink.revoked);
}

#[test]
fn row_11_a_hub_that_throws_us_out_is_dialled_less_and_less_often_yet_within_a_heartbeat() {
    let mut world = World::new(None);
    let mut gaps = Vec::new();
    for _ in 0..30 {
        world.connect();
        let dial = world.dial_number();
        let thrown_out = world.now;
        world.tell(AgentEvent::Uplink(dial, UplinkEvent::Ended(Ended::Goodbye(Goodbye::Cloned))));
        world.dial();
        gaps.push(world.now.since(thrown_out));
    }
    assert!(gaps.iter().all(|gap| *gap <= Micros::from_millis(2_500) && *gap >= Micros::from_millis(50)), "{gaps:?}");
    assert!(gaps[10..].iter().any(|gap| *gap > Micros::from_secs(1)), "being let in and thrown out does not reset: {gaps:?}");
}

#[test]
fn plans_and_views_make_a_relayed_target_and_its_loss_unmakes_it() {
    let mut world = World::new(None);
    world.connect();
    let acks = world.broker(BrokerEvent::Plan(Box::new(offload(4))));
    assert!(published(&acks).iter().any(|what| matches!(what, Publication::PlanAck(ack) if ack.state == AckState::Applied)));
    world.view(1, vec![shown("cloud/big")]);
    world.tell(AgentEvent::Request(Event::Arrived(request(1))));
    let sent = |effects: &[AgentEffect]| {
        effects
            .iter()
            .any(|effect| matches!(effect, AgentEffect::Request(Effect::Send { candidate, .. }) if candidate.hop == Hop::Relay))
    };
    assert!(sent(&world.last), "{:?}", world.last);
    // An older view does not bring back what a newer one took away.
    world.view(3, Vec::new());
    world.view(2, vec![shown("cloud/big")]);
    world.tell(AgentEvent::Request(Event::Arrived(request(2))));
    assert!(!sent(&world.last), "{:?}", world.last);
}

#[test]
fn a_peer_is_reached_without_the_hub_and_its_death_is_not_a_storm() {
    let mut world = World::new(None);
    world.connect();
    let effects = world.view(1, vec![shown("lab/c"), shown("lab/a"), shown("cloud/elsewhere")]);
    let dialled = |effects: &[AgentEffect]| {
        let name =
            |effect: &AgentEffect| if let AgentEffect::DialPeer { node, .. } = effect { Some(node.to_string()) } else { None };
        effects.iter().filter_map(name).collect::<Vec<_>>()
    };
    assert_eq!(dialled(&effects), ["lab/c"], "the smaller name dials at once; a stranger of another site is not dialled");
    world.tell(AgentEvent::Peer(
        node("lab/c"),
        PeerEvent::Up { link: 1, rtt: Micros(800), replicas: vec![replica()], transport: None, address: None },
    ));
    let dial = world.dial_number();
    world.tell(AgentEvent::Uplink(dial, UplinkEvent::Ended(Ended::Broken("cut".to_owned()))));
    let view = world.agent.core().view();
    let peer = view.node(&node("lab/c")).expect("known");
    assert_eq!((peer.state, peer.paths.keys().copied().collect::<Vec<_>>()), (NodeState::Online, vec![Hop::Direct]));
    // It answers pings, so it stays; then it falls silent.
    for number in 1..=5 {
        world.pass(Micros::from_secs(1));
        let loads = [("small".to_owned(), Load { slots: 1, active: 1, ..Load::default() })].into();
        world.tell(AgentEvent::Peer(node("lab/c"), PeerEvent::Pong(1, Pulse { number, loads })));
    }
    let busy = &world.agent.core().view().node(&node("lab/c")).expect("known").replicas[&VariantId::new("small").expect("good")];
    assert_eq!(busy.value.load.active, 1);
    let effects = world.pass(Micros::from_secs(60));
    assert!(effects.iter().any(|effect| matches!(effect, AgentEffect::HangUpPeer(..))));
    let tries = dialled(&effects).iter().filter(|name| *name == "lab/c").count();
    assert!((2..20).contains(&tries), "{tries} dials of a dead peer in a minute");
}

#[test]
fn a_restart_without_the_hub_keeps_grants_catalogue_and_addresses() {
    let mut world = World::new(None);
    world.connect();
    world.broker(BrokerEvent::Plan(Box::new(offload(9))));
    world.view(1, vec![shown("cloud/big")]);
    let effects = world.pass(Micros::from_secs(2));
    let kept =
        effects.iter().rev().find_map(|effect| if let AgentEffect::Persist(kept) = effect { Some(kept.clone()) } else { None });
    let text = serde_json::to_string(&kept.expect("it persists")).expect("written");
    let mut world = World::new(Some(serde_json::from_str(&text).expect("read")));
    let grant = world.agent.core().grant();
    assert_eq!((grant.epoch.sequence, grant.targets.len()), (9, 1));
    assert!(
        world.last.iter().any(|effect| matches!(effect, AgentEffect::Dial(_, _, hello) if hello.plan_epoch_seen.sequence == 9)),
        "the hub must go on above it: {:?}",
        world.last
    );
    let effects = world.pass(Micros::from_secs(3));
    assert!(
        effects.iter().any(|effect| matches!(effect, AgentEffect::DialPeer { node: to, addresses, .. } if *to == node("cloud/big") && !addresses.is_empty())),
        "the granted target is tried directly"
    );
}

#[test]
fn records_wait_for_the_hub_and_arrive_once() {
    let mut world = World::new(None);
    world.tell(AgentEvent::Replicas(vec![replica()]));
    for id in 0..3 {
        world.tell(AgentEvent::Request(Event::Arrived(request(id))));
        let attempt = shared::ids::AttemptId::new(RequestId(id), 0);
        let ended = AttemptEvent::Ended(shared::plan::Finish::Stop, shared::plan::Usage::default());
        world.tell(AgentEvent::Request(Event::Engine(attempt, ended)));
    }
    assert_eq!(world.agent.status(world.now).spool.records, 3);
    world.pass(Micros::from_secs(10));
    let mut effects = world.connect();
    effects.extend(world.pass(Micros::from_secs(2)));
    let sent: Vec<_> = published(&effects)
        .into_iter()
        .filter_map(|what| if let Publication::Records(records) = what { Some(records) } else { None })
        .flatten()
        .map(|record| record.request.0)
        .collect();
    assert_eq!(sent, [0, 1, 2]);
    assert_eq!(world.agent.status(world.now).spool.records, 0);
}

#[test]
fn stopping_says_goodbye_takes_nothing_new_and_finishes_what_runs() {
    let mut world = World::new(None);
    world.connect();
    world.tell(AgentEvent::Replicas(vec![replica()]));
    world.tell(AgentEvent::Request(Event::Arrived(request(1))));
    let effects = world.tell(AgentEvent::Stop).to_vec();
    assert!(published(&effects).iter().any(|what| matches!(what, Publication::Status(status) if !status.online)));
    assert!(!effects.contains(&AgentEffect::HangUp(Goodbye::Shutdown)), "what runs for others shall end first");
    world.tell(AgentEvent::Request(Event::Arrived(request(2))));
    assert!(!world.last.iter().any(|effect| matches!(effect, AgentEffect::Request(Effect::Run(_)))));
    let attempt = shared::ids::AttemptId::new(RequestId(1), 0);
    let ended = AttemptEvent::Ended(shared::plan::Finish::Stop, shared::plan::Usage::default());
    world.tell(AgentEvent::Request(Event::Engine(attempt, ended)));
    assert!(world.last.iter().any(|effect| matches!(effect, AgentEffect::Request(Effect::Finish(..)))));
    let effects = world.tell(AgentEvent::Leave).to_vec();
    assert!(effects.contains(&AgentEffect::HangUp(Goodbye::Shutdown)));
    assert!(effects.iter().any(|effect| matches!(effect, AgentEffect::Persist(_))));
    assert!(world.pass(Micros::from_secs(30)).iter().all(|effect| !matches!(effect, AgentEffect::Dial(..))));
}

#[test]
fn a_snapshot_and_the_events_give_the_same_effects_again() {
    let mut world = World::new(None);
    let snapshot = serde_json::to_string(&world.agent).expect("written");
    world.log.clear();
    world.tell(AgentEvent::Replicas(vec![replica()]));
    world.connect();
    world.broker(BrokerEvent::Plan(Box::new(offload(4))));
    world.view(1, vec![shown("cloud/big"), shown("lab/c")]);
    world.tell(AgentEvent::Request(Event::Arrived(request(1))));
    world.pass(Micros::from_secs(20));
    let mut again: Agent = serde_json::from_str(&snapshot).expect("read");
    let mut effects = Vec::new();
    for (now, event) in &world.log {
        effects.clear();
        // Through text, as a capture keeps it.
        let event = serde_json::from_str(&serde_json::to_string(event).expect("written")).expect("read");
        again.handle(*now, event, &mut effects);
    }
    assert_eq!(effects, world.last);
    assert_eq!(again, world.agent);
    assert!(world.agent.status(world.now).plans.iter().any(|plan| plan.layer == Layer::Offload));
}

#[test]
fn a_connected_peer_hears_that_a_model_has_loaded() {
    let mut world = World::new(None);
    world.tell(AgentEvent::Peer(
        node("lab/c"),
        PeerEvent::Up { link: 1, rtt: Micros(800), replicas: Vec::new(), transport: None, address: None },
    ));
    world.pass(Micros::from_secs(1));
    world.tell(AgentEvent::Peer(node("lab/c"), PeerEvent::Pong(1, Pulse::default())));
    world.tell(AgentEvent::Replicas(vec![replica()]));
    let told = |effects: &[AgentEffect]| {
        let hello = |effect: &AgentEffect| {
            if let AgentEffect::TellPeer(_, 1, hello) = effect { Some(hello.replicas.len()) } else { None }
        };
        effects.iter().filter_map(hello).collect::<Vec<_>>()
    };
    let effects = world.pass(Micros::from_secs(1));
    assert_eq!(told(&effects), [1], "without a hub nobody else would say it");
    world.tell(AgentEvent::Peer(node("lab/c"), PeerEvent::Pong(1, Pulse::default())));
    let effects = world.pass(Micros::from_secs(1));
    assert!(told(&effects).is_empty(), "once is enough");
    // And the other way round.
    world.tell(AgentEvent::Peer(node("lab/c"), PeerEvent::Replicas(1, vec![replica()])));
    assert_eq!(world.agent.core().view().holders(&VariantId::new("small").expect("good")).count(), 2);
}

#[test]
fn records_that_a_lost_broker_may_not_have_are_sent_again() {
    let mut world = World::new(None);
    world.tell(AgentEvent::Replicas(vec![replica()]));
    world.connect();
    world.tell(AgentEvent::Request(Event::Arrived(request(1))));
    let attempt = shared::ids::AttemptId::new(RequestId(1), 0);
    let ended = AttemptEvent::Ended(shared::plan::Finish::Stop, shared::plan::Usage::default());
    world.tell(AgentEvent::Request(Event::Engine(attempt, ended)));
    let sent = |effects: &[AgentEffect]| published(effects).iter().filter(|what| matches!(what, Publication::Records(_))).count();
    assert_eq!(sent(&world.pass(Micros::from_millis(1_500))), 1);
    let dial = world.dial_number();
    world.tell(AgentEvent::Uplink(dial, UplinkEvent::Ended(Ended::Broken("killed".to_owned()))));
    world.connect();
    assert_eq!(sent(&world.pass(Micros::from_millis(1_500))), 1);
}

/// Complaint 17: one message that the broker does not like must not keep all others from arriving.
#[test]
fn row_17_a_publication_that_gets_us_thrown_out_is_left_out_and_everything_else_goes_on() {
    let mut world = World::new(None);
    let mut effects = world.connect();
    let mut kicks = 0;
    let until = world.now + Micros::from_secs(300);
    while world.now < until {
        if published(&effects).iter().any(|what| matches!(what, Publication::Inventory(_))) {
            kicks += 1;
            effects = world.broker(BrokerEvent::Down("kicked".to_owned()));
        }
        let connecting = |effect: &AgentEffect| {
            if let AgentEffect::ConnectBroker { number, .. } = effect { Some(*number) } else { None }
        };
        if let Some(number) = effects.iter().find_map(connecting) {
            world.broker = number;
            effects = world.broker(BrokerEvent::Up);
            continue;
        }
        world.now = world.agent.next_deadline().expect("it goes on");
        effects = world.tell(AgentEvent::Tick).to_vec();
        let ping =
            effects.iter().find_map(|effect| if let AgentEffect::Ping(pulse) = effect { Some(pulse.clone()) } else { None });
        if let Some(pulse) = ping {
            let dial = world.dial_number();
            let more = world.tell(AgentEvent::Uplink(dial, UplinkEvent::Pong(pulse))).to_vec();
            effects.extend(more);
        }
        assert!(!effects.iter().any(|effect| matches!(effect, AgentEffect::HangUp(_))), "control goes on over the uplink");
    }
    let status = world.agent.status(world.now).uplink;
    assert_eq!((status.state.as_str(), status.broker), ("up", true), "{status:?}");
    assert_eq!(status.quarantined, [crate::logic::Kind::Inventory]);
    assert!(status.publications_held > 0);
    assert!((3..=5).contains(&kicks), "{kicks}");
    assert!(world.pass(Micros::from_secs(1)).is_empty() || status.broker);
}
