//! Which candidates may serve a request, found by looking at everything, without the code under test.

use crate::asks::Ask;
use crate::fleets::{Instance, STALE_AFTER};
use shared::estimate::{Estimate, StageFacts, predict, predict_split};
use shared::fleet::{Hop, NodeState, NodeView, PathReport, ReplicaReport, ReplicaState};
use shared::ids::{NodeId, VariantId};
use shared::plan::{StageGrant, Target};
use shared::units::Micros;
use shared::work::{Precision, Residency, Variant};

/// What stands in the way of a candidate, and whether time alone may lift it.
pub(crate) struct Hurdle {
    pub(crate) code: &'static str,
    pub(crate) passes: bool,
}

/// One candidate with everything that stands in its way.
pub(crate) struct Verdict {
    /// One node, or those of a split.
    pub(crate) nodes: Vec<NodeId>,
    pub(crate) split: bool,
    pub(crate) hop: Option<Hop>,
    pub(crate) variant: VariantId,
    pub(crate) hurdles: Vec<Hurdle>,
    /// Predicted, where it can be.
    total: Option<Micros>,
}

impl Verdict {
    pub(crate) fn feasible(&self) -> bool {
        self.hurdles.is_empty()
    }

    /// Only things that time may lift stand in its way.
    pub(crate) fn hopeful(&self) -> bool {
        !self.feasible() && self.hurdles.iter().all(|hurdle| hurdle.passes)
    }
}

/// All (node, variant) of the requested service that the view knows, judged.
pub(crate) fn judge_all(instance: &Instance, ask: &Ask) -> Vec<Verdict> {
    let service = instance.catalogue.iter().find(|service| service.id == ask.request.service);
    let variants = service.map(|service| service.variants.clone()).unwrap_or_default();
    let mut verdicts = Vec::new();
    for (node, entry) in instance.view.nodes() {
        for variant in &variants {
            let mut granted = instance.grant.targets.get(&ask.request.service).into_iter().flatten();
            let target = granted.find(|target| target.node == *node && target.variant == variant.id && target.stages.is_empty());
            let judge = Judge { instance, ask, node, entry, variant, target, part: false, hurdles: Vec::new(), total: None };
            let (hop, hurdles, total) = judge.judge();
            verdicts.push(Verdict { nodes: vec![node.clone()], split: false, hop, variant: variant.id.clone(), hurdles, total });
        }
    }
    let whole = verdicts.iter().filter(|verdict| verdict.feasible()).filter_map(|verdict| verdict.total).min();
    verdicts.extend(splits(instance, ask, whole));
    verdicts
}

/// The granted splits.
fn splits(instance: &Instance, ask: &Ask, whole: Option<Micros>) -> Vec<Verdict> {
    let service = instance.catalogue.iter().find(|service| service.id == ask.request.service);
    let granted = instance.grant.targets.get(&ask.request.service).into_iter().flatten();
    let mut verdicts = Vec::new();
    for target in granted.filter(|target| !target.stages.is_empty()) {
        let variant = service.and_then(|service| service.variants.iter().find(|variant| variant.id == target.variant));
        let Some(variant) = variant else { continue };
        let mut verdict = split(instance, ask, target, variant);
        // By default a split must be predicted to take at most 85 % of the best whole.
        if let (Some(whole), Some(split)) = (whole, verdict.total)
            && verdict.feasible()
            && split.as_secs_f64() > whole.as_secs_f64() * 0.85 + 1e-6
        {
            verdict.hurdles.push(Hurdle { code: "split_margin", passes: false });
        }
        verdicts.push(verdict);
    }
    verdicts
}

fn split(instance: &Instance, ask: &Ask, target: &Target, variant: &Variant) -> Verdict {
    let mut hurdles = Vec::new();
    let mut facts = Vec::new();
    let mut before: Option<&NodeId> = None;
    let covers = target.stages.windows(2).all(|pair| pair[0].layers.to == pair[1].layers.from)
        && target.stages.len() > 1
        && target.stages[0].layers.from == 0
        && target.stages.last().is_some_and(|last| last.layers.to == last.layers.of);
    if !covers {
        hurdles.push(Hurdle { code: "not_granted", passes: false });
    }
    let mut hop = None;
    for stage in &target.stages {
        let node = &stage.node;
        let Some(entry) = instance.view.node(node) else {
            hurdles.push(Hurdle { code: "unknown", passes: false });
            continue;
        };
        let mut judge =
            Judge { instance, ask, node, entry, variant, target: Some(target), part: true, hurdles: Vec::new(), total: None };
        judge.pair();
        let path = judge.way(before, stage);
        hop = hop.or_else(|| path.as_ref().map(|path| path.hop));
        let replica = entry.replicas.get(&variant.id).map(|replica| &replica.value);
        let held = replica.and_then(|replica| replica.layers);
        match held {
            None => judge.stop(replica.is_some(), "capability"),
            Some(held) => {
                let within = held.range.from <= stage.layers.from && stage.layers.to <= held.range.to;
                judge.stop(!within || held.range.of != stage.layers.of, "part");
            }
        }
        if let (Some(path), Some(profile), Some(held)) = (path, replica.and_then(|replica| replica.profile.as_ref()), held) {
            facts.push((
                profile,
                replica.map(|replica| replica.load).unwrap_or_default(),
                path,
                &entry.costs,
                stage.layers,
                held,
            ));
        }
        hurdles.extend(judge.hurdles);
        before = Some(node);
    }
    let mut total = None;
    if facts.len() == target.stages.len() {
        let facts: Vec<_> = facts
            .iter()
            .map(|(profile, load, path, costs, layers, held)| StageFacts {
                profile,
                load,
                path,
                costs,
                layers: *layers,
                held: *held,
            })
            .collect();
        let estimate = predict_split(&ask.request, &facts, Precision::F32, variant.quality);
        hurdles.extend(beyond_budgets(instance, ask, &estimate));
        total = Some(estimate.total);
    }
    Verdict {
        nodes: target.stages.iter().map(|stage| stage.node.clone()).collect(),
        split: true,
        hop,
        variant: variant.id.clone(),
        hurdles,
        total,
    }
}

fn beyond_budgets(instance: &Instance, ask: &Ask, estimate: &Estimate) -> Vec<Hurdle> {
    let slo = &ask.request.needs.slo;
    let waited = instance.now.since(ask.arrived);
    let late =
        slo.end_to_end.is_some_and(|deadline| waited + estimate.first_token > deadline && estimate.first_token > Micros::ZERO);
    let hungry = slo.energy.is_some_and(|most| estimate.energy.is_none_or(|energy| energy.get() > most.get()));
    let dear = slo.money.is_some_and(|most| estimate.money.is_none_or(|money| money.0 > most.0));
    let all = [(late, "deadline"), (hungry, "energy"), (dear, "money")];
    all.into_iter().filter(|(is, _)| *is).map(|(_, code)| Hurdle { code, passes: false }).collect()
}

struct Judge<'a> {
    instance: &'a Instance,
    ask: &'a Ask,
    node: &'a NodeId,
    entry: &'a NodeView,
    variant: &'a Variant,
    target: Option<&'a Target>,
    /// Whether some layers are wanted, not all.
    part: bool,
    hurdles: Vec<Hurdle>,
    total: Option<Micros>,
}

impl Judge<'_> {
    fn stop(&mut self, when: bool, code: &'static str) {
        if when {
            self.hurdles.push(Hurdle { code, passes: false });
        }
    }

    fn hold(&mut self, when: bool, code: &'static str) {
        if when {
            self.hurdles.push(Hurdle { code, passes: true });
        }
    }

    fn local(&self) -> bool {
        *self.node == self.instance.me
    }

    fn same_site(&self, other: &NodeId) -> bool {
        let site = |node: &NodeId| node.as_str().rsplit_once('/').map(|(site, _)| site.to_owned());
        site(&self.instance.me) == site(other)
    }

    fn judge(mut self) -> (Option<Hop>, Vec<Hurdle>, Option<Micros>) {
        self.pair();
        let path = self.path();
        if let Some(replica) = self.entry.replicas.get(&self.variant.id) {
            self.estimate(&replica.value, path.as_ref());
        }
        (path.map(|path| path.hop), self.hurdles, self.total)
    }

    /// What concerns the replica, however it is reached.
    fn pair(&mut self) {
        let residency = self.ask.request.needs.residency;
        self.stop(residency == Residency::Node && !self.local(), "residency");
        self.stop(residency == Residency::Site && !self.same_site(self.node), "residency");
        self.stop(self.ask.request.pinned.as_ref().is_some_and(|pinned| *pinned != self.variant.id), "not_pinned");
        self.stop(self.ask.resume.as_ref().is_some_and(|same| *same != self.variant.id), "not_resumable");
        self.stop(self.variant.quality.get() < self.ask.request.needs.slo.min_quality.get(), "quality");
        self.stop(self.target.is_none() && !self.local(), "not_granted");
        self.state();
        let pair = (self.node.clone(), self.variant.id.clone());
        self.stop(self.ask.tried.contains(&pair), "tried");
        self.hold(self.instance.suspects.get(&pair).is_some_and(|until| *until > self.instance.now), "suspect");
        let open = self.instance.open.get(&pair).copied().unwrap_or(0);
        let full = self.target.is_some_and(|target| open >= target.open_max) && (self.part || !self.local());
        self.hold(full, "bound_reached");
        match self.entry.replicas.get(&self.variant.id) {
            None => self.stop(true, "no_replica"),
            Some(replica) => {
                self.hold(!self.local() && self.instance.now.since(replica.at) > STALE_AFTER, "stale");
                self.replica(&replica.value);
            }
        }
    }

    /// The way to a stage from the one before it.
    fn way(&mut self, before: Option<&NodeId>, stage: &StageGrant) -> Option<PathReport> {
        let me = &self.instance.me;
        match before {
            Some(before) if before != me && stage.node != *me => {
                let stays = match self.ask.request.needs.residency {
                    Residency::Anywhere => true,
                    Residency::Site => self.same_site(&self.instance.hub),
                    Residency::Node => false,
                };
                self.stop(stage.path.hop == Hop::Relay && !stays, "residency");
                Some(stage.path.clone())
            }
            Some(before) if stage.node == *me => {
                let entry = self.instance.view.node(before)?;
                let mut other = Judge { node: before, entry, hurdles: Vec::new(), ..*self };
                let path = other.path();
                self.hurdles.append(&mut other.hurdles);
                path.map(|path| PathReport { rate_out: path.rate_in, rate_in: path.rate_out, ..path })
            }
            _ => self.path(),
        }
    }

    fn state(&mut self) {
        match self.entry.state {
            NodeState::Online => {}
            NodeState::Seen => self.hold(true, "no_path"),
            NodeState::Suspect => self.hold(true, "suspect"),
            NodeState::Draining => self.stop(true, "draining"),
            NodeState::Cloned => self.stop(true, "cloned"),
            NodeState::Offline => self.stop(true, "offline"),
        }
    }

    fn path(&mut self) -> Option<PathReport> {
        if self.local() {
            let local = self.entry.paths.get(&Hop::Local).map(|path| path.value.clone());
            self.hold(local.is_none(), "no_path");
            return local;
        }
        let carries = |hop: Hop| {
            let path = self.entry.paths.get(&hop)?;
            (self.instance.now.since(path.at) <= STALE_AFTER).then(|| path.value.clone())
        };
        let relay_known = carries(Hop::Relay).is_some() || self.entry.paths.contains_key(&Hop::Relay);
        let relay_allowed = match self.ask.request.needs.residency {
            Residency::Anywhere => !self.instance.me_is_hub,
            Residency::Site => !self.instance.me_is_hub && self.same_site(&self.instance.hub),
            Residency::Node => false,
        };
        let path = carries(Hop::Direct).or_else(|| carries(Hop::Relay).filter(|_| relay_allowed));
        if path.is_none() {
            if relay_known && !relay_allowed { self.stop(true, "residency") } else { self.hold(true, "no_path") }
        }
        path
    }

    fn replica(&mut self, replica: &ReplicaReport) {
        let whole = replica.layers.is_none_or(|held| held.range.from == 0 && held.range.to == held.range.of);
        self.stop(!whole && !self.part, "part");
        match replica.state {
            ReplicaState::Ready => {}
            ReplicaState::Loading => self.hold(true, "loading"),
            ReplicaState::Draining => self.stop(true, "draining"),
            ReplicaState::Failed(_) => self.stop(true, "replica_failed"),
        }
        let request = &self.ask.request;
        self.stop(!request.features.embeddings && request.prompt.0 / 2 >= replica.context.0, "context");
        let lacks = |name: &str| !replica.capabilities.contains(&name.to_owned());
        let lacks_schema = lacks("response_format") && lacks("json_schema");
        self.stop(request.features.constrained && lacks_schema, "capability");
        self.stop(request.features.many && lacks("n"), "capability");
        self.stop(request.features.logprobs && lacks("logprobs"), "capability");
        self.stop(request.features.tools && lacks("tools"), "capability");
        self.stop(request.features.vision && lacks("vision"), "capability");
        self.stop(request.features.embeddings && lacks("embeddings"), "capability");
        let load = &replica.load;
        self.hold(load.active >= load.slots && load.queued >= load.queue_max, "busy");
        self.hold(replica.profile.is_none(), "no_profile");
    }

    fn estimate(&mut self, replica: &ReplicaReport, path: Option<&PathReport>) {
        if let (Some(profile), Some(path)) = (&replica.profile, path) {
            let (request, load) = (&self.ask.request, &replica.load);
            let estimate = predict(request, profile, load, path, &self.entry.costs, self.variant.quality);
            self.hurdles.extend(beyond_budgets(self.instance, self.ask, &estimate));
            self.total = Some(estimate.total);
        }
    }
}
