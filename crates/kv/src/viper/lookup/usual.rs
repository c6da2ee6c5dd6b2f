//! The record that nearly every read finds, read in few instructions: an ordinary one of the key, without
//! expiry, in a block whose records do not change. A processor begins the next look-up while it waits for
//! the memory of this one, if that is at most some hundreds of instructions away.

use super::super::layout::{Kind, RECORD_HEAD, word_at};
use super::super::read::{POOL_END, Reader};
use super::super::record::{self, Stamp};
use std::ops::Range;

/// A record whose copy lies in the scratch memory, verified.
pub(super) struct Usual {
    pub(super) version: u64,
    value_at: u32,
    value_end: u32,
}

impl Usual {
    /// Where the value lies in the copy.
    #[inline]
    pub(super) fn value(&self) -> Range<usize> {
        self.value_at as usize..self.value_end as usize
    }
}

impl Reader<'_> {
    /// The record at byte `at`, if it is the usual one of `key`. `None` decides nothing.
    #[inline(always)]
    pub(super) fn read_usual(&self, at: u64, key: &[u8], scratch: &mut Vec<u8>) -> Option<Usual> {
        if at >= POOL_END {
            return None;
        }
        let number = self.blocks.number(at);
        let block = self.blocks.get(number)?;
        let room = self.blocks.at(number) + self.geometry.block_bytes - at;
        let secret = self.pool.secret();
        let region = self.pool.region();
        match &self.geometry.fixed {
            None => {
                let epoch = block.epoch_of(&[Kind::Variable, Kind::Large])?;
                let word = region.load_word(at);
                let value_bytes = record::ordinary(word, key.len())?;
                let value_at = RECORD_HEAD + key.len();
                let bytes = record::encoded_bytes(key.len(), value_bytes, false);
                let copy = copy(scratch, bytes, room)?;
                region.load(at, copy);
                // Without the first, the record might have other lengths in the copy that is verified.
                let is_it = word_at(copy, 0) == word
                    && is_key(copy.get(RECORD_HEAD..value_at)?, key)
                    && record::verify(secret, copy, at, epoch);
                is_it.then(|| Usual {
                    version: Stamp::from_word(word_at(copy, 8)).version,
                    value_at: value_at as u32,
                    value_end: (value_at + value_bytes) as u32,
                })
            }
            Some(shape) => {
                let epoch = block.epoch_of(&[Kind::Fixed])?;
                let copy = copy(scratch, shape.slot_bytes() as usize, room)?;
                region.load(at, copy);
                let slot = record::parse_slot(shape, copy)?;
                let is_it = is_key(copy.get(slot.key())?, key)
                    && record::verify_slot(secret, shape, copy, at, epoch, false);
                is_it.then(|| Usual {
                    version: slot.stamp.version,
                    value_at: slot.value().start as u32,
                    value_end: slot.value().end as u32,
                })
            }
        }
    }
}

/// Whether two keys are the same, word by word: a call would take longer than most keys.
#[inline(always)]
fn is_key(held: &[u8], key: &[u8]) -> bool {
    let ((words, rest), (key_words, key_rest)) = (held.as_chunks::<8>(), key.as_chunks::<8>());
    held.len() == key.len()
        && words.iter().zip(key_words).all(|(one, other)| one == other)
        && (rest.is_empty() || rest == key_rest)
}

/// Memory for a copy of so many bytes; `None` if the block has not as much room behind its start.
#[inline(always)]
fn copy(scratch: &mut Vec<u8>, bytes: usize, room: u64) -> Option<&mut [u8]> {
    if bytes as u64 > room {
        return None;
    }
    if scratch.len() < bytes {
        grow(scratch, bytes);
    }
    scratch.get_mut(..bytes)
}

#[cold]
fn grow(scratch: &mut Vec<u8>, bytes: usize) {
    scratch.resize(bytes, 0);
}
