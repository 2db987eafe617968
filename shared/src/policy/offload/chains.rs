//! Chains: replicas of one variant that together hold all of its layers, for an edge whose requests are then split over them.
//!
//! A split costs each token a round trip at each cut, so it is granted only where it can matter:
//! 1. no replica holds the variant whole, so that nobody else can serve it (the better variants first);
//! 2. nobody of the edge's site can serve the service whole, but the site can together: what may not leave it is served so;
//! 3. its predicted time is below that of every whole candidate. By how much it must be is for dispatch to say, with fresh facts.
//!
//! The search looks for the shortest chains first and stops at the first length at which there are any: each node more is a round
//! trip more for every token, so a longer one could only win by being very much faster. At least one stage is by a replica that
//! holds only a part: nodes that all hold the whole model serve a request each, which is always more.

use super::all_with_replica::usable;
use super::{Scene, path};
use crate::estimate::{StageFacts, predict_split};
use crate::fleet::{Costs, Hop, PathReport, Profile, ReplicaReport};
use crate::ids::{NodeId, VariantId};
use crate::plan::{StageGrant, Target};
use crate::policy::Budget;
use crate::units::Micros;
use crate::work::{HeldLayers, LayerRange, LlmRequest, Precision, STAGES_MAX, Service, Variant};
use std::cmp::Reverse;

/// Places of an edge's targets of one service that go to splits at most. Three: each keeps one from a whole candidate that no other
/// could replace less, and dispatch takes a split seldom; five whole ones and more are choice enough.
const SPLITS_MAX: usize = 3;
/// Replicas of one variant that chains are made of at most, fastest first, the edge's own before all. So a look at all pairs is
/// some hundreds of steps; slower ones than these sixteen would hardly be chosen.
const PIECES_MAX: usize = 16;
/// Steps of the search for one variant at most, so that longer chains, of which there may be very many, end too. What was found
/// until then stands.
const STEPS_MAX: u64 = 2_000;

/// A whole candidate that splits stand beside.
pub(super) struct Whole<'a> {
    pub(super) node: &'a NodeId,
    pub(super) variant: &'a VariantId,
    pub(super) time: Option<Micros>,
    /// Whether the edge reaches it without the hub.
    pub(super) direct: bool,
}

/// A split that could be granted.
pub(super) struct Chain<'a> {
    pub(super) first: &'a NodeId,
    pub(super) variant: &'a Variant,
    pub(super) stages: Vec<StageGrant>,
    /// Of the stage that has fewest.
    pub(super) slots: u32,
    time: Micros,
    /// Whether it stays within the edge's site.
    near: bool,
}

/// A replica as a part of chains.
#[derive(Clone, Copy)]
struct Piece<'a> {
    node: &'a NodeId,
    replica: &'a ReplicaReport,
    profile: &'a Profile,
    costs: &'a Costs,
    held: HeldLayers,
}

impl Piece<'_> {
    /// Seconds that a token of one request alone takes in one of its layers. Not of its load, which changes faster than plans.
    fn per_layer(&self) -> f64 {
        1.0 / (self.profile.decode.get().max(1e-9) * f64::from(self.held.range.count().max(1)))
    }
}

/// Stages as they are granted: with the paths of the held target of the same stages, as long as these have not become others. Round
/// trips never stay the same, and a plan that changes is told to everybody.
pub(super) fn settled(stages: Vec<StageGrant>, held: &[Target]) -> Vec<StageGrant> {
    let same = |target: &&Target| {
        let mut pairs = target.stages.iter().zip(&stages);
        target.stages.len() == stages.len()
            && pairs.all(|(a, b)| a.node == b.node && a.layers == b.layers && alike(&a.path, &b.path))
    };
    held.iter().find(same).map_or_else(|| stages.clone(), |target| target.stages.clone())
}

/// Whether two reports of a path tell the same story, give or take a quarter (and a millisecond, below which nobody notices).
fn alike(a: &PathReport, b: &PathReport) -> bool {
    let near = |a: f64, b: f64, least: f64| (a - b).abs() <= least.max(0.25 * a.max(b));
    let rtt = match (a.rtt, b.rtt) {
        (Some(a), Some(b)) => near(a.as_millis_f64(), b.as_millis_f64(), 1.0),
        (a, b) => a == b,
    };
    let rate = match (a.rate_out, b.rate_out) {
        (Some(a), Some(b)) => near(a.get(), b.get(), 0.0),
        (a, b) => a == b,
    };
    a.hop == b.hop && rtt && rate
}

/// The splits of a service that can matter, most needed first, at most [`SPLITS_MAX`]; absent when the budget ran out.
pub(super) fn chains<'a>(
    scene: &Scene<'a>,
    typical: &LlmRequest,
    service: &'a Service,
    whole: &[Whole<'_>],
    budget: &mut Budget,
) -> Option<Vec<Chain<'a>>> {
    let own_whole = |variant: &Variant| usable(scene, scene.edge, &variant.id).is_some_and(ReplicaReport::serves_whole);
    let site = scene.edge.site();
    let near_whole = service.variants.iter().any(own_whole) || whole.iter().any(|one| one.direct && site.contains(one.node));
    let fastest = whole.iter().filter_map(|one| one.time).min();
    let mut wanted = Vec::new();
    for variant in &service.variants {
        let alone = !own_whole(variant) && whole.iter().all(|one| *one.variant != variant.id);
        for chain in of_variant(scene, typical, variant, budget)? {
            let need = match () {
                () if alone => 1,
                () if chain.near && !near_whole => 2,
                () if fastest.is_none_or(|fastest| chain.time < fastest) => 3,
                () => continue,
            };
            wanted.push((need, chain));
        }
    }
    wanted.sort_by(|(need, a), (other, b)| {
        let better = || b.variant.quality.get().total_cmp(&a.variant.quality.get());
        need.cmp(other).then_with(better).then_with(|| a.time.cmp(&b.time)).then_with(|| a.first.cmp(b.first))
    });
    wanted.truncate(SPLITS_MAX);
    Some(wanted.into_iter().map(|(_, chain)| chain).collect())
}

/// The fastest chain of a variant, and the fastest within the edge's site if that is another.
fn of_variant<'a>(scene: &Scene<'a>, typical: &LlmRequest, variant: &'a Variant, budget: &mut Budget) -> Option<Vec<Chain<'a>>> {
    let pieces = pieces(scene, variant, budget)?;
    let site = scene.edge.site();
    let near: Vec<_> = pieces.iter().filter(|piece| site.contains(piece.node)).copied().collect();
    let mut found = Search::new(scene, typical, variant, &pieces).run(budget)?;
    if !found.iter().any(|chain| chain.near) {
        let search = Search { near_only: true, ..Search::new(scene, typical, variant, &near) };
        found.extend(search.run(budget)?);
    }
    Some(found)
}

/// The replicas that chains of a variant may be made of; none when all of them are whole.
fn pieces<'a>(scene: &Scene<'a>, variant: &'a Variant, budget: &mut Budget) -> Option<Vec<Piece<'a>>> {
    let mut pieces = Vec::new();
    let replica = |node: &NodeId| scene.view.node(node)?.replicas.get(&variant.id);
    let mut holders = scene.view.holders(&variant.id).filter_map(replica);
    if holders.all(|replica| replica.value.serves_whole()) {
        return Some(pieces);
    }
    for node in scene.view.holders(&variant.id) {
        if !budget.spend(1) {
            return None;
        }
        pieces.extend(piece(scene, node, variant));
    }
    pieces.sort_by(|a, b| {
        let rank = |piece: &Piece<'_>| Reverse(piece.node == scene.edge);
        rank(a).cmp(&rank(b)).then_with(|| a.per_layer().total_cmp(&b.per_layer())).then_with(|| a.node.cmp(b.node))
    });
    pieces.truncate(PIECES_MAX);
    Some(pieces)
}

fn piece<'a>(scene: &Scene<'a>, node: &'a NodeId, variant: &Variant) -> Option<Piece<'a>> {
    let replica = usable(scene, node, &variant.id)?;
    let (held, profile) = (replica.layers?, replica.profile.as_ref()?);
    let right = held.range.valid() && variant.may_weigh(replica.weights_sha256.as_deref());
    right.then_some(Piece { node, replica, profile, costs: &scene.view.node(node)?.costs, held })
}

/// A stage of a chain that is being tried.
struct Link<'s, 'a> {
    piece: &'s Piece<'a>,
    layers: LayerRange,
    path: PathReport,
}

struct Search<'s, 'a> {
    scene: &'s Scene<'a>,
    typical: &'s LlmRequest,
    variant: &'a Variant,
    pieces: &'s [Piece<'a>],
    /// Whether only chains within the edge's site count.
    near_only: bool,
    steps: u64,
    best: Option<Chain<'a>>,
    best_near: Option<Chain<'a>>,
}

impl<'s, 'a> Search<'s, 'a> {
    const fn new(scene: &'s Scene<'a>, typical: &'s LlmRequest, variant: &'a Variant, pieces: &'s [Piece<'a>]) -> Self {
        Self { scene, typical, variant, pieces, near_only: false, steps: STEPS_MAX, best: None, best_near: None }
    }

    fn run(mut self, budget: &mut Budget) -> Option<Vec<Chain<'a>>> {
        for length in 2..=STAGES_MAX {
            self.extend(&mut Vec::new(), length, budget)?;
            if self.best.is_some() || self.best_near.is_some() {
                break;
            }
        }
        Some(self.best.into_iter().chain(self.best_near).collect())
    }

    /// Tries each replica as the next stage of a chain that wants `more` of them; absent when the budget ran out.
    fn extend(&mut self, chain: &mut Vec<Link<'s, 'a>>, more: usize, budget: &mut Budget) -> Option<()> {
        for piece in self.pieces {
            if self.steps == 0 {
                return Some(());
            }
            self.steps -= 1;
            if !budget.spend(1) {
                return None;
            }
            if chain.iter().any(|link| link.piece.node == piece.node) {
                continue;
            }
            let Some((layers, cut)) = next_layers(chain.last(), piece) else { continue };
            if layers.is_last() != (more == 1) {
                continue;
            }
            let Some(path) = self.path(chain.last(), piece) else { continue };
            let before = chain.last().map(|link| link.layers);
            if let Some(last) = chain.last_mut() {
                last.layers.to = cut;
            }
            chain.push(Link { piece, layers, path });
            if more == 1 {
                self.weigh(chain)
            } else {
                self.extend(chain, more - 1, budget)?
            }
            chain.pop();
            if let (Some(last), Some(before)) = (chain.last_mut(), before) {
                last.layers = before;
            }
        }
        Some(())
    }

    fn path(&self, before: Option<&Link<'_, '_>>, piece: &Piece<'_>) -> Option<PathReport> {
        match before {
            None if piece.node == self.scene.edge => Some(PathReport::local()),
            None => path::between(self.scene, self.scene.edge, piece.node),
            Some(before) => path::between(self.scene, before.piece.node, piece.node),
        }
    }

    /// A whole chain: is it the fastest so far?
    fn weigh(&mut self, links: &[Link<'s, 'a>]) {
        let Some(first) = links.first().map(|link| link.piece.node) else { return };
        if links.iter().all(|link| link.piece.held.range.is_whole()) {
            return;
        }
        let facts: Vec<_> = links.iter().map(Link::facts).collect();
        let time = predict_split(self.typical, &facts, Precision::F32, self.variant.quality).total;
        let site = self.scene.edge.site();
        // A relay is outside of every site.
        let near = links.iter().all(|link| site.contains(link.piece.node) && link.path.hop != Hop::Relay);
        if self.near_only && !near {
            return;
        }
        let held = if near { &mut self.best_near } else { &mut self.best };
        if held.as_ref().is_some_and(|held| held.time <= time) {
            return;
        }
        let slots = links.iter().map(|link| link.piece.replica.load.slots).min().unwrap_or_default();
        let stages = links.iter().map(Link::grant).collect();
        *held = Some(Chain { first, variant: self.variant, stages, slots, time, near });
    }
}

impl<'a> Link<'_, 'a> {
    fn facts(&self) -> StageFacts<'_> {
        let Piece { replica, profile, costs, held, .. } = self.piece;
        StageFacts { profile, load: &replica.load, path: &self.path, costs, layers: self.layers, held: *held }
    }

    fn grant(&self) -> StageGrant {
        StageGrant { node: self.piece.node.clone(), layers: self.layers, path: self.path.clone() }
    }
}

/// The layers of `piece` after the stage `before` it, and where that one then ends. Where both hold some layers, those go to the
/// one that is faster at them: the time is linear in the cut, so that one of its ends is the best.
fn next_layers(before: Option<&Link<'_, '_>>, piece: &Piece<'_>) -> Option<(LayerRange, u16)> {
    let held = piece.held.range;
    let Some(before) = before else {
        // Where it holds everything, the last layer at least goes to somebody else.
        let first = LayerRange { to: held.to.min(held.of.saturating_sub(1)), ..held };
        return (held.is_first() && first.valid()).then_some((first, 0));
    };
    let (start, end) = (before.layers.from, before.piece.held.range.to);
    let earliest = held.from.max(start.saturating_add(1));
    // At least one is left for this piece, which adds some to what the one before could do, or ends the chain.
    let latest = end.min(held.to.saturating_sub(1));
    if held.of != before.layers.of || earliest > latest || held.to <= end && !held.is_last() {
        return None;
    }
    let cut = if piece.per_layer() < before.piece.per_layer() { earliest } else { latest };
    Some((LayerRange { from: cut, ..held }, cut))
}
