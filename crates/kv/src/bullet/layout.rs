//! Every persistent byte of the engine, except the root page (`back/root.rs`), log entries and ledger
//! (`crl/`), heap and transactions (`heap/`), and buckets (`table.rs`). `docs/format.md` says the same in
//! prose.
//!
//! ```text
//! logs        +--------+--------+- - -+-------+-------+- - -
//!             | area 0 | area 1 |     | log 0 | log 1 |             areas: records of transactions
//!             +--------+--------+- - -+-------+-------+- - -
//! heap        arrays and lines of the back table, objects, overflow records
//!
//! operation   +------+------+--------+---------+-----+---------+
//!             | what | prev | expiry | lengths | key | payload |        key and payload are padded to whole words
//!             +------+------+--------+---------+-----+---------+
//! what        0..48 version | 48..56 opcode | 56 the key came | 57 the key went
//! prev        0: none | 0..56 position | 56..64 number of the log, plus one
//! lengths     0..32 of the key | 32..64 of the payload
//!
//! object      +-------+------+---------+--------+---------+-----+-------+ +--------+
//!             | check | hash | version | expiry | lengths | key | value | | lentry |
//!             +-------+------+---------+--------+---------+-----+-------+ +--------+
//! version     0..47 | 47 tombstone | 48..64 check of the head
//! lengths     0..31 of the key | 31 there is a lentry | 32..64 of the value
//! lentry      where the key's newest record is, in the systems `static` and `+lfr`; nothing relies on it
//! ```
//!
//! Every check is keyed with the pool's secret and covers its own offset.

use crate::concurrency::stripes::STORED_VERSION_MAX;
pub(super) use crate::crl::{ENTRY_HEAD, RecordAt, word_at};
use crate::crl::{LOGS_MAX, Shape};
use crate::engine::limits::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::error::Error;
use crate::heap::Redo;
use crate::options::BulletOptions;
use everdram_pm::{LINE, Secret};

/// The longest value that the front holds. Longer ones are read from the pool.
pub(super) const INLINE_MAX: usize = 64 << 10;
/// Owner of the extent of redo areas and logs.
pub(super) const LOGS_OWNER: u32 = 1;
/// Owner of the heap's extents.
pub(super) const HEAP_OWNER: u32 = 2;
/// The format these sources write.
const FORMAT: u64 = 1;
/// The most areas for transactions: one for each thread that changes the back at a time.
pub(super) const AREAS_MAX: u32 = 16;

const VERSION_MASK: u64 = (1 << 48) - 1;
/// Bytes in front of an operation's key, and of an object's key.
pub(super) const OPERATION_HEAD: usize = 32;
pub(super) const OBJECT_HEAD: u64 = 40;

const SALT_OBJECT: u64 = 0x6f;
const SALT_HEAD: u64 = 0x68 << 56;

/// A pool's shape, as its superblock has it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub(super) logs: u32,
    pub(super) log_bytes: u64,
    pub(super) area_bytes: u64,
    pub(super) chunk_lines: u32,
    /// Depth of the first array of the back.
    pub(super) depth: u32,
    /// The number of a system whose pools are opened only once; 0: of any other.
    pub(super) bound: u32,
}

impl Geometry {
    /// The shape of a pool of at most `bytes_max` bytes; a small one has smaller logs and tables than the
    /// options ask for.
    ///
    /// # Errors
    /// [`Error::Options`].
    pub(super) fn new(options: &BulletOptions, bytes_max: u64) -> Result<Geometry, Error> {
        let share = |one_in: u64| (bytes_max / one_in).max(1);
        let log_share = share(8 * u64::from(options.logs.max(1))).max(4096) / 4096 * 4096;
        let chunk_share = 1 << share(64).max(4096).ilog2();
        let depth_share = (share(64) / LINE).max(2).ilog2();
        let geometry = Geometry {
            logs: options.logs,
            log_bytes: options.log_bytes.min(log_share),
            area_bytes: options.transaction_bytes,
            chunk_lines: (options.chunk_bytes.min(chunk_share) / LINE) as u32,
            depth: options.depth.min(depth_share),
            bound: options.system.bound(),
        };
        match geometry.is_sound() {
            true => Ok(geometry),
            false => Err(Error::Options(format!(
                "bullet: {options:?}: 1 to {LOGS_MAX} logs of 4 KiB to 1 GiB, transactions of 1 KiB to 1 MiB, chunks of 4 KiB to \
                 256 KiB, all multiples of 4 KiB (transactions: of 64 bytes), and a depth of 1 to 24"
            ))),
        }
    }

    fn is_sound(&self) -> bool {
        (1..=LOGS_MAX as u32).contains(&self.logs)
            && self.log_bytes.is_multiple_of(4096)
            && (4096..=1 << 30).contains(&self.log_bytes)
            && self.area_bytes.is_multiple_of(LINE)
            && (1024..=1 << 20).contains(&self.area_bytes)
            && self.chunk_lines.is_multiple_of(64)
            && (64..=4096).contains(&self.chunk_lines)
            && (1..=24).contains(&self.depth)
            && self.bound < 4
            && Redo::edits(self.area_bytes) >= 2 * self.words_a_key()
    }

    pub(super) fn to_words(self) -> [u64; 8] {
        let (logs, chunk, depth) = (
            u64::from(self.logs),
            u64::from(self.chunk_lines),
            u64::from(self.depth),
        );
        [
            FORMAT,
            logs,
            self.log_bytes,
            self.area_bytes,
            chunk,
            depth,
            u64::from(self.bound),
            0,
        ]
    }

    pub(super) fn from_words(words: [u64; 8]) -> Option<Geometry> {
        let [FORMAT, logs, log_bytes, area_bytes, chunk, depth, bound, 0] = words else {
            return None;
        };
        let geometry = Geometry {
            logs: u32::try_from(logs).ok()?,
            log_bytes,
            area_bytes,
            chunk_lines: u32::try_from(chunk).ok()?,
            depth: u32::try_from(depth).ok()?,
            bound: u32::try_from(bound).ok()?,
        };
        geometry.is_sound().then_some(geometry)
    }

    /// Areas for transactions.
    pub(super) fn areas(&self) -> u32 {
        self.logs.min(AREAS_MAX)
    }

    /// Words that a transaction changes for one key, at most: the slot, or a line and the link to it, and the
    /// bits of the new and the old object.
    pub(super) fn words_a_key(&self) -> usize {
        2 * (self.chunk_lines as usize / 64 + 1) + 4
    }

    /// Bytes of all areas.
    pub(super) fn areas_bytes(&self) -> u64 {
        u64::from(self.areas()) * self.area_bytes
    }

    /// Bytes of the extent of areas and logs.
    pub(super) fn logs_extent(&self) -> u64 {
        (self.areas_bytes() + u64::from(self.logs) * self.log_bytes).next_multiple_of(4096)
    }

    /// The logs of an extent that begins at `extent`. Operations too long for an entry go into the heap, and
    /// their entry names them.
    pub(super) fn logs_from(&self, extent: u64) -> Shape {
        Shape {
            at: extent + self.areas_bytes(),
            count: self.logs as usize,
            log_bytes: self.log_bytes,
            entry_most: (self.log_bytes / 8).min(192 << 10) as usize / 64 * 64,
            reserved: 0,
        }
    }
}

/// The operation of a log record (the paper's opcode).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Opcode {
    /// The payload is the value.
    Put = 1,
    /// Removes the key.
    Remove = 2,
    /// Appends the payload to the value.
    Append = 3,
    /// The payload: a place in the value, and the summand for the 8-byte word there.
    Increment = 4,
    /// The payload: a place in the value, and the 8-byte word that it gets.
    SetField = 5,
    /// The payload: an object in the heap ([`Named`]), which is the key's state. There is no key here.
    Link = 6,
    /// The payload: an overflow record in the heap ([`Named`]) that holds operations. There is no key here.
    Parcel = 7,
    /// Versions up to this one do not count. There is no key. The payload: the number of keys removed.
    Clear = 8,
}

impl Opcode {
    fn from_byte(byte: u8) -> Option<Opcode> {
        use Opcode::{Append, Clear, Increment, Link, Parcel, Put, Remove, SetField};
        [
            Put, Remove, Append, Increment, SetField, Link, Parcel, Clear,
        ]
        .into_iter()
        .find(|opcode| *opcode as u8 == byte)
    }

    /// Whether the operation is an edit: it holds only a change of the key's value.
    #[inline]
    pub(super) fn is_edit(self) -> bool {
        matches!(self, Opcode::Append | Opcode::Increment | Opcode::SetField)
    }
}

/// How an operation changes the number of keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) enum Keys {
    /// As many as before.
    #[default]
    Same,
    More,
    Fewer,
}

const CAME: u64 = 1 << 56;
const WENT: u64 = 1 << 57;

/// An operation of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Operation<'a> {
    pub(super) version: u64,
    pub(super) opcode: Opcode,
    pub(super) keys: Keys,
    /// The previous record of the key.
    pub(super) prev: RecordAt,
    pub(super) expires_at_ms: u64,
    pub(super) key: &'a [u8],
    pub(super) payload: &'a [u8],
}

impl<'a> Operation<'a> {
    /// Bytes in an entry.
    pub(super) fn bytes(&self) -> usize {
        OPERATION_HEAD + self.key.len().next_multiple_of(8) + self.payload.len().next_multiple_of(8)
    }

    /// Appends the bytes.
    #[inline]
    pub(super) fn write(&self, into: &mut Vec<u8>) {
        let keys = match self.keys {
            Keys::Same => 0,
            Keys::More => CAME,
            Keys::Fewer => WENT,
        };
        let words = [
            self.version | (self.opcode as u64) << 48 | keys,
            self.prev.0,
            self.expires_at_ms,
            self.key.len() as u64 | (self.payload.len() as u64) << 32,
        ];
        for word in words {
            into.extend_from_slice(&word.to_le_bytes());
        }
        for bytes in [self.key, self.payload] {
            into.extend_from_slice(bytes);
            into.resize(into.len().next_multiple_of(8), 0);
        }
    }

    /// Whether a writer can have logged it.
    pub(super) fn is_sound(&self) -> bool {
        self.has_fit_payload() && self.version <= STORED_VERSION_MAX
    }

    /// Whether the payload fits the opcode.
    pub(super) fn has_fit_payload(&self) -> bool {
        let bytes = self.payload.len();
        match self.opcode {
            Opcode::Put | Opcode::Append => bytes <= INLINE_MAX,
            Opcode::Remove => bytes == 0,
            Opcode::Increment | Opcode::SetField => {
                bytes == 16 && word_at(self.payload, 0).is_multiple_of(8)
            }
            Opcode::Link | Opcode::Parcel => bytes == 24,
            Opcode::Clear => bytes == 8,
        }
    }

    /// The first operation in `bytes`, and the bytes after it.
    pub(super) fn parse(bytes: &'a [u8]) -> Option<(Operation<'a>, &'a [u8])> {
        let (head, rest) = bytes.split_at_checked(OPERATION_HEAD)?;
        let (what, lengths) = (word_at(head, 0), word_at(head, 24));
        let opcode = Opcode::from_byte((what >> 48) as u8)?;
        let keys = match what & (CAME | WENT) {
            0 => Keys::Same,
            CAME => Keys::More,
            WENT => Keys::Fewer,
            _ => return None,
        };
        let (key_bytes, payload_bytes) = ((lengths as u32) as usize, (lengths >> 32) as usize);
        let keyed = !matches!(opcode, Opcode::Link | Opcode::Parcel | Opcode::Clear);
        let sound = if keyed {
            (1..=KEY_BYTES_MAX).contains(&key_bytes)
        } else {
            key_bytes == 0
        };
        if !sound || payload_bytes > VALUE_BYTES_MAX {
            return None;
        }
        let (key, rest) = rest.split_at_checked(key_bytes.next_multiple_of(8))?;
        let (payload, rest) = rest.split_at_checked(payload_bytes.next_multiple_of(8))?;
        let operation = Operation {
            version: what & VERSION_MASK,
            opcode,
            keys,
            prev: RecordAt(word_at(head, 8)),
            expires_at_ms: word_at(head, 16),
            key: key.get(..key_bytes)?,
            payload: payload.get(..payload_bytes)?,
        };
        Some((operation, rest))
    }
}

/// Whether a writer can have written these operations, with only padding after them: `count`, or in an
/// overflow record (`None`) any number.
pub(super) fn are_sound(mut bytes: &[u8], count: Option<u32>) -> bool {
    let mut left = count.unwrap_or(u32::MAX);
    while left > 0 && (count.is_some() || !bytes.is_empty()) {
        match Operation::parse(bytes) {
            // An overflow record that names another could name itself.
            Some((operation, _)) if count.is_none() && operation.opcode == Opcode::Parcel => {
                return false;
            }
            Some((operation, rest)) if operation.is_sound() => bytes = rest,
            _ => return false,
        }
        left -= 1;
    }
    bytes.len() < LINE as usize
}

/// The operations of an entry, in order. Ends at the first that does not parse; in a verified entry, all
/// parse.
pub(super) fn operations(mut bytes: &[u8], count: u32) -> impl Iterator<Item = Operation<'_>> {
    (0..count).map_while(move |_| {
        let (operation, rest) = Operation::parse(bytes)?;
        bytes = rest;
        Some(operation)
    })
}

/// The head of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub(super) struct ObjectHead {
    pub(super) check: u64,
    pub(super) hash: u64,
    pub(super) version: u64,
    /// The key was removed.
    pub(super) is_tombstone: bool,
    /// A word behind the value is the key's `lentry`. The check does not cover it.
    pub(super) has_lentry: bool,
    pub(super) expires_at_ms: u64,
    pub(super) key_bytes: u32,
    pub(super) value_bytes: u32,
}

const OBJECT_VERSION_MASK: u64 = (1 << 47) - 1;
/// A flag in the word of the lengths.
const OBJECT_LENTRY: u64 = 1 << 31;
const OBJECT_TOMBSTONE: u64 = 1 << 47;
/// Bytes of the `lentry` at the end of an object that has one.
pub(super) const LENTRY_BYTES: u64 = 8;

const _: () = {
    // what, prev, expiry, lengths; check, hash, version, expiry, lengths
    assert!(OPERATION_HEAD == 4 * 8 && OBJECT_HEAD == 5 * 8 && ENTRY_HEAD == 4 * 8);
    // The word of an operation: 48 bits of a version, 8 of an opcode, two flags.
    assert!(VERSION_MASK & (CAME | WENT | 0xff << 48) == 0 && CAME & WENT == 0);
    assert!((CAME | WENT) & 0xff << 48 == 0);
    // The word of an object: 47 bits of a version, a tombstone, 16 bits of a check.
    assert!(
        OBJECT_VERSION_MASK & OBJECT_TOMBSTONE == 0 && OBJECT_TOMBSTONE == OBJECT_VERSION_MASK + 1
    );
    assert!(STORED_VERSION_MAX <= OBJECT_VERSION_MASK && STORED_VERSION_MAX <= VERSION_MASK);
    // Lengths: 31 bits of the key's, a flag, 32 bits of the value's.
    assert!((KEY_BYTES_MAX as u64) < OBJECT_LENTRY && VALUE_BYTES_MAX as u64 <= u32::MAX as u64);
    assert!(INLINE_MAX <= VALUE_BYTES_MAX && LOGS_OWNER != HEAP_OWNER);
    // `prev` has 8 bits for the number of a log plus one.
    assert!(LOGS_MAX < 1 << 8);
};

impl ObjectHead {
    /// The head in `bytes`, which are at `at`, if it verifies. Key and value are not verified.
    #[inline]
    pub(super) fn read(secret: &Secret, at: u64, bytes: &[u8]) -> Option<ObjectHead> {
        let [check, hash, version, expires_at_ms, lengths] =
            [0, 8, 16, 24, 32].map(|place| word_at(bytes, place));
        let body = version & (OBJECT_TOMBSTONE | OBJECT_VERSION_MASK);
        if version
            != body | ObjectHead::head_check(secret, at, [hash, body, expires_at_ms, lengths])
        {
            return None;
        }
        let head = ObjectHead {
            check,
            hash,
            version: version & OBJECT_VERSION_MASK,
            is_tombstone: version & OBJECT_TOMBSTONE != 0,
            has_lentry: lengths & OBJECT_LENTRY != 0,
            expires_at_ms,
            key_bytes: (lengths & (OBJECT_LENTRY - 1)) as u32,
            value_bytes: (lengths >> 32) as u32,
        };
        let sound = (1..=KEY_BYTES_MAX).contains(&(head.key_bytes as usize))
            && head.value_bytes as usize <= VALUE_BYTES_MAX;
        sound.then_some(head)
    }

    /// Where the value begins in the object.
    pub(super) fn value_at(&self) -> u64 {
        OBJECT_HEAD + u64::from(self.key_bytes).next_multiple_of(8)
    }

    /// Bytes of the object that its check covers.
    pub(super) fn checked_bytes(&self) -> u64 {
        self.value_at() + u64::from(self.value_bytes).next_multiple_of(8)
    }

    /// Bytes of the object.
    pub(super) fn bytes(&self) -> u64 {
        self.checked_bytes() + if self.has_lentry { LENTRY_BYTES } else { 0 }
    }

    /// The bytes of an object that will be at `at`, up to a whole line.
    pub(super) fn write(
        &self,
        secret: &Secret,
        at: u64,
        key: &[u8],
        value: &[u8],
        into: &mut Vec<u8>,
    ) {
        assert!(
            key.len() == self.key_bytes as usize && value.len() == self.value_bytes as usize,
            "an object is written with a key or a value of another length"
        );
        into.clear();
        let tombstone = if self.is_tombstone {
            OBJECT_TOMBSTONE
        } else {
            0
        };
        let lentry = if self.has_lentry { OBJECT_LENTRY } else { 0 };
        let lengths = u64::from(self.key_bytes) | lentry | u64::from(self.value_bytes) << 32;
        let (hash, version, expiry) = (self.hash, self.version | tombstone, self.expires_at_ms);
        let check = ObjectHead::head_check(secret, at, [hash, version, expiry, lengths]);
        for word in [0, hash, version | check, expiry, lengths] {
            into.extend_from_slice(&word.to_le_bytes());
        }
        for bytes in [key, value] {
            into.extend_from_slice(bytes);
            into.resize(into.len().next_multiple_of(8), 0);
        }
        let check = ObjectHead::check_of(secret, at, into);
        into[..8].copy_from_slice(&check.to_le_bytes());
        into.resize((self.bytes() as usize).next_multiple_of(LINE as usize), 0);
    }

    /// The check of the head alone, in its bits of the word of the version. With it, a reader of the head
    /// need not read the whole object.
    fn head_check(secret: &Secret, at: u64, [hash, version, expiry, lengths]: [u64; 4]) -> u64 {
        let words: [u8; 40] = words_payload([hash, version, expiry, lengths, at ^ SALT_HEAD]);
        secret.sum(&words) >> 48 << 48
    }

    /// The check of the object in `bytes`, which end with it.
    #[inline]
    pub(super) fn check_of(secret: &Secret, at: u64, bytes: &[u8]) -> u64 {
        secret.sum_words([secret.sum(bytes.get(8..).unwrap_or(&[])), at, SALT_OBJECT])
    }
}

/// A log record's reference into the heap: offset, length in bytes, and check. The check tells the named
/// object from a later, sound one at the same offset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub(super) at: u64,
    pub(super) bytes: u64,
    pub(super) check: u64,
}

impl Named {
    /// As a payload has it.
    pub(super) fn to_payload(self) -> [u8; 24] {
        words_payload([self.at, self.bytes, self.check])
    }

    pub(super) fn read(payload: &[u8]) -> Named {
        let [at, bytes, check] = [0, 8, 16].map(|place| word_at(payload, place));
        Named { at, bytes, check }
    }
}

/// Words as the bytes of a payload.
pub(super) fn words_payload<const BYTES: usize, const WORDS: usize>(
    words: [u64; WORDS],
) -> [u8; BYTES] {
    let mut payload = [0; BYTES];
    for (place, word) in payload.as_chunks_mut::<8>().0.iter_mut().zip(words) {
        *place = word.to_le_bytes();
    }
    payload
}

/// Bytes that a key or value of this length takes in a node or an object.
#[inline]
pub(super) fn padded(bytes: u32) -> u64 {
    u64::from(bytes).next_multiple_of(8)
}
