//! Numbers that only rise: session epochs, and plan epochs of (incarnation, sequence).
//!
//! The store may be a copy of yesterday, so what nodes have seen counts as much as what is stored: whatever they say, the hub
//! goes on above it. Nothing is issued before the number that protects it is on its way to the store.

use super::{Change, HubEffect, Note};
use serde::{Deserialize, Serialize};
use shared::ids::{NodeId, PlanEpoch, SessionEpoch};
use shared::wire::frame::Hello;
use std::collections::BTreeMap;

/// A node that claims to have seen an epoch so far above ours is broken or lies: no fleet restarts its hub, or connects, so
/// often. Its claim is not followed, since following it would use up the numbers for everybody.
const LEAP_MAX: u64 = 1 << 40;

/// The epochs issued so far.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Epochs {
    incarnation: u64,
    sequence: u64,
    views: u64,
    session: u64,
    /// The newest plan epoch issued to each node in this incarnation.
    issued: BTreeMap<NodeId, PlanEpoch>,
    /// Whether the incarnation has been persisted.
    kept: bool,
}

impl Epochs {
    /// The epochs of a new life after one that reached these.
    pub(super) const fn new(incarnation: u64, session: u64) -> Self {
        Self { incarnation: incarnation.saturating_add(1), sequence: 0, views: 0, session, issued: BTreeMap::new(), kept: false }
    }

    /// Persists the incarnation if that was not done yet, and says whether it was so: true once, at the start of a life.
    pub(super) fn keep(&mut self, effects: &mut Vec<HubEffect>) -> bool {
        let first = !std::mem::replace(&mut self.kept, true);
        if first {
            effects.push(HubEffect::Persist(Change::Incarnation(self.incarnation)));
        }
        first
    }

    /// Which life of the hub this is. When it rises, every plan is to be issued again.
    pub(super) const fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// The epoch of a new plan for a node.
    pub(super) fn plan(&mut self, node: &NodeId) -> PlanEpoch {
        self.sequence += 1;
        let epoch = PlanEpoch { incarnation: self.incarnation, sequence: self.sequence };
        self.issued.insert(node.clone(), epoch);
        epoch
    }

    /// The epoch of a new view.
    pub(super) fn view(&mut self) -> PlanEpoch {
        self.views += 1;
        PlanEpoch { incarnation: self.incarnation, sequence: self.views }
    }

    /// Takes in the highest plan epoch that a node has seen: if this life did not issue it, goes on above it.
    ///
    /// # Errors
    /// The sentence to show when the claim is absurd; it is not followed.
    pub(super) fn seen(&mut self, hello: &Hello, effects: &mut Vec<HubEffect>) -> Result<(), String> {
        let seen = hello.plan_epoch_seen;
        let start = PlanEpoch { incarnation: self.incarnation, sequence: 0 };
        let issued = self.issued.get(&hello.node).copied().unwrap_or(start);
        if seen <= issued {
            return Ok(());
        }
        if seen.incarnation.saturating_sub(self.incarnation) > LEAP_MAX {
            return Err(format!("plan epoch {seen} was never issued: the hub is at {issued}"));
        }
        self.incarnation = seen.incarnation.saturating_add(1);
        self.sequence = 0;
        self.issued.clear();
        self.kept = false;
        self.keep(effects);
        effects.push(HubEffect::Note(Note::EpochJump { node: hello.node.clone(), incarnation: self.incarnation }));
        Ok(())
    }

    /// The epoch of a new session: above every one issued, and above what the node holds (if that is not absurd).
    pub(super) fn session(&mut self, hello: &Hello, effects: &mut Vec<HubEffect>) -> SessionEpoch {
        let seen = hello.session_epoch_seen.0;
        if seen.saturating_sub(self.session) <= LEAP_MAX {
            self.session = self.session.max(seen);
        }
        self.session = self.session.saturating_add(1);
        effects.push(HubEffect::Persist(Change::SessionEpoch(self.session)));
        SessionEpoch(self.session)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shared::ids::Instance;
    use shared::wire::{VERSION_MAX, VERSION_MIN};

    fn hello(plan: (u64, u64), session: u64) -> Hello {
        Hello {
            version_min: VERSION_MIN,
            version_max: VERSION_MAX,
            node: NodeId::new("site/node").expect("good"),
            instance: Instance(1),
            plan_epoch_seen: PlanEpoch { incarnation: plan.0, sequence: plan.1 },
            session_epoch_seen: SessionEpoch(session),
            replicas: Vec::new(),
        }
    }

    #[test]
    fn an_epoch_of_this_life_is_no_reason_to_jump() {
        let (mut epochs, mut effects) = (Epochs::new(4, 0), Vec::new());
        let node = NodeId::new("site/node").expect("good");
        let own = epochs.plan(&node);
        assert_eq!(epochs.seen(&hello((own.incarnation, own.sequence), 0), &mut effects), Ok(()));
        assert_eq!((epochs.incarnation(), effects.len()), (5, 0));
    }

    #[test]
    fn the_same_incarnation_of_a_lost_life_is_jumped_over() {
        // The store was restored to 4, so this life is 5; but there was a life 5 already, and it got further.
        let (mut epochs, mut effects) = (Epochs::new(4, 0), Vec::new());
        assert_eq!(epochs.seen(&hello((5, 17), 0), &mut effects), Ok(()));
        assert_eq!(epochs.incarnation(), 6);
        assert!(effects.contains(&HubEffect::Persist(Change::Incarnation(6))));
    }

    #[test]
    fn absurd_claims_use_no_numbers_up() {
        let (mut epochs, mut effects) = (Epochs::new(4, 7), Vec::new());
        assert!(epochs.seen(&hello((u64::MAX, 0), u64::MAX), &mut effects).is_err());
        assert_eq!(epochs.incarnation(), 5);
        assert_eq!(epochs.session(&hello((0, 0), u64::MAX), &mut effects), SessionEpoch(8));
        assert_eq!(epochs.session(&hello((0, 0), 50), &mut effects), SessionEpoch(51));
    }
}
