//! What an agent shows of itself to people.

use super::Agent;
use crate::logic::{LearntStatus, NodeStatus, UplinkStatus};
use shared::units::Moment;

impl Agent {
    /// The status page.
    #[must_use]
    pub fn status(&self, now: Moment) -> NodeStatus {
        NodeStatus {
            node: self.config.node.clone(),
            tier: self.config.tier,
            version: self.config.version.clone(),
            hub: self.config.hub.clone(),
            degraded: self.degraded(),
            draining: self.view.drains() || self.stopping,
            certificate_expires_in: None,
            uplink: self.uplink_status(now),
            replicas: self.core.replicas(),
            services: self.core.catalogue().iter().map(|service| service.id.clone()).collect(),
            dispatch: self.core.policy().to_owned(),
            plans: self.plans.status(now),
            targets: self.core.grant().targets.clone(),
            peers: self.peers.status(now),
            requests_open: self.core.requests_open(),
            spool: self.reports.spool(now),
            survey: self.reports.surveyed(now),
            learnt: self
                .core
                .learnt()
                .iter()
                .map(|(service, learnt)| (service.clone(), LearntStatus::of(learnt.lengths())))
                .collect(),
        }
    }

    fn uplink_status(&self, now: Moment) -> UplinkStatus {
        let (quarantined, publications_held) = self.reports.quarantined(now);
        UplinkStatus { quarantined, publications_held, ..self.uplink.status(now) }
    }
}
