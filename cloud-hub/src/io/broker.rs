//! The broker: the embedded one, or where an external one is.

use crate::config::MqttSection;
use crate::run::StartError;
use shared::ids::NodeId;
use shared_net::host::NotStopped;
use shared_net::tls::{CertClock, Identity};
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
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

#[cfg(feature = "broker")]
impl shared_net::broker::Admission for Revocations {
    fn admits(&self, _node: &NodeId, serial: &str) -> bool {
        !self.contains(serial)
    }
}

/// A broker that the hub can reach.
#[derive(Clone, Debug)]
pub(crate) struct Broker {
    /// `host:port` for the hub itself.
    pub(crate) local: String,
    /// `host:port` for agents.
    pub(crate) advertised: String,
    #[cfg(feature = "broker")]
    embedded: Option<Arc<shared_net::broker::Broker>>,
}

/// What a broker is started with.
pub(crate) struct BrokerParts<'a> {
    pub(crate) section: &'a MqttSection,
    pub(crate) store: PathBuf,
    pub(crate) hub: &'a NodeId,
    pub(crate) identity: &'a Identity,
    pub(crate) wall: &'a CertClock,
    pub(crate) revocations: &'a Revocations,
}

impl Broker {
    /// Starts the embedded broker, unless an external one is configured.
    pub(crate) async fn start(parts: BrokerParts<'_>) -> Result<Self, StartError> {
        let section = parts.section;
        if section.external.is_empty() {
            return Self::embedded(parts).await;
        }
        let advertised = if section.advertise.is_empty() { &section.external } else { &section.advertise };
        Ok(Self {
            local: section.external.clone(),
            advertised: advertised.clone(),
            #[cfg(feature = "broker")]
            embedded: None,
        })
    }

    #[cfg(feature = "broker")]
    async fn embedded(parts: BrokerParts<'_>) -> Result<Self, StartError> {
        use shared_net::broker::{Broker as Running, BrokerSettings};
        let settings = BrokerSettings { listen: parts.section.listen, store: parts.store, hub: parts.hub.clone() };
        let broker = Running::start(settings, parts.identity, parts.wall, Arc::new(parts.revocations.clone())).await?;
        let address = broker.local_addr();
        let advertised = match parts.section.advertise.as_str() {
            "" => format!("hub:{}", address.port()),
            given => given.to_owned(),
        };
        Ok(Self { local: reachable(address).to_string(), advertised, embedded: Some(Arc::new(broker)) })
    }

    #[cfg(not(feature = "broker"))]
    async fn embedded(_parts: BrokerParts<'_>) -> Result<Self, StartError> {
        std::future::ready(Err(StartError::NoBroker)).await
    }

    /// Ends a node's sessions. An external broker refuses the node when it next connects, if it is told of the revocation.
    pub(crate) fn disconnect(&self, node: &NodeId) {
        #[cfg(feature = "broker")]
        if let Some(embedded) = &self.embedded {
            let ended = embedded.disconnect(node);
            tracing::info!(%node, ended, "MQTT sessions ended");
            return;
        }
        tracing::warn!(%node, "an external broker must be told of the revocation by its operator");
    }

    /// Uses a renewed identity from now on.
    pub(crate) fn set_identity(&self, identity: &Identity) {
        #[cfg(feature = "broker")]
        if let Some(embedded) = &self.embedded
            && let Err(error) = embedded.set_identity(identity)
        {
            tracing::error!(error = &error as &dyn std::error::Error, "the broker does not take the renewed certificate");
        }
        #[cfg(not(feature = "broker"))]
        let _ = identity;
    }

    /// Waits until the embedded broker has stopped by itself; for ever with an external one.
    pub(crate) async fn failed(&self) {
        #[cfg(feature = "broker")]
        if let Some(embedded) = &self.embedded {
            return embedded.stopped().cancelled().await;
        }
        std::future::pending().await
    }

    /// Stops the embedded broker. The tasks that knew it must have ended.
    pub(crate) async fn stop(self, deadline: Duration) -> Result<(), NotStopped> {
        #[cfg(feature = "broker")]
        if let Some(embedded) = self.embedded.and_then(Arc::into_inner) {
            return embedded.stop(deadline).await;
        }
        let _ = deadline;
        Ok(())
    }
}

/// Where this process reaches a socket that may listen on every address.
fn reachable(address: SocketAddr) -> SocketAddr {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip => ip,
    };
    SocketAddr::new(ip, address.port())
}
