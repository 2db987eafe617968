//! A network as people write it: an address and the number of its bits that count.

use serde::{Deserialize, Serialize};
use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// A network such as `10.0.0.0/8` or `2001:db8::/32`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Net {
    address: IpAddr,
    bits: u8,
}

/// A text is no network.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is no network: want an address and its length in bits, such as `10.0.0.0/8`")]
pub struct BadNet(String);

impl Net {
    /// Whether an address is in it.
    #[must_use]
    pub fn contains(self, address: IpAddr) -> bool {
        match (self.address, address) {
            (IpAddr::V4(own), IpAddr::V4(other)) => {
                same(u32::from(own), u32::from(other), u32::BITS - u32::from(self.bits), u32::checked_shr)
            }
            (IpAddr::V6(own), IpAddr::V6(other)) => {
                same(u128::from(own), u128::from(other), u128::BITS - u32::from(self.bits), u128::checked_shr)
            }
            _ => false,
        }
    }
}

/// Whether two numbers agree above their lowest `ignored` bits.
fn same<N: PartialEq>(one: N, other: N, ignored: u32, shr: fn(N, u32) -> Option<N>) -> bool {
    shr(one, ignored) == shr(other, ignored)
}

impl FromStr for Net {
    type Err = BadNet;

    fn from_str(text: &str) -> Result<Self, BadNet> {
        let parsed = text.split_once('/').and_then(|(address, bits)| {
            let (address, bits): (IpAddr, u8) = (address.parse().ok()?, bits.parse().ok()?);
            let most = if address.is_ipv4() { 32 } else { 128 };
            (bits <= most).then_some(Self { address, bits })
        });
        parsed.ok_or_else(|| BadNet(text.to_owned()))
    }
}

impl TryFrom<String> for Net {
    type Error = BadNet;

    fn try_from(text: String) -> Result<Self, BadNet> {
        text.parse()
    }
}

impl From<Net> for String {
    fn from(net: Net) -> Self {
        net.to_string()
    }
}

impl fmt::Display for Net {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_hold_their_addresses() {
        for (net, within, without) in [
            ("10.0.0.0/8", "10.255.0.1", "11.0.0.1"),
            ("192.168.1.7/32", "192.168.1.7", "192.168.1.8"),
            ("0.0.0.0/0", "8.8.8.8", "::1"),
            ("2001:db8::/32", "2001:db8:ffff::1", "2001:db9::1"),
            ("::/0", "::1", "127.0.0.1"),
        ] {
            let parsed: Net = net.parse().expect("a network");
            assert_eq!(parsed.to_string(), net);
            assert!(parsed.contains(within.parse().expect("an address")), "{net} {within}");
            assert!(!parsed.contains(without.parse().expect("an address")), "{net} {without}");
        }
        for bad in ["10.0.0.0", "10.0.0.0/33", "ten/8", "::/129", ""] {
            assert!(bad.parse::<Net>().is_err(), "{bad}");
        }
    }
}
