//! The shadow: a persistent copy of the segments, in pages that are never changed in place.
//!
//! ```text
//!   root ──▶ node ──▶ node ──▶ page       a node is a page of references
//!                        └───▶ page
//!
//! reference   +--------+-----+
//!             | offset | sum |      offset 0: a page of zeros that was never written
//!             +--------+-----+
//! ```
//!
//! Page `n` of segment `s` has the logical number `n * segments + s`. The references to all pages, in the
//! order of their numbers, fill the nodes of level 1, the references to those the nodes of level 2, and so on
//! up to one page, the root. A sum is keyed, and covers the page's bytes, level and number; it is verified
//! whenever a page is read. Free pages are those that the tree does not reach.
//!
//! Invariants:
//! - No page that a durable root reaches is written. What a flush replaces is free only after the ledger with
//!   the new root is durable.
//! - There are always enough free pages for a flush of `piece` pages: [`ShadowRoom::reserve`] comes before
//!   the segments grow. So a checkpoint never fails for want of room, and writers may wait for it.

use super::Space;
use crate::concurrency::shares::share;
use crate::crl::Notes;
use crate::error::{Error, corrupt};
use everdram_pm::lock::lock;
use everdram_pm::{Lane, Pool, Secret, Unfenced};
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;

const REFERENCE: usize = 16;
const SALT: u64 = 0x73;
/// Bits of a root's note for the offset; the number of levels is above.
const OFFSET_BITS: u32 = 56;
/// The shadow grows by at most this many bytes more than it must.
const GROWTH_MOST: u64 = 64 << 20;

/// Takes a page: segment, byte, and bytes.
type Store<'a> = &'a (dyn Fn(usize, u64, &[u8]) -> Result<(), Error> + Sync);

/// The sizes of a shadow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ShadowShape {
    /// Owner of its extents.
    pub(crate) owner: u32,
    /// Bytes of a page: a power of two, 512 to 64 KiB.
    pub(crate) page_bytes: u64,
    /// Number of segments.
    pub(crate) segments: usize,
    /// Pages after which a piece of a checkpoint is written.
    pub(crate) piece: usize,
    /// The most pages that an object's changes touch.
    pub(crate) object_pages: usize,
}

/// Where a page is. `at` is 0 if it was never written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Reference {
    at: u64,
    sum: u64,
}

/// The extents of a shadow. Sessions that let a segment grow reserve room here, and wait for no checkpoint.
pub(super) struct ShadowRoom {
    pool: Arc<Pool>,
    shape: ShadowShape,
    /// Pages in the extents.
    pages: u64,
    /// Pages that it must have.
    needed: u64,
    /// Offsets of pages that the shadow has not taken over yet.
    fresh: Vec<u64>,
}

/// See the module text.
pub(crate) struct Shadow {
    pool: Arc<Pool>,
    pub(super) lane: Lane,
    shape: ShadowShape,
    pub(super) room: Arc<Mutex<ShadowRoom>>,
    /// The references of each level; the last one has one, the root. Empty: nothing was ever written.
    levels: Vec<Vec<Reference>>,
    /// Pages that were changed since the last flush.
    dirty: HashMap<u64, Box<[u8]>>,
    /// Offsets of free pages.
    free: Vec<u64>,
    /// Pages that were replaced since a ledger with the present root was durable. If a thread panics before
    /// that, nobody knows which root is, and the next ledger decides.
    replaced: Vec<u64>,
    /// Changes with LSNs up to this one do not count.
    pub(super) floor: u64,
    /// Bytes written since open.
    pub(crate) written: u64,
    /// Nodes of level 1 over pages that were put, which the next flush writes anew.
    put: BTreeSet<usize>,
    /// What does not verify, if the pool is being salvaged.
    damaged: Option<Mutex<Vec<Error>>>,
}

impl ShadowShape {
    /// References in a node.
    fn fan(&self) -> usize {
        self.page_bytes as usize / REFERENCE
    }

    /// References of each level over so many pages.
    fn levels(&self, pages: u64) -> Vec<usize> {
        let mut levels = Vec::new();
        let mut count = pages as usize;
        while count > 0 {
            levels.push(count);
            if count == 1 {
                break;
            }
            count = count.div_ceil(self.fan());
        }
        levels
    }

    /// Pages that a flush of `dirty` pages writes at most, if the segments have `pages`.
    fn written_by(&self, pages: u64, dirty: usize) -> usize {
        self.levels(pages)
            .iter()
            .map(|count| dirty.min(*count))
            .sum()
    }

    /// Pages that the shadow of segments of these bytes must have.
    fn needed(&self, segments: &[u64]) -> u64 {
        let own: u64 = segments
            .iter()
            .map(|bytes| bytes.div_ceil(self.page_bytes))
            .sum();
        let pages = self.numbers(segments);
        let nodes: usize = self.levels(pages).iter().skip(1).sum();
        own + (nodes + self.written_by(pages, self.piece + self.object_pages)) as u64
    }

    /// Numbers of pages in use if segments have these bytes.
    fn numbers(&self, segments: &[u64]) -> u64 {
        let used = segments.iter().enumerate().filter(|(_, bytes)| **bytes > 0);
        let ends = used.map(|(segment, bytes)| self.number(segment, bytes - 1) + 1);
        ends.max().unwrap_or(0)
    }

    fn number(&self, segment: usize, at: u64) -> u64 {
        assert!(segment < self.segments, "there is no segment {segment}");
        at / self.page_bytes * self.segments as u64 + segment as u64
    }
}

impl ShadowRoom {
    /// Makes sure that segments of these bytes have a shadow, and checkpoints room.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`]; the segments must not grow then.
    pub(super) fn reserve(&mut self, segments: &[u64]) -> Result<(), Error> {
        let needed = self.shape.needed(segments);
        if needed > self.needed {
            self.grow_to(needed)?;
            self.needed = needed;
        }
        Ok(())
    }

    fn grow_to(&mut self, pages: u64) -> Result<(), Error> {
        let Some(lacking) = pages.checked_sub(self.pages).filter(|lacking| *lacking > 0) else {
            return Ok(());
        };
        let bytes = (lacking * self.shape.page_bytes).next_multiple_of(4096);
        let ahead = (self.pages * self.shape.page_bytes / 8).min(GROWTH_MOST);
        let ahead = bytes.max(ahead / 4096 * 4096);
        let align = self.shape.page_bytes.max(4096);
        let owner = self.shape.owner;
        let extent = match self.pool.allocate(owner, ahead, align) {
            Err(everdram_pm::Error::NoSpace { .. }) if ahead > bytes => {
                self.pool.allocate(owner, bytes, align)
            }
            other => other,
        }
        .map_err(Error::of_pool)?;
        let places = (extent.at..extent.at + extent.bytes).step_by(self.shape.page_bytes as usize);
        let fits = |at: &u64| at + self.shape.page_bytes <= extent.at + extent.bytes;
        let before = self.fresh.len();
        self.fresh.extend(places.filter(fits));
        self.pages += (self.fresh.len() - before) as u64;
        Ok(())
    }
}

impl Shadow {
    /// The shadow of a pool, as the notes of its ledger say; `None`: of a new pool.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(crate) fn open(
        pool: &Arc<Pool>,
        shape: ShadowShape,
        notes: Option<Notes>,
        is_salvage: bool,
    ) -> Result<Shadow, Error> {
        let mut shadow = Shadow {
            lane: pool.lane(),
            pool: Arc::clone(pool),
            shape,
            levels: Vec::new(),
            dirty: HashMap::new(),
            free: Vec::new(),
            replaced: Vec::new(),
            room: Arc::new(Mutex::new(ShadowRoom {
                pool: Arc::clone(pool),
                shape,
                pages: 0,
                needed: 0,
                fresh: Vec::new(),
            })),
            floor: notes.map_or(0, |notes| notes[3]),
            written: 0,
            put: BTreeSet::new(),
            damaged: is_salvage.then(Mutex::default),
        };
        let mut places = HashSet::new();
        for extent in pool.extents(shape.owner) {
            let from = extent.at.next_multiple_of(shape.page_bytes);
            let ends = (from..).step_by(shape.page_bytes as usize);
            let fits = |at: &u64| at + shape.page_bytes <= extent.at + extent.bytes;
            places.extend(ends.take_while(fits));
        }
        shadow.room.lock().pages = places.len() as u64;
        if let Some(notes) = notes {
            shadow.load(notes, &mut places)?;
        }
        shadow.free = places.into_iter().collect();
        // In order, so that neighbouring pages are written together.
        shadow.free.sort_unstable_by(|one, other| other.cmp(one));
        Ok(shadow)
    }

    /// Reads the tree. Takes the pages that it reaches out of `places`.
    fn load(&mut self, notes: Notes, places: &mut HashSet<u64>) -> Result<(), Error> {
        let [root, sum, pages, _] = notes;
        let impossible = || corrupt(everdram_pm::ROOT_AT, "the shadow's root is impossible");
        // A page that was never written has a number all the same.
        let most = self
            .room
            .lock()
            .pages
            .saturating_mul(self.shape.segments as u64);
        if pages > most {
            return Err(impossible());
        }
        let counts = self.shape.levels(pages);
        if root >> OFFSET_BITS != counts.len() as u64 {
            return Err(impossible());
        }
        if counts.is_empty() {
            return Ok(());
        }
        let at = root & ((1 << OFFSET_BITS) - 1);
        self.levels = counts
            .iter()
            .map(|count| vec![Reference::default(); *count])
            .collect();
        let top = counts.len() - 1;
        self.levels[top][0] = Reference { at, sum };
        let mut bytes = vec![0; self.shape.page_bytes as usize];
        for level in (0..=top).rev() {
            for number in 0..self.levels[level].len() {
                let reference = self.levels[level][number];
                if reference.at == 0 {
                    continue;
                }
                if !places.remove(&reference.at) {
                    let what = "a page of the shadow lies outside its extents, or is used twice";
                    self.tolerate(corrupt(reference.at, what))?;
                }
                let Some(below) = level.checked_sub(1) else {
                    continue;
                };
                let read = self.read(level, number as u64, &mut bytes);
                self.accept(read, level, number as u64, &mut bytes)?;
                let first = number * self.shape.fan();
                let children = self.levels[below].iter_mut().skip(first);
                for (child, bytes) in children.zip(bytes.as_chunks::<REFERENCE>().0) {
                    let [at, sum] = [0, 8].map(|from| crate::crl::word_at(bytes, from));
                    *child = Reference { at, sum };
                }
            }
        }
        Ok(())
    }

    /// Pages of the segments.
    pub(super) fn logical(&self) -> u64 {
        self.levels.first().map_or(0, Vec::len) as u64
    }

    /// Bytes of a segment that the shadow may have.
    pub(crate) fn segment_bytes_max(&self) -> u64 {
        lock(&self.room).pages * self.shape.page_bytes
    }

    /// Bytes of a segment up to the last page that was ever written.
    pub(crate) fn segment_bytes(&self, segment: usize) -> u64 {
        let pages = self.levels.first().map_or(&[][..], Vec::as_slice);
        let own = pages.iter().skip(segment).step_by(self.shape.segments);
        let last = own
            .enumerate()
            .filter(|(_, page)| page.at != 0)
            .max_by_key(|(number, _)| *number);
        last.map_or(0, |(number, _)| (number as u64 + 1) * self.shape.page_bytes)
    }

    /// Bytes of its extents, and of these, free ones.
    pub(crate) fn bytes(&self) -> (u64, u64) {
        let room = lock(&self.room);
        let free = (self.free.len() + room.fresh.len()) as u64;
        (
            room.pages * self.shape.page_bytes,
            free * self.shape.page_bytes,
        )
    }

    /// The words for the ledger.
    pub(super) fn notes(&self) -> Notes {
        let root = self.levels.last().and_then(|level| level.first());
        let Reference { at, sum } = root.copied().unwrap_or_default();
        let height = self.levels.len() as u64;
        [at | height << OFFSET_BITS, sum, self.logical(), self.floor]
    }

    fn sum(&self, level: usize, number: u64, bytes: &[u8]) -> u64 {
        let secret: &Secret = self.pool.secret();
        secret.sum_words([secret.sum(bytes), number, SALT | (level as u64) << 8])
    }

    /// Reads a page, or a node, and verifies it.
    fn read(&self, level: usize, number: u64, into: &mut [u8]) -> Result<(), Error> {
        let level_of = self.levels.get(level);
        let reference = level_of.and_then(|level| level.get(number as usize));
        let reference = reference.copied().unwrap_or_default();
        if reference.at == 0 {
            into.fill(0);
            return Ok(());
        }
        let fits = self.pool.region().contains(reference.at, into.len() as u64);
        if !reference.at.is_multiple_of(8) || !fits {
            return Err(corrupt(
                reference.at,
                "a page of the shadow lies outside the pool",
            ));
        }
        self.pool.region().load(reference.at, into);
        if self.sum(level, number, into) != reference.sum {
            return Err(corrupt(
                reference.at,
                "a page of the shadow does not verify",
            ));
        }
        Ok(())
    }

    /// Notes damage and goes on, if the pool is being salvaged.
    fn tolerate(&self, error: Error) -> Result<(), Error> {
        match &self.damaged {
            Some(damaged) => {
                damaged.lock().push(error);
                Ok(())
            }
            None => Err(error),
        }
    }

    /// What does not verify, in a salvage.
    pub(crate) fn take_damaged(&self) -> Vec<Error> {
        let damaged = self.damaged.as_ref();
        damaged.map_or_else(Vec::new, |damaged| std::mem::take(&mut *damaged.lock()))
    }

    /// What a salvage makes of a page that does not verify: its bytes as they are, or those of a page
    /// elsewhere that verifies in its place. Of a node the references are tried one by one.
    ///
    /// # Errors
    /// That of the page, if this is no salvage.
    fn accept(
        &self,
        read: Result<(), Error>,
        level: usize,
        number: u64,
        into: &mut [u8],
    ) -> Result<(), Error> {
        let error = match read {
            Err(error @ Error::Corrupt { .. }) if self.damaged.is_some() => error,
            other => return other,
        };
        let sum = self.levels[level][number as usize].sum;
        for extent in self.pool.extents(self.shape.owner) {
            let from = extent.at.next_multiple_of(self.shape.page_bytes);
            let ends = (from..extent.at + extent.bytes).step_by(self.shape.page_bytes as usize);
            for at in ends.filter(|at| at + self.shape.page_bytes <= extent.at + extent.bytes) {
                let mut other = vec![0; into.len()];
                self.pool.region().load(at, &mut other);
                if self.sum(level, number, &other) == sum {
                    into.copy_from_slice(&other);
                    return self.tolerate(error);
                }
            }
        }
        let at = self.levels[level][number as usize].at;
        if !at.is_multiple_of(8) || !self.pool.region().contains(at, into.len() as u64) {
            into.fill(0);
        }
        self.tolerate(error)
    }

    /// Passes every page that was written to `store` (segment, byte, bytes), by several threads.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path; those of `store`.
    pub(crate) fn copy_out(&self, threads: usize, store: Store<'_>) -> Result<(), Error> {
        const TOGETHER: usize = 64;
        let pages = self.logical() as usize;
        let page = || vec![0; self.shape.page_bytes as usize];
        share(threads, pages.div_ceil(TOGETHER), page, |bytes, turn| {
            let from = turn * TOGETHER;
            for number in from..(from + TOGETHER).min(pages) {
                if self.levels[0][number].at == 0 {
                    continue;
                }
                let read = self.read(0, number as u64, bytes);
                self.accept(read, 0, number as u64, bytes)?;
                let segment = number % self.shape.segments;
                let at = (number / self.shape.segments) as u64 * self.shape.page_bytes;
                store(segment, at, bytes)?;
            }
            Ok(())
        })
        .map(drop)
    }

    /// Pages that were changed since the last flush.
    pub(super) fn dirty(&self) -> usize {
        self.dirty.len()
    }

    /// The page with a byte of a segment, to be changed; and the byte's place in it.
    fn page(&mut self, segment: usize, at: u64) -> Result<(&mut [u8], usize), Error> {
        let number = self.shape.number(segment, at);
        let place = (at % self.shape.page_bytes) as usize;
        if !self.dirty.contains_key(&number) {
            let mut bytes = vec![0; self.shape.page_bytes as usize];
            self.read(0, number, &mut bytes)?;
            self.dirty.insert(number, bytes.into());
        }
        match self.dirty.get_mut(&number) {
            Some(bytes) => Ok((bytes, place)),
            None => unreachable!("a page that was just inserted is gone"),
        }
    }

    /// Writes the changed pages to free places, with the nodes above them, and fences them. The root counts
    /// once a ledger names it.
    ///
    /// # Errors
    /// [`Error::NoSpace`], if more was changed than was reserved; nothing is written then.
    pub(super) fn flush(&mut self) -> Result<(), Error> {
        let mut dirty: Vec<(u64, Box<[u8]>)> = self.dirty.drain().collect();
        if dirty.is_empty() && self.put.is_empty() {
            return Ok(());
        }
        let last = dirty.iter().map(|(number, _)| *number).max();
        let pages = self.logical().max(last.map_or(0, |last| last + 1));
        let needed = self.shape.written_by(pages, dirty.len() + self.put.len());
        if let Err(error) = self.take_fresh(needed) {
            self.dirty.extend(dirty);
            return Err(error);
        }
        dirty.sort_unstable_by_key(|(number, _)| *number);
        let counts = self.cover(pages);
        let (fan, mut unfenced) = (self.shape.fan(), Unfenced::default());
        let mut above = std::mem::take(&mut self.put);
        for (number, bytes) in dirty {
            self.place(0, number, &bytes, &mut unfenced);
            above.insert(number as usize / fan);
        }
        for level in 1..counts.len() {
            for number in std::mem::take(&mut above) {
                let mut bytes = Vec::with_capacity(self.shape.page_bytes as usize);
                for child in self.levels[level - 1].iter().skip(number * fan).take(fan) {
                    bytes.extend_from_slice(&child.at.to_le_bytes());
                    bytes.extend_from_slice(&child.sum.to_le_bytes());
                }
                bytes.resize(self.shape.page_bytes as usize, 0);
                self.place(level, number as u64, &bytes, &mut unfenced);
                above.insert(number / fan);
            }
        }
        let _ordered = unfenced.fence(&mut self.lane);
        Ok(())
    }

    /// Writes and fences one page, for a checkpoint by copy-on-write. The next flush writes its nodes.
    ///
    /// # Errors
    /// As [`Shadow::flush`].
    pub(crate) fn put_page(&mut self, segment: usize, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let number = self.shape.number(segment, at);
        if self.free.is_empty() {
            self.take_fresh(1)?;
        }
        self.cover(self.logical().max(number + 1));
        let mut unfenced = Unfenced::default();
        self.place(0, number, bytes, &mut unfenced);
        let _ordered = unfenced.fence(&mut self.lane);
        self.put.insert(number as usize / self.shape.fan());
        Ok(())
    }

    /// Changes with LSNs up to `floor` do not count, once a ledger says so.
    pub(crate) fn raise_floor(&mut self, floor: u64) {
        self.floor = self.floor.max(floor);
    }

    /// Makes room for references to so many pages. Returns how many each level has.
    fn cover(&mut self, pages: u64) -> Vec<usize> {
        let counts = self.shape.levels(pages);
        self.levels.resize(counts.len(), Vec::new());
        for (level, count) in self.levels.iter_mut().zip(&counts) {
            level.resize(*count, Reference::default());
        }
        counts
    }

    /// Takes over new pages, and lets the shadow grow if it has less than `needed` free ones.
    fn take_fresh(&mut self, needed: usize) -> Result<(), Error> {
        let mut room = lock(&self.room);
        let free = self.free.len() + room.fresh.len();
        if let Some(lacking) = needed.checked_sub(free).filter(|lacking| *lacking > 0) {
            let pages = room.pages + lacking as u64;
            room.grow_to(pages)?;
        }
        // Pages are taken from the end, the lowest first.
        let mut fresh = std::mem::take(&mut room.fresh);
        fresh.reverse();
        fresh.append(&mut self.free);
        self.free = fresh;
        Ok(())
    }

    fn place(&mut self, level: usize, number: u64, bytes: &[u8], unfenced: &mut Unfenced) {
        let Some(at) = self.free.pop() else {
            panic!("a flush takes more pages than it has counted");
        };
        unfenced.add(self.lane.stream(at, bytes));
        self.written += bytes.len() as u64;
        let sum = self.sum(level, number, bytes);
        let reference = &mut self.levels[level][number as usize];
        let before = std::mem::replace(reference, Reference { at, sum });
        if before.at != 0 {
            self.replaced.push(before.at);
        }
    }

    /// The ledger with the present root is durable: what the last flush replaced is free.
    pub(super) fn settle(&mut self) {
        self.free.append(&mut self.replaced);
    }
}

impl Space for Shadow {
    fn load(&mut self, segment: usize, at: u64) -> Result<u64, Error> {
        let (page, place) = self.page(segment, at)?;
        Ok(crate::crl::word_at(page, place))
    }

    fn store(&mut self, segment: usize, mut at: u64, mut bytes: &[u8]) -> Result<(), Error> {
        while !bytes.is_empty() {
            let (page, place) = self.page(segment, at)?;
            let part = bytes.len().min(page.len() - place);
            let (now, later) = bytes.split_at(part);
            page[place..place + part].copy_from_slice(now);
            bytes = later;
            at += part as u64;
        }
        Ok(())
    }
}
