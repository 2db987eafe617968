//! What every offload policy owes.

use crate::fleets::{Instance, STALE_AFTER, run_seed};
use crate::rounds::{BUDGETS, instances, plan, twins};
use shared::fleet::{Hop, NodeState, ReplicaReport, ReplicaState};
use shared::ids::{NodeId, VariantId};
use shared::plan::{OffloadRow, PlacementRow, PlanRows, check};
use shared::policy::Budget;
use shared::policy::offload::{Offloader, Scene, TABLE};
use shared::units::Bytes;
use shared::work::{Service, Variant};
use std::collections::BTreeSet;

fn scene<'a>(instance: &'a Instance, edge: &'a NodeId, placed: Option<&'a [PlacementRow]>) -> Scene<'a> {
    Scene {
        now: instance.now,
        edge,
        me: &instance.me,
        view: &instance.view,
        catalogue: &instance.catalogue,
        placed,
        stale_after: STALE_AFTER,
        seed: 7,
    }
}

/// Half of what is reported, as if placement had said so.
fn half_placed(instance: &Instance) -> Vec<PlacementRow> {
    let pairs = instance.view.nodes().flat_map(|(node, entry)| entry.replicas.keys().map(move |variant| (node, variant)));
    pairs.step_by(2).map(|(node, variant)| PlacementRow { node: node.clone(), variant: variant.clone() }).collect()
}

/// A replica that an edge could use now, found without the code under test.
fn usable<'a>(scene: &Scene<'a>, node: &NodeId, variant: &VariantId) -> Option<&'a ReplicaReport> {
    let entry = scene.view.node(node)?;
    let replica = entry.replicas.get(variant)?;
    let row = PlacementRow { node: node.clone(), variant: variant.clone() };
    let good = entry.state == NodeState::Online
        && replica.value.state == ReplicaState::Ready
        && replica.value.load.slots > 0
        && scene.now.since(replica.at) <= scene.stale_after
        && scene.placed.is_none_or(|rows| rows.contains(&row));
    good.then_some(&replica.value)
}

/// Whether `from` reaches `to`, as far as whoever decides can know.
fn linked(scene: &Scene<'_>, from: &NodeId, to: &NodeId) -> bool {
    let fresh_path = |to: &NodeId| {
        let paths = scene.view.node(to).into_iter().flat_map(|entry| &entry.paths);
        paths.into_iter().any(|(hop, path)| *hop != Hop::Local && scene.now.since(path.at) <= scene.stale_after)
    };
    let reports = |from: &NodeId, to: &NodeId| {
        let entry = scene.view.node(from);
        entry.is_some_and(|entry| {
            entry.peers.contains_key(to) && entry.reported.is_some_and(|at| scene.now.since(at) <= scene.stale_after)
        })
    };
    let between = reports(from, to) || reports(to, from);
    let relayed = fresh_path(from) && fresh_path(to);
    match scene.me == scene.edge {
        true if from == scene.me => fresh_path(to),
        true if to == scene.me => fresh_path(from),
        // Whoever is in the view is an agent, and relays nothing.
        true if scene.view.node(scene.me).is_some() => between,
        _ => between || relayed,
    }
}

fn reachable(scene: &Scene<'_>, node: &NodeId) -> bool {
    linked(scene, scene.edge, node)
}

fn usable_pairs<'a>(scene: &Scene<'a>, service: &'a Service) -> Vec<(&'a NodeId, &'a Variant)> {
    let all = scene.view.nodes().flat_map(|(node, _)| service.variants.iter().map(move |variant| (node, variant)));
    let whole = |node: &NodeId, variant: &Variant| usable(scene, node, &variant.id).is_some_and(ReplicaReport::serves_whole);
    all.filter(|(node, variant)| *node != scene.edge && whole(node, variant) && reachable(scene, node)).collect()
}

/// Whether two nodes without a fault of their own hold all layers of a variant that nobody the edge knows holds whole, and reach
/// each other, and the edge them.
fn needs_a_split(scene: &Scene<'_>, variant: &Variant, whole: &[(&NodeId, &Variant)]) -> bool {
    let own = usable(scene, scene.edge, &variant.id).is_some_and(ReplicaReport::serves_whole);
    if own || whole.iter().any(|(_, other)| other.id == variant.id) {
        return false;
    }
    let part = |node: &NodeId| {
        let replica = usable(scene, node, &variant.id)?;
        replica.profile.as_ref().and(replica.layers).map(|held| held.range)
    };
    let parts: Vec<_> = scene.view.nodes().filter_map(|(node, _)| Some((node, part(node)?))).collect();
    parts.iter().any(|(first, a)| {
        let begins = a.from == 0 && (*first == scene.edge || reachable(scene, first));
        begins
            && parts.iter().any(|(last, b)| {
                let joins = first != last && b.to == b.of && b.from <= a.to && (a.to < a.of || b.from > 0);
                joins && b.of == a.of && linked(scene, first, last)
            })
    })
}

#[test]
fn rounds_are_faultless_repeatable_and_grant_only_what_can_serve() {
    for row in TABLE {
        for (seed, instance) in instances(run_seed(), false) {
            let placed = half_placed(&instance);
            for (edge, _) in instance.view.nodes() {
                for placed in [None, Some(placed.as_slice())] {
                    let scene = scene(&instance, edge, placed);
                    let [mut policy, mut twin]: [Offloader; 2] = twins(row.name);
                    let mut held = Vec::new();
                    for steps in BUDGETS {
                        let rows = policy.round(&scene, &held, &mut Budget::new(steps));
                        let again = twin.round(&scene, &held, &mut Budget::new(steps));
                        assert_eq!(rows, again, "seed {seed}: {}", row.name);
                        let plan = plan(&instance.hub, edge.scope(), PlanRows::Offload(rows.clone()));
                        let faults = check(&plan, &instance.view, &instance.catalogue);
                        assert_eq!(faults, [], "seed {seed}, {steps} steps: {}", row.name);
                        for target in rows.iter().flat_map(|row| &row.targets) {
                            let good = target.nodes().all(|node| usable(&scene, node, &target.variant).is_some());
                            assert!(good, "seed {seed}: {} grants {target:?}", row.name);
                        }
                        held = rows;
                    }
                }
            }
        }
    }
}

#[test]
fn a_service_without_targets_has_nobody_who_could_serve_it() {
    for row in TABLE {
        let mut splits = 0;
        for (seed, instance) in instances(run_seed(), false) {
            for (edge, _) in instance.view.nodes() {
                let scene = scene(&instance, edge, None);
                let [mut policy, _]: [Offloader; 2] = twins(row.name);
                let rows = policy.round(&scene, &[], &mut Budget::default());
                for service in instance.catalogue.iter() {
                    let usable = usable_pairs(&scene, service);
                    let split = service.variants.iter().any(|variant| needs_a_split(&scene, variant, &usable));
                    let staged = |row: &&OffloadRow| row.targets.iter().any(|target| !target.stages.is_empty());
                    let granted = rows.iter().find(|row| row.service == service.id);
                    assert!(
                        !split || granted.as_ref().is_some_and(staged),
                        "seed {seed}: {} splits nothing for {edge} by {}: {granted:?} {:#?}",
                        row.name,
                        instance.me,
                        instance.view
                    );
                    splits += u32::from(split);
                    match granted {
                        None => assert!(usable.is_empty(), "seed {seed}: {} forgets {usable:?}", row.name),
                        Some(granted) => promises(seed, &scene, granted, &usable),
                    }
                }
            }
        }
        assert!(splits > 20, "{splits} services wanted a split: too few to say anything");
    }
}

/// Whatever the order, every variant that can be had is among the targets, and somebody of the site.
fn promises(seed: u64, scene: &Scene<'_>, row: &OffloadRow, usable: &[(&NodeId, &Variant)]) {
    let (whole, staged): (Vec<_>, Vec<_>) = row.targets.iter().partition(|target| target.stages.is_empty());
    let granted: BTreeSet<_> = whole.iter().map(|target| &target.variant).collect();
    let variants: BTreeSet<_> = usable.iter().map(|(_, variant)| &variant.id).collect();
    assert_eq!(granted, variants, "seed {seed}: a wished quality cannot be met");
    let site = scene.edge.site();
    let near = usable.iter().any(|(node, _)| site.contains(node));
    assert_eq!(near, whole.iter().any(|target| site.contains(&target.node)), "seed {seed}: nobody of the site");
    assert!(staged.len() <= 3, "seed {seed}: {} of few places for splits", staged.len());
    assert_eq!(whole.len(), usable.len().min(OffloadRow::TARGETS_MAX - staged.len()), "seed {seed}: places are left empty");
}

#[test]
fn names_and_order_of_nodes_do_not_matter() {
    let seed = run_seed();
    for row in TABLE {
        for ((seed, one), (_, other)) in instances(seed, false).zip(instances(seed, true)) {
            let granted = |instance: &Instance, edge: &NodeId| {
                let scene = scene(instance, edge, None);
                let [mut policy, _]: [Offloader; 2] = twins(row.name);
                let rows = policy.round(&scene, &[], &mut Budget::default());
                rows.iter().map(|row| measured_marks(&scene, row)).collect::<Vec<_>>()
            };
            let renamed: Vec<_> = other.view.nodes().map(|(node, _)| node).collect();
            for ((edge, entry), _) in one.view.nodes().zip(&renamed) {
                let same = other
                    .view
                    .nodes()
                    .find(|(_, e)| e.replicas == entry.replicas && e.costs == entry.costs && e.tier == entry.tier);
                let (same, _) = same.expect("the same fleet under other names");
                if one.view.nodes().filter(|(_, e)| e.replicas == entry.replicas).count() == 1 {
                    assert_eq!(granted(&one, edge), granted(&other, same), "seed {seed}: {}", row.name);
                }
            }
        }
    }
}

/// The granted replicas by the marks that they carry under any name, as far as their speed tells them apart; and how many.
fn measured_marks(scene: &Scene<'_>, row: &OffloadRow) -> (usize, BTreeSet<Bytes>) {
    let replica = |target: &shared::plan::Target| usable(scene, &target.node, &target.variant);
    let measured = row.targets.iter().filter_map(replica).filter(|replica| replica.profile.is_some());
    (row.targets.len(), measured.map(|replica| replica.memory).collect())
}
