//! What a node of a fleet has that one alone has not: its membership, and a socket for other agents.

use super::advertise::advertised;
use super::mqtt::Membership;
use super::offered::Host;
use super::running::StartError;
use super::store::Member;
use super::uplink;
use crate::config::Config;
use shared_net::host::Tasks;
use shared_net::link::{Endpoint, ResetSecret};
use shared_net::tls::{Admit, CertClock, Identity};
use std::path::Path;
use std::sync::{Arc, RwLock};

/// What a node that joined a fleet has.
pub(super) struct Joined {
    pub(super) membership: Membership,
    pub(super) member: Member,
    pub(super) endpoint: Endpoint,
    pub(super) advertised: Vec<String>,
}

impl Joined {
    /// Reads the state folder, and opens the socket. Nothing for a node that never joined.
    ///
    /// # Errors
    /// [`StartError`] for half a membership, or a socket that cannot be had.
    pub(super) async fn open(config: &Config, folder: &Path) -> Result<Option<Self>, StartError> {
        let (identity, member) = match (Identity::load(folder)?, Member::load(folder)?) {
            (Some(identity), Some(member)) => (identity, member),
            (None, None) => return Ok(None),
            _ => return Err(StartError::HalfMember),
        };
        let clock = CertClock::load(folder);
        let endpoint = Endpoint::bind(config.quic.listen, &identity, Admit::Members, &clock, &ResetSecret::load(folder)?)?;
        let advertised = advertised(&config.quic, hub_address(config, &member), endpoint.local_addr()?).await;
        let membership = Membership { identity: Arc::new(RwLock::new(identity)), clock, hub: member.hub.clone() };
        Ok(Some(Self { membership, member, endpoint, advertised }))
    }

    /// The way to the hub.
    pub(super) fn network(&self, config: &Config, host: Host, tasks: &Tasks) -> uplink::Network {
        uplink::Network {
            endpoint: self.endpoint.clone(),
            hub: self.member.hub.clone(),
            address: hub_address(config, &self.member).to_owned(),
            host,
            tasks: tasks.clone(),
        }
    }
}

/// Where the hub is dialled: the configuration's word, else the token's.
pub(crate) fn hub_address<'a>(config: &'a Config, member: &'a Member) -> &'a str {
    if config.hub.address.is_empty() { &member.address } else { &config.hub.address }
}
