//! Request streams between agents: opened by the ingress, over one leg or through the hub, ended by either side or by a broken leg.

use super::net::{Host, Life, Parcel, Party, Route, StreamPiece};
use super::universe::{Step, Universe};
use cloud_hub::logic::HubEvent;
use edge_node::logic::AgentEvent;
use shared::fleet::Hop;
use shared::ids::AttemptId;
use shared::plan::Failure;
use shared::request::{AttemptEvent, Event};
use shared::units::Micros;
use shared::work::ExecHeader;

impl Universe {
    /// Opens a stream to the header's target, and sends the header.
    pub(super) fn open_route(&mut self, host: Host, hop: Hop, header: ExecHeader) {
        let (attempt, party, life) = (header.attempt, self.agents[host].party(host), self.agents[host].life);
        let leg = match hop {
            Hop::Direct => self.net.to_node(&party, &header.target),
            Hop::Relay => self.net.uplink(&party),
            Hop::Local => None,
        };
        let Some(leg) = leg else {
            let failed = AttemptEvent::Failed(Failure::Broken(header.target.to_string()));
            return self.later(Micros(1), told(host, life, attempt, failed));
        };
        let route = Route { header, ingress: Some(host), legs: vec![leg], stream: None, executor: None };
        self.net.routes.insert(attempt, route);
        self.along(host, attempt, StreamPiece::Header);
    }

    /// Sends a piece from the ingress towards the executor.
    pub(super) fn along(&mut self, host: Host, attempt: AttemptId, piece: StreamPiece) {
        let party = self.agents[host].party(host);
        if let Some(leg) = self.net.routes.get(&attempt).and_then(|route| route.legs.first().copied()) {
            self.over(leg, &party, Parcel::Stream(attempt, piece));
        }
    }

    /// Sends news from the executor towards the ingress.
    pub(super) fn back(&mut self, host: Host, attempt: AttemptId, event: AttemptEvent, first: u32) {
        let party = self.agents[host].party(host);
        if let Some(leg) = self.net.routes.get(&attempt).and_then(|route| route.legs.last().copied()) {
            self.over(leg, &party, Parcel::Stream(attempt, StreamPiece::News(event, first)));
        }
    }

    /// Sends over a connection, away from `from`.
    pub(super) fn over(&mut self, id: u64, from: &Party, parcel: Parcel) {
        if let Some(pipe) = self.net.pipes.get(&id) {
            let to = usize::from(pipe.ends[0] == *from);
            self.send(id, to, parcel);
        }
    }

    pub(super) fn stream_at_agent(&mut self, host: Host, attempt: AttemptId, piece: StreamPiece) {
        let node = self.agents[host].spec.node.clone();
        let life = self.agents[host].life;
        match piece {
            StreamPiece::Header => {
                let Some(route) = self.net.routes.get_mut(&attempt) else { return };
                route.executor = Some((host, life));
                let header = route.header.clone();
                let Some(from) = header.sender().cloned() else { return };
                self.tell_agent(host, AgentEvent::Request(Event::Offered { from, header }));
            }
            StreamPiece::Body => {
                self.clients.saw(attempt.request, &node);
                self.agents[host].bodies.insert(attempt);
                if let Some(execution) = self.agents[host].executions.get_mut(&attempt) {
                    execution.has_body = true;
                }
                self.begin(host, attempt);
            }
            StreamPiece::Reset => {
                self.net.routes.remove(&attempt);
                self.tell_agent(host, AgentEvent::Request(Event::Withdrawn(attempt)));
            }
            StreamPiece::Hidden => self.compute(host, attempt),
            StreamPiece::Drawn => self.drawn(host, attempt),
            StreamPiece::Close => self.close_stage(host, attempt),
            StreamPiece::News(event, first) => {
                if matches!(event, AttemptEvent::Ended(..) | AttemptEvent::Failed(_) | AttemptEvent::Refused(..)) {
                    self.net.routes.remove(&attempt);
                }
                if attempt.stage > 0 {
                    return self.stage_news(host, attempt, event);
                }
                if let AttemptEvent::Content(count) = event {
                    self.payload = Some((attempt, first, count.0));
                }
                self.tell_agent(host, AgentEvent::Request(Event::Remote(attempt, event)));
            }
        }
    }

    /// Nobody wants what would come on it any more.
    pub(super) fn reset_route(&mut self, host: Host, attempt: AttemptId) {
        self.along(host, attempt, StreamPiece::Reset);
        if self.net.routes.get(&attempt).is_some_and(|route| route.executor.is_none() && route.legs.len() < 2) {
            self.net.routes.remove(&attempt);
        }
    }

    pub(super) fn break_route(&mut self, attempt: AttemptId) {
        let Some(route) = self.net.routes.remove(&attempt) else { return };
        let broken = AttemptEvent::Failed(Failure::Broken(route.header.target.to_string()));
        match route.ingress {
            Some(host) => {
                let life = self.agents[host].life;
                self.later(Micros(1), told(host, life, attempt, broken));
            }
            None => self.later(Micros(1), Step::Hub(self.hub.life, HubEvent::Remote(attempt, broken))),
        }
        if let Some((host, life)) = route.executor {
            self.later(Micros(1), Step::Agent(host, life, AgentEvent::Request(Event::Withdrawn(attempt))));
        }
        if let Some(stream) = route.stream {
            self.later(Micros(1), Step::Hub(self.hub.life, HubEvent::RelayClosed { stream }));
        }
    }
}

/// Whoever opened a stream hears of it: the ingress' logic, or the stage before.
fn told(host: Host, life: Life, attempt: AttemptId, event: AttemptEvent) -> Step {
    if attempt.stage > 0 {
        Step::Stage(host, life, attempt, event)
    } else {
        Step::Agent(host, life, AgentEvent::Request(Event::Remote(attempt, event)))
    }
}
