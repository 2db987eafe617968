//! Asking the dispatch policy, carrying out what it says, and writing down why.

use super::core::RequestCore;
use super::event::Effect;
use super::fingerprint::fingerprint;
use super::limits::{RECONSIDERED_MAX, WAITING_MAX};
use super::ticket::Ticket;
use crate::ids::{AttemptId, RequestId};
use crate::plan::{Candidate, Choice, Decision, Failure, Outcome, Reason, Split, Verdict};
use crate::policy::dispatch::{Action, Assessment, DispatchEvent, Scene};
use crate::units::{Micros, Moment};
use crate::work::ExecHeader;
use std::collections::BTreeMap;

/// What the policy may know now. A macro, because it borrows some fields of the core while the policy is another.
macro_rules! scene {
    ($core:expr, $now:expr) => {
        Scene {
            now: $now,
            me: &$core.config.me,
            hub: $core.config.hub.as_ref(),
            view: &$core.view,
            grant: &$core.grant,
            catalogue: &$core.catalogue,
            suspects: &$core.suspects.until,
            open: &$core.open,
            stale_after: $core.config.stale_after,
            splits: $core.config.splits,
            degraded: $core.degraded,
            seed: $core.config.seed,
        }
    };
}

impl RequestCore {
    /// Decides about a request that has no live attempt. `after` is what its last attempt failed with.
    pub(super) fn dispatch(&mut self, now: Moment, id: RequestId, after: Option<Failure>, effects: &mut Vec<Effect>) {
        let Some(ticket) = self.tickets.get(&id) else { return };
        let scene = scene!(self, now);
        let pending = ticket.pending();
        let assessment = scene.assess(&pending);
        let mut actions = Vec::new();
        self.policy.on_event(&scene, &DispatchEvent::Arrival(&pending, &assessment), &mut actions);
        let action = actions.into_iter().find(|action| action.request() == id);
        let action = action.unwrap_or(Action::Refuse { request: id, reason: Reason::NoCandidate });
        self.carry_out(now, action, &assessment, after, effects);
    }

    /// Decides about requests that wait, most urgent first.
    pub(super) fn dispatch_waiting(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let mut order: Vec<_> = self.waiting.iter().filter_map(|id| self.tickets.get(id)).collect();
        order.sort_by_key(|ticket| (ticket.urgency(), ticket.request.id));
        let chosen: Vec<RequestId> = order.iter().take(RECONSIDERED_MAX).map(|ticket| ticket.request.id).collect();
        // One assignment changes the loads that the next is judged by: ask again after each.
        for _ in 0..chosen.len() {
            let pendings: Vec<_> = chosen
                .iter()
                .filter(|id| self.waiting.contains(id))
                .filter_map(|id| self.tickets.get(id))
                .map(Ticket::pending)
                .collect();
            if pendings.is_empty() {
                return;
            }
            let scene = scene!(self, now);
            let mut actions = Vec::new();
            self.policy.on_event(&scene, &DispatchEvent::SlotIdle(&pendings), &mut actions);
            let Some(action) = actions.into_iter().find(|action| !matches!(action, Action::Wait { .. })) else { return };
            let Some(ticket) = self.tickets.get(&action.request()).filter(|ticket| ticket.is_waiting()) else { return };
            let assessment = scene.assess(&ticket.pending());
            self.carry_out(now, action, &assessment, None, effects);
        }
    }

    /// Something happened that is no question.
    pub(super) fn tell_policy(&mut self, now: Moment, event: &DispatchEvent<'_>) {
        let scene = scene!(self, now);
        self.policy.on_event(&scene, event, &mut Vec::new());
    }

    fn carry_out(
        &mut self,
        now: Moment,
        action: Action,
        assessment: &Assessment,
        after: Option<Failure>,
        effects: &mut Vec<Effect>,
    ) {
        let id = action.request();
        let verdict = match action {
            Action::Assign { candidate, .. } => assessment
                .feasible
                .iter()
                .find(|choice| choice.candidate == candidate)
                // A policy may not use what is not feasible.
                .map_or_else(|| Verdict::Refuse(Reason::NoCandidate), |choice| Verdict::Assign(choice.clone())),
            Action::Wait { reason, .. } if self.waiting.len() >= WAITING_MAX && !self.waiting.contains(&id) => {
                let _ = reason;
                Verdict::Refuse(Reason::QueueFull)
            }
            Action::Wait { reason, .. } => Verdict::Wait(reason),
            Action::Refuse { reason, .. } => Verdict::Refuse(reason),
        };
        let Some(decision) = self.write_down(now, id, verdict.clone(), assessment) else { return };
        if let Some(ticket) = self.tickets.get_mut(&id) {
            ticket.note_decision(decision.clone());
        }
        effects.push(Effect::Decided(Box::new(decision)));
        match verdict {
            Verdict::Assign(choice) => self.begin(now, id, choice, effects),
            Verdict::Wait(reason) => {
                if let Some(ticket) = self.tickets.get_mut(&id) {
                    ticket.wait(now, reason);
                    self.waiting.insert(id);
                    self.arm(id);
                }
            }
            Verdict::Refuse(reason) => self.finish(now, id, Outcome::Failed(last_word(reason, after)), effects),
        }
    }

    fn begin(&mut self, now: Moment, id: RequestId, choice: Choice, effects: &mut Vec<Effect>) {
        let me = self.config.me.clone();
        let candidate = choice.candidate.clone();
        let local = candidate.node == me;
        let Some(ticket) = self.tickets.get_mut(&id) else { return };
        let attempt = AttemptId::new(id, ticket.next_attempt);
        let mut header = ExecHeader::new(&ticket.request, attempt, me, candidate.node.clone(), candidate.variant.clone());
        header.remaining = ticket.pending().remaining(now);
        header.resume_from = ticket.delivered;
        if candidate.split != Split::Whole {
            header.stages = candidate.stages().to_vec();
            header.precision = self.config.splits.precision;
        }
        ticket.begin(now, attempt, choice, local, header.precision);
        self.waiting.remove(&id);
        self.arm(id);
        self.count_open(&candidate, true);
        if local {
            self.executor.take(now, header, None, effects);
        } else {
            effects.push(Effect::Send { candidate, header });
        }
    }

    fn write_down(&self, now: Moment, id: RequestId, verdict: Verdict, assessment: &Assessment) -> Option<Decision> {
        let ticket = self.tickets.get(&id)?;
        let chosen = match &verdict {
            Verdict::Assign(choice) => Some(&choice.candidate),
            _ => None,
        };
        let mut others: Vec<_> = assessment.feasible.iter().filter(|choice| Some(&choice.candidate) != chosen).cloned().collect();
        others.sort_by(|a, b| (a.estimate.total, &a.candidate).cmp(&(b.estimate.total, &b.candidate)));
        others.truncate(Decision::OTHERS_MAX);
        let mut counts = BTreeMap::new();
        for rejected in &assessment.rejected {
            *counts.entry(rejected.reason.code().to_owned()).or_insert(0) += 1;
        }
        Some(Decision {
            attempt: AttemptId::new(id, ticket.next_attempt),
            at: now,
            policy: self.policy.name().to_owned(),
            fingerprint: fingerprint(self.policy.name(), &ticket.pending(), assessment, self.grant.epoch, self.config.seed),
            verdict: verdict.clone(),
            others,
            rejected: assessment.rejected.iter().take(Decision::OTHERS_MAX).cloned().collect(),
            counts,
            grant: self.grant.epoch,
            age: chosen.map_or(Micros::ZERO, |candidate| self.age_of(now, candidate)),
            degraded: self.degraded,
        })
    }

    fn age_of(&self, now: Moment, candidate: &Candidate) -> Micros {
        let others = candidate.nodes().filter(|node| **node != self.config.me);
        let replica = |node| self.view.node(node)?.replicas.get(&candidate.variant).map(|replica| replica.age(now));
        let path = self.view.node(&candidate.node).and_then(|entry| entry.paths.get(&candidate.hop));
        let path = path.filter(|_| candidate.node != self.config.me).map(|path| path.age(now));
        others.filter_map(replica).chain(path).max().unwrap_or_default()
    }
}

/// What the client is told: the refusal, unless it only says that nobody is left after a real failure.
fn last_word(reason: Reason, after: Option<Failure>) -> Failure {
    match (reason, after) {
        (
            Reason::Tried | Reason::Suspect | Reason::NoCandidate | Reason::NoReplica | Reason::Part(_) | Reason::NotResumable(_),
            Some(failure),
        ) => failure,
        (Reason::Deadline { remaining: Micros::ZERO, .. }, _) => Failure::DeadlineExceeded,
        (reason, _) => Failure::Refused(reason),
    }
}
