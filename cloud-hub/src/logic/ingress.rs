//! The hub as an ingress: it hosts the request core like an agent does, but executes nothing itself.
//!
//! The hub stands outside every site, so a request that must stay at a site or node is refused before anything else looks at it.

use super::fleet::Fleet;
use super::ledger::Ledger;
use super::{HubConfig, HubEffect};
use serde::{Deserialize, Serialize};
use shared::fleet::{Costs, Tier};
use shared::ids::NodeId;
use shared::plan::{Actual, Failure, Outcome, Reason, Record};
use shared::policy::BadPolicy;
use shared::request::{AttemptEvent, CoreConfig, Effect, Event, RequestCore};
use shared::units::{Micros, Moment};
use shared::work::{LlmRequest, Residency};

/// The hub's own request core.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Ingress {
    me: NodeId,
    core: RequestCore,
}

impl Ingress {
    /// A core that knows nothing yet.
    ///
    /// # Errors
    /// [`BadPolicy`] when the configured policy cannot be had.
    pub(super) fn new(config: &HubConfig) -> Result<Self, BadPolicy> {
        let core = RequestCore::new(CoreConfig {
            me: config.me.clone(),
            tier: Tier::Cloud,
            hub: None,
            executes: false,
            costs: Costs::default(),
            dispatch: config.ingress_dispatch.clone(),
            seed: config.seed,
            stale_after: config.lease(),
            splits: config.splits,
        })?;
        Ok(Self { me: config.me.clone(), core })
    }

    /// A client asks.
    pub(super) fn arrived(
        &mut self,
        now: Moment,
        request: LlmRequest,
        fleet: &Fleet,
        ledger: &mut Ledger,
        effects: &mut Vec<HubEffect>,
    ) {
        if request.needs.residency == Residency::Anywhere {
            return self.tell(now, Event::Arrived(request), fleet, ledger, effects);
        }
        let failure = Failure::Refused(Reason::Residency);
        effects.push(HubEffect::Request(Effect::Fail(request.id, failure.clone())));
        let record = Record {
            request: request.id,
            ingress: self.me.clone(),
            service: request.service,
            needs: request.needs,
            arrived: now,
            waited: Micros::ZERO,
            attempts: Vec::new(),
            served_by: None,
            quality: None,
            actual: Actual::default(),
            outcome: Outcome::Failed(failure),
            attained: None,
        };
        ledger.add(record, effects);
    }

    /// Tells the core an event, and turns its effects into the hub's. An attempt at a node whose connection has just gone has
    /// failed; the core is told so, and looks elsewhere within its retry budget, which ends the loop.
    pub(super) fn tell(&mut self, now: Moment, event: Event, fleet: &Fleet, ledger: &mut Ledger, effects: &mut Vec<HubEffect>) {
        let mut events = vec![event];
        while let Some(event) = events.pop() {
            let mut wanted = Vec::new();
            self.core.handle(now, event, &mut wanted);
            for effect in wanted {
                match effect {
                    Effect::Send { candidate, header } => match fleet.connection_of(&candidate.node) {
                        Some(to) => effects.push(HubEffect::Send { to, header }),
                        None => {
                            let broken = Failure::Broken(candidate.node.to_string());
                            events.push(Event::Remote(header.attempt, AttemptEvent::Failed(broken)));
                        }
                    },
                    Effect::Record(record) => ledger.add(*record, effects),
                    other => effects.push(HubEffect::Request(other)),
                }
            }
        }
    }

    /// The core, for a look.
    pub(super) const fn core(&self) -> &RequestCore {
        &self.core
    }

    /// When the core wants to be told of the time.
    pub(super) fn deadline(&self) -> Option<Moment> {
        self.core.next_deadline()
    }
}
