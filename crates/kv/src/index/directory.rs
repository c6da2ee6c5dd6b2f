//! Maps the top bits of a hash to the line of its segment.
//!
//! A directory of depth `d` is an array of `2^d` lines of 64 bytes ([`super::line`]); a segment of depth
//! `s <= d` fills `2^(d-s)` lines with the same words.
//!
//! # Growing
//! Each depth has its own array in the arena, which is never freed (all older arrays together are as large as
//! the current one). The *root*, one word, holds the start and depth of the current array. So the way to a
//! bucket is: root (always cached), line, bucket. A reader may continue in the array it began with: its words
//! do not change, and an entry that existed when the search began is found in them. All stores to words and
//! to the root happen under `changing`, a leaf lock: its holder waits for nothing else.

use super::IndexError;
use super::arena::Arena;
use super::hash::KeyHash;
use super::line::{Line, Segment};
use crate::concurrency::seam::publishes;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Depth of an empty index by default.
pub(crate) const DEPTH_FIRST: u32 = if cfg!(miri) { 2 } else { 6 };

/// Start and depth of an array of lines, in one word.
#[derive(Clone, Copy)]
struct Root(u64);

impl Root {
    fn new(first: usize, depth: u32) -> Root {
        Root((first as u64) << 6 | u64::from(depth))
    }

    #[inline]
    fn depth(self) -> u32 {
        (self.0 & 63) as u32
    }

    /// Number of a line of the array, in the arena.
    #[inline]
    fn line(self, at: u64) -> usize {
        (self.0 >> 6) as usize + at as usize
    }

    /// The line of a hash.
    #[inline]
    fn line_of(self, hash: KeyHash) -> usize {
        self.line(hash.0 >> (64 - self.depth()))
    }

    fn lines(self, arena: &Arena) -> impl Iterator<Item = Line<'_>> {
        self.lines_from(arena, 0)
    }

    fn lines_from(self, arena: &Arena, first: u64) -> impl Iterator<Item = Line<'_>> {
        (first..1 << self.depth()).map(move |at| Line(arena.line(self.line(at))))
    }
}

/// All lines, in one array for each depth.
pub(crate) struct Directory {
    /// The current array.
    root: AtomicU64,
    /// All arrays, from that of an empty index on.
    changing: Mutex<Vec<Root>>,
}

impl Directory {
    /// A directory without segments: call [`Directory::reset`] before any look-up.
    pub(crate) fn new(arena: &Arena, depth: u32) -> Result<Directory, IndexError> {
        let root = Root::new(arena.lines(1 << depth)?, depth);
        Ok(Directory {
            root: AtomicU64::new(root.0),
            changing: Mutex::new(vec![root]),
        })
    }

    #[inline]
    fn root(&self) -> Root {
        Root(self.root.load(Ordering::Acquire))
    }

    /// The line of a hash.
    #[inline]
    pub(crate) fn line<'a>(&self, arena: &'a Arena, hash: KeyHash) -> Line<'a> {
        Line(arena.line(self.root().line_of(hash)))
    }

    /// Top bits of a hash that choose the line.
    #[inline]
    pub(crate) fn depth(&self) -> u32 {
        self.root().depth()
    }

    /// Replaces the segment of `hash` by segments that together cover its range. `hash` lies in the first;
    /// the others follow in order. The caller holds the locks of all of them. `lines_max` bounds the
    /// directory if it must grow; on an error nothing has changed.
    pub(crate) fn publish(
        &self,
        arena: &Arena,
        hash: KeyHash,
        segments: &[Segment],
        lines_max: u64,
    ) -> Result<(), IndexError> {
        let mut arrays = self.changing.lock();
        let deepest = segments
            .iter()
            .map(|segment| segment.shape.depth)
            .max()
            .unwrap_or(0);
        while self.depth() < deepest {
            self.double(arena, &mut arrays, lines_max)?;
        }
        let root = self.root();
        let Some(first) = segments.first() else {
            return Ok(());
        };
        let place = hash.0 >> (64 - first.shape.depth) << (root.depth() - first.shape.depth);
        let depth_before = Line(arena.line(root.line(place))).segment().shape.depth;
        assert_eq!(
            width_of(segments, root.depth()),
            1 << (root.depth() - depth_before),
            "segments do not cover the range of the one they replace"
        );
        let mut lines = root.lines_from(arena, place);
        for segment in segments {
            let count = 1_usize << (root.depth() - segment.shape.depth);
            lines
                .by_ref()
                .take(count)
                .for_each(|line| line.store(segment));
        }
        Ok(())
    }

    /// Runs under `changing`.
    fn double(
        &self,
        arena: &Arena,
        arrays: &mut Vec<Root>,
        lines_max: u64,
    ) -> Result<(), IndexError> {
        let root = self.root();
        let depth = root.depth() + 1;
        if 1_u64 << depth > lines_max {
            return Err(IndexError::Skewed);
        }
        let wider = Directory::array(arena, arrays, depth)?;
        let mut copies = wider.lines(arena);
        for line in root.lines(arena) {
            copies
                .by_ref()
                .take(2)
                .for_each(|copy| copy.copy_from(line));
        }
        self.root.store(wider.0, Ordering::Release);
        Ok(())
    }

    /// Depth of an empty directory.
    pub(crate) fn depth_first(&self) -> u32 {
        let arrays = self.changing.lock();
        arrays.first().map_or(0, |root| root.depth())
    }

    /// Returns to the first depth, with these segments. The caller holds all locks.
    pub(crate) fn reset(&self, arena: &Arena, segments: &[Segment]) {
        let arrays = self.changing.lock();
        if let Some(root) = arrays.first() {
            assert_eq!(
                width_of(segments, root.depth()),
                1 << root.depth(),
                "segments do not cover all hashes"
            );
            for (line, segment) in root.lines(arena).zip(segments) {
                publishes!();
                line.store(segment);
            }
            self.root.store(root.0, Ordering::Release);
        }
    }

    /// Replaces everything by segments that cover all hashes, in order. The caller holds all locks; on an
    /// error nothing has changed.
    pub(crate) fn restore(&self, arena: &Arena, segments: &[Segment]) -> Result<(), IndexError> {
        let mut arrays = self.changing.lock();
        let depths = segments.iter().map(|segment| segment.shape.depth);
        let depth = depths.max().unwrap_or(0);
        assert_eq!(
            width_of(segments, depth),
            1 << depth,
            "segments do not cover all hashes"
        );
        let root = Directory::array(arena, &mut arrays, depth)?;
        let mut lines = root.lines(arena);
        for segment in segments {
            let count = 1_usize << (depth - segment.shape.depth);
            lines
                .by_ref()
                .take(count)
                .for_each(|line| line.store(segment));
        }
        self.root.store(root.0, Ordering::Release);
        Ok(())
    }

    /// The array of a depth; it may exist from before the index was cleared.
    fn array(arena: &Arena, arrays: &mut Vec<Root>, depth: u32) -> Result<Root, IndexError> {
        if let Some(made) = arrays.iter().find(|array| array.depth() == depth) {
            return Ok(*made);
        }
        let made = Root::new(arena.lines(1 << depth)?, depth);
        arrays.push(made);
        Ok(made)
    }

    /// Each segment once. The caller holds all locks.
    pub(crate) fn segments(&self, arena: &Arena) -> Vec<Segment> {
        let mut segments = Vec::new();
        let root = self.root();
        let mut at = 0;
        while at < 1 << root.depth() {
            let segment = Line(arena.line(root.line(at))).segment();
            at += 1 << (root.depth() - segment.shape.depth);
            segments.push(segment);
        }
        segments
    }
}

/// Lines of these segments in a directory of this depth.
fn width_of(segments: &[Segment], depth: u32) -> u64 {
    let widths = segments
        .iter()
        .map(|one| 1_u64 << (depth - one.shape.depth));
    widths.sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::concurrency::epoch::Epochs;
    use crate::index::arena::Pages;
    use crate::index::shape::Shape;

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
    #[cfg_attr(miri, ignore = "directories are shallower there")]
    fn splits_double_the_directory_only_when_they_must() {
        let arena = Arena::new(Epochs::new(1)).unwrap();
        let directory = Directory::new(&arena, DEPTH_FIRST).unwrap();
        let shape = Shape {
            pages: 1,
            depth: 6,
            base: 6,
        };
        directory.reset(
            &arena,
            &(0..64).map(|at| segment(shape, at, 0)).collect::<Vec<_>>(),
        );
        let half = Shape {
            depth: 7,
            pages: 2,
            base: 6,
        };
        let halves = |page| [segment(half, page, 1), segment(half, page + 2, 1)];
        let refused = directory.publish(&arena, KeyHash(3 << 58), &halves(100), 64);
        assert!(matches!(refused, Err(IndexError::Skewed)));
        assert_eq!(directory.depth(), 6);
        directory
            .publish(&arena, KeyHash(3 << 58), &halves(100), 128)
            .unwrap();
        directory
            .publish(&arena, KeyHash(5 << 58), &halves(200), 128)
            .unwrap();
        assert_eq!(directory.depth(), 7);
        let first = |hash: u64| {
            directory
                .line(&arena, KeyHash(hash))
                .segment()
                .pages
                .as_slice()[0]
        };
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
        assert_eq!(directory.segments(&arena).len(), 66);
    }
}
