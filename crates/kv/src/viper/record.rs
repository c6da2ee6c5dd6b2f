//! Records in private memory: built before they are streamed out, verified after they were copied in.
//!
//! Nothing here touches the pool. Readers trust a record only after [`verify`] on a private copy. The check
//! covers every byte of the record, its place and the life of its block.

use super::layout::{FixedShape, GRAIN, RECORD_HEAD, SLOT_HEAD, word_at};
use crate::engine::limits::KEY_BYTES_MAX;
use everdram_pm::Secret;
use std::ops::Range;

/// The meaning of a record's value bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum RecordKind {
    /// The value.
    Value = 1,
    /// A [`Chain`]: the value lies in overflow blocks.
    Chained = 2,
    /// The operations of an atomic batch; see `batch.rs`.
    Journal = 3,
    /// A [`Chain`] of such operations.
    ChainedJournal = 4,
    /// A [`Chain`] of key and value: the key is too long for a page, so the record holds only its beginning.
    BigKey = 5,
    /// Nothing: the key is absent, and whatever a lower tier says of it up to this record's order is
    /// void. Only pools with a lower tier have it. It is dead from the beginning, the tombstone of its
    /// elders.
    Grave = 6,
}

impl RecordKind {
    fn from_nibble(nibble: u64) -> Option<RecordKind> {
        Some(match nibble {
            1 => RecordKind::Value,
            2 => RecordKind::Chained,
            3 => RecordKind::Journal,
            4 => RecordKind::ChainedJournal,
            5 => RecordKind::BigKey,
            6 => RecordKind::Grave,
            _ => return None,
        })
    }

    pub(crate) fn is_chained(self) -> bool {
        matches!(
            self,
            RecordKind::Chained | RecordKind::ChainedJournal | RecordKind::BigKey
        )
    }

    /// Whether the record is dead whatever its mark says.
    #[inline]
    pub(crate) fn is_grave(self) -> bool {
        self == RecordKind::Grave
    }

    pub(crate) fn is_journal(self) -> bool {
        matches!(self, RecordKind::Journal | RecordKind::ChainedJournal)
    }
}

const FLAG_EXPIRES: u64 = 1;
/// Up to this record's order, a lower tier says nothing of the key any more. So the record must not be
/// dropped, dead or alive, before the lower tier says as much itself.
const FLAG_COVERS: u64 = 2;
const FLAGS: u64 = FLAG_EXPIRES | FLAG_COVERS;
/// No block holds a longer value in one record.
const VALUE_LEN_MAX: u64 = 1 << 24;

/// A record's order among those of its key. Versions order the writes; moves order the copies that compaction
/// made of one version. `first` says that everything before the record in its block was fenced before the
/// record was written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    pub(crate) version: u64,
    pub(crate) moves: u16,
    pub(crate) first: bool,
}

impl Stamp {
    pub(crate) fn to_word(self) -> u64 {
        u64::from(self.moves) | self.version << 16 | u64::from(self.first) << 63
    }

    pub(crate) fn from_word(word: u64) -> Stamp {
        Stamp {
            version: word << 1 >> 17,
            moves: word as u16,
            first: word >> 63 == 1,
        }
    }

    /// The order by which one record is newer than another.
    pub(crate) fn order(self) -> (u64, u16) {
        (self.version, self.moves)
    }
}

/// The place in time of a record that is about to be written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Order {
    pub(crate) version: u64,
    pub(crate) moves: u16,
    /// See [`Record::covers`].
    pub(crate) covers: bool,
}

impl Order {
    /// Of a new state of a key.
    pub(crate) fn new(version: u64, covers: bool) -> Order {
        Order {
            version,
            moves: 0,
            covers,
        }
    }
}

/// The place of a chained value: the payload of a chained record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Chain {
    /// Bytes of the whole value.
    pub(crate) bytes: u64,
    /// Block number of the first piece.
    pub(crate) first: u32,
    /// Pieces.
    pub(crate) pieces: u32,
    /// Bytes at the start that are the key ([`RecordKind::BigKey`]), else 0.
    pub(crate) key_bytes: u64,
    /// Random; every piece carries it.
    pub(crate) name: u64,
}

/// Bytes of a [`Chain`] in a record.
pub(crate) const CHAIN_BYTES: usize = 32;
/// Bytes of the key that a [`RecordKind::BigKey`] record holds itself.
pub(crate) const BIG_KEY_PREFIX: usize = 64;

impl Chain {
    pub(crate) fn to_bytes(self) -> [u8; CHAIN_BYTES] {
        let blocks = u64::from(self.first) | u64::from(self.pieces) << 32;
        let mut bytes = [0; CHAIN_BYTES];
        let words = [self.bytes, blocks, self.key_bytes, self.name];
        for (into, word) in bytes.chunks_exact_mut(8).zip(words) {
            into.copy_from_slice(&word.to_le_bytes());
        }
        bytes
    }

    #[inline(always)]
    pub(crate) fn parse(bytes: &[u8]) -> Option<Chain> {
        if bytes.len() != CHAIN_BYTES {
            return None;
        }
        let blocks = word_at(bytes, 8);
        let chain = Chain {
            bytes: word_at(bytes, 0),
            first: blocks as u32,
            pieces: (blocks >> 32) as u32,
            key_bytes: word_at(bytes, 16),
            name: word_at(bytes, 24),
        };
        (chain.key_bytes <= chain.bytes).then_some(chain)
    }
}

/// A record's parts, as ranges of the copy it was parsed from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) kind: RecordKind,
    pub(crate) stamp: Stamp,
    /// Unix ms, 0 = never.
    pub(crate) expires_at_ms: u64,
    /// Whether whatever a lower tier says of the key, up to this record's order, is void.
    pub(crate) covers: bool,
    key_at: u32,
    key_end: u32,
    value_at: u32,
    value_end: u32,
    /// Whole length in the page. A block has less than 16 MiB, so no record is longer.
    pub(crate) bytes: u32,
}

impl Record {
    /// A value that lies in a lower tier: a record of ranges of a copy that does not begin with a record.
    pub(crate) fn elsewhere(
        (version, moves): (u64, u16),
        expires_at_ms: u64,
        key: Range<usize>,
        value: Range<usize>,
        bytes: u64,
    ) -> Record {
        Record {
            kind: RecordKind::Value,
            stamp: Stamp {
                version,
                moves,
                first: false,
            },
            expires_at_ms,
            covers: false,
            key_at: key.start as u32,
            key_end: key.end as u32,
            value_at: value.start as u32,
            value_end: value.end as u32,
            bytes: bytes as u32,
        }
    }

    #[inline]
    pub(crate) fn key(&self) -> Range<usize> {
        self.key_at as usize..self.key_end as usize
    }

    #[inline]
    pub(crate) fn value(&self) -> Range<usize> {
        self.value_at as usize..self.value_end as usize
    }
}

/// Lengths from the first word of a variable-size record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    kind: RecordKind,
    expires: bool,
    covers: bool,
    key_len: usize,
    value_len: usize,
}

impl Head {
    /// `None` if the word cannot start a record.
    #[inline]
    pub(crate) fn parse(word: u64) -> Option<Head> {
        let flags = word >> 4 & 0xf;
        if flags > FLAGS || word >> 24 & 0xff != 0 || word >> 32 > VALUE_LEN_MAX {
            return None;
        }
        Some(Head {
            kind: RecordKind::from_nibble(word & 0xf)?,
            expires: flags & FLAG_EXPIRES != 0,
            covers: flags & FLAG_COVERS != 0,
            key_len: (word >> 8 & 0xffff) as usize + 1,
            value_len: (word >> 32) as usize,
        })
    }

    fn key_at(self) -> usize {
        RECORD_HEAD + if self.expires { 8 } else { 0 }
    }

    /// Length of the record up to the end of its key, in whole words.
    #[inline]
    pub(crate) fn start_bytes(self) -> usize {
        (self.key_at() + self.key_len).next_multiple_of(8)
    }

    /// Whole length of the record.
    #[inline]
    pub(crate) fn bytes(self) -> usize {
        (self.key_at() + self.key_len + self.value_len).next_multiple_of(GRAIN as usize)
    }

    /// The record of this head, which `bytes` start with; they may end before the value.
    #[inline(always)]
    pub(crate) fn record(self, bytes: &[u8]) -> Record {
        let key_at = self.key_at() as u32;
        let value_at = key_at + self.key_len as u32;
        Record {
            kind: self.kind,
            stamp: Stamp::from_word(word_at(bytes, 8)),
            expires_at_ms: if self.expires {
                word_at(bytes, RECORD_HEAD)
            } else {
                0
            },
            covers: self.covers,
            key_at,
            key_end: value_at,
            value_at,
            value_end: value_at + self.value_len as u32,
            bytes: self.bytes() as u32,
        }
    }
}

/// Length of the value, if `word` starts an ordinary record that does not expire and whose key has so many
/// bytes. One comparison, where [`Head::parse`] takes the word apart.
#[inline(always)]
pub(crate) fn ordinary(word: u64, key_len: usize) -> Option<usize> {
    let covers = FLAG_COVERS << 4;
    let wanted = RecordKind::Value as u64 | covers | (key_len as u64).wrapping_sub(1) << 8;
    ((word | covers) << 32 == wanted << 32 && wanted >> 32 == 0).then_some((word >> 32) as usize)
}

/// Length of the record that [`encode`] makes.
#[inline]
pub(crate) fn encoded_bytes(key: usize, value: usize, expires: bool) -> usize {
    (RECORD_HEAD + if expires { 8 } else { 0 } + key + value).next_multiple_of(GRAIN as usize)
}

/// Adds a variable-size record without its check to `into`; returns the record.
#[inline]
pub(crate) fn encode<'a>(
    into: &'a mut Vec<u8>,
    kind: RecordKind,
    key: &[u8],
    value: &[u8],
    expires_at_ms: u64,
    (stamp, covers): (Stamp, bool),
) -> &'a mut [u8] {
    let from = into.len();
    let bytes = encoded_bytes(key.len(), value.len(), expires_at_ms != 0);
    into.reserve(bytes + GRAIN as usize);
    let mut flags = if expires_at_ms != 0 { FLAG_EXPIRES } else { 0 };
    if covers {
        flags |= FLAG_COVERS;
    }
    let lengths = (key.len() as u64 - 1) << 8 | (value.len() as u64) << 32;
    let head = kind as u64 | flags << 4 | lengths;
    let start = [head, stamp.to_word(), 0].map(u64::to_le_bytes);
    into.extend_from_slice(start.as_flattened());
    if expires_at_ms != 0 {
        into.extend_from_slice(&expires_at_ms.to_le_bytes());
    }
    into.extend_from_slice(key);
    into.extend_from_slice(value);
    pad(into, from + bytes);
    into.split_at_mut(from).1
}

/// Adds the zeros, at most a grain of them, that end a record at `end`.
#[inline]
fn pad(into: &mut Vec<u8>, end: usize) {
    into.extend_from_slice(&[0; GRAIN as usize]);
    into.truncate(end);
}

/// Parses the lengths and ranges of a variable-size record at the start of `bytes`; verifies nothing.
#[inline]
pub(crate) fn parse(bytes: &[u8]) -> Option<Record> {
    let record = Head::parse(word_at(bytes, 0))?.record(bytes);
    (bytes.len() >= record.bytes as usize).then_some(record)
}

/// Binds a check to one place in one life of a block.
#[inline]
fn seed(at: u64, epoch: u32) -> u64 {
    at.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ u64::from(epoch).wrapping_mul(0xff51_afd7_ed55_8ccd)
}

const CHECK_AT: Range<usize> = 16..24;

const _: () = {
    assert!(CHECK_AT.end - CHECK_AT.start == 8 && CHECK_AT.end == RECORD_HEAD);
    // A head has 32 bits for the length of a value, and 16 for that of a key less one.
    assert!(VALUE_LEN_MAX <= 1 << 32 && KEY_BYTES_MAX <= 1 << 16);
    // bytes, first and pieces, key bytes, name
    assert!(CHAIN_BYTES == 8 + (4 + 4) + 8 + 8 && CHAIN_BYTES.is_multiple_of(GRAIN as usize));
    assert!(BIG_KEY_PREFIX <= KEY_BYTES_MAX);
};

#[inline(always)]
fn sum(secret: &Secret, record: &mut [u8], at: u64, epoch: u32) -> u64 {
    if let Some(field) = record.get_mut(CHECK_AT) {
        field.copy_from_slice(&seed(at, epoch).to_le_bytes());
    }
    secret.sum(record)
}

/// Fills in the check of a variable-size record that will lie at byte `at` of the pool.
#[inline]
pub(crate) fn seal(secret: &Secret, record: &mut [u8], at: u64, epoch: u32) {
    let check = sum(secret, record, at, epoch);
    if let Some(field) = record.get_mut(CHECK_AT) {
        field.copy_from_slice(&check.to_le_bytes());
    }
}

/// Whether a private copy of a variable-size record (exactly its bytes) is intact.
#[inline(always)]
pub(crate) fn verify(secret: &Secret, record: &mut [u8], at: u64, epoch: u32) -> bool {
    let stored = word_at(record, CHECK_AT.start);
    sum(secret, record, at, epoch) == stored
}

/// Adds a slot without its check to `into`; returns the slot.
#[inline]
pub(crate) fn encode_slot<'a>(
    into: &'a mut Vec<u8>,
    shape: &FixedShape,
    key: &[u8],
    value: &[u8],
    stamp: Stamp,
) -> &'a mut [u8] {
    let from = into.len();
    let bytes = shape.slot_bytes() as usize;
    into.reserve(bytes + GRAIN as usize);
    let start = [stamp.to_word(), 0].map(u64::to_le_bytes);
    into.extend_from_slice(start.as_flattened());
    into.extend_from_slice(key);
    pad(into, from + shape.value_at());
    into.extend_from_slice(value);
    pad(into, from + bytes);
    into.split_at_mut(from).1
}

/// The parts of a slot.
#[inline]
pub(crate) fn parse_slot(shape: &FixedShape, bytes: &[u8]) -> Option<Record> {
    parse_slot_start(shape, bytes).filter(|_| bytes.len() >= shape.slot_bytes() as usize)
}

/// As [`parse_slot`], for bytes that may end before the value.
#[inline]
pub(crate) fn parse_slot_start(shape: &FixedShape, bytes: &[u8]) -> Option<Record> {
    let stamp = Stamp::from_word(word_at(bytes, 0));
    if stamp.version == 0 {
        return None;
    }
    Some(Record {
        kind: RecordKind::Value,
        stamp,
        expires_at_ms: 0,
        covers: false,
        key_at: SLOT_HEAD as u32,
        key_end: (SLOT_HEAD + shape.key) as u32,
        value_at: shape.value_at() as u32,
        value_end: (shape.value_at() + shape.value) as u32,
        bytes: shape.slot_bytes() as u32,
    })
}

/// The check of a slot: high half over place, stamp and key; low half over the value. In-place updates
/// void the low half only.
#[inline]
fn slot_check(secret: &Secret, shape: &FixedShape, slot: &mut [u8], at: u64, epoch: u32) -> u64 {
    if let Some(field) = slot.get_mut(8..16) {
        field.copy_from_slice(&seed(at, epoch).to_le_bytes());
    }
    let (identity, value) = slot.split_at(shape.value_at().min(slot.len()));
    secret.sum(identity) >> 32 << 32 | secret.sum(value) >> 32
}

/// Fills in the check of a slot that will lie at byte `at` of the pool.
#[inline]
pub(crate) fn seal_slot(secret: &Secret, shape: &FixedShape, slot: &mut [u8], at: u64, epoch: u32) {
    let check = slot_check(secret, shape, slot, at, epoch);
    if let Some(field) = slot.get_mut(8..16) {
        field.copy_from_slice(&check.to_le_bytes());
    }
}

/// Whether a private copy of a slot is intact; with `edited`, any value passes.
#[inline]
pub(crate) fn verify_slot(
    secret: &Secret,
    shape: &FixedShape,
    slot: &mut [u8],
    at: u64,
    epoch: u32,
    edited: bool,
) -> bool {
    let stored = word_at(slot, 8);
    let check = slot_check(secret, shape, slot, at, epoch);
    if edited {
        stored >> 32 == check >> 32
    } else {
        stored == check
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stamp() -> Stamp {
        Stamp {
            version: 5,
            moves: 2,
            first: true,
        }
    }

    #[test]
    fn a_record_reads_back_and_every_flip_is_noticed() {
        let secret = Secret::expand(&[1; 32]);
        let mut bytes = Vec::new();
        encode(
            &mut bytes,
            RecordKind::Value,
            b"key",
            b"some value",
            99,
            (stamp(), true),
        );
        seal(&secret, &mut bytes, 4160, 3);
        let record = parse(&bytes).unwrap();
        assert_eq!(&bytes[record.key()], b"key");
        assert_eq!(&bytes[record.value()], b"some value");
        assert_eq!((record.expires_at_ms, record.stamp), (99, stamp()));
        assert!(record.covers);
        assert!(verify(&secret, &mut bytes.clone(), 4160, 3));
        assert!(
            !verify(&secret, &mut bytes.clone(), 4176, 3),
            "another place"
        );
        assert!(
            !verify(&secret, &mut bytes.clone(), 4160, 4),
            "another life of the block"
        );
        for bit in 0..bytes.len() * 8 {
            let mut bad = bytes.clone();
            bad[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&secret, &mut bad, 4160, 3), "bit {bit}");
        }
    }

    #[test]
    fn one_comparison_knows_an_ordinary_record() {
        let flags = [0, FLAG_EXPIRES, FLAG_COVERS, FLAGS, 4, 8].map(|flags| flags << 4);
        for (kind, flag) in (0..16).flat_map(|kind| flags.map(|flag| (kind, flag))) {
            for (key_len, other) in [(1, 0), (16, 0), (1 << 16, 0), (16, 1 << 24), (16, 1 << 31)] {
                let word = kind | flag | (key_len - 1) << 8 | other | 200 << 32;
                let head = Head::parse(word).filter(|head| {
                    head.kind == RecordKind::Value && !head.expires && head.key_len == 16
                });
                let value_len = head.map(|head| head.value_len);
                assert_eq!(ordinary(word, 16), value_len, "{word:#x}");
            }
        }
        // No key is so long or so short.
        assert_eq!(ordinary(1, 0).or(ordinary(u64::MAX, (1 << 24) + 1)), None);
    }

    #[test]
    fn a_slot_reads_back_and_an_edit_voids_only_the_value() {
        let secret = Secret::expand(&[1; 32]);
        let shape = FixedShape { key: 5, value: 16 };
        let mut bytes = Vec::new();
        encode_slot(&mut bytes, &shape, b"12345", &[9; 16], stamp());
        seal_slot(&secret, &shape, &mut bytes, 4160, 3);
        assert!(verify_slot(
            &secret,
            &shape,
            &mut bytes.clone(),
            4160,
            3,
            false
        ));
        bytes[shape.value_at()] ^= 1;
        assert!(!verify_slot(
            &secret,
            &shape,
            &mut bytes.clone(),
            4160,
            3,
            false
        ));
        assert!(verify_slot(
            &secret,
            &shape,
            &mut bytes.clone(),
            4160,
            3,
            true
        ));
        bytes[SLOT_HEAD] ^= 1;
        assert!(!verify_slot(
            &secret,
            &shape,
            &mut bytes.clone(),
            4160,
            3,
            true
        ));
    }
}
