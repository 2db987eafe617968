//! Loopback addresses that stand for networks: the hub at 127.0.0.1, one address for each uplink, one network for each site.

use std::net::{IpAddr, Ipv4Addr};

/// The hub as an agent beside it sees it.
pub const HUB: Ipv4Addr = Ipv4Addr::LOCALHOST;
/// First number of a site's network, well away from 127.0 and from what systems use themselves.
const FIRST_SITE: u8 = 64;
/// Sites, nodes of one, and uplinks that there are addresses for.
pub const COUNT_MAX: u8 = 128;

/// The network of one site.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SiteNet(u8);

impl SiteNet {
    /// The network of the site of this number, from 0; absent at [`COUNT_MAX`] and above.
    #[must_use]
    pub fn new(number: u8) -> Option<Self> {
        (number < COUNT_MAX).then(|| Self(FIRST_SITE + number))
    }

    /// Where its node of this number listens.
    #[must_use]
    pub const fn node(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.0, 0, number)
    }

    /// Where neighbours find that node.
    #[must_use]
    pub const fn gate(self, number: u8) -> Ipv4Addr {
        Ipv4Addr::new(127, self.0, 1, number)
    }

    /// Whether somebody speaks from this site.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        matches!(address, IpAddr::V4(address) if address.octets().starts_with(&[127, self.0, 0]))
    }
}

/// Where the agent behind the uplink of this number finds the hub.
#[must_use]
pub const fn uplink(number: u8) -> Ipv4Addr {
    Ipv4Addr::new(127, 0, 1, number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_apart() {
        let (one, other) = (SiteNet::new(0).expect("first"), SiteNet::new(1).expect("second"));
        assert!(one.contains(one.node(7).into()) && !one.contains(other.node(7).into()));
        assert!(!one.contains(one.gate(7).into()), "a gate is not a neighbour");
        assert!(!one.contains(HUB.into()) && !one.contains(uplink(1).into()));
        assert_eq!(SiteNet::new(COUNT_MAX), None);
    }
}
