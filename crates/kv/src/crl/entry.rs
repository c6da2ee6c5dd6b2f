//! Entries: the units of a log. This layer knows an entry's length, its number of operations, and whether it
//! verifies; the user of the log gives the operations a meaning.
//!
//! ```text
//! entry       +-------+-------+-------+---------+-----------+-----------+- - -   whole lines; never across the end of a log
//!             | check | epoch | sizes | ordered | operation | operation |
//!             +-------+-------+-------+---------+-----------+-----------+- - -
//! sizes       0..32 lines | 32..64 operations; none: padding up to the end of the log
//! ordered     everything before this position was fenced when the entry was written
//! ```
//!
//! The check is keyed with the pool's secret and covers the place of the entry and its position, which never
//! repeats. So bytes of an earlier lap never verify (B8).

use everdram_pm::{LINE, Secret};

/// Bytes before an entry's operations.
pub(crate) const ENTRY_HEAD: usize = 32;

/// Offset of the epoch in an entry.
pub(super) const EPOCH_AT: u64 = 8;

const SALT_ENTRY: u64 = 0x65;

const _: () = {
    // check, epoch, sizes, ordered
    assert!(ENTRY_HEAD == 4 * 8 && EPOCH_AT == 8 && ENTRY_HEAD as u64 <= LINE);
};

/// The word at byte `at`; 0 past the end.
#[inline]
pub(crate) fn word_at(bytes: &[u8], at: usize) -> u64 {
    let word = bytes.get(at..).and_then(|rest| rest.first_chunk());
    word.map_or(0, |word| u64::from_le_bytes(*word))
}

/// The log and position of a log record. 0 means none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(crate) struct RecordAt(pub(crate) u64);

impl RecordAt {
    pub(crate) fn new(log: usize, position: u64) -> RecordAt {
        assert!(
            position < 1 << 56,
            "a position in a log does not fit a record's place"
        );
        RecordAt((log as u64 + 1) << 56 | position)
    }

    /// Its log and its position.
    pub(crate) fn place(self) -> Option<(usize, u64)> {
        let log = (self.0 >> 56).checked_sub(1)?;
        Some((log as usize, self.0 & ((1 << 56) - 1)))
    }
}

/// An entry that verified.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) at: RecordAt,
    pub(super) head: EntryHead,
    /// The writer's count; 0: padding up to the end of the log.
    pub(crate) operations: u32,
    /// The operations, and padding up to a whole line.
    pub(crate) bytes: &'a [u8],
}

impl<'a> Entry<'a> {
    /// The entry in whole lines that do not verify, at a position of a log.
    pub(super) fn unverified(log: usize, position: u64, bytes: &'a [u8]) -> Entry<'a> {
        let head = EntryHead::read(bytes);
        Entry {
            at: RecordAt::new(log, position),
            head,
            operations: head.operations,
            bytes: bytes.get(ENTRY_HEAD..).unwrap_or(&[]),
        }
    }
}

/// Whether a pool of this incarnation can have this epoch: no incarnation uses half of the epochs it may
/// number.
pub(super) fn is_epoch(epoch: u64, incarnation: u64) -> bool {
    epoch >> 32 <= incarnation && epoch as u32 <= u32::MAX / 2
}

/// The first words of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct EntryHead {
    check: u64,
    pub(super) epoch: u64,
    pub(super) lines: u32,
    pub(super) operations: u32,
    pub(super) ordered: u64,
}

impl EntryHead {
    pub(super) fn read(bytes: &[u8]) -> EntryHead {
        EntryHead {
            check: word_at(bytes, 0),
            epoch: word_at(bytes, 8),
            lines: word_at(bytes, 16) as u32,
            operations: (word_at(bytes, 16) >> 32) as u32,
            ordered: word_at(bytes, 24),
        }
    }

    /// Bytes of the entry.
    pub(super) fn bytes(&self) -> u64 {
        u64::from(self.lines) * LINE
    }

    /// Whether an entry at this position can have this head, in a pool of this incarnation.
    pub(super) fn is_sound(&self, position: u64, incarnation: u64) -> bool {
        is_epoch(self.epoch, incarnation) && self.ordered <= position
    }

    /// Whether the bytes verify as the entry that was written at this place and position: the whole entry, or
    /// the head of padding.
    pub(super) fn verifies(&self, secret: &Secret, at: u64, position: u64, bytes: &[u8]) -> bool {
        check_of_entry(secret, at, position, bytes) == self.check
    }
}

/// Never 0: recovery ends a log with that.
fn check_of_entry(secret: &Secret, at: u64, position: u64, bytes: &[u8]) -> u64 {
    assert!(
        bytes.len() >= ENTRY_HEAD,
        "an entry is shorter than its head"
    );
    let sum = secret.sum_words([secret.sum(&bytes[8..]), at ^ SALT_ENTRY << 56, position]);
    sum.max(1)
}

/// Fills the head of an entry whose operations are in place; `lines` is the length of the entry.
#[inline]
pub(super) fn seal_entry(
    secret: &Secret,
    [at, position]: [u64; 2],
    [epoch, ordered]: [u64; 2],
    [lines, operations]: [u32; 2],
    bytes: &mut [u8],
) {
    let sizes = u64::from(lines) | u64::from(operations) << 32;
    for (place, word) in bytes[8..ENTRY_HEAD]
        .as_chunks_mut::<8>()
        .0
        .iter_mut()
        .zip([epoch, sizes, ordered])
    {
        *place = word.to_le_bytes();
    }
    let check = check_of_entry(secret, at, position, bytes);
    bytes[..8].copy_from_slice(&check.to_le_bytes());
}
