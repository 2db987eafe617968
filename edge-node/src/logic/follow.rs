//! What follows from what the parts learn: the core and the other parts are told.

use super::agent::Agent;
use super::plans::InForce;
use super::uplink::Change;
use super::view::Changes;
use super::{AgentEffect, BrokerEvent, PeerEvent};
use shared::ids::{NodeId, PlanEpoch};
use shared::request::Event;
use shared::units::Moment;

impl Agent {
    pub(super) fn broker(&mut self, now: Moment, number: u64, event: BrokerEvent, out: &mut Vec<AgentEffect>) {
        if matches!(event, BrokerEvent::Down(_))
            && self.uplink.is_present(number)
            && let Some(kind) = self.reports.thrown_out(now)
        {
            out.push(AgentEffect::Quarantined(kind));
        }
        let change = self.uplink.on_broker(now, number, &event);
        self.follow_uplink(now, change, out);
        if !self.uplink.is_present(number) {
            return;
        }
        match event {
            BrokerEvent::Plan(plan) => {
                let (acks, in_force) = self.plans.take(now, *plan);
                self.reports.acks(acks);
                self.follow_plans(now, in_force, out);
            }
            BrokerEvent::View(view) => {
                self.plans.note(PlanEpoch { sequence: 0, ..view.epoch });
                let path = self.uplink.path();
                let peers = &self.peers;
                let changes = self.view.take(*view, path.as_ref(), |node| peers.is_connected(node));
                self.follow_view(now, changes, out);
            }
            BrokerEvent::Up | BrokerEvent::Down(_) => {}
        }
    }

    pub(super) fn peer(&mut self, now: Moment, node: &NodeId, event: PeerEvent, out: &mut Vec<AgentEffect>) {
        let mut deltas = Vec::new();
        self.with_peers(|peers, around| peers.on_event(now, node, event, around, &mut deltas, out));
        self.tell_deltas(now, deltas, out);
    }

    pub(super) fn follow_uplink(&mut self, now: Moment, change: Change, out: &mut Vec<AgentEffect>) {
        match change {
            Change::Nothing => {}
            Change::CameUp(welcome) => {
                self.dirty |= welcome.session > self.session_seen;
                self.session_seen = self.session_seen.max(welcome.session);
                self.view.new_session();
                self.tell_core(now, Event::Degraded(false), out);
            }
            Change::WentDown => {
                self.tell_core(now, Event::Degraded(true), out);
                let lost = self.view.cut_off();
                self.tell_deltas(now, lost, out);
            }
            Change::BrokerCameUp => {
                self.reports.greet(now);
            }
        }
    }

    pub(super) fn follow_plans(&mut self, now: Moment, in_force: Vec<InForce>, out: &mut Vec<AgentEffect>) {
        for change in in_force {
            match change {
                InForce::Grant(grant) => self.tell_core(now, Event::Granted(grant), out),
                InForce::Dispatch(setting) => self.tell_core(now, Event::Policy(setting), out),
                InForce::Bounds => self.shares.hurry(),
                InForce::Placement => {}
            }
        }
    }

    pub(super) fn follow_view(&mut self, now: Moment, changes: Changes, out: &mut Vec<AgentEffect>) {
        self.tell_deltas(now, changes.deltas, out);
        if let Some(catalogue) = changes.catalogue {
            self.tell_core(now, Event::Catalogue(catalogue), out);
        }
        if let Some(keys) = changes.keys {
            out.push(AgentEffect::Keys(keys));
        }
        if let Some(revoked) = changes.revoked {
            out.push(AgentEffect::Revoked(revoked));
        }
        if let Some(drain) = changes.drain {
            self.tell_core(now, Event::Drain(drain || self.stopping), out);
        }
    }
}
