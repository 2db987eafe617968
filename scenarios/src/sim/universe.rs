//! Virtual time, and the knobs and questions of a story.

use super::agents::AgentHost;
use super::clients::{Client, Clients};
use super::engine::Truth;
use super::hub::HubHost;
use super::net::{Host, IDLE, Life, Net, Parcel, Party, PipeId, Purpose, StreamPiece};
use cloud_hub::logic::{Hub, HubEvent};
use edge_node::logic::{Agent, AgentEvent, BrokerEvent, Ended, PeerEvent, UplinkEvent};
use shared::fleet::{NodeState, Tier};
use shared::ids::{AttemptId, NodeId, RequestId};
use shared::policy::dispatch::SplitRules;
use shared::request::{AttemptEvent, Event};
use shared::units::{Micros, Moment};
use shared::work::{LlmRequest, Service};
use std::collections::BTreeMap;

/// What there is besides agents.
#[derive(Clone, Debug)]
pub struct UniverseConfig {
    /// The hub's name.
    pub hub: NodeId,
    /// What the fleet serves.
    pub services: Vec<Service>,
    /// One-way delay of each uplink.
    pub uplink_delay: Micros,
    /// One-way delay inside a site.
    pub site_delay: Micros,
    /// How late the broker publishes last wills.
    pub will_delay: Micros,
    /// When requests may be split over several nodes.
    pub splits: SplitRules,
    /// Seed of everything.
    pub seed: u64,
}

/// One agent.
#[derive(Clone, Debug)]
pub struct AgentSpec {
    /// Its name.
    pub node: NodeId,
    /// Its level.
    pub tier: Tier,
    /// Its engines.
    pub engines: Vec<Truth>,
}

/// Something that will happen.
#[derive(Clone, Debug)]
pub(super) enum Step {
    Agent(Host, Life, AgentEvent),
    Hub(Life, HubEvent),
    AgentTick(Host, Life),
    HubTick(Life),
    Deliver(PipeId, usize, Parcel),
    /// A connection that carries nothing is found out.
    Idle(PipeId),
    /// An engine does its next piece of work.
    Work(Host, Life, AttemptId),
    /// A forwarded request that produces nothing yet gives a sign of life.
    Sign(Host, Life, AttemptId),
    /// A stage hears of the one after it without a stream.
    Stage(Host, Life, AttemptId, AttemptEvent),
    Will(NodeId, shared::wire::mqtt::Session),
}

/// One hub, a few agents, virtual time.
#[derive(Debug)]
pub struct Universe {
    pub(super) config: UniverseConfig,
    pub(super) now: Moment,
    order: u64,
    queue: BTreeMap<(Moment, u64), Step>,
    pub(super) net: Net,
    pub(super) hub: HubHost,
    pub(super) agents: Vec<AgentHost>,
    pub(super) clients: Clients,
    /// The tokens beside the event that is being handled: attempt, first number, count.
    pub(super) payload: Option<(AttemptId, u32, u32)>,
}

impl Universe {
    /// A universe with a running hub and no agents.
    #[must_use]
    pub fn new(config: UniverseConfig) -> Self {
        let hub = HubHost::new(&config);
        let mut universe = Self {
            config,
            now: Moment(0),
            order: 0,
            queue: BTreeMap::new(),
            net: Net::default(),
            hub,
            agents: Vec::new(),
            clients: Clients::default(),
            payload: None,
        };
        universe.start_hub();
        universe
    }

    /// The time.
    #[must_use]
    pub const fn now(&self) -> Moment {
        self.now
    }

    /// Adds a joined agent and starts it.
    pub fn add(&mut self, spec: AgentSpec) -> usize {
        self.enrol(&spec.node);
        self.agents.push(AgentHost::new(spec));
        let host = self.agents.len() - 1;
        self.start_agent(host);
        host
    }

    /// Copies the state folder of an agent to another machine and starts it there too.
    pub fn clone_identity(&mut self, of: usize) -> usize {
        let host = self.agents[of].copy();
        self.agents.push(host);
        let host = self.agents.len() - 1;
        self.start_agent(host);
        host
    }

    /// Does the next thing that will happen. Returns false when nothing will.
    pub fn step(&mut self) -> bool {
        let Some(((at, _), step)) = self.queue.pop_first() else { return false };
        assert!(at >= self.now, "time goes forward");
        self.now = at;
        self.perform(step);
        true
    }

    /// Lets time pass.
    pub fn pass(&mut self, span: Micros) {
        let until = self.now + span;
        while self.queue.first_key_value().is_some_and(|((at, _), _)| *at <= until) {
            self.step();
        }
        self.now = until;
    }

    /// Lets time pass until something holds. Says whether it did within `most`.
    pub fn until(&mut self, most: Micros, mut holds: impl FnMut(&Self) -> bool) -> bool {
        let end = self.now + most;
        while !holds(self) {
            if self.queue.first_key_value().is_none_or(|((at, _), _)| *at > end) {
                self.now = end;
                return holds(self);
            }
            self.step();
        }
        true
    }

    /// A client asks an agent.
    pub fn ask(&mut self, host: usize, request: impl FnOnce(RequestId) -> LlmRequest) -> RequestId {
        let id = self.clients.open(&self.agents[host].spec.node.clone());
        self.tell_agent(host, AgentEvent::Request(Event::Arrived(request(id))));
        id
    }

    /// A client asks the hub.
    pub fn ask_hub(&mut self, request: impl FnOnce(RequestId) -> LlmRequest) -> RequestId {
        let id = self.clients.open(&self.config.hub.clone());
        self.tell_hub(HubEvent::Arrived(request(id)));
        id
    }

    /// The client goes away.
    pub fn leave(&mut self, host: usize, id: RequestId) {
        self.clients.leave(id);
        self.tell_agent(host, AgentEvent::Request(Event::ClientGone(id)));
    }

    /// What the client saw so far.
    ///
    /// # Panics
    /// When nobody asked such a thing.
    #[must_use]
    #[expect(clippy::expect_used, reason = "a story asks about its own requests")]
    pub fn client(&self, id: RequestId) -> &Client {
        self.clients.get(id).expect("asked")
    }

    /// All requests.
    pub fn clients(&self) -> impl Iterator<Item = (&RequestId, &Client)> {
        self.clients.iter()
    }

    /// The agent's logic, while it lives.
    #[must_use]
    pub fn agent(&self, host: usize) -> Option<&Agent> {
        self.agents[host].agent.as_ref()
    }

    /// The hub's logic, while it lives.
    #[must_use]
    pub const fn hub(&self) -> Option<&Hub> {
        self.hub.hub.as_ref()
    }

    /// The node's state as the hub sees it.
    #[must_use]
    pub fn state_of(&self, node: &NodeId) -> Option<NodeState> {
        self.hub()?.nodes(self.now).into_iter().find(|row| row.node == *node).map(|row| row.state)
    }

    /// Executions that an agent's engines still work on.
    #[must_use]
    pub fn executing(&self, host: usize) -> usize {
        self.agents[host].executions.values().filter(|execution| execution.started).count()
    }

    pub(super) fn later(&mut self, span: Micros, step: Step) {
        self.order += 1;
        self.queue.insert((self.now + span, self.order), step);
    }

    /// Sends over a connection towards one of its ends.
    pub(super) fn send(&mut self, id: PipeId, to: usize, parcel: Parcel) {
        let Some(pipe) = self.net.pipes.get(&id) else { return };
        let (delay, cut) = (pipe.delay, self.net.is_cut(pipe));
        if cut {
            if let Some(pipe) = self.net.pipes.get_mut(&id) {
                pipe.held.push((to, parcel));
            }
        } else {
            self.later(delay, Step::Deliver(id, to, parcel));
        }
    }

    /// Ends a connection: both sides that live are told, and its streams break.
    pub(super) fn close(&mut self, id: PipeId, why: &Ended) {
        let Some(pipe) = self.net.pipes.remove(&id) else { return };
        let riding: Vec<_> = self.net.routes.iter().filter(|(_, route)| route.legs.contains(&id)).map(|(a, _)| *a).collect();
        for attempt in riding {
            self.break_route(attempt);
        }
        for (end, party) in pipe.ends.iter().enumerate() {
            match (party, &pipe.purpose) {
                (Party::Agent(host, life), Purpose::Uplink { dial, .. }) => {
                    self.later(Micros(1), Step::Agent(*host, *life, AgentEvent::Uplink(*dial, UplinkEvent::Ended(why.clone()))));
                }
                (Party::Agent(host, life), Purpose::Broker { number, .. }) => {
                    let event = AgentEvent::Broker(*number, BrokerEvent::Down("connection lost".to_owned()));
                    self.later(Micros(1), Step::Agent(*host, *life, event));
                }
                (Party::Agent(host, life), Purpose::Peer { names }) => {
                    let (node, link) = names[1 - end].clone();
                    self.later(Micros(1), Step::Agent(*host, *life, AgentEvent::Peer(node, PeerEvent::Lost(link, why.clone()))));
                }
                (Party::Hub(life), Purpose::Uplink { connection, .. }) => {
                    self.later(Micros(1), Step::Hub(*life, HubEvent::ConnectionLost { connection: *connection }));
                }
                (Party::Hub(_), Purpose::Broker { node, .. }) => self.will(&node.clone(), &pipe.ends[0]),
                (Party::Hub(_), Purpose::Peer { .. }) => {}
            }
        }
    }

    pub(super) fn watch_silence(&mut self) {
        let cut: Vec<_> = self.net.pipes.iter().filter(|(_, pipe)| self.net.is_cut(pipe)).map(|(id, _)| *id).collect();
        for id in cut {
            self.later(IDLE, Step::Idle(id));
        }
    }

    fn perform(&mut self, step: Step) {
        match step {
            Step::Agent(host, life, event) => {
                if self.agents[host].lives(life) {
                    self.tell_agent(host, event);
                }
            }
            Step::Hub(life, event) => {
                if self.hub.lives(life) {
                    self.tell_hub(event);
                }
            }
            Step::AgentTick(host, life) => {
                if self.agents[host].lives(life) && self.agents[host].tick_at.take_if(|at| *at <= self.now).is_some() {
                    self.tell_agent(host, AgentEvent::Tick);
                }
            }
            Step::HubTick(life) => {
                if self.hub.lives(life) && self.hub.tick_at.take_if(|at| *at <= self.now).is_some() {
                    self.tell_hub(HubEvent::Tick);
                }
            }
            Step::Deliver(id, to, parcel) => self.deliver(id, to, parcel),
            Step::Idle(id) => self.idle(id),
            Step::Work(host, life, attempt) => {
                if self.agents[host].lives(life) {
                    self.work(host, attempt);
                }
            }
            Step::Sign(host, life, attempt) => {
                if self.agents[host].lives(life) {
                    self.sign(host, attempt);
                }
            }
            Step::Stage(host, life, attempt, event) => {
                if self.agents[host].lives(life) {
                    self.stage_news(host, attempt, event);
                }
            }
            Step::Will(node, session) => self.publish_will(node, session),
        }
    }

    fn idle(&mut self, id: PipeId) {
        let Some(pipe) = self.net.pipes.get(&id) else { return };
        let dead = pipe.ends.iter().any(|party| match party {
            Party::Hub(life) => !self.hub.lives(*life),
            Party::Agent(host, life) => !self.agents[*host].lives(*life),
        });
        if dead || self.net.is_cut(pipe) {
            self.close(id, &Ended::Broken("no sign of life".to_owned()));
        }
    }

    fn deliver(&mut self, id: PipeId, to: usize, parcel: Parcel) {
        let Some(pipe) = self.net.pipes.get(&id) else { return };
        match (parcel, pipe.ends[to].clone()) {
            (Parcel::ToHub(event), Party::Hub(life)) if self.hub.lives(life) => self.tell_hub(event),
            (Parcel::ToAgent(event), Party::Agent(host, life)) if self.agents[host].lives(life) => self.tell_agent(host, event),
            (Parcel::Stream(attempt, piece), party) => self.stream_piece(attempt, id, piece, &party),
            _ => {}
        }
    }

    /// A piece of a stream has crossed one leg: on to the next, or to its end.
    fn stream_piece(&mut self, attempt: AttemptId, over: PipeId, piece: StreamPiece, at: &Party) {
        match at {
            Party::Hub(life) if self.hub.lives(*life) => self.stream_at_hub(attempt, over, piece),
            Party::Agent(host, life) if self.agents[*host].lives(*life) => self.stream_at_agent(*host, attempt, piece),
            _ => {}
        }
    }
}
