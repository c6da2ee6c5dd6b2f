//! A node's hint of the back: the slot and object of its key, which spare a gleaner the search.
//!
//! A read of persistent memory costs a gleaner more than all its other work for a key. So a gleaner that has
//! applied a node leaves the key's slot and object there, and a put that replaces the node copies them. A put
//! copies only from an applied node: a gleaner may be applying any other, which makes its hint stale.
//!
//! ```text
//! first word    0 applied | 1..7 depth of the array | 8..64 slot, in units of 8 bytes; 0: no hint
//! second word   0..22 lines of the object | 22..64 the object, in units of 64 bytes
//! ```
//!
//! A hint is true until the key's bucket moves to another array, which the depth shows, or the key leaves the
//! back. A key leaves the back when a removal is applied, and a put that replaces a removal copies no hint.

use super::table::DEPTH_MAX;
use super::table::LINE;

/// The back has the node's state, or a newer one.
pub(in crate::bullet) const APPLIED: u64 = 1;
const DEPTH_SHIFT: u32 = 1;
const DEPTH_MASK: u64 = 63;
const SLOT_SHIFT: u32 = 8;
const LINES_BITS: u32 = 22;

const _: () = {
    assert!(APPLIED & DEPTH_MASK << DEPTH_SHIFT == 0);
    assert!(DEPTH_MASK << DEPTH_SHIFT < 1 << SLOT_SHIFT && DEPTH_MAX as u64 <= DEPTH_MASK);
    // 56 bits of a slot in units of 8 bytes, 42 of an object in units of 64: both reach 2^48 and more.
    assert!(64 - SLOT_SHIFT + 3 >= 48 && 64 - LINES_BITS + 6 >= 48);
};

/// See the module text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bullet) struct BackHint {
    /// Depth of the array that the slot belongs to.
    pub(in crate::bullet) depth: u32,
    /// Offset of the slot.
    pub(in crate::bullet) slot: u64,
    /// Offset of the object in it.
    pub(in crate::bullet) object: u64,
    /// Lines of the object.
    lines: u64,
}

impl BackHint {
    /// `None`: the object is too long for the hint's words.
    pub(in crate::bullet) fn new(
        depth: u32,
        slot: u64,
        object: u64,
        bytes: u64,
    ) -> Option<BackHint> {
        let lines = bytes.div_ceil(LINE);
        (lines < 1 << LINES_BITS).then_some(BackHint {
            depth,
            slot,
            object,
            lines,
        })
    }

    /// Bytes of the object, up to the end of its last line.
    pub(in crate::bullet) fn bytes(&self) -> u64 {
        self.lines * LINE
    }

    /// As two words, the first without [`APPLIED`].
    #[inline]
    pub(in crate::bullet) fn to_words(self) -> [u64; 2] {
        let place = ((self.slot / 8) << SLOT_SHIFT) | u64::from(self.depth) << DEPTH_SHIFT;
        [place, ((self.object / LINE) << LINES_BITS) | self.lines]
    }

    /// The hint in two words; `None`: they hold none.
    #[inline]
    pub(in crate::bullet) fn of_words([place, object]: [u64; 2]) -> Option<BackHint> {
        let slot = (place >> SLOT_SHIFT) * 8;
        (slot != 0).then_some(BackHint {
            depth: (place >> DEPTH_SHIFT & DEPTH_MASK) as u32,
            slot,
            object: (object >> LINES_BITS) * LINE,
            lines: object & ((1 << LINES_BITS) - 1),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_say_what_was_said() {
        for (depth, slot, object, bytes) in
            [(1, 8, 64, 1), (40, (1 << 47) - 8, (1 << 48) - 64, 160)]
        {
            let hint = BackHint::new(depth, slot, object, bytes).unwrap();
            let [place, word] = hint.to_words();
            assert_eq!(BackHint::of_words([place, word]), Some(hint));
            assert_eq!(BackHint::of_words([place | APPLIED, word]), Some(hint));
            assert_eq!(place & APPLIED, 0);
            assert_eq!(hint.bytes(), bytes.next_multiple_of(64));
        }
        assert_eq!(BackHint::of_words([APPLIED, 0]), None);
        assert_eq!(BackHint::new(1, 8, 64, 1 << 28), None);
    }
}
