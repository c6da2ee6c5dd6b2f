//! A copy of the index in words, and an index made from such a copy.
//!
//! A copy is a sequence of entries, segment after segment in the order of hashes. Each segment also has a
//! word that says how it reads hashes and how many entries it has:
//!
//! ```text
//!  63                    32   31     24   23     16   15      8   7       0
//! [ entries                | 0          | base      | depth     | pages    ]
//! ```
//!
//! # What a copy shows
//! Each segment is copied under its lock, so it shows the entries of one moment; different segments show
//! different moments. A split only divides the range of a segment. So the ranges of all copied segments cover
//! all hashes, without gap or overlap, and a key whose entry does not change during the copy is in it exactly
//! once.
//!
//! A copy is useful only to an index with the same hash secret ([`super::hash`]).
//!
//! # Why the entries fit again
//! Entries are placed in their old order, each in the first bucket from its home on that has room. So no
//! entry ends farther from its home than before: only entries that were there before fill the bucket where it
//! was. This needs an order that begins at a bucket which no entry has passed. Nearly every segment has one;
//! a segment without one gets a page more.

use super::Index;
use super::entry::{BUCKET_ENTRIES, Entry, Location};
use super::growth::{Draft, ROOM_PAGE_ENTRIES};
use super::hash::KeyHash;
use super::line::Segment;
use super::shape::PAGE_BUCKETS;
use super::shape::{PAGES_MAX, Shape};
use std::sync::OnceLock;

const BUCKETS_MAX: usize = PAGES_MAX * PAGE_BUCKETS as usize;

impl Index {
    /// Copies the index, but for entries that `keep` refuses: `take` gets each segment's word and entries, in
    /// order. Writers continue meanwhile.
    ///
    /// # Errors
    /// What `take` returns.
    pub(crate) fn copy<E>(
        &self,
        keep: impl Fn(Location) -> bool,
        mut take: impl FnMut(u64, &[u64]) -> Result<(), E>,
    ) -> Result<(), E> {
        let mut words = Vec::with_capacity(BUCKETS_MAX * BUCKET_ENTRIES);
        let mut next = Some(0);
        while let Some(hash) = next.map(KeyHash) {
            words.clear();
            let shape = {
                let (_held, line, _home) = self.own(hash, self.line(hash).home(hash));
                let segment = line.segment();
                self.entries_in_order(&segment, &mut words);
                segment.shape
            };
            words.retain(|word| Entry(*word).location().is_some_and(&keep));
            take(segment_word(shape, words.len()), &words)?;
            next = shape.hash_of_home(hash, shape.buckets());
        }
        Ok(())
    }

    /// The entries of a segment, bucket after bucket, beginning at one that no entry has passed.
    fn entries_in_order(&self, segment: &Segment, into: &mut Vec<u64>) {
        let buckets = segment.shape.buckets() as usize;
        let mut passed = [false; BUCKETS_MAX];
        let mut ends = [0; BUCKETS_MAX];
        let pages = segment.pages.as_slice().iter();
        let all = pages.flat_map(|page| self.arena.buckets(*page));
        for ((at, bucket), end) in all.enumerate().zip(&mut ends) {
            for entry in bucket.entries() {
                if entry.location().is_none() {
                    continue;
                }
                into.push(entry.bare().0);
                let mut between = segment.shape.home(entry.tag()) as usize;
                while between != at {
                    between = (between + 1) % buckets;
                    if let Some(place) = passed.get_mut(between) {
                        *place = true;
                    }
                }
            }
            *end = into.len();
        }
        let first = passed.iter().take(buckets).position(|passed| !passed);
        if let Some(before) = first.unwrap_or(0).checked_sub(1) {
            into.rotate_left(ends[before]);
        }
    }

    /// Prepares to restore a copy with these segments. The index does not change before
    /// [`Restoring::finish`]. `None`: the words do not describe a whole index. `refills`: entries that the
    /// copy lacks come later, until [`Index::note_refilled`]; segments begin with the pages that the copy
    /// fills, and grow to what they had.
    pub(crate) fn restore(&self, segments: &[u64], refills: bool) -> Option<Restoring<'_>> {
        let shapes = shapes_of_all(segments)?;
        Some(Restoring {
            index: self,
            made: shapes.iter().map(|_| OnceLock::new()).collect(),
            shapes,
            refills,
        })
    }
}

/// A copy being restored; several threads may fill it.
pub(crate) struct Restoring<'a> {
    index: &'a Index,
    shapes: Vec<Shape>,
    made: Vec<OnceLock<Segment>>,
    refills: bool,
}

impl Restoring<'_> {
    /// Fills a segment with those entries that `keep` accepts. Returns their number; `None` if they do not
    /// fit, or there is no such segment.
    pub(crate) fn fill(
        &self,
        number: usize,
        entries: &[u64],
        keep: impl Fn(Location) -> bool,
    ) -> Option<u64> {
        let shape = *self.shapes.get(number)?;
        let is_kept = |entry: &Entry| entry.location().is_some_and(&keep);
        let entries = entries.iter().map(|word| Entry(*word).bare());
        let entries: Vec<Entry> = entries.filter(is_kept).collect();
        let least = match self.refills {
            true => (entries.len() as u64).div_ceil(ROOM_PAGE_ENTRIES) as u32,
            false => shape.pages,
        };
        for pages in least.clamp(1, shape.pages)..=PAGES_MAX as u32 {
            let shape = Shape { pages, ..shape };
            let Some(draft) = Draft::of(shape, &entries) else {
                continue;
            };
            let pages = self.index.arena.allocate(pages).ok()?;
            self.index.copy_out(&draft, &pages);
            let segment = Segment {
                shape,
                pages,
                generation: 0,
            };
            return match self.made.get(number)?.set(segment) {
                Ok(()) => Some(entries.len() as u64),
                Err(again) => {
                    self.index.arena.give_back(again.pages);
                    None
                }
            };
        }
        None
    }

    /// Frees its pages.
    pub(crate) fn discard(self) {
        for segment in self.made.into_iter().filter_map(OnceLock::into_inner) {
            self.index.arena.give_back(segment.pages);
        }
    }

    /// Replaces the contents of the index by the copy, whose segments were all filled. No other thread uses
    /// the index meanwhile. `false`: a segment is missing, or memory is; the index is unchanged.
    pub(crate) fn finish(self) -> bool {
        let index = self.index;
        let _locks = index.locks.all();
        let old = index.directory.segments(&index.arena);
        let made = self.made.iter().map(|segment| segment.get().copied());
        let made: Option<Vec<Segment>> = made.collect();
        let restored =
            made.is_some_and(|made| index.directory.restore(&index.arena, &made).is_ok());
        if !restored {
            self.discard();
            return false;
        }
        old.iter()
            .for_each(|segment| index.arena.retire(segment.pages));
        if self.refills {
            index.expect(&self.shapes);
        }
        true
    }
}

/// The number of entries in a segment's word.
pub(crate) fn entries_of(segment: u64) -> u64 {
    segment >> 32
}

fn segment_word(shape: Shape, entries: usize) -> u64 {
    let shape = u64::from(shape.pages) | u64::from(shape.depth) << 8 | u64::from(shape.base) << 16;
    shape | (entries as u64) << 32
}

/// The shapes in segment words, if they are valid and cover all hashes.
fn shapes_of_all(words: &[u64]) -> Option<Vec<Shape>> {
    let mut shapes = Vec::with_capacity(words.len());
    let mut end = 0_u128;
    for word in words {
        let byte = |at: u32| (word >> at & 0xff) as u32;
        let shape = Shape {
            pages: byte(0),
            depth: byte(8),
            base: byte(16),
        };
        let is_sound = shape.is_sound() && shape.depth > 0;
        let entries = entries_of(*word) as usize;
        if *word != segment_word(shape, entries) || !is_sound {
            return None;
        }
        let width = 1_u128 << (64 - shape.depth);
        if !end.is_multiple_of(width) {
            return None;
        }
        end += width;
        shapes.push(shape);
    }
    (end == 1 << 64).then_some(shapes)
}

#[cfg(test)]
mod tests {
    use super::super::hash::Hasher;
    use super::super::{DEPTH_FIRST, FOUND};
    use super::*;
    use crate::concurrency::epoch::Epochs;
    use crate::engine::random::Random;
    use crate::index::growth::rehash_by;
    use std::sync::Arc;

    fn index(hasher: Hasher) -> (Index, crate::concurrency::epoch::Slot) {
        let epochs = Epochs::new(1);
        let slot = epochs.register().unwrap();
        (
            Index::new(Arc::clone(&epochs), hasher, DEPTH_FIRST).unwrap(),
            slot,
        )
    }

    fn filled(count: u64) -> (Index, crate::concurrency::epoch::Slot) {
        let (index, slot) = index(Hasher::new(&Random::default()));
        for number in 1..=count {
            let hash = index.hash(&number.to_le_bytes());
            let mut again = rehash_by(|at| index.hash(&at.get().to_le_bytes()));
            let at = Location::new(number).unwrap();
            index.insert(hash, at, &mut again, &FOUND).unwrap();
        }
        (index, slot)
    }

    fn copy_of(index: &Index) -> (Vec<u64>, Vec<u64>) {
        let (mut segments, mut words) = (Vec::new(), Vec::new());
        let taken: Result<(), ()> = index.copy(
            |_| true,
            |segment, page| {
                segments.push(segment);
                words.extend_from_slice(page);
                Ok(())
            },
        );
        taken.unwrap();
        (segments, words)
    }

    const COUNT: u64 = if cfg!(miri) { 2000 } else { 100_000 };

    #[test]
    fn an_index_made_of_a_copy_finds_what_it_kept() {
        let (original, _) = filled(COUNT);
        let (segments, words) = copy_of(&original);
        assert_eq!(words.len() as u64, COUNT);
        let (other, slot) = index(Hasher::of(original.hasher.secret()));
        let restoring = other.restore(&segments, false).unwrap();
        let (mut kept, mut from) = (0, 0);
        for (number, segment) in segments.iter().enumerate() {
            let end = from + entries_of(*segment) as usize;
            let wanted = |at: Location| !at.get().is_multiple_of(3);
            kept += restoring.fill(number, &words[from..end], wanted).unwrap();
            from = end;
        }
        assert_eq!(kept, COUNT - COUNT / 3);
        assert!(restoring.finish());
        let mut again = rehash_by(|at| other.hash(&at.get().to_le_bytes()));
        for number in 1..=COUNT {
            let hash = other.hash(&number.to_le_bytes());
            let wanted = Location::new(number).unwrap();
            let found = other.lookup(hash, &slot.pin(), |at| at == wanted).is_some();
            assert_eq!(found, !number.is_multiple_of(3), "{number}");
            if !found {
                other.insert(hash, wanted, &mut again, &FOUND).unwrap();
            }
        }
        // It grows like any other, and can be cleared.
        for number in COUNT + 1..=2 * COUNT {
            let hash = other.hash(&number.to_le_bytes());
            other
                .insert(hash, Location::new(number).unwrap(), &mut again, &FOUND)
                .unwrap();
        }
        for number in 1..=2 * COUNT {
            let hash = other.hash(&number.to_le_bytes());
            assert!(other.remove(hash, Location::new(number).unwrap(), &FOUND));
        }
        other.clear(&FOUND).unwrap();
    }

    /// A copy that lacks most entries takes little room at first, and with them as much as before.
    #[test]
    fn a_copy_that_lacks_entries_begins_small() {
        let (original, _) = filled(COUNT);
        let (segments, words) = copy_of(&original);
        let (other, _slot) = index(Hasher::of(original.hasher.secret()));
        let pages = |index: &Index| -> u32 {
            let segments = index.directory.segments(&index.arena);
            segments.iter().map(|segment| segment.shape.pages).sum()
        };
        let is_kept = |at: Location| at.get().is_multiple_of(4);
        let restoring = other.restore(&segments, true).unwrap();
        let mut from = 0;
        for (number, segment) in segments.iter().enumerate() {
            let end = from + entries_of(*segment) as usize;
            restoring.fill(number, &words[from..end], is_kept).unwrap();
            from = end;
        }
        assert!(restoring.finish());
        assert!(pages(&other) <= pages(&original).div_ceil(3) + segments.len() as u32);
        let mut again = rehash_by(|at| other.hash(&at.get().to_le_bytes()));
        for number in 1..=COUNT {
            let at = Location::new(number).unwrap();
            if !is_kept(at) {
                let hash = other.hash(&number.to_le_bytes());
                other.insert(hash, at, &mut again, &FOUND).unwrap();
            }
        }
        other.note_refilled();
        assert!(pages(&other) <= pages(&original) * 21 / 20 + 1);
        let generations = other.directory.segments(&other.arena);
        let grown = generations
            .iter()
            .map(|segment| u64::from(segment.generation));
        assert!(
            grown.sum::<u64>() <= 2 * segments.len() as u64,
            "grown page by page"
        );
    }

    /// Full segments that had other entries before fit into the same number of pages again.
    #[test]
    #[cfg_attr(miri, ignore = "thousands of entries in each of many segments")]
    fn full_segments_fit_again() {
        let (original, slot) = filled(COUNT);
        let mut again = rehash_by(|at| original.hash(&at.get().to_le_bytes()));
        for number in 1..=4 * COUNT {
            let (gone, come) = (number, number + COUNT);
            let hash = original.hash(&gone.to_le_bytes());
            assert!(original.remove(hash, Location::new(gone).unwrap(), &FOUND));
            let hash = original.hash(&come.to_le_bytes());
            original
                .insert(hash, Location::new(come).unwrap(), &mut again, &FOUND)
                .unwrap();
        }
        drop(slot);
        let (segments, words) = copy_of(&original);
        let restoring = original.restore(&segments, false).unwrap();
        let mut from = 0;
        for (number, segment) in segments.iter().enumerate() {
            let end = from + entries_of(*segment) as usize;
            restoring.fill(number, &words[from..end], |_| true).unwrap();
            let made = restoring.made[number].get().unwrap();
            assert_eq!(u64::from(made.shape.pages), segment & 0xff);
            from = end;
        }
        restoring.discard();
    }

    #[test]
    fn words_that_are_no_index_are_refused() {
        let (original, _) = filled(COUNT);
        let (segments, _) = copy_of(&original);
        let refused = |words: &[u64]| original.restore(words, false).is_none();
        assert!(!refused(&segments));
        assert!(refused(&[]));
        assert!(refused(&segments[1..]));
        assert!(refused(&[&segments[..], &segments[..1]].concat()));
        for bit in 0..64 {
            for at in [0, segments.len() / 2] {
                let mut words = segments.clone();
                words[at] ^= 1 << bit;
                // Another number of pages is valid, too, and so is another anchor in the hash. The reader of
                // the entries checks their number.
                let pages = words[at] & 0xff;
                let could_be = bit < 4 && (1..=8).contains(&pages);
                let could_be = could_be || (16..24).contains(&bit) || bit >= 32;
                assert!(could_be || refused(&words), "bit {bit} of word {at}");
            }
        }
    }
}
