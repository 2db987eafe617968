//! The executor's half: slots of this node's replicas, who runs in them, and who waits for one.
//!
//! Serves attempts of the own ingress and of others alike. A slot is free again when the engine says so, not when somebody wished it.

use super::event::{AttemptEvent, Effect};
use super::limits::{ABORT_MAX, QUEUE_MAX_DEFAULT};
use super::prompts::Prompts;
use crate::fleet::{Load, ReplicaReport, ReplicaState};
use crate::ids::{AttemptId, NodeId, VariantId};
use crate::plan::{AllocationRow, Failure, Reason};
use crate::units::{Moment, Tokens};
use crate::work::ExecHeader;
use serde::{Deserialize, Serialize};
use std::cmp::Reverse;
use std::collections::BTreeMap;

/// So many tokens of prompts count as one in a backlog.
const PROMPTS_IN_BACKLOG: u32 = 10;

/// All replicas and executions of this node.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Executor {
    replicas: BTreeMap<VariantId, Replica>,
    #[serde(with = "crate::pairs")]
    executions: BTreeMap<AttemptId, Execution>,
    arrivals: u64,
    /// When the event came that is being handled.
    #[serde(default)]
    pub(super) now: Moment,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Replica {
    report: ReplicaReport,
    allocation: Option<AllocationRow>,
    active: u32,
    queue: Vec<AttemptId>,
    #[serde(default)]
    prompts: Prompts,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Execution {
    header: ExecHeader,
    /// Absent when the own ingress sent it.
    from: Option<NodeId>,
    state: Progress,
    /// When the answer is worthless; only for forwarded ones, the own ingress watches its own.
    deadline: Option<Moment>,
    arrival: u64,
    tokens: Tokens,
    /// Tokens of others' prompts that were computed since its first token.
    #[serde(default)]
    beside: Tokens,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
enum Progress {
    Queued,
    Running,
    Aborting { give_up: Moment },
}

/// What news of an engine mean to the own ingress.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Heard {
    /// Nothing: the execution was forwarded, or is being aborted.
    Nothing,
    /// The attempt is one of the own ingress.
    Own,
}

impl Replica {
    fn slots(&self) -> u32 {
        let own = self.report.load.slots;
        self.allocation.as_ref().map_or(own, |row| row.slots.min(own))
    }

    fn queue_max(&self) -> u32 {
        self.allocation.as_ref().map_or(QUEUE_MAX_DEFAULT, |row| row.queue_max)
    }
}

impl Executor {
    /// The engines of this node are now so.
    pub(super) fn replace(&mut self, reports: Vec<ReplicaReport>, effects: &mut Vec<Effect>) {
        let mut held = std::mem::take(&mut self.replicas);
        for report in reports {
            let variant = report.variant.clone();
            let replica = match held.remove(&variant) {
                Some(old) => Replica { report, ..old },
                None => Replica { report, allocation: None, active: 0, queue: Vec::new(), prompts: Prompts::default() },
            };
            self.replicas.insert(variant, replica);
        }
        // What runs ends through its engine's last words; what only waits for a dead engine must be told by us.
        let mut orphans: Vec<_> =
            held.into_values().flat_map(|gone| gone.queue).map(|id| (id, Failure::Refused(Reason::NoReplica))).collect();
        for replica in self.replicas.values_mut() {
            if let ReplicaState::Failed(why) = &replica.report.state {
                orphans.extend(replica.queue.drain(..).map(|id| (id, Failure::Engine(why.clone()))));
            }
        }
        for (attempt, failure) in orphans {
            self.drop_queued(attempt, failure, effects);
        }
        let variants: Vec<_> = self.replicas.keys().cloned().collect();
        for variant in variants {
            self.fill(&variant, effects);
        }
    }

    /// The slower layer divides the node so.
    pub(super) fn allocate(&mut self, rows: Vec<AllocationRow>, effects: &mut Vec<Effect>) {
        for replica in self.replicas.values_mut() {
            replica.allocation = None;
        }
        for row in rows {
            if let Some(replica) = self.replicas.get_mut(&row.variant) {
                replica.allocation = Some(row);
            }
        }
        let variants: Vec<_> = self.replicas.keys().cloned().collect();
        for variant in variants {
            self.fill(&variant, effects);
        }
    }

    /// All replicas with the loads as counted here.
    pub(super) fn reports(&self) -> Vec<ReplicaReport> {
        let with_load = |(variant, replica): (&VariantId, &Replica)| {
            let load = self.load(variant).unwrap_or_default();
            ReplicaReport { load, ..replica.report.clone() }
        };
        self.replicas.iter().map(with_load).collect()
    }

    /// The load of one replica.
    pub(super) fn load(&self, variant: &VariantId) -> Option<Load> {
        let replica = self.replicas.get(variant)?;
        let mut load = Load { slots: replica.slots(), active: replica.active, queue_max: replica.queue_max(), ..Load::default() };
        load.queued = u32::try_from(replica.queue.len()).unwrap_or(u32::MAX);
        let (mut prompts, mut context) = (Tokens(0), Tokens(0));
        let mut first: Option<&Execution> = None;
        for execution in self.executions.values().filter(|execution| execution.header.variant == *variant) {
            let prompt = execution.header.prompt;
            if execution.tokens.0 == 0 {
                prompts += prompt;
            }
            if execution.state != Progress::Queued {
                context += prompt + execution.tokens;
                if execution.tokens.0 == 0 && first.is_none_or(|first| execution.arrival < first.arrival) {
                    first = Some(execution);
                }
            }
            load.backlog += execution.remaining();
        }
        if let Some(first) = first {
            // Engines compute prompts one after the other.
            prompts = prompts - replica.prompts.computed(self.now, first.header.prompt, replica.report.profile.as_ref());
        }
        // The backlog in tokens to generate; a prompt token costs about a tenth of that on the engines there are.
        load.backlog += Tokens(prompts.0 / PROMPTS_IN_BACKLOG);
        (load.prompts, load.context, load.prompts_beside) = (Some(prompts), Some(context), Some(replica.prompts.beside()));
        Some(load)
    }

    /// The loads of replicas that have something to do.
    pub(super) fn busy_loads(&self) -> Vec<(VariantId, Load)> {
        let busy = self.replicas.iter().filter(|(_, replica)| replica.active > 0 || !replica.queue.is_empty());
        busy.filter_map(|(variant, _)| Some((variant.clone(), self.load(variant)?))).collect()
    }

    /// Whether this replica could take such a request now, by itself.
    ///
    /// # Errors
    /// The reason to refuse it with.
    pub(super) fn admissible(&self, header: &ExecHeader) -> Result<(), Reason> {
        let replica = self.replicas.get(&header.variant).ok_or(Reason::NoReplica)?;
        match &replica.report.state {
            ReplicaState::Ready => {}
            ReplicaState::Loading => return Err(Reason::Loading),
            ReplicaState::Draining => return Err(Reason::Draining),
            ReplicaState::Failed(why) => return Err(Reason::ReplicaFailed(why.clone())),
        }
        if let Some(lacking) = header.features.lacks(&replica.report.capabilities) {
            return Err(Reason::Capability(lacking.name().to_owned()));
        }
        holds(&replica.report, header)?;
        if self.executions.contains_key(&header.attempt) {
            return Err(Reason::Tried);
        }
        if replica.active >= replica.slots() && self.load(&header.variant).unwrap_or_default().full() {
            return Err(Reason::Busy);
        }
        Ok(())
    }

    /// Takes an admissible request: runs it or queues it.
    pub(super) fn take(&mut self, now: Moment, header: ExecHeader, from: Option<NodeId>, effects: &mut Vec<Effect>) {
        let (attempt, variant) = (header.attempt, header.variant.clone());
        let deadline = from.as_ref().and(header.remaining).map(|remaining| now + remaining);
        self.arrivals += 1;
        let execution = Execution {
            header,
            from,
            state: Progress::Queued,
            deadline,
            arrival: self.arrivals,
            tokens: Tokens(0),
            beside: Tokens(0),
        };
        self.executions.insert(attempt, execution);
        if let Some(replica) = self.replicas.get_mut(&variant) {
            let executions = &self.executions;
            let key = |id: &AttemptId| {
                let execution = &executions[id];
                let due = execution.deadline.unwrap_or(Moment(u64::MAX));
                (Reverse(execution.header.priority), due, execution.arrival)
            };
            let at = replica.queue.partition_point(|waiting| key(waiting) <= key(&attempt));
            replica.queue.insert(at, attempt);
        }
        self.fill(&variant, effects);
    }

    /// Nobody wants the answer any more.
    pub(super) fn cancel(&mut self, now: Moment, attempt: AttemptId, effects: &mut Vec<Effect>) {
        let Some(execution) = self.executions.get_mut(&attempt) else { return };
        match execution.state {
            Progress::Queued => {
                let variant = execution.header.variant.clone();
                self.forget(attempt);
                self.note_load(&variant, effects);
            }
            Progress::Running => {
                execution.state = Progress::Aborting { give_up: now + ABORT_MAX };
                effects.push(Effect::Abort(attempt));
            }
            Progress::Aborting { .. } => {}
        }
    }

    /// News of an engine. Says whether they concern the own ingress.
    pub(super) fn heard(&mut self, attempt: AttemptId, event: &AttemptEvent, effects: &mut Vec<Effect>) -> Heard {
        let Some(execution) = self.executions.get_mut(&attempt) else { return Heard::Nothing };
        let own = execution.from.is_none() && execution.state == Progress::Running;
        match event {
            AttemptEvent::Content(tokens) => {
                let first = execution.tokens.0 == 0 && tokens.0 > 0;
                execution.tokens += *tokens;
                if first {
                    self.prompt_done(attempt);
                }
            }
            AttemptEvent::Ended(..) | AttemptEvent::Failed(_) | AttemptEvent::Refused(..) => self.release(attempt, effects),
            AttemptEvent::Accepted(_) | AttemptEvent::Progress => {}
        }
        if own { Heard::Own } else { Heard::Nothing }
    }

    /// A prompt was computed: while it was, those who decode beside it waited for it, and now the next one is.
    fn prompt_done(&mut self, attempt: AttemptId) {
        let Some(done) = self.executions.get(&attempt) else { return };
        let (variant, prompt) = (done.header.variant.clone(), done.header.prompt);
        for (id, other) in &mut self.executions {
            if *id != attempt && other.header.variant == variant && other.tokens.0 > 0 {
                other.beside += prompt;
            }
        }
        if let Some(replica) = self.replicas.get_mut(&variant) {
            replica.prompts.since = self.now;
        }
    }

    /// Whether an attempt of the own ingress still waits for a slot.
    pub(super) fn is_queued(&self, attempt: AttemptId) -> bool {
        self.executions.get(&attempt).is_some_and(|execution| execution.state == Progress::Queued)
    }

    /// Ends what is overdue: forwarded executions past their deadline, aborts that no engine confirmed.
    pub(super) fn tick(&mut self, now: Moment, effects: &mut Vec<Effect>) {
        let overdue: Vec<_> =
            self.executions.iter().filter(|(_, e)| e.due().is_some_and(|due| due <= now)).map(|(id, e)| (*id, e.state)).collect();
        for (attempt, state) in overdue {
            match state {
                Progress::Aborting { .. } => self.release(attempt, effects),
                Progress::Queued | Progress::Running => {
                    effects.push(Effect::Drop(attempt, Failure::DeadlineExceeded));
                    self.cancel(now, attempt, effects);
                }
            }
        }
    }

    /// When [`Self::tick`] has something to do.
    pub(super) fn next_deadline(&self) -> Option<Moment> {
        self.executions.values().filter_map(Execution::due).min()
    }

    /// Frees the slot of an execution that its engine has ended, and starts the next.
    fn release(&mut self, attempt: AttemptId, effects: &mut Vec<Effect>) {
        let Some(execution) = self.executions.remove(&attempt) else { return };
        let variant = execution.header.variant;
        if let Some(replica) = self.replicas.get_mut(&variant) {
            replica.prompts.learn(execution.tokens, execution.beside);
            if execution.state == Progress::Queued {
                replica.queue.retain(|waiting| *waiting != attempt);
            } else {
                replica.active = replica.active.saturating_sub(1);
            }
        }
        self.fill(&variant, effects);
        self.note_load(&variant, effects);
    }

    fn fill(&mut self, variant: &VariantId, effects: &mut Vec<Effect>) {
        let Some(replica) = self.replicas.get_mut(variant) else { return };
        let ready = replica.report.state == ReplicaState::Ready;
        while ready && replica.active < replica.slots() && !replica.queue.is_empty() {
            let attempt = replica.queue.remove(0);
            let computing =
                |one: &Execution| one.header.variant == *variant && one.state == Progress::Running && one.tokens.0 == 0;
            let computing = self.executions.values().any(computing);
            if let Some(execution) = self.executions.get_mut(&attempt) {
                execution.state = Progress::Running;
                if !computing {
                    replica.prompts.since = self.now;
                }
                replica.active += 1;
                effects.push(Effect::Run(execution.header.clone()));
            }
        }
        self.note_load(variant, effects);
    }

    fn drop_queued(&mut self, attempt: AttemptId, failure: Failure, effects: &mut Vec<Effect>) {
        if self.executions.remove(&attempt).is_some() {
            effects.push(Effect::Drop(attempt, failure));
        }
    }

    fn forget(&mut self, attempt: AttemptId) {
        if let Some(execution) = self.executions.remove(&attempt)
            && let Some(replica) = self.replicas.get_mut(&execution.header.variant)
        {
            replica.queue.retain(|waiting| *waiting != attempt);
        }
    }

    fn note_load(&self, variant: &VariantId, effects: &mut Vec<Effect>) {
        if let Some(load) = self.load(variant) {
            effects.push(Effect::LoadChanged(variant.clone(), load));
        }
    }
}

impl Execution {
    /// Tokens that it is likely to get still. One that got more than was likely is taken to go on as long again.
    fn remaining(&self) -> Tokens {
        let most = self.header.output_max - self.tokens;
        match self.header.output_likely {
            Some(likely) if likely > self.tokens => most.min(likely - self.tokens),
            Some(likely) => most.min(likely),
            None => most,
        }
    }

    fn due(&self) -> Option<Moment> {
        match self.state {
            Progress::Aborting { give_up } => Some(give_up),
            Progress::Queued | Progress::Running => self.deadline,
        }
    }
}

/// Whether the replica holds what the header asks of it: everything, or the layers of one stage.
fn holds(replica: &ReplicaReport, header: &ExecHeader) -> Result<(), Reason> {
    let wanted = header.stage().map(|stage| stage.layers);
    match (wanted, replica.layers) {
        (None, _) if replica.serves_whole() => Ok(()),
        (Some(layers), _) if replica.serves_layers(layers) => Ok(()),
        (_, Some(held)) => Err(Reason::Part(held.range)),
        (_, None) => Err(Reason::Capability("layers".to_owned())),
    }
}
