//! The connection to the hub, and to the broker that the hub names: when to dial, when to give up, when to come back.

use super::liveness::Liveness;
use super::ways::{Punctuality, Ways};
use super::{AgentEffect, BrokerEvent, Ended, UplinkEvent, UplinkStatus};
use serde::{Deserialize, Serialize};
use shared::backoff::{Backoff, earliest, mix};
use shared::fleet::{Hop, PathReport, Transport, TransportOrder};
use shared::ids::Instance;
use shared::units::{Micros, Moment};
use shared::wire::frame::{Goodbye, Hello, Pulse, Welcome};
use shared::wire::mqtt::Session;

/// How long a handshake, and then the welcome, may take. Also bounds how long a node waits for a hub that is not there; with the
/// largest window between tries it is less than one heartbeat of five seconds, so that all are back that soon after their hub.
pub(super) const STEP_MAX: Micros = Micros::from_secs(2);
/// Largest window between two tries; see [`STEP_MAX`].
const WINDOW_MAX: Micros = Micros::from_millis(2_500);
/// First window between two tries.
const WINDOW_FIRST: Micros = Micros::from_millis(250);
/// The same for the broker, which carries no work: when it restarts under a fleet, nobody is in a hurry, and five hundred nodes are
/// some two hundred TLS handshakes in a second at most.
const BROKER_WINDOW_FIRST: Micros = Micros::from_secs(2);
const BROKER_WINDOW_MAX: Micros = Micros::from_secs(8);
/// Time between two tries of a node that was thrown out: only a person can change that, so it asks rarely, and yet comes back by
/// itself where a hub was restored from an older backup by mistake.
const REVOKED_EVERY: Micros = Micros::from_secs(60);
/// How long a connection to the broker may take.
const BROKER_MAX: Micros = Micros::from_secs(5);

/// State of the connection to the hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum State {
    /// There is no hub to dial, or the process ends.
    Off,
    Waiting {
        until: Moment,
    },
    Dialling {
        deadline: Moment,
    },
    Up(Box<Up>),
}

/// A connection to the hub after its welcome.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Up {
    /// Number of its dial.
    pub(super) dial: u64,
    pub(super) session: Session,
    pub(super) heartbeat: Micros,
    pub(super) life: Liveness,
    pub(super) by: Option<Transport>,
    pub(super) punctual: Punctuality,
    /// The dial beside it, if one is under way.
    pub(super) moving: Option<Moving>,
    /// The look at QUIC that is under way.
    pub(super) looking: Option<u64>,
}

/// A dial beside a connection that is up.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Moving {
    /// Absent until it is dialled.
    pub(super) dial: Option<u64>,
    pub(super) order: TransportOrder,
    pub(super) by: Option<Transport>,
    pub(super) deadline: Moment,
    pub(super) why: String,
}

/// State of the connection to the broker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) enum Broker {
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
    pub(super) instance: Instance,
    pub(super) state: State,
    /// Number of the newest dial or look.
    pub(super) dial: u64,
    /// What the dial under way went over.
    pub(super) by: Option<Transport>,
    pub(super) backoff: Backoff,
    pub(super) ways: Ways,
    pub(super) last_loss: Option<String>,
    /// The hub said that this certificate is no longer good, and has not let us in since.
    #[serde(default)]
    pub(super) revoked: bool,
    pub(super) broker: Broker,
    pub(super) broker_address: String,
    pub(super) broker_number: u64,
    pub(super) broker_backoff: Backoff,
    /// The process shall end.
    pub(super) closing: bool,
}

impl Uplink {
    /// Pings on the uplink carry no loads: the hub has them from telemetry.
    pub(super) fn new(instance: Instance, seed: u64, there_is_a_hub: bool) -> Self {
        let state = if there_is_a_hub { State::Waiting { until: Moment(0) } } else { State::Off };
        Self {
            instance,
            state,
            dial: 0,
            by: None,
            ways: Ways::new(mix(seed, 3)),
            backoff: Backoff::new(mix(seed, 1), WINDOW_FIRST, WINDOW_MAX),
            last_loss: None,
            revoked: false,
            broker: Broker::Off,
            broker_address: String::new(),
            broker_number: 0,
            broker_backoff: Backoff::new(mix(seed, 2), BROKER_WINDOW_FIRST, BROKER_WINDOW_MAX),
            closing: false,
        }
    }

    /// The session, while the uplink is up.
    pub(super) const fn session(&self) -> Option<Session> {
        match &self.state {
            State::Up(up) => Some(up.session),
            _ => None,
        }
    }

    /// The session, while the broker can be published to.
    pub(super) const fn publishing(&self) -> Option<Session> {
        if matches!(self.broker, Broker::Up { .. }) { self.session() } else { None }
    }

    pub(super) const fn heartbeat(&self) -> Option<Micros> {
        match &self.state {
            State::Up(up) => Some(up.heartbeat),
            _ => None,
        }
    }

    /// The path to the hub, while there is one.
    pub(super) fn path(&self) -> Option<PathReport> {
        match &self.state {
            State::Up(up) => Some(PathReport { transport: up.by, ..up.life.report(Hop::Direct) }),
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
        self.by = None;
        self.state = State::Dialling { deadline: now + STEP_MAX };
        out.push(AgentEffect::Dial(self.dial, self.ways.order(now), Box::new(hello)));
    }

    /// Does what else time demands.
    pub(super) fn tick(&mut self, now: Moment, out: &mut Vec<AgentEffect>) -> Change {
        let mut change = Change::Nothing;
        match &mut self.state {
            State::Dialling { deadline } if *deadline <= now => {
                change = self.lose(now, format!("no answer within {STEP_MAX}"), Goodbye::Shutdown, out);
            }
            State::Up(up) if up.life.is_silent(now) => {
                change = self.lose(now, "silent".to_owned(), Goodbye::Protocol("no sign of life".to_owned()), out);
            }
            State::Up(up) => {
                if let Some(number) = up.life.question(now) {
                    out.push(AgentEffect::Ping(Pulse { number, ..Pulse::default() }));
                }
                self.choose_way(now, out);
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

    /// Takes in news of dial or look `dial`.
    pub(super) fn on_uplink(&mut self, now: Moment, dial: u64, event: UplinkEvent, out: &mut Vec<AgentEffect>) -> Change {
        match &mut self.state {
            State::Dialling { deadline } if dial == self.dial => match event {
                UplinkEvent::Connected => *deadline = now + STEP_MAX,
                UplinkEvent::Carried(by) => self.by = Some(by),
                UplinkEvent::Welcomed(welcome) => return self.welcomed(now, dial, self.by, welcome),
                UplinkEvent::Ended(why) => return self.ended(now, &why, out),
                _ => {}
            },
            State::Up(up) if dial == up.dial => match event {
                UplinkEvent::Pong(pulse) => {
                    if let Some(took) = up.life.answered(now, pulse.number)
                        && up.punctual.answered(took)
                    {
                        up.life.hurry(now);
                    }
                }
                UplinkEvent::Losses(packets) => up.punctual.lost(packets),
                UplinkEvent::Ping(pulse) => {
                    up.life.heard(now);
                    out.push(AgentEffect::Pong(Pulse { number: pulse.number, ..Pulse::default() }));
                }
                UplinkEvent::Ended(why) => return self.ended(now, &why, out),
                _ => {}
            },
            State::Up(up) if up.is_moving_by(dial) => return self.on_move(now, event, out),
            State::Up(up) if up.looking == Some(dial) => {
                if let UplinkEvent::Looked(found) = event {
                    up.looking = None;
                    self.looked(now, found);
                }
            }
            _ => {}
        }
        Change::Nothing
    }

    fn ended(&mut self, now: Moment, why: &Ended, out: &mut Vec<AgentEffect>) -> Change {
        self.revoked |= *why == Ended::Goodbye(Goodbye::Revoked);
        self.lose(now, why.to_string(), Goodbye::Shutdown, out)
    }

    pub(super) fn welcomed(&mut self, now: Moment, dial: u64, by: Option<Transport>, welcome: Box<Welcome>) -> Change {
        self.revoked = false;
        if let Some(by) = by {
            self.ways.carried(now, by);
        }
        self.state = State::Up(Box::new(Up {
            dial,
            session: Session { epoch: welcome.session, instance: self.instance },
            heartbeat: welcome.heartbeat,
            life: Liveness::new(now, None),
            by,
            punctual: Punctuality::default(),
            moving: None,
            looking: None,
        }));
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
                if let State::Up(up) = &mut self.state {
                    up.life.doubt(now);
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
            State::Up(up) => (now.since(up.life.since), true),
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
        if !matches!(self.state, State::Up(_)) {
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
        if matches!(self.state, State::Up(_)) {
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
            State::Up(up) => {
                earliest([Some(up.life.deadline()), up.moving.as_ref().map(|moving| moving.deadline), self.look_due()])
            }
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
            State::Up(up) => ("up", Some(now.since(up.life.since))),
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
            transport: self.path().and_then(|path| path.transport),
            avoids_quic: self.ways.avoided().map(str::to_owned),
            demotions: self.ways.demotions(),
            quarantined: Vec::new(),
            publications_held: 0,
        }
    }
}
