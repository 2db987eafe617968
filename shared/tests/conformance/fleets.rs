//! Small random fleets. The draws do not depend on names, so that one seed gives the same fleet under any naming.

use crate::asks::Ask;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{RngCore, SeedableRng};
use shared::fleet::*;
use shared::ids::*;
use shared::plan::{Grant, StageGrant, Target};
use shared::policy::dispatch::{Scene, SplitRules};
use shared::units::*;
use shared::work::*;
use std::collections::BTreeMap;
use std::time::{SystemTime, UNIX_EPOCH};

/// The seed of this run: given, or drawn from the clock; printed either way.
pub(crate) fn run_seed() -> u64 {
    let given = std::env::var("TIDEGATE_SEED").ok().map(|text| text.parse().expect("TIDEGATE_SEED is a number"));
    let seed = given.unwrap_or_else(|| {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
        now.as_secs() << 20 | u64::from(now.subsec_micros())
    });
    println!("TIDEGATE_SEED={seed}");
    seed
}

/// Chance from a seed.
pub(crate) struct Dice(ChaCha8Rng);

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self(ChaCha8Rng::seed_from_u64(seed))
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.0.next_u64() % n.max(1)
    }

    pub(crate) fn small(&mut self, n: u32) -> u32 {
        u32::try_from(self.below(u64::from(n))).expect("below n")
    }

    pub(crate) fn percent(&mut self, p: u64) -> bool {
        self.below(100) < p
    }

    pub(crate) fn pick<T: Clone>(&mut self, items: &[T]) -> T {
        let place = usize::try_from(self.below(items.len() as u64)).expect("below the length");
        items[place].clone()
    }

    pub(crate) fn maybe<T>(&mut self, p: u64, make: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let made = make(self);
        self.percent(p).then_some(made)
    }

    /// A span up to `ms`, with microseconds, so that two are hardly ever equal.
    pub(crate) fn span(&mut self, ms: u64) -> Micros {
        Micros(self.below(ms * 1_000 + 1))
    }
}

/// How things are called: the second way reverses the order of all names.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Naming {
    pub(crate) reversed: bool,
}

impl Naming {
    pub(crate) fn node(self, site: u64, number: u64) -> NodeId {
        let name =
            if self.reversed { format!("z{}/n{}", 99 - site, 999 - number) } else { format!("a{}/m{}", 10 + site, 100 + number) };
        NodeId::new(&name).expect("good")
    }
}

/// What is special about a fleet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flavour {
    Mixed,
    Healthy,
    /// Healthy, and with more candidates than may be granted.
    Crowded,
    Empty,
    NoCapacity,
    PathsDown,
    Expired,
}

impl Flavour {
    pub(crate) const ALL: [Self; 7] =
        [Self::Mixed, Self::Healthy, Self::Crowded, Self::Empty, Self::NoCapacity, Self::PathsDown, Self::Expired];
}

/// A fleet as one ingress knows it, with requests.
#[derive(Clone, Debug)]
pub(crate) struct Instance {
    pub(crate) now: Moment,
    pub(crate) me: NodeId,
    pub(crate) hub: NodeId,
    pub(crate) me_is_hub: bool,
    pub(crate) view: FleetView,
    pub(crate) grant: Grant,
    pub(crate) catalogue: Catalogue,
    pub(crate) suspects: BTreeMap<(NodeId, VariantId), Moment>,
    pub(crate) open: BTreeMap<(NodeId, VariantId), u32>,
    pub(crate) asks: Vec<Ask>,
}

pub(crate) const STALE_AFTER: Micros = Micros::from_secs(15);
pub(crate) const NOW: Moment = Moment(1_000_000_000);

impl Instance {
    pub(crate) fn generate(seed: u64, naming: Naming, flavour: Flavour) -> Self {
        let mut dice = Dice::new(seed);
        let catalogue = catalogue(&mut dice);
        let me_is_hub = dice.percent(25);
        let hub = NodeId::new("core/hub").expect("good");
        let count = match flavour {
            Flavour::Empty => 0,
            Flavour::Crowded => 12,
            _ => 1 + dice.below(6),
        };
        let nodes: Vec<_> = (0..count).map(|number| naming.node(dice.below(3), number)).collect();
        let me = match nodes.first() {
            _ if me_is_hub => hub.clone(),
            Some(first) => first.clone(),
            None => naming.node(0, 0),
        };
        let mut maker = Maker { dice, flavour, nodes, me: me.clone(), serial: 1 };
        let mut batches: Vec<_> = (0..maker.nodes.len()).map(|place| maker.deltas(place, &catalogue)).collect();
        if naming.reversed {
            batches.reverse();
        }
        let mut view = FleetView::default();
        for (at, delta) in batches.into_iter().flatten() {
            view.apply(at, delta);
        }
        let grant = maker.grant(&catalogue, &view);
        let pairs = maker.pairs(&catalogue);
        let mut suspects = BTreeMap::new();
        let mut open = BTreeMap::new();
        for pair in pairs {
            let until = Moment(NOW.0 - 500_000 + maker.dice.below(1_000_000));
            let count = maker.dice.small(3);
            if maker.unwell(10) {
                suspects.insert(pair.clone(), until);
            }
            open.insert(pair, count);
        }
        let asks = (0..6).map(|number| maker.ask(number, &catalogue)).collect();
        Self { now: NOW, me, hub, me_is_hub, view, grant, catalogue, suspects, open, asks }
    }

    pub(crate) fn scene(&self) -> Scene<'_> {
        Scene {
            now: self.now,
            me: &self.me,
            hub: (!self.me_is_hub).then_some(&self.hub),
            view: &self.view,
            grant: &self.grant,
            catalogue: &self.catalogue,
            suspects: &self.suspects,
            open: &self.open,
            stale_after: STALE_AFTER,
            splits: SplitRules::default(),
            degraded: false,
            seed: 7,
        }
    }
}

/// The size by which variants are known that some nodes hold only in part.
pub(crate) const OF_PARTS: Bytes = Bytes(2_000);
/// Layers of those.
const LAYERS: u16 = 12;

fn catalogue(dice: &mut Dice) -> Catalogue {
    let service = |number: u64, dice: &mut Dice| Service {
        id: ServiceId::new(&format!("service-{number}")).expect("good"),
        aliases: Vec::new(),
        variants: (0..1 + dice.below(3)).map(|v| variant(&format!("v{number}-{v}"), dice)).collect(),
    };
    Catalogue::new((0..1 + dice.below(2)).map(|number| service(number, dice))).expect("no contradiction")
}

fn variant(name: &str, dice: &mut Dice) -> Variant {
    Variant {
        id: VariantId::new(name).expect("good"),
        weights_sha256: None,
        quantisation: "q8_0".to_owned(),
        context: Tokens(4096),
        memory: if dice.percent(40) { OF_PARTS } else { Bytes(1_000) },
        quality: Quality::new(f64::from(1 + dice.small(10)) / 10.0).expect("at most 1"),
        quality_source: "drawn".to_owned(),
    }
}

pub(crate) struct Maker {
    pub(crate) dice: Dice,
    pub(crate) flavour: Flavour,
    nodes: Vec<NodeId>,
    me: NodeId,
    serial: u64,
}

impl Maker {
    pub(crate) fn healthy(&self) -> bool {
        matches!(self.flavour, Flavour::Healthy | Flavour::Crowded)
    }

    /// Chance of something that makes a candidate unusable: never in a healthy fleet.
    pub(crate) fn unwell(&mut self, percent: u64) -> bool {
        self.dice.percent(percent) && !self.healthy()
    }

    fn age(&mut self) -> Micros {
        let old = self.unwell(10);
        if old { Micros::from_secs(16) + self.dice.span(1_000) } else { self.dice.span(14_000) }
    }

    fn deltas(&mut self, place: usize, catalogue: &Catalogue) -> Vec<(Moment, FleetDelta)> {
        let node = self.nodes[place].clone();
        let tier = self.dice.pick(&[Tier::Device, Tier::Site, Tier::Region, Tier::Cloud, Tier::Cloud]);
        let costs = self.costs();
        let any = [NodeState::Seen, NodeState::Suspect, NodeState::Draining, NodeState::Cloned, NodeState::Offline];
        let odd = self.dice.pick(&any);
        let state = if self.unwell(25) { odd } else { NodeState::Online };
        let machine = Machine { cores: Some(1 + self.dice.small(8)), memory: Some(Bytes(100_000)), ..Machine::default() };
        let variants = catalogue.iter().flat_map(|service| &service.variants);
        let replicas: Vec<_> = variants.filter_map(|variant| self.replica(variant)).collect();
        let age = self.age();
        let mut deltas = vec![
            (NOW, FleetDelta::Node { node: node.clone(), tier, costs, addresses: Vec::new() }),
            (NOW, FleetDelta::Machine { node: node.clone(), machine }),
            (NOW, FleetDelta::State { node: node.clone(), state }),
            (NOW, FleetDelta::Replicas { node: node.clone(), replicas, age }),
        ];
        for path in self.paths(&node) {
            deltas.push((NOW.before(self.age()), FleetDelta::Path { node: node.clone(), path }));
        }
        let others: Vec<_> = self.nodes.iter().filter(|other| **other != node).cloned().collect();
        let peers = others.into_iter().filter_map(|other| Some((other, self.peer()?))).collect();
        deltas.push((NOW, FleetDelta::Peers { node, peers }));
        deltas
    }

    fn costs(&mut self) -> Costs {
        Costs {
            busy: self.dice.maybe(70, |dice| Watts::new(f64::from(1 + dice.small(200))).expect("few")),
            prompt_per_million: self.dice.maybe(70, |dice| MicroDollars(dice.below(1_000_000))),
            output_per_million: self.dice.maybe(70, |dice| MicroDollars(dice.below(4_000_000))),
        }
    }

    fn replica(&mut self, variant: &Variant) -> Option<ReplicaReport> {
        self.serial += 1;
        let odd = self.dice.pick(&[ReplicaState::Loading, ReplicaState::Draining, ReplicaState::Failed("broke".to_owned())]);
        let state = if self.unwell(20) { odd } else { ReplicaState::Ready };
        let load = self.load();
        let profile = self.profile();
        let layers = self.layers(variant);
        let names = ["tools", "n", "logprobs", "response_format", "json_schema", "vision", "embeddings"];
        let capabilities = names.into_iter().filter(|_| self.dice.percent(50)).map(str::to_owned).collect();
        let report = ReplicaReport {
            variant: variant.id.clone(),
            engine: EngineKind::Profiled,
            device: String::new(),
            state,
            load,
            // Unique in the fleet and independent of names: tells one replica from another.
            memory: Bytes(self.serial),
            context: Tokens(256 << self.dice.small(5)),
            weights_sha256: None,
            layers,
            capabilities,
            profile,
        };
        self.dice.percent(60).then_some(report)
    }

    /// Nothing is known of layers, all, the first, the last, or some in the middle.
    fn layers(&mut self, variant: &Variant) -> Option<HeldLayers> {
        let cut = |dice: &mut Dice| 1 + u16::try_from(dice.below(u64::from(LAYERS) - 1)).expect("few");
        let (a, b) = (cut(&mut self.dice), cut(&mut self.dice));
        let ranges = [(0, LAYERS), (0, a), (0, a), (a, LAYERS), (a, LAYERS), (a.min(b), a.max(b))];
        let (from, to) = self.dice.pick(&ranges);
        let range = LayerRange { from, to, of: LAYERS };
        let known = self.dice.percent(85) && variant.memory == OF_PARTS && range.valid();
        known.then_some(HeldLayers { range, hidden: Bytes(2_304) })
    }

    fn load(&mut self) -> Load {
        let slots = if self.flavour == Flavour::NoCapacity { 0 } else { 1 + self.dice.small(4) };
        let active = self.dice.small(slots + 1);
        let queued = if active == slots { self.dice.small(4) } else { 0 };
        let queue_max = if self.flavour == Flavour::NoCapacity { 0 } else { self.dice.small(6) };
        Load { slots, active, queued, queue_max, backlog: Tokens(self.dice.small(2_000) * (active + queued)), ..Load::default() }
    }

    fn profile(&mut self) -> Option<Profile> {
        let rate = |dice: &mut Dice, most: u32| TokenRate::new(f64::from(1 + dice.small(most))).expect("few");
        let profile = Profile {
            prompt: rate(&mut self.dice, 20_000),
            decode: rate(&mut self.dice, 300),
            overhead: self.dice.span(50),
            spread: Fraction::new(0.2).expect("below 1"),
            source: ProfileSource::WarmUp,
            samples: 3,
            pace: None,
            load: None,
        };
        (!self.unwell(10)).then_some(profile)
    }

    fn paths(&mut self, node: &NodeId) -> Vec<PathReport> {
        let drawn = [Hop::Direct, Hop::Relay].map(|hop| (self.dice.percent(70), self.path(hop)));
        match (node == &self.me, self.flavour) {
            (_, Flavour::PathsDown) => Vec::new(),
            (true, _) => vec![PathReport::local()],
            (false, _) => drawn.into_iter().filter(|(there, _)| *there).map(|(_, path)| path).collect(),
        }
    }

    fn path(&mut self, hop: Hop) -> PathReport {
        let rate = self.dice.maybe(60, |dice| ByteRate::new(f64::from(1_000 + dice.small(10_000_000))).expect("few"));
        let rtt = self.dice.maybe(90, |dice| dice.span(300));
        PathReport { hop, rtt, rate_out: rate, ..PathReport::local() }
    }

    fn peer(&mut self) -> Option<PathReport> {
        let path = self.path(Hop::Direct);
        (self.dice.percent(40) && self.flavour != Flavour::PathsDown).then_some(path)
    }

    /// Every (node, variant) there could be, known nodes and one unknown.
    pub(crate) fn pairs(&self, catalogue: &Catalogue) -> Vec<(NodeId, VariantId)> {
        let stranger = NodeId::new("nowhere/unknown").expect("good");
        let nodes = self.nodes.iter().cloned().chain([stranger]);
        let variants: Vec<_> = catalogue.iter().flat_map(|service| &service.variants).map(|variant| variant.id.clone()).collect();
        nodes.flat_map(|node| variants.iter().map(move |variant| (node.clone(), variant.clone())).collect::<Vec<_>>()).collect()
    }

    /// Two or three different nodes, with layers that follow each other, such as they hold where that can be.
    fn stages(&mut self, variant: &VariantId, view: &FleetView) -> Vec<StageGrant> {
        let mut nodes = self.nodes.clone();
        let count = if self.dice.percent(70) { 2 } else { 3 };
        let mut stages: Vec<StageGrant> = Vec::new();
        let mut from = 0;
        for number in 0..count {
            if nodes.is_empty() {
                break;
            }
            let held = |node: &NodeId| view.node(node)?.replicas.get(variant)?.value.layers;
            let fits = |node: &NodeId| held(node).is_some_and(|held| held.range.from <= from && from < held.range.to);
            let fitting: Vec<_> = (0..nodes.len()).filter(|place| fits(&nodes[*place])).collect();
            let any: Vec<_> = (0..nodes.len()).collect();
            let (one, other) = (self.dice.pick(&any), self.dice.pick(if fitting.is_empty() { &any } else { &fitting }));
            let node = nodes.remove(if self.dice.percent(20) { one } else { other });
            let held = held(&node);
            let end = held.map_or(LAYERS / 2, |held| held.range.to).min(LAYERS - 1).max(from + 1);
            let to = if number + 1 == count { LAYERS } else { end };
            let hop = self.dice.pick(&[Hop::Direct, Hop::Relay]);
            let path = self.path(hop);
            stages.push(StageGrant { node, layers: LayerRange { from, to, of: LAYERS }, path });
            from = to;
            if from == LAYERS {
                break;
            }
        }
        stages
    }

    fn grant(&mut self, catalogue: &Catalogue, view: &FleetView) -> Grant {
        let mut targets = BTreeMap::new();
        for service in catalogue.iter() {
            let of_service = |pair: &(NodeId, VariantId)| service.variants.iter().any(|variant| variant.id == pair.1);
            let pairs: Vec<_> = self.pairs(catalogue).into_iter().filter(of_service).collect();
            let mut row = Vec::new();
            for (node, variant) in pairs {
                let (open_max, share) = (1 + self.dice.small(3), Fraction::new(0.1).expect("below 1"));
                if self.dice.percent(60) && row.len() < 6 {
                    row.push(Target { node, variant, share, open_max, stages: Vec::new() });
                }
            }
            let of_parts = service.variants.iter().filter(|variant| variant.memory == OF_PARTS);
            for variant in of_parts.flat_map(|variant| [variant; 3]) {
                let (stages, open_max) = (self.stages(&variant.id, view), 1 + self.dice.small(3));
                let Some(first) = stages.first() else { continue };
                let (node, variant, share) = (first.node.clone(), variant.id.clone(), Fraction::default());
                let target = Target { node, variant, share, open_max, stages };
                let said = row.iter().any(|other: &Target| other.variant == target.variant && other.nodes().eq(target.nodes()));
                if !said && row.len() < 8 {
                    row.push(target);
                }
            }
            targets.insert(service.id.clone(), row);
        }
        Grant { epoch: PlanEpoch { incarnation: 1, sequence: 1 }, targets, expires: None }
    }
}
