//! The hub's decisions, sans IO: who is in the fleet and in which state, which plans and views they get, which streams may be
//! relayed, what was done.
//!
//! [`Hub`] follows the core contract: events with `now` go in, effects come out, and [`Hub::next_deadline`] says when
//! [`HubEvent::Tick`] is wanted. There is no socket, clock, environment or task here, and there must never be: the live hub, the
//! simulator and a replay run exactly this code. A serialised [`Hub`] with the ordered `(now, event)` pairs after it is a
//! capture: replaying it gives equal effects.
#![deny(clippy::disallowed_methods, clippy::disallowed_types)]

mod config;
mod effect;
mod event;
mod rows;

pub use config::{HubConfig, Restored, RestoredNode};
pub use effect::{AdminReply, Change, HubEffect, Note};
pub use event::{AdminOperation, Connection, HubEvent, NodeMessage, ReplyToken, Stream};
pub use rows::{NodeRow, PlanRow, ReplicaRow, TotalRow, Totals};

use serde::{Deserialize, Serialize};
use shared::policy::BadPolicy;
use shared::units::Moment;

/// The hub's state.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Hub {
    config: HubConfig,
}

impl Hub {
    /// A hub at its start.
    ///
    /// # Errors
    /// [`BadPolicy`] when a configured policy cannot be had.
    pub fn new(config: HubConfig, restored: Restored) -> Result<Self, BadPolicy> {
        let _ = restored;
        Ok(Self { config })
    }

    /// Takes in one event and says what shall be done.
    pub fn handle(&mut self, now: Moment, event: HubEvent, effects: &mut Vec<HubEffect>) {
        let _ = (now, event, effects, &self.config);
    }

    /// When [`HubEvent::Tick`] is wanted next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        None
    }
}
