//! TLS on TCP that carries streams as QUIC does, for networks where UDP does not pass.
//!
//! A multiplexer of our own, and no general one: a stream's two directions end apart, a reset carries its code past a full window,
//! a finish can never be taken for a reset, and whoever finished learns that everything arrived. Relays and cancelling count on each of these, and
//! multiplexers for TCP usually have only some. What is said between the ends is in [`wire`], what is remembered in [`mux`].

mod drive;
mod line;
mod mux;
mod stream;
mod wire;

pub(in crate::link) use mux::End;
pub(super) use stream::{Receiver, Sender};

use super::connection::Code;
use super::lost::Lost;
use mux::Mux;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::Notify;

/// What the connection's task and everybody who holds it share.
#[derive(Debug)]
pub(super) struct Shared {
    mux: Mutex<Mux>,
    /// There may be something to send.
    out: Notify,
    /// Streams came or may be opened, or the connection ended.
    changed: Notify,
    sent: AtomicU64,
    received: AtomicU64,
    /// Smoothed round-trip time in microseconds; zero while none was measured.
    rtt: AtomicU64,
}

impl Shared {
    fn mux(&self) -> MutexGuard<'_, Mux> {
        self.mux.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something that the task may have to send.
    fn change<T>(&self, change: impl FnOnce(&mut Mux) -> T) -> T {
        let changed = change(&mut self.mux());
        self.out.notify_one();
        changed
    }

    pub(super) fn close(&self, code: Code, why: &str) {
        self.change(|mux| mux.close(code, why));
        self.changed.notify_waiters();
    }

    fn end(&self, lost: Lost) {
        self.change(|mux| mux.end(lost));
        self.changed.notify_waiters();
    }

    /// An eighth of the news, as RFC 6298 has it.
    fn measured(&self, rtt: Duration) {
        let news = u64::try_from(rtt.as_micros()).unwrap_or(u64::MAX).max(1);
        let old = self.rtt.load(Ordering::Relaxed);
        self.rtt.store(if old == 0 { news } else { old - old / 8 + news / 8 }, Ordering::Relaxed);
    }

    /// Waits until `look` finds something.
    async fn until<T>(&self, notify: &Notify, mut look: impl FnMut(&mut Mux) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(notify.notified());
            changed.as_mut().enable();
            if let Some(found) = look(&mut self.mux()) {
                return found;
            }
            changed.await;
        }
    }
}

/// Closes the connection with the last handle on it.
#[derive(Debug)]
struct Held(Arc<Shared>);

impl Drop for Held {
    fn drop(&mut self) {
        self.0.close(Code::DONE, "no longer wanted");
    }
}

/// A connection. Clones are the same one, which ends when it is closed, lost, or the last clone and stream are dropped.
#[derive(Clone, Debug)]
pub(super) struct Connection {
    held: Arc<Held>,
    remote: SocketAddr,
}

impl Connection {
    /// A connection over a TLS stream that has shaken hands, and the task that drives it, to be spawned by its owner.
    pub(super) fn new<T>(tls: T, remote: SocketAddr, end: End) -> (Self, impl Future<Output = ()> + Send + use<T>)
    where
        T: AsyncRead + AsyncWrite + Send + Unpin,
    {
        let shared = Arc::new(Shared {
            mux: Mutex::new(Mux::new(end)),
            out: Notify::new(),
            changed: Notify::new(),
            sent: AtomicU64::new(0),
            received: AtomicU64::new(0),
            rtt: AtomicU64::new(0),
        });
        let driving = drive::drive(Arc::clone(&shared), tls);
        (Self { held: Arc::new(Held(shared)), remote }, driving)
    }

    fn shared(&self) -> &Arc<Shared> {
        &self.held.0
    }

    /// For its owner, who may close it without keeping it.
    pub(super) fn downgrade(&self) -> std::sync::Weak<Shared> {
        Arc::downgrade(self.shared())
    }

    pub(super) const fn remote(&self) -> SocketAddr {
        self.remote
    }

    pub(super) fn id(&self) -> usize {
        Arc::as_ptr(self.shared()).addr()
    }

    pub(super) async fn open(&self) -> Result<(Sender, Receiver), Lost> {
        let shared = self.shared();
        let id = shared.until(&shared.changed, |mux| mux.open().transpose()).await?;
        shared.out.notify_one();
        Ok(stream::halves(self, id))
    }

    pub(super) async fn accept(&self) -> Result<(Sender, Receiver), Lost> {
        let shared = self.shared();
        let id = shared.until(&shared.changed, |mux| mux.accept().transpose()).await?;
        Ok(stream::halves(self, id))
    }

    pub(super) fn close(&self, code: Code, why: &str) {
        self.shared().close(code, why);
    }

    pub(super) fn ended(&self) -> Option<Lost> {
        self.shared().mux().ended().cloned()
    }

    pub(super) async fn closed(&self) -> Lost {
        let shared = Arc::clone(self.shared());
        shared.until(&shared.changed, |mux| mux.ended().cloned()).await
    }

    /// Smoothed round-trip time; absent before the first answer.
    pub(super) fn rtt(&self) -> Option<Duration> {
        let micros = self.shared().rtt.load(Ordering::Relaxed);
        (micros > 0).then(|| Duration::from_micros(micros))
    }

    /// Bytes sent and received within TLS.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let shared = self.shared();
        (shared.sent.load(Ordering::Relaxed), shared.received.load(Ordering::Relaxed))
    }
}
