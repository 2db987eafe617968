//! The broker restarts under five hundred agents: they come back, and not as one wave.
//!
//! Each agent's own logic, in virtual time, against a broker that counts. The hub stays; only the broker goes, and while it loads it throws
//! out whoever comes, after it has accepted them.

use edge_node::logic::{Agent, AgentConfig, AgentEffect, AgentEvent, BrokerEvent, UplinkEvent};
use shared::backoff::mix;
use shared::fleet::{Costs, Tier};
use shared::ids::{Instance, NodeId, SessionEpoch};
use shared::plan::DispatchSetting;
use shared::policy::dispatch::SplitRules;
use shared::units::{Micros, Moment};
use shared::wire::frame::Welcome;
use shared::work::Catalogue;
use std::collections::BTreeMap;

const AGENTS: usize = 500;
/// The broker goes at the first of these moments, is back at the second, and has loaded at the third.
const GONE: Moment = Moment(60_000_000);
const BACK: Moment = Moment(80_000_000);
const LOADED: Moment = Moment(85_000_000);
const END: Moment = Moment(180_000_000);
/// What one connection attempt takes.
const LATENCY: Micros = Micros::from_millis(5);
/// Most attempts that any second may see. The first window spreads the fleet over two seconds; in the second of them some whose first
/// try came early are there again, which makes about 350, and chance adds three times its deviation.
const PER_SECOND_MAX: usize = 410;
/// Back again so long after the broker serves, at the latest, and most of them.
const ALL_BACK_WITHIN: Micros = Micros::from_secs(12);
const MOST_BACK_WITHIN: Micros = Micros::from_secs(9);

struct Fleet {
    agents: Vec<Agent>,
    queue: BTreeMap<(Moment, u64), (usize, AgentEvent)>,
    ticks: Vec<Option<Moment>>,
    order: u64,
    attempts: Vec<Moment>,
    /// Number of the connection that each has.
    up: Vec<Option<u64>>,
    back_at: Vec<Option<Moment>>,
}

fn agent(number: usize, seed: u64) -> Agent {
    let setting = |policy: &str| DispatchSetting { policy: policy.to_owned(), config: serde_json::Value::Null };
    let config = AgentConfig {
        node: NodeId::new(&format!("site-{}/edge-{number}", number / 10)).expect("a name"),
        tier: Tier::Device,
        hub: Some(NodeId::new("cloud/hub").expect("a name")),
        instance: Instance(u64::try_from(number).expect("small")),
        labels: BTreeMap::new(),
        costs: Costs::default(),
        addresses: Vec::new(),
        peer_addresses: BTreeMap::new(),
        version: "story".to_owned(),
        dispatch: setting("min-latency"),
        allocation: setting("equal"),
        catalogue: Catalogue::default(),
        splits: SplitRules::default(),
        seed: mix(seed, u64::try_from(number).expect("small")),
    };
    Agent::new(config, None).expect("known policies")
}

impl Fleet {
    fn new(seed: u64) -> Self {
        let mut fleet = Self {
            agents: (0..AGENTS).map(|number| agent(number, seed)).collect(),
            queue: BTreeMap::new(),
            ticks: vec![None; AGENTS],
            order: 0,
            attempts: Vec::new(),
            up: vec![None; AGENTS],
            back_at: vec![None; AGENTS],
        };
        for number in 0..AGENTS {
            fleet.later(Moment(1), number, AgentEvent::Started);
        }
        fleet
    }

    fn later(&mut self, at: Moment, number: usize, event: AgentEvent) {
        self.order += 1;
        self.queue.insert((at, self.order), (number, event));
    }

    /// Lets everything happen up to a moment.
    fn pass(&mut self, until: Moment) {
        while let Some(((now, order), _)) = self.queue.first_key_value().map(|(key, _)| (*key, ()))
            && now <= until
        {
            let Some((number, event)) = self.queue.remove(&(now, order)) else { return };
            if matches!(event, AgentEvent::Tick) {
                self.ticks[number] = None;
            }
            let mut effects = Vec::new();
            self.agents[number].handle(now, event, &mut effects);
            for effect in effects {
                self.carry_out(now, number, effect);
            }
            if let Some(at) = self.agents[number].next_deadline()
                && self.ticks[number].is_none_or(|set| at < set)
            {
                self.ticks[number] = Some(at);
                self.later(at.max(now), number, AgentEvent::Tick);
            }
        }
    }

    fn carry_out(&mut self, now: Moment, number: usize, effect: AgentEffect) {
        let soon = now + LATENCY;
        match effect {
            AgentEffect::Dial(dial, ..) => {
                let welcome = Welcome {
                    version: 1,
                    node: NodeId::new("cloud/hub").expect("a name"),
                    session: SessionEpoch(1),
                    heartbeat: Micros::from_secs(5),
                    broker: "hub:1883".to_owned(),
                    replicas: Vec::new(),
                };
                self.later(soon, number, AgentEvent::Uplink(dial, UplinkEvent::Welcomed(Box::new(welcome))));
            }
            // The first dial of each is its only one: the hub stays.
            AgentEffect::Ping(pulse) => self.later(soon, number, AgentEvent::Uplink(1, UplinkEvent::Pong(pulse))),
            AgentEffect::ConnectBroker { number: connection, .. } => {
                self.attempts.push(now);
                let news = if (GONE..BACK).contains(&now) { BrokerEvent::Down("refused".to_owned()) } else { BrokerEvent::Up };
                if news == BrokerEvent::Up {
                    self.up[number] = Some(connection);
                    if now >= LOADED {
                        self.back_at[number].get_or_insert(now);
                    }
                }
                self.later(soon, number, AgentEvent::Broker(connection, news));
                if (BACK..LOADED).contains(&now) {
                    let kicked = BrokerEvent::Down("not authorised yet".to_owned());
                    self.later(soon + LATENCY, number, AgentEvent::Broker(connection, kicked));
                }
            }
            AgentEffect::HangUp(words) => panic!("an uplink was lost: {words:?}"),
            _ => {}
        }
    }

    fn busiest_second(&self, from: Moment) -> usize {
        let mut attempts: Vec<_> = self.attempts.iter().copied().filter(|at| *at >= from).collect();
        attempts.sort_unstable();
        let within =
            |begin: usize| attempts[begin..].iter().take_while(|at| at.since(attempts[begin]) < Micros::from_secs(1)).count();
        (0..attempts.len()).map(within).max().unwrap_or_default()
    }
}

#[test]
fn row_11_a_broker_restart_is_no_storm_and_all_come_back() {
    for seed in [1, 2, 3] {
        println!("seed {seed}");
        let mut fleet = Fleet::new(seed);
        fleet.pass(GONE);
        assert!(fleet.up.iter().all(Option::is_some), "all were there");
        let connections = fleet.up.clone();
        for (number, connection) in connections.into_iter().enumerate() {
            let down = AgentEvent::Broker(connection.unwrap_or_default(), BrokerEvent::Down("the broker is gone".to_owned()));
            fleet.later(GONE + Micros(u64::try_from(number).expect("small")), number, down);
        }
        fleet.pass(END);
        let busiest = fleet.busiest_second(GONE);
        let mut back: Vec<_> = fleet.back_at.iter().map(|at| at.expect("it came back").since(LOADED)).collect();
        back.sort_unstable();
        let most = back[AGENTS * 95 / 100];
        println!("at most {busiest} attempts in a second; 95 % back within {most}, all within {}", back[AGENTS - 1]);
        assert!(busiest <= PER_SECOND_MAX, "{busiest}");
        assert!(most <= MOST_BACK_WITHIN && back[AGENTS - 1] <= ALL_BACK_WITHIN, "{most}, {}", back[AGENTS - 1]);
        for agent in &fleet.agents {
            let status = agent.status(END);
            assert!(status.uplink.broker, "the broker is connected again: {:?}", status.uplink);
            assert!(status.uplink.quarantined.is_empty(), "no message is to blame: {:?}", status.uplink);
        }
    }
}
