//! The entries of a journal: a key's new value, or its removal. One change per entry.
//!
//! ```text
//! change      +---------+---------+-----+-------+
//!             | version | lengths | key | value |        key and value are padded to whole words
//!             +---------+---------+-----+-------+
//! version     0..47 | 63 the key goes
//! lengths     0..32 of the key | 32..64 of the value
//! ```

use super::entry::{ENTRY_HEAD, Entry, word_at};
use crate::concurrency::stripes::STORED_VERSION_MAX;
use crate::engine::limits::KEY_BYTES_MAX;
use everdram_pm::LINE;

const HEAD: usize = 16;
const REMOVED: u64 = 1 << 63;

/// See the module text.
#[derive(Clone, Copy, Debug)]
pub(super) struct Change<'a> {
    pub(super) version: u64,
    pub(super) key: &'a [u8],
    /// `None`: the key is removed.
    pub(super) value: Option<&'a [u8]>,
}

impl<'a> Change<'a> {
    /// Bytes of its entry, in whole lines.
    pub(super) fn entry_bytes(&self) -> usize {
        let words = self.key.len().next_multiple_of(8)
            + self.value.unwrap_or(&[]).len().next_multiple_of(8);
        (ENTRY_HEAD + HEAD + words).next_multiple_of(LINE as usize)
    }

    /// Writes the entry, with room for its head.
    pub(super) fn write(&self, into: &mut Vec<u8>) {
        assert!(self.version > 0, "a change is written without its version");
        let removed = if self.value.is_none() { REMOVED } else { 0 };
        let value = self.value.unwrap_or(&[]);
        into.clear();
        into.resize(ENTRY_HEAD, 0);
        for word in [
            self.version | removed,
            self.key.len() as u64 | (value.len() as u64) << 32,
        ] {
            into.extend_from_slice(&word.to_le_bytes());
        }
        for bytes in [self.key, value] {
            into.extend_from_slice(bytes);
            into.resize(into.len().next_multiple_of(8), 0);
        }
        assert!(
            into.len().next_multiple_of(LINE as usize) == self.entry_bytes(),
            "an entry's length differs from its reserved room"
        );
    }

    /// Parses an entry; `None` if no journal writes such an entry.
    pub(super) fn read(entry: &Entry<'a>) -> Option<Change<'a>> {
        let (version, lengths) = (word_at(entry.bytes, 0), word_at(entry.bytes, 8));
        let (key_bytes, value_bytes) = ((lengths as u32) as usize, (lengths >> 32) as usize);
        let rest = entry.bytes.get(HEAD..)?;
        let (key, rest) = rest.split_at_checked(key_bytes.next_multiple_of(8))?;
        let (value, rest) = rest.split_at_checked(value_bytes.next_multiple_of(8))?;
        let is_removed = version & REMOVED != 0;
        let change = Change {
            version: version & !REMOVED,
            key: key.get(..key_bytes)?,
            value: (!is_removed).then_some(value.get(..value_bytes)?),
        };
        let is_sound = entry.operations == 1
            && rest.len() < LINE as usize
            && (1..=KEY_BYTES_MAX).contains(&key_bytes)
            && (1..=STORED_VERSION_MAX).contains(&change.version)
            && !(is_removed && value_bytes > 0);
        is_sound.then_some(change)
    }
}
