//! Room for writers: kept ahead of them, by compaction while the pool has much garbage and by growth
//! otherwise.
//!
//! Free blocks are kept in *reserve*. When writers have taken of it, the background thread fills it again. As
//! long as garbage and free blocks are a small share of the pool
//! ([`Options::reclaim_threshold`](crate::Options)), it grows the pool: to compact blocks that are nearly all
//! live would cost many moves for each write. Beyond that share the pool is *tight*: it has room enough, if
//! only it is compacted, and the blocks with the most garbage are.
//!
//! Writers of a tight pool that are faster than the background thread are in *debt* for each block they take
//! while the reserve is low. They pay before their next write, when they hold no lock: they compact a block
//! themselves or, when there is hardly any room left, wait for whoever does. Nobody waits long: if compaction
//! does not come on at all, the pool grows after all.

use super::Step;
use super::picker::{Goal, growth};
use crate::concurrency::seam::few;
use crate::concurrency::stripes::Backoff;
use crate::engine::backend::Backend;
use crate::error::Error;
use crate::viper::layout::{Geometry, Kind};
use crate::viper::session::ViperSession;
use crate::viper::{Viper, record};
use std::sync::atomic::Ordering;

/// Blocks that the background thread empties between two looks at who waits for it.
const STRIDE: usize = 16;
/// Steps after which the background thread looks at its other duties.
const STEPS_MAX: usize = 64;
/// Blocks a writer compacts at most for one that it took.
const HELP_MAX: usize = 8;
/// Times that a writer waits at most for whoever compacts: some milliseconds.
const WAITS_MAX: usize = 400;

impl Viper {
    /// Free blocks that there should be.
    fn reserve(&self) -> u64 {
        self.space.blocks.step() / 2
    }

    pub(in crate::viper) fn wants_room(&self) -> bool {
        self.space.blocks.free_count() < self.reserve()
    }

    /// Fills the reserve: the background thread's part.
    pub(in crate::viper) fn keep_room(&self) -> Result<(), Error> {
        let mut backoff = Backoff::new();
        for _ in 0..STEPS_MAX {
            if !self.wants_room() || self.space.blocks.total() == 0 || !self.is_busy() {
                return Ok(());
            }
            match self.compact_if_tight()? {
                Step::Worked => backoff = Backoff::new(),
                Step::Waiting => backoff.wait(),
                Step::Nothing => {
                    // A full disk shows when a writer needs the room.
                    let _ = self
                        .space
                        .blocks
                        .grow_ahead(growth(&self.space, self.compaction.threshold));
                    return Ok(());
                }
            }
            if self.background.is_stopping() {
                return Ok(());
            }
        }
        Ok(())
    }

    fn compact_if_tight(&self) -> Result<Step, Error> {
        if !self.compaction.by_itself {
            return Ok(Step::Nothing);
        }
        let step = self.compactor().step(self, Goal::Room, few!(STRIDE))?;
        self.compaction
            .tight
            .store(step != Step::Nothing, Ordering::Relaxed);
        Ok(step)
    }

    /// One step towards a pool with hardly any garbage and no more room than it needs, for times when nobody
    /// writes.
    pub(in crate::viper) fn make_dense(&self) -> Result<Step, Error> {
        let step = self.compactor().step(self, Goal::Dense, few!(STRIDE))?;
        if step == Step::Nothing {
            self.give_room_back()?;
        }
        Ok(step)
    }
}

/// What the crash lab compares the counters of blocks with.
#[cfg(feature = "lab")]
pub(in crate::viper) fn space(viper: &Viper) -> crate::engine::jobs::Space {
    use crate::viper::block_table::{OWNER, RESERVE};
    let block_bytes = viper.space.geometry.block_bytes;
    let extents = viper.pool.extents(OWNER);
    let whole = extents.iter().map(|extent| {
        let end = (extent.at + extent.bytes) / block_bytes;
        end.saturating_sub(extent.at.div_ceil(block_bytes))
    });
    crate::engine::jobs::Space {
        block_bytes,
        blocks: whole.sum(),
        // Those kept for compaction, and what a key takes that is longer than a block: three, and one for
        // what points to them.
        blocks_to_write: RESERVE as u64 + 3 + 1,
        is_scattered: false,
        // One of each kind that was open when space was reclaimed, and the next one if what was written then
        // did not fit into it.
        blocks_left: 3 + 1,
    }
}

impl ViperSession {
    /// The session took a block.
    pub(in crate::viper) fn took_room(&mut self) {
        let engine = &self.engine;
        if self.compaction || !engine.wants_room() {
            return;
        }
        engine.background.wake();
        self.owes = engine.compaction.tight.load(Ordering::Relaxed)
            && engine.space.blocks.free_count() < engine.reserve() / 2;
    }

    /// Pays for a block taken while there were few. Commits first: compaction needs key locks.
    #[cold]
    pub(in crate::viper) fn pay_for_room(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.owes) {
            return Ok(());
        }
        self.commit_pending()?;
        let engine = &self.engine;
        let mut backoff = Backoff::new();
        let (mut helped, mut waited) = (0, 0);
        while helped < HELP_MAX && waited < WAITS_MAX {
            let free = engine.space.blocks.free_count();
            let is_tight = engine.compaction.tight.load(Ordering::Relaxed);
            if !is_tight || free >= engine.reserve() / 2 {
                break;
            }
            let step = match engine.compaction.compactor.try_lock() {
                // What fails here meets whoever reads or compacts it.
                Some(mut compactor) => compactor
                    .step(engine, Goal::Room, 1)
                    .unwrap_or(Step::Nothing),
                None => Step::Waiting,
            };
            match step {
                Step::Worked => helped += 1,
                Step::Nothing => break,
                Step::Waiting if free >= engine.reserve() / 8 => break,
                Step::Waiting => {
                    backoff.wait();
                    waited += 1;
                }
            }
        }
        Ok(())
    }
}

/// Blocks that puts of keys and values of so many bytes can need at most, and a journal of so many.
pub(in crate::viper) fn blocks_at_most(
    geometry: &Geometry,
    puts: impl Iterator<Item = (usize, usize)>,
    journal: usize,
) -> usize {
    let rooms = [Kind::Variable, Kind::Large].map(|kind| {
        let pages = geometry.pages_of(kind);
        pages.room() * pages.count
    });
    let room = rooms.into_iter().fold(geometry.overflow_room(), u64::min) as usize;
    let mut logged = 0;
    let mut blocks = 3;
    for (key, value) in puts {
        let bytes = record::encoded_bytes(key, value, true);
        if bytes > room {
            blocks += bytes / room + 1;
            logged += record::encoded_bytes(key.min(room), record::CHAIN_BYTES, true);
        } else {
            logged += bytes;
        }
    }
    // A page may be left half empty when the next record does not fit; so may a block.
    blocks + 2 * logged / room + journal / room + 2
}
