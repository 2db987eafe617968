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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::policy::dispatch::story;
    use crate::units::Moment;

    fn replica(name: &str, slots: u32) -> ReplicaReport {
        let mut replica = story::replica(name, 10.0);
        replica.load.slots = slots;
        replica
    }

    fn slots(config: &Config, cores: Option<u32>, replicas: &[ReplicaReport]) -> Vec<(String, u32)> {
        let node = story::node("site/a");
        let scene = Scene { now: Moment(1), node: &node, cores, replicas, seed: 0 };
        let rows = Equal::round(config, &mut (), &scene, &[], &mut Budget::default());
        rows.into_iter().map(|row| (row.variant.to_string(), row.slots)).collect()
    }

    fn expect(rows: &[(&str, u32)]) -> Vec<(String, u32)> {
        rows.iter().map(|(name, slots)| ((*name).to_owned(), *slots)).collect()
    }

    #[test]
    fn cores_are_shared_out_to_the_last() {
        let replicas = [replica("c", 9), replica("a", 9), replica("b", 9)];
        assert_eq!(slots(&Config::default(), Some(8), &replicas), expect(&[("a", 3), ("b", 3), ("c", 2)]));
        assert_eq!(slots(&Config::default(), Some(2), &replicas), expect(&[("a", 1), ("b", 1), ("c", 1)]), "nobody starves");
    }

    #[test]
    fn no_replica_gets_more_than_its_engine_can() {
        assert_eq!(slots(&Config::default(), Some(8), &[replica("a", 2)]), expect(&[("a", 2)]));
    }

    #[test]
    fn configuration_outweighs_cores_and_the_unknown_is_one() {
        let config = Config { concurrency: Some(6), ..Config::default() };
        assert_eq!(slots(&config, Some(2), &[replica("a", 9)]), expect(&[("a", 6)]));
        assert_eq!(slots(&Config::default(), None, &[replica("a", 9)]), expect(&[("a", 1)]));
    }

    #[test]
    fn whoever_cannot_serve_leaves_its_share() {
        let mut failed = replica("b", 9);
        failed.state = ReplicaState::Failed("broke".to_owned());
        assert_eq!(slots(&Config::default(), Some(4), &[replica("a", 9), failed, replica("c", 0)]), expect(&[("a", 4)]));
    }

    #[test]
    fn the_queue_grows_with_the_slots() {
        let node = story::node("site/a");
        let replicas = [replica("a", 3)];
        let scene = Scene { now: Moment(1), node: &node, cores: Some(8), replicas: &replicas, seed: 0 };
        let rows = Equal::round(&Config::default(), &mut (), &scene, &[], &mut Budget::default());
        assert_eq!((rows[0].slots, rows[0].queue_max), (3, 12));
    }
}
