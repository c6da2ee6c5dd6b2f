//! Hollow blocks: free ones whose room was returned to the file system.
//!
//! A pool that once had much garbage has more blocks than it needs. In quiet times, when it is dense, the
//! engine gives back the room of free blocks. Before hollow blocks are claimed again they get room, durably,
//! as in growth (V17).
//!
//! A hollow block reads as zeros, like one that was never claimed: its epoch is lost. A crash may also have
//! kept part of it, such as pages of an earlier life behind a page word of zero. Without a record of lives, a
//! new life could get an old number. So the second word of the root page holds an upper bound of the lives of
//! such blocks. It is raised, durably, before room is given back, and the next claim continues from it (V10).
//! Opening a pool gives room to all of its image, so no block is hollow at first.

use super::hollow::LIVES_AT;
use crate::error::Error;
use crate::viper::Viper;
use crate::viper::block_table::{Blocks, Info, State, no_space};
use crate::viper::layout::lives_word;
use crate::viper::session::ViperSession;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Free blocks to keep for the next writers, as a fraction of the step by which the pool grows.
const KEPT: u64 = 16;
/// Room is given back only if more than this fraction of the pool is free.
const WORTH: u64 = 256;

impl Blocks {
    fn set_outside(&self, block: u32, epoch: u32) {
        if let Some(entry) = self.get(block) {
            let info = entry.info();
            entry.set(Info {
                state: State::Outside,
                epoch,
                ..info
            });
        }
    }

    /// Gives hollow blocks room again, and adds them to the free list; `false` if there are none.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: not even `least` of them get room.
    pub(in crate::viper) fn refill(
        &self,
        wanted: u64,
        least: u64,
        touch: bool,
    ) -> Result<bool, Error> {
        match self.refill_some(wanted, touch) {
            Err(Error::NoSpace(_)) if least < wanted => self.refill_some(least, touch),
            other => other,
        }
    }

    fn refill_some(&self, count: u64, touch: bool) -> Result<bool, Error> {
        let mut taken: Vec<u32> = {
            let mut blocks = self.hollow.blocks.lock();
            let rest = blocks.len().saturating_sub(count as usize);
            blocks.drain(rest..).collect()
        };
        if taken.is_empty() {
            return Ok(false);
        }
        taken.reverse();
        let ranges: Vec<(u64, u64)> = runs(&taken)
            .map(|run| (self.at(run.start), self.at(run.end) - self.at(run.start)))
            .collect();
        if let Err(error) = self.pool.take_back(&ranges) {
            self.hollow.add(&taken);
            return Err(no_space(error));
        }
        if touch {
            ranges
                .iter()
                .for_each(|&(at, bytes)| self.pool.prefault(at, bytes));
        }
        let epoch = |&block: &u32| (block, self.get(block).map_or(0, |entry| entry.info().epoch));
        self.add_free(taken.iter().map(epoch));
        Ok(true)
    }
}

/// Runs of neighbours among blocks in ascending order.
fn runs(blocks: &[u32]) -> impl Iterator<Item = Range<u32>> {
    let chunks = blocks.chunk_by(|one, next| one + 1 == *next);
    chunks.filter_map(|run| Some(*run.first()?..*run.last()? + 1))
}

impl Viper {
    /// Gives the room of most free blocks back to the medium.
    pub(in crate::viper) fn give_room_back(&self) -> Result<(), Error> {
        let (blocks, hollow) = (&self.space.blocks, &self.space.blocks.hollow);
        let kept = blocks.step() / KEPT;
        let is_worth_it = blocks.free_count() > kept + blocks.total() / WORTH;
        let is_kept = hollow.is_kept.load(Ordering::Relaxed) || !self.pool.gives_back();
        if is_kept || !is_worth_it {
            return Ok(());
        }
        let Some(engine) = self.myself() else {
            return Ok(());
        };
        let mut session = ViperSession::new(engine)?;
        let taken = blocks.take_free(kept as usize);
        let lives = taken.iter().filter_map(|&block| blocks.get(block));
        let lives = lives.map(|entry| entry.info().epoch).max().unwrap_or(0);
        if lives > hollow.lives() {
            let word = lives_word(self.pool.secret(), LIVES_AT, lives);
            let _ordered = session.store_and_fence(LIVES_AT, word);
            hollow.lives.store(lives, Ordering::Relaxed);
        }
        let mut outcome = Ok(true);
        for run in runs(&taken) {
            let at = blocks.at(run.start);
            outcome = self.pool.give_back(at, blocks.at(run.end) - at);
            if !matches!(outcome, Ok(true)) {
                hollow.keep();
                break;
            }
        }
        for &block in &taken {
            blocks.set_outside(block, hollow.lives());
        }
        // From here on, sessions may claim them again.
        hollow.add(&taken);
        outcome?;
        Ok(())
    }
}

#[cfg(test)]
#[cfg(not(miri))]
mod tests {
    use super::*;
    use crate::engine::backend::Backend;
    use crate::engine::open;
    use crate::engine::{Engine, EngineSession};
    use crate::options::Options;
    use crate::viper::block_table::OWNER;
    use everdram_pm::{Medium, MediumChoice};
    use std::path::Path;
    use std::sync::Arc;
    use tempfile::TempDir;

    const KEYS: u32 = 2000;

    /// Without a background thread.
    fn open(dir: &Path) -> Arc<Viper> {
        open_keeping(dir, false)
    }

    fn open_keeping(dir: &Path, keep_room: bool) -> Arc<Viper> {
        let options = Options {
            keep_room,
            medium: MediumChoice::Only(Medium::Emulated),
            initial_bytes: 1 << 20,
            chunk_bytes: 1 << 20,
            max_bytes: 16 << 20,
            ..Options::default()
        };
        let path = dir.join("pool");
        let pool = open::pool(&path, &options).unwrap();
        Viper::over(pool, &path, &options).unwrap()
    }

    fn put(viper: &Arc<Viper>, keys: Range<u32>) {
        let mut session = ViperSession::new(Arc::clone(viper)).unwrap();
        for key in keys {
            session.put(&key.to_le_bytes(), &[1; 400], 0).unwrap();
        }
        session.commit_pending().unwrap();
    }

    /// A store that had many keys, has none, and gave its room back; its image before that, and the bytes it
    /// had.
    fn emptied(dir: &Path) -> (Arc<Viper>, Vec<u8>, u64) {
        let viper = open(dir);
        put(&viper, 0..KEYS);
        let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
        for key in 0..KEYS {
            assert!(session.delete(&key.to_le_bytes()).unwrap());
        }
        drop(session);
        viper.reclaim().unwrap();
        let full = viper.stats().pool_bytes;
        let image = std::fs::read(dir.join("pool/image")).unwrap();
        viper.give_room_back().unwrap();
        (viper, image, full)
    }

    #[test]
    fn room_is_given_back_and_taken_again() {
        let dir = TempDir::new_in("/dev/shm").unwrap();
        let (viper, _, full) = emptied(dir.path());
        let empty = viper.stats();
        assert!(empty.pool_bytes < full / 2, "{empty:?}, {full} before");
        put(&viper, 0..KEYS);
        let again = viper.stats();
        assert!(again.pool_bytes >= again.used_bytes, "{again:?}");
        assert!(again.pool_bytes <= full, "{again:?}, {full} before");
        assert_eq!(viper.check().unwrap().findings, []);
    }

    /// Peers that read in place reach free blocks, too.
    #[test]
    fn room_that_peers_may_read_is_kept() {
        let dir = TempDir::new_in("/dev/shm").unwrap();
        let viper = open_keeping(dir.path(), true);
        put(&viper, 0..KEYS);
        let mut session = ViperSession::new(Arc::clone(&viper)).unwrap();
        for key in 0..KEYS {
            assert!(session.delete(&key.to_le_bytes()).unwrap());
        }
        drop(session);
        viper.reclaim().unwrap();
        let pool = viper.readable().unwrap();
        let extent = pool.extents(OWNER)[0];
        let _window = pool.window(extent.at, extent.bytes).unwrap();
        let full = viper.stats().pool_bytes;
        viper.give_room_back().unwrap();
        assert_eq!(viper.stats().pool_bytes, full);
        for at in [extent.at, extent.end() - 1] {
            assert_eq!(pool.extent_at(at), Some(extent));
        }
        assert_ne!(pool.extent_at(extent.at - 1), Some(extent));
        assert_eq!(pool.extent_at(u64::MAX), None);
    }

    /// A crash cut a hole short: the first page of each block was gone, and with it the epoch, and the other
    /// pages were there. The next life got the same number, and records of the earlier one verified in it.
    #[test]
    fn an_earlier_life_of_a_hollow_block_stays_dead() {
        let dir = TempDir::new_in("/dev/shm").unwrap();
        let (viper, before, _) = emptied(dir.path());
        let path = dir.path().join("pool/image");
        let mut image = std::fs::read(&path).unwrap();
        let hollow = viper.space.blocks.hollow.blocks.lock().clone();
        assert!(hollow.len() > 10);
        for block in hollow {
            let at = viper.space.blocks.at(block) as usize;
            let rest = at + 4096..at + viper.space.geometry.block_bytes as usize;
            assert!(image[at..rest.end].iter().all(|&byte| byte == 0));
            image[rest.clone()].copy_from_slice(&before[rest]);
        }
        drop(viper);
        std::fs::write(&path, &image).unwrap();
        let viper = open(dir.path());
        assert_eq!(viper.len(), 0);
        put(&viper, KEYS..KEYS + 60);
        // As after a kill: pages of the new life, and old bytes after them.
        let killed = TempDir::new_in("/dev/shm").unwrap();
        std::fs::create_dir(killed.path().join("pool")).unwrap();
        std::fs::copy(&path, killed.path().join("pool/image")).unwrap();
        let recovered = open(killed.path());
        assert_eq!(recovered.len(), 60);
        assert_eq!(recovered.check().unwrap().findings, []);
    }
}
