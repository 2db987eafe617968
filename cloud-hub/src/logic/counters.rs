//! How often what was done, refused and dropped: by name, for metrics and `Counters`. Counted from the effects, in one place, so
//! that no part can forget to.

use super::{HubEffect, Note};
use serde::{Deserialize, Serialize};
use shared::fleet::NodeState;
use std::collections::BTreeMap;

/// Counters by name. The names are the constants below, so the map is bounded.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct Counters(BTreeMap<String, u64>);

impl Counters {
    /// Counts these effects.
    pub(super) fn count(&mut self, effects: &[HubEffect]) {
        for name in effects.iter().filter_map(name_of) {
            match self.0.get_mut(name) {
                Some(count) => *count += 1,
                None => drop(self.0.insert(name.to_owned(), 1)),
            }
        }
    }

    /// All counters.
    pub(super) fn all(&self) -> BTreeMap<String, u64> {
        self.0.clone()
    }
}

const fn name_of(effect: &HubEffect) -> Option<&'static str> {
    Some(match effect {
        HubEffect::Welcome { .. } => "sessions",
        HubEffect::Challenge { .. } => "challenges",
        HubEffect::PublishPlan { .. } => "plans_published",
        HubEffect::PublishView { .. } => "views_published",
        HubEffect::RelayOpen { .. } => "relays_opened",
        HubEffect::RelayClose { .. } => "relays_cut",
        HubEffect::StoreRecord(_) => "records",
        HubEffect::Send { .. } => "attempts_sent",
        HubEffect::Note(note) => match note {
            Note::State { to: NodeState::Cloned, .. } => "identities_cloned",
            Note::State { .. } => "state_changes",
            Note::HelloRefused { .. } => "hellos_refused",
            Note::BadReport { .. } => "reports_dropped",
            Note::StaleMessage { .. } => "messages_stale",
            Note::FaultyPlan { .. } => "plans_faulty",
            Note::PlanRejected { .. } => "plans_rejected",
            Note::SelfSuspicion { .. } => "self_suspicions",
            Note::EpochJump { .. } => "epoch_jumps",
            Note::RelayRefused { .. } => "relays_refused",
        },
        _ => return None,
    })
}
