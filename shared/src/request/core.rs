//! The request core.

use super::{Effect, Event};
use crate::fleet::Tier;
use crate::ids::NodeId;
use crate::plan::DispatchSetting;
use crate::policy::BadPolicy;
use crate::policy::dispatch::Dispatcher;
use crate::units::{Micros, Moment};
use serde::{Deserialize, Serialize};

/// Who hosts the core, and its limits.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CoreConfig {
    /// The host.
    pub me: NodeId,
    /// Its level.
    pub tier: Tier,
    /// The hub through which relayed paths go; absent at the hub itself.
    pub hub: Option<NodeId>,
    /// Whether this host executes requests (agents do, the hub does not).
    pub executes: bool,
    /// First dispatch policy.
    pub dispatch: DispatchSetting,
    /// Seed for chance.
    pub seed: u64,
    /// Facts older than this are not acted upon: three heartbeats, so that one lost report changes nothing.
    pub stale_after: Micros,
}

/// Admission, queue, dispatch, execution slots, retry and cancel of all requests at one host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct RequestCore {
    config: CoreConfig,
    policy: Dispatcher,
}

impl RequestCore {
    /// A core that knows nothing yet.
    ///
    /// # Errors
    /// [`BadPolicy`] when the configured policy cannot be had.
    pub fn new(config: CoreConfig) -> Result<Self, BadPolicy> {
        let policy = Dispatcher::new(&config.dispatch)?;
        Ok(Self { config, policy })
    }

    /// Takes in one event and says what shall be done.
    pub fn handle(&mut self, _now: Moment, _event: Event, _effects: &mut Vec<Effect>) {}

    /// When [`Event::Tick`] is wanted next.
    #[must_use]
    pub fn next_deadline(&self) -> Option<Moment> {
        None
    }
}
