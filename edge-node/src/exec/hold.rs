//! Counting an engine's slots.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Holds one of an engine's slots.
#[derive(Debug)]
pub(super) struct Hold(Arc<AtomicU32>);

impl Hold {
    /// Takes a slot if one of `slots` is free.
    pub(super) fn take(open: &Arc<AtomicU32>, slots: u32) -> Option<Self> {
        let more = |count: u32| Some(count + 1).filter(|count| *count <= slots);
        open.fetch_update(Ordering::AcqRel, Ordering::Acquire, more).ok().map(|_| Self(Arc::clone(open)))
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}
