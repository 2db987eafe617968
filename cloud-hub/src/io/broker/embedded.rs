//! The broker inside this process.

use super::{Broking, Revocations};
use crate::run::StartError;
use shared::ids::NodeId;
use shared_net::broker::{Admission, Broker, BrokerSettings};
use shared_net::host::{NotStopped, Refusals};
use shared_net::tls::Identity;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

impl Admission for Revocations {
    fn admits(&self, _node: &NodeId, serial: &str) -> bool {
        !self.contains(serial)
    }
}

/// A running broker.
#[derive(Clone, Debug)]
pub(super) struct Embedded(Arc<Broker>);

impl Embedded {
    pub(super) async fn start(broking: Broking<'_>) -> Result<Self, StartError> {
        let settings = BrokerSettings { listen: broking.listen, store: broking.store, hub: broking.hub.clone() };
        let admission = Arc::new(broking.revocations.clone());
        Ok(Self(Arc::new(Broker::start(settings, broking.identity, broking.wall, admission).await?)))
    }

    pub(super) fn address(&self) -> SocketAddr {
        self.0.local_addr()
    }

    pub(super) fn refusals(&self) -> Arc<Refusals> {
        self.0.refusals()
    }

    pub(super) fn turned_away(&self) -> (u64, u64) {
        (self.0.refused(), self.0.forbidden())
    }

    pub(super) fn disconnect(&self, node: &NodeId) {
        let ended = self.0.disconnect(node);
        tracing::info!(%node, ended, "MQTT sessions ended");
    }

    pub(super) fn set_identity(&self, identity: &Identity) {
        if let Err(error) = self.0.set_identity(identity) {
            tracing::error!(error = &error as &dyn std::error::Error, "the broker does not take the renewed certificate");
        }
    }

    pub(super) async fn stopped(&self) {
        self.0.stopped().cancelled().await;
    }

    pub(super) async fn stop(self, deadline: Duration) -> Result<(), NotStopped> {
        match Arc::into_inner(self.0) {
            Some(broker) => broker.stop(deadline).await,
            // A task that was to end first still knows it, and has been named for that already.
            None => Ok(()),
        }
    }
}
