//! `all-with-replica`: an edge may use every node that can serve, up to the eight best.

use super::{OffloadPolicy, Scene};
use crate::fleet::{NodeState, ReplicaState};
use crate::plan::{OffloadRow, Target};
use crate::policy::{Budget, Parts};
use crate::units::Fraction;
use serde::{Deserialize, Serialize};

/// Nothing to configure.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Config {}

/// The policy.
#[derive(Debug)]
pub struct AllWithReplica;

impl Parts for AllWithReplica {
    type Config = Config;
    type State = ();
    const NAME: &'static str = "all-with-replica";
    const SUMMARY: &'static str = "an edge may use every node that can serve, up to the eight best";
}

impl OffloadPolicy for AllWithReplica {
    fn round(_: &Config, (): &mut (), scene: &Scene<'_>, _held: &[OffloadRow], budget: &mut Budget) -> Vec<OffloadRow> {
        let mut rows = Vec::new();
        for service in scene.catalogue.iter() {
            let mut targets = Vec::new();
            for variant in &service.variants {
                for node in scene.view.holders(&variant.id).filter(|node| *node != scene.edge) {
                    let Some(entry) = scene.view.node(node).filter(|entry| entry.state == NodeState::Online) else { continue };
                    let Some(replica) = entry.replicas.get(&variant.id) else { continue };
                    if replica.value.state == ReplicaState::Ready && replica.value.load.slots > 0 && budget.spend(1) {
                        targets.push(Target {
                            node: node.clone(),
                            variant: variant.id.clone(),
                            share: Fraction::default(),
                            open_max: replica.value.load.slots,
                        });
                    }
                }
            }
            targets.truncate(OffloadRow::TARGETS_MAX);
            if !targets.is_empty() {
                rows.push(OffloadRow { edge: scene.edge.clone(), service: service.id.clone(), targets });
            }
        }
        rows
    }
}
