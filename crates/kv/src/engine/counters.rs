//! The counters of one session: only that session writes them; others read them and add them up.

use crate::concurrency::stripes::Publishing;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// The counters of one session of any engine.
#[derive(Default)]
pub(crate) struct Counters {
    /// Keys inserted minus keys removed.
    pub(crate) keys: AtomicI64,
    pub(crate) puts: AtomicU64,
    pub(crate) gets: AtomicU64,
    pub(crate) misses: AtomicU64,
    pub(crate) deletes: AtomicU64,
    pub(crate) expired: AtomicU64,
    /// Bytes written to and read from a data file, bytes appended to logs, and how often room in a log had to
    /// be waited for (`dstore`).
    pub(crate) data_written: AtomicU64,
    pub(crate) data_read: AtomicU64,
    pub(crate) log_written: AtomicU64,
    pub(crate) log_waits: AtomicU64,
    /// Reads that the tier below answered (`tiered`).
    pub(crate) below_reads: AtomicU64,
    pub(crate) publishing: Publishing,
}

/// Adds to a counter that only the caller writes, without a locked instruction.
#[inline]
pub(crate) fn bump(counter: &AtomicU64, by: u64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(by);
    counter.store(sum, Ordering::Relaxed);
}

/// As [`bump`], of a counter that also goes down.
#[inline]
pub(crate) fn bump_signed(counter: &AtomicI64, by: i64) {
    let sum = counter.load(Ordering::Relaxed).wrapping_add(by);
    counter.store(sum, Ordering::Relaxed);
}
