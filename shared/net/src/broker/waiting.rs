//! Handshakes under way, and which of them gives way when there are too many.

use super::limits::{HANDSHAKES_MAX, HANDSHAKES_PER_ADDRESS_MAX};
use std::collections::VecDeque;
use std::net::IpAddr;
use tokio_util::sync::CancellationToken;

/// Handshakes in the order in which they began.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    oldest_first: VecDeque<(u64, IpAddr, CancellationToken)>,
    next: u64,
}

impl Waiting {
    /// Notes a handshake from an address. Its token is cancelled when it must give way to a newer one: silent sockets then
    /// push out each other, and nobody else.
    pub(super) fn begin(&mut self, address: IpAddr) -> (u64, CancellationToken) {
        let same = |entry: &(u64, IpAddr, CancellationToken)| entry.1 == address;
        if self.oldest_first.iter().filter(|entry| same(entry)).count() >= HANDSHAKES_PER_ADDRESS_MAX {
            let oldest = self.oldest_first.iter().position(same);
            self.push_out(oldest);
        } else if self.oldest_first.len() >= HANDSHAKES_MAX {
            self.push_out(Some(0));
        }
        let (number, token) = (self.next, CancellationToken::new());
        self.next += 1;
        self.oldest_first.push_back((number, address, token.clone()));
        (number, token)
    }

    /// Forgets a handshake that has ended.
    pub(super) fn end(&mut self, number: u64) {
        self.oldest_first.retain(|entry| entry.0 != number);
    }

    fn push_out(&mut self, index: Option<usize>) {
        if let Some((_, _, token)) = index.and_then(|index| self.oldest_first.remove(index)) {
            token.cancel();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    #[test]
    fn the_oldest_of_the_same_address_gives_way() {
        let (busy, other) = (IpAddr::from(Ipv4Addr::LOCALHOST), IpAddr::from(Ipv4Addr::BROADCAST));
        let mut waiting = Waiting::default();
        let (number, calm) = waiting.begin(other);
        let first = waiting.begin(busy).1;
        let second = waiting.begin(busy).1;
        for _ in 2..HANDSHAKES_PER_ADDRESS_MAX {
            waiting.begin(busy);
        }
        assert!(!first.is_cancelled());
        waiting.begin(busy);
        assert!(first.is_cancelled() && !second.is_cancelled() && !calm.is_cancelled());
        waiting.end(number);
        assert_eq!(waiting.oldest_first.len(), HANDSHAKES_PER_ADDRESS_MAX);
    }

    #[test]
    fn the_oldest_of_all_gives_way_when_everybody_is_busy() {
        let mut waiting = Waiting::default();
        let first = waiting.begin(Ipv4Addr::from(0).into()).1;
        for address in 1..=u32::try_from(HANDSHAKES_MAX).expect("small") {
            waiting.begin(Ipv4Addr::from(address).into());
        }
        assert!(first.is_cancelled());
        assert_eq!(waiting.oldest_first.len(), HANDSHAKES_MAX);
    }
}
