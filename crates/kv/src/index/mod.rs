//! The index: maps a key's hash to the location of its record. Volatile, concurrent, never trusted for truth.
//!
//! An entry is 8 bytes: a 23-bit tag of the key's hash and a 40-bit location. The index does not know keys:
//! a lookup offers the locations whose tags match, and the caller reads the records and decides.
//!
//! * [`directory`]: the top bits of the hash choose a [`line`], which names the 1 to 8 pages of a segment.
//! * [`shape`]: the next bits choose the home bucket, one cache line of eight entries.
//! * [`entry`]: an entry lies in its home or in one of the next nine buckets. A passed bucket has a flag, and
//!   a lookup stops at the first bucket without it.
//! * [`candidates`]: a search, location by location.
//! * [`parts`]: several threads fill an index together.
//! * [`copy`]: the whole index as a sequence of entries, for a checkpoint, and back.
//! * [`growth`]: a segment grows page by page, then splits; an entry costs about 10 to 11 bytes in total.
//! * [`arena`]: pages of one range of memory, which is on huge pages; reused once no reader can see them
//!   ([`crate::concurrency::epoch`]).
//!
//! # What it costs
//! An entry is three dependent loads away: the directory's root, which stays in the first-level cache; a line
//! of the directory, 64 bytes for about 1200 entries; the bucket. Usually only the last one misses, and
//! [`Index::prefetch`] starts it early. A change also takes one lock: one exchange.
//!
//! # What holds for readers
//! A lookup takes no lock. An entry never moves within live pages, and old pages do not change while a reader
//! is pinned. So a lookup finds every entry that exists during the whole lookup. An offered location was in
//! the index under this hash's tag after the reader pinned. If the engine retires records under the same
//! epochs, after it removed them from the index, that location is safe to read.
//!
//! # What callers promise
//! Two changes of one key never run at once. A record is retired only after its entry is replaced or
//! removed. A `rehash` callback only reads memory, whatever locks its caller holds.
//!
//! # Why nothing deadlocks
//! There are three kinds of lock. A thread waits for one only while it holds none of a later kind:
//!
//! 1. the locks of segments ([`locks`]): a change takes one; if its segment must be split, that of the upper
//!    half, a later one, too; `clear` takes all, in ascending order;
//! 2. `changing` of the directory, taken by growth and `clear` to publish;
//! 3. the stock of the arena, taken for a few instructions (growth of the directory takes it under
//!    `changing`), and the lock under which its memory grows.
//!
//! No thread waits for anything of the caller under them, so callers may hold locks of their own.

mod arena;
mod candidates;
mod copy;
mod directory;
mod entry;
mod growth;
mod hash;
mod line;
mod locks;
mod parts;
mod scan;
mod shape;

/// In tests no entry leads to anything that a crash could lose.
#[cfg(test)]
const FOUND: Ordered = Ordered::when_found();
#[cfg(test)]
mod cost;
#[cfg(test)]
mod tests;

pub(crate) use copy::{Restoring, entries_of};
pub(crate) use directory::DEPTH_FIRST;
pub(crate) use entry::Location;
pub(crate) use growth::Rehash;
pub(crate) use hash::{Hasher, KeyHash, SECRET_BYTES};
pub(crate) use parts::Parts;

use crate::concurrency::epoch::{Epochs, Pin};
use crate::concurrency::seam::{few, publishes};
use arena::Arena;
use candidates::Candidates;
use directory::Directory;
use entry::{Bucket, Entry};
use everdram_pm::Ordered;
use line::{Home, Line};
use locks::{Held, Locks};
use parking_lot::RwLock;
use std::sync::Arc;

/// Buckets in which an entry may lie: its home and the next nine. Few searches go past the second, but the
/// last ones decide how full a segment is when it must grow: 70 % with 4 buckets, 85 % with 10.
const PROBE_BUCKETS: u32 = 10;

/// Why the index could not take an entry. It is unchanged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum IndexError {
    /// The system refused memory.
    #[error("no memory for {0} bytes of index: give the process more, or store fewer keys")]
    Memory(u64),
    /// More keys share their hashes' top bits than chance explains.
    #[error(
        "the index cannot spread its entries: their hashes are not random; reopen the store to draw a new secret"
    )]
    Skewed,
    /// A record that growth had to read is not the indexed one.
    #[error("the record at location {} does not have the key that the index knows it by; run `check`", .0.get())]
    Rehash(Location),
}

/// See the module text.
pub(crate) struct Index {
    epochs: Arc<Epochs>,
    hasher: Hasher,
    locks: Locks,
    directory: Directory,
    arena: Arena,
    /// The first hashes and the pages of the segments that an index had which is being filled again, so that
    /// its segments grow once.
    expected: RwLock<Vec<(u64, u32)>>,
}

impl Index {
    /// An empty index whose readers pin `epochs`; `depth` is [`DEPTH_FIRST`], or less for an index that stays
    /// small.
    pub(crate) fn new(
        epochs: Arc<Epochs>,
        hasher: Hasher,
        depth: u32,
    ) -> Result<Index, IndexError> {
        let arena = Arena::new(Arc::clone(&epochs))?;
        let index = Index {
            directory: Directory::new(&arena, depth)?,
            arena,
            epochs,
            hasher,
            locks: Locks::new(),
            expected: RwLock::default(),
        };
        let empty = index.empty_segments(depth, 1)?;
        index.directory.reset(&index.arena, &empty);
        Ok(index)
    }

    /// The hash of a key, good for this index only.
    #[inline]
    pub(crate) fn hash(&self, key: &[u8]) -> KeyHash {
        self.hasher.hash(key)
    }

    /// The secret, which a copy of this index must keep.
    pub(crate) fn secret(&self) -> &[u8; SECRET_BYTES] {
        self.hasher.secret()
    }

    /// Offers the locations that may belong to the key with this hash, until `is` accepts one.
    #[inline]
    pub(crate) fn lookup(
        &self,
        hash: KeyHash,
        pin: &Pin<'_>,
        mut is: impl FnMut(Location) -> bool,
    ) -> Option<Location> {
        self.candidates(hash, pin).find(|location| is(*location))
    }

    /// The locations that may belong to the key with this hash, found as they are asked for.
    #[inline]
    pub(crate) fn candidates<'a>(&'a self, hash: KeyHash, pin: &'a Pin<'_>) -> Candidates<'a> {
        debug_assert!(pin.is_of(&self.epochs));
        Candidates::new(self, hash)
    }

    /// The first of [`Index::candidates`]: in few instructions, if its home bucket has it.
    #[inline(always)]
    pub(crate) fn first(&self, hash: KeyHash, pin: &Pin<'_>) -> Option<Location> {
        debug_assert!(pin.is_of(&self.epochs));
        match candidates::first(self, hash) {
            Some(found) => found,
            None => self.first_of_all(hash),
        }
    }

    /// Apart, so that the usual search stays small.
    #[inline(never)]
    fn first_of_all(&self, hash: KeyHash) -> Option<Location> {
        Candidates::new(self, hash).next()
    }

    /// Prefetches the bucket where the search for this hash will begin. Needs no pin: it reads only the
    /// directory.
    #[inline]
    pub(crate) fn prefetch(&self, hash: KeyHash) {
        self.approach(hash);
    }

    /// As [`Index::prefetch`]; returns where a change of this key begins.
    #[inline]
    fn approach(&self, hash: KeyHash) -> Home {
        let home = self.line(hash).home(hash);
        self.arena.prefetch(home.line());
        home
    }

    /// Adds an entry for a key that has none, after the fence that covers its record. May call `rehash` for
    /// any entry.
    #[inline]
    pub(crate) fn insert(
        &self,
        hash: KeyHash,
        location: Location,
        rehash: Rehash<'_>,
        _after: &Ordered,
    ) -> Result<(), IndexError> {
        let seen = self.approach(hash);
        publishes!();
        // No run of the lab fills a segment, so some of its runs grow segments early.
        let mut is_early = few!(2) == 1;
        loop {
            let (_held, line, home) = self.own(hash, seen);
            if !is_early && self.put(line, &home, home.entry(location)) {
                return Ok(());
            }
            is_early = false;
            self.grow(hash, rehash)?;
        }
    }

    /// As [`Index::insert`], for a segment whose entries no other thread changes meanwhile.
    #[inline]
    pub(crate) fn insert_alone(
        &self,
        hash: KeyHash,
        location: Location,
        rehash: Rehash<'_>,
    ) -> Result<(), IndexError> {
        loop {
            let line = self.line(hash);
            let home = line.home(hash);
            if self.put(line, &home, home.entry(location)) {
                return Ok(());
            }
            self.grow(hash, rehash)?;
        }
    }

    /// The number of first bits of a hash that choose its segment, in any segment: threads that only change
    /// keys with other bits never change the same segment.
    pub(crate) fn depth_shared(&self) -> u32 {
        let _locks = self.locks.all();
        let segments = self.directory.segments(&self.arena);
        let depths = segments.iter().map(|segment| segment.shape.depth);
        depths.min().unwrap_or(0)
    }

    /// Points the entry of exactly `old` to `new`, after the fence that covers `new`; `false`, and no change,
    /// if there is no such entry.
    #[inline]
    pub(crate) fn replace(
        &self,
        hash: KeyHash,
        old: Location,
        new: Location,
        _after: &Ordered,
    ) -> bool {
        self.exchange(hash, old, Some(new))
    }

    /// Removes the entry of exactly `old`, after the fence that covers the removal; `false`, and no change,
    /// if there is no such entry.
    #[inline]
    pub(crate) fn remove(&self, hash: KeyHash, old: Location, _after: &Ordered) -> bool {
        self.exchange(hash, old, None)
    }

    #[inline]
    fn exchange(&self, hash: KeyHash, old: Location, new: Option<Location>) -> bool {
        let seen = self.approach(hash);
        publishes!();
        let (_held, line, home) = self.own(hash, seen);
        let (old, new) = (home.entry(old), new.map(|new| home.entry(new)));
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

    /// Runs under the segment's lock, or alone.
    #[inline]
    fn put(&self, line: Line<'_>, home: &Home, entry: Entry) -> bool {
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

    /// Takes the lock of the segment of a hash, whose home was `home` a moment ago. Until it is released, the
    /// segment and its entries have no other writer.
    #[inline(always)]
    fn own(&self, hash: KeyHash, mut home: Home) -> (Held<'_>, Line<'_>, Home) {
        loop {
            let held = self.locks.of(hash, home.word.depth());
            let line = self.line(hash);
            if line.is_of(&home) {
                return (held, line, home);
            }
            // Rebuilt meanwhile, and perhaps under another lock.
            drop(held);
            home = line.home(hash);
        }
    }

    #[inline]
    fn line(&self, hash: KeyHash) -> Line<'_> {
        self.directory.line(&self.arena, hash)
    }

    /// The bucket `step` after the home; `None` if the segment has just been rebuilt.
    #[inline]
    fn bucket<'a>(&'a self, line: Line<'a>, home: &Home, step: u32) -> Option<Bucket<'a>> {
        let line = self.line_of(line, home, step)?;
        Some(Bucket(self.arena.line(line)))
    }

    /// Number of that bucket's line in the arena.
    #[inline]
    fn line_of(&self, line: Line<'_>, home: &Home, step: u32) -> Option<usize> {
        let number = home.bucket_after(step);
        let page = line.page_of(home, number)?;
        Some(Arena::line_of(page, number))
    }

    /// Removes everything, after the fence that covers the removal. Readers may run, writers must not. On an
    /// error nothing is removed.
    pub(crate) fn clear(&self, _after: &Ordered) -> Result<(), IndexError> {
        publishes!();
        let _locks = self.locks.all();
        let old = self.directory.segments(&self.arena);
        let empty = self.empty_segments(self.directory.depth_first(), 1)?;
        self.directory.reset(&self.arena, &empty);
        old.iter()
            .for_each(|segment| self.arena.retire(segment.pages));
        Ok(())
    }

    /// DRAM used: segments, spare pages, directory, locks.
    pub(crate) fn bytes(&self) -> u64 {
        size_of::<Index>() as u64 + self.arena.bytes() + self.locks.bytes()
    }
}
