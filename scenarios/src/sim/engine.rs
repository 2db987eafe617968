//! Executors' truth: engines that emit tokens at a rate of their own, which is not the estimator's.

use super::net::Host;
use super::universe::{Step, Universe};
use edge_node::logic::AgentEvent;
use serde::{Deserialize, Serialize};
use shared::fleet::{Hop, Load, Profile, ProfileSource, ReplicaReport, ReplicaState};
use shared::ids::{AttemptId, NodeId, VariantId};
use shared::plan::{Failure, Finish, Usage};
use shared::request::{AttemptEvent, Event};
use shared::units::{Bytes, Fraction, Micros, TokenRate, Tokens};
use shared::work::{EngineKind, ExecHeader, HeldLayers, LayerRange};

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
    /// The layers that it holds, where it can compute some alone; the times are for these.
    pub layers: Option<HeldLayers>,
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
            layers: None,
        }
    }

    /// The same with only these layers.
    #[must_use]
    pub fn holding(self, range: LayerRange) -> Self {
        // As many numbers as small models have, four bytes each.
        Self { layers: Some(HeldLayers { range, hidden: Bytes(2_304) }), ..self }
    }

    /// What the node reports of it. The profile is what a warm-up would have found: near the truth, not the truth.
    pub(super) fn report(&self) -> ReplicaReport {
        let rate = |each: Micros| TokenRate::new(0.93 / each.as_secs_f64().max(1e-6)).unwrap_or_default();
        let state = self.broken.clone().map_or(ReplicaState::Ready, ReplicaState::Failed);
        ReplicaReport {
            variant: self.variant.clone(),
            engine: EngineKind::Profiled,
            device: String::new(),
            state,
            load: Load { slots: self.slots, ..Load::default() },
            memory: Bytes(100_000_000),
            context: Tokens(8_192),
            weights_sha256: None,
            layers: self.layers,
            capabilities: Vec::new(),
            profile: Some(Profile {
                prompt: rate(self.per_prompt_token),
                decode: rate(self.per_output_token),
                overhead: Micros::from_millis(1),
                spread: Fraction::new(0.1).unwrap_or_default(),
                source: ProfileSource::WarmUp,
                samples: 3,
                pace: None,
                load: None,
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
    /// Whether the next stage has taken it, where there is one.
    pub(super) onward: bool,
}

impl Execution {
    /// Whether the client of this is the own ingress'.
    fn is_own(&self, node: &NodeId) -> bool {
        self.header.attempt.stage == 0 && self.header.ingress == *node
    }
}

impl Universe {
    pub(super) fn run(&mut self, host: Host, header: ExecHeader) {
        let (attempt, machine, next) = (header.attempt, &mut self.agents[host], header.next_stage());
        let mut execution = Execution { header, emitted: 0, has_body: false, started: false, onward: next.is_none() };
        execution.has_body = execution.is_own(&machine.spec.node) || machine.bodies.contains(&attempt);
        machine.executions.insert(attempt, execution);
        if let Some(next) = next {
            let hop = next.stage().map_or(Hop::Local, |stage| stage.hop);
            self.open_route(host, hop, next);
        }
        if self.agents[host].hidden.remove(&attempt) {
            self.compute(host, attempt);
        }
        self.begin(host, attempt);
    }

    pub(super) fn begin(&mut self, host: Host, attempt: AttemptId) {
        let life = self.agents[host].life;
        let sharers = u64::try_from(self.executing(host)).unwrap_or(1) + 1;
        let engines = self.agents[host].spec.engines.clone();
        let Some(execution) = self.agents[host].executions.get_mut(&attempt) else { return };
        let Some(truth) = engines.iter().find(|truth| truth.variant == execution.header.variant) else { return };
        if execution.has_body && execution.onward && !execution.started && attempt.stage == 0 {
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
        if attempt.stage == 0 && execution.emitted >= truth.to_emit(&header).0 {
            let usage = Usage { prompt: header.prompt, output: Tokens(first), cached: Tokens(0) };
            let finish = if first >= header.output_max.0 { Finish::Length } else { Finish::Stop };
            return self.engine_news(host, attempt, AttemptEvent::Ended(finish, usage), 0);
        }
        if !header.stages.is_empty() {
            return self.pass_on(host, &header);
        }
        execution.emitted += 1;
        self.later(Micros(truth.per_output_token.0 * sharers), Step::Work(host, life, attempt));
        self.engine_news(host, attempt, AttemptEvent::Content(Tokens(1)), first);
    }

    /// The time of one token, or of the prompt, with what else is computed there.
    pub(super) fn span_of(&self, host: Host, header: &ExecHeader, prompt: bool) -> Option<Micros> {
        let sharers = u64::try_from(self.executing(host)).unwrap_or(1).max(1);
        let truth = self.agents[host].spec.engines.iter().find(|truth| truth.variant == header.variant)?;
        let alone = if prompt { truth.prefill(header) } else { truth.per_output_token };
        Some(Micros(alone.0 * sharers))
    }

    /// News of an engine, for its own logic and for the ingress.
    pub(super) fn engine_news(&mut self, host: Host, attempt: AttemptId, event: AttemptEvent, first: u32) {
        let machine = &mut self.agents[host];
        let Some(own) = machine.executions.get(&attempt).map(|execution| execution.is_own(&machine.spec.node)) else {
            return;
        };
        if !matches!(event, AttemptEvent::Content(_) | AttemptEvent::Progress) {
            let well = matches!(event, AttemptEvent::Ended(..));
            self.part(host, attempt, well);
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
        // A stage that waits for the next one lives, too.
        let quiet = |execution: &Execution| execution.emitted == 0 || !execution.header.stages.is_empty();
        let silent = self.agents[host].executions.get(&attempt).is_none_or(quiet);
        if silent && self.net.routes.get(&attempt).is_some_and(|route| route.executor == Some((host, life))) {
            self.back(host, attempt, AttemptEvent::Progress, 0);
            self.later(Micros::from_secs(1), Step::Sign(host, life, attempt));
        }
    }
}
