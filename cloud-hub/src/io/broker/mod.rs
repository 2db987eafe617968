//! The broker: the embedded one, or where an external one is.

#[cfg_attr(not(feature = "broker"), path = "absent.rs")]
mod embedded;

use crate::config::MqttSection;
use crate::run::StartError;
use embedded::Embedded;
use shared::ids::NodeId;
use shared_net::host::{NotStopped, Refusals};
use shared_net::tls::{CertClock, Identity};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

/// Numbers of certificates that are no longer good: written by the driver, read at each connect.
#[derive(Clone, Debug, Default)]
pub(crate) struct Revocations(Arc<RwLock<BTreeSet<String>>>);

impl Revocations {
    pub(crate) fn add<'a>(&self, serials: impl IntoIterator<Item = &'a String>) {
        self.0.write().unwrap_or_else(PoisonError::into_inner).extend(serials.into_iter().cloned());
    }

    pub(crate) fn contains(&self, serial: &str) -> bool {
        self.0.read().unwrap_or_else(PoisonError::into_inner).contains(serial)
    }
}

/// What an embedded broker is started with.
#[derive(Debug)]
pub(crate) struct Broking<'a> {
    pub(crate) listen: SocketAddr,
    pub(crate) store: PathBuf,
    pub(crate) hub: &'a NodeId,
    pub(crate) identity: &'a Identity,
    pub(crate) wall: &'a CertClock,
    pub(crate) revocations: &'a Revocations,
}

/// A broker that the hub can reach.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    /// `host:port` for the hub itself.
    pub(crate) local: String,
    /// `host:port` for agents.
    pub(crate) advertised: String,
    embedded: Option<Embedded>,
}

impl Broker {
    /// Starts the embedded broker, unless an external one is configured.
    pub(crate) async fn start(section: &MqttSection, broking: Broking<'_>) -> Result<Self, StartError> {
        let given = |otherwise: String| if section.advertise.is_empty() { otherwise } else { section.advertise.clone() };
        if !section.external.is_empty() {
            let local = section.external.clone();
            return Ok(Self { advertised: given(local.clone()), local, embedded: None });
        }
        let embedded = Embedded::start(broking).await?;
        let address = embedded.address();
        let mut local = address;
        if address.ip().is_unspecified() {
            local.set_ip(if address.is_ipv4() { [127, 0, 0, 1].into() } else { std::net::Ipv6Addr::LOCALHOST.into() });
        }
        let advertised = given(format!("hub:{}", address.port()));
        Ok(Self { local: local.to_string(), advertised, embedded: Some(embedded) })
    }

    /// Ends a node's sessions. An external broker refuses the node when it next connects, if it is told of the revocation.
    pub(crate) fn disconnect(&self, node: &NodeId) {
        match &self.embedded {
            Some(embedded) => embedded.disconnect(node),
            None => tracing::warn!(%node, "an external broker must be told of the revocation by its operator"),
        }
    }

    /// Connections that did not come about, and attempts beyond a client's rights. An external broker counts for itself.
    pub(crate) fn turned_away(&self) -> Option<(u64, u64)> {
        self.embedded.as_ref().map(Embedded::turned_away)
    }

    /// The same by reason.
    pub(crate) fn refusals(&self) -> Option<Arc<Refusals>> {
        self.embedded.as_ref().map(Embedded::refusals)
    }

    /// Uses a renewed identity from now on. An external broker has its own files.
    pub(crate) fn set_identity(&self, identity: &Identity) {
        if let Some(embedded) = &self.embedded {
            embedded.set_identity(identity);
        }
    }

    /// Waits until the embedded broker has stopped by itself; for ever with an external one.
    pub(crate) async fn failed(&self) {
        match &self.embedded {
            Some(embedded) => embedded.stopped().await,
            None => std::future::pending().await,
        }
    }

    /// Stops the embedded broker. The tasks that knew it must have ended.
    pub(crate) async fn stop(self, deadline: Duration) -> Result<(), NotStopped> {
        match self.embedded {
            Some(embedded) => embedded.stop(deadline).await,
            None => Ok(()),
        }
    }
}
