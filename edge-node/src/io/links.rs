//! The connections that are open now, so that whoever wants to send finds one.

use super::control::Command;
use crate::logic::LinkId;
use shared::fleet::Hop;
use shared::ids::NodeId;
use shared::wire::frame::{Goodbye, Hello, Pulse};
use shared_net::link::{Code, Link};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use tokio::sync::mpsc;

/// A connection and the way to the task that talks on its control stream.
#[derive(Clone, Debug)]
pub(super) struct Talked {
    pub(super) link: Link,
    pub(super) commands: mpsc::Sender<Command>,
}

#[derive(Debug, Default)]
struct Open {
    uplink: Option<Link>,
    /// Newest last.
    peers: BTreeMap<NodeId, BTreeMap<LinkId, Talked>>,
    /// Bytes sent and received on connections with peers that are closed.
    closed_bytes: (u64, u64),
    /// Which of them new streams take; the newest where nothing was said.
    used: BTreeMap<NodeId, LinkId>,
    revoked: BTreeSet<String>,
    /// The operator was told that this node itself is thrown out.
    told_of_own: bool,
}

/// All connections.
#[derive(Debug, Default)]
pub(super) struct Links {
    open: Mutex<Open>,
    next: AtomicU64,
}

impl Links {
    fn lock(&self) -> MutexGuard<'_, Open> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A number for a new connection with a peer, never used twice in this life.
    pub(super) fn number(&self) -> LinkId {
        self.next.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn set_uplink(&self, link: Option<Link>) {
        self.lock().uplink = link;
    }

    /// The connection to the hub.
    pub(super) fn uplink(&self) -> Option<Link> {
        self.lock().uplink.clone()
    }

    /// Whether it is news that this node itself is thrown out; `false` when it is not thrown out (any more).
    pub(super) fn own_revocation_is_news(&self, revoked: bool) -> bool {
        let told = std::mem::replace(&mut self.lock().told_of_own, revoked);
        revoked && !told
    }

    /// Where the hub answers.
    pub(super) fn uplink_address(&self) -> Option<std::net::IpAddr> {
        self.lock().uplink.as_ref().map(|link| link.address().ip())
    }

    pub(super) fn add_peer(&self, node: &NodeId, number: LinkId, talked: Talked) {
        self.lock().peers.entry(node.clone()).or_default().insert(number, talked);
    }

    pub(super) fn remove_peer(&self, node: &NodeId, number: LinkId) {
        let mut open = self.lock();
        if let Some(links) = open.peers.get_mut(node) {
            let bytes = links.remove(&number).map_or((0, 0), |talked| talked.link.bytes());
            if links.is_empty() {
                open.peers.remove(node);
                open.used.remove(node);
            }
            open.closed_bytes = sum(open.closed_bytes, bytes);
        }
    }

    /// Bytes sent to and received from other agents without the hub, as the network sees them.
    pub(super) fn peer_bytes(&self) -> (u64, u64) {
        let open = self.lock();
        open.peers.values().flat_map(BTreeMap::values).fold(open.closed_bytes, |all, talked| sum(all, talked.link.bytes()))
    }

    /// A connection that leads to `node` by this way.
    pub(super) fn towards(&self, node: &NodeId, hop: Hop) -> Option<Link> {
        let open = self.lock();
        match hop {
            Hop::Local => None,
            Hop::Relay => open.uplink.clone(),
            Hop::Direct => {
                let links = open.peers.get(node)?;
                let used = open.used.get(node).and_then(|used| links.get(used));
                used.or_else(|| links.values().next_back()).map(|talked| talked.link.clone())
            }
        }
    }

    /// New streams to `node` take this connection.
    pub(super) fn use_for(&self, node: &NodeId, number: LinkId) {
        self.lock().used.insert(node.clone(), number);
    }

    /// Nothing new goes over this connection.
    pub(super) fn retire(&self, node: &NodeId, number: LinkId) {
        self.command(node, number, Command::Retire);
    }

    pub(super) fn hang_up(&self, node: &NodeId, number: LinkId, words: Goodbye) {
        self.command(node, number, Command::HangUp(words));
    }

    pub(super) fn ping(&self, node: &NodeId, number: LinkId, pulse: Pulse) {
        self.command(node, number, Command::Ping(pulse));
    }

    pub(super) fn pong(&self, node: &NodeId, number: LinkId, pulse: Pulse) {
        self.command(node, number, Command::Pong(pulse));
    }

    pub(super) fn tell(&self, node: &NodeId, number: LinkId, hello: Box<Hello>) {
        self.command(node, number, Command::Hello(hello));
    }

    fn command(&self, node: &NodeId, number: LinkId, command: Command) {
        if let Some(talked) = self.lock().peers.get(node).and_then(|links| links.get(&number)) {
            talked.send(command);
        }
    }

    /// Whether a certificate is no longer good.
    pub(super) fn is_revoked(&self, link: &Link) -> bool {
        link.serial().is_some_and(|serial| self.lock().revoked.contains(serial))
    }

    /// These certificates are no longer good: their connections end now, and no new ones begin.
    pub(super) fn revoke(&self, serials: Vec<String>) {
        let mut open = self.lock();
        open.revoked = serials.into_iter().collect();
        for talked in open.peers.values().flat_map(BTreeMap::values) {
            if talked.link.serial().is_some_and(|serial| open.revoked.contains(serial)) {
                talked.link.close(Code::FORBIDDEN, "certificate revoked");
            }
        }
    }
}

fn sum(a: (u64, u64), b: (u64, u64)) -> (u64, u64) {
    (a.0 + b.0, a.1 + b.1)
}

impl Talked {
    /// A full queue means that the other end does not take even a ping: the silence will end the connection.
    pub(super) fn send(&self, command: Command) {
        if let Err(mpsc::error::TrySendError::Full(Command::HangUp(_))) = self.commands.try_send(command) {
            self.link.close(Code::DONE, "goodbye");
        }
    }
}
