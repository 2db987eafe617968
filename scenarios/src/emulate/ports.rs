//! Ports for servers that must find their port again after a restart. What starts once binds port 0 instead.

use super::process::spawning;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::atomic::{AtomicU16, Ordering};

/// Below the range from which systems draw the ports of outgoing connections, so that none of those takes a port while its
/// server is away.
const FIRST: u16 = 20_000;
const COUNT: u16 = 12_000;

static NEXT: AtomicU16 = AtomicU16::new(0);

/// A loopback address that was free a moment ago for both UDP and TCP, and that this process is not given again.
///
/// # Errors
/// When none of the range is free.
pub fn free() -> io::Result<SocketAddr> {
    let _alone = spawning();
    // Two processes begin at different places, two calls in one process never get the same.
    let begin = std::process::id().wrapping_mul(251);
    for _ in 0..COUNT {
        let step = u32::from(NEXT.fetch_add(1, Ordering::Relaxed));
        let offset = u16::try_from(begin.wrapping_add(step) % u32::from(COUNT)).unwrap_or_default();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, FIRST + offset));
        if TcpListener::bind(address).is_ok() && UdpSocket::bind(address).is_ok() {
            return Ok(address);
        }
    }
    Err(io::Error::new(io::ErrorKind::AddrInUse, format!("no free port from {FIRST} to {}", FIRST + COUNT - 1)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_port_is_given_twice() {
        let one = free().expect("free");
        assert_ne!(one, free().expect("free"));
        let _alone = spawning();
        TcpListener::bind(one).expect("still free");
    }
}
