//! Locks that gets take, in the base of the paper's ladder alone (section 2.1). Readers share them, writers
//! do not.

use crate::concurrency::stripes::{Backoff, StripeId};
use crossbeam_utils::CachePadded;
use std::sync::atomic::{AtomicI32, Ordering};

/// A lock for each row of buckets: the number of readers, or -1 for a writer.
pub(in crate::bullet) struct ReaderLocks(Box<[CachePadded<AtomicI32>]>);

/// A reader's hold.
pub(in crate::bullet) struct Reading<'a>(&'a AtomicI32);

impl ReaderLocks {
    pub(in crate::bullet) fn new(stripes: usize) -> ReaderLocks {
        ReaderLocks((0..stripes).map(|_| CachePadded::default()).collect())
    }

    pub(in crate::bullet) fn read(&self, stripe: StripeId) -> Reading<'_> {
        let gate = &self.0[stripe.number()];
        let mut backoff = Backoff::new();
        loop {
            let readers = gate.load(Ordering::Relaxed);
            let (more, order) = (readers + 1, Ordering::Acquire);
            if readers >= 0
                && gate
                    .compare_exchange_weak(readers, more, order, Ordering::Relaxed)
                    .is_ok()
            {
                return Reading(gate);
            }
            backoff.wait();
        }
    }

    /// Calls `change` while no reader holds the lock.
    pub(in crate::bullet) fn write<T>(&self, stripe: StripeId, change: impl FnOnce() -> T) -> T {
        let gate = &self.0[stripe.number()];
        let mut backoff = Backoff::new();
        while gate
            .compare_exchange_weak(0, -1, Ordering::Acquire, Ordering::Relaxed)
            .is_err()
        {
            backoff.wait();
        }
        let changed = change();
        gate.store(0, Ordering::Release);
        changed
    }
}

impl Drop for Reading<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Release);
    }
}
