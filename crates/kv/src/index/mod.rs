//! The index: where the record of a key is. Volatile, concurrent, never trusted for truth.
//!
//! An entry is 8 bytes: a 23-bit tag of the key's hash and a 40-bit location. The index does not know keys:
//! a lookup offers the locations whose tags match, and the caller reads the records and decides.
//!
//! * [`directory`]: the top bits of the hash choose a line, which names the 1 to 8 pages of a segment.
//! * [`shape`]: the next bits choose the home bucket, one cache line of eight entries.
//! * [`entry`]: an entry lies in its home or in one of the next nine buckets. A bucket that was passed says so,
//!   and a lookup stops at the first bucket that does not.
//! * [`growth`]: a segment grows page by page, then splits; one entry costs 10 to 11 bytes, all counted.
//! * [`arena`]: pages, used again when no reader can see them any more ([`crate::epoch`]).
//!
//! # What holds for readers
//! A lookup takes no lock; beside the directory it touches one cache line, as a rule. An entry never moves
//! within live pages, and old pages stay as they were while a reader is pinned. So an entry that is there
//! during the whole of a lookup is found. A location that a lookup offers was in the index under this hash's
//! tag after the reader pinned; if the owner retires records under the same epochs after taking them
//! out of the index, it is safe to read.
//!
//! # What callers promise
//! Two changes of one key never run at once. A record is retired only after its entry is replaced or
//! removed. A `rehash` callback only reads memory, whatever locks its caller holds.
//!
//! # Why nothing deadlocks
//! There are three kinds of lock, each waited for only by someone who holds none that comes later:
//!
//! 1. the locks of hashes ([`locks`]): a change takes one and lets go before it asks for growth; growth
//!    takes those of its segment, `clear` all of them, in ascending order;
//! 2. `changing` of the directory, taken by growth and `clear` to publish;
//! 3. the stock of the arena, taken for a few instructions.
//!
//! Under none of them is anything of the caller waited for, so callers may hold locks of their own.

mod arena;
mod directory;
mod entry;
mod growth;
mod hash;
mod locks;
mod scan;
mod shape;

#[cfg(test)]
mod cost;
#[cfg(test)]
mod tests;

pub(crate) use entry::Location;
pub(crate) use growth::Rehash;
pub(crate) use hash::KeyHash;

use crate::chance::Chance;
use crate::epoch::{Epochs, Pin};
use arena::{Arena, PAGE_BUCKETS};
use directory::{DEPTH_FIRST, Directory, Home, Line};
use entry::{Bucket, Entry};
use hash::Hasher;
use locks::Locks;
use std::sync::Arc;

/// Buckets an entry may lie in: its home and the next nine. Few searches go beyond the second, but
/// the last ones decide how full a segment is when it must grow: 70 % with 4 buckets, 85 % with 10.
const PROBE_BUCKETS: u32 = 10;

/// Why the index could not take an entry. It is as it was.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IndexError {
    /// The system refused memory.
    #[error("no memory for {0} bytes of index: give the process more, or store fewer keys")]
    Memory(usize),
    /// More keys than chance allows fall together.
    #[error(
        "the index cannot spread its entries: their hashes are not random; reopen the store to draw a new secret"
    )]
    Skewed,
    /// A record that growth had to read is not the one that was indexed.
    #[error("the record at location {} does not have the key that the index knows it by; run `check`", .0.get())]
    Rehash(Location),
}

/// See the module's description.
pub(crate) struct Index {
    epochs: Arc<Epochs>,
    hasher: Hasher,
    locks: Locks,
    directory: Directory,
    arena: Arena,
}

impl Index {
    /// An empty index whose readers pin `epochs`.
    pub(crate) fn new(epochs: Arc<Epochs>, chance: &Chance) -> Result<Index, IndexError> {
        let index = Index {
            arena: Arena::new(Arc::clone(&epochs)),
            epochs,
            hasher: Hasher::new(chance),
            locks: Locks::new(),
            directory: Directory::new()?,
        };
        index.directory.reset(&index.empty_segments(DEPTH_FIRST)?);
        Ok(index)
    }

    /// The hash of a key, good for this index only.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash(key)
    }

    /// Offers `is` the locations that may be of the key with this hash until it says yes to one.
    #[inline]
    pub(crate) fn lookup(
        &self,
        hash: KeyHash,
        pin: &Pin<'_>,
        mut is: impl FnMut(Location) -> bool,
    ) -> Option<Location> {
        debug_assert!(pin.is_of(&self.epochs));
        'search: loop {
            let line = self.directory.line(hash);
            let home = line.home(hash);
            for step in 0..PROBE_BUCKETS {
                let Some(bucket) = self.bucket(line, &home, step) else {
                    continue 'search;
                };
                let entries = bucket.entries();
                let mut matches = 0_u32;
                for (slot, entry) in entries.iter().enumerate() {
                    matches |= u32::from(entry.tag() == home.tag) << slot;
                }
                while matches != 0 {
                    let entry = entries.get(matches.trailing_zeros() as usize);
                    // An empty slot looks like tag 0.
                    if let Some(location) = entry.and_then(|entry| entry.location())
                        && is(location)
                    {
                        return Some(location);
                    }
                    matches &= matches - 1;
                }
                let [first, ..] = entries;
                if !first.says_more() {
                    return None;
                }
            }
            return None;
        }
    }

    /// Adds an entry for a key that has none. May call `rehash` for any entry.
    pub(crate) fn insert(
        &self,
        hash: KeyHash,
        location: Location,
        rehash: Rehash<'_>,
    ) -> Result<(), IndexError> {
        loop {
            let seen = {
                let _lock = self.locks.of(hash);
                let line = self.directory.line(hash);
                let home = line.home(hash);
                if self.put(line, &home, Entry::new(home.tag, location)) {
                    return Ok(());
                }
                (home.shape.depth, home.word.generation())
            };
            self.grow(hash, seen, rehash)?;
        }
    }

    /// Runs under the hash's lock: the segment stands still, but writers of other hashes may use it too.
    #[inline]
    fn put(&self, line: &Line, home: &Home, entry: Entry) -> bool {
        for step in 0..PROBE_BUCKETS {
            let Some(bucket) = self.bucket(line, home, step) else {
                return false;
            };
            if bucket.put(entry) {
                return true;
            }
            bucket.set_more();
        }
        false
    }

    /// Points the entry of exactly `old` to `new`; `false`, and no change, if there is none.
    #[inline]
    pub(crate) fn replace(&self, hash: KeyHash, old: Location, new: Location) -> bool {
        self.exchange(hash, old, Some(new))
    }

    /// Removes the entry of exactly `old`; `false`, and no change, if there is none.
    #[inline]
    pub(crate) fn remove(&self, hash: KeyHash, old: Location) -> bool {
        self.exchange(hash, old, None)
    }

    #[inline]
    fn exchange(&self, hash: KeyHash, old: Location, new: Option<Location>) -> bool {
        let _lock = self.locks.of(hash);
        let line = self.directory.line(hash);
        let home = line.home(hash);
        let (old, new) = (
            Entry::new(home.tag, old),
            new.map(|new| Entry::new(home.tag, new)),
        );
        for step in 0..PROBE_BUCKETS {
            let Some(bucket) = self.bucket(line, &home, step) else {
                return false;
            };
            if bucket.exchange(old, new) {
                return true;
            }
            if !bucket.has_more() {
                return false;
            }
        }
        false
    }

    /// The bucket `step` after the home; `None` if the segment has just been rebuilt.
    #[inline]
    fn bucket(&self, line: &Line, home: &Home, step: u32) -> Option<&Bucket> {
        let (buckets, wanted) = (home.shape.buckets(), home.bucket + step);
        let number = if wanted < buckets {
            wanted
        } else {
            wanted - buckets
        };
        let page = line.page_of(home, number)?;
        self.arena.page(page).get((number % PAGE_BUCKETS) as usize)
    }

    /// Removes everything. Readers may run; no change may. On an error nothing is removed.
    pub(crate) fn clear(&self) -> Result<(), IndexError> {
        let _locks = self.locks.all();
        let old = self.directory.segments();
        self.directory.reset(&self.empty_segments(DEPTH_FIRST)?);
        old.iter()
            .for_each(|segment| self.arena.retire(segment.pages));
        Ok(())
    }

    /// DRAM held: segments, spare pages, directory, locks.
    pub(crate) fn bytes(&self) -> u64 {
        size_of::<Index>() as u64 + self.arena.bytes() + self.directory.bytes() + self.locks.bytes()
    }
}
