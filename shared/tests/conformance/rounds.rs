//! What every policy of the layers timescale, placement and allocation owes.

use crate::fleets::{Dice, Flavour, Instance, Naming, run_seed};
use serde_json::Value;
use shared::fleet::{FleetView, ReplicaReport};
use shared::ids::{NodeId, PlanEpoch, ScopeId};
use shared::plan::{AllocationRow, Layer, PlacementRow, Plan, PlanRows, check};
use shared::policy::allocation::{self, Allocator};
use shared::policy::placement::{self, Placer};
use shared::policy::timescale::{self, Pace, Pacer};
use shared::policy::{Budget, Holder, Kind};
use shared::units::{Bytes, Micros, Moment};

pub(crate) const ROUNDS: u64 = 150;

pub(crate) fn instances(seed: u64, reversed: bool) -> impl Iterator<Item = (u64, Instance)> {
    let each = move |round| Flavour::ALL.into_iter().map(move |flavour| (seed.wrapping_add(round), flavour));
    let naming = Naming { reversed };
    (0..ROUNDS).flat_map(each).map(move |(seed, flavour)| (seed, Instance::generate(seed, naming, flavour)))
}

/// The policy of a row, and an equal one that was written down and read back.
pub(crate) fn twins<K: Kind>(name: &str) -> [Holder<K>; 2] {
    let policy = Holder::named(name, Value::Null).expect("a row of the table");
    let written = serde_json::to_string(&policy).expect("can be written");
    [policy, serde_json::from_str(&written).expect("can be read")]
}

pub(crate) fn plan(owner: &NodeId, scope: ScopeId, rows: PlanRows) -> Plan {
    let epoch = PlanEpoch { incarnation: 1, sequence: 2 };
    let based_on = Some(PlanEpoch { incarnation: 1, sequence: 1 });
    Plan { scope, owner: owner.clone(), epoch, based_on, valid_for: Micros::from_secs(15), rows }
}

/// Budgets from nothing to plenty: what comes back must be good with each.
pub(crate) const BUDGETS: [u64; 5] = [0, 1, 3, 7, 100_000];

#[test]
fn timescale_refreshes_what_was_never_made_and_holds_no_plan_for_ever() {
    let scope = ScopeId::new("site").expect("good");
    let scene = |now, layer, last_refresh| timescale::Scene {
        now: Moment(now),
        layer,
        scope: &scope,
        last_refresh,
        upper_changed: false,
        fleet_changed: false,
    };
    let mut dice = Dice::new(run_seed());
    for row in timescale::TABLE {
        let [mut policy, mut twin]: [Pacer; 2] = twins(row.name);
        for layer in Layer::ALL {
            assert_eq!(policy.decide(&scene(0, layer, None)), Pace::Refresh, "{} {layer}", row.name);
            twin.decide(&scene(0, layer, None));
            let a_day_later = Micros::from_secs(86_400).0;
            assert_eq!(policy.decide(&scene(a_day_later, layer, Some(Moment(0)))), Pace::Refresh, "{} {layer}", row.name);
            twin.decide(&scene(a_day_later, layer, Some(Moment(0))));
            for _ in 0..100 {
                let last = dice.below(100_000_000);
                let scene = scene(last + dice.below(100_000_000), layer, Some(Moment(last)));
                assert_eq!(policy.decide(&scene), twin.decide(&scene), "{}", row.name);
            }
        }
        assert_eq!(policy, twin);
    }
}

fn placement_scene<'a>(instance: &'a Instance, scope: &'a ScopeId) -> placement::Scene<'a> {
    placement::Scene { now: instance.now, scope, view: &instance.view, catalogue: &instance.catalogue, seed: 7 }
}

/// All sites of the fleet, one node, and a site where nobody is.
fn scopes(view: &FleetView) -> Vec<ScopeId> {
    let sites = view.nodes().map(|(node, _)| node.site());
    let one = view.nodes().take(1).map(|(node, _)| node.scope());
    sites.chain(one).chain(ScopeId::new("nowhere").ok()).collect()
}

#[test]
fn placement_rounds_are_faultless_repeatable_and_keep_to_their_scope() {
    for row in placement::TABLE {
        for (seed, instance) in instances(run_seed(), false) {
            for scope in scopes(&instance.view) {
                let scene = placement_scene(&instance, &scope);
                let [mut policy, mut twin]: [Placer; 2] = twins(row.name);
                let mut held = Vec::new();
                for steps in BUDGETS {
                    let rows = policy.round(&scene, &held, &mut Budget::new(steps));
                    let again = twin.round(&scene, &held, &mut Budget::new(steps));
                    assert_eq!(rows, again, "seed {seed}: {}", row.name);
                    let plan = plan(&instance.hub, scope.clone(), PlanRows::Placement(rows.clone()));
                    let faults = check(&plan, &instance.view, &instance.catalogue);
                    assert_eq!(faults, [], "seed {seed}, {steps} steps: {}", row.name);
                    held = rows;
                }
                let settled = policy.round(&scene, &held, &mut Budget::default());
                assert_eq!(settled, held, "seed {seed}: {} does not settle", row.name);
            }
        }
    }
}

/// Replicas by the marks that they carry under any name.
fn marks(view: &FleetView, rows: &[PlacementRow]) -> Vec<Bytes> {
    let mark = |row: &PlacementRow| view.node(&row.node)?.replicas.get(&row.variant).map(|replica| replica.value.memory);
    let mut marks: Vec<_> = rows.iter().filter_map(mark).collect();
    marks.sort();
    marks
}

#[test]
fn names_do_not_matter_to_placement() {
    let seed = run_seed();
    for row in placement::TABLE {
        for ((seed, one), (_, other)) in instances(seed, false).zip(instances(seed, true)) {
            for (node, renamed) in one.view.nodes().zip(other.view.nodes().collect::<Vec<_>>().into_iter().rev()) {
                let placed = |instance: &Instance, node: &NodeId| {
                    let scope = node.scope();
                    let [mut policy, _]: [Placer; 2] = twins(row.name);
                    let rows = policy.round(&placement_scene(instance, &scope), &[], &mut Budget::default());
                    marks(&instance.view, &rows)
                };
                assert_eq!(placed(&one, node.0), placed(&other, renamed.0), "seed {seed}: {}", row.name);
            }
        }
    }
}

/// Each node of the fleet with its replicas as its engines report them.
fn machines(instance: &Instance) -> Vec<(NodeId, Option<u32>, Vec<ReplicaReport>)> {
    let replicas = |entry: &shared::fleet::NodeView| entry.replicas.values().map(|replica| replica.value.clone()).collect();
    instance.view.nodes().map(|(node, entry)| (node.clone(), entry.machine.cores, replicas(entry))).collect()
}

fn allocation_scene<'a>(node: &'a NodeId, cores: Option<u32>, replicas: &'a [ReplicaReport]) -> allocation::Scene<'a> {
    allocation::Scene { now: Moment(1), node, cores, replicas, seed: 7 }
}

#[test]
fn allocation_rounds_are_faultless_repeatable_and_keep_to_the_engines() {
    for row in allocation::TABLE {
        for (seed, instance) in instances(run_seed(), false) {
            for (node, cores, mut replicas) in machines(&instance) {
                for cores in [cores, None, Some(0)] {
                    let scene = allocation_scene(&node, cores, &replicas);
                    let [mut policy, mut twin]: [Allocator; 2] = twins(row.name);
                    let mut held = Vec::new();
                    for steps in BUDGETS {
                        let rows = policy.round(&scene, &held, &mut Budget::new(steps));
                        assert_eq!(rows, twin.round(&scene, &held, &mut Budget::new(steps)), "seed {seed}: {}", row.name);
                        let plan = plan(&node, node.scope(), PlanRows::Allocation(rows.clone()));
                        assert_eq!(check(&plan, &instance.view, &instance.catalogue), [], "seed {seed}: {}", row.name);
                        assert!(rows.iter().all(|row| within_engine(row, &replicas)), "seed {seed}: {} {rows:?}", row.name);
                        held = rows;
                    }
                }
                let rows = |replicas: &[ReplicaReport]| {
                    let [mut policy, _]: [Allocator; 2] = twins(row.name);
                    policy.round(&allocation_scene(&node, cores, replicas), &[], &mut Budget::default())
                };
                let before = rows(&replicas);
                replicas.reverse();
                assert_eq!(before, rows(&replicas), "seed {seed}: the order of replicas matters to {}", row.name);
            }
        }
    }
}

fn within_engine(row: &AllocationRow, replicas: &[ReplicaReport]) -> bool {
    let replica = replicas.iter().find(|replica| replica.variant == row.variant);
    replica.is_some_and(|replica| (1..=replica.load.slots).contains(&row.slots))
}
