//! The ingress' half of one request: where it stands, what was tried, what the client has.

use super::limits::{ACCEPT_MAX, LOCAL_SILENCE_MAX, PATH_WAIT_MAX, SILENCE_MAX, WAIT_MAX};
use crate::ids::{AttemptId, NodeId, VariantId};
use crate::plan::{Actual, AttemptRecord, Candidate, Choice, Decision, Outcome, Reason, Record, Usage};
use crate::policy::dispatch::Pending;
use crate::units::{Micros, Moment, Quality, Tokens};
use crate::work::{LlmRequest, Precision};
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;

/// One request at its ingress.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ticket {
    pub(super) request: LlmRequest,
    /// Tokens of the prompt as they were estimated from its text alone.
    #[serde(default)]
    pub(super) guessed: Tokens,
    pub(super) arrived: Moment,
    pub(super) stage: Stage,
    pub(super) tried: Vec<(NodeId, VariantId)>,
    /// Number of the next attempt.
    pub(super) next_attempt: u16,
    /// Tokens that the client has.
    pub(super) delivered: Tokens,
    /// Whose tokens they are: only this variant may go on.
    pub(super) resume: Option<VariantId>,
    /// The least precise hidden states that any of them came from.
    #[serde(default)]
    pub(super) written_in: Precision,
    /// When its timer is set to fire; never later than [`Self::due`].
    pub(super) armed: Option<Moment>,
    first_at: Option<Moment>,
    last_at: Option<Moment>,
    waited: Micros,
    attempts: Vec<AttemptRecord>,
}

/// Where a request stands.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[expect(
    clippy::large_enum_variant,
    reason = "such a value lives for a moment, in one place: a box would cost more than its room"
)]
pub(super) enum Stage {
    /// No attempt is under way.
    Waiting { since: Moment, reason: Reason },
    /// One is.
    Trying(Trial),
}

/// A live attempt.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Trial {
    pub(super) id: AttemptId,
    pub(super) choice: Choice,
    pub(super) local: bool,
    /// How its hidden states travel, where it is split.
    #[serde(default)]
    precision: Precision,
    sent: Moment,
    heard: Moment,
    accepted: bool,
    first: Option<Moment>,
    tokens: Tokens,
}

impl Ticket {
    pub(super) fn new(now: Moment, request: LlmRequest, guessed: Tokens) -> Self {
        Self {
            request,
            guessed,
            arrived: now,
            stage: Stage::Waiting { since: now, reason: Reason::NoCandidate },
            tried: Vec::new(),
            next_attempt: 0,
            delivered: Tokens(0),
            resume: None,
            written_in: Precision::default(),
            armed: None,
            first_at: None,
            last_at: None,
            waited: Micros::ZERO,
            attempts: Vec::new(),
        }
    }

    /// As the dispatch policy sees it.
    pub(super) fn pending(&self) -> Pending<'_> {
        Pending {
            request: &self.request,
            arrived: self.arrived,
            attempt: self.next_attempt,
            tried: &self.tried,
            resume: self.resume.as_ref(),
            delivered: self.delivered,
        }
    }

    /// Most urgent first.
    pub(super) fn urgency(&self) -> (Reverse<u8>, Moment, Moment) {
        (Reverse(self.request.needs.slo.priority.get()), self.deadline().unwrap_or(Moment(u64::MAX)), self.arrived)
    }

    /// When the answer is worthless.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.request.needs.slo.end_to_end.map(|span| self.arrived + span)
    }

    pub(super) const fn trial(&self) -> Option<&Trial> {
        match &self.stage {
            Stage::Trying(trial) => Some(trial),
            Stage::Waiting { .. } => None,
        }
    }

    pub(super) const fn is_waiting(&self) -> bool {
        matches!(self.stage, Stage::Waiting { .. })
    }

    /// When this request must be looked at although nothing was heard.
    pub(super) fn due(&self) -> Option<Moment> {
        let next = match &self.stage {
            Stage::Waiting { since, reason: Reason::NoPath } => Some(*since + PATH_WAIT_MAX),
            Stage::Waiting { since, .. } => Some(*since + WAIT_MAX),
            Stage::Trying(trial) => Some(trial.silent_at()),
        };
        next.into_iter().chain(self.deadline()).min()
    }

    /// A decision was taken; it is kept for the record.
    pub(super) fn note_decision(&mut self, decision: Decision) {
        // A request that waits is decided upon again and again: only the newest such decision says anything.
        if let Some(last) = self.attempts.last_mut().filter(|last| last.outcome.is_none()) {
            last.decision = decision;
            return;
        }
        if self.attempts.len() >= Record::ATTEMPTS_MAX {
            self.attempts.remove(0);
        }
        self.attempts.push(AttemptRecord { decision, actual: Actual::default(), outcome: None });
    }

    pub(super) fn begin(&mut self, now: Moment, id: AttemptId, choice: Choice, local: bool, precision: Precision) {
        if let Stage::Waiting { since, .. } = self.stage {
            self.waited += now.since(since);
        }
        self.next_attempt = id.number.saturating_add(1);
        let trial =
            Trial { id, choice, local, precision, sent: now, heard: now, accepted: local, first: None, tokens: Tokens(0) };
        self.stage = Stage::Trying(trial);
    }

    pub(super) fn wait(&mut self, now: Moment, reason: Reason) {
        let since = match &self.stage {
            Stage::Waiting { since, .. } => *since,
            Stage::Trying(_) => now,
        };
        self.stage = Stage::Waiting { since, reason };
    }

    /// A sign of life of the live attempt.
    pub(super) fn alive(&mut self, now: Moment, accepted: bool) {
        if let Stage::Trying(trial) = &mut self.stage {
            trial.heard = now;
            trial.accepted |= accepted;
        }
    }

    /// Tokens of the live attempt go to the client.
    pub(super) fn content(&mut self, now: Moment, tokens: Tokens) {
        self.alive(now, true);
        if let Stage::Trying(trial) = &mut self.stage {
            trial.first.get_or_insert(now);
            trial.tokens += tokens;
            self.resume = Some(trial.choice.candidate.variant.clone());
            self.written_in = self.written_in.max(trial.precision);
        }
        self.first_at.get_or_insert(now);
        self.last_at = Some(now);
        self.delivered += tokens;
    }

    /// The live attempt is over. Returns it; the ticket then waits.
    pub(super) fn end_trial(&mut self, now: Moment, outcome: &Outcome, usage: Option<Usage>) -> Option<(Trial, Actual)> {
        let Stage::Trying(trial) = std::mem::replace(&mut self.stage, Stage::Waiting { since: now, reason: Reason::NoCandidate })
        else {
            return None;
        };
        let usage = usage.unwrap_or(Usage { prompt: self.request.prompt, output: trial.tokens, cached: Tokens(0) });
        let actual = Actual {
            first_token: trial.first.map(|first| first.since(trial.sent)),
            per_token: trial.first.and_then(|first| mean_gap(first, now, trial.tokens)),
            total: now.since(trial.sent),
            usage,
            energy: None,
            energy_origin: None,
            money: None,
        };
        if let Some(record) = self.attempts.last_mut() {
            record.actual = actual.clone();
            record.outcome = Some(outcome.clone());
        }
        Some((trial, actual))
    }

    /// Energy and money of the last attempt, known to whoever knows its node's costs.
    pub(super) fn price_last(&mut self, price: impl FnOnce(&Candidate, &mut Actual)) {
        if let Some(last) = self.attempts.last_mut()
            && let crate::plan::Verdict::Assign(choice) = &last.decision.verdict
        {
            price(&choice.candidate, &mut last.actual);
        }
    }

    /// The whole story.
    pub(super) fn into_record(self, now: Moment, ingress: NodeId, outcome: Outcome, quality: Option<Quality>) -> Record {
        let mut waited = self.waited;
        if let Stage::Waiting { since, .. } = self.stage
            && self.attempts.last().is_none_or(|last| last.outcome.is_none())
        {
            waited += now.since(since);
        }
        let answered = matches!(outcome, Outcome::Answered(_));
        let last = self.attempts.last();
        let served_by = last.filter(|_| answered).and_then(|last| match &last.decision.verdict {
            crate::plan::Verdict::Assign(choice) => Some((choice.candidate.node.clone(), choice.candidate.variant.clone())),
            _ => None,
        });
        let usage = last.map_or_else(Usage::default, |last| Usage { output: self.delivered, ..last.actual.usage });
        let sum = |pick: fn(&Actual) -> Option<f64>| {
            let known: Vec<_> = self.attempts.iter().filter_map(|attempt| pick(&attempt.actual)).collect();
            (!known.is_empty()).then(|| known.iter().sum::<f64>())
        };
        let energy = sum(|actual| actual.energy.map(crate::units::Joules::get));
        let money = self.attempts.iter().filter_map(|attempt| attempt.actual.money).reduce(|a, b| a + b);
        let actual = Actual {
            first_token: self.first_at.map(|first| first.since(self.arrived)),
            per_token: self.first_at.and_then(|first| mean_gap(first, self.last_at.unwrap_or(first), self.delivered)),
            total: now.since(self.arrived),
            usage,
            energy: energy.and_then(|joules| crate::units::Joules::new(joules).ok()),
            energy_origin: self.attempts.iter().filter_map(|attempt| attempt.actual.energy_origin).max(),
            money,
        };
        let attained = attained(&self.request, &actual, answered);
        Record {
            request: self.request.id,
            ingress,
            service: self.request.service,
            needs: self.request.needs,
            arrived: self.arrived,
            waited,
            attempts: self.attempts,
            served_by,
            quality: quality.filter(|_| answered),
            actual,
            outcome,
            attained,
        }
    }
}

impl Trial {
    /// When silence means that the other end is dead.
    pub(super) fn silent_at(&self) -> Moment {
        if self.local {
            self.heard + LOCAL_SILENCE_MAX
        } else if self.accepted {
            self.heard + SILENCE_MAX
        } else {
            self.sent + ACCEPT_MAX + self.choice.estimate.first_token.min(ACCEPT_MAX)
        }
    }

    /// How long nothing was heard.
    pub(super) fn silence(&self, now: Moment) -> Micros {
        now.since(self.heard)
    }
}

fn mean_gap(first: Moment, last: Moment, tokens: Tokens) -> Option<Micros> {
    (tokens.0 > 1).then(|| last.since(first).scale(1.0 / (tokens.as_f64() - 1.0)))
}

/// Whether the wishes were kept; absent when there were none.
fn attained(request: &LlmRequest, actual: &Actual, answered: bool) -> Option<bool> {
    let slo = &request.needs.slo;
    let kept =
        |wish: Option<Micros>, measured: Option<Micros>| wish.map(|wish| measured.is_some_and(|measured| measured <= wish));
    let per_token = if actual.usage.output.0 > 1 { kept(slo.per_token, actual.per_token) } else { None };
    let wishes = [kept(slo.first_token, actual.first_token), per_token, kept(slo.end_to_end, Some(actual.total))];
    let mut known = wishes.into_iter().flatten().peekable();
    known.peek()?;
    Some(answered && known.all(|kept| kept))
}
