//! One other agent: the connections with it, which of them is used, and when another one is worth trying.
//!
//! A connection over another transport or to another address is made beside the present one and measured. The better one stays, and
//! what runs on the other ends there.

use super::liveness::Liveness;
use super::ways::{Punctuality, Ways};
use super::{AgentEffect, LinkId};
use serde::{Deserialize, Serialize};
use shared::backoff::{Backoff, earliest, mix};
use shared::fleet::{Hop, PathReport, Transport, TransportOrder};
use shared::ids::NodeId;
use shared::units::{Micros, Moment};
use std::collections::BTreeMap;

/// First window between two tries.
const WINDOW_FIRST: Micros = Micros::from_millis(500);
/// Largest window between two tries: a board that is switched off for the night costs two handshakes a minute.
const WINDOW_MAX: Micros = Micros::from_secs(30);
/// Answers after which a connection has shown what it is worth.
const TRIAL_ANSWERS: u32 = 6;
/// Another address is tried this soon after the first one carried, and then this rarely: cables are plugged in by people.
const ADDRESS_AFTER: Micros = Micros::from_secs(10);
const ADDRESS_EVERY: Micros = Micros::from_secs(300);
/// Of two connections the nearer is used only if it is nearer by a quarter and by this: measurements sway.
const NEARER_BY: Micros = Micros(500);

/// One connection.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Line {
    pub(super) life: Liveness,
    pub(super) by: Option<Transport>,
    /// The advertised address that answered; absent for a caller.
    address: Option<String>,
    pub(super) punctual: Punctuality,
    answers: u32,
    /// Its streams run to their end; nothing new goes over it.
    pub(super) retired: bool,
}

impl Line {
    pub(super) fn new(now: Moment, rtt: Micros, by: Option<Transport>, address: Option<String>) -> Self {
        let (life, punctual) = (Liveness::new(now, Some(rtt)), Punctuality::default());
        Self { life, by, address, punctual, answers: 0, retired: false }
    }

    pub(super) fn answered(&mut self, now: Moment, number: u64) {
        if let Some(took) = self.life.answered(now, number) {
            self.answers = self.answers.saturating_add(1);
            if self.punctual.answered(took) {
                self.life.hurry(now);
            }
        }
    }

    pub(super) fn report(&self) -> PathReport {
        PathReport { transport: self.by, ..self.life.report(Hop::Direct) }
    }

    fn is_proven(&self) -> bool {
        self.answers >= TRIAL_ANSWERS
    }

    fn rtt(&self) -> Micros {
        self.life.rtt().unwrap_or(Micros::MAX)
    }
}

/// One other agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Peer {
    pub(super) links: BTreeMap<LinkId, Line>,
    /// The connection that is used.
    used: Option<LinkId>,
    /// Which version of this node's replicas it was told.
    pub(super) told: u64,
    backoff: Backoff,
    pub(super) ways: Ways,
    /// When it may be dialled (again).
    dial_at: Moment,
    /// When a dial on its way is given up.
    pub(super) dialling: Option<Moment>,
    /// A connection that is wanted beside those there are.
    beside: Option<(Option<String>, Transport)>,
    /// When another address is tried; the number of the one that is next.
    address_at: Option<Moment>,
    address_next: usize,
    pub(super) last_loss: Option<String>,
}

impl Peer {
    pub(super) fn new(seed: u64, node: &NodeId, dial_at: Moment) -> Self {
        let stream = node.as_str().bytes().fold(0, |hash, byte| mix(hash, u64::from(byte) + 1));
        Self {
            links: BTreeMap::new(),
            used: None,
            told: 0,
            backoff: Backoff::new(mix(seed, stream), WINDOW_FIRST, WINDOW_MAX),
            ways: Ways::new(mix(seed, !stream)),
            dial_at,
            dialling: None,
            beside: None,
            address_at: None,
            address_next: 0,
            last_loss: None,
        }
    }

    pub(super) fn failed(&mut self, now: Moment, lasted: Micros, why: String) {
        self.dial_at = now + self.backoff.after_failure(lasted);
        self.last_loss = Some(why);
    }

    /// A dial came to nothing.
    pub(super) fn dial_failed(&mut self, now: Moment, why: String) {
        match self.beside.take() {
            Some((None, Transport::Quic)) => self.ways.still_bad(now, why),
            // What there is stays; another address or TCP is tried again when its time comes.
            Some(_) if !self.links.is_empty() => {}
            _ => self.failed(now, Micros::ZERO, why),
        }
    }

    /// The addresses and transports to dial now, if there is reason to.
    pub(super) fn must_dial(&mut self, now: Moment, advertised: &[String]) -> Option<(Vec<String>, TransportOrder)> {
        if self.dialling.is_some() {
            return None;
        }
        if self.links.is_empty() {
            self.beside = None;
            return (self.dial_at <= now).then(|| (advertised.to_vec(), self.ways.order(now)));
        }
        if self.beside.is_none() && self.address_at.is_some_and(|at| at <= now) {
            self.address_at = Some(now + ADDRESS_EVERY);
            let used = self.best().and_then(|line| Some((line.address.clone()?, line.by?)));
            let others: Vec<_> =
                advertised.iter().filter(|one| used.as_ref().is_some_and(|(address, _)| address != *one)).collect();
            if let (Some((_, by)), Some(next)) = (used, others.get(self.address_next % others.len().max(1))) {
                self.address_next += 1;
                self.beside = Some((Some((*next).clone()), by));
            }
        }
        let (address, by) = self.beside.clone()?;
        Some((address.map_or_else(|| advertised.to_vec(), |address| vec![address]), TransportOrder::only(by)))
    }

    pub(super) fn came_up(&mut self, now: Moment, link: LinkId, line: Line) {
        if self.links.is_empty()
            && let Some(by) = line.by
        {
            self.ways.carried(now, by);
        }
        // A caller has no address here, and is no answer to a dial.
        if line.address.is_some() {
            self.beside = None;
            self.address_at.get_or_insert(now + ADDRESS_AFTER);
        }
        self.links.insert(link, line);
    }

    /// Decides which connection is used, whether one is superfluous, and whether another is worth trying.
    pub(super) fn choose(&mut self, now: Moment, node: &NodeId, out: &mut Vec<AgentEffect>) {
        self.retire_worse(now, node, out);
        let best = self.best_id();
        if best != self.used {
            self.used = best;
            if let Some(link) = best {
                out.push(AgentEffect::UsePeer(node.clone(), link));
            }
        }
        let Some(line) = best.and_then(|best| self.links.get(&best)) else { return };
        if self.beside.is_some() || self.dialling.is_some() || self.live().count() > 1 {
            return;
        }
        match line.by {
            Some(Transport::Quic) if !self.ways.avoids_quic(now) => {
                if let Some(why) = line.punctual.complaint() {
                    self.ways.demote(now, now.since(line.life.since), why);
                    self.beside = Some((None, Transport::Tcp));
                }
            }
            Some(Transport::Tcp) if self.ways.look_at().is_some_and(|at| at <= now) => {
                self.ways.looking(now);
                self.beside = Some((None, Transport::Quic));
            }
            _ => {}
        }
    }

    /// Once two connections have shown what they are worth, one stays.
    fn retire_worse(&mut self, now: Moment, node: &NodeId, out: &mut Vec<AgentEffect>) {
        let bad: Vec<_> = self.live().filter(|(_, line)| line.punctual.complaint().is_some()).map(|(link, _)| link).collect();
        let good = self.live().any(|(link, _)| !bad.contains(&link));
        let mut superfluous = if good { bad } else { Vec::new() };
        if superfluous.is_empty() && self.live().count() > 1 && self.live().all(|(_, line)| line.is_proven()) {
            // Only among connections of its own: if each end gave up the one that the other prefers, none would be left.
            let mine = |line: &Line| line.address.is_some();
            let best = self.best_id().filter(|best| self.links.get(best).is_some_and(mine));
            let others = self.live().filter(|(link, line)| best.is_some_and(|best| best != *link) && mine(line));
            superfluous.extend(others.map(|(link, _)| link));
        }
        for link in superfluous {
            let Some(line) = self.links.get_mut(&link) else { continue };
            line.retired = true;
            if line.by == Some(Transport::Quic)
                && let Some(why) = line.punctual.complaint()
            {
                self.ways.still_bad(now, why);
            }
            out.push(AgentEffect::RetirePeer(node.clone(), link));
        }
        let carries = |line: &Line| line.by == Some(Transport::Quic) && line.is_proven() && line.punctual.complaint().is_none();
        if self.ways.avoided().is_some() && self.live().any(|(_, line)| carries(line)) {
            self.ways.carried(now, Transport::Quic);
        }
    }

    fn live(&self) -> impl Iterator<Item = (LinkId, &Line)> {
        self.links.iter().filter(|(_, line)| !line.retired).map(|(link, line)| (*link, line))
    }

    /// The nearest connection among those that carry; the present one unless another is clearly better.
    fn best_id(&self) -> Option<LinkId> {
        let rank = |line: &Line| (line.punctual.complaint().is_some(), line.rtt());
        let (nearest, found) = self.live().min_by_key(|(_, line)| rank(line))?;
        let Some(used) = self.used.and_then(|used| self.links.get(&used)).filter(|line| !line.retired) else {
            return Some(nearest);
        };
        let healthier = used.punctual.complaint().is_some() && found.punctual.complaint().is_none();
        let nearer = found.is_proven() && found.rtt() + NEARER_BY < used.rtt() && found.rtt() < used.rtt().scale(0.75);
        // QUIC that carries is preferred: a lost packet there holds up one stream, and not all.
        let freer = found.is_proven() && (found.by, used.by) == (Some(Transport::Quic), Some(Transport::Tcp));
        if healthier || nearer || freer { Some(nearest) } else { self.used }
    }

    /// The connection that is used.
    pub(super) fn best(&self) -> Option<&Line> {
        self.links.get(&self.best_id().or_else(|| self.links.keys().next().copied())?)
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        if self.links.is_empty() {
            return Some(self.dialling.unwrap_or(self.dial_at));
        }
        // Each question is an occasion to look at everything else.
        let lines = self.links.values().filter(|line| !line.retired).map(|line| Some(line.life.deadline()));
        earliest(lines.chain([self.dialling]))
    }
}
