//! The plans that this node holds: one a layer, fenced by epoch, applied in the order of the layers, answered each.

use super::{Persisted, PlanStatus};
use serde::{Deserialize, Serialize};
use shared::backoff::earliest;
use shared::ids::{NodeId, PlanEpoch};
use shared::plan::{AllocationRow, DispatchSetting, Grant, Layer, OffloadRow, PlacementRow, Plan, PlanRows, Target};
use shared::policy::BadPolicy;
use shared::policy::dispatch::Dispatcher;
use shared::units::Moment;
use shared::wire::mqtt::{AckState, PlanAck};
use std::collections::BTreeMap;

/// Most rows of a plan. One row each for a site's nodes times their variants; a larger plan is a fault of its maker.
const ROWS_MAX: usize = 10_000;
/// Shares are fractions that were divided and rounded: their sum may exceed 1 by this.
const SHARE_SLACK: f64 = 1e-6;

/// A plan and when it came.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Held {
    plan: Plan,
    at: Moment,
}

impl Held {
    fn expires(&self) -> Moment {
        self.at + self.plan.valid_for
    }
}

/// What came into force.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum InForce {
    /// Where requests may go.
    Grant(Grant),
    /// Which policy dispatches.
    Dispatch(DispatchSetting),
    /// The bound of the local division changed.
    Bounds,
    /// Which replicas shall be where; only reports are truth, so nothing follows from it here.
    Placement,
}

/// The plans held.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Plans {
    me: NodeId,
    /// Whose plans count.
    owner: Option<NodeId>,
    held: BTreeMap<Layer, Held>,
    /// Plans that wait for the slower layer's plan they are based on: one a layer, the newest.
    pending: BTreeMap<Layer, Held>,
    seen: PlanEpoch,
    /// Changed since it was last written down.
    dirty: bool,
}

impl Plans {
    pub(super) fn new(me: NodeId, owner: Option<NodeId>) -> Self {
        Self { me, owner, held: BTreeMap::new(), pending: BTreeMap::new(), seen: PlanEpoch::default(), dirty: false }
    }

    /// Takes back what an earlier life held. Says what is in force again.
    pub(super) fn restore(&mut self, now: Moment, persisted: &Persisted) -> Vec<InForce> {
        self.seen = persisted.plan_epoch_seen;
        let mut in_force = Vec::new();
        for plan in persisted.plans.values() {
            self.seen = self.seen.max(plan.epoch);
            if self.fault(plan).is_none() {
                in_force.push(self.apply(now, plan.clone()));
            }
        }
        self.dirty = false;
        in_force
    }

    /// Highest epoch seen in any layer, whether the plan could be applied or not.
    pub(super) const fn seen(&self) -> PlanEpoch {
        self.seen
    }

    /// Notes an epoch of the hub that came with something else than a plan.
    pub(super) fn note(&mut self, epoch: PlanEpoch) {
        if epoch > self.seen {
            self.seen = epoch;
            self.dirty = true;
        }
    }

    /// Takes in a plan. Says what to answer, if anything, and what came into force.
    pub(super) fn take(&mut self, now: Moment, plan: Plan) -> (Vec<PlanAck>, Vec<InForce>) {
        let layer = plan.rows.layer();
        if self.owner.as_ref() == Some(&plan.owner) {
            self.note(plan.epoch);
        }
        let newest = [self.held.get(&layer), self.pending.get(&layer)].into_iter().flatten().map(|held| held.plan.epoch).max();
        if newest.is_some_and(|newest| plan.epoch < newest) {
            return (Vec::new(), Vec::new());
        }
        if let Some(state) = self.fault(&plan) {
            return (vec![ack(&plan, state)], Vec::new());
        }
        if self.waits(&plan) {
            let answer = ack(&plan, AckState::Received);
            self.pending.insert(layer, Held { plan, at: now });
            return (vec![answer], Vec::new());
        }
        let mut acks = vec![ack(&plan, AckState::Applied)];
        let mut in_force = vec![self.apply(now, plan)];
        self.apply_pending(now, &mut acks, &mut in_force);
        (acks, in_force)
    }

    /// What cannot be accepted about a plan, whatever else is held.
    fn fault(&self, plan: &Plan) -> Option<AckState> {
        let failed = |why: String| Some(AckState::Failed(why));
        if self.owner.as_ref() != Some(&plan.owner) {
            return failed(format!(
                "owner {}: this node obeys {}",
                plan.owner,
                self.owner.as_ref().map_or("nobody", NodeId::as_str)
            ));
        }
        if !plan.scope.contains(&self.me) {
            return failed(format!("scope {} does not contain {}", plan.scope, self.me));
        }
        if plan.valid_for.0 == 0 {
            return failed("expired when it was sent".to_owned());
        }
        match &plan.rows {
            PlanRows::Placement(rows) => rows_fault(rows, |row: &PlacementRow| {
                (!plan.scope.contains(&row.node)).then(|| format!("row for {}, outside the scope {}", row.node, plan.scope))
            }),
            PlanRows::Offload(rows) => rows_fault(rows, |row: &OffloadRow| offload_fault(plan, row)),
            PlanRows::Allocation(rows) => {
                rows_fault(rows, |row: &AllocationRow| (row.slots == 0).then(|| format!("{}: no slot", row.variant)))
            }
            PlanRows::Dispatch(setting) => match Dispatcher::new(setting) {
                Ok(_) => None,
                Err(unknown @ BadPolicy::Unknown { .. }) => Some(AckState::Unsupported(unknown.to_string())),
                Err(unreadable) => failed(unreadable.to_string()),
            },
        }
    }

    /// Whether the slower layer's plan that this one keeps within is not here yet.
    fn waits(&self, plan: &Plan) -> bool {
        let slower = match plan.rows.layer() {
            Layer::Offload | Layer::Allocation => Layer::Placement,
            Layer::Placement | Layer::Dispatch => return false,
        };
        plan.based_on.is_some_and(|based_on| self.held.get(&slower).is_none_or(|held| held.plan.epoch < based_on))
    }

    fn apply(&mut self, now: Moment, plan: Plan) -> InForce {
        let layer = plan.rows.layer();
        let in_force = match &plan.rows {
            PlanRows::Placement(_) => InForce::Placement,
            PlanRows::Offload(rows) => InForce::Grant(self.grant(now, &plan, rows)),
            PlanRows::Allocation(_) => InForce::Bounds,
            PlanRows::Dispatch(setting) => InForce::Dispatch(setting.clone()),
        };
        self.pending.remove(&layer);
        self.dirty |= self.held.get(&layer).is_none_or(|held| held.plan != plan);
        self.held.insert(layer, Held { plan, at: now });
        in_force
    }

    fn apply_pending(&mut self, now: Moment, acks: &mut Vec<PlanAck>, in_force: &mut Vec<InForce>) {
        for layer in Layer::ALL {
            let ready = self.pending.get(&layer).is_some_and(|held| !self.waits(&held.plan) && held.expires() > now);
            if ready && let Some(held) = self.pending.remove(&layer) {
                acks.push(ack(&held.plan, AckState::Applied));
                in_force.push(self.apply(held.at, held.plan));
            }
        }
    }

    fn grant(&self, at: Moment, plan: &Plan, rows: &[OffloadRow]) -> Grant {
        let own = rows.iter().filter(|row| row.edge == self.me);
        let targets = own.map(|row| (row.service.clone(), row.targets.clone())).collect();
        Grant { epoch: plan.epoch, targets, expires: Some(at + plan.valid_for) }
    }

    /// Gives up pending plans whose time has passed.
    pub(super) fn tick(&mut self, now: Moment) -> Vec<PlanAck> {
        let late: Vec<_> = self.pending.iter().filter(|(_, held)| held.expires() <= now).map(|(layer, _)| *layer).collect();
        let gone = late.into_iter().filter_map(|layer| self.pending.remove(&layer));
        gone.map(|held| {
            let based_on = held.plan.based_on.unwrap_or_default();
            ack(&held.plan, AckState::Failed(format!("expired while it waited for the placement plan {based_on}")))
        })
        .collect()
    }

    /// Bounds of the local division by the slower layers.
    pub(super) fn bounds(&self) -> Option<&[AllocationRow]> {
        match &self.held.get(&Layer::Allocation)?.plan.rows {
            PlanRows::Allocation(rows) => Some(rows),
            _ => None,
        }
    }

    /// All targets that this node may send to.
    pub(super) fn targets(&self) -> impl Iterator<Item = &Target> {
        let rows = match self.held.get(&Layer::Offload).map(|held| &held.plan.rows) {
            Some(PlanRows::Offload(rows)) => rows.as_slice(),
            _ => &[],
        };
        rows.iter().filter(|row| row.edge == self.me).flat_map(|row| &row.targets)
    }

    /// Whether something worth writing down changed since the last call.
    pub(super) fn take_dirty(&mut self) -> bool {
        std::mem::take(&mut self.dirty)
    }

    pub(super) fn persist(&self, into: &mut Persisted) {
        into.plans = self.held.iter().map(|(layer, held)| (*layer, held.plan.clone())).collect();
        into.plan_epoch_seen = self.seen;
    }

    pub(super) fn deadline(&self) -> Option<Moment> {
        earliest(self.pending.values().map(|held| Some(held.expires())))
    }

    pub(super) fn status(&self, now: Moment) -> Vec<PlanStatus> {
        let line = |held: &Held, pending| PlanStatus {
            layer: held.plan.rows.layer(),
            epoch: held.plan.epoch,
            owner: held.plan.owner.clone(),
            age: now.since(held.at),
            expired: held.expires() <= now,
            pending,
        };
        self.held.values().map(|held| line(held, false)).chain(self.pending.values().map(|held| line(held, true))).collect()
    }
}

fn ack(plan: &Plan, state: AckState) -> PlanAck {
    PlanAck { layer: plan.rows.layer(), epoch: plan.epoch, state }
}

fn rows_fault<R>(rows: &[R], fault: impl Fn(&R) -> Option<String>) -> Option<AckState> {
    if rows.len() > ROWS_MAX {
        return Some(AckState::Failed(format!("{} rows, at most {ROWS_MAX}", rows.len())));
    }
    rows.iter().find_map(fault).map(AckState::Failed)
}

fn offload_fault(plan: &Plan, row: &OffloadRow) -> Option<String> {
    if !plan.scope.contains(&row.edge) {
        return Some(format!("row for {}, outside the scope {}", row.edge, plan.scope));
    }
    if row.targets.len() > OffloadRow::TARGETS_MAX {
        return Some(format!("{} targets for {}, at most {}", row.targets.len(), row.service, OffloadRow::TARGETS_MAX));
    }
    if let Some((target, why)) = row.targets.iter().find_map(|target| Some((target, target.check_stages().err()?))) {
        return Some(format!("{} split from {} on: {why}", target.variant, target.node));
    }
    let shares: f64 = row.targets.iter().map(|target| target.share.get()).sum();
    (shares > 1.0 + SHARE_SLACK).then(|| format!("shares for {} sum to {shares}", row.service))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::fleet::{Hop, PathReport};
    use shared::ids::{ScopeId, ServiceId, VariantId};
    use shared::plan::StageGrant;
    use shared::units::{Fraction, Micros};
    use shared::work::LayerRange;

    fn node(name: &str) -> NodeId {
        NodeId::new(name).expect("good")
    }

    fn plans() -> Plans {
        Plans::new(node("lab/a"), Some(node("cloud/hub")))
    }

    fn plan(sequence: u64, rows: PlanRows) -> Plan {
        Plan {
            scope: ScopeId::new("lab").expect("good"),
            owner: node("cloud/hub"),
            epoch: PlanEpoch { incarnation: 1, sequence },
            based_on: None,
            valid_for: Micros::from_secs(60),
            rows,
        }
    }

    fn offload(sequence: u64, based_on: Option<u64>) -> Plan {
        let target = Target {
            node: node("cloud/big"),
            variant: VariantId::new("v").expect("good"),
            share: Fraction::new(0.5).expect("good"),
            open_max: 4,
            stages: Vec::new(),
        };
        let service = ServiceId::new("assistant").expect("good");
        let row = OffloadRow { edge: node("lab/a"), service, targets: vec![target] };
        let based_on = based_on.map(|sequence| PlanEpoch { incarnation: 1, sequence });
        Plan { based_on, ..plan(sequence, PlanRows::Offload(vec![row])) }
    }

    fn states(acks: &[PlanAck]) -> Vec<(Layer, AckState)> {
        acks.iter().map(|ack| (ack.layer, ack.state.clone())).collect()
    }

    #[test]
    fn older_plans_are_ignored_and_equal_ones_answered_again() {
        let mut plans = plans();
        let (acks, in_force) = plans.take(Moment(0), offload(5, None));
        assert_eq!(states(&acks), [(Layer::Offload, AckState::Applied)]);
        assert!(matches!(&in_force[..], [InForce::Grant(grant)] if grant.targets.len() == 1 && grant.epoch.sequence == 5));
        assert_eq!(plans.take(Moment(1), offload(4, None)), (Vec::new(), Vec::new()));
        assert_eq!(states(&plans.take(Moment(2), offload(5, None)).0), [(Layer::Offload, AckState::Applied)]);
        assert_eq!(plans.seen().sequence, 5);
    }

    #[test]
    fn a_plan_waits_for_the_one_it_is_based_on() {
        let mut plans = plans();
        let (acks, in_force) = plans.take(Moment(0), offload(7, Some(3)));
        assert_eq!((states(&acks), in_force), (vec![(Layer::Offload, AckState::Received)], Vec::new()));
        // A placement older than the wanted one does not release it.
        let (_, in_force) = plans.take(Moment(1), plan(2, PlanRows::Placement(Vec::new())));
        assert_eq!(in_force, [InForce::Placement]);
        let (acks, in_force) = plans.take(Moment(2), plan(3, PlanRows::Placement(Vec::new())));
        assert_eq!(states(&acks), [(Layer::Placement, AckState::Applied), (Layer::Offload, AckState::Applied)]);
        assert!(matches!(&in_force[..], [InForce::Placement, InForce::Grant(_)]));
        assert!(plans.deadline().is_none());
    }

    #[test]
    fn a_plan_that_waits_too_long_is_given_up_aloud() {
        let mut plans = plans();
        plans.take(Moment(0), offload(7, Some(3)));
        let end = plans.deadline().expect("bounded");
        assert!(plans.tick(end.before(Micros(1))).is_empty());
        assert!(matches!(&states(&plans.tick(end))[..], [(Layer::Offload, AckState::Failed(_))]));
        assert!(plans.deadline().is_none());
    }

    #[test]
    fn what_is_wrong_is_said_and_the_older_plan_stays() {
        let mut plans = plans();
        plans.take(Moment(0), offload(1, None));
        let foreign = Plan { owner: node("evil/hub"), ..offload(900, None) };
        let elsewhere = Plan { scope: ScopeId::new("other").expect("good"), ..offload(3, None) };
        let expired = Plan { valid_for: Micros::ZERO, ..offload(4, None) };
        let outside = plan(
            5,
            PlanRows::Offload(vec![OffloadRow {
                edge: node("other/x"),
                service: ServiceId::new("assistant").expect("good"),
                targets: Vec::new(),
            }]),
        );
        let mut gap = offload(6, None);
        if let PlanRows::Offload(rows) = &mut gap.rows {
            let stage = |name, from, to| StageGrant {
                node: node(name),
                layers: LayerRange { from, to, of: 30 },
                path: PathReport::with_rtt(Hop::Relay, Micros(1)),
            };
            rows[0].targets[0].stages = vec![stage("cloud/big", 0, 10), stage("lab/b", 12, 30)];
        }
        for bad in [foreign, elsewhere, expired, outside, gap] {
            let (acks, in_force) = plans.take(Moment(1), bad);
            assert!(matches!(&states(&acks)[..], [(Layer::Offload, AckState::Failed(_))]), "{acks:?}");
            assert!(in_force.is_empty());
        }
        assert_eq!(plans.targets().count(), 1);
        assert_eq!(plans.seen().sequence, 6, "a stranger's epochs are not the hub's");
        let unknown = DispatchSetting { policy: "no-such".to_owned(), config: serde_json::Value::Null };
        let (acks, _) = plans.take(Moment(2), plan(7, PlanRows::Dispatch(unknown)));
        assert!(matches!(&states(&acks)[..], [(Layer::Dispatch, AckState::Unsupported(_))]), "{acks:?}");
    }

    #[test]
    fn what_was_held_is_held_again_after_a_restart() {
        let mut plans = plans();
        plans.take(Moment(0), plan(3, PlanRows::Placement(Vec::new())));
        plans.take(Moment(0), offload(7, Some(3)));
        let mut persisted = Persisted::default();
        plans.persist(&mut persisted);
        let text = serde_json::to_string(&persisted).expect("written");
        let mut next = Plans::new(node("lab/a"), Some(node("cloud/hub")));
        let in_force = next.restore(Moment(0), &serde_json::from_str(&text).expect("read"));
        assert!(matches!(&in_force[..], [InForce::Placement, InForce::Grant(grant)] if grant.epoch.sequence == 7));
        assert_eq!(next.seen().sequence, 7);
        assert_eq!(next.take(Moment(1), offload(6, None)), (Vec::new(), Vec::new()));
    }
}
