//! `equal`: a node's concurrency is divided equally among its replicas.
//!
//! Idea: without knowledge of demand, equal shares are the fairest guess. Wins with one replica, or several used alike. Loses
//! when one replica is busy and another idle: the idle one's share is not lent.

use super::{AllocationPolicy, Scene};
use crate::fleet::{ReplicaReport, ReplicaState};
use crate::plan::AllocationRow;
use crate::policy::{Budget, Parts};
use serde::{Deserialize, Serialize};

/// Requests that may run at once on a node whose cores are not known: one runs for certain, so one is what is allowed.
const CONCURRENCY_UNKNOWN: u32 = 1;

/// What may be tuned.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {
    /// Requests that may run at once on the whole node; absent means one for each core.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub concurrency: Option<u32>,
    /// Requests that may wait at one replica for each of its slots. Four: with requests alike, the last in the queue waits
    /// about four times what it takes itself, and beyond that another node or a refusal serves it better. More are refused `busy`.
    pub queue_per_slot: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self { concurrency: None, queue_per_slot: 4 }
    }
}

/// The policy.
#[derive(Debug)]
pub struct Equal;

impl Parts for Equal {
    type Config = Config;
    type State = ();
    const NAME: &'static str = "equal";
    const SUMMARY: &'static str = "a node's concurrency is divided equally among its replicas";
}

impl AllocationPolicy for Equal {
    fn round(config: &Config, (): &mut (), scene: &Scene<'_>, held: &[AllocationRow], budget: &mut Budget) -> Vec<AllocationRow> {
        let mut sharing: Vec<_> = scene.replicas.iter().filter(|replica| shares(replica)).collect();
        sharing.sort_by(|a, b| a.variant.cmp(&b.variant));
        sharing.dedup_by(|a, b| a.variant == b.variant);
        let concurrency = config.concurrency.or(scene.cores).unwrap_or(CONCURRENCY_UNKNOWN);
        let count = u32::try_from(sharing.len()).unwrap_or(u32::MAX).max(1);
        let (each, rest) = (concurrency / count, concurrency % count);
        let mut rows = Vec::with_capacity(sharing.len());
        for (place, replica) in (0..).zip(sharing) {
            if !budget.spend(1) {
                rows.extend(held.iter().find(|row| row.variant == replica.variant).cloned());
                continue;
            }
            // What cannot be divided evenly goes to the first in order of name, so that nothing is lost to rounding.
            let share = each + u32::from(place < rest);
            let slots = share.min(replica.load.slots).max(1);
            rows.push(AllocationRow {
                variant: replica.variant.clone(),
                slots,
                queue_max: slots.saturating_mul(config.queue_per_slot),
            });
        }
        rows
    }
}

/// Whether the replica serves or will: one that failed or drains gives its share to the others. So does one with no slots.
fn shares(replica: &ReplicaReport) -> bool {
    matches!(replica.state, ReplicaState::Ready | ReplicaState::Loading) && replica.load.slots > 0
}
