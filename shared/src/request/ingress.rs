//! The ingress' half: what happens to a client's request from its arrival to its record.

use super::core::RequestCore;
use super::event::{AttemptEvent, Effect};
use super::limits::{ATTEMPTS_MAX, LEARNT_MAX, REQUESTS_MAX};
use super::retry::not_resumable;
use super::ticket::{Stage, Ticket};
use crate::estimate::price_parts;
use crate::fleet::{Costs, FleetDelta, Load, Origin};
use crate::ids::{AttemptId, NodeId, RequestId, ServiceId, VariantId};
use crate::plan::{Actual, Candidate, Failure, Finish, Outcome, Reason, Usage};
use crate::policy::dispatch::DispatchEvent;
use crate::units::{Joules, Moment};
use crate::work::{Capability, LlmRequest};

impl RequestCore {
    pub(super) fn arrive(&mut self, now: Moment, mut request: LlmRequest, effects: &mut Vec<Effect>) {
        let (id, guessed) = (request.id, request.prompt);
        if let Some(learnt) = self.learnt.get(&request.service) {
            request.prompt = learnt.prompt(guessed, request.kind);
            request.likely = learnt.likely(request.prompt);
        }
        if self.tickets.contains_key(&id) {
            return;
        }
        let full = self.tickets.len() >= REQUESTS_MAX;
        self.tickets.insert(id, Ticket::new(now, request, guessed));
        if full {
            self.finish(now, id, Outcome::Failed(Failure::Refused(Reason::QueueFull)), effects);
            return;
        }
        self.retries.earn();
        if let Some(lacking) = self.lacked_by_all(id) {
            let refusal = Failure::Refused(Reason::Capability(lacking.name().to_owned()));
            return self.finish(now, id, Outcome::Failed(refusal), effects);
        }
        self.look_at_own_loads(now);
        self.dispatch(now, id, None, effects);
    }

    /// What runs here has come further since its load was last told.
    fn look_at_own_loads(&mut self, now: Moment) {
        for (variant, load) in self.executor.busy_loads() {
            self.view.apply(now, FleetDelta::Load { node: self.config.me.clone(), variant, load });
        }
    }

    /// What the request needs and no replica of its service has, wherever it is and however it is: waiting would change nothing.
    /// Where no replica is known at all, nothing is known of what they have.
    fn lacked_by_all(&self, id: RequestId) -> Option<Capability> {
        let request = &self.tickets.get(&id)?.request;
        request.features.needed().next()?;
        let service = self.catalogue.service(&request.service)?;
        let wanted = service.variants.iter().filter(|variant| request.pinned.as_ref().is_none_or(|pinned| *pinned == variant.id));
        let mut known = wanted.flat_map(|variant| self.view.replicas_of(&variant.id)).peekable();
        known.peek()?;
        let lacking: Vec<_> = known.map(|replica| request.features.lacks(&replica.capabilities)).collect();
        lacking.into_iter().collect::<Option<Vec<_>>>()?.first().copied()
    }

    /// Variants of a service of which some replica has this capability, as far as is known here.
    #[must_use]
    pub fn variants_with(&self, service: &ServiceId, capability: Capability) -> Vec<VariantId> {
        let variants = self.catalogue.service(service).into_iter().flat_map(|service| &service.variants);
        let has = |variant: &VariantId| self.view.replicas_of(variant).any(|replica| capability.is_among(&replica.capabilities));
        variants.filter(|variant| has(&variant.id)).map(|variant| variant.id.clone()).collect()
    }

    /// The client went away: nobody wants the answer, and nobody is told.
    pub(super) fn client_left(&mut self, now: Moment, id: RequestId, failure: Failure, effects: &mut Vec<Effect>) {
        self.cancel_trial(now, id, &failure, effects);
        self.finish(now, id, Outcome::Failed(failure), effects);
    }

    /// News of a remote attempt.
    pub(super) fn remote(&mut self, now: Moment, attempt: AttemptId, event: AttemptEvent, effects: &mut Vec<Effect>) {
        if self.is_live(attempt) {
            self.attempt_news(now, attempt, event, effects);
        }
    }

    /// Whether this is the live attempt of its request. News of any other are too late and mean nothing.
    pub(super) fn is_live(&self, attempt: AttemptId) -> bool {
        self.tickets.get(&attempt.request).and_then(Ticket::trial).is_some_and(|trial| trial.id == attempt)
    }

    /// News of the live attempt, wherever it runs.
    pub(super) fn attempt_news(&mut self, now: Moment, attempt: AttemptId, event: AttemptEvent, effects: &mut Vec<Effect>) {
        if !self.is_live(attempt) {
            return;
        }
        let Some(ticket) = self.tickets.get_mut(&attempt.request) else { return };
        match event {
            AttemptEvent::Accepted(load) => {
                ticket.alive(now, true);
                self.heard_load(now, attempt, load);
                effects.push(Effect::SendBody(attempt));
            }
            AttemptEvent::Refused(reason, load) => {
                if let Some(load) = load {
                    self.heard_load(now, attempt, load);
                }
                self.attempt_failed(now, attempt, Failure::Refused(reason), effects);
            }
            AttemptEvent::Progress => ticket.alive(now, true),
            AttemptEvent::Content(tokens) => {
                ticket.content(now, tokens);
                effects.push(Effect::Deliver(attempt));
            }
            AttemptEvent::Ended(finish, usage) => self.attempt_ended(now, attempt, finish, usage, effects),
            AttemptEvent::Failed(failure) => self.attempt_failed(now, attempt, failure, effects),
        }
    }

    /// A timer of this request fired.
    pub(super) fn look_at(&mut self, now: Moment, id: RequestId, effects: &mut Vec<Effect>) {
        let Some(ticket) = self.tickets.get_mut(&id) else { return };
        if ticket.deadline().is_some_and(|deadline| deadline <= now) {
            self.cancel_trial(now, id, &Failure::DeadlineExceeded, effects);
            self.finish(now, id, Outcome::Failed(Failure::DeadlineExceeded), effects);
            return;
        }
        if ticket.due().is_none_or(|due| due > now) {
            self.arm(id);
            return;
        }
        match &ticket.stage {
            Stage::Waiting { reason, .. } => {
                let failure = Failure::Refused(reason.clone());
                self.finish(now, id, Outcome::Failed(failure), effects);
            }
            // Waiting for a slot of this node is no silence: the deadline alone ends it.
            Stage::Trying(trial) if self.executor.is_queued(trial.id) => {
                ticket.alive(now, true);
                self.arm(id);
            }
            Stage::Trying(trial) => {
                let (attempt, failure) = (trial.id, Failure::Stalled(trial.silence(now)));
                self.abandon(now, attempt, effects);
                self.attempt_failed(now, attempt, failure, effects);
            }
        }
    }

    /// The live attempt failed: try elsewhere if that is allowed, else tell the client.
    pub(super) fn attempt_failed(&mut self, now: Moment, attempt: AttemptId, failure: Failure, effects: &mut Vec<Effect>) {
        let id = attempt.request;
        let Some(candidate) = self.end_trial(now, id, &Outcome::Failed(failure.clone()), None) else { return };
        let (node, cause) = culprit(&candidate, &failure);
        self.blame(now, &candidate, node, cause);
        let Some(ticket) = self.tickets.get_mut(&id) else { return };
        // Busy passes; everything else is a reason not to ask there again for this request.
        if !matches!(cause, Failure::Refused(Reason::Busy)) {
            ticket.tried.push((node.clone(), candidate.variant.clone()));
        }
        let broken = ticket.delivered.0 > 0;
        let stuck = broken && not_resumable(ticket.request.features, ticket.written_in).is_some();
        let again = failure.elsewhere() && !stuck && ticket.next_attempt < ATTEMPTS_MAX && self.retries.spend();
        if again {
            self.dispatch(now, id, Some(failure), effects);
        } else {
            self.finish(now, id, Outcome::Failed(failure), effects);
        }
    }

    /// The request is over: tell the client, keep the record.
    pub(super) fn finish(&mut self, now: Moment, id: RequestId, outcome: Outcome, effects: &mut Vec<Effect>) {
        let Some(ticket) = self.tickets.remove(&id) else { return };
        self.waiting.remove(&id);
        self.disarm(&ticket);
        let variant = ticket.resume.clone();
        let quality = variant.as_ref().and_then(|variant| self.catalogue.variant(variant)).map(|variant| variant.quality);
        let record = ticket.into_record(now, self.config.me.clone(), outcome.clone(), quality);
        match outcome {
            Outcome::Answered(finish) => effects.push(Effect::Finish(id, finish, record.actual.usage)),
            Outcome::Failed(Failure::ClientGone) => {}
            Outcome::Failed(failure) => effects.push(Effect::Fail(id, failure)),
        }
        effects.push(Effect::Record(Box::new(record)));
    }

    fn attempt_ended(&mut self, now: Moment, attempt: AttemptId, finish: Finish, usage: Usage, effects: &mut Vec<Effect>) {
        let id = attempt.request;
        let Some(candidate) = self.end_trial(now, id, &Outcome::Answered(finish), Some(usage)) else { return };
        for node in candidate.nodes() {
            self.suspects.acquit(node, &candidate.variant);
        }
        self.learn_from(id, finish, &usage);
        if let Some(ticket) = self.tickets.get_mut(&id) {
            // An answer of no tokens at all still was an answer of this variant.
            ticket.resume.get_or_insert(candidate.variant);
        }
        self.finish(now, id, Outcome::Answered(finish), effects);
    }

    /// What an answered request tells of its service.
    fn learn_from(&mut self, id: RequestId, finish: Finish, usage: &Usage) {
        let Some(ticket) = self.tickets.get(&id) else { return };
        let request = &ticket.request;
        if !self.learnt.contains_key(&request.service) && self.learnt.len() >= LEARNT_MAX {
            return;
        }
        let learnt = self.learnt.entry(request.service.clone()).or_default();
        learnt.learn(ticket.guessed, request.kind, usage);
        let output = ticket.delivered.max(usage.output);
        if !request.features.embeddings && output.0 > 0 {
            learnt.answered(usage.prompt, output, finish == Finish::Length, &request.likely);
        }
    }

    /// Closes the books on the live attempt and tells the policy. Returns where it ran.
    fn end_trial(&mut self, now: Moment, id: RequestId, outcome: &Outcome, usage: Option<Usage>) -> Option<Candidate> {
        let ticket = self.tickets.get_mut(&id)?;
        let (trial, mut actual) = ticket.end_trial(now, outcome, usage)?;
        let candidate = trial.choice.candidate.clone();
        let costs = |node| self.view.node(node).map(|node| node.costs.clone()).unwrap_or_default();
        let parts: Vec<_> = candidate.parts().map(|(node, share)| (costs(node), share)).collect();
        let price_it = |actual: &mut Actual| {
            let busy = (actual.total - trial.choice.estimate.wait).as_secs_f64();
            // Each node of a split computes for about its part of the layers.
            let energy = |(costs, share): &(Costs, f64)| Some(costs.busy?.get() * busy * share);
            actual.energy = parts.iter().map(energy).sum::<Option<f64>>().and_then(|sum| Joules::new(sum).ok());
            // Of the power that an operator declared: nobody has read a counter for it.
            actual.energy_origin = actual.energy.map(|_| Origin::Modelled);
            let shares = parts.iter().map(|(costs, share)| (costs, *share));
            actual.money = price_parts(shares, actual.usage.prompt, actual.usage.output);
        };
        price_it(&mut actual);
        ticket.price_last(|_, recorded| price_it(recorded));
        self.count_open(&candidate, false);
        let event = DispatchEvent::Outcome {
            request: id,
            node: &candidate.node,
            variant: &candidate.variant,
            choice: &trial.choice,
            actual: &actual,
            outcome,
        };
        self.tell_policy(now, &event);
        self.changed = true;
        Some(candidate)
    }

    /// Ends the live attempt, if there is one, because nobody wants its answer.
    fn cancel_trial(&mut self, now: Moment, id: RequestId, failure: &Failure, effects: &mut Vec<Effect>) {
        if let Some(attempt) = self.tickets.get(&id).and_then(Ticket::trial).map(|trial| trial.id) {
            self.abandon(now, attempt, effects);
            let _ = self.end_trial(now, id, &Outcome::Failed(failure.clone()), None);
        }
    }

    /// Cancels the execution of an attempt, wherever it runs.
    fn abandon(&mut self, now: Moment, attempt: AttemptId, effects: &mut Vec<Effect>) {
        let local = self.tickets.get(&attempt.request).and_then(Ticket::trial).is_some_and(|trial| trial.local);
        if local {
            self.executor.cancel(now, attempt, effects);
        } else {
            effects.push(Effect::Reset(attempt));
        }
    }

    /// Suspects whoever failed. A dead link or process concerns all replicas of the node, a failed engine only its own. So does
    /// a link that broke between two stages of a split: the way from here may be whole.
    fn blame(&mut self, now: Moment, candidate: &Candidate, node: &NodeId, cause: &Failure) {
        let variant = &candidate.variant;
        match cause {
            Failure::Broken(_) | Failure::Stalled(_) if *node == candidate.node && *node != self.config.me => {
                let replicas = self.view.node(node).map(|node| node.replicas.keys().cloned().collect::<Vec<_>>());
                for variant in replicas.into_iter().flatten() {
                    self.suspects.accuse(now, node, &variant);
                }
            }
            Failure::Broken(_)
            | Failure::Stalled(_)
            | Failure::Engine(_)
            | Failure::Refused(Reason::ReplicaFailed(_) | Reason::NoReplica) => self.suspects.accuse(now, node, variant),
            // A later stage tells its load to the stage before it only; what is known here is that it has no room.
            Failure::Refused(Reason::Busy) if *node != candidate.node => {
                let known = self.view.node(node).and_then(|entry| entry.replicas.get(variant)).map(|replica| replica.value.load);
                if let Some(known) = known {
                    let load = Load { active: known.slots, queued: known.queue_max, ..known };
                    self.view.apply(now, FleetDelta::Load { node: node.clone(), variant: variant.clone(), load });
                }
            }
            _ => {}
        }
    }

    fn heard_load(&mut self, now: Moment, attempt: AttemptId, load: Load) {
        let Some(trial) = self.tickets.get(&attempt.request).and_then(Ticket::trial) else { return };
        let Candidate { node, variant, .. } = trial.choice.candidate.clone();
        self.view.apply(now, FleetDelta::Load { node, variant, load });
    }

    /// Counts an attempt at each node that takes part.
    pub(super) fn count_open(&mut self, candidate: &Candidate, more: bool) {
        for node in candidate.nodes() {
            let key = (node.clone(), candidate.variant.clone());
            let open = self.open.entry(key.clone()).or_default();
            *open = if more { open.saturating_add(1) } else { open.saturating_sub(1) };
            if *open == 0 {
                self.open.remove(&key);
            }
        }
    }
}

/// Which node of a candidate failed, and with what. One that blames a node which does not take part is itself to blame.
fn culprit<'a>(candidate: &'a Candidate, failure: &'a Failure) -> (&'a NodeId, &'a Failure) {
    match failure.origin() {
        (Some(node), cause) if candidate.nodes().any(|one| one == node) => (node, cause),
        (_, cause) => (&candidate.node, cause),
    }
}
