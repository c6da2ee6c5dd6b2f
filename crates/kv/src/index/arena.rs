//! The pages that segments are made of.
//!
//! Pages are carved from chunks of 128 KiB that live as long as the index, so a page number is always
//! good to follow; what a page means can change only after an epoch has passed. A page is in one of four
//! states: never used, in a segment, retired (out of the directory, but a pinned reader may still
//! read it), or free.
//!
//! Chunks hang in tables of doubling size: a number leads to its page without a lock.

use super::IndexError;
use super::entry::Bucket;
use super::shape::PAGES_MAX;
use crate::epoch::Epochs;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// Buckets of a page: 2 KiB.
pub(crate) const PAGE_BUCKETS: u32 = 32;
/// The unit in which segments grow.
pub(crate) type Page = [Bucket; PAGE_BUCKETS as usize];

const CHUNK_PAGES: usize = 64;
/// Chunks of the first table; each further table has twice as many.
const TABLE_CHUNKS: usize = 64;
/// Enough tables for every 32-bit page number.
const TABLES: usize = 21;

type Chunk = OnceLock<Box<[Page]>>;

/// Page numbers of one segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    numbers: [u32; PAGES_MAX],
    count: usize,
}

impl Pages {
    pub(crate) fn new() -> Pages {
        Pages {
            numbers: [0; PAGES_MAX],
            count: 0,
        }
    }

    /// Adds a page; more than [`PAGES_MAX`] are ignored.
    pub(crate) fn push(&mut self, number: u32) {
        if let Some(place) = self.numbers.get_mut(self.count) {
            *place = number;
            self.count += 1;
        }
    }

    pub(crate) fn as_slice(&self) -> &[u32] {
        self.numbers.split_at(self.count).0
    }
}

/// All pages of an index.
pub(crate) struct Arena {
    epochs: Arc<Epochs>,
    tables: [OnceLock<Box<[Chunk]>>; TABLES],
    stock: Mutex<Stock>,
    /// Bytes of chunks and their tables.
    bytes: AtomicU64,
}

/// What can be handed out.
struct Stock {
    /// Pages from here on were never used.
    fresh: u32,
    free: Vec<u32>,
    /// With the stamp after which they are free, in the order of stamps.
    retired: VecDeque<(u64, Pages)>,
}

impl Arena {
    pub(crate) fn new(epochs: Arc<Epochs>) -> Arena {
        Arena {
            epochs,
            tables: [const { OnceLock::new() }; TABLES],
            stock: Mutex::new(Stock {
                fresh: 0,
                free: Vec::new(),
                retired: VecDeque::new(),
            }),
            bytes: AtomicU64::new(0),
        }
    }

    /// The page of a number that [`Arena::allocate`] gave.
    #[inline]
    pub(crate) fn page(&self, number: u32) -> &Page {
        let number = number as usize;
        let (table, chunk) = place_of_chunk(number / CHUNK_PAGES);
        let chunk = self
            .tables
            .get(table)
            .and_then(OnceLock::get)
            .and_then(|table| table.get(chunk));
        match chunk
            .and_then(OnceLock::get)
            .and_then(|pages| pages.get(number % CHUNK_PAGES))
        {
            Some(page) => page,
            None => unreachable!("page {number} was never allocated"),
        }
    }

    /// `count` pages with arbitrary contents, which nobody else can see.
    pub(crate) fn allocate(&self, count: u32) -> Result<Pages, IndexError> {
        let mut stock = self.stock.lock();
        while stock.free.len() < count as usize
            && let Some((stamp, _)) = stock.retired.front()
            && self.epochs.passed(*stamp)
            && let Some((_, pages)) = stock.retired.pop_front()
        {
            stock.free.extend_from_slice(pages.as_slice());
        }
        let mut pages = Pages::new();
        for _ in 0..count {
            match stock.free.pop().map_or_else(|| self.fresh(&mut stock), Ok) {
                Ok(number) => pages.push(number),
                Err(error) => {
                    stock.free.extend_from_slice(pages.as_slice());
                    return Err(error);
                }
            }
        }
        Ok(pages)
    }

    fn fresh(&self, stock: &mut Stock) -> Result<u32, IndexError> {
        let number = stock.fresh;
        if (number as usize).is_multiple_of(CHUNK_PAGES) {
            self.add_chunk(number as usize / CHUNK_PAGES)?;
        }
        stock.fresh = number.checked_add(1).ok_or(IndexError::Skewed)?;
        Ok(number)
    }

    /// Runs under the stock's lock.
    fn add_chunk(&self, chunk: usize) -> Result<(), IndexError> {
        let (table_number, place) = place_of_chunk(chunk);
        let table = self.tables.get(table_number).ok_or(IndexError::Skewed)?;
        if table.get().is_none() {
            let chunks = boxed(TABLE_CHUNKS << table_number, Chunk::new)?;
            self.count_bytes(size_of_val::<[Chunk]>(&chunks));
            // Only this thread sets it: it holds the lock.
            let _ = table.set(chunks);
        }
        let pages = boxed(CHUNK_PAGES, Page::default)?;
        self.count_bytes(size_of_val::<[Page]>(&pages));
        if let Some(chunk) = table.get().and_then(|chunks| chunks.get(place)) {
            let _ = chunk.set(pages);
        }
        Ok(())
    }

    fn count_bytes(&self, bytes: usize) {
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// Takes back pages that no reader has ever been able to see.
    pub(crate) fn give_back(&self, pages: Pages) {
        self.stock.lock().free.extend_from_slice(pages.as_slice());
    }

    /// Takes back pages that the caller has just removed from the directory.
    pub(crate) fn retire(&self, pages: Pages) {
        let mut stock = self.stock.lock();
        // Stamped under the lock, so that the queue is in the order of stamps.
        let stamp = self.epochs.advance();
        stock.retired.push_back((stamp, pages));
    }

    /// Pages that were ever used.
    pub(crate) fn pages_used(&self) -> u32 {
        self.stock.lock().fresh
    }

    /// Pages that no segment uses: free ones and retired ones.
    #[cfg(test)]
    pub(crate) fn pages_spare(&self) -> usize {
        let stock = self.stock.lock();
        stock.free.len()
            + stock
                .retired
                .iter()
                .map(|(_, pages)| pages.as_slice().len())
                .sum::<usize>()
    }

    /// DRAM held.
    pub(crate) fn bytes(&self) -> u64 {
        let stock = self.stock.lock();
        let lists = stock.free.capacity() * size_of::<u32>()
            + stock.retired.capacity() * size_of::<(u64, Pages)>();
        self.bytes.load(Ordering::Relaxed) + lists as u64
    }
}

/// Table and place of a chunk.
#[inline]
fn place_of_chunk(chunk: usize) -> (usize, usize) {
    let table = (chunk / TABLE_CHUNKS + 1).ilog2();
    (table as usize, chunk - TABLE_CHUNKS * ((1 << table) - 1))
}

/// A boxed slice, or an error where the global allocator would end the process.
pub(crate) fn boxed<T>(count: usize, make: impl FnMut() -> T) -> Result<Box<[T]>, IndexError> {
    let mut items = Vec::new();
    items
        .try_reserve_exact(count)
        .map_err(|_| IndexError::Memory(count * size_of::<T>()))?;
    items.resize_with(count, make);
    Ok(items.into_boxed_slice())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_fill_the_tables_in_order() {
        let mut expected = (0..TABLES).flat_map(|t| (0..TABLE_CHUNKS << t).map(move |at| (t, at)));
        for chunk in 0..1000 {
            assert_eq!(Some(place_of_chunk(chunk)), expected.next());
        }
        let last = u32::MAX as usize / CHUNK_PAGES;
        assert!(place_of_chunk(last).0 < TABLES);
    }

    #[test]
    fn retired_pages_wait_for_readers() {
        let epochs = Epochs::new(1);
        let slot = epochs.register().unwrap();
        let arena = Arena::new(Arc::clone(&epochs));
        let first = arena.allocate(8).unwrap();
        let pin = slot.pin();
        arena.retire(first);
        let second = arena.allocate(8).unwrap();
        assert!(
            second
                .as_slice()
                .iter()
                .all(|page| !first.as_slice().contains(page))
        );
        drop(pin);
        let mut third = arena.allocate(8).unwrap();
        third.numbers.reverse();
        assert_eq!(third, first);
        assert_eq!(arena.pages_used(), 16);
    }

    #[test]
    fn bytes_count_what_is_held() {
        let arena = Arena::new(Epochs::new(1));
        assert_eq!(arena.bytes(), 0);
        arena.allocate(1).unwrap();
        let one = arena.bytes();
        assert!((128 << 10..130 << 10).contains(&one), "{one}");
        for _ in 0..32 {
            arena.allocate(8).unwrap();
        }
        assert_eq!(arena.bytes(), one + (512 << 10));
    }
}
