//! In place of the embedded broker, in builds without it: nothing that could be had.

use super::Broking;
use crate::run::StartError;
use shared::ids::NodeId;
use shared_net::host::{NotStopped, Refusals};
use shared_net::tls::Identity;
use std::future::ready;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// There is none.
#[derive(Clone, Debug)]
pub(super) enum Embedded {}

impl Embedded {
    pub(super) async fn start(broking: Broking<'_>) -> Result<Self, StartError> {
        let Broking { listen, store, hub, identity, wall, revocations } = broking;
        let (store, now, revoked) = (store.display(), wall.secs(), revocations.contains(identity.serial()));
        tracing::debug!(%listen, %store, %hub, now, revoked, "no broker in this build");
        ready(Err(StartError::NoBroker)).await
    }

    pub(super) const fn address(&self) -> SocketAddr {
        match *self {}
    }

    pub(super) fn refusals(&self) -> Arc<Refusals> {
        match *self {}
    }

    pub(super) const fn turned_away(&self) -> (u64, u64) {
        match *self {}
    }

    pub(super) const fn disconnect(&self, _node: &NodeId) {
        match *self {}
    }

    pub(super) const fn set_identity(&self, _identity: &Identity) {
        match *self {}
    }

    pub(super) fn stopped(&self) -> std::future::Pending<()> {
        match *self {}
    }

    pub(super) fn stop(self, _deadline: Duration) -> std::future::Ready<Result<(), NotStopped>> {
        match self {}
    }
}
