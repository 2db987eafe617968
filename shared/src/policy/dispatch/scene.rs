//! What a dispatch decision may know: the candidates of a request, each feasible with its estimate or rejected with its reason.

use super::Action;
use super::split::{self, SplitRules};
use crate::estimate::{Estimate, predict};
use crate::fleet::{Aged, FleetView, Hop, NodeState, NodeView, PathReport, ReplicaReport, ReplicaState};
use crate::ids::{NodeId, RequestId, VariantId};
use crate::plan::{Candidate, Choice, Grant, Reason, Rejected, Split, Target};
use crate::units::{Micros, Moment, Tokens};
use crate::work::{Catalogue, LlmRequest, ResidencyBound, Service, Variant};
use std::collections::BTreeMap;

/// A request that wants a decision.
#[derive(Clone, Copy, Debug)]
pub struct Pending<'a> {
    /// The request.
    pub request: &'a LlmRequest,
    /// When it came.
    pub arrived: Moment,
    /// Which attempt this would be.
    pub attempt: u16,
    /// Where it was already tried.
    pub tried: &'a [(NodeId, VariantId)],
    /// Set when the client already has tokens: only this variant continues the same stream.
    pub resume: Option<&'a VariantId>,
    /// Tokens that the client already has.
    pub delivered: Tokens,
}

impl Pending<'_> {
    /// Time left until the answer is worthless; absent without a deadline.
    #[must_use]
    pub fn remaining(&self, now: Moment) -> Option<Micros> {
        self.request.needs.slo.end_to_end.map(|deadline| deadline - now.since(self.arrived))
    }
}

/// Everything that a decision may know besides its own configuration and state.
#[derive(Clone, Copy, Debug)]
pub struct Scene<'a> {
    /// The time.
    pub now: Moment,
    /// The deciding node.
    pub me: &'a NodeId,
    /// The hub through which relayed paths go; absent at the hub itself.
    pub hub: Option<&'a NodeId>,
    /// The fleet as known here; the deciding node is in it, with a [`Hop::Local`] path, if it can execute.
    pub view: &'a FleetView,
    /// What the slower layers allow.
    pub grant: &'a Grant,
    /// What there is to serve.
    pub catalogue: &'a Catalogue,
    /// Replicas that failed an attempt of this ingress a moment ago.
    pub suspects: &'a BTreeMap<(NodeId, VariantId), Moment>,
    /// Attempts of this ingress that are open at each replica.
    pub open: &'a BTreeMap<(NodeId, VariantId), u32>,
    /// Facts older than this are not acted upon.
    pub stale_after: Micros,
    /// What holds for splits.
    pub splits: SplitRules,
    /// Whether the hub is out of reach.
    pub degraded: bool,
    /// Seed for chance; mix it with the request's id.
    pub seed: u64,
}

/// The candidates of one request.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Assessment {
    /// Those that may and can serve it, the node itself first, then in the order of the grant.
    pub feasible: Vec<Choice>,
    /// The others.
    pub rejected: Vec<Rejected>,
}

/// One candidate that is looked at.
#[derive(Clone, Copy)]
struct Question<'a> {
    pending: &'a Pending<'a>,
    residency: &'a ResidencyBound,
    variant: &'a Variant,
    node: &'a NodeId,
    /// The grant, where it is another node.
    target: Option<&'a Target>,
}

impl Assessment {
    /// What to do without a usable candidate, as far as those that `may_use` admits go: wait if time alone may bring one, else
    /// refuse with the reason of the candidate that came closest.
    #[must_use]
    pub fn without_candidate(&self, request: RequestId, may_use: impl Fn(&NodeId) -> Result<(), Reason>) -> Action {
        let admitted = || self.rejected.iter().filter(|rejected| rejected.nodes().all(|node| may_use(node).is_ok()));
        // A path that is gone is seldom back soon: whatever else there is to wait for is the better hope.
        let hopes = || admitted().filter(|rejected| rejected.reason.passes());
        if let Some(hope) = hopes().find(|rejected| rejected.reason != Reason::NoPath).or_else(|| hopes().next()) {
            return Action::Wait { request, reason: hope.reason.clone() };
        }
        // Whatever else there is to say: had the policy not excluded it, it could have been used, now or later.
        let hopeful = self.rejected.iter().filter(|rejected| rejected.reason.passes()).flat_map(Rejected::nodes);
        let usable = self.feasible.iter().flat_map(|choice| choice.candidate.nodes()).chain(hopeful);
        let excluded = usable.into_iter().find_map(|node| may_use(node).err());
        // Of those that came equally close the first speaks, the node itself before the others.
        let closest = || admitted().rev().max_by_key(|rejected| closeness(&rejected.reason));
        let reason = excluded.or_else(|| closest().map(|rejected| rejected.reason.clone()));
        let reason = reason.or_else(|| self.rejected.iter().flat_map(Rejected::nodes).find_map(|node| may_use(node).err()));
        Action::Refuse { request, reason: reason.unwrap_or(Reason::NoCandidate) }
    }
}

/// How far a candidate came before this reason stopped it: the further, the more its reason tells.
const fn closeness(reason: &Reason) -> u8 {
    match reason {
        Reason::NotPinned | Reason::NotResumable(_) | Reason::NoCandidate => 0,
        Reason::Residency => 1,
        Reason::Quality { .. } => 2,
        Reason::Deadline { .. } | Reason::Energy(_) | Reason::Money(_) => 6,
        Reason::Tried => 5,
        Reason::Context { .. } | Reason::Capability(_) => 4,
        _ => 3,
    }
}

impl Scene<'_> {
    /// All candidates of a request: the node itself with each variant, and each granted target.
    #[must_use]
    pub fn assess(&self, pending: &Pending<'_>) -> Assessment {
        let mut assessment = Assessment::default();
        let Some(service) = self.catalogue.service(&pending.request.service) else {
            return assessment;
        };
        let residency = pending.request.needs.residency.resolve(self.me);
        if let Some(own) = self.view.node(self.me) {
            for variant in service.variants.iter().filter(|variant| own.replicas.contains_key(&variant.id)) {
                self.judge(&Question { pending, residency: &residency, variant, node: self.me, target: None }, &mut assessment);
            }
        }
        for target in self.grant.targets.get(&service.id).into_iter().flatten() {
            let Some(variant) = service.variants.iter().find(|variant| variant.id == target.variant) else { continue };
            if !target.stages.is_empty() {
                self.judge_split(&split::Question { pending, residency: &residency, variant, target }, &mut assessment);
            } else if target.node != *self.me {
                let question = Question { pending, residency: &residency, variant, node: &target.node, target: Some(target) };
                self.judge(&question, &mut assessment);
            }
        }
        self.hold_to_margin(&mut assessment);
        if assessment.feasible.is_empty() {
            self.note_absent(pending, service, &mut assessment);
        }
        assessment
    }

    /// Wanted variants that no candidate offers are named too, so that an assessment without a choice explains itself.
    fn note_absent(&self, pending: &Pending<'_>, service: &Service, assessment: &mut Assessment) {
        for variant in service.variants.iter().filter(|variant| wanted(pending, variant).is_ok()) {
            if assessment.rejected.iter().any(|rejected| rejected.variant == variant.id) {
                continue;
            }
            let held = self.view.holders(&variant.id).next();
            let reason = if held.is_some() { Reason::NotGranted } else { Reason::NoReplica };
            let node = held.unwrap_or(self.me).clone();
            assessment.rejected.push(Rejected { node, variant: variant.id.clone(), stages: Vec::new(), reason });
        }
    }

    fn judge(&self, question: &Question<'_>, out: &mut Assessment) {
        let key = (question.node.clone(), question.variant.id.clone());
        match self.choice(question, &key) {
            Ok((path, estimate)) => {
                let candidate = Candidate { node: key.0, hop: path.hop, variant: key.1, split: Split::Whole };
                out.feasible.push(Choice { candidate, estimate, transport: path.transport });
            }
            Err(reason) => out.rejected.push(Rejected { node: key.0, variant: key.1, stages: Vec::new(), reason }),
        }
    }

    /// The way to the candidate and what it would cost. Hard constraints come first: what may not be is said before what cannot.
    fn choice(&self, question: &Question<'_>, key: &(NodeId, VariantId)) -> Result<(&PathReport, Estimate), Reason> {
        let Question { pending, residency, variant, node, target } = *question;
        if !residency.permits(node) {
            return Err(Reason::Residency);
        }
        wanted(pending, variant)?;
        let entry = self.view.node(node).ok_or(Reason::Unknown)?;
        let replica = self.replica(entry, key)?;
        fit(pending.request, variant, &replica.value)?;
        if let Some(held) = replica.value.layers.filter(|held| !held.range.is_whole()) {
            return Err(Reason::Part(held.range));
        }
        let path = self.path(entry, node, residency)?;
        self.has_room(pending, key, target.map(|target| target.open_max), &replica.value)?;
        let profile = replica.value.profile.as_ref().ok_or(Reason::NoProfile)?;
        let estimate = predict(pending.request, profile, &replica.value.load, path, &entry.costs, variant.quality);
        self.within_budgets(pending, &estimate)?;
        Ok((path, estimate))
    }

    /// Whether another attempt may go to this replica, and would be taken there.
    pub(super) fn has_room(
        &self,
        pending: &Pending<'_>,
        key: &(NodeId, VariantId),
        open_max: Option<u32>,
        replica: &ReplicaReport,
    ) -> Result<(), Reason> {
        if pending.tried.contains(key) {
            return Err(Reason::Tried);
        }
        if let Some(open_max) = open_max
            && self.open.get(key).is_some_and(|open| *open >= open_max)
        {
            return Err(Reason::BoundReached { open_max });
        }
        if replica.load.full() { Err(Reason::Busy) } else { Ok(()) }
    }

    pub(super) fn replica<'v>(&self, entry: &'v NodeView, key: &(NodeId, VariantId)) -> Result<&'v Aged<ReplicaReport>, Reason> {
        match entry.state {
            NodeState::Online => {}
            NodeState::Seen => return Err(Reason::NoPath),
            NodeState::Suspect => return Err(Reason::Suspect),
            NodeState::Draining => return Err(Reason::Draining),
            NodeState::Cloned => return Err(Reason::Cloned),
            NodeState::Offline => return Err(Reason::Offline),
        }
        let replica = entry.replicas.get(&key.1).ok_or(Reason::NoReplica)?;
        let age = replica.age(self.now);
        if key.0 != *self.me && age > self.stale_after {
            return Err(Reason::Stale { age });
        }
        match &replica.value.state {
            ReplicaState::Ready => {}
            ReplicaState::Loading => return Err(Reason::Loading),
            ReplicaState::Draining => return Err(Reason::Draining),
            ReplicaState::Failed(why) => return Err(Reason::ReplicaFailed(why.clone())),
        }
        if self.suspects.get(key).is_some_and(|until| *until > self.now) {
            return Err(Reason::Suspect);
        }
        Ok(replica)
    }

    pub(super) fn path<'v>(
        &self,
        entry: &'v NodeView,
        node: &NodeId,
        residency: &ResidencyBound,
    ) -> Result<&'v PathReport, Reason> {
        let mut forbidden = false;
        for (hop, path) in &entry.paths {
            let stale = *hop != Hop::Local && path.age(self.now) > self.stale_after;
            let leaves = *hop == Hop::Relay && !self.hub.is_some_and(|hub| residency.permits_relay(hub));
            forbidden |= leaves;
            if !stale && !leaves && (*hop == Hop::Local) == (node == self.me) {
                return Ok(&path.value);
            }
        }
        Err(if forbidden { Reason::Residency } else { Reason::NoPath })
    }

    pub(super) fn within_budgets(&self, pending: &Pending<'_>, estimate: &Estimate) -> Result<(), Reason> {
        let slo = &pending.request.needs.slo;
        if let Some(remaining) = pending.remaining(self.now)
            && estimate.first_token > remaining
        {
            return Err(Reason::Deadline { predicted: estimate.first_token, remaining });
        }
        if let Some(most) = slo.energy
            && estimate.energy.is_none_or(|energy| energy > most)
        {
            return Err(Reason::Energy(most));
        }
        if let Some(most) = slo.money
            && estimate.money.is_none_or(|money| money > most)
        {
            return Err(Reason::Money(most));
        }
        Ok(())
    }
}

/// Whether this is a variant that the request asks for.
pub(super) fn wanted(pending: &Pending<'_>, variant: &Variant) -> Result<(), Reason> {
    let request = pending.request;
    if request.pinned.as_ref().is_some_and(|pinned| *pinned != variant.id) {
        return Err(Reason::NotPinned);
    }
    if pending.resume.is_some_and(|same| *same != variant.id) {
        return Err(Reason::NotResumable("other weights would write another text".to_owned()));
    }
    let wanted = request.needs.slo.min_quality;
    if variant.quality < wanted {
        return Err(Reason::Quality { has: variant.quality, wanted });
    }
    Ok(())
}

/// Whether the replica is what its name says, as far as both sides know, and can execute such a request at all.
pub(super) fn fit(request: &LlmRequest, variant: &Variant, replica: &ReplicaReport) -> Result<(), Reason> {
    if !variant.may_weigh(replica.weights_sha256.as_deref()) {
        return Err(Reason::Weights);
    }
    serves(request, replica)
}

fn serves(request: &LlmRequest, replica: &ReplicaReport) -> Result<(), Reason> {
    // The prompt's length is an estimate, and text of long common words has half the tokens that it gives: only what is surely
    // too long is rejected here, the executor counts exactly.
    // Of texts for vectors each must fit by itself, which only the executor knows.
    if !request.features.embeddings && request.prompt.0 / 2 >= replica.context.0 {
        return Err(Reason::Context { wanted: request.prompt + Tokens(1), context: replica.context });
    }
    if let Some(lacking) = request.features.lacks(&replica.capabilities) {
        return Err(Reason::Capability(lacking.name().to_owned()));
    }
    Ok(())
}
