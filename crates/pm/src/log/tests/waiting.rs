//! Waiters gather, one of them leads, and none is forgotten.

use super::{Bench, DATA, Open};
use std::sync::Barrier;
use std::sync::atomic::Ordering;

/// Longer than a test takes: a batch gathers for half of it, at most a second.
const SLOW_SYNC_NS: u64 = 10_000_000_000;

impl Open {
    fn batches(&self) -> u32 {
        self.log.shared.completed.load(Ordering::Acquire)
    }

    /// As if a sync took `sync_ns`, and the last one had covered `groups` groups.
    fn expect(&self, groups: u32, sync_ns: u64) {
        let shared = &self.log.shared;
        shared.pending.lock().expect_again(groups);
        shared.sync_ns.store(sync_ns, Ordering::Relaxed);
    }

    /// Stores `value` to the lane's line until it is durable.
    fn put(&self, lane: u64, value: u64) {
        let mut group = self.log.group();
        self.line(&mut group, DATA + lane * 64, value);
        self.log.wait(group.close()).unwrap();
    }
}

/// A thread that gets no core for a while comes too late for the others, so this may take a few rounds.
#[test]
fn those_who_come_together_share_a_sync() {
    const ROUNDS: usize = 20;
    let bench = Bench::new(1 << 20);
    let open = bench.open().unwrap();
    let shared = (0..ROUNDS).any(|_| {
        open.expect(4, SLOW_SYNC_NS);
        let before = open.batches();
        let start = Barrier::new(4);
        std::thread::scope(|scope| {
            for lane in 0..4 {
                let (open, start) = (&open, &start);
                scope.spawn(move || {
                    start.wait();
                    open.put(lane, 1);
                });
            }
        });
        open.batches() - before == 1
    });
    assert!(
        shared,
        "four threads never shared a sync in {ROUNDS} rounds"
    );
}

#[test]
fn a_batch_does_not_wait_for_ever() {
    let bench = Bench::new(1 << 20);
    let open = bench.open().unwrap();
    for value in 1..20 {
        open.expect(1000, 1_000_000);
        open.put(0, value);
    }
}

/// A leader may find that another has just written its batch. A waiter that saw the role taken meanwhile
/// slept, and no thread was left to wake it.
#[test]
fn a_leader_that_finds_nothing_wakes_those_who_saw_it() {
    let bench = Bench::new(1 << 20);
    let open = bench.open().unwrap();
    let before = open.batches();
    let shared = &open.log.shared;
    shared.lead(shared.writer.try_lock().unwrap());
    assert_ne!(open.batches(), before);
}

#[test]
fn those_who_leave_take_nobody_s_turn_along() {
    let bench = Bench::new(1 << 20);
    let open = bench.open().unwrap();
    for round in 0..60 {
        std::thread::scope(|scope| {
            for lane in 0..6 {
                let open = &open;
                let count = 1 + (7 * lane + 3 * round) % 8;
                scope.spawn(move || (1..=count).for_each(|value| open.put(lane, value)));
            }
        });
    }
}
