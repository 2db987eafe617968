//! What this node tells its hub of itself, and when: what it is when that changes, how it is each heartbeat and when it matters.

use super::quarantine::{Kind, Quarantine, Verdict};
use super::spool::Spool;
use super::told::Told;
use super::{AgentEffect, Gauges, Publication, SpoolChange, SpoolStatus};
use serde::{Deserialize, Serialize};
use shared::backoff::earliest;
use shared::fleet::{Inventory, Load, Machine, PathReport, ReplicaReport, ReplicaState, Survey, Telemetry};
use shared::ids::{NodeId, VariantId};
use shared::plan::Record;
use shared::units::{Micros, Moment};
use shared::wire::mqtt::{PlanAck, Session, Status};
use std::collections::{BTreeMap, VecDeque};

/// How often a report is due where the hub does not say.
pub(super) const HEARTBEAT: Micros = Micros::from_secs(5);
/// Reports on change come at most this often: twice a second is faster than any round that reads them.
const CHANGE_EVERY: Micros = Micros::from_millis(500);
/// Records wait this long for company in one message.
const RECORDS_EVERY: Micros = Micros::from_secs(1);
/// Answers to plans that wait for the broker. One a layer and some for refusals; an older answer is worth nothing.
const ACKS_MAX: usize = 16;

/// What others decide upon: whether a replica serves, has a free slot, and lets requests wait.
type Gist = BTreeMap<VariantId, (ReplicaState, bool, bool)>;

/// Reports to the hub.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reports {
    inventory: Inventory,
    /// When its survey came.
    #[serde(default)]
    surveyed_at: Moment,
    /// The birth message of this connection to the broker is still to be said.
    greeting_due: bool,
    inventory_due: bool,
    gauges: Gauges,
    gist: Gist,
    changed: bool,
    last: Option<Moment>,
    told: Told,
    acks: VecDeque<PlanAck>,
    spool: Spool,
    records_at: Option<Moment>,
    quarantine: Quarantine,
    /// Something may not be published before.
    wait: Option<Moment>,
}

impl Reports {
    pub(super) fn new(inventory: Inventory) -> Self {
        Self {
            inventory,
            surveyed_at: Moment::default(),
            greeting_due: false,
            inventory_due: true,
            gauges: Gauges::default(),
            gist: Gist::new(),
            changed: false,
            last: None,
            told: Told::default(),
            acks: VecDeque::new(),
            spool: Spool::default(),
            records_at: None,
            quarantine: Quarantine::default(),
            wait: None,
        }
    }

    pub(super) fn machine(&mut self, machine: Machine) {
        self.inventory_due |= self.inventory.machine != machine;
        self.inventory.machine = machine;
    }

    pub(super) fn survey(&mut self, now: Moment, survey: Survey) {
        self.inventory_due |= self.inventory.survey != survey;
        (self.inventory.survey, self.surveyed_at) = (survey, now);
    }

    /// The survey with its age now.
    pub(super) fn surveyed(&self, now: Moment) -> Survey {
        self.inventory.survey.clone().aged(now.since(self.surveyed_at))
    }

    pub(super) fn binary(&mut self, sha256: String) {
        self.inventory_due |= self.inventory.binary_sha256 != sha256;
        self.inventory.binary_sha256 = sha256;
    }

    /// Cores that the agent may use, as far as is known.
    pub(super) const fn cores(&self) -> Option<u32> {
        self.inventory.machine.cores
    }

    pub(super) fn gauges(&mut self, gauges: Gauges) {
        // What the wire would refuse is not known.
        let load_1m = gauges.load_1m.filter(|load| load.is_finite() && (0.0..1e6).contains(load));
        self.gauges = Gauges { load_1m, ..gauges };
    }

    pub(super) fn record(&mut self, now: Moment, record: Record) {
        self.spool.push(now, record);
        self.records_at.get_or_insert(now + RECORDS_EVERY);
    }

    pub(super) fn acks(&mut self, acks: impl IntoIterator<Item = PlanAck>) {
        for ack in acks {
            self.acks.retain(|waiting| waiting.layer != ack.layer || waiting.epoch != ack.epoch);
            self.acks.push_back(ack);
            if self.acks.len() > ACKS_MAX {
                self.acks.pop_front();
            }
        }
    }

    /// A connection to the broker begins: it knows nothing of us.
    pub(super) fn greet(&mut self, now: Moment) {
        self.quarantine.begin(now);
        self.greeting_due = true;
        self.inventory_due = true;
        self.last = None;
        self.told.forget();
    }

    /// The broker closed the connection: perhaps for what was just published. Says what is left out from now on.
    pub(super) fn thrown_out(&mut self, now: Moment) -> Option<Kind> {
        self.quarantine.lost(now)
    }

    /// The process ends.
    pub(super) fn stop(&mut self, now: Moment, session: Option<Session>, out: &mut Vec<AgentEffect>) {
        if let Some(session) = session {
            self.flush_records(now, session, out);
            out.push(publish(session, Publication::Status(Status { online: false })));
        }
    }

    /// Whether a replica's load is news to others. Most loads are not: thousands a second may change on a busy node.
    pub(super) fn stirred_by(&self, variant: &VariantId, load: &Load) -> bool {
        self.gist.get(variant).is_none_or(|(_, free, waits)| (*free, *waits) != free_and_waiting(load))
    }

    /// Publishes what is due.
    pub(super) fn tick(
        &mut self,
        now: Moment,
        session: Option<Session>,
        heartbeat: Micros,
        own: &Own<'_>,
        out: &mut Vec<AgentEffect>,
    ) {
        let gist: Gist = own.replicas.iter().map(gist).collect();
        self.changed |= gist != self.gist;
        self.gist = gist;
        self.spool.age(now);
        let Some(session) = session else { return };
        self.wait = None;
        if self.greeting_due && self.may(now, Kind::Status, |reports| reports.greeting_due = false) {
            out.push(publish(session, Publication::Status(Status { online: true })));
        }
        if self.inventory_due && self.may(now, Kind::Inventory, |reports| reports.inventory_due = false) {
            out.push(publish(
                session,
                Publication::Inventory(Inventory { survey: self.surveyed(now), ..self.inventory.clone() }),
            ));
        }
        if !self.acks.is_empty() {
            let mut acks = VecDeque::new();
            if self.may(now, Kind::PlanAck, |reports| acks = std::mem::take(&mut reports.acks)) {
                out.extend(acks.into_iter().map(|ack| publish(session, Publication::PlanAck(ack))));
            }
        }
        self.tick_telemetry(now, session, heartbeat, own, out);
        if self.records_at.is_some_and(|at| at <= now) && self.may(now, Kind::Records, |reports| reports.records_at = None) {
            self.flush_records(now, session, out);
        }
        self.quarantine.settle(now);
        self.spool.alive(now);
    }

    fn tick_telemetry(&mut self, now: Moment, session: Session, heartbeat: Micros, own: &Own<'_>, out: &mut Vec<AgentEffect>) {
        let due = self.last.is_none_or(|last| now >= last + self.pause(last, heartbeat));
        let said = |reports: &mut Self| {
            reports.last = Some(now);
            // Without room only a sign of life is sent, and the news wait.
            reports.changed &= !reports.told.has_room(now);
        };
        if due && self.may(now, Kind::Telemetry, said) {
            let report = self.told.next(now, session, self.telemetry(own));
            out.push(publish(session, Publication::Telemetry(report)));
        }
    }

    /// How long after the last report the next one is due: at the heartbeat, and earlier if there is news and room for it.
    fn pause(&self, last: Moment, heartbeat: Micros) -> Micros {
        if !self.changed {
            return heartbeat;
        }
        self.told.room_at().since(last).max(CHANGE_EVERY).min(heartbeat)
    }

    /// Whether this kind may be published now. What is left out counts as said, but for records, which wait for better days.
    fn may(&mut self, now: Moment, kind: Kind, said: impl FnOnce(&mut Self)) -> bool {
        match self.quarantine.ask(now, kind) {
            Verdict::Go => {
                said(self);
                true
            }
            Verdict::Wait(until) => {
                self.wait = Some(self.wait.map_or(until, |wait| wait.min(until)));
                false
            }
            Verdict::Held(until) => {
                said(self);
                if kind == Kind::Records {
                    self.records_at = Some(until);
                }
                false
            }
        }
    }

    /// The connection to the broker is lost.
    pub(super) fn lost(&mut self, now: Moment) {
        self.spool.lost();
        if !self.spool.is_empty() {
            self.records_at.get_or_insert(now + RECORDS_EVERY);
        }
    }

    fn flush_records(&mut self, now: Moment, session: Session, out: &mut Vec<AgentEffect>) {
        self.records_at = None;
        while !self.spool.is_empty() {
            out.push(publish(session, Publication::Records(self.spool.batch(now))));
        }
    }

    fn telemetry(&self, own: &Own<'_>) -> Telemetry {
        Telemetry {
            cpu: self.gauges.cpu,
            memory_available: self.gauges.memory_available,
            load_1m: self.gauges.load_1m,
            received: self.gauges.received,
            sent: self.gauges.sent,
            temperature: self.gauges.temperature,
            throttled: self.gauges.throttled,
            power: self.gauges.power.clone(),
            replicas: own.replicas.iter().take(Telemetry::REPLICAS_MAX).cloned().collect(),
            uplink: own.uplink.clone(),
            peers: (own.peers)().into_iter().take(Telemetry::PEERS_MAX).collect(),
            ..Telemetry::of(self.inventory.node.clone())
        }
    }

    /// When [`Self::tick`] has something to publish, given that the broker is there.
    pub(super) fn deadline(&self, heartbeat: Micros) -> Option<Moment> {
        // What waits for its turn is due then, and nothing else counts while something waits.
        let report = self.last.map(|last| last + self.pause(last, heartbeat)).unwrap_or_default();
        self.wait.or_else(|| earliest([Some(report), self.records_at]))
    }

    /// What is left out because the broker throws us out for it, and how many publications that were.
    pub(super) fn quarantined(&self, now: Moment) -> (Vec<Kind>, u64) {
        (self.quarantine.held(now), self.quarantine.dropped())
    }

    pub(super) fn spool(&self, now: Moment) -> SpoolStatus {
        self.spool.status(now)
    }

    /// What the disk has to do to hold the same records.
    pub(super) fn spool_changes(&mut self) -> Vec<SpoolChange> {
        self.spool.changes()
    }

    /// What an earlier life could not send.
    pub(super) fn restore(&mut self, now: Moment, records: Vec<(u64, Record)>) {
        self.spool.restore(now, records);
        if !self.spool.is_empty() {
            self.records_at.get_or_insert(now + RECORDS_EVERY);
        }
    }
}

/// What else a report says of this node.
pub(super) struct Own<'a> {
    pub(super) replicas: &'a [ReplicaReport],
    pub(super) uplink: Option<PathReport>,
    pub(super) peers: &'a dyn Fn() -> BTreeMap<NodeId, PathReport>,
}

fn gist(replica: &ReplicaReport) -> (VariantId, (ReplicaState, bool, bool)) {
    let (free, waits) = free_and_waiting(&replica.load);
    (replica.variant.clone(), (replica.state.clone(), free, waits))
}

const fn free_and_waiting(load: &Load) -> (bool, bool) {
    (load.active < load.slots, load.queued > 0)
}

fn publish(session: Session, publication: Publication) -> AgentEffect {
    AgentEffect::Publish(session, Box::new(publication))
}
