//! `all-with-replica`: an edge may use every node that can serve, up to the eight best.
//!
//! Idea: grant widely and let dispatch choose with fresh facts. Candidates are ordered by the predicted time of a typical
//! request from the edge. Places are given first to the best of the edge's own site (the only ones that residency `site` and a
//! lost uplink leave), then to the best of each variant (so that any wished quality can be met), then to the rest of the site,
//! then to the fastest. Wins in fleets where eight choices hold a good one for everybody, which is nearly always. Loses when many
//! edges are granted the same few fast nodes: shares are equal and nobody coordinates, only the bounds limit the herd. The
//! baseline that later policies must beat.

use super::{OffloadPolicy, Scene, path};
use crate::estimate::predict;
use crate::fleet::{NodeState, ReplicaReport, ReplicaState};
use crate::ids::{NodeId, RequestId, VariantId};
use crate::plan::{OffloadRow, PlacementRow, Target};
use crate::policy::{Budget, Parts};
use crate::units::{Bytes, Fraction, Micros, Tokens};
use crate::work::{Features, LlmRequest, Needs, PromptKind, Service, Variant};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// The request that candidates are compared by.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Tokens of its prompt.
    pub prompt: Tokens,
    /// Tokens of its answer.
    pub output: Tokens,
}

impl Default for Config {
    fn default() -> Self {
        // A turn of a conversation, as published traces of chat services have it: some hundred tokens each way.
        Self { prompt: Tokens(512), output: Tokens(128) }
    }
}

/// The policy.
#[derive(Debug)]
pub struct AllWithReplica;

impl Parts for AllWithReplica {
    type Config = Config;
    type State = ();
    const NAME: &'static str = "all-with-replica";
    const SUMMARY: &'static str = "an edge may use every node that can serve, up to the eight best";
}

impl OffloadPolicy for AllWithReplica {
    fn round(config: &Config, (): &mut (), scene: &Scene<'_>, held: &[OffloadRow], budget: &mut Budget) -> Vec<OffloadRow> {
        let row = |service| {
            let looked = candidates(config, scene, service, budget);
            let targets = looked.map_or_else(|| still_good(scene, service, held), |looked| granted(scene, looked));
            (!targets.is_empty()).then(|| OffloadRow { edge: scene.edge.clone(), service: service.id.clone(), targets })
        };
        scene.catalogue.iter().filter_map(row).collect()
    }
}

/// A replica that could be granted.
struct Candidate<'a> {
    node: &'a NodeId,
    variant: &'a Variant,
    slots: u32,
    /// Predicted time of the typical request; absent where the speed is not measured yet.
    time: Option<Micros>,
}

impl Candidate<'_> {
    /// Measured before unmeasured, fast before slow; names only make the order of equals certain.
    fn rank(&self) -> impl Ord {
        (self.time.is_none(), self.time, self.node, &self.variant.id)
    }
}

/// All candidates of a service, best first; absent when the budget ran out before all were looked at.
fn candidates<'a>(config: &Config, scene: &Scene<'a>, service: &'a Service, budget: &mut Budget) -> Option<Vec<Candidate<'a>>> {
    let typical = typical(config, service);
    let mut found = Vec::new();
    for variant in &service.variants {
        for node in scene.view.holders(&variant.id).filter(|node| *node != scene.edge) {
            if !budget.spend(1) {
                return None;
            }
            found.extend(candidate(scene, &typical, node, variant));
        }
    }
    found.sort_by(|a, b| a.rank().cmp(&b.rank()));
    Some(found)
}

fn candidate<'a>(scene: &Scene<'a>, typical: &LlmRequest, node: &'a NodeId, variant: &'a Variant) -> Option<Candidate<'a>> {
    let replica = usable(scene, node, &variant.id)?;
    let path = path::between(scene, node)?;
    let costs = &scene.view.node(node)?.costs;
    let time =
        replica.profile.as_ref().map(|profile| predict(typical, profile, &replica.load, &path, costs, variant.quality).total);
    Some(Candidate { node, variant, slots: replica.load.slots, time })
}

/// The replica, if it may be granted at all.
fn usable<'a>(scene: &Scene<'a>, node: &NodeId, variant: &VariantId) -> Option<&'a ReplicaReport> {
    let entry = scene.view.node(node).filter(|entry| entry.state == NodeState::Online)?;
    let replica = entry.replicas.get(variant).filter(|replica| replica.age(scene.now) <= scene.stale_after)?;
    let serves = replica.value.state == ReplicaState::Ready && replica.value.load.slots > 0;
    (serves && placed(scene, node, variant)).then_some(&replica.value)
}

fn placed(scene: &Scene<'_>, node: &NodeId, variant: &VariantId) -> bool {
    let key = |row: &PlacementRow| (&row.node, &row.variant).cmp(&(node, variant));
    scene.placed.is_none_or(|rows| rows.binary_search_by(key).is_ok())
}

/// The targets to grant out of these candidates, which come best first.
fn granted(scene: &Scene<'_>, candidates: Vec<Candidate<'_>>) -> Vec<Target> {
    let chosen = choose(scene, &candidates);
    let share = equal_share(chosen.len());
    let kept = candidates.into_iter().enumerate().filter(|(place, _)| chosen.contains(place));
    kept.map(|(_, candidate)| Target {
        node: candidate.node.clone(),
        variant: candidate.variant.id.clone(),
        share,
        open_max: open_max(candidate.slots),
    })
    .collect()
}

/// Places of the candidates to keep, at most [`OffloadRow::TARGETS_MAX`].
fn choose(scene: &Scene<'_>, candidates: &[Candidate<'_>]) -> BTreeSet<usize> {
    let site = scene.edge.site();
    let near = || (0..candidates.len()).filter(|place| site.contains(candidates[*place].node));
    let mut order: Vec<usize> = near().take(1).collect();

    let mut seen = BTreeSet::new();
    let mut of_each_variant: Vec<_> = (0..candidates.len()).filter(|place| seen.insert(&candidates[*place].variant.id)).collect();
    // Should there be more variants than places, the better ones are kept: they meet every wish that the others meet.
    of_each_variant.sort_by(|a, b| candidates[*b].variant.quality.get().total_cmp(&candidates[*a].variant.quality.get()));
    order.extend(of_each_variant);

    let mut peers = BTreeSet::new();
    order.extend(near().filter(|place| peers.insert(candidates[*place].node)));
    order.extend(0..candidates.len());

    let mut chosen = BTreeSet::new();
    for place in order {
        if chosen.len() < OffloadRow::TARGETS_MAX {
            chosen.insert(place);
        }
    }
    chosen
}

/// Held targets of a service that could not be looked at again, without those that have become unusable.
fn still_good(scene: &Scene<'_>, service: &Service, held: &[OffloadRow]) -> Vec<Target> {
    let row = held.iter().find(|row| row.edge == *scene.edge && row.service == service.id);
    let good = |target: &&Target| {
        target.node != *scene.edge
            && service.variants.iter().any(|variant| variant.id == target.variant)
            && usable(scene, &target.node, &target.variant).is_some()
    };
    row.into_iter().flat_map(|row| &row.targets).filter(good).take(OffloadRow::TARGETS_MAX).cloned().collect()
}

/// Most requests of one edge that may be open at a replica: its slots, and a quarter more, at least one, that travel or wait
/// there while a slot frees up, so that it never idles for a round trip. Everything beyond waits at the edge, where it can
/// still go elsewhere. Several edges together may exceed the slots; the executor's queue and its `busy` bound that.
const fn open_max(slots: u32) -> u32 {
    slots.saturating_add(slots.div_ceil(4))
}

/// One part of `count`.
fn equal_share(count: usize) -> Fraction {
    let count = u32::try_from(count).unwrap_or(u32::MAX).max(1);
    Fraction::new(1.0 / f64::from(count)).unwrap_or_default()
}

/// The request that candidates are compared by.
fn typical(config: &Config, service: &Service) -> LlmRequest {
    LlmRequest {
        id: RequestId(0),
        service: service.id.clone(),
        pinned: None,
        kind: PromptKind::Chat,
        prompt: config.prompt,
        output_max: config.output,
        features: Features::default(),
        stream: true,
        // English text has about four bytes a token.
        body: Bytes(u64::from(config.prompt.0) * 4),
        needs: Needs::default(),
    }
}
