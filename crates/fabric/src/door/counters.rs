//! What a loop counts, for [`DoorStats`].

use super::DoorStats;
use std::sync::atomic::{AtomicU64, Ordering};

/// A counter that one thread writes.
#[derive(Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, by: u64) {
        // Nobody else writes it.
        self.0
            .store(self.0.load(Ordering::Relaxed) + by, Ordering::Relaxed);
    }
}

/// What a loop counts.
#[derive(Default)]
pub(super) struct Counters {
    pub(super) accepted: Counter,
    pub(super) expelled: Counter,
    pub(super) requests: Counter,
    pub(super) written: Counter,
    pub(super) placed: Counter,
    pub(super) adopted: Counter,
}

impl Counters {
    pub(super) fn add_to(&self, stats: &mut DoorStats) {
        let count = |counter: &Counter| counter.0.load(Ordering::Relaxed);
        stats.accepted += count(&self.accepted);
        stats.expelled += count(&self.expelled);
        stats.requests += count(&self.requests);
        stats.written += count(&self.written);
        stats.placed += count(&self.placed);
        stats.adopted += count(&self.adopted);
    }
}
