//! The hub's decisions, sans IO: who is in the fleet and in which state, which plans and views they get, which streams may be
//! relayed, what was done.
//!
//! [`Hub`] follows the core contract: events with `now` go in, effects come out, and [`Hub::next_deadline`] says when
//! [`HubEvent::Tick`] is wanted. There is no socket, clock, environment or task here, and there must never be: the live hub, the
//! simulator and a replay run exactly this code. A serialised [`Hub`] with the ordered `(now, event)` pairs after it is a
//! capture: replaying it gives equal effects.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod admin;
mod config;
mod counters;
mod effect;
mod epochs;
mod event;
mod fleet;
mod ingress;
mod keys;
mod ledger;
mod relay;
mod rounds;
mod rows;
#[cfg(test)]
mod tests;
mod views;

#[cfg(feature = "io")]
pub(crate) use admin::revoked;
pub use config::{HubConfig, PolicyChoice, Restored, RestoredNode};
pub use effect::{AdminReply, Change, HubEffect, Note};
pub use event::{AdminOperation, Connection, HubEvent, NodeMessage, ReplyToken, Stream};
pub use rows::{NodeRow, PlanRow, ReplicaRow, TotalRow, Totals};

use counters::Counters;
use epochs::Epochs;
use fleet::Fleet;
use ingress::Ingress;
use keys::Keys;
use ledger::Ledger;
use relay::Relays;
use rounds::{Around, Rounds};
use serde::{Deserialize, Serialize};
use shared::fleet::NodeState;
use shared::ids::NodeId;
use shared::plan::Grant;
use shared::policy::BadPolicy;
use shared::request::Event;
use shared::units::{Micros, Moment};
use shared::wire::mqtt::{AckState, PlanAck, Records, Session};
use shared::work::{BadCatalogue, Catalogue};
use views::{Facts, Views};

/// Rounds are held and views looked at so often: the tick of the timescale layer.
const TICK: Micros = Micros::from_secs(1);
/// A node that has come online and has no plan yet gets one so soon, instead of at the next tick. Many that come together, as
/// after a restart of the hub, share these rounds.
const FIRST_PLAN_WITHIN: Micros = Micros::from_millis(100);

/// Why a hub cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum BadStart {
    /// A configured policy cannot be had.
    #[error("cannot start the hub's policies")]
    Policy(#[from] BadPolicy),
    /// The stored services contradict each other.
    #[error("cannot take up the stored services")]
    Catalogue(#[from] BadCatalogue),
}

/// The hub's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hub {
    config: HubConfig,
    epochs: Epochs,
    fleet: Fleet,
    catalogue: Catalogue,
    catalogue_version: u64,
    catalogue_changed: Moment,
    keys: Keys,
    rounds: Rounds,
    views: Views,
    relays: Relays,
    ingress: Ingress,
    ledger: Ledger,
    counters: Counters,
    /// When the next tick is due; the first event is one.
    tick_due: Moment,
    /// When time alone may change something in the fleet.
    fleet_due: Option<Moment>,
}

impl Hub {
    /// A hub at its start.
    ///
    /// # Errors
    /// [`BadStart`] when a configured policy cannot be had, or the stored services contradict each other.
    pub fn new(config: HubConfig, restored: Restored) -> Result<Self, BadStart> {
        let dispatch = restored.dispatch.unwrap_or_else(|| config.dispatch.clone());
        Ok(Self {
            epochs: Epochs::new(restored.incarnation, restored.session_epoch),
            fleet: Fleet::new(&config, restored.nodes),
            catalogue: Catalogue::new(restored.services)?,
            catalogue_version: 0,
            catalogue_changed: Moment(0),
            keys: Keys::new(restored.keys),
            rounds: Rounds::new(&config, dispatch)?,
            views: Views::default(),
            relays: Relays::default(),
            ingress: Ingress::new(&config)?,
            ledger: Ledger::default(),
            counters: Counters::default(),
            tick_due: Moment(0),
            fleet_due: None,
            config,
        })
    }

    /// Takes in one event and says what shall be done, in this order.
    pub fn handle(&mut self, now: Moment, event: HubEvent, effects: &mut Vec<HubEffect>) {
        let before = effects.len();
        if self.epochs.keep(effects) {
            self.tell(now, Event::Catalogue(self.catalogue.clone()), effects);
        }
        self.take(now, event, effects);
        if self.fleet_due.is_none_or(|due| now >= due) || now >= self.tick_due {
            self.fleet.advance(now, &mut self.epochs, effects);
            self.fleet_due = self.fleet.deadline();
        }
        self.settle(now, effects);
        if now >= self.tick_due {
            self.tick_due = now + TICK;
            self.tick(now, effects);
        } else {
            self.with_views(now, effects, Views::publish_urgent);
        }
        if self.ingress.deadline().is_some_and(|due| now >= due) {
            self.tell(now, Event::Tick, effects);
        }
        self.counters.count(effects.get(before..).unwrap_or_default());
    }

    /// When [`HubEvent::Tick`] is wanted next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        [Some(self.tick_due), self.fleet_due, self.views.deadline(), self.ingress.deadline()].into_iter().flatten().min()
    }

    fn take(&mut self, now: Moment, event: HubEvent, effects: &mut Vec<HubEffect>) {
        match event {
            HubEvent::Enrolled { node, serial, labels } => self.fleet.enrolled(node, serial, labels, effects),
            HubEvent::HelloReceived { connection, node, serial, hello } => {
                self.fleet.hello(now, (connection, &node), &serial, hello, &mut self.epochs, effects);
            }
            HubEvent::Pong { connection, pulse } => self.fleet.pong(now, connection, &pulse, effects),
            HubEvent::Pinged { connection, pulse } => self.fleet.pinged(now, connection, &pulse, effects),
            HubEvent::PathMeasured { connection, path } => self.fleet.path_measured(now, connection, path),
            HubEvent::ConnectionLost { connection } => self.fleet.lost(now, connection, &mut self.epochs, effects),
            HubEvent::Mqtt { node, session, message } => self.message(now, &node, session, message, effects),
            HubEvent::BadPayload { node, topic, why } => self.fleet.fault(&node, &topic, &why, effects),
            HubEvent::RelayAsked { connection, stream, header } => {
                let (me, asked) = (&self.config.me, (connection, stream));
                self.relays.asked(me, &self.fleet, &self.rounds, asked, &header, effects);
            }
            HubEvent::RelayClosed { stream } => self.relays.closed(stream),
            HubEvent::Arrived(request) => self.ingress.arrived(now, request, &self.fleet, &mut self.ledger, effects),
            HubEvent::ClientGone(request) => self.tell(now, Event::ClientGone(request), effects),
            HubEvent::ClientStalled(request) => self.tell(now, Event::ClientStalled(request), effects),
            HubEvent::Remote(attempt, news) => self.tell(now, Event::Remote(attempt, news), effects),
            HubEvent::Admin { token, operation } => {
                let reply = self.operate(now, operation, effects);
                effects.push(HubEffect::Reply { token, reply });
            }
            HubEvent::Tick => {}
        }
    }

    fn message(&mut self, now: Moment, node: &NodeId, session: Session, message: NodeMessage, effects: &mut Vec<HubEffect>) {
        let kind = message.kind();
        // Records are history: they are as true in a later session as in the one that they were written in.
        if !matches!(message, NodeMessage::Records(_)) && !self.fleet.is_current(now, node, session, kind, effects) {
            return;
        }
        match message {
            NodeMessage::Status(status) => self.fleet.status(now, node, &status, effects),
            NodeMessage::Inventory(inventory) => self.fleet.inventory(now, node, *inventory, effects),
            NodeMessage::Telemetry(telemetry) => self.fleet.telemetry(now, node, telemetry, effects),
            NodeMessage::PlanAck(ack) => self.plan_ack(node, ack, effects),
            NodeMessage::Records(records) => self.records(node, records, effects),
        }
    }

    fn plan_ack(&mut self, node: &NodeId, ack: PlanAck, effects: &mut Vec<HubEffect>) {
        let (layer, why) = (ack.layer, rejection(&ack.state));
        if self.rounds.acked(node, ack)
            && let Some(why) = why
        {
            effects.push(HubEffect::Note(Note::PlanRejected { node: node.clone(), layer, why }));
        }
    }

    fn records(&mut self, node: &NodeId, records: Records, effects: &mut Vec<HubEffect>) {
        if self.fleet.member(node).is_none_or(fleet::Member::is_revoked) {
            return;
        }
        if records.records.len() > Records::RECORDS_MAX {
            return self.fleet.fault(node, "records", "too many in one message: want at most 64", effects);
        }
        if records.records.iter().any(|record| record.ingress != *node) {
            return self.fleet.fault(node, "records", "another ingress' record: want the topic's node", effects);
        }
        for record in records.records {
            self.ledger.add(record, effects);
        }
    }

    /// Carries what changed in the fleet to everybody inside the hub who must know.
    fn settle(&mut self, now: Moment, effects: &mut Vec<HubEffect>) {
        self.fleet.watch(now, effects);
        let news = self.fleet.take_news();
        self.relays.ended(&news.ended, effects);
        self.views.changed(&news.changed, &self.fleet, &self.rounds);
        for delta in news.deltas {
            self.tell(now, Event::Fleet(delta), effects);
        }
        let came = |node: &NodeId| self.fleet.member(node).is_some_and(|member| member.shown == NodeState::Online);
        if news.changed.iter().any(|node| came(node) && !self.rounds.has_planned_for(node)) {
            self.tick_due = self.tick_due.min(now + FIRST_PLAN_WITHIN);
        }
    }

    fn tick(&mut self, now: Moment, effects: &mut Vec<HubEffect>) {
        let around = Around {
            now,
            me: &self.config.me,
            fleet: &self.fleet,
            catalogue: &self.catalogue,
            generation: self.fleet.generation() + self.catalogue_version,
            stale_after: self.config.lease(),
            seed: self.config.seed,
        };
        let grant: Option<Grant> = self.rounds.round(&around, &mut self.epochs, effects);
        if let Some(grant) = grant {
            self.tell(now, Event::Granted(grant), effects);
        }
        self.with_views(now, effects, Views::publish_all);
    }

    fn with_views(
        &mut self,
        now: Moment,
        effects: &mut Vec<HubEffect>,
        publish: fn(&mut Views, &Facts<'_>, &mut Epochs, &mut Vec<HubEffect>),
    ) {
        let facts = Facts {
            now,
            fleet: &self.fleet,
            rounds: &self.rounds,
            catalogue: &self.catalogue,
            keys: &self.keys,
            catalogue_changed: self.catalogue_changed,
        };
        publish(&mut self.views, &facts, &mut self.epochs, effects);
    }

    fn catalogue_changed(&mut self, now: Moment, effects: &mut Vec<HubEffect>) {
        self.catalogue_version += 1;
        self.catalogue_changed = now;
        self.views.all_urgent(&self.fleet);
        self.tell(now, Event::Catalogue(self.catalogue.clone()), effects);
    }

    fn tell(&mut self, now: Moment, event: Event, effects: &mut Vec<HubEffect>) {
        self.ingress.tell(now, event, &self.fleet, &mut self.ledger, effects);
    }
}

fn rejection(state: &AckState) -> Option<String> {
    match state {
        AckState::Received | AckState::Applied => None,
        AckState::Failed(why) | AckState::Unsupported(why) => Some(why.chars().take(200).collect()),
    }
}
