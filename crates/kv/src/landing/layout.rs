//! The bytes of the landing area: its head, the lines of its grants, its pages.
//!
//! ```text
//!  extent of owner 100
//!  +-----------+--------------------------+---------+------------------------------------------+
//!  | head 64 B | grant lines, 64 B a page | padding | pages of 4096 B, which clients write     |
//!  +-----------+--------------------------+---------+------------------------------------------+
//!
//!  grant line   0 word: 0 = free, else 1 | pages << 8     8 nonce          16 value bytes    24 expires,
//!              Unix ms 32 key bytes (4), reserved (4)            40 keyed sum of the key           48
//!              generation 56 keyed check over the bytes before, and the line's offset in the image
//!  slot         0 magic (4), reserved (4)                 8 generation     16 nonce
//!              24 key bytes (4), reserved (4)            32 value bytes    40 expires        48 check    56
//!              reserved 64 key, zeros up to a multiple of 8, value
//! ```
//! The line of a run of pages is that of its first page; the words of the other pages' lines are 0. A line's
//! word is stored only when the rest of the line is durable, so every word that is not 0 has a line that
//! verifies, or the line is damaged. Without that order, a crash between two grants of one page could leave
//! the word of the later with the rest of the earlier, which verifies: a value that was removed would be
//! back.

use crate::error::{Error, corrupt};
use everdram_pm::{Lane, OWNER_REQUIRED, Pool, Region, Secret, assert_layout};
use std::mem::offset_of;
use std::ops::Range;

/// Owner of the extent.
pub(crate) const OWNER: u32 = OWNER_REQUIRED;
/// Bytes of a page.
pub const PAGE_BYTES: u64 = 4096;
/// Bytes of a line, of the head, and of a slot before its key.
pub(super) const LINE_BYTES: u64 = 64;
/// Most bytes of pages; the number of a page has 32 bits.
pub(crate) const AREA_BYTES_MAX: u64 = 1 << 40;

const MAGIC: [u8; 8] = *b"evlandng";
const VERSION: u32 = 1;
/// In the word of a line that is in use.
const GIVEN: u64 = 1;
const PAGES_SHIFT: u32 = 8;

/// The head of the area.
#[repr(C)]
struct HeadLayout {
    magic: [u8; 8],
    version: [u8; 4],
    reserved: [u8; 4],
    pages: [u8; 8],
    zero: [u8; 32],
    check: [u8; 8],
}

/// The line of a grant.
#[repr(C)]
struct LineLayout {
    word: [u8; 8],
    nonce: [u8; 8],
    value_bytes: [u8; 8],
    expires: [u8; 8],
    key_bytes: [u8; 4],
    reserved: [u8; 4],
    key_sum: [u8; 8],
    generation: [u8; 8],
    check: [u8; 8],
}

/// A slot before its key.
#[repr(C)]
pub(super) struct SlotLayout {
    pub(super) magic: [u8; 4],
    pub(super) reserved: [u8; 4],
    pub(super) generation: [u8; 8],
    pub(super) nonce: [u8; 8],
    pub(super) key_bytes: [u8; 4],
    pub(super) reserved_too: [u8; 4],
    pub(super) value_bytes: [u8; 8],
    pub(super) expires: [u8; 8],
    pub(super) check: [u8; 8],
    pub(super) zero: [u8; 8],
}

assert_layout!(HeadLayout, size 64, align 1, {
    magic @ 0, version @ 8, reserved @ 12, pages @ 16, zero @ 24, check @ 56,
});
assert_layout!(LineLayout, size 64, align 1, {
    word @ 0, nonce @ 8, value_bytes @ 16, expires @ 24, key_bytes @ 32, reserved @ 36, key_sum @ 40,
    generation @ 48, check @ 56,
});
assert_layout!(SlotLayout, size 64, align 1, {
    magic @ 0, reserved @ 4, generation @ 8, nonce @ 16, key_bytes @ 24, reserved_too @ 28, value_bytes @ 32,
    expires @ 40, check @ 48, zero @ 56,
});
const _: () = {
    assert!(OWNER == 100);
    assert!(AREA_BYTES_MAX / PAGE_BYTES <= u32::MAX as u64);
};

fn put(bytes: &mut [u8; 64], at: usize, field: &[u8]) {
    bytes[at..at + field.len()].copy_from_slice(field);
}

fn word_at(bytes: &[u8; 64], at: usize) -> u64 {
    let mut word = [0; 8];
    word.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(word)
}

fn half_at(bytes: &[u8; 64], at: usize) -> u32 {
    let mut half = [0; 4];
    half.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(half)
}

/// The keyed check of a line or head: over all of it, with its place instead of the check.
fn check_of(secret: &Secret, bytes: &[u8; 64], place: u64) -> u64 {
    let mut bytes = *bytes;
    put(
        &mut bytes,
        offset_of!(LineLayout, check),
        &place.to_le_bytes(),
    );
    secret.sum(&bytes)
}

/// Where the parts of an area lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Area {
    at: u64,
    pub(super) pages: u32,
}

impl Area {
    /// Bytes of the extent of so many pages.
    pub(super) const fn bytes_of(pages: u64) -> u64 {
        Area::front_bytes(pages) + pages * PAGE_BYTES
    }

    /// Bytes before the pages.
    const fn front_bytes(pages: u64) -> u64 {
        (LINE_BYTES + pages * LINE_BYTES).next_multiple_of(PAGE_BYTES)
    }

    /// The area that fills an extent.
    pub(super) fn filling(at: u64, bytes: u64) -> Option<Area> {
        let most = bytes / PAGE_BYTES;
        // A page for each 64 is a page of lines.
        let least = most.saturating_sub(most / 64 + 2);
        let pages = (least..=most).find(|&pages| pages > 0 && Area::bytes_of(pages) == bytes)?;
        let pages = u32::try_from(pages).ok()?;
        Some(Area { at, pages })
    }

    /// Offset of the line of a page.
    pub(super) fn line_at(self, page: u32) -> u64 {
        self.at + LINE_BYTES + u64::from(page) * LINE_BYTES
    }

    /// Offset of a page.
    pub(super) fn page_at(self, page: u32) -> u64 {
        self.at + Area::front_bytes(u64::from(self.pages)) + u64::from(page) * PAGE_BYTES
    }

    /// The offsets of all pages.
    pub(super) fn slots(self) -> Range<u64> {
        self.page_at(0)..self.page_at(0) + u64::from(self.pages) * PAGE_BYTES
    }

    /// The bytes of its head.
    pub(super) fn head(self, secret: &Secret) -> [u8; 64] {
        let mut bytes = [0; 64];
        put(&mut bytes, offset_of!(HeadLayout, magic), &MAGIC);
        put(
            &mut bytes,
            offset_of!(HeadLayout, version),
            &VERSION.to_le_bytes(),
        );
        let pages = u64::from(self.pages).to_le_bytes();
        put(&mut bytes, offset_of!(HeadLayout, pages), &pages);
        let check = check_of(secret, &bytes, self.at).to_le_bytes();
        put(&mut bytes, offset_of!(HeadLayout, check), &check);
        bytes
    }

    /// Makes the head, durably. Its first word comes when the rest is durable, so that no crash leaves a head
    /// that looks damaged.
    pub(super) fn make_head(self, lane: &mut Lane, secret: &Secret) {
        let head = self.head(secret);
        let dirty = lane.store(self.at + 8, &head[8..]);
        let flushed = lane.flush(dirty);
        let ordered = lane.fence(flushed);
        let dirty = lane.publish(self.at, word_at(&head, 0), &ordered);
        let flushed = lane.flush(dirty);
        let _ordered = lane.fence(flushed);
    }

    /// Whether the pool has this area's head; `false`: it has none yet, since the process ended before.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(super) fn has_head(self, pool: &Pool) -> Result<bool, Error> {
        let mut found = [0; 64];
        pool.region().load(self.at, &mut found);
        let head = self.head(pool.secret());
        if found == head {
            return Ok(true);
        }
        // A crash while it was made leaves some of its words, but never the first.
        let is_begun = |at: usize| [0, word_at(&head, at)].contains(&word_at(&found, at));
        match word_at(&found, 0) == 0 && (8..64).step_by(8).all(is_begun) {
            true => Ok(false),
            false => Err(corrupt(
                self.at,
                "the head of the landing area does not verify",
            )),
        }
    }
}

/// What a grant allows: one write of this key, with a value of this length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Line {
    pub(super) pages: u32,
    pub(super) nonce: u64,
    pub(super) value_bytes: u64,
    pub(super) expires_at_ms: u64,
    pub(super) key_bytes: u32,
    pub(super) key_sum: u64,
    pub(super) generation: u64,
}

/// What a line holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Found {
    Free,
    Given(Line),
    Damaged,
}

impl Line {
    /// The word of a line in use.
    pub(super) fn word(&self) -> u64 {
        GIVEN | u64::from(self.pages) << PAGES_SHIFT
    }

    /// The bytes of the line at an offset.
    pub(super) fn to_bytes(self, secret: &Secret, place: u64) -> [u8; 64] {
        let mut bytes = [0; 64];
        let mut field = |at: usize, field: &[u8]| put(&mut bytes, at, field);
        field(offset_of!(LineLayout, word), &self.word().to_le_bytes());
        field(offset_of!(LineLayout, nonce), &self.nonce.to_le_bytes());
        field(
            offset_of!(LineLayout, value_bytes),
            &self.value_bytes.to_le_bytes(),
        );
        field(
            offset_of!(LineLayout, expires),
            &self.expires_at_ms.to_le_bytes(),
        );
        field(
            offset_of!(LineLayout, key_bytes),
            &self.key_bytes.to_le_bytes(),
        );
        field(offset_of!(LineLayout, key_sum), &self.key_sum.to_le_bytes());
        field(
            offset_of!(LineLayout, generation),
            &self.generation.to_le_bytes(),
        );
        let check = check_of(secret, &bytes, place).to_le_bytes();
        put(&mut bytes, offset_of!(LineLayout, check), &check);
        bytes
    }

    /// Bytes of the slot.
    pub(super) fn slot_bytes(&self) -> u64 {
        slot_bytes(self.key_bytes as usize, self.value_bytes)
    }

    /// Reads the line of a page. The word is read before the rest.
    pub(super) fn read(region: &Region, secret: &Secret, area: Area, page: u32) -> Found {
        let place = area.line_at(page);
        if region.load_word(place) == 0 {
            return Found::Free;
        }
        let mut bytes = [0; 64];
        region.load(place, &mut bytes);
        let word = word_at(&bytes, offset_of!(LineLayout, word));
        if word == 0 {
            return Found::Free;
        }
        let line = Line {
            pages: u32::try_from(word >> PAGES_SHIFT).unwrap_or(0),
            nonce: word_at(&bytes, offset_of!(LineLayout, nonce)),
            value_bytes: word_at(&bytes, offset_of!(LineLayout, value_bytes)),
            expires_at_ms: word_at(&bytes, offset_of!(LineLayout, expires)),
            key_bytes: half_at(&bytes, offset_of!(LineLayout, key_bytes)),
            key_sum: word_at(&bytes, offset_of!(LineLayout, key_sum)),
            generation: word_at(&bytes, offset_of!(LineLayout, generation)),
        };
        let ends = u64::from(page) + u64::from(line.pages);
        // Numbers are checked although the check is keyed: whoever forges both must not reach beyond the
        // area.
        let is_sound = line.to_bytes(secret, place) == bytes
            && line.pages > 0
            && ends <= u64::from(area.pages)
            && line.value_bytes <= AREA_BYTES_MAX
            && line.slot_bytes() <= u64::from(line.pages) * PAGE_BYTES
            && line.generation < u64::MAX / 2;
        match is_sound {
            true => Found::Given(line),
            false => Found::Damaged,
        }
    }
}

/// Bytes of a slot for a key and a value of these lengths in bytes.
pub(super) fn slot_bytes(key_bytes: usize, value_bytes: u64) -> u64 {
    LINE_BYTES + (key_bytes as u64).next_multiple_of(8) + value_bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_extent_has_one_area() {
        for pages in (1..3000).chain([16_384, 1 << 28]) {
            let bytes = Area::bytes_of(pages);
            let area = Area::filling(65_536, bytes).unwrap();
            assert_eq!(u64::from(area.pages), pages);
            assert!(area.line_at(area.pages - 1) + LINE_BYTES <= area.page_at(0));
            assert_eq!(area.slots().end, 65_536 + bytes);
        }
        for bytes in [0, 4096, 4097] {
            assert_eq!(Area::filling(65_536, bytes), None);
        }
    }
}
