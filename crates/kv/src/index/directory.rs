//! From the top bits of a hash to a segment's pages.
//!
//! A directory of depth `d` is an array of `2^d` lines of 64 bytes; a segment of depth `s <= d` fills `2^(d-s)`
//! lines with the same words. Word `j` of a line names page `j` of the segment and carries, in the
//! same 8 bytes, everything needed to read it:
//!
//! ```text
//!  63            32   31         28   27     22   21    16   15          0
//! [ page: 32 bits | pages: 4 bits | depth: 6 | base: 6 | generation: 16 ]     0 = no such page
//! ```
//!
//! # Reading while it changes
//! A rebuilt segment replaces its words one by one. A word describes itself, so a reader that holds the
//! word of the home page holds a true description of a segment that was current a moment ago, whose pages are
//! intact while the reader is pinned. Only a search that crosses into another page needs two words
//! of one description: the generations must be equal and the first word still the same. As the reader
//! is pinned, no page of the first word can have come back meanwhile, so the first word stood all
//! along; at most the one change that was under way can have touched the second, and that gives it the
//! next generation.
//!
//! # Growing
//! Each depth has its own array, never freed (together the older ones are as large as the present one),
//! so a reader may go on in the array it began with: its words stay as they were, and an entry that was
//! there when the search began is found in them. All stores to words and to the depth happen
//! under `changing`, a leaf lock: nobody waits for anything while holding it.

use super::IndexError;
use super::arena::{PAGE_BUCKETS, Pages, boxed};
use super::hash::KeyHash;
use super::shape::{DEPTH_MAX, PAGES_MAX, Shape};
use crossbeam_utils::Backoff;
use parking_lot::Mutex;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Depth of an empty index.
pub(crate) const DEPTH_FIRST: u32 = if cfg!(miri) { 2 } else { 6 };

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
        let bits = |at: u32, count: u32| (self.0 >> at & ((1 << count) - 1)) as u32;
        let shape = Shape {
            pages: bits(28, 4),
            depth: bits(22, 6),
            base: bits(16, 6),
        };
        (shape.pages != 0).then_some(shape)
    }

    #[inline]
    pub(crate) fn generation(self) -> u16 {
        self.0 as u16
    }
}

/// Where the search for a hash begins.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Home {
    /// The word of the home bucket's page.
    pub(crate) word: Word,
    pub(crate) shape: Shape,
    pub(crate) tag: u64,
    /// Number of the home bucket in the segment.
    pub(crate) bucket: u32,
}

/// A whole segment, all words of one generation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Segment {
    pub(crate) shape: Shape,
    pub(crate) pages: Pages,
    pub(crate) generation: u16,
}

/// The words of one segment.
#[repr(align(64))]
#[derive(Debug, Default)]
pub(crate) struct Line([AtomicU64; PAGES_MAX]);

const _: () = assert!(size_of::<Line>() == 64);

impl Line {
    #[inline]
    fn word(&self, at: usize) -> Word {
        Word(
            self.0
                .get(at)
                .map_or(0, |word| word.load(Ordering::Acquire)),
        )
    }

    /// Finds the home of a hash. Waits only for a change of the line that is half done.
    #[inline]
    pub(crate) fn home(&self, hash: KeyHash) -> Home {
        let backoff = Backoff::new();
        let mut at = 0;
        loop {
            let word = self.word(at);
            let Some(shape) = word.shape() else {
                at = 0;
                backoff.snooze();
                continue;
            };
            let tag = shape.tag(hash);
            let bucket = shape.home(tag);
            let page = (bucket / PAGE_BUCKETS) as usize;
            if page == at {
                return Home {
                    word,
                    shape,
                    tag,
                    bucket,
                };
            }
            at = page;
        }
    }

    /// The page of another bucket of the segment of `home`; `None` if the line has changed.
    #[inline]
    pub(crate) fn page_of(&self, home: &Home, bucket: u32) -> Option<u32> {
        let (first, at) = (home.bucket / PAGE_BUCKETS, bucket / PAGE_BUCKETS);
        if at == first {
            return Some(home.word.page());
        }
        let word = self.word(at as usize);
        let same = word.shape().is_some() && word.generation() == home.word.generation();
        (same && self.word(first as usize) == home.word).then_some(word.page())
    }

    /// All words of one generation. Waits only for a change of the line that is half done.
    pub(crate) fn segment(&self) -> Segment {
        let backoff = Backoff::new();
        loop {
            let first = self.word(0);
            if let Some(segment) = first
                .shape()
                .and_then(|shape| self.segment_of(first, shape))
            {
                return segment;
            }
            backoff.snooze();
        }
    }

    fn segment_of(&self, first: Word, shape: Shape) -> Option<Segment> {
        let mut pages = Pages::new();
        for at in 0..shape.pages as usize {
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

    fn store(&self, segment: &Segment) {
        let pages = segment.pages.as_slice();
        for (at, place) in self.0.iter().enumerate().rev() {
            let word = pages.get(at).map_or(0, |page| {
                Word::new(*page, segment.shape, segment.generation).0
            });
            place.store(word, Ordering::Release);
        }
    }

    fn copy_from(&self, other: &Line) {
        for (to, from) in self.0.iter().zip(&other.0) {
            to.store(from.load(Ordering::Relaxed), Ordering::Release);
        }
    }
}

/// All lines, in one array for each depth.
pub(crate) struct Directory {
    depth: AtomicUsize,
    arrays: [OnceLock<Box<[Line]>>; DEPTH_MAX as usize + 1],
    changing: Mutex<()>,
}

impl Directory {
    /// Without segments: [`Directory::reset`] must follow before anything is looked up.
    pub(crate) fn new() -> Result<Directory, IndexError> {
        let directory = Directory {
            depth: AtomicUsize::new(DEPTH_FIRST as usize),
            arrays: [const { OnceLock::new() }; DEPTH_MAX as usize + 1],
            changing: Mutex::new(()),
        };
        directory.array_of(DEPTH_FIRST as usize)?;
        Ok(directory)
    }

    /// The line of a hash.
    #[inline]
    pub(crate) fn line(&self, hash: KeyHash) -> &Line {
        let depth = self.depth();
        match self.array(depth).get((hash.0 >> (64 - depth)) as usize) {
            Some(line) => line,
            None => unreachable!("a directory of depth {depth} has a line for every {depth} bits"),
        }
    }

    /// Top bits of a hash that choose the line.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.depth.load(Ordering::Acquire) as u32
    }

    #[inline]
    fn array(&self, depth: u32) -> &[Line] {
        match self.arrays.get(depth as usize).and_then(OnceLock::get) {
            Some(lines) => lines,
            None => {
                unreachable!("the array of depth {depth} is made before the depth is published")
            }
        }
    }

    fn array_of(&self, depth: usize) -> Result<&[Line], IndexError> {
        let place = self.arrays.get(depth).ok_or(IndexError::Skewed)?;
        if place.get().is_none() {
            // Only this thread sets it: it holds `changing`, or nobody else knows the directory yet.
            let _ = place.set(boxed(1 << depth, Line::default)?);
        }
        place.get().map(|lines| &**lines).ok_or(IndexError::Skewed)
    }

    /// Puts segments, which together cover the range of the segment they replace, in its place. `hash` lies
    /// in the first; the others follow in order. The caller holds all locks of the range.
    /// `lines_max` bounds the directory if it must grow; on an error nothing has changed.
    pub(crate) fn publish(
        &self,
        hash: KeyHash,
        segments: &[Segment],
        lines_max: u64,
    ) -> Result<(), IndexError> {
        let _changing = self.changing.lock();
        let deepest = segments
            .iter()
            .map(|segment| segment.shape.depth)
            .max()
            .unwrap_or(0);
        while self.depth() < deepest {
            self.double(lines_max)?;
        }
        let depth = self.depth();
        let Some(first) = segments.first() else {
            return Ok(());
        };
        let place = hash.0 >> (64 - first.shape.depth) << (depth - first.shape.depth);
        let mut lines = self.array(depth).iter().skip(place as usize);
        for segment in segments {
            let count = 1_usize << (depth - segment.shape.depth);
            lines
                .by_ref()
                .take(count)
                .for_each(|line| line.store(segment));
        }
        Ok(())
    }

    /// Runs under `changing`.
    fn double(&self, lines_max: u64) -> Result<(), IndexError> {
        let depth = self.depth.load(Ordering::Relaxed);
        if 2_u64 << depth > lines_max {
            return Err(IndexError::Skewed);
        }
        let wider = self.array_of(depth + 1)?;
        for (pair, line) in wider.chunks_exact(2).zip(self.array(depth as u32)) {
            pair.iter().for_each(|copy| copy.copy_from(line));
        }
        self.depth.store(depth + 1, Ordering::Release);
        Ok(())
    }

    /// Back to the first depth, with these segments. The caller holds all locks.
    pub(crate) fn reset(&self, segments: &[Segment]) {
        let _changing = self.changing.lock();
        for (line, segment) in self.array(DEPTH_FIRST).iter().zip(segments) {
            line.store(segment);
        }
        self.depth.store(DEPTH_FIRST as usize, Ordering::Release);
    }

    /// Every segment once. The caller holds all locks.
    pub(crate) fn segments(&self) -> Vec<Segment> {
        let mut segments = Vec::new();
        let depth = self.depth();
        let lines = self.array(depth);
        let mut at = 0;
        while let Some(line) = lines.get(at) {
            let segment = line.segment();
            at += 1 << (depth - segment.shape.depth);
            segments.push(segment);
        }
        segments
    }

    /// DRAM held.
    pub(crate) fn bytes(&self) -> u64 {
        let lines: usize = self
            .arrays
            .iter()
            .filter_map(OnceLock::get)
            .map(|lines| lines.len())
            .sum();
        (lines * size_of::<Line>()) as u64
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
        let line = Line::default();
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
        // A change to five pages has come as far as word 1.
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

    #[test]
    fn splits_double_the_directory_only_when_they_must() {
        let directory = Directory::new().unwrap();
        let shape = Shape {
            pages: 1,
            depth: 6,
            base: 6,
        };
        directory.reset(&(0..64).map(|at| segment(shape, at, 0)).collect::<Vec<_>>());
        let half = Shape {
            depth: 7,
            pages: 2,
            base: 6,
        };
        let halves = |page| [segment(half, page, 1), segment(half, page + 2, 1)];
        let refused = directory.publish(KeyHash(3 << 58), &halves(100), 64);
        assert!(matches!(refused, Err(IndexError::Skewed)));
        assert_eq!(directory.depth(), 6);
        directory
            .publish(KeyHash(3 << 58), &halves(100), 128)
            .unwrap();
        directory
            .publish(KeyHash(5 << 58), &halves(200), 128)
            .unwrap();
        assert_eq!(directory.depth(), 7);
        let first = |hash: u64| directory.line(KeyHash(hash)).segment().pages.as_slice()[0];
        assert_eq!(
            [
                first(3 << 58),
                first(7 << 57),
                first(4 << 58),
                first(9 << 57)
            ],
            [100, 102, 4, 4]
        );
        assert_eq!(
            [first(5 << 58), first(11 << 57), first(u64::MAX)],
            [200, 202, 63]
        );
        assert_eq!(directory.segments().len(), 66);
    }
}
