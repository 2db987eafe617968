//! Executors' truth: engines that emit tokens at a rate of their own, which is not the estimator's.

use super::net::Host;
use super::universe::{Step, Universe};
use edge_node::logic::AgentEvent;
use serde::{Deserialize, Serialize};
use shared::fleet::{Load, Profile, ProfileSource, ReplicaReport, ReplicaState};
use shared::ids::{AttemptId, VariantId};
use shared::plan::{Failure, Finish, Usage};
use shared::request::{AttemptEvent, Event};
use shared::units::{Bytes, Fraction, Micros, TokenRate, Tokens};
use shared::work::{EngineKind, ExecHeader};

/// What an engine really does.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Truth {
    /// Which variant it serves.
    pub variant: VariantId,
    /// Requests at once.
    pub slots: u32,
    /// Time of each prompt token.
    pub per_prompt_token: Micros,
    /// Time of each output token.
    pub per_output_token: Micros,
    /// Tokens after which the model ends by itself.
    pub answer: Tokens,
    /// Why it does not work, if it does not.
    pub broken: Option<String>,
}

impl Truth {
    /// A working engine that generates so many tokens per second, and reads a prompt ten times as fast.
    #[must_use]
    pub fn new(variant: &VariantId, slots: u32, tokens_per_second: u32) -> Self {
        let per_output_token = Micros(1_000_000 / u64::from(tokens_per_second.max(1)));
        Self {
            variant: variant.clone(),
            slots,
            per_prompt_token: per_output_token.scale(0.1),
            per_output_token,
            answer: Tokens(1_000),
            broken: None,
        }
    }

    /// What the node reports of it. The profile is what a warm-up would have found: near the truth, not the truth.
    pub(super) fn report(&self) -> ReplicaReport {
        let rate = |each: Micros| TokenRate::new(0.93 / each.as_secs_f64().max(1e-6)).unwrap_or_default();
        let state = self.broken.clone().map_or(ReplicaState::Ready, ReplicaState::Failed);
        ReplicaReport {
            variant: self.variant.clone(),
            engine: EngineKind::Profiled,
            state,
            load: Load { slots: self.slots, ..Load::default() },
            memory: Bytes(100_000_000),
            context: Tokens(8_192),
            weights_sha256: None,
            layers: None,
            capabilities: Vec::new(),
            profile: Some(Profile {
                prompt: rate(self.per_prompt_token),
                decode: rate(self.per_output_token),
                overhead: Micros::from_millis(1),
                spread: Fraction::new(0.1).unwrap_or_default(),
                source: ProfileSource::WarmUp,
                samples: 3,
            }),
        }
    }

    /// Time until the first token.
    pub(super) fn prefill(&self, header: &ExecHeader) -> Micros {
        self.per_prompt_token.scale((header.prompt + header.resume_from).as_f64())
    }

    /// How many tokens this execution has to emit.
    pub(super) fn to_emit(&self, header: &ExecHeader) -> Tokens {
        header.output_max.min(self.answer) - header.resume_from
    }
}

/// An execution under way.
#[derive(Clone, Debug)]
pub(super) struct Execution {
    pub(super) header: ExecHeader,
    pub(super) emitted: u32,
    pub(super) has_body: bool,
    pub(super) started: bool,
}

impl Universe {
    pub(super) fn run(&mut self, host: Host, header: ExecHeader) {
        let (attempt, machine) = (header.attempt, &mut self.agents[host]);
        let has_body = header.ingress == machine.spec.node || machine.bodies.contains(&attempt);
        machine.executions.insert(attempt, Execution { header, emitted: 0, has_body, started: false });
        self.begin(host, attempt);
    }

    pub(super) fn begin(&mut self, host: Host, attempt: AttemptId) {
        let life = self.agents[host].life;
        let sharers = u64::try_from(self.executing(host)).unwrap_or(1) + 1;
        let engines = self.agents[host].spec.engines.clone();
        let Some(execution) = self.agents[host].executions.get_mut(&attempt) else { return };
        let Some(truth) = engines.iter().find(|truth| truth.variant == execution.header.variant) else { return };
        if execution.has_body && !execution.started {
            execution.started = true;
            let span = Micros(truth.prefill(&execution.header).0 * sharers);
            self.later(span, Step::Work(host, life, attempt));
        }
    }

    pub(super) fn work(&mut self, host: Host, attempt: AttemptId) {
        let life = self.agents[host].life;
        let sharers = u64::try_from(self.executing(host)).unwrap_or(1).max(1);
        let engines = self.agents[host].spec.engines.clone();
        let Some(execution) = self.agents[host].executions.get_mut(&attempt) else { return };
        let header = execution.header.clone();
        let Some(truth) = engines.iter().find(|truth| truth.variant == header.variant) else { return };
        if let Some(why) = &truth.broken {
            return self.engine_news(host, attempt, AttemptEvent::Failed(Failure::Engine(why.clone())), 0);
        }
        let first = header.resume_from.0 + execution.emitted;
        if execution.emitted >= truth.to_emit(&header).0 {
            let usage = Usage { prompt: header.prompt, output: Tokens(first), cached: Tokens(0) };
            let finish = if first >= header.output_max.0 { Finish::Length } else { Finish::Stop };
            return self.engine_news(host, attempt, AttemptEvent::Ended(finish, usage), 0);
        }
        execution.emitted += 1;
        self.later(Micros(truth.per_output_token.0 * sharers), Step::Work(host, life, attempt));
        self.engine_news(host, attempt, AttemptEvent::Content(Tokens(1)), first);
    }

    /// News of an engine, for its own logic and for the ingress.
    pub(super) fn engine_news(&mut self, host: Host, attempt: AttemptId, event: AttemptEvent, first: u32) {
        let machine = &mut self.agents[host];
        let Some(own) = machine.executions.get(&attempt).map(|execution| execution.header.ingress == machine.spec.node) else {
            return;
        };
        if !matches!(event, AttemptEvent::Content(_) | AttemptEvent::Progress) {
            machine.executions.remove(&attempt);
            machine.bodies.remove(&attempt);
        }
        if let (true, AttemptEvent::Content(count)) = (own, &event) {
            self.payload = Some((attempt, first, count.0));
        }
        self.tell_agent(host, AgentEvent::Request(Event::Engine(attempt, event.clone())));
        if !own {
            self.back(host, attempt, event, first);
        }
    }

    pub(super) fn sign(&mut self, host: Host, attempt: AttemptId) {
        let life = self.agents[host].life;
        let silent = self.agents[host].executions.get(&attempt).is_none_or(|execution| execution.emitted == 0);
        if silent && self.net.routes.get(&attempt).is_some_and(|route| route.executor == Some((host, life))) {
            self.back(host, attempt, AttemptEvent::Progress, 0);
            self.later(Micros::from_secs(1), Step::Sign(host, life, attempt));
        }
    }
}
