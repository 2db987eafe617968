//! The firewall of a site, before one of its nodes: neighbours pass, others get no answer.
//!
//! Without it every agent on this machine could reach every other, and a cut uplink would cut nothing.

use super::{Cable, Delays, Passed, Way, named, tcp, udp};
use crate::emulate::addresses::SiteNet;
use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// The way into one node from its own site. Ends with its threads when dropped.
#[derive(Debug)]
pub struct Gate {
    cable: Arc<Cable>,
    address: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Gate {
    /// Opens at `here` the way to the node at `to`, for datagrams and streams from `site` alone.
    ///
    /// # Errors
    /// When the socket cannot be had or the thread not be started.
    pub fn open(name: &str, here: SocketAddr, to: SocketAddr, site: SiteNet) -> io::Result<Self> {
        let cable = Arc::new(Cable::new(Delays { up: Duration::ZERO, down: Duration::ZERO }));
        let datagrams = UdpSocket::bind(here)?;
        let address = datagrams.local_addr()?;
        let streams = TcpListener::bind(address)?;
        let mut gate = Self { cable, address, threads: Vec::with_capacity(2) };
        let admits = move |from| site.contains(from);
        let cable = Arc::clone(&gate.cable);
        gate.threads.push(named(format!("{name}-gate-udp"), move || udp::relay(&cable, &datagrams, to, admits))?);
        let cable = Arc::clone(&gate.cable);
        gate.threads.push(named(format!("{name}-gate-tcp"), move || tcp::relay(&cable, &streams, to, admits))?);
        Ok(gate)
    }

    /// Where neighbours find the node.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Drops every datagram from now on, or none any more; streams pass.
    pub fn block_datagrams(&self, blocked: bool) {
        self.cable.trouble.block(blocked);
    }

    /// What has passed to the node; what others sent counts as dropped.
    #[must_use]
    pub fn passed(&self) -> Passed {
        self.cable.passed(Way::Up)
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.cable.ended.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}
