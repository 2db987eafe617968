//! How this node divides itself among its replicas: one round a second, by the allocation policy, within the hub's bound.

use serde::{Deserialize, Serialize};
use shared::fleet::ReplicaReport;
use shared::ids::NodeId;
use shared::plan::{AllocationRow, DispatchSetting};
use shared::policy::allocation::{Allocator, Scene};
use shared::policy::{BadPolicy, Budget};
use shared::units::{Micros, Moment};
use shared::work::EngineKind;

/// Period of the rounds.
const EVERY: Micros = Micros::from_secs(1);
/// Requests that may wait for each slot of an engine that computes elsewhere; see [`elsewhere`].
const QUEUE_PER_SLOT: u32 = 4;

/// The division of the node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Shares {
    me: NodeId,
    seed: u64,
    policy: Allocator,
    /// As their engines report them.
    engines: Vec<ReplicaReport>,
    /// What the last round said.
    held: Vec<AllocationRow>,
    /// What is in force, after the bound.
    in_force: Vec<AllocationRow>,
    next: Moment,
}

impl Shares {
    /// A node without replicas, divided by the policy of `setting`.
    pub(super) fn new(me: NodeId, seed: u64, setting: &DispatchSetting) -> Result<Self, BadPolicy> {
        let policy = Allocator::named(&setting.policy, setting.config.clone())?;
        Ok(Self { me, seed, policy, engines: Vec::new(), held: Vec::new(), in_force: Vec::new(), next: Moment::default() })
    }

    /// The engines of this node are now so: a round is due at once. Says whether that is news.
    pub(super) fn engines(&mut self, engines: &[ReplicaReport]) -> bool {
        let news = self.engines != engines;
        self.engines = engines.to_vec();
        self.in_force.clear();
        self.hurry();
        news
    }

    /// The slower layer's bound changed: a round is due at once.
    pub(super) const fn hurry(&mut self) {
        self.next = Moment(0);
    }

    /// A round, if one is due. Says how the node divides itself when that changed.
    pub(super) fn tick(
        &mut self,
        now: Moment,
        cores: Option<u32>,
        bounds: Option<&[AllocationRow]>,
    ) -> Option<Vec<AllocationRow>> {
        if now < self.next {
            return None;
        }
        self.next = now + EVERY;
        let (remote, local): (Vec<_>, Vec<_>) = self.engines.iter().cloned().partition(|replica| elsewhere(replica.engine));
        let scene = Scene { now, node: &self.me, cores, replicas: &local, seed: self.seed };
        self.held = self.policy.round(&scene, &self.held, &mut Budget::default());
        let rows = self.held.iter().cloned().chain(remote.iter().map(own_slots));
        let rows: Vec<_> = rows.map(|row| within(row, bounds)).collect();
        (rows != self.in_force).then(|| {
            self.in_force.clone_from(&rows);
            rows
        })
    }

    pub(super) const fn deadline(&self) -> Moment {
        self.next
    }
}

/// Whether an engine computes on something else than this machine's cores, so that dividing those means nothing to it.
const fn elsewhere(engine: EngineKind) -> bool {
    matches!(engine, EngineKind::Upstream | EngineKind::Profiled)
}

fn own_slots(replica: &ReplicaReport) -> AllocationRow {
    let slots = replica.load.slots.max(1);
    AllocationRow { variant: replica.variant.clone(), slots, queue_max: slots.saturating_mul(QUEUE_PER_SLOT) }
}

fn within(row: AllocationRow, bounds: Option<&[AllocationRow]>) -> AllocationRow {
    match bounds.into_iter().flatten().find(|bound| bound.variant == row.variant) {
        Some(bound) => AllocationRow { slots: row.slots.min(bound.slots), queue_max: row.queue_max.min(bound.queue_max), ..row },
        None => row,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::fleet::{Load, ReplicaState};
    use shared::ids::VariantId;
    use shared::units::{Bytes, Tokens};

    fn replica(variant: &str, engine: EngineKind, slots: u32) -> ReplicaReport {
        ReplicaReport {
            variant: VariantId::new(variant).expect("good"),
            engine,
            device: String::new(),
            state: ReplicaState::Ready,
            load: Load { slots, ..Load::default() },
            memory: Bytes(0),
            context: Tokens(2_048),
            weights_sha256: None,
            layers: None,
            capabilities: Vec::new(),
            profile: None,
        }
    }

    #[test]
    fn the_round_keeps_within_the_hubs_bound_and_speaks_only_of_changes() {
        let setting = DispatchSetting { policy: "equal".to_owned(), config: serde_json::Value::Null };
        let mut shares = Shares::new(NodeId::new("lab/a").expect("good"), 1, &setting).expect("known");
        shares.engines(&[replica("own", EngineKind::Llm, 8), replica("far", EngineKind::Upstream, 16)]);
        let slots = |rows: &[AllocationRow]| rows.iter().map(|row| (row.variant.to_string(), row.slots)).collect::<Vec<_>>();
        let rows = shares.tick(Moment(0), Some(4), None).expect("news");
        assert_eq!(slots(&rows), [("own".to_owned(), 4), ("far".to_owned(), 16)], "only what computes here shares the cores");
        assert_eq!(shares.tick(Moment(1), Some(4), None), None, "not due");
        assert_eq!(shares.tick(Moment(1_000_000), Some(4), None), None, "nothing new");
        let bound = AllocationRow { variant: VariantId::new("own").expect("good"), slots: 2, queue_max: 1 };
        shares.hurry();
        let rows = shares.tick(Moment(1_000_001), Some(4), Some(&[bound])).expect("news");
        assert_eq!((rows[0].slots, rows[0].queue_max), (2, 1));
    }
}
