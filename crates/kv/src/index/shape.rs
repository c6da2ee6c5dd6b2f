//! The arithmetic of a segment: the meaning of the bits of a hash.
//!
//! ```text
//!  hash bit 0 (the top)                                                              63
//!  |<---- depth: the segment's place in the directory ---->|
//!  |<-- base: known from the segment -->|<------- tag: 23 bits ------>|   (not kept)
//!                                                          |<- known ->|
//! ```
//!
//! The known bits, those of the tag below the depth, place an entry inside its segment: its home bucket is
//! `known * buckets >> known_bits`, so homes are in the order of hashes for every number of pages. An entry's
//! tag therefore suffices for growth until the depth has used up too much of it. Then the segment is
//! *anchored* anew: `base` moves to `depth`, and growth asks for the keys' hashes once more.
//!
//! Invariants: `base <= depth <= DEPTH_MAX`, `1 <= pages <= PAGES_MAX`, known bits are at least
//! [`KNOWN_BITS_MIN`].

use super::entry::TAG_BITS;
use super::hash::KeyHash;

/// Buckets of a page, the unit in which segments grow: 2 KiB.
pub(crate) const PAGE_BUCKETS: u32 = 32;
/// Pages of a full segment: one word of a directory line for each.
pub(crate) const PAGES_MAX: usize = 8;
/// Deepest segment. Its directory would be far larger than any memory.
pub(crate) const DEPTH_MAX: u32 = 40;
/// Fewest known bits: 8 choose among the 256 buckets of a full segment, 8 distinguish entries of one bucket.
pub(crate) const KNOWN_BITS_MIN: u32 = 16;

// Even a tag anchored at the deepest segment ends inside the hash.
const _: () = assert!(DEPTH_MAX + TAG_BITS <= 64);

/// How a segment reads hashes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Shape {
    /// Pages of buckets.
    pub(crate) pages: u32,
    /// Top bits of the hash that all entries share.
    pub(crate) depth: u32,
    /// First bit of the hash that the tag holds.
    pub(crate) base: u32,
}

impl Shape {
    /// Whether such a segment can exist.
    pub(crate) fn is_sound(self) -> bool {
        (1..=PAGES_MAX as u32).contains(&self.pages)
            && self.base <= self.depth
            && self.depth <= DEPTH_MAX
            && self.base + TAG_BITS >= self.depth + KNOWN_BITS_MIN
    }

    /// Buckets of the segment.
    #[inline]
    pub(crate) fn buckets(self) -> u32 {
        self.pages * PAGE_BUCKETS
    }

    #[inline]
    pub(crate) fn known_bits(self) -> u32 {
        self.base + TAG_BITS - self.depth
    }

    #[inline]
    pub(crate) fn tag(self, hash: KeyHash) -> u64 {
        hash.0 << self.base >> (64 - TAG_BITS)
    }

    /// Bucket where the search for a tag begins.
    #[inline]
    pub(crate) fn home(self, tag: u64) -> u32 {
        let bits = self.known_bits();
        let known = tag & ((1 << bits) - 1);
        // At most 23 bits of `known` and 9 of the buckets: the product fits, and the quotient is a bucket.
        ((known * u64::from(self.buckets())) >> bits) as u32
    }

    /// Whether a split sends the tag's entry to the upper half.
    #[inline]
    pub(crate) fn upper_half(self, tag: u64) -> bool {
        tag >> (self.known_bits() - 1) & 1 == 1
    }

    /// The smallest hash of the segment of `hash`.
    pub(crate) fn first_hash(self, hash: KeyHash) -> KeyHash {
        KeyHash(top(hash.0, self.depth))
    }

    /// The smallest hash in the segment of `hash` whose home is `bucket` or later; `None` past the last hash.
    pub(crate) fn hash_of_home(self, hash: KeyHash, bucket: u32) -> Option<u64> {
        let known = (u64::from(bucket) << self.known_bits()).div_ceil(u64::from(self.buckets()));
        let within = u128::from(known) << (64 - TAG_BITS - self.base);
        u64::try_from(u128::from(top(hash.0, self.depth)) + within).ok()
    }

    /// Whether `hash` could belong to the entry with this tag in the segment of `place`.
    pub(crate) fn agrees(self, place: KeyHash, tag: u64, hash: KeyHash) -> bool {
        top(hash.0, self.depth) == top(place.0, self.depth) && self.tag(hash) == tag
    }

    /// The shape of a half, and whether its tags must be recomputed from full hashes. `None` for the deepest
    /// segment.
    pub(crate) fn half(self) -> Option<(Shape, bool)> {
        if self.depth >= DEPTH_MAX {
            return None;
        }
        let depth = self.depth + 1;
        let kept = Shape { depth, ..self };
        let anchored = Shape {
            base: depth,
            ..kept
        };
        let anchor = kept.known_bits() < KNOWN_BITS_MIN;
        Some((if anchor { anchored } else { kept }, anchor))
    }
}

/// The `count` top bits of `value`, the others 0.
#[inline]
fn top(value: u64, count: u32) -> u64 {
    value & !u64::MAX.checked_shr(count).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shapes() -> impl Iterator<Item = Shape> {
        (6..=DEPTH_MAX).flat_map(|depth| {
            let bases = (0..=depth).filter(move |b| b + TAG_BITS >= depth + KNOWN_BITS_MIN);
            bases.flat_map(move |base| (1..=8).map(move |pages| Shape { pages, depth, base }))
        })
    }

    #[test]
    fn homes_follow_the_order_of_hashes() {
        for shape in shapes() {
            let place = KeyHash(0xdead_beef_cafe_f00d);
            for bucket in 0..shape.buckets() {
                let first = shape.hash_of_home(place, bucket).unwrap();
                assert_eq!(shape.home(shape.tag(KeyHash(first))), bucket, "{shape:?}");
                assert_eq!(top(first, shape.depth), top(place.0, shape.depth));
                if bucket > 0 {
                    assert_eq!(
                        shape.home(shape.tag(KeyHash(first - 1))),
                        bucket - 1,
                        "{shape:?}"
                    );
                }
            }
            let end = shape.hash_of_home(place, shape.buckets()).unwrap();
            let width = 1 << (64 - shape.depth);
            assert_eq!(end, top(place.0, shape.depth) + width);
        }
        let last = Shape {
            pages: 5,
            depth: 7,
            base: 6,
        };
        assert_eq!(last.hash_of_home(KeyHash(u64::MAX), last.buckets()), None);
    }

    #[test]
    fn a_tag_is_a_part_of_the_hash() {
        for shape in shapes() {
            for hash in [0, 1, u64::MAX, 0x0123_4567_89ab_cdef, 0xfedc_ba98_7654_3210].map(KeyHash)
            {
                let tag = shape.tag(hash);
                assert_eq!(
                    tag,
                    hash.0 >> (64 - TAG_BITS - shape.base) & ((1 << TAG_BITS) - 1)
                );
                assert!(shape.agrees(hash, tag, hash));
                assert!(!shape.agrees(hash, tag ^ 1, hash));
                assert_eq!(shape.upper_half(tag), hash.0 << shape.depth >> 63 == 1);
            }
        }
    }

    #[test]
    fn halves_are_anchored_anew_when_tags_run_out() {
        let mut shape = Shape {
            pages: 8,
            depth: 6,
            base: 6,
        };
        let mut anchors = Vec::new();
        while let Some((half, anchored)) = shape.half() {
            assert!(half.known_bits() >= KNOWN_BITS_MIN && half.base <= half.depth);
            if anchored {
                anchors.push(half.depth);
            }
            shape = half;
        }
        assert_eq!(shape.depth, DEPTH_MAX);
        assert_eq!(anchors, [14, 22, 30, 38]);
    }
}
