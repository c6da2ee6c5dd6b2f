//! The parts in which several threads fill an index that nobody else uses: one lock covers a part, instead of
//! one for every key and segment.

use super::{Index, KeyHash};
use parking_lot::{Mutex, MutexGuard};

/// Bits of a hash that choose a part, if the index is that deep.
const PART_BITS: u32 = 6;

/// See the module text.
pub(crate) struct Parts {
    bits: u32,
    locks: Vec<Mutex<()>>,
}

impl Parts {
    /// No segment of the present index belongs to two parts.
    pub(crate) fn of(index: &Index) -> Parts {
        let bits = index.depth_shared().min(PART_BITS);
        Parts {
            bits,
            locks: (0..1 << bits).map(|_| Mutex::new(())).collect(),
        }
    }

    /// Number of parts.
    pub(crate) fn count(&self) -> usize {
        self.locks.len()
    }

    /// The part of a hash.
    #[inline]
    pub(crate) fn part(&self, hash: KeyHash) -> usize {
        hash.0.checked_shr(64 - self.bits).unwrap_or(0) as usize
    }

    /// Whoever holds this may call [`Index::insert_alone`] with hashes of the part; `None`: there is no such
    /// part.
    pub(crate) fn own(&self, part: usize) -> Option<MutexGuard<'_, ()>> {
        self.locks.get(part).map(Mutex::lock)
    }
}
