//! What networks do to datagrams and not to streams: drop all of them, drop some, forget where they came from.

use shared::backoff::mix;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Parts of a whole in which losses are told.
const WHOLE: u64 = 1_000;

/// The present trouble of one cable.
#[derive(Debug, Default)]
pub(super) struct Trouble {
    blocked: AtomicBool,
    lost_per_mille: AtomicU64,
    seed: AtomicU64,
    draws: AtomicU64,
    rebound: AtomicU64,
}

impl Trouble {
    pub(super) fn block(&self, blocked: bool) {
        self.blocked.store(blocked, Ordering::Release);
    }

    pub(super) fn lose(&self, per_mille: u64, seed: u64) {
        self.seed.store(seed, Ordering::Relaxed);
        self.lost_per_mille.store(per_mille.min(WHOLE), Ordering::Release);
    }

    /// Whether this datagram is one that does not arrive.
    pub(super) fn takes_one(&self) -> bool {
        if self.blocked.load(Ordering::Acquire) {
            return true;
        }
        let lost = self.lost_per_mille.load(Ordering::Acquire);
        lost > 0 && mix(self.seed.load(Ordering::Relaxed), self.draws.fetch_add(1, Ordering::Relaxed)) % WHOLE < lost
    }

    pub(super) fn rebind(&self) {
        self.rebound.fetch_add(1, Ordering::AcqRel);
    }

    /// How often the cable has changed its ports.
    pub(super) fn rebound(&self) -> u64 {
        self.rebound.load(Ordering::Acquire)
    }
}
