//! The marks of sessions that are in a call which writes.
//!
//! A mark is a word of a session: odd during a call. Only the session stores it. An applier that must not
//! overtake calls takes the list of marks, and waits until each that is odd has changed. A session that
//! enters the list later makes its first look at the table later, too.

use crate::concurrency::seam::publishes;
use crate::concurrency::stripes::Backoff;
use crossbeam_utils::CachePadded;
use everdram_pm::Barrier;
use everdram_pm::lock::lock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The marks of all sessions. The list is replaced as a whole, so that nobody waits while holding its lock.
#[derive(Default)]
pub(crate) struct Calls(Mutex<Arc<Vec<Arc<Mark>>>>);

/// The mark of one session.
pub(crate) struct Mark(CachePadded<AtomicU64>);

impl Calls {
    /// A mark for a new session.
    pub(super) fn register(&self) -> Arc<Mark> {
        let mark = Arc::new(Mark(CachePadded::new(AtomicU64::new(0))));
        let mut all = lock(&self.0);
        let mut more = Vec::clone(&all);
        more.push(Arc::clone(&mark));
        *all = Arc::new(more);
        mark
    }

    pub(super) fn remove(&self, mark: &Arc<Mark>) {
        let mut all = lock(&self.0);
        let others = all.iter().filter(|other| !Arc::ptr_eq(other, mark));
        *all = Arc::new(others.cloned().collect());
    }

    /// Waits until the calls have ended that are under way now. The caller is in none.
    pub(super) fn wait_for_ends(&self) {
        let all = Arc::clone(&lock(&self.0));
        for mark in all.iter() {
            let seen = mark.0.load(Ordering::Acquire);
            let mut backoff = Backoff::new();
            while !seen.is_multiple_of(2) && mark.0.load(Ordering::Acquire) == seen {
                backoff.wait();
            }
        }
    }
}

impl Mark {
    /// Begins a call: what the session loads from here on, it loads behind the mark.
    #[inline]
    pub(super) fn begin(&self, barrier: Barrier) {
        let before = self.0.load(Ordering::Relaxed);
        debug_assert!(
            before.is_multiple_of(2),
            "a session begins a call within another"
        );
        publishes!();
        self.0.store(before + 1, Ordering::Relaxed);
        barrier.light();
    }

    /// Ends a call: whoever sees the end sees what the call has done.
    #[inline]
    pub(super) fn end(&self) {
        let before = self.0.load(Ordering::Relaxed);
        debug_assert!(!before.is_multiple_of(2), "a session ends no call");
        publishes!();
        self.0.store(before + 1, Ordering::Release);
    }
}

/// A call of a session, ended when this is dropped, even in a panic.
pub(super) struct Ending<'m>(pub(super) &'m Mark);

impl Drop for Ending<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.end();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicBool;

    #[test]
    fn calls_that_are_under_way_are_waited_for() {
        let (calls, ended) = (Calls::default(), AtomicBool::new(false));
        let (first, second) = (calls.register(), calls.register());
        calls.wait_for_ends();
        first.begin(Barrier::new());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                calls.wait_for_ends();
                assert!(ended.load(Ordering::Relaxed));
            });
            std::thread::sleep(std::time::Duration::from_millis(20));
            ended.store(true, Ordering::Relaxed);
            first.end();
            // A later call is not waited for.
            first.begin(Barrier::new());
            waiter.join().unwrap();
        });
        calls.remove(&first);
        calls.wait_for_ends();
        second.begin(Barrier::new());
        calls.remove(&second);
        calls.wait_for_ends();
    }
}
