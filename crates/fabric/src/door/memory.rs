//! The memory of a door: what all of its connections together may have.
//!
//! What a connection was given to write to stays its own until it is closed, since a write may arrive late
//! (R6). So what others wait for can only be had by closing who keeps it in silence: the loops do that when
//! something was wanting.

use crate::wire::VALUE_BYTES_MAX;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// What connections can be short of: each kind is kept by others in silence, or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// The door's memory.
    Memory,
    /// Slots of the landing area.
    Slots,
}

impl Kind {
    pub(super) const ALL: [Kind; 2] = [Kind::Memory, Kind::Slots];
}

/// How often something was wanting, by [`Kind`].
pub(super) type Shortages = [u64; 2];

/// What is left of it.
pub(super) struct Memory {
    all: u64,
    left: AtomicU64,
    shortages: [AtomicU64; 2],
}

/// A part of it, until it is dropped.
pub(super) struct Share {
    memory: Arc<Memory>,
    bytes: u64,
}

impl Memory {
    /// So many bytes, but at least for one value of the longest.
    pub(super) fn of(bytes: u64) -> Arc<Memory> {
        let bytes = bytes.max(VALUE_BYTES_MAX as u64);
        Arc::new(Memory {
            all: bytes,
            left: AtomicU64::new(bytes),
            shortages: Default::default(),
        })
    }

    /// A share of so many bytes, if they are left. What makes a connection faster, and nothing possible, is
    /// `spare`: it leaves half of all to others.
    pub(super) fn share(self: &Arc<Memory>, bytes: usize, is_spare: bool) -> Option<Share> {
        let bytes = bytes as u64;
        let kept = if is_spare { self.all / 2 } else { 0 };
        let less = |left: u64| left.checked_sub(bytes).filter(|left| *left >= kept);
        let taken = self
            .left
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        taken.ok().map(|_| Share {
            memory: Arc::clone(self),
            bytes,
        })
    }

    /// Bytes that connections have now.
    pub(super) fn used(&self) -> u64 {
        self.all - self.left.load(Ordering::Relaxed)
    }

    /// A connection was refused what others have.
    pub(super) fn was_wanting(&self, kind: Kind) {
        self.shortages[kind as usize].fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn shortages(&self) -> Shortages {
        self.shortages
            .each_ref()
            .map(|count| count.load(Ordering::Relaxed))
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.memory.left.fetch_add(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_given_comes_back() {
        const HALF: usize = VALUE_BYTES_MAX / 2;
        let memory = Memory::of(0);
        assert!(memory.share(HALF + 1, true).is_none());
        let spare = memory.share(HALF, true);
        assert!(spare.is_some() && memory.share(1, true).is_none());
        let rest = memory.share(HALF, false);
        assert!(rest.is_some() && memory.share(1, false).is_none());
        assert!(memory.share(0, false).is_some());
        drop(spare);
        assert_eq!(memory.used(), HALF as u64);
        assert!(memory.share(HALF + 1, false).is_none() && memory.share(HALF, false).is_some());
        drop(rest);
        assert_eq!(memory.used(), 0);
    }
}
