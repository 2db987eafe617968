//! Requests that several engines serve one after the other: each stage opens a stream to the next, hidden states go one way and
//! drawn tokens the other, and whatever ends one ends those after it.

use super::net::{Host, StreamPiece};
use super::universe::{Step, Universe};
use shared::ids::AttemptId;
use shared::plan::{Failure, Finish, Usage};
use shared::request::AttemptEvent;
use shared::units::Tokens;
use shared::work::ExecHeader;

impl Universe {
    /// A stage has computed its part of a token.
    pub(super) fn pass_on(&mut self, host: Host, header: &ExecHeader) {
        match header.next_stage() {
            Some(next) => self.along(host, next.attempt, StreamPiece::Hidden),
            None => self.return_token(host, header.attempt),
        }
    }

    /// Hidden states came from the stage before.
    pub(super) fn compute(&mut self, host: Host, attempt: AttemptId) {
        let life = self.agents[host].life;
        let Some(execution) = self.agents[host].executions.get_mut(&attempt) else {
            self.agents[host].hidden.insert(attempt);
            return;
        };
        let prompt = !std::mem::replace(&mut execution.started, true);
        let header = execution.header.clone();
        if let Some(span) = self.span_of(host, &header, prompt) {
            self.later(span, Step::Work(host, life, attempt));
        }
    }

    /// A token came from the stage after this one, on the stream that `next` names.
    pub(super) fn drawn(&mut self, host: Host, next: AttemptId) {
        let (attempt, life) = (before(next), self.agents[host].life);
        let Some(execution) = self.agents[host].executions.get_mut(&attempt) else { return };
        if attempt.stage > 0 {
            return self.return_token(host, attempt);
        }
        let header = execution.header.clone();
        let first = header.resume_from.0 + execution.emitted;
        execution.emitted += 1;
        if let Some(span) = self.span_of(host, &header, false) {
            self.later(span, Step::Work(host, life, attempt));
        }
        self.engine_news(host, attempt, AttemptEvent::Content(Tokens(1)), first);
    }

    /// The stage before has nothing more to compute.
    pub(super) fn close_stage(&mut self, host: Host, attempt: AttemptId) {
        self.engine_news(host, attempt, AttemptEvent::Ended(Finish::Stop, Usage::default()), 0);
    }

    /// News of the stage after this one, on the stream that `next` names.
    pub(super) fn stage_news(&mut self, host: Host, next: AttemptId, event: AttemptEvent) {
        let attempt = before(next);
        let Some(execution) = self.agents[host].executions.get_mut(&attempt) else { return };
        let Some(node) = execution.header.stages.get(usize::from(next.stage)).map(|stage| stage.node.clone()) else { return };
        let failure = match event {
            AttemptEvent::Accepted(_) => {
                execution.onward = true;
                self.along(host, next, StreamPiece::Body);
                return self.begin(host, attempt);
            }
            AttemptEvent::Progress | AttemptEvent::Content(_) => return,
            AttemptEvent::Refused(reason, _) => Failure::Refused(reason),
            AttemptEvent::Failed(failure) => failure,
            AttemptEvent::Ended(..) => Failure::Engine("it ended before its time".to_owned()),
        };
        let failure = Failure::Stage { node, failure: Box::new(failure) };
        self.engine_news(host, attempt, AttemptEvent::Failed(failure), 0);
    }

    /// Nobody wants an execution's answer: it goes, and with it the stages after it.
    pub(super) fn abandon(&mut self, host: Host, attempt: AttemptId) {
        self.part(host, attempt, false);
    }

    /// An execution is over: `well` or not, the stages after it are told.
    pub(super) fn part(&mut self, host: Host, attempt: AttemptId, well: bool) {
        let machine = &mut self.agents[host];
        machine.bodies.remove(&attempt);
        machine.hidden.remove(&attempt);
        let next = machine.executions.remove(&attempt).and_then(|execution| execution.header.next_stage());
        match next {
            Some(next) if well => self.along(host, next.attempt, StreamPiece::Close),
            Some(next) => self.reset_route(host, next.attempt),
            None => {}
        }
    }

    fn return_token(&mut self, host: Host, attempt: AttemptId) {
        let party = self.agents[host].party(host);
        if let Some(leg) = self.net.routes.get(&attempt).and_then(|route| route.legs.last().copied()) {
            self.over(leg, &party, super::net::Parcel::Stream(attempt, StreamPiece::Drawn));
        }
    }
}

const fn before(next: AttemptId) -> AttemptId {
    next.at_stage(next.stage.saturating_sub(1))
}
