//! Space reclamation (section 4.6): blocks with much garbage are compacted and freed while the store is in
//! use.
//!
//! For each block, the compactor takes it (`Sealed` -> `Compacting`), copies its live records into its own
//! blocks and repoints the index ([`relocate`]). It waits until no session can be at work in the block, and
//! frees it ([`retired`]). [`picker`] and [`backpressure`] decide which blocks, and when.
//!
//! There is one compactor, behind a lock. The background thread runs it, and so do sessions that need room.
//! Its steps are small, and none of them waits for readers. Only a caller of `reclaim` waits between two
//! steps, for a bounded time.
//!
//! A block with a live journal belongs to a batch being applied; it waits for the next generation.

pub(super) mod backpressure;
pub(super) mod hollow;
pub(super) mod picker;
pub(super) mod punch;
pub(super) mod relocate;
pub(super) mod retired;

use super::Viper;
use super::below::load::load_all;
use super::session::ViperSession;
use crate::concurrency::seam::few;
use crate::concurrency::stripes::Backoff;
use crate::error::Error;
use crate::options::Options;
use parking_lot::{Mutex, MutexGuard};
use picker::{Goal, victims};
use relocate::empty_block;
use retired::{RetireQueue, free_passed};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Blocks that `reclaim_all` compacts at a time.
const ROUND: usize = 64;
/// Waits for readers in a row, at most: some seconds.
const WAITS_MAX: usize = 20_000;
/// Times that a refused write makes room by eviction, which others may take.
const EVICTIONS_MAX: u32 = 16;

/// Compaction of a pool: its settings, its compactor, and its counters.
pub(super) struct Compaction {
    /// The share of garbage above which a block is compacted; above the same share of the pool, it does not
    /// grow.
    pub(super) threshold: f64,
    /// Whether compaction runs in the background without a request.
    pub(super) by_itself: bool,
    /// What waits for readers to leave before it is free.
    pub(super) retired: RetireQueue,
    /// Held by the one thread that compacts.
    compactor: Mutex<Compactor>,
    /// New room comes from compaction, not from growth; see [`backpressure`].
    tight: AtomicBool,
    /// Somebody waits until all emptied blocks are free: no others are taken before.
    is_awaited: AtomicBool,
    pub(super) blocks_reclaimed: AtomicU64,
    pub(super) bytes_moved: AtomicU64,
}

impl Compaction {
    pub(super) fn new(options: &Options) -> Compaction {
        Compaction {
            threshold: options.reclaim_threshold,
            by_itself: options.reclaim_background,
            retired: RetireQueue::default(),
            compactor: Mutex::default(),
            tight: AtomicBool::new(false),
            is_awaited: AtomicBool::new(false),
            blocks_reclaimed: AtomicU64::new(0),
            bytes_moved: AtomicU64::new(0),
        }
    }

    /// Whether somebody waits for [`Viper::settled_compactor`].
    fn is_awaited(&self) -> bool {
        self.is_awaited.load(Ordering::Relaxed)
    }
}

/// The state of compaction.
#[derive(Default)]
pub(super) struct Compactor {
    /// The goal for which the victims were chosen.
    goal: Option<Goal>,
    /// A generation: blocks to compact, the one with the most garbage last. All were full before the first of
    /// them was taken, and were chosen after every block emptied before had been freed; see
    /// [`self::retired`].
    victims: Vec<u32>,
    /// Bytes freed since the pool was opened.
    freed: u64,
}

/// The outcome of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// The step emptied or freed something.
    Worked,
    /// Emptied blocks wait for readers, and the next blocks must wait for these, or for a checkpoint.
    Waiting,
    /// No block is worth it.
    Nothing,
}

impl Compactor {
    /// Empties up to `count` blocks, and frees what no session can reach any more.
    ///
    /// # Errors
    /// Damage in one of the blocks. The others were compacted, and the next step continues after it.
    pub(super) fn step(&mut self, viper: &Viper, goal: Goal, count: usize) -> Result<Step, Error> {
        let may_choose = self.victims.is_empty() || self.goal != Some(goal);
        let is_awaited = viper.compaction.is_awaited();
        if may_choose && !is_awaited && !viper.compaction.retired.has_blocks() {
            self.goal = Some(goal);
            self.victims = chosen(viper, goal);
        }
        let is_done = self.victims.is_empty() && viper.compaction.retired.is_empty() && !is_awaited;
        // During verification, a dead record may be all that keeps an unread record dead; so it may while the
        // log is read.
        let is_reading = viper.verification.is_running() || viper.is_loading();
        if is_done || viper.healthy().is_err() || is_reading {
            return Ok(Step::Nothing);
        }
        let Some(mut session) = compacting_session(viper)? else {
            return Ok(Step::Nothing);
        };
        let count = if self.goal == Some(goal) { count } else { 0 };
        let outcome = self.empty_some(viper, &mut session, count);
        let freed = self.free(viper, &mut session);
        match outcome? {
            0 if freed > 0 => Ok(Step::Worked),
            0 if viper.compaction.retired.is_empty() && !is_awaited => Ok(Step::Nothing),
            0 => Ok(Step::Waiting),
            _ => Ok(Step::Worked),
        }
    }

    /// Frees what no session can reach any more. Returns the bytes freed.
    pub(super) fn free_passed(&mut self, viper: &Viper) -> Result<u64, Error> {
        if viper.compaction.retired.is_empty() {
            return Ok(0);
        }
        let session = compacting_session(viper)?;
        let freed = session.map(|mut session| self.free(viper, &mut session));
        Ok(freed.unwrap_or(0))
    }

    fn free(&mut self, viper: &Viper, session: &mut ViperSession) -> u64 {
        let freed = free_passed(viper, session);
        self.freed += freed;
        freed
    }

    /// Whether all emptied blocks are free, after freeing what can be.
    fn has_settled(&mut self, viper: &Viper) -> Result<bool, Error> {
        self.free_passed(viper)?;
        Ok(!viper.compaction.retired.has_blocks())
    }

    /// Whether the next step chooses new victims.
    fn is_between_generations(&self, viper: &Viper) -> bool {
        self.victims.is_empty() && !viper.compaction.retired.has_blocks()
    }

    /// Empties up to `count` victims; returns how many it emptied. Without room for copies it stops, and a
    /// later step continues with the room of the blocks that are freed. If none will be, it drops the
    /// generation.
    fn empty_some(
        &mut self,
        viper: &Viper,
        session: &mut ViperSession,
        count: usize,
    ) -> Result<usize, Error> {
        if count == 0 || self.victims.is_empty() {
            return Ok(0);
        }
        let is_first = !viper.compaction.retired.has_blocks();
        let mut emptied = viper.compaction.retired.gather(&viper.epochs);
        let mut outcome = Ok(());
        let evicts = self.goal == Some(Goal::Evict);
        if let Some(below) = viper.below.as_ref().filter(|_| is_first) {
            below.note_freed();
        }
        let below = viper.below.as_ref();
        let mut batch = below.map(|below| below.batch(&viper.halted, evicts));
        for _ in 0..count {
            let Some(block) = self.victims.pop() else {
                break;
            };
            match empty_block(viper, session, block, batch.as_mut()) {
                // It is empty once the batch is whole.
                Ok(Some(_)) if batch.is_some() => {}
                Ok(Some(info)) => emptied.push(block, info),
                Ok(None) => {}
                Err(Error::NoSpace(_)) => {
                    if emptied.count() == 0 && is_first {
                        self.victims.clear();
                    }
                    break;
                }
                // A damaged block does not stop the compaction of the others.
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        if let Some(batch) = batch {
            match batch.finish(viper, session) {
                Ok(blocks) => blocks
                    .into_iter()
                    .for_each(|(block, info)| emptied.push(block, info)),
                Err(error) => outcome = outcome.and(Err(error)),
            }
        }
        outcome.map(|()| emptied.count())
    }
}

/// The blocks of the next generation, the first one last.
fn chosen(viper: &Viper, goal: Goal) -> Vec<u32> {
    let threshold = viper.compaction.threshold;
    match (goal, &viper.below) {
        (Goal::Evict, Some(below)) => {
            let count = picker::evicted_at_once(&viper.space);
            below.ages.victims(&viper.space, count)
        }
        // What was written last is most of the garbage soon, and what of it is not read leaves: neither is
        // worth moving. Moved records would also count as kept ones.
        (Goal::Room, Some(below)) if below.may_be_needed(&viper.space) => {
            let most = below.unused_max(threshold);
            let found = victims(&viper.space, goal, most, |block| below.ages.is_trial(block));
            match found.is_empty() {
                // Unless the pool has room for what is in it: then nothing has to leave.
                true => victims(&viper.space, goal, below.roomy(), |_| false),
                false => found,
            }
        }
        _ => victims(&viper.space, goal, threshold, |_| false),
    }
}

/// A session that may use the reserve of free blocks; `None`: the engine is going away.
fn compacting_session(viper: &Viper) -> Result<Option<ViperSession>, Error> {
    let Some(engine) = viper.myself() else {
        return Ok(None);
    };
    let mut session = ViperSession::new(engine)?;
    session.compaction = true;
    Ok(Some(session))
}

/// Compacts until no block is worth it, and frees everything retired. Returns the bytes that any thread freed
/// meanwhile. The caller holds no pin. If readers stay pinned, it stops waiting for them after a while.
pub(super) fn reclaim_all(viper: &Viper) -> Result<u64, Error> {
    if let Some(viper) = viper.myself() {
        // Blocks that are unverified since a restart cannot be compacted.
        super::checkpoint::verify::verify_all(&viper)?;
        load_all(&viper)?;
    }
    let before = viper.compactor().freed;
    let mut free = None;
    let (mut backoff, mut waits) = (Backoff::new(), 0);
    let freed = loop {
        let mut compactor = viper.compactor();
        if compactor.is_between_generations(viper) && !viper.compaction.is_awaited() {
            let now = viper.space.blocks.free_count();
            if free.is_none_or(|before| now > before) {
                free = Some(now);
            } else if viper.compaction.retired.is_empty() || waits == WAITS_MAX {
                // A generation that used as much room as it made was not worth it.
                break compactor.freed;
            } else {
                // Chains wait for readers.
                compactor.free_passed(viper)?;
                drop(compactor);
                backoff.wait();
                waits += 1;
                continue;
            }
        }
        let step = compactor.step(viper, Goal::Threshold, few!(ROUND))?;
        let freed = compactor.freed;
        drop(compactor);
        match step {
            Step::Worked => (backoff, waits) = (Backoff::new(), 0),
            Step::Waiting if waits < WAITS_MAX => {
                backoff.wait();
                waits += 1;
            }
            Step::Waiting | Step::Nothing => break freed,
        }
    };
    Ok(freed - before)
}

impl Viper {
    /// Waits for the compactor and locks it. The wait must not block: under the lab's scheduler, the holder
    /// may be suspended.
    pub(super) fn compactor(&self) -> MutexGuard<'_, Compactor> {
        let mut backoff = Backoff::new();
        loop {
            match self.compaction.compactor.try_lock() {
                Some(compactor) => return compactor,
                None => backoff.wait(),
            }
        }
    }

    /// As [`Viper::compactor`], at a time when all emptied blocks are free; `None`: readers stay pinned for
    /// seconds. One thread waits like this at a time: the one that writes a checkpoint.
    pub(super) fn settled_compactor(&self) -> Result<Option<MutexGuard<'_, Compactor>>, Error> {
        let mut backoff = Backoff::new();
        self.compaction.is_awaited.store(true, Ordering::Relaxed);
        let settled = (0..WAITS_MAX).find_map(|_| {
            let mut compactor = self.compactor();
            match compactor.has_settled(self) {
                Ok(true) => Some(Ok(compactor)),
                Err(error) => Some(Err(error)),
                Ok(false) => {
                    drop(compactor);
                    backoff.wait();
                    None
                }
            }
        });
        self.compaction.is_awaited.store(false, Ordering::Relaxed);
        settled.transpose()
    }

    /// Makes room after a write of `bytes` was refused for want of it. Whether the write is worth another
    /// try: also if other threads made room since the last attempt, at which `seen` bytes were freed in all.
    /// They may make all the room there is to make.
    pub(super) fn make_room(&self, bytes: u64, attempt: u32, seen: &mut u64) -> bool {
        // However often others make room, this will not fit, unless it is less than it seems: a batch may
        // write a key twice.
        if attempt > 0 && !self.space.blocks.could_hold(bytes) {
            return false;
        }
        let made = match self.below {
            // More each time: a batch needs room for its journal, too.
            Some(_) => attempt < EVICTIONS_MAX && self.evict_for(bytes * (u64::from(attempt) + 1)),
            None => {
                let reclaimed = self.epochs.without_leases(|| reclaim_all(self));
                attempt == 0 && reclaimed.is_ok()
            }
        };
        let freed = self.compactor().freed;
        let more = freed > std::mem::replace(seen, freed);
        // A slower restart is better than a refused write.
        made || more || super::checkpoint::give_way(self)
    }

    /// Whether a log below is still being read.
    pub(super) fn is_loading(&self) -> bool {
        let below = self.below.as_ref();
        below.is_some_and(|below| below.loading.is_running())
    }

    pub(super) fn myself(&self) -> Option<Arc<Viper>> {
        self.weak.upgrade()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::EngineSession;
    use crate::engine::backend::Backend;
    use crate::engine::kind::EngineKind;
    use crate::options::Options;
    use crate::viper::layout::Geometry;
    use everdram_pm::Pool;
    use std::path::Path;
    use std::time::{Duration, Instant};

    fn viper() -> Arc<Viper> {
        let options = Options {
            initial_bytes: 1 << 20,
            chunk_bytes: 1 << 20,
            max_bytes: 8 << 20,
            reclaim_background: false,
            ..Options::default()
        };
        let geometry = Geometry::new(4096, 6, None).unwrap();
        let pool = Pool::heap(8 << 20, EngineKind::Viper.number(), geometry.to_words());
        Viper::over(pool, Path::new("heap"), &options).unwrap()
    }

    fn overwrite_a_few_blocks(viper: &Arc<Viper>) {
        let mut session = ViperSession::new(Arc::clone(viper)).unwrap();
        for round in 0..3u8 {
            for number in 0..200u32 {
                session
                    .put(&number.to_le_bytes(), &[round; 400], 0)
                    .unwrap();
            }
        }
        session.commit_pending().unwrap();
    }

    #[test]
    fn spared_blocks_are_not_chosen() {
        let viper = viper();
        overwrite_a_few_blocks(&viper);
        let chosen = |spares: bool| victims(&viper.space, Goal::Room, 0.05, |_| spares);
        assert!(!chosen(false).is_empty() && chosen(true).is_empty());
    }

    /// A reader that found a location before compaction moved its record may still read there. The block
    /// stays as it is until the reader has gone.
    #[test]
    fn a_block_is_not_freed_under_a_reader() {
        let viper = viper();
        overwrite_a_few_blocks(&viper);
        let reader = viper.epochs.register().unwrap();
        let pin = reader.pin();
        let before = viper.epochs.current();
        std::thread::scope(|scope| {
            let compaction = scope.spawn(|| reclaim_all(&viper).unwrap());
            // Compaction gets as far as it can: all records are moved, and the epoch has begun in which no
            // reader can find the old copies.
            while viper.epochs.current() == before && !compaction.is_finished() {
                std::thread::yield_now();
            }
            assert!(viper.compaction.bytes_moved.load(Ordering::Relaxed) > 0);
            let begun = Instant::now();
            while begun.elapsed() < Duration::from_millis(100) {
                assert_eq!(viper.compaction.blocks_reclaimed.load(Ordering::Relaxed), 0);
                std::thread::yield_now();
            }
            drop(pin);
            assert!(compaction.join().unwrap() > 0);
        });
        assert!(viper.compaction.blocks_reclaimed.load(Ordering::Relaxed) > 0);
    }
}
