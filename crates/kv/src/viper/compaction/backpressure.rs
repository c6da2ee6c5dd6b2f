//! Room for writers: the background thread keeps it ahead of them, by compaction while the pool has much
//! garbage and by growth otherwise.
//!
//! Free blocks are kept in *reserve*; when writers use it, the background thread refills it. As long as
//! garbage and free blocks are a small share of the pool ([`Options::reclaim_threshold`](crate::Options)), it
//! grows the pool. Compacting blocks that are nearly all live would cost many moves for each write. Beyond
//! that share the pool is *tight*: it has enough room once it is compacted, so the blocks with the most
//! garbage are.
//!
//! A writer of a tight pool owes a *debt* for each block it takes while the reserve is low. It pays before
//! its next write, when it holds no lock. It compacts a block itself or, when hardly any room is left, waits
//! for the thread that compacts. The wait is bounded: if compaction makes no progress, the pool grows after
//! all.

use super::Step;
use super::picker::{Goal, growth};
use crate::concurrency::seam::few;
use crate::concurrency::stripes::Backoff;
use crate::engine::backend::Backend;
use crate::error::Error;
use crate::viper::below::Below;
use crate::viper::block_table::RESERVE;
use crate::viper::layout::{Geometry, Kind};
use crate::viper::session::ViperSession;
use crate::viper::{Viper, record};
use std::sync::atomic::Ordering;

/// Blocks that the background thread empties before it looks again whether more room is wanted.
const STRIDE: usize = 16;
/// Steps after which the background thread looks at its other duties.
const STEPS_MAX: usize = 64;
/// Blocks from which on a writer has compacted enough for one that it took. With a tier below, one step has
/// more: each has a sync, and eight of them keep a writer for 40 ms.
const HELP_MAX: usize = 8;
/// Waits of a writer for the thread that compacts, at most: some milliseconds.
const WAITS_MAX: usize = 400;
/// Blocks from which records leave to the tier below in one batch.
const EVICTED: usize = 64;
/// Waits of a refused write for readers: some seconds, as a reader may be without a core on a busy machine.
const EVICTION_WAITS_MAX: usize = 50_000;

impl Viper {
    /// The number of free blocks to keep.
    pub(in crate::viper) fn reserve(&self) -> u64 {
        let blocks = &self.space.blocks;
        match &self.below {
            None => blocks.step() / 2,
            Some(below) => (blocks.total() as f64 * below.free) as u64 + 2 * RESERVE as u64,
        }
    }

    pub(in crate::viper) fn wants_room(&self) -> bool {
        self.space.blocks.free_count() < self.reserve()
    }

    /// Whether somebody refills the reserve.
    pub(in crate::viper) fn is_making_room(&self) -> bool {
        self.wants_room() && self.compaction.compactor.is_locked()
    }

    /// Whether writers help to refill the reserve.
    pub(in crate::viper) fn is_short_of_room(&self) -> bool {
        self.space.blocks.free_count() < self.reserve() / 2
    }

    /// Refills the reserve; the background thread calls this.
    pub(in crate::viper) fn keep_room(&self) -> Result<(), Error> {
        let mut backoff = Backoff::new();
        for _ in 0..STEPS_MAX {
            if !self.wants_room() || self.space.blocks.total() == 0 || !self.is_busy() {
                return Ok(());
            }
            match self.compact_if_tight()? {
                Step::Worked => backoff = Backoff::new(),
                Step::Waiting => backoff.wait(),
                Step::Nothing if self.below.is_some() => {
                    let blocks = &self.space.blocks;
                    let step = growth(&self.space, self.compaction.threshold);
                    if blocks.grow_ahead(step).is_ok() {
                        continue;
                    }
                    match self.evict_some()? {
                        Step::Worked => backoff = Backoff::new(),
                        Step::Waiting => backoff.wait(),
                        Step::Nothing => return Ok(()),
                    }
                }
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
        self.note_tight(step);
        Ok(step)
    }

    /// Lets records leave to the tier below.
    fn evict_some(&self) -> Result<Step, Error> {
        if !self.compaction.by_itself {
            return Ok(Step::Nothing);
        }
        let step = self.compactor().step(self, Goal::Evict, few!(EVICTED))?;
        self.note_tight(step);
        Ok(step)
    }

    fn note_tight(&self, step: Step) {
        // Of a step that had to wait for a checkpoint, nothing follows.
        if !self.compaction.is_awaited() {
            let is_tight = step != Step::Nothing;
            self.compaction.tight.store(is_tight, Ordering::Relaxed);
        }
    }

    /// Lets records leave to the tier below until there is room for a write of `bytes`; `false` if there is
    /// none after a while, or the log has no room.
    pub(in crate::viper) fn evict_for(&self, bytes: u64) -> bool {
        let blocks = &self.space.blocks;
        let lengths = std::iter::once((0, bytes as usize));
        let wanted = blocks_at_most(&self.space.geometry, lengths, 0) as u64 + RESERVE as u64;
        let mut backoff = Backoff::new();
        let (mut waits, mut goal) = (0, Goal::Room);
        while blocks.free_count() < wanted {
            let step = self.compactor().step(self, goal, few!(EVICTED));
            match (step, goal) {
                (Ok(Step::Worked), _) => (backoff, waits) = (Backoff::new(), 0),
                (Ok(Step::Waiting), _) if waits < EVICTION_WAITS_MAX => {
                    backoff.wait();
                    waits += 1;
                }
                // Hardly any garbage is left: records have to leave.
                (Ok(Step::Nothing), Goal::Room) => goal = Goal::Evict,
                _ => return blocks.free_count() > RESERVE as u64,
            }
        }
        true
    }

    /// One step towards a pool with hardly any garbage and no more room than it needs, for quiet times.
    pub(in crate::viper) fn make_dense(&self) -> Result<Step, Error> {
        let step = self.compactor().step(self, Goal::Dense, few!(STRIDE))?;
        if step == Step::Nothing {
            self.give_room_back()?;
        }
        Ok(step)
    }
}

/// The space that the crash lab compares with the counters of blocks.
#[cfg(feature = "lab")]
pub(in crate::viper) fn space(viper: &Viper) -> crate::engine::jobs::Space {
    use crate::viper::block_table::OWNER;
    let block_bytes = viper.space.geometry.block_bytes;
    let extents = viper.pool.extents(OWNER);
    let whole = extents.iter().map(|extent| {
        let end = (extent.at + extent.bytes) / block_bytes;
        end.saturating_sub(extent.at.div_ceil(block_bytes))
    });
    crate::engine::jobs::Space {
        block_bytes,
        blocks: whole.sum(),
        // The reserve of compaction, and the blocks of a key that is longer than a block: three, and one for
        // the record that points to them.
        blocks_to_write: RESERVE as u64 + 3 + 1,
        is_scattered: false,
        // One open block of each kind, and the next one if the last write before the reclaim did not fit.
        blocks_left: 3 + 1,
    }
}

impl ViperSession {
    /// Notes that the session took a block.
    pub(in crate::viper) fn took_room(&mut self) {
        let engine = &self.engine;
        if self.compaction || !engine.wants_room() {
            return;
        }
        engine.background.wake();
        self.owes = engine.compaction.tight.load(Ordering::Relaxed) && engine.is_short_of_room();
    }

    /// Pays for a block taken while few were free. Commits first: compaction needs key locks.
    #[cold]
    pub(in crate::viper) fn pay_for_room(&mut self) -> Result<(), Error> {
        if !std::mem::take(&mut self.owes) {
            return Ok(());
        }
        self.commit_pending()?;
        let engine = &self.engine;
        let mut backoff = Backoff::new();
        let (mut helped, mut waited) = (0, 0);
        let mut goal = Goal::Room;
        let count = engine.below.as_ref().map_or(1, |_| few!(STRIDE));
        while helped < HELP_MAX && waited < WAITS_MAX {
            let free = engine.space.blocks.free_count();
            let is_tight = engine.compaction.tight.load(Ordering::Relaxed);
            if !is_tight || free >= engine.reserve() / 2 {
                break;
            }
            // The disk of the log may take its time for what another thread has appended.
            let is_waiting = engine.below.as_ref().is_some_and(Below::is_appending);
            let compactor = match is_waiting && free >= engine.reserve() / 8 {
                true => None,
                false => engine.compaction.compactor.try_lock(),
            };
            let step = match compactor {
                // The next reader or compactor of the damaged block gets the error.
                Some(mut compactor) => compactor.step(engine, goal, count).unwrap_or(Step::Nothing),
                None => Step::Waiting,
            };
            match step {
                // Where hardly any room is left, a step is not enough.
                Step::Worked if free < engine.reserve() / 8 => helped += 1,
                Step::Worked => helped += count,
                // Without garbage the pool grows, or records leave.
                Step::Nothing if engine.below.is_some() && goal != Goal::Evict => {
                    let more = growth(&engine.space, engine.compaction.threshold);
                    if engine.space.blocks.grow_ahead(more).is_ok() {
                        break;
                    }
                    goal = Goal::Evict;
                }
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

/// Blocks that puts of keys and values of these lengths need at most, with a journal of `journal` bytes.
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
    // A page or block may stay half empty if the next record does not fit.
    blocks + 2 * logged / room + journal / room + 2
}
