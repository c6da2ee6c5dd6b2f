//! A line of the directory: the shape of a segment and its pages, in self-describing words.
//!
//! ```text
//!  63            32   31         28   27     22   21    16   15          0
//! [ page: 32 bits | pages: 4 bits | depth: 6 | base: 6 | generation: 16 ]     0 = no such page
//! ```
//!
//! Word `j` of a line names page `j` of the segment and carries everything needed to read it, in the same 8
//! bytes.
//!
//! # Reading while it changes
//!
//! A rebuild replaces the words of a segment one by one. A word describes itself.
//! So the word of the home page truly describes a segment that was current a moment ago, and its pages stay
//! intact while the reader is pinned. Only a search that crosses into another page needs two words of one
//! description: the generations must be equal and the first word still the same. The reader is pinned, so no
//! page of the first word can have been reused: the first word stood all along. At most the one change in
//! progress can have touched the second word, and that gives it the next generation.
//!
//! # Writing
//! A writer reads the word, takes the lock that its depth chooses, and reads the word again
//! ([`super::Index`]). If it is the same, the segment stands until the lock is released: a rebuild holds this
//! lock until all words are stored, and a split holds the locks of both halves.

use super::arena::{Arena, Pages};
use super::entry::{Entry, Location};
use super::hash::KeyHash;
use super::shape::PAGE_BUCKETS;
use super::shape::{PAGES_MAX, Shape};
use crate::concurrency::stripes::Backoff;
use everdram_pm::DramLine;
use std::sync::atomic::Ordering;

/// One word of a line as it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Word(u64);

impl Word {
    fn new(page: u32, shape: Shape, generation: u16) -> Word {
        let shape_bits =
            u64::from(shape.pages) << 12 | u64::from(shape.depth) << 6 | u64::from(shape.base);
        Word(u64::from(page) << 32 | shape_bits << 16 | u64::from(generation))
    }

    #[inline]
    pub(crate) fn page(self) -> u32 {
        (self.0 >> 32) as u32
    }

    /// `None` if the segment has no such page.
    #[inline]
    fn shape(self) -> Option<Shape> {
        let shape = Shape {
            pages: self.pages(),
            depth: self.depth(),
            base: self.bits(16, 6),
        };
        (shape.pages != 0).then_some(shape)
    }

    /// Pages of the segment; 0 if it has no such page.
    #[inline]
    fn pages(self) -> u32 {
        self.bits(28, 4)
    }

    /// How many top bits of the hash chose the segment.
    #[inline]
    pub(crate) fn depth(self) -> u32 {
        self.bits(22, 6)
    }

    #[inline]
    fn bits(self, at: u32, count: u32) -> u32 {
        (self.0 >> at) as u32 & ((1 << count) - 1)
    }

    #[inline]
    pub(crate) fn generation(self) -> u16 {
        self.0 as u16
    }

    /// Whether both words have the same description; only their pages may differ.
    #[inline]
    fn describes_as(self, other: Word) -> bool {
        self.0 as u32 == other.0 as u32
    }
}

/// Where the search for a hash begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    /// The word of the home bucket's page.
    pub(crate) word: Word,
    pub(crate) tag: u64,
    /// Number of the home bucket in the segment.
    pub(crate) bucket: u32,
}

impl Home {
    /// The entry of the hash for a location.
    #[inline]
    pub(crate) fn entry(&self, location: Location) -> Entry {
        Entry::new(self.tag, location)
    }

    /// Number of the bucket `step` after this one, in the segment.
    #[inline]
    pub(crate) fn bucket_after(&self, step: u32) -> u32 {
        let (buckets, wanted) = (self.word.pages() * PAGE_BUCKETS, self.bucket + step);
        if wanted < buckets {
            wanted
        } else {
            wanted - buckets
        }
    }

    /// Number of the home bucket's line in the arena.
    #[inline]
    pub(crate) fn line(&self) -> usize {
        Arena::line_of(self.word.page(), self.bucket)
    }
}

/// A whole segment, all words of one generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) shape: Shape,
    pub(crate) pages: Pages,
    pub(crate) generation: u16,
}

/// The words of one segment.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Line<'a>(pub(super) &'a DramLine);

const _: () = assert!(size_of::<DramLine>() == PAGES_MAX * size_of::<Word>());

impl Line<'_> {
    /// A word by its number, which is below [`PAGES_MAX`].
    #[inline]
    fn word(self, at: u32) -> Word {
        Word(self.0[at as usize % PAGES_MAX].load(Ordering::Acquire))
    }

    /// Finds the home of a hash. Waits only while the line is being changed.
    #[inline]
    pub(crate) fn home(self, hash: KeyHash) -> Home {
        match self.home_at_once(hash) {
            Some(home) => home,
            None => self.home_in_change(hash),
        }
    }

    /// As [`Line::home`]; `None` while the line is being changed.
    #[inline(always)]
    pub(crate) fn home_at_once(self, hash: KeyHash) -> Option<Home> {
        let first = self.word(0);
        let shape = first.shape()?;
        let tag = shape.tag(hash);
        let bucket = shape.home(tag);
        let word = self.word(bucket / PAGE_BUCKETS);
        word.describes_as(first)
            .then_some(Home { word, tag, bucket })
    }

    /// As [`Line::home`], during a change. Any word works that describes a segment in which it is the home's
    /// word.
    #[cold]
    fn home_in_change(self, hash: KeyHash) -> Home {
        let mut backoff = Backoff::new();
        let mut at = 0;
        loop {
            let word = self.word(at);
            let Some(shape) = word.shape() else {
                at = 0;
                backoff.wait();
                continue;
            };
            let tag = shape.tag(hash);
            let bucket = shape.home(tag);
            let page = bucket / PAGE_BUCKETS;
            if page == at {
                return Home { word, tag, bucket };
            }
            at = page;
        }
    }

    /// Whether the line still holds the segment of `home`.
    #[inline]
    pub(crate) fn is_of(self, home: &Home) -> bool {
        self.word(home.bucket / PAGE_BUCKETS) == home.word
    }

    /// The page of another bucket of the segment of `home`; `None` if the line has changed.
    #[inline]
    pub(crate) fn page_of(self, home: &Home, bucket: u32) -> Option<u32> {
        let (first, at) = (home.bucket / PAGE_BUCKETS, bucket / PAGE_BUCKETS);
        if at == first {
            return Some(home.word.page());
        }
        let word = self.word(at);
        let same = word.shape().is_some() && word.generation() == home.word.generation();
        (same && self.word(first) == home.word).then_some(word.page())
    }

    /// The segment, all words of one generation. Waits only while the line is being changed.
    pub(crate) fn segment(self) -> Segment {
        let mut backoff = Backoff::new();
        loop {
            let first = self.word(0);
            if let Some(segment) = first
                .shape()
                .and_then(|shape| self.segment_of(first, shape))
            {
                return segment;
            }
            backoff.wait();
        }
    }

    fn segment_of(self, first: Word, shape: Shape) -> Option<Segment> {
        let mut pages = Pages::new();
        for at in 0..shape.pages {
            let word = self.word(at);
            if word.shape() != Some(shape) || word.generation() != first.generation() {
                return None;
            }
            pages.push(word.page());
        }
        let segment = Segment {
            shape,
            pages,
            generation: first.generation(),
        };
        (self.word(0) == first).then_some(segment)
    }

    /// Replaces the line by that of another segment, word by word.
    pub(super) fn store(self, segment: &Segment) {
        let pages = segment.pages.as_slice();
        assert!(
            segment.shape.is_sound() && pages.len() == segment.shape.pages as usize,
            "a segment has an impossible shape, or the wrong number of pages"
        );
        for (at, place) in self.0.iter().enumerate().rev() {
            let word = pages.get(at).map_or(0, |page| {
                Word::new(*page, segment.shape, segment.generation).0
            });
            place.store(word, Ordering::Release);
        }
    }

    pub(super) fn copy_from(self, other: Line<'_>) {
        for (to, from) in self.0.iter().zip(other.0.iter()) {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn segment(shape: Shape, first_page: u32, generation: u16) -> Segment {
        let mut pages = Pages::new();
        (0..shape.pages).for_each(|at| pages.push(first_page + at));
        Segment {
            shape,
            pages,
            generation,
        }
    }

    #[test]
    fn a_word_keeps_its_parts_apart() {
        let shape = Shape {
            pages: 8,
            depth: 40,
            base: 39,
        };
        let word = Word::new(u32::MAX, shape, u16::MAX);
        assert_eq!(
            (word.page(), word.shape(), word.generation()),
            (u32::MAX, Some(shape), u16::MAX)
        );
        let shape = Shape {
            pages: 1,
            depth: 6,
            base: 0,
        };
        let word = Word::new(0, shape, 0);
        assert_eq!(
            (word.page(), word.shape(), word.generation()),
            (0, Some(shape), 0)
        );
    }

    #[test]
    fn a_half_changed_line_is_not_believed() {
        let words = DramLine::default();
        let line = Line(&words);
        let shape = Shape {
            pages: 8,
            depth: 6,
            base: 6,
        };
        line.store(&segment(shape, 100, 7));
        let hash = KeyHash((1 << 58) - 1);
        let home = line.home(hash);
        assert_eq!((home.bucket, home.word.page()), (255, 107));
        assert_eq!(line.page_of(&home, 0), Some(100));
        // A change to five pages has reached word 1.
        for at in (1..8).rev() {
            let word = if at < 5 {
                Word::new(200 + at, Shape { pages: 5, ..shape }, 8).0
            } else {
                0
            };
            line.0[at as usize].store(word, Ordering::Relaxed);
        }
        assert_eq!(
            line.page_of(&home, 0),
            None,
            "the first word is not the same any more"
        );
        line.0[7].store(home.word.0, Ordering::Relaxed);
        assert_eq!(line.page_of(&home, 32), None, "another generation");
        assert!(line.segment_of(line.word(0), shape).is_none());
    }
}
