//! Counters of one event loop. Only its own thread adds to them; any thread may read or reset them. A reset
//! concurrent with an addition may lose either.

use crate::command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Number of buckets of execution times: powers of two of microseconds.
const BUCKETS: usize = 32;

/// A number that one thread increases.
#[derive(Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0
            .store(self.0.load(Relaxed).wrapping_add(count), Relaxed);
    }
    pub(crate) fn get(&self) -> u64 {
        self.0.load(Relaxed)
    }
    fn reset(&self) {
        self.0.store(0, Relaxed);
    }
}

/// Figures of one command.
#[derive(Default)]
pub(crate) struct Calls {
    pub(crate) calls: Counter,
    pub(crate) nanoseconds: Counter,
    /// Calls that answered an error.
    pub(crate) failed: Counter,
    /// Requests refused before execution.
    pub(crate) rejected: Counter,
    times: [Counter; BUCKETS],
}

impl Calls {
    pub(crate) fn note(&self, nanoseconds: u64) {
        self.calls.add(1);
        self.nanoseconds.add(nanoseconds);
        let bucket = (nanoseconds / 1000)
            .checked_ilog2()
            .map_or(0, |log| log as usize + 1);
        if let Some(counter) = self.times.get(bucket.min(BUCKETS - 1)) {
            counter.add(1);
        }
    }
}

/// Counters of one event loop.
pub(crate) struct Statistics {
    pub(crate) commands: Counter,
    pub(crate) errors: Counter,
    pub(crate) read_bytes: Counter,
    pub(crate) sent_bytes: Counter,
    pub(crate) reads: Counter,
    pub(crate) writes: Counter,
    pub(crate) commits: Counter,
    /// Turns of the engine's background work.
    pub(crate) turns: Counter,
    pub(crate) output_limit_closes: Counter,
    pub(crate) query_limit_closes: Counter,
    by_command: Vec<Calls>,
}

/// Sums of one command over all loops.
#[derive(Default)]
pub(crate) struct CallSums {
    pub(crate) calls: u64,
    pub(crate) microseconds: u64,
    pub(crate) failed: u64,
    pub(crate) rejected: u64,
    /// Bucket `i` counts times below 2^i microseconds and at least half of that.
    pub(crate) times: [u64; BUCKETS],
}

impl Statistics {
    pub(crate) fn new() -> Self {
        Statistics {
            commands: Counter::default(),
            errors: Counter::default(),
            read_bytes: Counter::default(),
            sent_bytes: Counter::default(),
            reads: Counter::default(),
            writes: Counter::default(),
            commits: Counter::default(),
            turns: Counter::default(),
            output_limit_closes: Counter::default(),
            query_limit_closes: Counter::default(),
            by_command: (0..command::COUNT).map(|_| Calls::default()).collect(),
        }
    }

    /// Counters of the command with this number.
    pub(crate) fn of(&self, number: u32) -> Option<&Calls> {
        self.by_command.get(number as usize)
    }

    pub(crate) fn reset(&self) {
        let own = [
            &self.commands,
            &self.errors,
            &self.read_bytes,
            &self.sent_bytes,
            &self.reads,
        ];
        let more = [
            &self.writes,
            &self.commits,
            &self.turns,
            &self.output_limit_closes,
            &self.query_limit_closes,
        ];
        own.iter().chain(&more).for_each(|counter| counter.reset());
        for calls in &self.by_command {
            let own = [
                &calls.calls,
                &calls.nanoseconds,
                &calls.failed,
                &calls.rejected,
            ];
            own.into_iter().chain(&calls.times).for_each(Counter::reset);
        }
    }
}

/// Sums of one command over all loops.
pub(crate) fn sum_calls<'a>(all: impl Iterator<Item = &'a Statistics>, number: u32) -> CallSums {
    let mut sums = CallSums::default();
    let mut nanoseconds: u64 = 0;
    for calls in all.filter_map(|one| one.of(number)) {
        sums.calls += calls.calls.get();
        nanoseconds = nanoseconds.wrapping_add(calls.nanoseconds.get());
        sums.failed += calls.failed.get();
        sums.rejected += calls.rejected.get();
        for (sum, counter) in sums.times.iter_mut().zip(&calls.times) {
            *sum += counter.get();
        }
    }
    sums.microseconds = nanoseconds / 1000;
    sums
}
