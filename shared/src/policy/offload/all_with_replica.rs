//! `all-with-replica`: an edge may use every node that can serve, up to the eight best.
//!
//! Idea: grant widely and let dispatch choose with fresh facts. Candidates are ordered by the predicted time of a typical
//! request from the edge. Places are given first to the best of the edge's own site (the only ones that residency `site` and a
//! lost uplink leave), then to the best of each variant (so that any wished quality can be met), then to the rest of the site,
//! then to the fastest. Splits come after whole candidates and take a place from the least of them only where they can matter;
//! [`chains`] says when. Wins in fleets where eight choices hold a good one for everybody, which is nearly always. Loses when many
//! edges are granted the same few fast nodes: shares are equal and nobody coordinates, only the bounds limit the herd. The
//! baseline that later policies must beat.

use super::chains::{Chain, Whole, chains, settled};
use super::{OffloadPolicy, Scene, path};
use crate::estimate::predict;
use crate::fleet::{Hop, NodeState, ReplicaReport, ReplicaState};
use crate::ids::{NodeId, RequestId, VariantId};
use crate::plan::{OffloadRow, PlacementRow, Target};
use crate::policy::{Budget, Parts};
use crate::units::{Bytes, Fraction, Micros, Tokens};
use crate::work::{Features, Likely, LlmRequest, Needs, PromptKind, Service, Variant};
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
            let looked = look(config, scene, service, budget);
            let targets = looked
                .map_or_else(|| still_good(scene, service, held), |looked| granted(scene, looked, of(scene, service, held)));
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
    /// Whether the edge reaches it without the hub.
    direct: bool,
}

impl Candidate<'_> {
    /// Measured before unmeasured, fast before slow; names only make the order of equals certain.
    fn rank(&self) -> impl Ord {
        (self.time.is_none(), self.time, self.node, &self.variant.id)
    }
}

/// Everything that could be granted of a service.
struct Looked<'a> {
    /// Best first.
    whole: Vec<Candidate<'a>>,
    /// Those that can matter, most needed first.
    splits: Vec<Chain<'a>>,
}

/// Looks at all candidates of a service; absent when the budget ran out before.
fn look<'a>(config: &Config, scene: &Scene<'a>, service: &'a Service, budget: &mut Budget) -> Option<Looked<'a>> {
    let typical = typical(config, service);
    let whole = candidates(&typical, scene, service, budget)?;
    let beside = |one: &Candidate<'a>| Whole { node: one.node, variant: &one.variant.id, time: one.time, direct: one.direct };
    let beside: Vec<_> = whole.iter().map(beside).collect();
    let splits = chains(scene, &typical, service, &beside, budget)?;
    Some(Looked { whole, splits })
}

/// All whole candidates of a service, best first; absent when the budget ran out before all were looked at.
fn candidates<'a>(
    typical: &LlmRequest,
    scene: &Scene<'a>,
    service: &'a Service,
    budget: &mut Budget,
) -> Option<Vec<Candidate<'a>>> {
    let mut found = Vec::new();
    for variant in &service.variants {
        for node in scene.view.holders(&variant.id).filter(|node| *node != scene.edge) {
            if !budget.spend(1) {
                return None;
            }
            found.extend(candidate(scene, typical, node, variant));
        }
    }
    found.sort_by(|a, b| a.rank().cmp(&b.rank()));
    Some(found)
}

fn candidate<'a>(scene: &Scene<'a>, typical: &LlmRequest, node: &'a NodeId, variant: &'a Variant) -> Option<Candidate<'a>> {
    let replica = usable(scene, node, &variant.id).filter(|replica| replica.serves_whole())?;
    let path = path::between(scene, scene.edge, node)?;
    let costs = &scene.view.node(node)?.costs;
    let time =
        replica.profile.as_ref().map(|profile| predict(typical, profile, &replica.load, &path, costs, variant.quality).total);
    Some(Candidate { node, variant, slots: replica.load.slots, time, direct: path.hop != Hop::Relay })
}

/// The replica, if it may be granted at all.
pub(super) fn usable<'a>(scene: &Scene<'a>, node: &NodeId, variant: &VariantId) -> Option<&'a ReplicaReport> {
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
fn granted(scene: &Scene<'_>, looked: Looked<'_>, held: &[Target]) -> Vec<Target> {
    let Looked { whole, splits } = looked;
    let chosen = choose(scene, &whole, OffloadRow::TARGETS_MAX.saturating_sub(splits.len()));
    let share = equal_share(chosen.len() + splits.len());
    let kept = whole.into_iter().enumerate().filter(|(place, _)| chosen.contains(place));
    let whole = kept.map(|(_, candidate)| Target {
        node: candidate.node.clone(),
        variant: candidate.variant.id.clone(),
        share,
        open_max: open_max(candidate.slots),
        stages: Vec::new(),
    });
    let splits = splits.into_iter().map(|chain| Target {
        node: chain.first.clone(),
        variant: chain.variant.id.clone(),
        share,
        open_max: open_max(chain.slots),
        stages: settled(chain.stages, held),
    });
    whole.chain(splits).collect()
}

/// Places of the candidates to keep, at most `most`.
fn choose(scene: &Scene<'_>, candidates: &[Candidate<'_>], most: usize) -> BTreeSet<usize> {
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
        if chosen.len() < most {
            chosen.insert(place);
        }
    }
    chosen
}

/// The held targets of a service.
fn of<'h>(scene: &Scene<'_>, service: &Service, held: &'h [OffloadRow]) -> &'h [Target] {
    let row = held.iter().find(|row| row.edge == *scene.edge && row.service == service.id);
    row.map_or(&[], |row| &row.targets)
}

/// Held targets of a service that could not be looked at again, without those that have become unusable.
fn still_good(scene: &Scene<'_>, service: &Service, held: &[OffloadRow]) -> Vec<Target> {
    let replica = |node: &NodeId, target: &Target| usable(scene, node, &target.variant);
    let whole =
        |target: &Target| target.node != *scene.edge && replica(&target.node, target).is_some_and(ReplicaReport::serves_whole);
    let good = |target: &&Target| {
        let mut stages = target.stages.iter();
        service.variants.iter().any(|variant| variant.id == target.variant)
            && (!target.stages.is_empty() || whole(target))
            && stages.all(|stage| replica(&stage.node, target).is_some_and(|replica| replica.serves_layers(stage.layers)))
    };
    of(scene, service, held).iter().filter(good).take(OffloadRow::TARGETS_MAX).cloned().collect()
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
        likely: Likely::default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fleet::{FleetDelta, PathReport, Tier};
    use crate::policy::dispatch::story::{LARGE, ME, SMALL, Story, catalogue, node, replica};

    /// The hub's view of an edge and others: all paths are direct to the hub.
    fn fleet(others: &[(&str, &str, f64, u64)]) -> Story {
        let uplink = |ms| PathReport::with_rtt(Hop::Direct, Micros::from_millis(ms));
        let edge = Story::new().add(ME, Tier::Device, uplink(20), replica(SMALL, 5.0));
        others
            .iter()
            .fold(edge, |story, (name, with, decode, ms)| story.add(name, Tier::Cloud, uplink(*ms), replica(with, *decode)))
    }

    fn round(story: &Story, held: &[OffloadRow], steps: u64) -> Vec<OffloadRow> {
        let hub = node("core/hub");
        let scene = Scene {
            now: story.now,
            edge: &story.me,
            me: &hub,
            view: &story.view,
            catalogue: &catalogue(),
            placed: None,
            stale_after: Micros::from_secs(15),
            seed: 0,
        };
        AllWithReplica::round(&Config::default(), &mut (), &scene, held, &mut Budget::new(steps))
    }

    fn targets(story: &Story) -> Vec<String> {
        let rows = round(story, &[], 1_000);
        rows.iter().flat_map(|row| &row.targets).map(|target| target.node.to_string()).collect()
    }

    /// So many fast nodes far away.
    fn crowd(story: Story, count: usize) -> Story {
        let uplink = PathReport::with_rtt(Hop::Direct, Micros::from_millis(1));
        (0..count).fold(story, |story, i| story.add(&format!("cloud/n{i}"), Tier::Cloud, uplink.clone(), replica(SMALL, 500.0)))
    }

    #[test]
    fn the_fastest_come_first_and_the_edge_itself_is_none() {
        let story = fleet(&[("cloud/slow", SMALL, 10.0, 5), ("cloud/fast", SMALL, 100.0, 5), ("cloud/far", SMALL, 100.0, 900)]);
        assert_eq!(targets(&story), ["cloud/fast", "cloud/far", "cloud/slow"]);
    }

    #[test]
    fn a_direct_path_is_shorter_than_two_uplinks() {
        let mut story = fleet(&[("site/peer", SMALL, 100.0, 20), ("cloud/gpu", SMALL, 100.0, 5)]);
        assert_eq!(targets(&story), ["cloud/gpu", "site/peer"]);
        let near = PathReport::with_rtt(Hop::Direct, Micros::from_millis(1));
        story.tell(FleetDelta::Peers { node: node("site/peer"), peers: [(node(ME), near)].into() });
        assert_eq!(targets(&story), ["site/peer", "cloud/gpu"], "the peer's report serves both ways");
    }

    #[test]
    fn among_many_fast_ones_the_peer_and_the_good_one_keep_their_places() {
        let story = crowd(fleet(&[("site/peer", SMALL, 1.0, 20), ("cloud/wise", LARGE, 1.0, 300)]), 20);
        let targets = targets(&story);
        assert_eq!(targets.len(), OffloadRow::TARGETS_MAX);
        assert!(targets.contains(&"site/peer".to_owned()), "{targets:?}");
        assert!(targets.contains(&"cloud/wise".to_owned()), "{targets:?}");
    }

    #[test]
    fn all_of_the_site_go_before_strangers() {
        let names: Vec<_> = (0..8).map(|i| format!("site/peer-{i}")).collect();
        let peers: Vec<_> = names.iter().map(|name| (name.as_str(), SMALL, 1.0, 20)).collect();
        let targets = targets(&crowd(fleet(&peers), 20));
        assert_eq!(
            targets.iter().filter(|name| name.starts_with("site/")).count(),
            7,
            "the eighth is the fastest of all: {targets:?}"
        );
    }

    #[test]
    fn shares_are_equal_and_bounds_follow_the_slots() {
        let rows = round(&fleet(&[("cloud/a", SMALL, 10.0, 5), ("cloud/b", SMALL, 10.0, 5)]), &[], 1_000);
        let figures: Vec<_> = rows[0].targets.iter().map(|target| (target.share.get(), target.open_max)).collect();
        assert_eq!(figures, [(0.5, 5), (0.5, 5)], "four slots and one on the way");
        assert_eq!([open_max(1), open_max(4), open_max(100), open_max(u32::MAX)], [2, 5, 125, u32::MAX]);
    }

    #[test]
    fn the_unmeasured_come_last() {
        let mut new = replica(SMALL, 1.0);
        new.profile = None;
        let story = fleet(&[("cloud/slow", SMALL, 0.1, 500)]);
        let story = story.add("cloud/new", Tier::Cloud, PathReport::with_rtt(Hop::Direct, Micros(1)), new);
        assert_eq!(targets(&story), ["cloud/slow", "cloud/new"]);
    }

    #[test]
    fn without_budget_held_targets_stay_as_far_as_they_are_good() {
        let mut story = fleet(&[("cloud/a", SMALL, 10.0, 5), ("cloud/b", SMALL, 20.0, 5)]);
        let held = round(&story, &[], 1_000);
        story.tell(FleetDelta::State { node: node("cloud/b"), state: NodeState::Draining });
        let rows = round(&story, &held, 1);
        let kept: Vec<_> = rows[0].targets.iter().map(|target| target.node.as_str()).collect();
        assert_eq!(kept, ["cloud/a"]);
    }
}
