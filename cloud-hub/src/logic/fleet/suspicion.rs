//! When most of the fleet vanishes at once, it is likelier that the hub lost its link than that the fleet died. For a heartbeat
//! the slow layers then hold their plans, instead of moving everything away from nodes that are well.

use crate::logic::{HubEffect, Note};
use serde::{Deserialize, Serialize};
use shared::fleet::NodeState;
use shared::ids::NodeId;
use shared::units::{Micros, Moment};
use std::collections::BTreeMap;

/// In smaller fleets, half of the nodes may well vanish together for reasons of their own.
const FLEET_MIN: u32 = 4;

/// Who vanished lately, and until when the hub suspects itself.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Suspicion {
    vanished: BTreeMap<NodeId, Moment>,
    until: Option<Moment>,
}

impl Suspicion {
    /// Whether plans of the slow layers are held.
    pub(crate) fn holds(&self, now: Moment) -> bool {
        self.until.is_some_and(|until| now < until)
    }

    /// Whether anybody vanished lately.
    pub(super) fn is_worth_a_look(&self) -> bool {
        !self.vanished.is_empty()
    }

    /// A node's state changed.
    pub(super) fn changed(&mut self, now: Moment, node: &NodeId, from: NodeState, to: NodeState) {
        let working = |state| matches!(state, NodeState::Online | NodeState::Draining);
        if working(from) && matches!(to, NodeState::Suspect | NodeState::Offline | NodeState::Seen) {
            self.vanished.insert(node.clone(), now);
        } else if working(to) {
            self.vanished.remove(node);
        }
    }

    /// Looks whether more than half vanished within one heartbeat; `working` nodes are left.
    pub(super) fn watch(&mut self, now: Moment, heartbeat: Micros, working: u32, effects: &mut Vec<HubEffect>) {
        self.vanished.retain(|_, at| now.since(*at) < heartbeat);
        let vanished = u32::try_from(self.vanished.len()).unwrap_or(u32::MAX);
        let of = working.saturating_add(vanished);
        if of >= FLEET_MIN && vanished.saturating_mul(2) > of && !self.holds(now) {
            self.until = Some(now + heartbeat);
            effects.push(HubEffect::Note(Note::SelfSuspicion { vanished, of }));
        }
    }
}
