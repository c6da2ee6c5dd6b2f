//! Growth: a segment is rebuilt into fresh pages.
//!
//! An insertion that finds all its buckets full asks for growth. The segment gets one page more. With all 8
//! pages it is split into two halves of as many pages as they need. Growth first lays out the entries in a
//! draft; only a draft that holds them all is copied to pages and published. No writer stores to the old
//! pages while the segment's lock is held, and no later search finds them. A reader that is still in them
//! finds what was true when its search began.
//!
//! The owner of an index that is about to be filled may announce the number of entries
//! ([`Index::make_room`]). Growing to that number by itself would cost several moves per entry.
//!
//! Tags carry enough of the hash for all this. Only when a split leaves too little of it does growth ask for
//! the keys' hashes (see [`super::shape`]).

use super::arena::{Arena, Pages};
use super::entry::{BUCKET_ENTRIES, Bucket, Entry, Location, MORE};
use super::hash::KeyHash;
use super::line::Segment;
use super::shape::PAGE_BUCKETS;
use super::shape::{DEPTH_MAX, PAGES_MAX, Shape};
use super::{Index, IndexError, PROBE_BUCKETS};

const DRAFT_BUCKETS: usize = PAGES_MAX * PAGE_BUCKETS as usize;
/// Entries per page of a new half: 80 % of its slots. Fuller segments would soon need the next page, emptier
/// ones would waste DRAM.
const HALF_PAGE_ENTRIES: usize = PAGE_BUCKETS as usize * BUCKET_ENTRIES * 8 / 10;
/// Entries per page if their number is known: 82 %, since a segment grows when one part of it is full, at
/// about 85 %.
pub(super) const ROOM_PAGE_ENTRIES: u64 = PAGE_BUCKETS as u64 * BUCKET_ENTRIES as u64 * 82 / 100;
/// Most directory lines per page ever used. Evenly spread hashes need about a quarter of a line; if the
/// directory needs more than this, the hashes are not random.
const LINES_PER_PAGE_MAX: u64 = 16;

/// Appends the hashes of the keys of the records at these locations, or returns a location that cannot be
/// read. Growth asks for many at a time, so that they can be fetched together. It runs under index locks: it
/// may only read memory.
pub(crate) type Rehash<'a> =
    &'a mut dyn FnMut(&[Location], &mut Vec<KeyHash>) -> Result<(), Location>;

/// A [`Rehash`] that computes each hash separately and never fails.
#[cfg(test)]
pub(super) fn rehash_by(
    mut hash: impl FnMut(Location) -> KeyHash,
) -> impl FnMut(&[Location], &mut Vec<KeyHash>) -> Result<(), Location> {
    move |locations, hashes| {
        hashes.extend(locations.iter().map(|location| hash(*location)));
        Ok(())
    }
}

/// Locations per call of a [`Rehash`].
const REHASHED: usize = 64;

impl Index {
    /// Makes room in the segment of `hash`, whose lock the caller holds, or which no other thread changes.
    #[cold]
    pub(super) fn grow(&self, hash: KeyHash, rehash: Rehash<'_>) -> Result<(), IndexError> {
        let segment = self.line(hash).segment();
        let mut entries = self.entries_of(&segment);
        let least = self.expected(hash);
        for pages in least.max(segment.shape.pages + 1)..=PAGES_MAX as u32 {
            let shape = Shape {
                pages,
                ..segment.shape
            };
            if let Some(draft) = Draft::of(shape, &entries) {
                return self.replace_segment(hash, &segment, &[(shape, draft)]);
            }
        }
        self.split(hash, &segment, &mut entries, rehash)
    }

    /// The entries of a segment, without the flags of their buckets.
    fn entries_of(&self, segment: &Segment) -> Vec<Entry> {
        let mut entries = vec![Entry(0); segment.shape.buckets() as usize * BUCKET_ENTRIES];
        let mut count = 0;
        let pages = segment.pages.as_slice();
        let prefetch = |page: Option<&u32>| {
            let lines = page.into_iter().flat_map(|page| Arena::lines_of(*page));
            lines.for_each(|line| self.arena.prefetch(line));
        };
        prefetch(pages.first());
        for (turn, page) in pages.iter().enumerate() {
            // Pages lie anywhere, and this one is probably not in the caches.
            prefetch(pages.get(turn + 1));
            for entry in self.arena.buckets(*page).flat_map(Bucket::entries) {
                // Branch-free: the fill of a bucket is random, so a branch would be mispredicted.
                if let Some(place) = entries.get_mut(count) {
                    *place = entry.bare();
                }
                count += usize::from(entry.location().is_some());
            }
        }
        entries.truncate(count);
        entries
    }

    fn split(
        &self,
        hash: KeyHash,
        segment: &Segment,
        entries: &mut [Entry],
        rehash: Rehash<'_>,
    ) -> Result<(), IndexError> {
        let (half, anchored) = segment.shape.half().ok_or(IndexError::Skewed)?;
        // The deciding bit is in the old tag; the new tag may begin below it.
        let upper_half = |entry: &Entry| segment.shape.upper_half(entry.tag());
        let (mut lower, mut upper): (Vec<Entry>, Vec<Entry>) = entries
            .iter()
            .copied()
            .partition(|entry| !upper_half(entry));
        if anchored {
            for entries in [&mut lower, &mut upper] {
                for entries in entries.chunks_mut(REHASHED) {
                    anchor(hash, segment.shape, half, entries, rehash)?;
                }
            }
        }
        let drafts = [draft_half(half, &lower)?, draft_half(half, &upper)?];
        let _upper_half = self.locks.of_upper_half(hash, segment.shape.depth);
        self.replace_segment(hash, segment, &drafts)
    }

    /// Copies drafts to pages and publishes them in place of `old`.
    fn replace_segment(
        &self,
        hash: KeyHash,
        old: &Segment,
        drafts: &[(Shape, Box<Draft>)],
    ) -> Result<(), IndexError> {
        let generation = old.generation.wrapping_add(1);
        let mut segments: Vec<Segment> = Vec::with_capacity(drafts.len());
        let mut outcome = Ok(());
        for (shape, draft) in drafts {
            match self.arena.allocate(shape.pages) {
                Ok(pages) => {
                    self.copy_out(draft, &pages);
                    segments.push(Segment {
                        shape: *shape,
                        pages,
                        generation,
                    });
                }
                Err(error) => outcome = Err(error),
            }
        }
        if outcome.is_ok() {
            let lines_max = LINES_PER_PAGE_MAX * u64::from(self.arena.pages_used());
            let first = old.shape.first_hash(hash);
            outcome = self
                .directory
                .publish(&self.arena, first, &segments, lines_max);
        }
        if outcome.is_ok() {
            self.arena.retire(old.pages);
        } else {
            segments
                .iter()
                .for_each(|segment| self.arena.give_back(segment.pages));
        }
        outcome
    }

    pub(super) fn copy_out(&self, draft: &Draft, pages: &Pages) {
        let mut words = draft.words.iter();
        for page in pages.as_slice() {
            for (bucket, words) in self.arena.buckets(*page).zip(&mut words) {
                bucket.fill(words);
            }
        }
    }

    /// From here on a segment that grows has at once as many pages as the one of these that has its hashes: a
    /// whole index, in order. This ends with [`Index::note_refilled`].
    pub(super) fn expect(&self, shapes: &[Shape]) {
        let mut first = 0_u64;
        let expected = shapes.iter().map(|shape| {
            let own = (first, shape.pages);
            first = first.wrapping_add(1 << (64 - shape.depth));
            own
        });
        *self.expected.write() = expected.collect();
    }

    /// The pages that a segment with this hash had before.
    fn expected(&self, hash: KeyHash) -> u32 {
        let expected = self.expected.read();
        let behind = expected.partition_point(|(first, _)| *first <= hash.0);
        let own = behind.checked_sub(1).and_then(|at| expected.get(at));
        own.map_or(0, |(_, pages)| *pages)
    }

    /// Notes that all entries have come that a restored copy lacked.
    pub(crate) fn note_refilled(&self) {
        *self.expected.write() = Vec::new();
    }

    /// Makes room for about `entries` in an empty index. No other thread uses it meanwhile. On an error
    /// nothing has changed.
    pub(crate) fn make_room(&self, entries: u64) -> Result<(), IndexError> {
        let pages = entries.div_ceil(ROOM_PAGE_ENTRIES);
        let first = self.directory.depth_first();
        let depth = (first..DEPTH_MAX).find(|depth| pages >> depth < PAGES_MAX as u64);
        let depth = depth.unwrap_or(first);
        let pages = pages.div_ceil(1 << depth) as u32;
        if pages < 2 && depth == first {
            return Ok(());
        }
        let segments = self.empty_segments(depth, pages)?;
        let _locks = self.locks.all();
        let old = self.directory.segments(&self.arena);
        let restored = self.directory.restore(&self.arena, &segments);
        let unused = match restored {
            Ok(()) => &old,
            Err(_) => &segments,
        };
        unused
            .iter()
            .for_each(|segment| self.arena.give_back(segment.pages));
        restored
    }

    /// Segments for an empty index, all of one shape; an error if memory is refused.
    pub(super) fn empty_segments(
        &self,
        depth: u32,
        pages: u32,
    ) -> Result<Vec<Segment>, IndexError> {
        let shape = Shape {
            pages,
            depth,
            base: depth,
        };
        let empty = Draft::empty();
        let mut segments = Vec::with_capacity(1 << depth);
        for _ in 0..1 << depth {
            match self.arena.allocate(pages) {
                Ok(pages) => {
                    self.copy_out(&empty, &pages);
                    segments.push(Segment {
                        shape,
                        pages,
                        generation: 0,
                    });
                }
                Err(error) => {
                    segments
                        .iter()
                        .for_each(|made: &Segment| self.arena.give_back(made.pages));
                    return Err(error);
                }
            }
        }
        Ok(segments)
    }
}

/// Gives entries the tags of their keys' full hashes in `half`.
fn anchor(
    place: KeyHash,
    shape: Shape,
    half: Shape,
    entries: &mut [Entry],
    rehash: Rehash<'_>,
) -> Result<(), IndexError> {
    let locations: Vec<Location> = entries.iter().filter_map(|one| one.location()).collect();
    let mut hashes = Vec::with_capacity(REHASHED);
    rehash(&locations, &mut hashes).map_err(IndexError::Rehash)?;
    assert_eq!(
        hashes.len(),
        locations.len(),
        "some keys of a segment were not hashed"
    );
    for ((entry, location), hash) in entries.iter_mut().zip(locations).zip(hashes) {
        if !shape.agrees(place, entry.tag(), hash) {
            return Err(IndexError::Rehash(location));
        }
        *entry = Entry::new(half.tag(hash), location);
    }
    Ok(())
}

fn draft_half(half: Shape, entries: &[Entry]) -> Result<(Shape, Box<Draft>), IndexError> {
    let enough = entries
        .len()
        .div_ceil(HALF_PAGE_ENTRIES)
        .clamp(1, PAGES_MAX);
    for pages in enough as u32..=PAGES_MAX as u32 {
        let shape = Shape { pages, ..half };
        if let Some(draft) = Draft::of(shape, entries) {
            return Ok((shape, draft));
        }
    }
    Err(IndexError::Skewed)
}

/// The buckets of a segment in plain memory.
pub(super) struct Draft {
    words: [[u64; BUCKET_ENTRIES]; DRAFT_BUCKETS],
    used: [u8; DRAFT_BUCKETS],
}

impl Draft {
    fn empty() -> Box<Draft> {
        Box::new(Draft {
            words: [[0; BUCKET_ENTRIES]; DRAFT_BUCKETS],
            used: [0; DRAFT_BUCKETS],
        })
    }

    /// All entries laid out in `shape`, or `None` if one does not fit.
    pub(super) fn of(shape: Shape, entries: &[Entry]) -> Option<Box<Draft>> {
        let mut draft = Draft::empty();
        entries
            .iter()
            .all(|entry| draft.place(shape, *entry))
            .then_some(draft)
    }

    #[inline]
    fn place(&mut self, shape: Shape, entry: Entry) -> bool {
        let buckets = shape.buckets() as usize;
        let mut at = shape.home(entry.tag()) as usize;
        for _ in 0..PROBE_BUCKETS {
            let (Some(words), Some(used)) = (self.words.get_mut(at), self.used.get_mut(at)) else {
                return false;
            };
            if let Some(word) = words.get_mut(usize::from(*used)) {
                *word |= entry.0;
                *used += 1;
                return true;
            }
            let [first, ..] = words;
            *first |= MORE;
            at = if at + 1 == buckets { 0 } else { at + 1 };
        }
        false
    }
}
