//! Who leaves tier 1: a queue of blocks in the order in which they were filled (S3-FIFO over blocks).
//!
//! Records are written in the order of time, so the blocks filled first have what was written longest
//! ago, and an update takes its key along to the young end for nothing. Reads need a bit: 256 for each
//! block.
//!
//! *Trial* blocks are those that users filled, *kept* ones those that the compactor filled. While trial
//! blocks are more than a tenth of the pool, the oldest of them goes: records that were read move to a
//! kept block, the others to the log. Otherwise the oldest kept block goes; its records stay once more if
//! they were read since.
//!
//! The other policies have one queue. Of `lru`, the paper's (section 3.2), a record that is read in the older
//! half of the pool is written again at the young end, so that reads cost writes.

use crate::options::Policy;
use crate::viper::block_table::State;
use crate::viper::space::Space;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

const CHUNK: usize = if cfg!(miri) { 1 << 4 } else { 1 << 10 };
/// Words of read bits of a block.
const WORDS: usize = 4;
const BITS: u64 = 64 * WORDS as u64;
/// One in this many blocks may be a trial block.
const TRIAL_SHARE: usize = 10;

/// The age of a block.
#[derive(Default)]
struct Age {
    /// Its turn among the filled blocks; 0 = before the store was opened.
    turn: AtomicU32,
    /// The compactor filled it.
    is_kept: AtomicBool,
    read: [AtomicU64; WORDS],
}

/// See the module text.
pub(in crate::viper) struct Ages {
    policy: Policy,
    chunks: Box<[OnceLock<Box<[Age]>>]>,
    turn: AtomicU32,
    block_bytes: u64,
}

impl Ages {
    pub(super) fn new(policy: Policy, blocks: u64, block_bytes: u64) -> Ages {
        let chunks = (blocks as usize).div_ceil(CHUNK);
        Ages {
            policy,
            chunks: (0..chunks).map(|_| OnceLock::new()).collect(),
            turn: AtomicU32::new(0),
            block_bytes,
        }
    }

    #[inline]
    fn find(&self, block: u32) -> Option<&Age> {
        let chunk = self.chunks.get(block as usize / CHUNK)?.get()?;
        chunk.get(block as usize % CHUNK)
    }

    fn find_or_make(&self, block: u32) -> Option<&Age> {
        let chunk = self.chunks.get(block as usize / CHUNK)?;
        let chunk = chunk.get_or_init(|| (0..CHUNK).map(|_| Age::default()).collect());
        chunk.get(block as usize % CHUNK)
    }

    /// Notes that a block is open for records.
    pub(in crate::viper) fn open(&self, block: u32, is_kept: bool) {
        if let Some(age) = self.find_or_make(block) {
            age.is_kept.store(is_kept, Ordering::Relaxed);
            age.read
                .iter()
                .for_each(|word| word.store(0, Ordering::Relaxed));
            let turn = self.turn.fetch_add(1, Ordering::Relaxed) + 1;
            age.turn.store(turn, Ordering::Relaxed);
        }
    }

    /// The word and bit of the record at byte `within` of its block.
    #[inline]
    fn bit(&self, within: u64) -> (usize, u64) {
        let number = within * BITS / self.block_bytes;
        (number as usize / 64 % WORDS, 1 << (number % 64))
    }

    /// Notes that the record at byte `within` of a block was read or replaced.
    #[inline]
    pub(in crate::viper) fn touch(&self, block: u32, within: u64) {
        if let Some(age) = self.find_or_make(block) {
            let (word, bit) = self.bit(within);
            if age.read[word].load(Ordering::Relaxed) & bit == 0 {
                age.read[word].fetch_or(bit, Ordering::Relaxed);
            }
        }
    }

    /// Whether a block is in the older half of the pool, whose records `lru` writes again when they are read.
    #[inline]
    pub(super) fn is_old(&self, space: &Space, block: u32) -> bool {
        self.policy == Policy::Lru && {
            let turn = self.turn.load(Ordering::Relaxed);
            let age = turn.saturating_sub(self.turn_of(block));
            u64::from(age) > space.blocks.total() / 2
        }
    }

    fn turn_of(&self, block: u32) -> u32 {
        let age = self.find(block);
        age.map_or(0, |age| age.turn.load(Ordering::Relaxed))
    }

    /// Whether the record at byte `within` of a block stays when its block goes: it was read since the block
    /// was filled.
    pub(super) fn stays(&self, block: u32, within: u64) -> bool {
        let (word, bit) = self.bit(within);
        let has_second_chance = matches!(self.policy, Policy::S3Fifo | Policy::Clock);
        has_second_chance
            && self
                .find(block)
                .is_some_and(|age| age.read[word].load(Ordering::Relaxed) & bit != 0)
    }

    /// Whether users filled a block, so that it goes before most others. (After a restart nobody knows, and
    /// no block counts as one.)
    pub(in crate::viper) fn is_trial(&self, block: u32) -> bool {
        let is_trial = |age: &Age| !age.is_kept.load(Ordering::Relaxed);
        self.policy == Policy::S3Fifo && self.find(block).is_some_and(is_trial)
    }

    /// The blocks to evict from, at most `count`; the first to go is the last.
    pub(in crate::viper) fn victims(&self, space: &Space, count: usize) -> Vec<u32> {
        let (mut trial, mut kept) = (Vec::new(), Vec::new());
        for block in space.blocks.all() {
            let state = space.blocks.get(block).map(|entry| entry.info().state);
            if state != Some(State::Sealed) {
                continue;
            }
            let turn = self.turn_of(block);
            match self.is_trial(block) {
                true => trial.push((turn, block)),
                false => kept.push((turn, block)),
            }
        }
        let is_trial = trial.len() * TRIAL_SHARE > space.blocks.total() as usize || kept.is_empty();
        let mut victims = if is_trial { trial } else { kept };
        victims.sort_unstable();
        victims.truncate(count);
        victims.reverse();
        victims.into_iter().map(|(_, block)| block).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_touch_is_of_one_place_in_one_life() {
        let ages = Ages::new(Policy::S3Fifo, 4000, 24_576);
        ages.touch(7, 4096);
        ages.open(7, false);
        ages.touch(7, 4096);
        assert!(ages.stays(7, 4096) && !ages.stays(7, 8192));
        assert!(!ages.stays(8, 4096));
        ages.open(7, false);
        assert!(!ages.stays(7, 4096));
    }
}
