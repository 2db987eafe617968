//! A cable with a length that can be cut: a relay for one node's uplink, in user space and without privileges.
//!
//! Datagrams pass through [`udp`], streams (MQTT, and links where UDP does not carry) through [`tcp`]. Each direction has its
//! delay. A cut drops datagrams and stalls streams, as a pulled plug does; neither end is told. [`trouble`] is what happens to
//! datagrams alone. Plain threads and thread sleep, because an async timer overshoots each delay by more than a millisecond.
//! Rates and jitter are not here.

mod gate;
mod tcp;
mod trouble;
mod udp;

pub use gate::Gate;

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use trouble::Trouble;

/// Datagrams or chunks under way in one direction. At 1,400 bytes and 20 ms this is some 700 Mbit/s, far above what the fleets
/// here send; beyond it datagrams are dropped, as a router would, and streams wait.
const UNDER_WAY_MAX: usize = 1_024;
/// How long a thread waits on a silent socket before it looks whether it shall end.
const LOOK_UP_EVERY: Duration = Duration::from_millis(50);

/// One direction of a cable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// From the node towards the hub.
    Up,
    /// From the hub towards the node.
    Down,
}

/// How long the cable is, in time.
#[derive(Clone, Copy, Debug)]
pub struct Delays {
    /// Towards the hub.
    pub up: Duration,
    /// Towards the node.
    pub down: Duration,
}

impl Delays {
    fn of(self, way: Way) -> Duration {
        match way {
            Way::Up => self.up,
            Way::Down => self.down,
        }
    }
}

/// What has passed in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Passed {
    /// Bytes carried.
    pub bytes: u64,
    /// Datagrams dropped by a cut or a full cable.
    pub dropped: u64,
}

#[derive(Debug, Default)]
struct Counter {
    bytes: AtomicU64,
    dropped: AtomicU64,
}

/// What all threads of one cable share.
#[derive(Debug)]
struct Cable {
    delays: Delays,
    trouble: Trouble,
    cut: AtomicBool,
    ended: AtomicBool,
    up: Counter,
    down: Counter,
}

impl Cable {
    fn new(delays: Delays) -> Self {
        Self {
            delays,
            trouble: Trouble::default(),
            cut: AtomicBool::new(false),
            ended: AtomicBool::new(false),
            up: Counter::default(),
            down: Counter::default(),
        }
    }

    fn is_cut(&self) -> bool {
        self.cut.load(Ordering::Acquire)
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }

    fn counter(&self, way: Way) -> &Counter {
        match way {
            Way::Up => &self.up,
            Way::Down => &self.down,
        }
    }

    fn passed(&self, way: Way) -> Passed {
        let counter = self.counter(way);
        Passed { bytes: counter.bytes.load(Ordering::Relaxed), dropped: counter.dropped.load(Ordering::Relaxed) }
    }

    fn carried(&self, way: Way, bytes: usize) {
        self.counter(way).bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    fn dropped(&self, way: Way) {
        self.counter(way).dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// Both ends of a line of parcels that each take this way's delay.
    fn line<T>(&self, way: Way) -> (Inlet<T>, Outlet<T>) {
        let (inlet, outlet) = sync_channel(UNDER_WAY_MAX);
        (Inlet { queue: inlet, delay: self.delays.of(way) }, Outlet(outlet))
    }
}

/// Where parcels go in.
struct Inlet<T> {
    queue: SyncSender<(Instant, T)>,
    delay: Duration,
}

impl<T> Clone for Inlet<T> {
    fn clone(&self) -> Self {
        Self { queue: self.queue.clone(), delay: self.delay }
    }
}

impl<T> Inlet<T> {
    /// Puts a parcel in; false when the line is full or nobody is at its end.
    fn offer(&self, parcel: T) -> bool {
        self.queue.try_send((Instant::now() + self.delay, parcel)).is_ok()
    }

    /// Puts a parcel in, waiting for room; false when nobody is at its end.
    fn push(&self, parcel: T) -> bool {
        self.queue.send((Instant::now() + self.delay, parcel)).is_ok()
    }
}

/// Where parcels come out, each at its time.
struct Outlet<T>(Receiver<(Instant, T)>);

impl<T> Outlet<T> {
    /// The next parcel, when it is due; absent when all inlets are gone.
    fn next(&self) -> Option<T> {
        let (due, parcel) = self.0.recv().ok()?;
        thread::sleep(due.saturating_duration_since(Instant::now()));
        Some(parcel)
    }
}

/// The uplink of one node. Ends with its threads when dropped.
#[derive(Debug)]
pub struct Relay {
    cable: Arc<Cable>,
    quic: SocketAddr,
    mqtt: SocketAddr,
    threads: Vec<JoinHandle<()>>,
}

impl Relay {
    /// Lays a cable to the hub's ports for links (UDP and TCP) and for MQTT. At the node's end they have the same numbers at the address `here`, a
    /// loopback address of its own such as 127.0.0.2: the node finds the hub there as it would at the hub's own address, and
    /// nobody has to be told other ports.
    ///
    /// # Errors
    /// When a socket cannot be had or a thread not be started.
    pub fn lay(name: &str, here: IpAddr, quic_to: SocketAddr, mqtt_to: SocketAddr, delays: Delays) -> io::Result<Self> {
        let cable = Arc::new(Cable::new(delays));
        let datagrams = UdpSocket::bind((here, quic_to.port()))?;
        let links = TcpListener::bind((here, quic_to.port()))?;
        let streams = TcpListener::bind((here, mqtt_to.port()))?;
        let mut relay =
            Self { quic: datagrams.local_addr()?, mqtt: streams.local_addr()?, cable, threads: Vec::with_capacity(3) };
        let cable = Arc::clone(&relay.cable);
        relay.threads.push(named(format!("{name}-udp"), move || udp::relay(&cable, &datagrams, quic_to, |_| true))?);
        let cable = Arc::clone(&relay.cable);
        relay.threads.push(named(format!("{name}-tcp"), move || tcp::relay(&cable, &links, quic_to, |_| true))?);
        let cable = Arc::clone(&relay.cable);
        relay.threads.push(named(format!("{name}-mqtt"), move || tcp::relay(&cable, &streams, mqtt_to, |_| true))?);
        Ok(relay)
    }

    /// Where the node finds the hub's QUIC port.
    #[must_use]
    pub fn quic(&self) -> SocketAddr {
        self.quic
    }

    /// Where the node finds the hub's MQTT port.
    #[must_use]
    pub fn mqtt(&self) -> SocketAddr {
        self.mqtt
    }

    /// Pulls the plug: nothing passes, and nobody is told.
    pub fn cut(&self) {
        self.cable.cut.store(true, Ordering::Release);
    }

    /// Puts the plug back.
    pub fn restore(&self) {
        self.cable.cut.store(false, Ordering::Release);
    }

    /// Drops every datagram from now on, or none any more; streams pass.
    pub fn block_datagrams(&self, blocked: bool) {
        self.cable.trouble.block(blocked);
    }

    /// Drops so many of a thousand datagrams each way from now on; which ones, the seed decides. Streams pass.
    pub fn lose_datagrams(&self, per_mille: u64, seed: u64) {
        self.cable.trouble.lose(per_mille, seed);
    }

    /// Forgets where datagrams came from, as a NAT does: from the next one on they come from another port, and what is still
    /// sent to the older one arrives nowhere.
    pub fn rebind(&self) {
        self.cable.trouble.rebind();
    }

    /// What has passed one way since the cable was laid.
    #[must_use]
    pub fn passed(&self, way: Way) -> Passed {
        self.cable.passed(way)
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        self.cable.ended.store(true, Ordering::Release);
        for thread in self.threads.drain(..) {
            // A thread that panicked has said so already.
            let _ = thread.join();
        }
    }
}

fn named(name: String, run: impl FnOnce() + Send + 'static) -> io::Result<JoinHandle<()>> {
    thread::Builder::new().name(name).spawn(run)
}

/// Whether a socket was merely silent.
fn silent(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut | io::ErrorKind::Interrupted)
}

#[cfg(test)]
mod tests;
