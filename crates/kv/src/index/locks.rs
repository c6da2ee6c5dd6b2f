//! Locks of writers, chosen by the top 12 bits of the hash.
//!
//! Whoever changes an entry holds the lock of its hash; whoever rebuilds a segment holds all locks that
//! hashes of the segment can choose. Several are always taken in ascending order, and nobody who holds
//! one waits for a lower one.

use super::hash::KeyHash;
use parking_lot::{Mutex, MutexGuard};

const LOCK_BITS: u32 = 12;

/// Four share a cache line: a compromise between false sharing and DRAM.
#[repr(align(16))]
#[derive(Default)]
struct Lock(Mutex<()>);

/// All locks of an index.
pub(crate) struct Locks(Box<[Lock]>);

impl Locks {
    pub(crate) fn new() -> Locks {
        Locks((0..1 << LOCK_BITS).map(|_| Lock::default()).collect())
    }

    /// The lock of one hash.
    #[inline]
    pub(crate) fn of(&self, hash: KeyHash) -> MutexGuard<'_, ()> {
        let number = (hash.0 >> (64 - LOCK_BITS)) as usize;
        match self.0.get(number) {
            Some(lock) => lock.0.lock(),
            None => unreachable!("there is a lock for every {LOCK_BITS} bits"),
        }
    }

    /// All locks of the segment of this depth that `hash` lies in.
    pub(crate) fn of_segment(&self, hash: KeyHash, depth: u32) -> Vec<MutexGuard<'_, ()>> {
        let count = 1 << LOCK_BITS.saturating_sub(depth);
        let first = (hash.0 >> (64 - LOCK_BITS)) as usize & !(count - 1);
        self.0
            .iter()
            .skip(first)
            .take(count)
            .map(|lock| lock.0.lock())
            .collect()
    }

    /// Every lock.
    pub(crate) fn all(&self) -> Vec<MutexGuard<'_, ()>> {
        self.of_segment(KeyHash(0), 0)
    }

    /// DRAM held.
    pub(crate) fn bytes(&self) -> u64 {
        size_of_val::<[Lock]>(&self.0) as u64
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_segment_has_the_locks_of_its_hashes() {
        let locks = Locks::new();
        let hash = KeyHash(0b1010_1010_1010_1010 << 48);
        for (depth, count) in [(0, 4096), (6, 64), (11, 2), (12, 1), (30, 1)] {
            let held = locks.of_segment(hash, depth);
            assert_eq!(held.len(), count);
            let taken = locks.0.iter().position(|lock| lock.0.is_locked()).unwrap();
            assert_eq!(taken, 0b1010_1010_1010 / count * count);
        }
        assert_eq!(locks.all().len(), 4096);
    }
}
