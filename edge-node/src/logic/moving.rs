//! Moving the connection to the hub from one transport to the other: the newer one is made first, and what runs on the older one
//! ends there.

use super::uplink::{Broker, Change, Moving, STEP_MAX, State, Up, Uplink};
use super::{AgentEffect, UplinkEvent};
use shared::fleet::{Transport, TransportOrder};
use shared::units::Moment;
use shared::wire::frame::Hello;

impl Up {
    pub(super) fn is_moving_by(&self, dial: u64) -> bool {
        self.moving.as_ref().is_some_and(|moving| moving.dial == Some(dial))
    }
}

impl Uplink {
    /// Whether the present transport is the right one: gives up on QUIC that does not carry, looks whether it does again.
    pub(super) fn choose_way(&mut self, now: Moment, out: &mut Vec<AgentEffect>) {
        let due = self.look_due().is_some_and(|at| at <= now);
        let State::Up(up) = &mut self.state else { return };
        if self.closing {
            return;
        }
        if up.moving.as_ref().is_some_and(|moving| moving.deadline <= now) {
            out.push(AgentEffect::StayHere);
            return self.stays(now, format!("no answer within {STEP_MAX}"));
        }
        if up.moving.is_some() {
            return;
        }
        if due {
            self.dial += 1;
            up.looking = Some(self.dial);
            self.ways.looking(now);
            out.push(AgentEffect::Look(self.dial));
        } else if up.by == Some(Transport::Quic)
            && !self.ways.avoids_quic(now)
            && let Some(why) = up.punctual.complaint()
        {
            up.wants(now, Transport::Tcp, why.clone());
            self.ways.demote(now, now.since(up.life.since), why);
        }
    }

    /// When QUIC is to be looked at again, while something else carries.
    pub(super) fn look_due(&self) -> Option<Moment> {
        let State::Up(up) = &self.state else { return None };
        let elsewhere = up.by == Some(Transport::Tcp) && up.moving.is_none() && !self.closing;
        if elsewhere { self.ways.look_at() } else { None }
    }

    /// A look has ended.
    pub(super) fn looked(&mut self, now: Moment, found: Result<(), String>) {
        let State::Up(up) = &mut self.state else { return };
        match found {
            Ok(()) if up.moving.is_none() => up.wants(now, Transport::Quic, "QUIC carries again".to_owned()),
            Ok(()) => {}
            Err(why) => self.ways.still_bad(now, why),
        }
    }

    /// Whether the other transport is to be dialled beside the present one.
    pub(super) fn must_move(&self) -> bool {
        matches!(&self.state, State::Up(up) if up.moving.as_ref().is_some_and(|moving| moving.dial.is_none()))
    }

    /// Dials it, and says hello.
    pub(super) fn begin_move(&mut self, now: Moment, hello: Hello, out: &mut Vec<AgentEffect>) {
        let State::Up(up) = &mut self.state else { return };
        let Some(moving) = &mut up.moving else { return };
        self.dial += 1;
        moving.dial = Some(self.dial);
        moving.deadline = now + STEP_MAX;
        let (order, why) = (moving.order, moving.why.clone());
        out.push(AgentEffect::Move { number: self.dial, order, hello: Box::new(hello), why });
    }

    /// News of the dial beside the present connection.
    pub(super) fn on_move(&mut self, now: Moment, event: UplinkEvent, out: &mut Vec<AgentEffect>) -> Change {
        let State::Up(up) = &mut self.state else { return Change::Nothing };
        let Some(moving) = &mut up.moving else { return Change::Nothing };
        match event {
            UplinkEvent::Connected => moving.deadline = now + STEP_MAX,
            UplinkEvent::Carried(by) => moving.by = Some(by),
            UplinkEvent::Welcomed(welcome) => {
                let (by, dial) = (moving.by, moving.dial.unwrap_or(self.dial));
                out.push(AgentEffect::Retire);
                // Messages on the broker are signed with the session, and the last will among them.
                if !matches!(self.broker, Broker::Off) {
                    out.push(AgentEffect::DisconnectBroker);
                }
                return self.welcomed(now, dial, by, welcome);
            }
            UplinkEvent::Ended(why) => self.stays(now, why.to_string()),
            _ => {}
        }
        Change::Nothing
    }

    /// The move failed. A present connection that is bad stays better than none.
    fn stays(&mut self, now: Moment, why: String) {
        let State::Up(up) = &mut self.state else { return };
        if up.moving.take().is_some_and(|moving| moving.order.first == Transport::Quic) {
            self.ways.still_bad(now, why);
        }
    }
}

impl Up {
    fn wants(&mut self, now: Moment, to: Transport, why: String) {
        let (order, deadline) = (TransportOrder::only(to), now + STEP_MAX);
        self.moving = Some(Moving { dial: None, order, by: None, deadline, why });
    }
}
