//! What a story can do to the universe: operators' wishes, deaths and restarts, cut links, broken engines; and its proof at the end.

use super::engine::Truth;
use super::net::{IDLE, Party, Purpose};
use super::universe::{Step, Universe};
use cloud_hub::logic::{AdminOperation, Hub, HubEvent, ReplyToken};
use edge_node::logic::{Agent, AgentEvent, Ended};
use shared::plan::Failure;
use shared::request::AttemptEvent;
use shared::units::Micros;

impl Universe {
    /// An operator's wish.
    pub fn admin(&mut self, operation: AdminOperation) {
        self.tell_hub(HubEvent::Admin { token: ReplyToken(0), operation });
    }

    /// `kill -9` of an agent.
    pub fn kill(&mut self, host: usize) {
        let party = self.agents[host].party(host);
        self.agents[host].die();
        for id in self.net.of(&party) {
            // The kernel closes TCP at once; a UDP peer finds out by silence.
            match self.net.pipes[&id].purpose {
                Purpose::Broker { .. } => self.close(id, &Ended::Broken("reset".to_owned())),
                _ => self.later(IDLE, Step::Idle(id)),
            }
        }
    }

    /// Starts a killed agent again, from its state folder.
    pub fn restart(&mut self, host: usize) {
        self.start_agent(host);
    }

    /// `kill -9` of the hub, its broker with it.
    pub fn kill_hub(&mut self) {
        let party = Party::Hub(self.hub.life);
        self.hub.die();
        for id in self.net.of(&party) {
            match self.net.pipes[&id].purpose {
                Purpose::Broker { .. } => self.close(id, &Ended::Broken("reset".to_owned())),
                _ => self.later(IDLE, Step::Idle(id)),
            }
        }
    }

    /// Starts the hub again on what its store holds.
    pub fn restart_hub(&mut self) {
        self.start_hub();
    }

    /// A copy of the hub's store, for [`Self::restore_hub`].
    #[must_use]
    pub fn backup(&self) -> cloud_hub::logic::Restored {
        self.hub.store.clone()
    }

    /// Puts an older store in place of the dead hub's.
    pub fn restore_hub(&mut self, backup: cloud_hub::logic::Restored) {
        self.hub.store = backup;
    }

    /// Cuts the agent's uplink: nothing gets through, nothing is refused.
    pub fn cut(&mut self, host: usize) {
        self.net.cut.insert(host);
        self.watch_silence();
    }

    /// Cuts the agent off from its site too.
    pub fn isolate(&mut self, host: usize) {
        self.net.isolated.insert(host);
        self.cut(host);
    }

    /// Heals both.
    pub fn heal(&mut self, host: usize) {
        self.net.cut.remove(&host);
        self.net.isolated.remove(&host);
        let healed: Vec<_> = self.net.pipes.iter().filter(|(_, pipe)| !self.net.is_cut(pipe)).map(|(id, _)| *id).collect();
        for id in healed {
            let Some(pipe) = self.net.pipes.get_mut(&id) else { continue };
            let held = std::mem::take(&mut pipe.held);
            for (to, parcel) in held {
                self.send(id, to, parcel);
            }
        }
    }

    /// The engine of a variant breaks (or works again).
    pub fn break_engine(&mut self, host: usize, why: Option<&str>) {
        for truth in &mut self.agents[host].spec.engines {
            truth.broken = why.map(str::to_owned);
        }
        if let Some(why) = why {
            let running: Vec<_> = self.agents[host].executions.keys().copied().collect();
            for attempt in running {
                self.engine_news(host, attempt, AttemptEvent::Failed(Failure::Engine(why.to_owned())), 0);
            }
        }
        let replicas = self.agents[host].spec.engines.iter().map(Truth::report).collect();
        self.tell_agent(host, AgentEvent::Replicas(replicas));
    }

    /// From now on the broker publishes last wills so late.
    pub const fn delay_wills(&mut self, delay: Micros) {
        self.config.will_delay = delay;
    }

    /// Replays every capture of every life: each must give the same effects.
    ///
    /// # Panics
    /// When one does not.
    pub fn replay_all(&self) -> usize {
        let mut events = 0;
        for host in &self.agents {
            for capture in &host.captures {
                events += capture
                    .replay(|agent: &mut Agent, now, event| {
                        let mut out = Vec::new();
                        agent.handle(now, event, &mut out);
                        out
                    })
                    .unwrap_or_else(|why| panic!("{}: {why}", host.spec.node));
            }
        }
        for capture in &self.hub.captures {
            events += capture
                .replay(|hub: &mut Hub, now, event| {
                    let mut out = Vec::new();
                    hub.handle(now, event, &mut out);
                    out
                })
                .unwrap_or_else(|why| panic!("hub: {why}"));
        }
        events
    }
}
