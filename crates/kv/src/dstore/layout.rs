//! Every persistent byte of the engine, except the root page and log entries (`crl/`), the pages of the
//! shadow (`dipper/`), and the header of the data file (`everdram_pm`). `docs/format.md` says the same in
//! prose.
//!
//! ```text
//! root page   two words that pair the pool with its data file; from byte 512 on the ledger; from byte 3584 on
//!             the path of the data file, if it was named
//!
//! slot        +-----+------+--------+--------+-----+------+-----+-------+  64 bytes, by number, in segment 0
//!             | lsn | hash | length | expiry | key | body | sum | check |  (the paper's metadata page)
//!             +-----+------+--------+--------+-----+------+-----+-------+
//! lsn         0..47 LSN | 47 dead | 48 busy, in DRAM alone | 49..53 form of the body
//! length      bytes of the value
//! key         0..40 cell | 40..57 bytes - 1
//! body        form 0: a cell with the value (0: the value is empty) | form 1: a block
//!             | form 2 and more: a cell with the root of a map
//! sum         of the cell, or of the block
//! check       over the other words and the number: for a salvage, where a page does not verify
//!
//! cell        a run of grains of 32 bytes, in segment 1: a key, a short value, or the root of a map
//! map         +-------+-----+-------+-----+- - -     form 2: of all blocks; form 3: of blocks that have maps
//!             | block | sum | block | sum |          of blocks; and so on. Block 0 is a hole: zeros, no sum
//!             +-------+-----+-------+-----+- - -
//!
//! operation   +---------------------+---------+- - - -+- - - -+    in a log: the object's whole new state
//!             | slot, its first 56  | what    | key   | body  |
//!             +---------------------+---------+- - - -+- - - -+
//! what        0..40 number of the slot | 48..56 opcode | 56 with the key | 57 with the cell of the body
//!             | 58 with the state before: of the system `physical`
//! ```
//!
//! An operation has the state of its object after it: the logs need no other record of the object to replay
//! it, and none that a crash may have torn (D1, D12). A *create* has the key, too. The cells of key and body
//! follow, each padded to whole words. A *remove* is a dead slot, a *clear* the floor in the place of its
//! LSN. The state before is a length, the slot's words and its cell; nothing reads it. A *parcel* is a slot
//! without a key, whose value is a sequence of operations that were too long for an entry.

use crate::concurrency::stripes::STORED_VERSION_MAX;
pub(super) use crate::crl::{ENTRY_HEAD, word_at};
use crate::crl::{LOGS_MAX, Shape};
use crate::dipper::ShadowShape;
use crate::engine::limits::{KEY_BYTES_MAX, OBJECT_BYTES_MAX};
use crate::error::Error;
use crate::options::{DstoreOptions, DstoreSystem};
use everdram_pm::{HINT_BYTES, LINE, ROOT_AT, Secret};

/// Owner of the extent of the logs; owner of the shadow's.
pub(super) const LOGS_OWNER: u32 = 1;
pub(super) const SHADOW_OWNER: u32 = 2;
/// The two words that pair the pool with its data file.
pub(super) const TOKENS_AT: u64 = ROOT_AT;
/// Where the data file was last, if it was named.
pub(super) const PATH_AT: u64 = ROOT_AT + 3584;
/// The format these sources write.
const FORMAT: u64 = 1;

/// Segments of the machine.
pub(super) const SLOTS: usize = 0;
pub(super) const CELLS: usize = 1;
pub(super) const SEGMENTS: usize = 2;

pub(super) const SLOT_BYTES: u64 = 64;
pub(super) const GRAIN_BYTES: u64 = 32;
/// Slots, and grains, of a chunk: what a session claims.
pub(super) const SLOTS_CHUNK: u32 = 64;
pub(super) const GRAINS_CHUNK: u32 = (KEY_BYTES_MAX as u64 / GRAIN_BYTES) as u32;
/// Bytes of a reference in a map.
pub(super) const REFERENCE: usize = 16;
/// Bytes of an operation before its cells.
pub(super) const OPERATION_HEAD: usize = SLOT_BYTES as usize;

const LSN_MASK: u64 = (1 << 47) - 1;
const DEAD: u64 = 1 << 47;
pub(super) const BUSY: u64 = 1 << 48;
const FORM_SHIFT: u32 = 49;
const FORM_MAX: u8 = 8;
const NUMBER_MASK: u64 = (1 << 40) - 1;
const KEY_SHIFT: u32 = 40;
const OPCODE_SHIFT: u32 = 48;
const WITH_KEY: u64 = 1 << 56;
const WITH_BODY: u64 = 1 << 57;
const WITH_BEFORE: u64 = 1 << 58;
const SALT_SLOT: u64 = 0x6c73;

const _: () = {
    assert!(SLOT_BYTES == LINE && OPERATION_HEAD == 8 * 8);
    assert!(STORED_VERSION_MAX <= LSN_MASK && LSN_MASK & DEAD == 0 && DEAD << 1 == BUSY);
    assert!(BUSY < 1 << FORM_SHIFT && (FORM_MAX as u64) < 16);
    assert!(KEY_BYTES_MAX <= 1 << 17 && KEY_BYTES_MAX as u64 == GRAINS_CHUNK as u64 * GRAIN_BYTES);
    assert!(GRAINS_CHUNK.is_multiple_of(64) && SLOTS_CHUNK.is_multiple_of(64));
    assert!(NUMBER_MASK & (0xff << OPCODE_SHIFT) == 0 && WITH_KEY == 1 << (OPCODE_SHIFT + 8));
    assert!(TOKENS_AT + 16 <= crate::crl::LEDGERS_AT && LOGS_OWNER != SHADOW_OWNER);
    assert!(PATH_AT + HINT_BYTES as u64 <= ROOT_AT + everdram_pm::ROOT_BYTES);
    assert!(crate::crl::LEDGERS_END <= PATH_AT);
};

/// A pool's shape, as its superblock has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) logs: u32,
    pub(super) log_bytes: u64,
    pub(super) page_bytes: u32,
    pub(super) block_bytes: u32,
    /// Values up to this length lie in a cell.
    pub(super) inline_bytes: u32,
    /// The system, if the pool is opened once; else 0.
    pub(super) bound: u32,
}

impl Geometry {
    /// The shape of a pool of at most `bytes_max` bytes; a small one has smaller logs than the options ask
    /// for.
    ///
    /// # Errors
    /// [`Error::Options`].
    pub(super) fn new(options: &DstoreOptions, bytes_max: u64) -> Result<Geometry, Error> {
        let mut geometry = Geometry {
            logs: options.logs,
            log_bytes: options.log_bytes,
            page_bytes: options.page_bytes,
            block_bytes: options.block_bytes,
            inline_bytes: options.inline_bytes,
            bound: options.system.bound(),
        };
        let share = bytes_max / (8 * u64::from(options.logs.max(1))) / 4096 * 4096;
        let least = 8 * (ENTRY_HEAD + OPERATION_HEAD + geometry.cell_bytes_max()) as u64;
        let least = least.next_multiple_of(4096);
        geometry.log_bytes = options.log_bytes.min(share.max(least));
        match geometry.is_sound() {
            true => Ok(geometry),
            false => Err(Error::Options(format!(
                "dstore: {options:?}: 1 to {LOGS_MAX} logs of 4 KiB to 1 GiB, multiples of 4 KiB; pages and blocks a power of \
                 two, 512 bytes to 64 KiB; values of up to 4 KiB inline, and at most an eighth of a log"
            ))),
        }
    }

    fn is_sound(&self) -> bool {
        let is_size = |bytes: u32| bytes.is_power_of_two() && (512..=1 << 16).contains(&bytes);
        (1..=LOGS_MAX as u32).contains(&self.logs)
            && self.log_bytes.is_multiple_of(4096)
            && (4096..=1 << 30).contains(&self.log_bytes)
            && is_size(self.page_bytes)
            && is_size(self.block_bytes)
            && self.inline_bytes <= 4096
            && self.bound < 3
            && ENTRY_HEAD + OPERATION_HEAD + self.cell_bytes_max() <= self.entry_most()
    }

    pub(super) fn to_words(self) -> [u64; 8] {
        [
            FORMAT,
            u64::from(self.logs),
            self.log_bytes,
            u64::from(self.page_bytes),
            u64::from(self.block_bytes),
            u64::from(self.inline_bytes),
            u64::from(self.bound),
            0,
        ]
    }

    pub(super) fn from_words(words: [u64; 8]) -> Option<Geometry> {
        let [FORMAT, logs, log_bytes, page, block, inline, bound, 0] = words else {
            return None;
        };
        let geometry = Geometry {
            logs: u32::try_from(logs).ok()?,
            log_bytes,
            page_bytes: u32::try_from(page).ok()?,
            block_bytes: u32::try_from(block).ok()?,
            inline_bytes: u32::try_from(inline).ok()?,
            bound: u32::try_from(bound).ok()?,
        };
        geometry.is_sound().then_some(geometry)
    }

    fn entry_most(&self) -> usize {
        (self.log_bytes / 8).min(192 << 10) as usize / 64 * 64
    }

    /// The longest cell of a body.
    fn cell_bytes_max(&self) -> usize {
        (self.inline_bytes as usize).max(self.root_max() * REFERENCE)
    }

    /// References in the root of a map, at most.
    pub(super) fn root_max(&self) -> usize {
        self.block_bytes as usize / 64
    }

    /// References in a block.
    pub(super) fn fan(&self) -> u64 {
        u64::from(self.block_bytes) / REFERENCE as u64
    }

    /// The logs, whose extent begins at `at`.
    pub(super) fn logs_from(&self, at: u64) -> Shape {
        Shape {
            at,
            count: self.logs as usize,
            log_bytes: self.log_bytes,
            entry_most: self.entry_most(),
            reserved: 0,
        }
    }

    /// Bytes of the extent of the logs.
    pub(super) fn logs_extent(&self) -> u64 {
        u64::from(self.logs) * self.log_bytes
    }

    /// The shadow of a pool of at most `bytes_max` bytes. A checkpoint by copy-on-write has one piece, which
    /// may be everything.
    pub(super) fn shadow(&self, bytes_max: u64, system: DstoreSystem) -> ShadowShape {
        let page = u64::from(self.page_bytes);
        ShadowShape {
            owner: SHADOW_OWNER,
            page_bytes: page,
            segments: SEGMENTS,
            piece: match system.copies_on_write() {
                true => u32::MAX as usize,
                false => (bytes_max / 64 / page).clamp(4, 4096) as usize,
            },
            // A slot, the cell of a body, and the longest key.
            object_pages: 3
                + self.cell_bytes_max().div_ceil(page as usize)
                + KEY_BYTES_MAX.div_ceil(page as usize),
        }
    }

    /// The form of a value of this length.
    #[inline]
    pub(super) fn form(&self, length: u64) -> u8 {
        if length <= u64::from(self.inline_bytes) {
            return 0;
        }
        let blocks = length.div_ceil(u64::from(self.block_bytes));
        if blocks == 1 {
            return 1;
        }
        let (mut form, mut reach) = (2, self.root_max() as u64);
        while reach < blocks {
            reach *= self.fan();
            form += 1;
        }
        form
    }

    /// References in the root of a map of this form, for a value of this length.
    pub(super) fn root_len(&self, form: u8, length: u64) -> u64 {
        assert!(form >= 2, "a body without a map has no root");
        let blocks = length.div_ceil(u64::from(self.block_bytes));
        (2..form).fold(blocks, |count, _| count.div_ceil(self.fan()))
    }

    /// Bytes of the cell of a body, unpadded; 0: it has none.
    pub(super) fn cell_bytes(&self, form: u8, length: u64) -> usize {
        match form {
            0 => length as usize,
            1 => 0,
            _ => self.root_len(form, length) as usize * REFERENCE,
        }
    }
}

/// Grains of a cell of so many bytes.
#[inline]
pub(super) fn grains(bytes: usize) -> u32 {
    (bytes as u64).div_ceil(GRAIN_BYTES) as u32
}

/// An object's state: the words of a slot.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) lsn: u64,
    /// The object was removed.
    pub(super) is_dead: bool,
    pub(super) form: u8,
    pub(super) hash: u64,
    pub(super) length: u64,
    pub(super) expires_at_ms: u64,
    /// First grain of the key.
    pub(super) key_cell: u64,
    pub(super) key_bytes: u32,
    /// First grain, or block; by the form.
    pub(super) body: u64,
    /// Of the cell of the body, or of the block of form 1.
    pub(super) sum: u64,
}

impl Slot {
    #[inline]
    pub(super) fn to_words(self) -> [u64; 8] {
        let dead = if self.is_dead { DEAD } else { 0 };
        [
            self.lsn | dead | u64::from(self.form) << FORM_SHIFT,
            self.hash,
            self.length,
            self.expires_at_ms,
            self.key_cell | u64::from(self.key_bytes.saturating_sub(1)) << KEY_SHIFT,
            self.body,
            self.sum,
            0,
        ]
    }

    /// The words as a shadow has them: with the check.
    pub(super) fn to_checked_words(self, secret: &Secret, number: u64) -> [u64; 8] {
        let mut words = self.to_words();
        words[7] = check(secret, number, &words);
        words
    }

    #[inline]
    pub(super) fn from_words(words: [u64; 8]) -> Slot {
        Slot {
            lsn: words[0] & LSN_MASK,
            is_dead: words[0] & DEAD != 0,
            form: (words[0] >> FORM_SHIFT) as u8 & 15,
            hash: words[1],
            length: words[2],
            expires_at_ms: words[3],
            key_cell: words[4] & NUMBER_MASK,
            key_bytes: (words[4] >> KEY_SHIFT) as u32 + 1,
            body: words[5],
            sum: words[6],
        }
    }

    /// The state of the object once it is removed. It keeps the key: the slot has one for its whole life.
    pub(super) fn buried(self, lsn: u64) -> Slot {
        Slot {
            lsn,
            is_dead: true,
            form: 0,
            length: 0,
            expires_at_ms: 0,
            body: 0,
            sum: 0,
            ..self
        }
    }

    /// Whether an object can have this state. Says nothing of what it refers to.
    pub(super) fn is_sound(&self, geometry: &Geometry) -> bool {
        let is_state = (1..=STORED_VERSION_MAX).contains(&self.lsn);
        if self.is_dead {
            return is_state;
        }
        let has_body = match self.form {
            0 => (self.body != 0) == (self.length > 0),
            _ => self.body != 0,
        };
        is_state
            && self.length <= OBJECT_BYTES_MAX
            && self.form <= FORM_MAX
            && self.form == geometry.form(self.length)
            && has_body
            && self.key_bytes as usize <= KEY_BYTES_MAX
            && self.key_cell != 0
            && self.body <= NUMBER_MASK
    }
}

/// The check of a slot's words.
pub(super) fn check(secret: &Secret, number: u64, words: &[u64; 8]) -> u64 {
    let bytes: [[u8; 8]; 7] = std::array::from_fn(|nth| words[nth].to_le_bytes());
    secret.sum_words([secret.sum(bytes.as_flattened()), number, SALT_SLOT])
}

/// What an operation does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Opcode {
    /// The object has this state.
    Write = 1,
    /// Objects with LSNs up to this one do not count.
    Clear = 2,
    /// The value of this slot is more operations.
    Parcel = 3,
}

/// An operation of an entry, or of a parcel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation<'a> {
    pub(super) opcode: Opcode,
    pub(super) number: u64,
    pub(super) slot: Slot,
    /// The key, if the object is new.
    pub(super) key: Option<&'a [u8]>,
    /// The cell of the body, if it has one.
    pub(super) cell: Option<&'a [u8]>,
    /// The state before, if it is logged.
    pub(super) before: Option<&'a [u8]>,
}

impl<'a> Operation<'a> {
    #[inline]
    pub(super) fn write(&self, into: &mut Vec<u8>) {
        let mut words = self.slot.to_words();
        words[7] = self.number
            | (self.opcode as u64) << OPCODE_SHIFT
            | if self.key.is_some() { WITH_KEY } else { 0 }
            | if self.cell.is_some() { WITH_BODY } else { 0 }
            | if self.before.is_some() {
                WITH_BEFORE
            } else {
                0
            };
        for word in words {
            into.extend_from_slice(&word.to_le_bytes());
        }
        for part in [self.key, self.cell].into_iter().flatten() {
            into.extend_from_slice(part);
            into.resize(into.len().next_multiple_of(8), 0);
        }
        if let Some(before) = self.before {
            into.extend_from_slice(&(before.len() as u64).to_le_bytes());
            into.extend_from_slice(before);
            into.resize(into.len().next_multiple_of(8), 0);
        }
    }

    /// The first operation in `bytes`, and the bytes after it. `None` if no session writes such an operation.
    pub(super) fn parse(geometry: &Geometry, bytes: &'a [u8]) -> Option<(Operation<'a>, &'a [u8])> {
        let (head, mut rest) = bytes.split_at_checked(OPERATION_HEAD)?;
        let words: [u64; 8] = std::array::from_fn(|nth| word_at(head, 8 * nth));
        let slot = Slot::from_words(words);
        let (number, flags) = (words[7] & NUMBER_MASK, words[7]);
        let opcode = match (flags >> OPCODE_SHIFT) as u8 {
            1 => Opcode::Write,
            2 => Opcode::Clear,
            3 => Opcode::Parcel,
            _ => return None,
        };
        let mut part = |is_there: bool, bytes: usize| -> Option<Option<&'a [u8]>> {
            if !is_there {
                return Some(None);
            }
            let (part, behind) = rest.split_at_checked(bytes.checked_next_multiple_of(8)?)?;
            rest = behind;
            Some(Some(part.get(..bytes)?))
        };
        let key = part(flags & WITH_KEY != 0, slot.key_bytes as usize)?;
        let cell_bytes = match slot.is_sound(geometry) && !slot.is_dead {
            true => geometry.cell_bytes(slot.form, slot.length),
            false => 0,
        };
        let cell = part(flags & WITH_BODY != 0, cell_bytes)?;
        let before = match part(flags & WITH_BEFORE != 0, 8)? {
            None => None,
            Some(length) => part(true, usize::try_from(word_at(length, 0)).ok()?)?,
        };
        let fits = match opcode {
            Opcode::Write if slot.is_dead => number > 0 && key.is_none() && cell.is_none(),
            Opcode::Write => number > 0 && cell.is_some() == (cell_bytes > 0),
            Opcode::Clear => number == 0 && slot.is_dead && key.is_none() && cell.is_none(),
            Opcode::Parcel => {
                number == 0 && !slot.is_dead && key.is_none() && cell.is_some() == (cell_bytes > 0)
            }
        };
        let is_state = words[0] & BUSY == 0 && slot.is_sound(geometry);
        (fits && is_state).then_some((
            Operation {
                opcode,
                number,
                slot,
                key,
                cell,
                before,
            },
            rest,
        ))
    }
}

/// Whether an operation, which parses, has a key.
pub(super) fn has_key(operation: &[u8]) -> bool {
    word_at(operation, 7 * 8) & WITH_KEY != 0
}

/// The operations in `bytes`, each with its bytes: `count`, or as many as there are in a parcel. `None` ends
/// them: a session cannot have written what follows.
pub(super) fn operations<'a>(
    geometry: &Geometry,
    mut bytes: &'a [u8],
    count: Option<u32>,
) -> impl Iterator<Item = Option<(Operation<'a>, &'a [u8])>> {
    let (mut found, mut is_over) = (0, false);
    std::iter::from_fn(move || {
        let goes_on = count.map_or(!bytes.is_empty(), |count| found < count);
        if is_over || !goes_on {
            // What is behind them fills a line.
            let is_too_long = !is_over && bytes.len() >= LINE as usize;
            is_over = true;
            return is_too_long.then_some(None);
        }
        found += 1;
        // A parcel that names a parcel could name itself.
        let parsed = Operation::parse(geometry, bytes)
            .filter(|(operation, _)| count.is_some() || operation.opcode != Opcode::Parcel);
        is_over = parsed.is_none();
        Some(parsed.map(|(operation, rest)| {
            let own = &bytes[..bytes.len() - rest.len()];
            bytes = rest;
            (operation, own)
        }))
    })
}

/// Whether a session can have written these operations.
pub(super) fn are_operations(geometry: &Geometry, bytes: &[u8], count: Option<u32>) -> bool {
    operations(geometry, bytes, count).all(|operation| operation.is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn geometry() -> Geometry {
        let options = DstoreOptions {
            logs: 2,
            log_bytes: 8192,
            page_bytes: 512,
            block_bytes: 512,
            inline_bytes: 16,
            ..DstoreOptions::default()
        };
        Geometry::new(&options, 1 << 30).unwrap()
    }

    #[test]
    fn a_geometry_survives_its_words() {
        let geometry = geometry();
        assert_eq!(Geometry::from_words(geometry.to_words()), Some(geometry));
        let mut words = geometry.to_words();
        words[4] = 768;
        assert_eq!(Geometry::from_words(words), None);
    }

    #[test]
    fn forms_grow_with_the_length() {
        let geometry = geometry();
        // 8 references in a root, 32 in a block of 512 bytes.
        for (length, form, root) in [
            (0, 0, 0),
            (16, 0, 0),
            (17, 1, 0),
            (512, 1, 0),
            (513, 2, 2),
            (4096, 2, 8),
            (4097, 3, 1),
            (8 * 32 * 512, 3, 8),
            (8 * 32 * 512 + 1, 4, 1),
            (512 << 20, 6, 1),
            (OBJECT_BYTES_MAX, 8, 2),
        ] {
            assert_eq!(geometry.form(length), form, "{length}");
            if form >= 2 {
                assert_eq!(geometry.root_len(form, length), root, "{length}");
            }
        }
    }

    #[test]
    fn operations_survive_their_bytes() {
        let geometry = geometry();
        let slot = Slot {
            lsn: 7,
            hash: 99,
            length: 5,
            expires_at_ms: 3,
            key_cell: 12,
            key_bytes: 9,
            body: 4,
            ..Slot::default()
        };
        let operation = Operation {
            opcode: Opcode::Write,
            number: 1 << 39,
            slot,
            key: Some(b"nine byte"),
            cell: Some(b"value"),
            before: None,
        };
        let dead = Operation {
            slot: Slot {
                lsn: 8,
                is_dead: true,
                key_bytes: 1,
                ..Slot::default()
            },
            key: None,
            cell: None,
            ..operation
        };
        let mut bytes = Vec::new();
        operation.write(&mut bytes);
        assert_eq!(bytes.len(), OPERATION_HEAD + 16 + 8);
        dead.write(&mut bytes);
        let words = Operation {
            before: Some(b"eleven byte"),
            ..dead
        };
        words.write(&mut bytes);
        let found = operations(&geometry, &bytes, Some(3)).map(|found| found.map(|(one, _)| one));
        assert!(found.eq([operation, dead, words].map(Some)));
        assert!(are_operations(&geometry, &bytes, Some(3)));
        assert!(!are_operations(&geometry, &bytes, Some(4)));
        assert!(!are_operations(&geometry, &bytes, Some(1)), "a line more");
        assert_eq!(
            [0, 1].map(|nth| has_key(&bytes[[0, 88][nth]..])),
            [true, false]
        );
        for cut in 1..bytes.len() {
            assert!(!are_operations(&geometry, &bytes[..cut], Some(3)));
        }
    }
}
