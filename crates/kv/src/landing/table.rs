//! The table of grants, in DRAM: which keys have some, and which pages are free.

use super::layout::Line;
use crate::error::Error;
use crossbeam_utils::CachePadded;
use everdram_pm::lock::lock;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Buckets, by a hash of the key.
pub(super) const BUCKETS: usize = 4096;

/// A grant that the table knows.
pub(super) struct Live {
    pub(super) page: u32,
    pub(super) line: Line,
    /// Its value was applied. Changes under the bucket's lock.
    pub(super) applied: AtomicBool,
    /// Nobody will release it: its pages are free as soon as it is applied.
    pub(super) orphan: AtomicBool,
}

impl Live {
    pub(super) fn new(page: u32, line: Line) -> Arc<Live> {
        Arc::new(Live {
            page,
            line,
            applied: AtomicBool::new(false),
            orphan: AtomicBool::new(false),
        })
    }

    pub(super) fn is_applied(&self) -> bool {
        self.applied.load(Ordering::Acquire)
    }
}

#[derive(Default)]
struct Bucket {
    /// Grants of its keys that were not applied, told or about to be.
    grants: AtomicU64,
    /// Held by whoever applies. Whoever waits for it is in no call, and has committed.
    applying: Mutex<()>,
    /// Those that were told. Never locked for longer than it takes to copy the list.
    live: Mutex<Vec<Arc<Live>>>,
}

/// Which runs of pages are free, by their first page, and which grants have the others.
struct Room {
    free: BTreeMap<u32, u32>,
    given: HashMap<u32, Arc<Live>>,
}

/// See the module text.
pub(super) struct Table {
    /// Grants in all buckets: almost always 0 where nobody writes remotely, and then the only word looked at.
    grants: CachePadded<AtomicU64>,
    applied: AtomicU64,
    /// Arrivals that are being applied now.
    applying: AtomicU64,
    buckets: Box<[Bucket]>,
    room: Mutex<Room>,
}

/// The bucket of a key, by the keyed sum of the key.
pub(super) fn bucket_of(key_sum: u64) -> usize {
    (key_sum >> 32) as usize % BUCKETS
}

impl Table {
    pub(super) fn new(pages: u32) -> Table {
        Table {
            grants: CachePadded::default(),
            applied: AtomicU64::new(0),
            applying: AtomicU64::new(0),
            buckets: (0..BUCKETS).map(|_| Bucket::default()).collect(),
            room: Mutex::new(Room {
                free: BTreeMap::from([(0, pages)]),
                given: HashMap::new(),
            }),
        }
    }

    /// Whether there is no grant at all. Whoever sees that sees everything that was applied: on x86 this is a
    /// plain load.
    #[inline]
    pub(super) fn is_quiet(&self) -> bool {
        self.grants.load(Ordering::Acquire) == 0
    }

    /// As [`Table::is_quiet`], of one bucket.
    pub(super) fn is_bucket_quiet(&self, bucket: usize) -> bool {
        self.buckets[bucket].grants.load(Ordering::Acquire) == 0
    }

    pub(super) fn grants(&self) -> u64 {
        self.grants.load(Ordering::Acquire)
    }

    /// Arrivals applied so far.
    pub(super) fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    /// Arrivals applied so far, if none is being applied: the engine has all of their effect, or nothing.
    pub(super) fn applied_whole(&self) -> Option<u64> {
        let applied = self.applied.load(Ordering::SeqCst);
        (self.applying.load(Ordering::SeqCst) == 0).then_some(applied)
    }

    /// Until this is dropped, an arrival is being applied.
    pub(super) fn apply(&self) -> Applying<'_> {
        self.applying.fetch_add(1, Ordering::SeqCst);
        Applying(self)
    }

    /// Counts a grant that is about to be given.
    pub(super) fn raise(&self, bucket: usize) {
        self.grants.fetch_add(1, Ordering::SeqCst);
        self.buckets[bucket].grants.fetch_add(1, Ordering::SeqCst);
    }

    /// Undoes [`Table::raise`], after everything else that the end of a grant takes.
    pub(super) fn lower(&self, bucket: usize) {
        self.buckets[bucket].grants.fetch_sub(1, Ordering::Release);
        self.grants.fetch_sub(1, Ordering::Release);
    }

    /// Takes the lock of a bucket. The caller's session is in no call, and has committed.
    pub(super) fn hold(&self, bucket: usize) -> MutexGuard<'_, ()> {
        lock(&self.buckets[bucket].applying)
    }

    /// The grants of a bucket that were told, in the order in which they were given.
    pub(super) fn live(&self, bucket: usize, wanted: impl Fn(&Live) -> bool) -> Vec<Arc<Live>> {
        let live = lock(&self.buckets[bucket].live);
        let live = live.iter().filter(|live| wanted(live));
        let mut live: Vec<Arc<Live>> = live.cloned().collect();
        live.sort_unstable_by_key(|live| live.line.generation);
        live
    }

    /// Enters a grant whose count was raised, and whose line is durable.
    pub(super) fn enter(&self, live: &Arc<Live>) {
        lock(&self.room).given.insert(live.page, Arc::clone(live));
        let bucket = &self.buckets[bucket_of(live.line.key_sum)];
        lock(&bucket.live).push(Arc::clone(live));
    }

    /// Forgets a grant whose word is cleared. The caller holds the bucket.
    pub(super) fn leave(&self, live: &Arc<Live>, is_applied: bool) {
        let bucket = bucket_of(live.line.key_sum);
        lock(&self.buckets[bucket].live).retain(|other| !Arc::ptr_eq(other, live));
        live.applied.store(is_applied, Ordering::Release);
        self.applied
            .fetch_add(u64::from(is_applied), Ordering::SeqCst);
        if live.orphan.load(Ordering::Acquire) {
            self.free(live.page, live.line.pages);
        }
        self.lower(bucket);
    }

    /// The grant with this number.
    pub(super) fn given(&self, number: u32) -> Option<Arc<Live>> {
        lock(&self.room).given.get(&number).cloned()
    }

    /// Takes the pages of an applied grant for another. `false`: somebody else has released or taken them.
    pub(super) fn take_over(&self, old: &Arc<Live>) -> bool {
        let mut room = lock(&self.room);
        let is_same = room
            .given
            .get(&old.page)
            .is_some_and(|live| Arc::ptr_eq(live, old));
        is_same && room.given.remove(&old.page).is_some()
    }

    /// Takes a run of free pages.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(super) fn take(&self, pages: u32) -> Result<u32, Error> {
        let mut room = lock(&self.room);
        let found = room.free.iter().find(|(_, free)| **free >= pages);
        let Some((&page, &free)) = found else {
            let what = format!(
                "the landing area has no {pages} pages in a row; release grants, or make a pool with a larger one"
            );
            return Err(Error::NoSpace(what));
        };
        room.free.remove(&page);
        if free > pages {
            room.free.insert(page + pages, free - pages);
        }
        Ok(page)
    }

    /// Takes this run of pages, at the opening of the pool. `false`: some of them are taken.
    pub(super) fn take_at(&self, page: u32, pages: u32) -> bool {
        let mut room = lock(&self.room);
        let run = room.free.range(..=page).next_back();
        let Some((&first, &free)) = run else {
            return false;
        };
        let (end, free_end) = (page + pages, first + free);
        if end > free_end {
            return false;
        }
        room.free.remove(&first);
        if first < page {
            room.free.insert(first, page - first);
        }
        if end < free_end {
            room.free.insert(end, free_end - end);
        }
        true
    }

    /// Gives back a run of pages, whose line is free.
    pub(super) fn free(&self, page: u32, pages: u32) {
        let mut room = lock(&self.room);
        room.given.remove(&page);
        let (mut first, mut end) = (page, page + pages);
        if let Some((&before, &free)) = room.free.range(..page).next_back()
            && before + free == page
        {
            room.free.remove(&before);
            first = before;
        }
        if let Some(free) = room.free.remove(&end) {
            end += free;
        }
        room.free.insert(first, end - first);
    }

    pub(super) fn pages_free(&self) -> u64 {
        lock(&self.room)
            .free
            .values()
            .map(|&free| u64::from(free))
            .sum()
    }
}

/// See [`Table::apply`].
pub(super) struct Applying<'t>(&'t Table);

impl Drop for Applying<'_> {
    fn drop(&mut self) {
        self.0.applying.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::{RngExt, SeedableRng};

    #[test]
    fn runs_are_taken_once_and_join_again() {
        let table = Table::new(100);
        let mut random = rand::rngs::StdRng::seed_from_u64(5);
        let mut owners = [false; 100];
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for _ in 0..5000 {
            if random.random() {
                let pages = random.random_range(1..20);
                if let Ok(page) = table.take(pages) {
                    for owner in &mut owners[page as usize..(page + pages) as usize] {
                        assert!(!std::mem::replace(owner, true));
                    }
                    runs.push((page, pages));
                }
            } else if !runs.is_empty() {
                let (page, pages) = runs.swap_remove(random.random_range(0..runs.len()));
                owners[page as usize..(page + pages) as usize].fill(false);
                table.free(page, pages);
            }
            let free = owners.iter().filter(|taken| !**taken).count();
            assert_eq!(table.pages_free(), free as u64);
        }
        runs.into_iter()
            .for_each(|(page, pages)| table.free(page, pages));
        assert!(table.take_at(99, 1) && !table.take_at(98, 2) && table.take_at(0, 99));
        assert!(table.take(1).is_err());
    }
}
