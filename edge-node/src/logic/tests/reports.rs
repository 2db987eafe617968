//! What an agent tells its hub of itself, how often and how much.

use super::world::{World, published, replica, request};
use crate::logic::{AgentEffect, AgentEvent, Publication, UplinkEvent};
use shared::fleet::{
    Accelerator, AcceleratorKind, Backend, DeviceRates, Fact, MemoryBudget, Origin, ProbeState, ReplicaReport, ReplicaState,
    Survey,
};
use shared::ids::{RequestId, VariantId};
use shared::request::{AttemptEvent, Event};
use shared::units::{Bytes, Fraction, Micros};

#[test]
fn a_busy_agent_tells_less_than_two_thousand_bytes_a_second() {
    let mut world = World::new(None);
    world.connect();
    let mut known = None;
    let (mut bytes, mut reports, mut quiet, mut longest) = (0, 0, Micros::ZERO, Micros::ZERO);
    let step = Micros::from_millis(20);
    for id in 0..6_000_u32 {
        let state = if id % 2 == 0 { ReplicaState::Ready } else { ReplicaState::Loading };
        let replicas = (0..4).map(|number| {
            let variant = VariantId::new(&format!("small-{number}")).expect("good");
            ReplicaReport { variant, state: state.clone(), ..replica() }
        });
        let mut effects = world.tell(AgentEvent::Replicas(replicas.collect())).to_vec();
        effects.extend(world.pass(step));
        // The hub is there, and says so.
        let pings: Vec<_> = effects
            .iter()
            .filter_map(|effect| if let AgentEffect::Ping(pulse) = effect { Some(pulse.clone()) } else { None })
            .collect();
        for pulse in pings {
            let dial = world.dial_number();
            effects.extend(world.tell(AgentEvent::Uplink(dial, UplinkEvent::Pong(pulse))).to_vec());
        }
        quiet += step;
        for what in published(&effects) {
            let Publication::Telemetry(report) = what else { continue };
            bytes += serde_json::to_vec(report).expect("json").len() + 200;
            (reports, longest, quiet) = (reports + 1, longest.max(quiet), Micros::ZERO);
            let before = known.take().unwrap_or_else(|| report.clone());
            known = Some(report.clone().merged_into(&before));
        }
    }
    assert!(bytes < 2_000 * 120, "{bytes} B in 120 s");
    assert!(reports > 24 && longest <= Micros::from_millis(5_050), "{reports} reports, {longest} apart");
    assert_eq!(known.map(|known| known.replicas.len()), Some(4));
}

#[test]
fn load_changes_are_reported_soon_but_not_in_a_flood() {
    let mut world = World::new(None);
    world.connect();
    world.tell(AgentEvent::Replicas(vec![replica()]));
    let mut reports = 0;
    for id in 0..50 {
        world.tell(AgentEvent::Request(Event::Arrived(request(id))));
        let attempt = shared::ids::AttemptId::new(RequestId(id), 0);
        let ended = AttemptEvent::Ended(shared::plan::Finish::Stop, shared::plan::Usage::default());
        let effects = world.tell(AgentEvent::Request(Event::Engine(attempt, ended))).to_vec();
        reports += published(&effects).iter().filter(|what| matches!(what, Publication::Telemetry(_))).count();
        let effects = world.pass(Micros::from_millis(20));
        reports += published(&effects).iter().filter(|what| matches!(what, Publication::Telemetry(_))).count();
    }
    assert!((1..=3).contains(&reports), "{reports} reports in a second");
}

#[test]
fn what_a_probe_found_is_told_once_and_again_when_it_changed_with_its_age() {
    let mut world = World::new(None);
    world.connect();
    let surveys = |effects: &[AgentEffect]| -> Vec<Survey> {
        let inventories = published(effects).into_iter().filter_map(|what| match what {
            Publication::Inventory(inventory) => Some(inventory.survey.clone()),
            _ => None,
        });
        inventories.collect()
    };
    let fact = Fact {
        value: MemoryBudget::new(Bytes(1)).expect("not zero"),
        origin: Origin::Reported,
        by: "test".to_owned(),
        age: Micros::from_secs(1),
        confidence: Fraction::default(),
    };
    let one = Accelerator {
        id: "name:a".to_owned(),
        name: "a".to_owned(),
        vendor: String::new(),
        kind: AcceleratorKind::Discrete,
        backends: vec![Backend::Vulkan],
        pci: None,
        uuid: None,
        memory: Some(fact),
        rates: DeviceRates::default(),
    };
    let found = Survey { state: ProbeState::Done, accelerators: vec![one], ..Survey::default() };
    let told = surveys(world.tell(AgentEvent::Surveyed(Box::new(found.clone()))));
    assert_eq!(told, std::slice::from_ref(&found));
    assert_eq!(surveys(world.tell(AgentEvent::Surveyed(Box::new(found.clone())))), [], "nothing new");
    world.pass(Micros::from_secs(1));
    let failed = Survey { state: ProbeState::Failed("killed".to_owned()), ..found };
    assert_eq!(surveys(world.tell(AgentEvent::Surveyed(Box::new(failed)))).len(), 1);
    let aged = world.agent.status(world.now + Micros::from_secs(60)).survey;
    assert_eq!(aged.accelerators[0].memory.as_ref().map(|fact| fact.age), Some(Micros::from_secs(61)));
    assert_eq!(aged.state, ProbeState::Failed("killed".to_owned()));
}
