//! Every persistent byte of the engine: blocks, pages, marks, records, chains. `docs/format.md` says the
//! same in prose.
//!
//! ```text
//! VBlock = one VPage for each DIMM            VPage header (64 B for a page of 4 KiB)
//! +--------+--------+-- - --+--------+        +-----------+-----------+------+------+-- - -+
//! | page 0 | page 1 |       | page n |        | page word | tail word | mark | mark |      |
//! +--------+--------+-- - --+--------+        +-----------+-----------+------+------+-- - -+
//!
//! page word  0..8 kind | 8..40 epoch | 40..64 check      one 8-byte store opens or frees a block
//! tail word  0..24 end of the last record, 0 = open | 24..40 epoch, low bits | 40..64 check
//! mark word  0..48 one bit for each place: 1 = the record there is dead | 48..64 check
//!
//! Record in a variable-size page, at a multiple of 16 bytes:
//! +----------+----------+----------+----------+-----+-------+---------+
//! | head     | stamp    | check    | [expiry] | key | value | 0 to 16 |
//! +----------+----------+----------+----------+-----+-------+---------+
//! head   0..4 kind | 4..8 flags | 8..24 key length - 1 | 24..32 zero | 32..64 value length
//! stamp  0..16 moves | 16..63 version | 63 first of its fence group
//!
//! Slot in a fixed-size page:
//! +----------+----------+-------------+---------------+
//! | stamp    | check    | key, 0 to 8 | value, 0 to 8 |
//! +----------+----------+-------------+---------------+
//! ```
//!
//! Every check is keyed with the pool's secret and covers the byte offset and the epoch of the block, which
//! grows with each reuse. So bytes of an earlier life, or of another place, never verify (V10). The data of a
//! piece has a check in the piece's head, which may be its writer's own.

use crate::engine::limits::KEY_BYTES_MAX;
use crate::error::Error;
use everdram_pm::{LINE, Secret};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// The contents of a block; the low byte of its page words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    /// Nothing; may be claimed.
    Free = 1,
    /// Pages that are logs of records.
    Variable = 2,
    /// Pages of slots.
    Fixed = 3,
    /// As `Fixed`, with values that were changed in place: their value checks are void.
    FixedEdited = 4,
    /// The whole block is one page: a log of larger records.
    Large = 5,
    /// A piece of one value that is larger than a block.
    Overflow = 6,
}

impl Kind {
    pub(crate) fn from_byte(byte: u8) -> Option<Kind> {
        Some(match byte {
            1 => Kind::Free,
            2 => Kind::Variable,
            3 => Kind::Fixed,
            4 => Kind::FixedEdited,
            5 => Kind::Large,
            6 => Kind::Overflow,
            _ => return None,
        })
    }

    /// Whether slots of one size fill the pages.
    pub(crate) fn is_fixed(self) -> bool {
        matches!(self, Kind::Fixed | Kind::FixedEdited)
    }
}

const SALT_PAGE: u64 = 0x70;
const SALT_TAIL: u64 = 0x74;
const SALT_MARK: u64 = 0x6d;
const SALT_CHAIN: u64 = 0x63;
/// In the word that numbers a piece of a chain: its writer made the check of its bytes.
const BY_WRITER: u64 = 1 << 63;
const SALT_FLOOR: u64 = 0x66;
const SALT_LIVES: u64 = 0x65;

/// Bits of a mark word that stand for places.
pub(crate) const MARKS_PER_WORD: u64 = 48;
/// Records start at multiples of this.
pub(crate) const GRAIN: u64 = 16;
/// Bytes before a record's expiry, key and value.
pub(crate) const RECORD_HEAD: usize = 24;
/// Bytes before a slot's key.
pub(crate) const SLOT_HEAD: usize = 16;
/// Pages are multiples of this. Options require more; the crash lab uses pages of a few lines, so that a few
/// records reach every border.
const PAGE_BYTES_MIN: u32 = 512;
/// Bytes of the header of an overflow block.
pub(crate) const OVERFLOW_HEAD: u64 = 64;

/// `epoch` counts the claims of the block.
pub(crate) fn page_word(secret: &Secret, at: u64, kind: Kind, epoch: u32) -> u64 {
    let body = kind as u64 | u64::from(epoch) << 8;
    body | secret.sum_words([SALT_PAGE, at, body]) >> 40 << 40
}

/// Kind and epoch of a page word, if it verifies.
pub(crate) fn parse_page_word(secret: &Secret, at: u64, word: u64) -> Option<(Kind, u32)> {
    let kind = Kind::from_byte(word as u8)?;
    let epoch = (word >> 8) as u32;
    (page_word(secret, at, kind, epoch) == word).then_some((kind, epoch))
}

/// `at` is the page's offset; `tail` the offset in the page where the last record ends, 0 while it is open.
pub(crate) fn tail_word(secret: &Secret, at: u64, epoch: u32, tail: u32) -> u64 {
    let body = u64::from(tail) | u64::from(epoch as u16) << 24;
    let check = secret.sum_words([SALT_TAIL, at, u64::from(tail) | u64::from(epoch) << 24]);
    body | check >> 40 << 40
}

/// The tail, if the word verifies.
pub(crate) fn parse_tail_word(secret: &Secret, at: u64, epoch: u32, word: u64) -> Option<u32> {
    let tail = (word & 0xff_ffff) as u32;
    (tail_word(secret, at, epoch, tail) == word).then_some(tail)
}

/// The last life that began in a free block whose page word says `epoch`. Without this, the next life could
/// get the number of one whose page word a crash lost. Headers (fenced first) and even records of that lost
/// life may have survived, and would verify in the new one.
pub(crate) fn begun_epoch(secret: &Secret, at: u64, epoch: u32, tail: u64) -> u32 {
    let ahead = ((tail >> 24) as u16).wrapping_sub(epoch as u16);
    let begun = epoch.wrapping_add(u32::from(ahead));
    if parse_tail_word(secret, at, begun, tail).is_some() {
        begun
    } else {
        epoch
    }
}

/// `at` is the word's own offset; `bits` its 48 places.
pub(crate) fn mark_word(secret: &Secret, at: u64, epoch: u32, bits: u64) -> u64 {
    let check = secret.sum_words([SALT_MARK, at ^ u64::from(epoch) << 32, bits]);
    bits | check >> 48 << 48
}

/// The 48 bits of a word that verifies.
pub(crate) fn mark_bits(word: u64) -> u64 {
    word & ((1 << MARKS_PER_WORD) - 1)
}

/// The 48 bits, if the word verifies.
pub(crate) fn parse_mark_word(secret: &Secret, at: u64, epoch: u32, word: u64) -> Option<u64> {
    let bits = mark_bits(word);
    (mark_word(secret, at, epoch, bits) == word).then_some(bits)
}

/// Bits of a version.
const FLOOR_BITS: u32 = 47;

/// The word at the start of the root page: versions up to `floor` do not count any more (FLUSHALL).
pub(crate) fn floor_word(secret: &Secret, at: u64, floor: u64) -> u64 {
    let check = secret.sum_words([SALT_FLOOR, at, floor]);
    floor | check >> FLOOR_BITS << FLOOR_BITS
}

/// The floor, if the word verifies.
pub(crate) fn parse_floor_word(secret: &Secret, at: u64, word: u64) -> Option<u64> {
    let floor = word & ((1 << FLOOR_BITS) - 1);
    (floor_word(secret, at, floor) == word).then_some(floor)
}

/// The second word of the root page: a block that looks never claimed has had up to `lives` lives.
pub(crate) fn lives_word(secret: &Secret, at: u64, lives: u32) -> u64 {
    let check = secret.sum_words([SALT_LIVES, at, u64::from(lives)]);
    u64::from(lives) | check >> 32 << 32
}

/// The lives, if the word verifies. Zero in a pool that never returned room to the file system.
pub(crate) fn parse_lives_word(secret: &Secret, at: u64, word: u64) -> Option<u32> {
    let lives = word as u32;
    (word == 0 || lives_word(secret, at, lives) == word).then_some(lives)
}

/// Sizes of pages and blocks of one pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Geometry {
    /// Bytes of a page.
    pub(crate) page_bytes: u64,
    /// Pages of a block = DIMMs.
    pub(crate) pages: u64,
    /// Bytes of a block.
    pub(crate) block_bytes: u64,
    /// Lengths in bytes of key and value that go to fixed-size pages.
    pub(crate) fixed: Option<FixedShape>,
    /// The pages of a block with one page for each DIMM.
    small: Pages,
    /// The one page of a block of larger records.
    large: Pages,
}

/// Records of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FixedShape {
    pub(crate) key: usize,
    pub(crate) value: usize,
}

impl FixedShape {
    /// Where the value starts in a slot; a multiple of 8.
    pub(crate) fn value_at(&self) -> usize {
        SLOT_HEAD + self.key.next_multiple_of(8)
    }

    /// Bytes of a slot.
    pub(crate) fn slot_bytes(&self) -> u64 {
        (self.value_at() + self.value.next_multiple_of(8)) as u64
    }
}

/// The pages of one kind of block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Pages in the block.
    pub(crate) count: u64,
    /// Bytes of each.
    pub(crate) bytes: u64,
    /// Bytes of the header of each.
    pub(crate) header: u64,
    /// Mark words in the header.
    pub(crate) mark_words: u64,
}

impl Pages {
    const fn new(count: u64, bytes: u64) -> Pages {
        let mark_words = (bytes / GRAIN).div_ceil(MARKS_PER_WORD);
        Pages {
            count,
            bytes,
            header: (16 + 8 * mark_words).next_multiple_of(LINE),
            mark_words,
        }
    }

    /// Room that counts as garbage in a block whose records end at byte `end` of page number `turn`. It is
    /// all later pages, and the rest of that page if less than half full. The rest of an earlier page does
    /// not count, because compaction would leave as much.
    pub(crate) fn slack(&self, turn: u64, end: u64) -> u64 {
        let used = end - self.header;
        let last = if used < self.room() / 2 {
            self.room() - used
        } else {
            0
        };
        last + (self.count - 1 - turn) * self.room()
    }

    /// Bytes for records in one page.
    pub(crate) const fn room(&self) -> u64 {
        self.bytes - self.header
    }
}

impl Geometry {
    /// # Errors
    /// [`Error::Options`] if a slot does not fit a page.
    pub(crate) fn new(
        page_bytes: u32,
        dimms: u32,
        fixed: Option<(u32, u32)>,
    ) -> Result<Geometry, Error> {
        let (page_bytes, pages) = (u64::from(page_bytes), u64::from(dimms));
        let fixed = fixed.map(|(key, value)| FixedShape {
            key: key as usize,
            value: value as usize,
        });
        let geometry = Geometry {
            page_bytes,
            pages,
            block_bytes: page_bytes * pages,
            fixed,
            small: Pages::new(pages, page_bytes),
            large: Pages::new(1, page_bytes * pages),
        };
        if geometry.block_bytes >= 1 << 24 {
            return Err(Error::Options(format!(
                "page_bytes * dimms = {}: a block has less than 16 MiB",
                geometry.block_bytes
            )));
        }
        if let Some(shape) = fixed {
            let room = geometry.small.room();
            if shape.key == 0 || shape.key > KEY_BYTES_MAX || shape.slot_bytes() > room {
                return Err(Error::Options(format!(
                    "fixed = {} + {} bytes: the key has 1 to {KEY_BYTES_MAX} bytes and a record has to fit a page ({room} bytes)",
                    shape.key, shape.value
                )));
            }
        }
        Ok(geometry)
    }

    /// As the superblock keeps it.
    pub(crate) fn to_words(self) -> [u64; 8] {
        let (key, value) = self
            .fixed
            .map_or((0, 0), |f| (f.key as u64, f.value as u64));
        [self.page_bytes, self.pages, key, value, 0, 0, 0, 0]
    }

    /// From the superblock; `None` if the words are invalid.
    pub(crate) fn from_words(words: [u64; 8]) -> Option<Geometry> {
        let narrow = |word: u64| u32::try_from(word).ok();
        let (page_bytes, pages) = (narrow(words[0])?, narrow(words[1])?);
        let sound = page_bytes.is_multiple_of(PAGE_BYTES_MIN)
            && (PAGE_BYTES_MIN..=1 << 20).contains(&page_bytes)
            && (1..=64).contains(&pages)
            && words[4..] == [0; 4];
        let fixed = (words[2] != 0).then_some((narrow(words[2])?, narrow(words[3])?));
        if !sound {
            return None;
        }
        Geometry::new(page_bytes, pages, fixed).ok()
    }

    /// The pages of a block of `kind`.
    #[inline]
    pub(crate) fn pages_of(&self, kind: Kind) -> &Pages {
        match kind {
            Kind::Large => &self.large,
            _ => &self.small,
        }
    }

    /// The kind of pages for a record of so many bytes; `None`: it fits none.
    #[inline(always)]
    pub(crate) fn kind_for(&self, bytes: u64) -> Option<Kind> {
        let mut kinds = [Kind::Variable, Kind::Large].into_iter();
        kinds.find(|kind| bytes <= self.pages_of(*kind).room())
    }

    /// Bytes of value in one overflow block.
    pub(crate) fn overflow_room(&self) -> u64 {
        self.block_bytes - OVERFLOW_HEAD
    }

    /// The place of the record at byte `within` of its page, by which its mark is numbered.
    #[inline]
    pub(crate) fn place(&self, kind: Kind, pages: &Pages, within: u64) -> u64 {
        match (kind.is_fixed(), &self.fixed) {
            (true, Some(shape)) => (within - pages.header) / shape.slot_bytes(),
            _ => within / GRAIN,
        }
    }
}

/// Header of a piece of a chained value, after the page word.
///
/// ```text
/// +-----------+-----------+------------+-------+-------+------------+-------+------+
/// | page word | tail word | next block | piece | bytes | data check | check | name |  data ...
/// +-----------+-----------+------------+-------+-------+------------+-------+------+
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ChainHead {
    /// Block number of the next piece; 0 = the last.
    pub(crate) next: u64,
    /// Number of this piece, from 0.
    pub(crate) piece: u64,
    /// Bytes of value in this piece.
    pub(crate) bytes: u64,
    /// Check of those bytes.
    pub(crate) data_check: u64,
    /// Whether their writer made that check: XXH3-64, seeded with the name. Otherwise it is the keyed sum.
    pub(crate) is_by_writer: bool,
    /// The chain's random name, which its record holds, too. Without it, a stale record could follow the
    /// pieces of another chain that reuses its blocks.
    pub(crate) name: u64,
}

impl ChainHead {
    pub(crate) fn to_bytes(self, secret: &Secret, at: u64, epoch: u32) -> [u8; 64] {
        let words = [
            page_word(secret, at, Kind::Overflow, epoch),
            tail_word(secret, at, epoch, 0),
            self.next,
            self.numbered(),
            self.bytes,
            self.data_check,
            self.check(secret, at, epoch),
            self.name,
        ];
        let mut bytes = [0; 64];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    /// The number of the piece, and whose the check of its bytes is.
    fn numbered(&self) -> u64 {
        self.piece | if self.is_by_writer { BY_WRITER } else { 0 }
    }

    /// Whether these are its bytes.
    pub(crate) fn holds(&self, secret: &Secret, data: &[u8]) -> bool {
        self.data_check
            == match self.is_by_writer {
                true => xxh3_64_with_seed(data, self.name),
                false => secret.sum(data),
            }
    }

    fn check(&self, secret: &Secret, at: u64, epoch: u32) -> u64 {
        let first = secret.sum_words([SALT_CHAIN, at, u64::from(epoch)]);
        let second = secret.sum_words([first, self.next, self.numbered()]);
        let third = secret.sum_words([second, self.bytes, self.data_check]);
        secret.sum_words([third, self.name, 0])
    }

    /// The header and the block's epoch, if everything verifies.
    pub(crate) fn parse(secret: &Secret, at: u64, bytes: &[u8; 64]) -> Option<(ChainHead, u32)> {
        let word = |index: usize| word_at(bytes, index * 8);
        let (kind, epoch) = parse_page_word(secret, at, word(0))?;
        let head = ChainHead {
            next: word(2),
            piece: word(3) & !BY_WRITER,
            bytes: word(4),
            data_check: word(5),
            is_by_writer: word(3) & BY_WRITER != 0,
            name: word(7),
        };
        let sound = kind == Kind::Overflow
            && parse_tail_word(secret, at, epoch, word(1)) == Some(0)
            && head.check(secret, at, epoch) == word(6);
        sound.then_some((head, epoch))
    }
}

/// The little-endian word at byte `at`; 0 past the end.
#[inline]
pub(crate) fn word_at(bytes: &[u8], at: usize) -> u64 {
    bytes
        .get(at..)
        .and_then(|rest| rest.first_chunk::<8>())
        .map_or(0, |w| u64::from_le_bytes(*w))
}

const _: () = {
    let page = Pages::new(6, 4096);
    assert!(page.header == 64 && page.mark_words == 6);
    let large = Pages::new(1, 24_576);
    assert!(large.header == 320 && large.mark_words == 32);
    assert!(RECORD_HEAD == 24 && SLOT_HEAD == 16 && OVERFLOW_HEAD == 64);
    // A record's offset in its page, in units of `GRAIN`, is the number of its mark.
    assert!(GRAIN == 16 && LINE.is_multiple_of(GRAIN) && RECORD_HEAD.is_multiple_of(8));
    assert!(page.header.is_multiple_of(LINE) && large.header.is_multiple_of(LINE));
    assert!(page.header >= 16 + 8 * page.mark_words && large.header >= 16 + 8 * large.mark_words);
    assert!(page.mark_words * MARKS_PER_WORD * GRAIN >= page.room());
    assert!(large.mark_words * MARKS_PER_WORD * GRAIN >= large.room());
    // 48 bits of marks and 16 of a check; 47 bits of a version and 17 of a check.
    assert!(MARKS_PER_WORD == 48 && FLOOR_BITS == 47);
    // A tail word has 24 bits for an offset in a page, a head 16 for the length of a key less one.
    assert!(PAGE_BYTES_MIN as u64 <= 1 << 24 && KEY_BYTES_MAX <= 1 << 16);
    // Kinds fit into a byte of the page word, and none of them is zero, as fresh memory is.
    assert!(Kind::Free as u8 != 0 && Kind::Overflow as u64 <= 0xff);
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_verify_only_where_they_were_made() {
        let secret = Secret::expand(&[7; 32]);
        let word = page_word(&secret, 4096, Kind::Large, 9);
        assert_eq!(parse_page_word(&secret, 4096, word), Some((Kind::Large, 9)));
        assert_eq!(parse_page_word(&secret, 8192, word), None);
        for bit in 0..64 {
            assert_eq!(
                parse_page_word(&secret, 4096, word ^ 1 << bit),
                None,
                "bit {bit}"
            );
        }
        let tail = tail_word(&secret, 4096, 3, 1000);
        assert_eq!(parse_tail_word(&secret, 4096, 3, tail), Some(1000));
        assert_eq!(parse_tail_word(&secret, 4096, 4, tail), None);
        let mark = mark_word(&secret, 4112, 3, 0x8001);
        assert_eq!(parse_mark_word(&secret, 4112, 3, mark), Some(0x8001));
        assert_eq!(parse_mark_word(&secret, 4112, 2, mark), None);
    }

    #[test]
    fn a_life_that_lost_its_page_word_is_still_counted() {
        let secret = Secret::expand(&[7; 32]);
        for (epoch, begun) in [(0, 1), (5, 6), (65_535, 65_536), (65_535, 65_537), (9, 9)] {
            let tail = tail_word(&secret, 4096, begun, 0);
            assert_eq!(begun_epoch(&secret, 4096, epoch, tail), begun);
        }
        assert_eq!(begun_epoch(&secret, 4096, 5, 0), 5);
        assert_eq!(begun_epoch(&secret, 4096, 5, 0x1234_5678_9abc_def0), 5);
    }

    #[test]
    fn geometry_survives_the_superblock() {
        let geometry = Geometry::new(4096, 6, Some((16, 200))).unwrap();
        assert_eq!(Geometry::from_words(geometry.to_words()), Some(geometry));
        assert_eq!(Geometry::from_words([0; 8]), None);
        assert_eq!(geometry.pages_of(Kind::Variable).room(), 4032);
        assert!(Geometry::new(4096, 6, Some((16, 5000))).is_err());
    }
}
