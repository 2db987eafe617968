//! Which candidates may serve a request, found by looking at everything, without the code under test.

use crate::asks::Ask;
use crate::fleets::{Instance, STALE_AFTER};
use shared::estimate::predict;
use shared::fleet::{Hop, NodeState, NodeView, PathReport, ReplicaReport, ReplicaState};
use shared::ids::{NodeId, VariantId};
use shared::plan::Target;
use shared::units::Micros;
use shared::work::{Residency, Variant};

/// What stands in the way of a candidate, and whether time alone may lift it.
pub(crate) struct Hurdle {
    pub(crate) code: &'static str,
    pub(crate) passes: bool,
}

/// One candidate with everything that stands in its way.
pub(crate) struct Verdict {
    pub(crate) node: NodeId,
    pub(crate) hop: Option<Hop>,
    pub(crate) variant: VariantId,
    pub(crate) hurdles: Vec<Hurdle>,
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
            let granted = instance.grant.targets.get(&ask.request.service).into_iter().flatten();
            let target = granted.into_iter().find(|target| target.node == *node && target.variant == variant.id);
            let (hop, hurdles) = Judge { instance, ask, node, entry, variant, target, hurdles: Vec::new() }.judge();
            verdicts.push(Verdict { node: node.clone(), hop, variant: variant.id.clone(), hurdles });
        }
    }
    verdicts
}

struct Judge<'a> {
    instance: &'a Instance,
    ask: &'a Ask,
    node: &'a NodeId,
    entry: &'a NodeView,
    variant: &'a Variant,
    target: Option<&'a Target>,
    hurdles: Vec<Hurdle>,
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

    fn judge(mut self) -> (Option<Hop>, Vec<Hurdle>) {
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
        let full = self.target.is_some_and(|target| open >= target.open_max) && !self.local();
        self.hold(full, "bound_reached");
        let path = self.path();
        match self.entry.replicas.get(&self.variant.id) {
            None => self.stop(true, "no_replica"),
            Some(replica) => {
                self.hold(!self.local() && self.instance.now.since(replica.at) > STALE_AFTER, "stale");
                self.replica(&replica.value, path.as_ref());
            }
        }
        (path.map(|path| path.hop), self.hurdles)
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

    fn replica(&mut self, replica: &ReplicaReport, path: Option<&PathReport>) {
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
        if let (Some(profile), Some(path)) = (&replica.profile, path) {
            let estimate = predict(request, profile, load, path, &self.entry.costs, self.variant.quality);
            let slo = &request.needs.slo;
            let waited = self.instance.now.since(self.ask.arrived);
            let late = slo
                .end_to_end
                .is_some_and(|deadline| waited + estimate.first_token > deadline && estimate.first_token > Micros::ZERO);
            self.stop(late, "deadline");
            let above = slo.energy.is_some_and(|most| estimate.energy.is_none_or(|energy| energy.get() > most.get()));
            self.stop(above, "energy");
            self.stop(slo.money.is_some_and(|most| estimate.money.is_none_or(|money| money.0 > most.0)), "money");
        }
    }
}
