//! The hollow blocks, and an upper bound of their lives; see [`super::punch`].

use crate::error::{Error, corrupt};
use crate::viper::layout::parse_lives_word;
use everdram_pm::{Pool, ROOT_AT};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Offset of the word with the lives of hollow blocks.
pub(super) const LIVES_AT: u64 = ROOT_AT + 8;

/// Hollow blocks, and a bound of their lives.
#[derive(Default)]
pub(in crate::viper) struct Hollow {
    /// In descending order, so that the lowest numbers are taken first.
    pub(super) blocks: Mutex<Vec<u32>>,
    /// No hollow block had more lives.
    pub(super) lives: AtomicU32,
    /// Room is not given back.
    pub(super) is_kept: AtomicBool,
}

impl Hollow {
    /// The most lives that a block has had which looks never claimed.
    pub(in crate::viper) fn lives(&self) -> u32 {
        self.lives.load(Ordering::Relaxed)
    }

    /// Reads the lives that an earlier process stored.
    pub(in crate::viper) fn recover(&self, pool: &Pool) -> Result<(), Error> {
        let word = pool.region().load_word(LIVES_AT);
        let lives = parse_lives_word(pool.secret(), LIVES_AT, word)
            .ok_or_else(|| corrupt(LIVES_AT, "the second root word does not verify"))?;
        self.lives.store(lives, Ordering::Relaxed);
        Ok(())
    }

    /// Stops giving room back.
    pub(in crate::viper) fn keep(&self) {
        self.is_kept.store(true, Ordering::Relaxed);
    }

    pub(super) fn add(&self, more: &[u32]) {
        let mut blocks = self.blocks.lock();
        blocks.extend_from_slice(more);
        blocks.sort_unstable_by(|one, other| other.cmp(one));
    }
}
