//! Under which addresses other agents may find this one: those configured, else those of the machine's own networks.

use crate::config::{Net, QuicSection};
use crate::probe::machine::own_addresses;
use shared_net::link::resolve;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, UdpSocket};

/// Most addresses that are told: peers try them in turn, and a machine with more has most of them for its containers.
const ADDRESSES_MAX: usize = 8;

/// The addresses to tell; `hub` is where the hub is, `listens` what the endpoint got.
pub(super) async fn advertised(config: &QuicSection, hub: &str, listens: SocketAddr) -> Vec<String> {
    if !config.advertise.is_empty() {
        return config.advertise.clone();
    }
    if !listens.ip().is_unspecified() {
        return vec![listens.to_string()];
    }
    // Without a hub to ask for, the network may not be up yet; the node is then reached through the hub only, or by what the
    // machine has now.
    let found = resolve(hub).await.unwrap_or_default();
    let towards_hub = found.into_iter().find_map(own_address_towards);
    let own = chosen(towards_hub, own_addresses(), &config.include, &config.exclude);
    own.into_iter().map(|ip| SocketAddr::new(ip, listens.port()).to_string()).collect()
}

/// The address towards the hub first, since it is known to lead somewhere; then the others.
fn chosen(towards_hub: Option<IpAddr>, own: Vec<IpAddr>, include: &[Net], exclude: &[Net]) -> Vec<IpAddr> {
    let wanted = |ip: &IpAddr| {
        let included = include.is_empty() || include.iter().any(|net| net.contains(*ip));
        included && !exclude.iter().any(|net| net.contains(*ip))
    };
    let mut chosen: Vec<IpAddr> = towards_hub.into_iter().filter(wanted).collect();
    for ip in own.into_iter().filter(wanted).filter(is_of_a_network) {
        if !chosen.contains(&ip) {
            chosen.push(ip);
        }
    }
    chosen.truncate(ADDRESSES_MAX);
    chosen
}

/// Not one that means something else on every machine.
fn is_of_a_network(ip: &IpAddr) -> bool {
    let link_local = match ip {
        IpAddr::V4(ip) => ip.is_link_local(),
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
    };
    !(ip.is_loopback() || ip.is_unspecified() || ip.is_multicast() || link_local)
}

/// The own address that packets to `target` would carry. Nothing is sent.
fn own_address_towards(target: SocketAddr) -> Option<IpAddr> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)).ok()?;
    socket.connect(target).ok()?;
    socket.local_addr().ok().map(|own| own.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_can_be_taken_in_and_left_out() {
        let ip = |text: &str| text.parse::<IpAddr>().expect("an address");
        let net = |text: &str| text.parse::<Net>().expect("a network");
        let own: Vec<IpAddr> =
            ["127.0.0.1", "10.0.0.7", "192.168.1.7", "172.17.0.1", "169.254.3.3", "fe80::1", "2001:db8::7"].map(ip).into();
        let hub = Some(ip("192.168.1.7"));
        let all = chosen(hub, own.clone(), &[], &[]);
        assert_eq!(all, ["192.168.1.7", "10.0.0.7", "172.17.0.1", "2001:db8::7"].map(ip));
        let wired = chosen(hub, own.clone(), &[net("10.0.0.0/8")], &[]);
        assert_eq!(wired, [ip("10.0.0.7")], "the Wi-Fi towards the hub is not told");
        let no_containers = chosen(hub, own, &[], &[net("172.16.0.0/12"), net("2001:db8::/32")]);
        assert_eq!(no_containers, ["192.168.1.7", "10.0.0.7"].map(ip));
    }
}
