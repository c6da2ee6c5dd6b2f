//! The 8 bytes of an entry, and the cache line of eight of them.
//!
//! ```text
//!  63        41   40    39                 0
//! [ tag: 23 bits | more | location: 40 bits ]     location 0 = the slot is empty
//! ```
//!
//! `more` belongs to the bucket, not to the entry, and exists in slot 0 only: entries whose home is this
//! bucket, or that passed it, may lie in the next one. It is set before such an entry is published and never
//! cleared in a live page. All other stores to slot 0 keep it.

use everdram_pm::{DramLine, Matches};
use std::sync::atomic::{AtomicU64, Ordering};

/// Entries of a bucket: one cache line.
pub(crate) const BUCKET_ENTRIES: usize = 8;
/// Bits of a tag.
pub(crate) const TAG_BITS: u32 = 23;

const LOCATION_BITS: u32 = 40;
const LOCATION_MASK: u64 = (1 << LOCATION_BITS) - 1;
/// The bucket's flag, in the word of slot 0.
pub(crate) const MORE: u64 = 1 << LOCATION_BITS;
const TAG_SHIFT: u32 = LOCATION_BITS + 1;
const TAG_MASK: u64 = !0 << TAG_SHIFT;

const _: () = {
    // tag, more, location: every bit of the word, and none twice.
    assert!(TAG_BITS + 1 + LOCATION_BITS == 64);
    assert!(TAG_MASK | MORE | LOCATION_MASK == !0);
    assert!(TAG_MASK & MORE == 0 && MORE & LOCATION_MASK == 0 && TAG_MASK & LOCATION_MASK == 0);
    assert!(BUCKET_ENTRIES * 8 == size_of::<DramLine>());
};

/// The place of a record: 1 to 2^40 - 1, in the engine's unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Location(u64);

impl Location {
    /// `None` if `value` is 0 or does not fit 40 bits.
    #[inline]
    pub(crate) fn new(value: u64) -> Option<Location> {
        (value != 0 && value <= LOCATION_MASK).then_some(Location(value))
    }

    /// The number it was made from.
    #[inline]
    pub(crate) fn get(self) -> u64 {
        self.0
    }
}

/// A slot's word as it was loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry(pub(crate) u64);

impl Entry {
    #[inline]
    pub(crate) fn new(tag: u64, location: Location) -> Entry {
        Entry(tag << TAG_SHIFT | location.0)
    }

    #[inline]
    pub(crate) fn location(self) -> Option<Location> {
        let value = self.0 & LOCATION_MASK;
        (value != 0).then_some(Location(value))
    }

    #[inline]
    pub(crate) fn tag(self) -> u64 {
        self.0 >> TAG_SHIFT
    }

    /// The bucket's flag, if this is slot 0.
    #[inline]
    pub(crate) fn says_more(self) -> bool {
        self.0 & MORE != 0
    }

    /// Without the bucket's flag.
    #[inline]
    pub(crate) fn bare(self) -> Entry {
        Entry(self.0 & !MORE)
    }
}

/// Eight entries that one memory access fetches. Writers hold the segment's lock ([`super::locks`]) or are
/// alone with it, so changes are plain stores. Readers load at any time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bucket<'a>(pub(crate) &'a DramLine);

impl<'a> Bucket<'a> {
    /// All slots, in order. The record behind an entry was written before the entry could be loaded.
    #[inline]
    pub(crate) fn entries(self) -> [Entry; BUCKET_ENTRIES] {
        self.0.load().map(Entry)
    }

    /// The entry in one slot.
    #[inline]
    pub(crate) fn entry(self, slot: usize) -> Entry {
        Entry(self.word(slot).load(Ordering::Acquire))
    }

    /// The remainder proves to the compiler that the slot exists.
    #[inline]
    fn word(self, slot: usize) -> &'a AtomicU64 {
        &self.0[slot % BUCKET_ENTRIES]
    }

    /// Slots whose tag is this one. An empty slot looks like tag 0.
    #[inline]
    pub(crate) fn tagged(self, tag: u64) -> Matches {
        self.0.equal(TAG_MASK, tag << TAG_SHIFT)
    }

    /// Puts `entry` into an empty slot; `false` if there is none.
    #[inline]
    pub(crate) fn put(self, entry: Entry) -> bool {
        let empty = self.0.equal(LOCATION_MASK, 0).first();
        if let Some(slot) = empty {
            self.store(slot, entry.0);
        }
        empty.is_some()
    }

    /// Turns exactly the entry `old` into `new` (`None` = empty); `false` if it is not here.
    #[inline]
    pub(crate) fn exchange(self, old: Entry, new: Option<Entry>) -> bool {
        let found = self.0.equal(!MORE, old.0).first();
        if let Some(slot) = found {
            self.store(slot, new.map_or(0, |entry| entry.0));
        }
        found.is_some()
    }

    /// Keeps the bucket's flag.
    #[inline]
    fn store(self, slot: usize, word: u64) {
        let place = self.word(slot);
        let flag = place.load(Ordering::Relaxed) & MORE;
        place.store(word | flag, Ordering::Release);
    }

    /// Whether entries that belong here may lie in the next bucket.
    #[inline]
    pub(crate) fn has_more(self) -> bool {
        self.entry(0).says_more()
    }

    /// Sets that flag, before an entry goes there.
    #[inline]
    pub(crate) fn set_more(self) {
        let first = self.entry(0);
        if !first.says_more() {
            self.word(0).store(first.0 | MORE, Ordering::Release);
        }
    }

    /// Overwrites the whole bucket, in a page that is still private.
    #[inline]
    pub(crate) fn fill(self, words: &[u64; BUCKET_ENTRIES]) {
        for (slot, word) in self.0.iter().zip(words) {
            slot.store(*word, Ordering::Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(tag: u64, location: u64) -> Entry {
        Entry::new(tag, Location::new(location).unwrap())
    }

    #[test]
    fn locations_have_40_bits_and_are_not_zero() {
        assert_eq!(Location::new(0), None);
        assert_eq!(Location::new(1 << 40), None);
        assert_eq!(Location::new((1 << 40) - 1).unwrap().get(), (1 << 40) - 1);
    }

    #[test]
    fn an_entry_keeps_its_parts_apart() {
        let tag = (1 << TAG_BITS) - 1;
        assert_eq!(entry(tag, 1).tag(), tag);
        assert_eq!(entry(tag, 1).location(), Location::new(1));
        assert_eq!(entry(0, (1 << 40) - 1).tag(), 0);
        assert_eq!(Entry(entry(5, 6).0 | MORE).bare(), entry(5, 6));
    }

    #[test]
    fn the_flag_of_a_bucket_survives_its_entries() {
        let line = DramLine::default();
        let bucket = Bucket(&line);
        assert!(!bucket.has_more());
        bucket.set_more();
        assert!(
            bucket.entries()[0].location().is_none(),
            "a flag is not an entry"
        );
        for i in 1..=8 {
            assert!(bucket.put(entry(i, i)));
        }
        assert!(!bucket.put(entry(9, 9)), "eight fit");
        assert!(bucket.exchange(entry(1, 1), Some(entry(1, 99))));
        assert!(
            !bucket.exchange(entry(1, 1), Some(entry(1, 98))),
            "only exactly the old one"
        );
        assert!(bucket.exchange(entry(1, 99), None));
        assert!(bucket.has_more());
        assert!(bucket.put(entry(9, 9)));
        assert!(bucket.has_more());
    }
}
