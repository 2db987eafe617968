//! A fresh certificate before the present one expires.

use super::links::Links;
use super::mqtt::Membership;
use super::store::{Member, chain};
use shared::units::Micros;
use shared_net::host::StateFolder;
use shared_net::join::renew;
use shared_net::link::Endpoint;
use std::sync::{Arc, PoisonError};
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// How often it is looked at whether it is time. Certificates last days; the shortest, for tests, minutes.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// How often the present time is persisted, for boards whose clock forgets.
const CLOCK_EVERY: u32 = 360;

/// What renewing needs.
pub(super) struct Renewal {
    pub(super) membership: Membership,
    pub(super) member: Member,
    pub(super) endpoint: Endpoint,
    pub(super) links: Arc<Links>,
    pub(super) folder: Arc<StateFolder>,
}

impl Renewal {
    /// Looks now and then until `stop`. A renewal that fails is tried again at the next look: two thirds of the certificate's
    /// life have passed, so one third is left for that.
    pub(super) async fn run(mut self, stop: CancellationToken) {
        let mut looks: u32 = 0;
        loop {
            if looks.is_multiple_of(CLOCK_EVERY)
                && let Err(error) = self.membership.clock.save(self.folder.path())
            {
                tracing::warn!(error = %chain(&error), "the time was not persisted");
            }
            looks = looks.wrapping_add(1);
            if self.is_due() {
                self.renew().await;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = tokio::time::sleep(LOOK_EVERY) => {}
            }
        }
    }

    fn is_due(&self) -> bool {
        self.membership.expires_in() <= Micros(self.member.lifetime.0 / 3)
    }

    async fn renew(&mut self) {
        let Some(link) = self.links.uplink() else { return };
        let node = self.membership.identity.read().unwrap_or_else(PoisonError::into_inner).node().clone();
        let joined = match renew(&link, &node).await {
            Ok(joined) => joined,
            Err(error) => {
                tracing::warn!(error = %chain(&error), "the certificate was not renewed; the next try follows");
                return;
            }
        };
        self.member.lifetime = joined.expires_in;
        let saved = joined.identity.save(self.folder.path()).map_err(|error| chain(&error));
        let saved = saved.and_then(|()| self.member.save(self.folder.path()).map_err(|error| chain(&error)));
        if let Err(error) = saved.and_then(|()| self.endpoint.set_identity(&joined.identity).map_err(|error| chain(&error))) {
            tracing::error!(error, "the renewed certificate could not be used");
            return;
        }
        tracing::info!(serial = joined.identity.serial(), "certificate renewed");
        *self.membership.identity.write().unwrap_or_else(PoisonError::into_inner) = joined.identity;
    }
}
