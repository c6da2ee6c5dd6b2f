//! The pages of segments and of the directory, in one range of memory that never moves.
//!
//! A page is 32 buckets of that range, so its number is as good as its address, and always safe to follow;
//! its meaning can change only after an epoch has passed. A page is in one of four states: never used, in a
//! segment, retired (out of the directory, but a pinned reader may still read it), or free. The arrays of the
//! directory are pages too, which are never reclaimed.

use super::IndexError;
use super::entry::Bucket;
use super::shape::PAGE_BUCKETS;
use super::shape::PAGES_MAX;
use crate::concurrency::epoch::Epochs;
use everdram_pm::{Dram, DramLine, DramRefused};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

const PAGE_BYTES: u64 = PAGE_BUCKETS as u64 * size_of::<DramLine>() as u64;

/// One in this many pages may wait for readers that have already left.
const WAITING_ONE_IN: usize = 64;

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

    /// Adds a page; at most [`PAGES_MAX`].
    pub(crate) fn push(&mut self, number: u32) {
        let Some(place) = self.numbers.get_mut(self.count) else {
            panic!("a segment has more pages than a line has words");
        };
        *place = number;
        self.count += 1;
    }

    pub(crate) fn as_slice(&self) -> &[u32] {
        self.numbers.split_at(self.count).0
    }
}

/// All pages of an index.
pub(crate) struct Arena {
    memory: Dram,
    epochs: Arc<Epochs>,
    stock: Mutex<Stock>,
}

/// The pages not in use.
struct Stock {
    /// Pages from here on were never used.
    fresh: u32,
    /// Pages of the directory.
    lent: u32,
    free: Vec<u32>,
    /// With the stamp after which they are free, by stamp.
    retired: VecDeque<(u64, Pages)>,
}

impl Stock {
    fn assert_handed_out(&self, pages: &Pages) {
        let is_handed_out = |page: &u32| *page < self.fresh && !self.free.contains(page);
        debug_assert!(
            pages.as_slice().iter().all(is_handed_out),
            "a free page is given back"
        );
    }
}

impl Arena {
    pub(crate) fn new(epochs: Arc<Epochs>) -> Result<Arena, IndexError> {
        Ok(Arena {
            memory: Dram::reserve(None).map_err(refused)?,
            epochs,
            stock: Mutex::new(Stock {
                fresh: 0,
                lent: 0,
                free: Vec::new(),
                retired: VecDeque::new(),
            }),
        })
    }

    /// Number of the line of memory that holds a bucket of a page.
    #[inline]
    pub(crate) fn line_of(page: u32, bucket: u32) -> usize {
        page as usize * PAGE_BUCKETS as usize + (bucket % PAGE_BUCKETS) as usize
    }

    /// Line numbers of a page.
    pub(crate) fn lines_of(page: u32) -> Range<usize> {
        let first = Arena::line_of(page, 0);
        first..first + PAGE_BUCKETS as usize
    }

    /// A line of memory in a page that is in use.
    #[inline]
    pub(crate) fn line(&self, number: usize) -> &DramLine {
        self.memory.line(number)
    }

    /// Prefetches a line.
    #[inline]
    pub(crate) fn prefetch(&self, number: usize) {
        self.memory.prefetch(number);
    }

    /// A bucket of a segment, by its page and its number (modulo [`PAGE_BUCKETS`]).
    #[inline]
    pub(crate) fn bucket(&self, page: u32, number: u32) -> Bucket<'_> {
        Bucket(self.line(Arena::line_of(page, number)))
    }

    /// The buckets of a page, in order.
    pub(crate) fn buckets(&self, page: u32) -> impl Iterator<Item = Bucket<'_>> {
        (0..PAGE_BUCKETS).map(move |number| self.bucket(page, number))
    }

    /// `count` pages with arbitrary contents, invisible to readers.
    pub(crate) fn allocate(&self, count: u32) -> Result<Pages, IndexError> {
        let mut stock = self.stock.lock();
        let waiting = stock.retired.len() * PAGES_MAX;
        // Asking whether readers are gone interrupts every core, so this asks for many pages at a time.
        let many = waiting * WAITING_ONE_IN >= stock.fresh as usize;
        self.take_back(&mut stock, count, many);
        match self.take(&mut stock, count) {
            Err(IndexError::Memory(_)) if !many => {
                self.take_back(&mut stock, count, true);
                self.take(&mut stock, count)
            }
            taken => taken,
        }
    }

    /// Frees retired pages that no reader can see any more, until `count` are free. `asked`: it may ask
    /// whether readers are gone, not only use what is known.
    fn take_back(&self, stock: &mut Stock, count: u32, asked: bool) {
        let has_passed = |stamp| match asked {
            true => self.epochs.passed(stamp),
            false => self.epochs.is_known_to_have_passed(stamp),
        };
        while stock.free.len() < count as usize
            && let Some((stamp, _)) = stock.retired.front()
            && has_passed(*stamp)
            && let Some((_, pages)) = stock.retired.pop_front()
        {
            stock.free.extend_from_slice(pages.as_slice());
        }
    }

    fn take(&self, stock: &mut Stock, count: u32) -> Result<Pages, IndexError> {
        let mut pages = Pages::new();
        for _ in 0..count {
            match stock.free.pop().map_or_else(|| self.run(stock, 1), Ok) {
                Ok(number) => pages.push(number),
                Err(error) => {
                    stock.free.extend_from_slice(pages.as_slice());
                    return Err(error);
                }
            }
        }
        Ok(pages)
    }

    /// Adjacent pages that were never used.
    fn run(&self, stock: &mut Stock, count: u32) -> Result<u32, IndexError> {
        let first = stock.fresh;
        let end = first.checked_add(count).ok_or(IndexError::Skewed)?;
        let bytes = u64::from(end) * PAGE_BYTES;
        self.memory.grow_to(bytes).map_err(refused)?;
        stock.fresh = end;
        Ok(first)
    }

    /// `count` zeroed adjacent lines, never freed: the number of the first.
    pub(crate) fn lines(&self, count: u64) -> Result<usize, IndexError> {
        let pages = count.div_ceil(u64::from(PAGE_BUCKETS));
        let pages = u32::try_from(pages).map_err(|_| IndexError::Skewed)?;
        let mut stock = self.stock.lock();
        let first = self.run(&mut stock, pages)?;
        stock.lent += pages;
        Ok(Arena::line_of(first, 0))
    }

    /// Frees pages that no reader was ever able to see.
    pub(crate) fn give_back(&self, pages: Pages) {
        let mut stock = self.stock.lock();
        stock.assert_handed_out(&pages);
        stock.free.extend_from_slice(pages.as_slice());
    }

    /// Retires pages that the caller has just removed from the directory.
    pub(crate) fn retire(&self, pages: Pages) {
        let mut stock = self.stock.lock();
        // Stamped under the lock, so that the queue is in the order of stamps.
        let stamp = self.epochs.advance();
        stock.assert_handed_out(&pages);
        assert!(
            stock.retired.back().is_none_or(|(last, _)| *last < stamp),
            "pages are retired out of the order of their stamps"
        );
        stock.retired.push_back((stamp, pages));
    }

    /// Pages that segments ever used.
    pub(crate) fn pages_used(&self) -> u32 {
        let stock = self.stock.lock();
        stock.fresh - stock.lent
    }

    /// Pages without a segment: free ones and retired ones.
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
        self.memory.bytes() + lists as u64
    }
}

fn refused(error: DramRefused) -> IndexError {
    IndexError::Memory(error.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn retired_pages_wait_for_readers() {
        let epochs = Epochs::new(1);
        let slot = epochs.register().unwrap();
        let arena = Arena::new(Arc::clone(&epochs)).unwrap();
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

    /// A few of many pages keep waiting, until nothing else is left.
    #[test]
    fn pages_that_wait_are_asked_for_before_memory_is_refused() {
        let epochs = Epochs::new(1);
        let huge = 2 << 20;
        let arena = Arena {
            memory: Dram::reserve(Some(huge)).unwrap(),
            ..Arena::new(epochs).unwrap()
        };
        let all = huge / PAGE_BYTES;
        let first = arena.allocate(8).unwrap();
        for _ in 0..all / 8 - 2 {
            arena.allocate(8).unwrap();
        }
        arena.retire(first);
        let fresh = arena.allocate(8).unwrap();
        assert!(!fresh.as_slice().contains(&first.as_slice()[0]));
        assert_eq!(arena.pages_spare(), 8);
        let mut again = arena.allocate(8).unwrap();
        again.numbers.reverse();
        assert_eq!(again, first);
        assert!(matches!(arena.allocate(1), Err(IndexError::Memory(_))));
    }

    #[test]
    fn lines_of_the_directory_are_zero_and_nobody_elses() {
        let arena = Arena::new(Epochs::new(1)).unwrap();
        arena.allocate(3).unwrap();
        let first = arena.lines(33).unwrap();
        assert_eq!(first, 3 * 32);
        assert!((first..first + 33).all(|line| arena.line(line).load() == [0; 8]));
        assert_eq!(arena.allocate(1).unwrap().as_slice(), [5]);
        assert!(matches!(arena.lines(1 << 38), Err(IndexError::Skewed)));
        assert!(matches!(arena.lines(1 << 36), Err(IndexError::Memory(_))));
        assert_eq!(arena.pages_used(), 4);
    }

    #[test]
    fn bytes_count_what_is_held() {
        let arena = Arena::new(Epochs::new(1)).unwrap();
        assert_eq!(arena.bytes(), 0);
        arena.allocate(1).unwrap();
        assert_eq!(arena.bytes(), 128 << 10);
        for _ in 0..32 {
            arena.allocate(8).unwrap();
        }
        assert_eq!(arena.bytes(), 640 << 10);
        for _ in 0..256 {
            arena.allocate(8).unwrap();
        }
        assert_eq!(arena.bytes(), 6 << 20);
    }
}
