//! The firewall of a site, before one of its nodes: neighbours pass, others get no answer.
//!
//! Without it every agent on this machine could reach every other, and a cut uplink would cut nothing.

use super::{Cable, Delays, Passed, Way, named, udp};
use crate::emulate::addresses::SiteNet;
use std::io;
use std::net::{SocketAddr, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

/// The way into one node from its own site. Ends with its thread when dropped.
#[derive(Debug)]
pub struct Gate {
    cable: Arc<Cable>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Gate {
    /// Opens at `here` the way to the node at `to`, for datagrams from `site` alone.
    ///
    /// # Errors
    /// When the socket cannot be had or the thread not be started.
    pub fn open(name: &str, here: SocketAddr, to: SocketAddr, site: SiteNet) -> io::Result<Self> {
        let cable = Arc::new(Cable::new(Delays { up: Duration::ZERO, down: Duration::ZERO }));
        let datagrams = UdpSocket::bind(here)?;
        let address = datagrams.local_addr()?;
        let shared = Arc::clone(&cable);
        let thread = named(format!("{name}-gate"), move || udp::relay(&shared, &datagrams, to, |from| site.contains(from)))?;
        Ok(Self { cable, address, thread: Some(thread) })
    }

    /// Where neighbours find the node.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
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
        if let Some(thread) = self.thread.take() {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}
