//! Locks of writers, one for each segment, chosen by the top bits of its hashes.
//!
//! A writer that changes an entry holds the lock of its segment (or is alone with it, in recovery). A rebuild
//! holds the locks of the old segment and of the new ones. So while a thread holds the lock of a segment that
//! the directory names, the segment does not change, and its entries have one writer. Segments deeper than
//! [`LOCK_BITS`] share locks with their neighbours.
//!
//! A lock is a word: one exchange takes it, one store releases it. It is held for a few instructions, or
//! during a rebuild. A waiter sleeps in the end: the holder may have no core, and the one of a waiter that
//! only yields is not given to it before its turn. Several locks are always taken in ascending order.

use super::hash::KeyHash;
use crate::concurrency::stripes::Backoff;
use std::sync::atomic::{AtomicU32, Ordering};

const LOCK_BITS: u32 = 12;

/// Sixteen share a cache line: all of them fit the second-level cache, and random keys rarely contend for
/// neighbours.
#[derive(Default)]
struct Lock(AtomicU32);

impl Lock {
    #[inline]
    fn lock(&self) -> Held<'_> {
        if self.0.swap(1, Ordering::Acquire) != 0 {
            self.wait();
        }
        Held(self)
    }

    #[cold]
    fn wait(&self) {
        let mut backoff = Backoff::new();
        while self.0.load(Ordering::Relaxed) != 0 || self.0.swap(1, Ordering::Acquire) != 0 {
            backoff.wait();
        }
    }
}

/// A lock that is held until this is dropped.
pub(crate) struct Held<'a>(&'a Lock);

impl Drop for Held<'_> {
    #[inline]
    fn drop(&mut self) {
        self.0.0.store(0, Ordering::Release);
    }
}

/// All locks of an index.
pub(crate) struct Locks(Box<[Lock]>);

impl Locks {
    pub(crate) fn new() -> Locks {
        Locks((0..1 << LOCK_BITS).map(|_| Lock::default()).collect())
    }

    /// The lock of the segment at this depth that contains `hash`.
    #[inline]
    pub(crate) fn of(&self, hash: KeyHash, depth: u32) -> Held<'_> {
        self.number(number_of(hash, depth)).lock()
    }

    /// The lock of the upper half of that segment, if it is another one. The caller holds the segment's lock,
    /// which the lower half inherits.
    pub(crate) fn of_upper_half(&self, hash: KeyHash, depth: u32) -> Option<Held<'_>> {
        let half = (1 << LOCK_BITS) >> depth >> 1;
        (half != 0).then(|| self.number(number_of(hash, depth) + half).lock())
    }

    #[inline]
    fn number(&self, number: usize) -> &Lock {
        match self.0.get(number) {
            Some(lock) => lock,
            None => unreachable!("{LOCK_BITS} bits number the locks"),
        }
    }

    /// Every lock.
    pub(crate) fn all(&self) -> Vec<Held<'_>> {
        self.0.iter().map(Lock::lock).collect()
    }

    /// DRAM held.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val::<[Lock]>(&self.0) as u64
    }
}

/// The number of the lock for all hashes of a segment.
#[inline]
fn number_of(hash: KeyHash, depth: u32) -> usize {
    let below = LOCK_BITS.saturating_sub(depth);
    (hash.0 >> (64 - LOCK_BITS) >> below << below) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn held(locks: &Locks) -> Vec<usize> {
        let held = |number: &usize| locks.0[*number].0.load(Ordering::Relaxed) != 0;
        (0..1 << LOCK_BITS).filter(held).collect()
    }

    #[test]
    fn all_hashes_of_a_segment_have_its_lock() {
        let locks = Locks::new();
        let hash = KeyHash(0b1010_1010_1010_1010 << 48);
        for (depth, number) in [
            (0, 0),
            (1, 0b1000_0000_0000),
            (6, 0b1010_1000_0000),
            (11, 0b1010_1010_1010),
            (12, 0b1010_1010_1010),
            (30, 0b1010_1010_1010),
        ] {
            let lock = locks.of(hash, depth);
            assert_eq!(held(&locks), [number]);
            drop(lock);
            assert!(held(&locks).is_empty());
        }
    }

    #[test]
    fn halves_have_the_locks_that_their_hashes_choose() {
        let locks = Locks::new();
        for depth in [0, 3, 11, 12, 20] {
            let lower = KeyHash(0);
            let upper = KeyHash(1 << (63 - depth));
            let numbers = [number_of(lower, depth + 1), number_of(upper, depth + 1)];
            let _segment = locks.of(lower, depth);
            let other = locks.of_upper_half(lower, depth);
            assert_eq!(other.is_some(), numbers[0] != numbers[1]);
            assert!(numbers.iter().all(|number| held(&locks).contains(number)));
        }
    }

    #[test]
    fn a_lock_has_one_holder() {
        let locks = Locks::new();
        let counter = AtomicU32::new(0);
        let rounds = if cfg!(miri) { 20 } else { 20_000 };
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    for _ in 0..rounds {
                        let _held = locks.of(KeyHash(7), 12);
                        let seen = counter.load(Ordering::Relaxed);
                        if seen.is_multiple_of(32) {
                            std::thread::yield_now();
                        }
                        counter.store(seen + 1, Ordering::Relaxed);
                    }
                });
            }
        });
        assert_eq!(counter.into_inner(), 3 * rounds);
        assert_eq!(locks.all().len(), 4096);
    }
}
