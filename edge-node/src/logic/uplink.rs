//! The connection to the hub, and to the broker that the hub names: when to dial, when to give up, when to come back.

use super::backoff::{Backoff, earliest, mix};
use super::liveness::Liveness;
use super::{AgentEffect, BrokerEvent, Ended, UplinkEvent, UplinkStatus};
use serde::{Deserialize, Serialize};
use shared::fleet::{Hop, PathReport};
use shared::ids::Instance;
use shared::units::{Micros, Moment};
use shared::wire::frame::{Goodbye, Hello, Pulse, Welcome};
use shared::wire::mqtt::Session;

/// How long a handshake, and then the welcome, may take. Also bounds how long a node waits for a hub that is not there; with the
/// largest window between tries it is less than one heartbeat of five seconds, so that all are back that soon after their hub.
const STEP_MAX: Micros = Micros::from_secs(2);
/// Largest window between two tries; see [`STEP_MAX`].
const WINDOW_MAX: Micros = Micros::from_millis(2_500);
/// First window between two tries.
const WINDOW_FIRST: Micros = Micros::from_millis(250);
/// Time between two tries of a node that was thrown out: only a person can change that, so it asks rarely, and yet comes back by
/// itself where a hub was restored from an older backup by mistake.
const REVOKED_EVERY: Micros = Micros::from_secs(60);
/// How long a connection to the broker may take.
const BROKER_MAX: Micros = Micros::from_secs(5);

/// State of the connection to the hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum State {
    /// There is no hub to dial, or the process ends.
    Off,
    Waiting {
        until: Moment,
    },
    Dialling {
        deadline: Moment,
    },
    Up {
        session: Session,
        heartbeat: Micros,
        life: Liveness,
    },
}

/// State of the connection to the broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
enum Broker {
    Off,
    Waiting { until: Moment },
    Connecting { deadline: Moment },
    Up { since: Moment },
}

/// What an event changed.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Change {
    Nothing,
    CameUp(Box<Welcome>),
    WentDown,
    BrokerCameUp,
}

/// The uplink.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Uplink {
    instance: Instance,
    state: State,
    dial: u64,
    backoff: Backoff,
    last_loss: Option<String>,
    /// The hub said that this certificate is no longer good, and has not let us in since.
    #[serde(default)]
    revoked: bool,
    broker: Broker,
    broker_address: String,
    broker_number: u64,
    broker_backoff: Backoff,
    /// The process shall end.
    closing: bool,
}

impl Uplink {
    /// Pings on the uplink carry no loads: the hub has them from telemetry.
    pub(super) fn new(instance: Instance, seed: u64, there_is_a_hub: bool) -> Self {
        let state = if there_is_a_hub { State::Waiting { until: Moment(0) } } else { State::Off };
        Self {
            instance,
            state,
            dial: 0,
            backoff: Backoff::new(mix(seed, 1), WINDOW_FIRST, WINDOW_MAX),
            last_loss: None,
            revoked: false,
            broker: Broker::Off,
            broker_address: String::new(),
            broker_number: 0,
            broker_backoff: Backoff::new(mix(seed, 2), WINDOW_FIRST, WINDOW_MAX),
            closing: false,
        }
    }

    /// The session, while the uplink is up.
    pub(super) const fn session(&self) -> Option<Session> {
        match &self.state {
            State::Up { session, .. } => Some(*session),
            _ => None,
        }
    }

    /// The session, while the broker can be published to.
    pub(super) const fn publishing(&self) -> Option<Session> {
        if matches!(self.broker, Broker::Up { .. }) { self.session() } else { None }
    }

    pub(super) const fn heartbeat(&self) -> Option<Micros> {
        match &self.state {
            State::Up { heartbeat, .. } => Some(*heartbeat),
            _ => None,
        }
    }

    /// The path to the hub, while there is one.
    pub(super) fn path(&self) -> Option<PathReport> {
        match &self.state {
            State::Up { life, .. } => Some(life.report(Hop::Direct)),
            _ => None,
        }
    }

    /// Whether it is time to dial.
    pub(super) fn must_dial(&self, now: Moment) -> bool {
        matches!(self.state, State::Waiting { until } if until <= now)
    }

    /// Dials, and says hello.
    pub(super) fn dial(&mut self, now: Moment, hello: Hello, out: &mut Vec<AgentEffect>) {
        self.dial += 1;
        self.state = State::Dialling { deadline: now + STEP_MAX };
        out.push(AgentEffect::Dial(self.dial, Box::new(hello)));
    }

    /// Does what else time demands.
    pub(super) fn tick(&mut self, now: Moment, out: &mut Vec<AgentEffect>) -> Change {
        let mut change = Change::Nothing;
        match &mut self.state {
            State::Dialling { deadline } if *deadline <= now => {
                change = self.lose(now, format!("no answer within {STEP_MAX}"), Goodbye::Shutdown, out);
            }
            State::Up { life, .. } if life.is_silent(now) => {
                change = self.lose(now, "silent".to_owned(), Goodbye::Protocol("no sign of life".to_owned()), out);
            }
            State::Up { life, .. } => {
                if let Some(number) = life.question(now) {
                    out.push(AgentEffect::Ping(Pulse { number, ..Pulse::default() }));
                }
            }
            _ => {}
        }
        self.tick_broker(now, out);
        change
    }

    fn tick_broker(&mut self, now: Moment, out: &mut Vec<AgentEffect>) {
        match self.broker {
            Broker::Waiting { until } if until <= now => {
                if let Some(session) = self.session() {
                    self.broker_number += 1;
                    self.broker = Broker::Connecting { deadline: now + BROKER_MAX };
                    let address = self.broker_address.clone();
                    out.push(AgentEffect::ConnectBroker { number: self.broker_number, address, session });
                }
            }
            Broker::Connecting { deadline } if deadline <= now => {
                out.push(AgentEffect::DisconnectBroker);
                self.broker_lost(now, Micros::ZERO);
            }
            _ => {}
        }
    }

    /// Takes in news of dial `dial`.
    pub(super) fn on_uplink(&mut self, now: Moment, dial: u64, event: UplinkEvent, out: &mut Vec<AgentEffect>) -> Change {
        if dial != self.dial {
            return Change::Nothing;
        }
        match (event, &mut self.state) {
            (UplinkEvent::Connected, State::Dialling { deadline }) => *deadline = now + STEP_MAX,
            (UplinkEvent::Welcomed(welcome), State::Dialling { .. }) => return self.welcomed(now, welcome),
            (UplinkEvent::Pong(pulse), State::Up { life, .. }) => life.answered(now, pulse.number),
            (UplinkEvent::Ping(pulse), State::Up { life, .. }) => {
                life.heard(now);
                out.push(AgentEffect::Pong(Pulse { number: pulse.number, ..Pulse::default() }));
            }
            (UplinkEvent::Ended(why), State::Dialling { .. } | State::Up { .. }) => {
                self.revoked |= why == Ended::Goodbye(Goodbye::Revoked);
                return self.lose(now, why.to_string(), Goodbye::Shutdown, out);
            }
            _ => {}
        }
        Change::Nothing
    }

    fn welcomed(&mut self, now: Moment, welcome: Box<Welcome>) -> Change {
        self.revoked = false;
        self.state = State::Up {
            session: Session { epoch: welcome.session, instance: self.instance },
            heartbeat: welcome.heartbeat,
            life: Liveness::new(now, None),
        };
        self.broker_address.clone_from(&welcome.broker);
        self.broker = if welcome.broker.is_empty() { Broker::Off } else { Broker::Waiting { until: now } };
        Change::CameUp(welcome)
    }

    /// Takes in news of broker connection `number`.
    pub(super) fn on_broker(&mut self, now: Moment, number: u64, event: &BrokerEvent) -> Change {
        if number != self.broker_number {
            return Change::Nothing;
        }
        match (event, &self.broker) {
            (BrokerEvent::Up, Broker::Connecting { .. }) => {
                self.broker = Broker::Up { since: now };
                return Change::BrokerCameUp;
            }
            (BrokerEvent::Down(_), Broker::Connecting { .. }) => self.broker_lost(now, Micros::ZERO),
            (BrokerEvent::Down(_), Broker::Up { since }) => {
                let lasted = now.since(*since);
                self.broker_lost(now, lasted);
                // The kernel closes a dead process' TCP at once, while QUIC is found out by silence: is the hub still there?
                if let State::Up { life, .. } = &mut self.state {
                    life.doubt(now);
                }
            }
            _ => {}
        }
        Change::Nothing
    }

    fn broker_lost(&mut self, now: Moment, lasted: Micros) {
        let until = now + self.broker_backoff.after_failure(lasted);
        self.broker = if self.closing { Broker::Off } else { Broker::Waiting { until } };
    }

    /// The broker that the hub named last, or none.
    pub(super) fn broker_address(&self) -> &str {
        &self.broker_address
    }

    /// The broker that it named in an earlier life; nobody connects there before the hub has named one anew.
    pub(super) fn recall_broker(&mut self, address: &str) {
        self.broker_address = address.to_owned();
    }

    /// Whether news of broker connection `number` is news of the present one.
    pub(super) const fn is_present(&self, number: u64) -> bool {
        number == self.broker_number && matches!(self.broker, Broker::Up { .. })
    }

    fn lose(&mut self, now: Moment, why: String, last_words: Goodbye, out: &mut Vec<AgentEffect>) -> Change {
        let (lasted, was_up) = match &self.state {
            State::Up { life, .. } => (now.since(life.since), true),
            _ => (Micros::ZERO, false),
        };
        out.push(AgentEffect::HangUp(last_words));
        if !matches!(self.broker, Broker::Off) {
            out.push(AgentEffect::DisconnectBroker);
        }
        self.broker = Broker::Off;
        self.last_loss = Some(why);
        let pause = self.backoff.after_failure(lasted);
        let until = now + if self.revoked { REVOKED_EVERY } else { pause };
        self.state = if self.closing { State::Off } else { State::Waiting { until } };
        if was_up { Change::WentDown } else { Change::Nothing }
    }

    /// The process shall end: dials no more, keeps what is open.
    pub(super) fn close(&mut self, out: &mut Vec<AgentEffect>) {
        self.closing = true;
        if matches!(self.state, State::Dialling { .. }) {
            out.push(AgentEffect::HangUp(Goodbye::Shutdown));
        }
        if !matches!(self.state, State::Up { .. }) {
            self.state = State::Off;
        }
        if !matches!(self.broker, Broker::Up { .. }) {
            self.broker = Broker::Off;
        }
    }

    /// The process ends: closes what is open.
    pub(super) fn leave(&mut self, out: &mut Vec<AgentEffect>) {
        if !matches!(self.broker, Broker::Off) {
            out.push(AgentEffect::DisconnectBroker);
        }
        if matches!(self.state, State::Up { .. }) {
            out.push(AgentEffect::HangUp(Goodbye::Shutdown));
        }
        self.broker = Broker::Off;
        self.state = State::Off;
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        let state = match &self.state {
            State::Off => None,
            State::Waiting { until } => Some(*until),
            State::Dialling { deadline } => Some(*deadline),
            State::Up { life, .. } => Some(life.deadline()),
        };
        let broker = match self.broker {
            Broker::Off | Broker::Up { .. } => None,
            Broker::Waiting { until } => Some(until),
            Broker::Connecting { deadline } => Some(deadline),
        };
        earliest([state, broker])
    }

    pub(super) fn status(&self, now: Moment) -> UplinkStatus {
        let (state, since) = match &self.state {
            State::Off => ("off", None),
            State::Waiting { .. } => ("waiting", None),
            State::Dialling { .. } => ("dialling", None),
            State::Up { life, .. } => ("up", Some(now.since(life.since))),
        };
        UplinkStatus {
            state: state.to_owned(),
            up_for: since,
            session: self.session().map(|session| session.epoch),
            rtt: self.path().and_then(|path| path.rtt),
            broker: matches!(self.broker, Broker::Up { .. }),
            failures: self.backoff.failures(),
            last_loss: self.last_loss.clone(),
            revoked: self.revoked,
        }
    }
}
