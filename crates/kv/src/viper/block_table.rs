//! The block table: DRAM's state of every block, and who may write it (V4, V5, V14).
//!
//! Blocks are numbered by their place: block `n` starts at byte `n * block_bytes` of the pool. The table is
//! rebuilt by recovery; nothing in it is persistent.
//!
//! ```text
//!   Free ──claim──> Open ──seal──> Sealed ──> Compacting ──grace──> Free
//!    └──claim──> Overflow ──retire──grace──> Free
//!    └──claim──> Checkpoint ──next checkpoint──> Free
//!    └──lend──> Lent ──adopt──> Overflow
//!                └──take back──> Free
//! ```
//! After a restart with a checkpoint of the index, a block that the checkpoint knows begins as `Unverified`.
//! It is sealed, and becomes `Sealed` once it has been read.
//!
//! A block becomes `Free` only when its free page word is durable (ordered before the next stores into it).
//! Nor may any reader still hold a location in it.

use super::compaction::hollow::Hollow;
use super::layout::{Geometry, Kind};
use crate::concurrency::seam::publishes;
use crate::error::Error;
use everdram_pm::{Lsn, Ordered, Pool};
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

/// The owner number of the engine's extents in the superblock.
pub(crate) const OWNER: u32 = 1;
/// Blocks that only compaction may take, so that a full pool can still free space.
pub(super) const RESERVE: usize = 4;
/// The least that a pool grows by, unless its chunks are smaller.
const STEP_BYTES_MIN: u64 = 16 << 20;
/// Bytes that extents are multiples of.
const POOL_PAGE: u64 = 4096;
const CHUNK: usize = if cfg!(miri) { 1 << 6 } else { 1 << 14 };

/// The state of a block in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// Not in any extent, or without room on the medium; see `compaction/punch.rs`.
    Outside = 0,
    /// In the free list.
    Free = 1,
    /// A session writes records into it.
    Open = 2,
    /// Full; its tail words are durable.
    Sealed = 3,
    /// Being compacted, or waiting for its grace period.
    Compacting = 4,
    /// A piece of a chained value.
    Overflow = 5,
    /// As `Sealed`; known from a checkpoint and not read since. The index may still hold some of its records
    /// that were marked dead before the restart.
    Unverified = 6,
    /// A piece of the index checkpoint.
    Checkpoint = 7,
    /// A remote client may write into it. In the pool it is as free as before: no life of it has begun.
    Lent = 8,
}

impl State {
    /// The transitions of a block. Recovery and growth enter it from outside, a session opens and seals it,
    /// and compaction empties it. It becomes free once no reader can reach it.
    fn may_become(self, to: State) -> bool {
        use State::{
            Checkpoint, Compacting, Free, Lent, Open, Outside, Overflow, Sealed, Unverified,
        };
        match (self, to) {
            (from, to) if from == to => true,
            (Outside, _) => true,
            (Free, Open | Overflow | Checkpoint | Outside | Lent) => true,
            (Lent, Overflow | Free) => true,
            (Open, Sealed) => true,
            (Sealed, Compacting) => true,
            (Compacting, Sealed | Free) => true,
            (Overflow, Free) => true,
            // These states come from a checkpoint, whose bytes may be wrong. Recovery may discard it and
            // enter others.
            (Unverified | Checkpoint, _) => true,
            _ => false,
        }
    }
}

/// DRAM's state of one block.
#[derive(Default)]
pub(crate) struct Block {
    /// state 0..8 | kind 8..16 | epoch 16..48
    word: AtomicU64,
    /// Bytes of records.
    filled: AtomicU32,
    /// While the block is open: bytes up to the last fenced record. Whole pages count, in the order in which
    /// they are filled.
    written: AtomicU32,
    /// Bytes of dead records, and `slack`.
    garbage: AtomicU32,
    /// Room that counts as garbage because the block was sealed early.
    slack: AtomicU32,
    /// Part of some record's key lies outside the block.
    long_keys: AtomicBool,
    /// Records in the block; 0 = not counted.
    records: AtomicU32,
}

/// State, kind and epoch of a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) state: State,
    pub(crate) kind: Kind,
    pub(crate) epoch: u32,
}

impl Block {
    #[inline]
    pub(crate) fn info(&self) -> Info {
        let word = self.word.load(Ordering::Acquire);
        let state = match word as u8 {
            1 => State::Free,
            2 => State::Open,
            3 => State::Sealed,
            4 => State::Compacting,
            5 => State::Overflow,
            6 => State::Unverified,
            7 => State::Checkpoint,
            8 => State::Lent,
            _ => State::Outside,
        };
        let kind = Kind::from_byte((word >> 8) as u8).unwrap_or(Kind::Free);
        Info {
            state,
            kind,
            epoch: (word >> 16) as u32,
        }
    }

    /// The epoch of the block, if it is of one of these kinds and has records that whoever finds them may
    /// read without a look at their marks: [`State::Open`], [`State::Sealed`] or [`State::Compacting`].
    #[inline(always)]
    pub(crate) fn epoch_of(&self, kinds: &[Kind]) -> Option<u32> {
        const _: () = assert!(
            State::Open as u8 == 2 && State::Sealed as u8 == 3 && State::Compacting as u8 == 4
        );
        let word = self.word.load(Ordering::Acquire);
        let has_records = (State::Open as u8..=State::Compacting as u8).contains(&(word as u8));
        let is_one = kinds.iter().any(|&kind| (word >> 8) as u8 == kind as u8);
        (has_records && is_one).then_some((word >> 16) as u32)
    }

    /// Sets the block's state. Only its owner or recovery may call this; others use [`Block::swap`].
    ///
    /// # Panics
    /// If the block cannot enter that state next.
    pub(crate) fn set(&self, info: Info) {
        let from = self.info().state;
        assert!(
            from.may_become(info.state),
            "a block that is {from:?} cannot become {:?}",
            info.state
        );
        let word = info.state as u64 | (info.kind as u64) << 8 | u64::from(info.epoch) << 16;
        self.word.store(word, Ordering::Release);
    }

    /// Moves from `from` to `to`; false if the block has left `from`.
    pub(crate) fn advance(&self, from: Info, to: State) -> bool {
        self.swap(from, Info { state: to, ..from })
    }

    /// Replaces exactly `from`.
    pub(crate) fn swap(&self, from: Info, to: Info) -> bool {
        assert!(
            from.state.may_become(to.state),
            "a block that is {from:?} cannot become {to:?}"
        );
        publishes!();
        let pack = |i: Info| i.state as u64 | (i.kind as u64) << 8 | u64::from(i.epoch) << 16;
        self.word
            .compare_exchange(pack(from), pack(to), Ordering::AcqRel, Ordering::Relaxed)
            .is_ok()
    }

    pub(crate) fn filled(&self) -> u32 {
        self.filled.load(Ordering::Relaxed)
    }

    pub(crate) fn set_filled(&self, bytes: u32) {
        self.filled.store(bytes, Ordering::Relaxed);
    }

    pub(crate) fn written(&self) -> u32 {
        self.written.load(Ordering::Acquire)
    }

    pub(crate) fn set_written(&self, bytes: u32) {
        self.written.store(bytes, Ordering::Release);
    }

    pub(crate) fn records(&self) -> u32 {
        self.records.load(Ordering::Relaxed)
    }

    pub(crate) fn set_records(&self, count: u32) {
        self.records.store(count, Ordering::Relaxed);
    }

    /// Bytes of live records; 0 while the block is open.
    pub(crate) fn live(&self) -> u32 {
        let dead = self
            .garbage()
            .saturating_sub(self.slack.load(Ordering::Relaxed));
        self.filled().saturating_sub(dead)
    }

    /// Counts unused room as garbage.
    pub(crate) fn set_slack(&self, bytes: u32) {
        self.slack.store(bytes, Ordering::Relaxed);
        self.add_garbage(bytes);
    }

    /// Whether some record's key lies with its value in overflow blocks, and is freed with it.
    pub(crate) fn has_long_keys(&self) -> bool {
        self.long_keys.load(Ordering::Relaxed)
    }

    pub(crate) fn set_long_keys(&self, has: bool) {
        self.long_keys.store(has, Ordering::Relaxed);
    }

    pub(crate) fn garbage(&self) -> u32 {
        self.garbage.load(Ordering::Relaxed)
    }

    #[inline]
    pub(crate) fn add_garbage(&self, bytes: u32) {
        self.garbage.fetch_add(bytes, Ordering::Relaxed);
    }

    pub(crate) fn set_garbage(&self, bytes: u32) {
        self.garbage.store(bytes, Ordering::Relaxed);
    }
}

/// All blocks of a pool.
pub(crate) struct Blocks {
    pub(super) pool: Arc<Pool>,
    geometry: Geometry,
    chunks: Box<[OnceLock<Box<[Block]>>]>,
    free: Mutex<FreeList>,
    /// Length of the free list, readable without its lock.
    free_count: AtomicU64,
    /// Blocks that were claimed since the pool was opened.
    claims: AtomicU64,
    total: AtomicU64,
    max_blocks: u64,
    chunk_bytes: u64,
    growing: AtomicBool,
    /// How often the pool grew.
    grown: AtomicU64,
    pub(super) hollow: Hollow,
    /// 2^64 by the bytes of a block, rounded up.
    reciprocal: u64,
}

#[derive(Default)]
struct FreeList {
    /// Reused and fresh blocks, as a stack: the most recently written ones are likeliest in caches.
    blocks: Vec<u32>,
    /// The extents' blocks, in order: (first, count).
    ranges: Vec<(u64, u64)>,
}

impl Blocks {
    pub(crate) fn new(
        pool: Arc<Pool>,
        geometry: Geometry,
        max_bytes: u64,
        chunk_bytes: u64,
    ) -> Blocks {
        let max_blocks = (max_bytes / geometry.block_bytes + 8).min(u64::from(u32::MAX));
        let chunks = (0..(max_blocks as usize).div_ceil(CHUNK))
            .map(|_| OnceLock::new())
            .collect();
        let chunk_bytes =
            (chunk_bytes / geometry.block_bytes).max(RESERVE as u64 * 4) * geometry.block_bytes;
        Blocks {
            pool,
            geometry,
            chunks,
            free: Mutex::default(),
            free_count: AtomicU64::new(0),
            claims: AtomicU64::new(0),
            total: AtomicU64::new(0),
            max_blocks,
            chunk_bytes,
            growing: AtomicBool::new(false),
            grown: AtomicU64::new(0),
            hollow: Hollow::default(),
            // Blocks have many pages of many bytes.
            reciprocal: (1u128 << 64).div_ceil(u128::from(geometry.block_bytes)) as u64,
        }
    }

    /// The block of byte `at` of the pool, by multiplication. Offsets stay below 2^43 and blocks below 2^24
    /// bytes; there the rounded-up reciprocal is exact enough.
    #[inline]
    pub(crate) fn number(&self, at: u64) -> u32 {
        let guess = ((u128::from(at) * u128::from(self.reciprocal)) >> 64) as u64;
        let exact = if guess * self.geometry.block_bytes > at {
            guess - 1
        } else {
            guess
        };
        debug_assert!(
            at >> 43 != 0 || exact == at / self.geometry.block_bytes,
            "the reciprocal of a block's bytes is too coarse"
        );
        exact as u32
    }

    /// First byte of a block.
    #[inline]
    pub(crate) fn at(&self, block: u32) -> u64 {
        u64::from(block) * self.geometry.block_bytes
    }

    /// The entry of a block; `None` outside the pool.
    #[inline]
    pub(crate) fn get(&self, block: u32) -> Option<&Block> {
        self.chunks
            .get(block as usize / CHUNK)?
            .get()?
            .get(block as usize % CHUNK)
    }

    /// Enters the blocks of an extent (a new one or, at open, an old one) as `Outside`.
    pub(crate) fn add_range(&self, at: u64, bytes: u64) -> std::ops::Range<u32> {
        let first = at.div_ceil(self.geometry.block_bytes);
        let count = ((at + bytes) / self.geometry.block_bytes).saturating_sub(first);
        let count = count.min(self.max_blocks.saturating_sub(first));
        assert!(
            first + count <= u64::from(u32::MAX) + 1 || count == 0,
            "the number of a block has more than 32 bits"
        );
        for chunk in (first as usize / CHUNK)..=((first + count) as usize / CHUNK) {
            if let Some(cell) = self.chunks.get(chunk) {
                let blocks = CHUNK.min((self.max_blocks as usize).saturating_sub(chunk * CHUNK));
                cell.get_or_init(|| (0..blocks).map(|_| Block::default()).collect());
            }
        }
        self.free.lock().ranges.push((first, count));
        self.total.fetch_add(count, Ordering::Relaxed);
        first as u32..(first + count) as u32
    }

    /// The blocks of every extent, by number.
    pub(crate) fn ranges(&self) -> Vec<std::ops::Range<u32>> {
        let list = self.free.lock();
        list.ranges
            .iter()
            .map(|&(first, count)| first as u32..(first + count) as u32)
            .collect()
    }

    /// Touches every page of every extent, huge ones where there can be some.
    pub(crate) fn prefault(&self) {
        for range in self.ranges() {
            let (first, end) = (self.at(range.start), self.at(range.end));
            self.pool.collapse(first, end - first);
            self.pool.prefault(first, end - first);
        }
    }

    /// Every block of every extent.
    pub(crate) fn all(&self) -> impl Iterator<Item = u32> {
        self.ranges().into_iter().flatten()
    }

    pub(crate) fn total(&self) -> u64 {
        self.total.load(Ordering::Relaxed)
    }

    pub(crate) fn free_count(&self) -> u64 {
        self.free_count.load(Ordering::Relaxed)
    }

    pub(crate) fn claims(&self) -> u64 {
        self.claims.load(Ordering::Relaxed)
    }

    /// Frees a block whose last life was `epoch`. After the fence `after`, recovery needs nothing in the
    /// block.
    ///
    /// # Panics
    /// If the block is free already.
    pub(crate) fn release(&self, block: u32, epoch: u32, _after: &Ordered) {
        publishes!();
        let Some(entry) = self.get(block) else { return };
        let state = entry.info().state;
        assert_ne!(state, State::Free, "block {block} is freed twice");
        self.make_free(block, entry, epoch);
    }

    fn make_free(&self, block: u32, entry: &Block, epoch: u32) {
        entry.set_filled(0);
        entry.set_records(0);
        entry.set_slack(0);
        entry.set_garbage(0);
        entry.set_long_keys(false);
        entry.set(Info {
            state: State::Free,
            kind: Kind::Free,
            epoch,
        });
        let mut list = self.free.lock();
        list.blocks.push(block);
        self.free_count
            .store(list.blocks.len() as u64, Ordering::Relaxed);
    }

    /// Returns a claimed or lent block in which no life has begun.
    ///
    /// # Panics
    /// If a life has begun.
    pub(crate) fn give_back(&self, block: u32) {
        publishes!();
        let Some(entry) = self.get(block) else { return };
        let Info { state, epoch, .. } = entry.info();
        assert!(
            matches!(state, State::Free | State::Lent),
            "block {block} has begun a life"
        );
        self.make_free(block, entry, epoch);
    }

    /// Takes `count` blocks for a remote client, if `floor` free ones are left for everybody else; returns
    /// whether it did. The pool does not grow for that.
    pub(super) fn lend(&self, count: usize, floor: usize, out: &mut Vec<u32>) -> bool {
        let mut list = self.free.lock();
        let Some(rest) = list.blocks.len().checked_sub(count) else {
            return false;
        };
        if rest < floor {
            return false;
        }
        for block in list.blocks.drain(rest..).rev() {
            if let Some(entry) = self.get(block) {
                let info = entry.info();
                assert_eq!(info.state, State::Free, "block {block} is not free");
                entry.set(Info {
                    state: State::Lent,
                    ..info
                });
            }
            out.push(block);
        }
        self.free_count.store(rest as u64, Ordering::Relaxed);
        self.claims.fetch_add(count as u64, Ordering::Relaxed);
        true
    }

    /// The epoch of a claimed block's next life.
    pub(crate) fn next_epoch(&self, block: u32) -> u32 {
        self.get(block)
            .map_or(0, |entry| entry.info().epoch)
            .wrapping_add(1)
    }

    /// Takes `count` blocks from the free list, or none. `compaction` may use the reserve.
    ///
    /// # Errors
    /// [`Error::NoSpace`] if there are too few and the pool cannot grow.
    pub(crate) fn claim(
        &self,
        count: usize,
        compaction: bool,
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let keep = if compaction { 0 } else { RESERVE };
        loop {
            {
                let mut list = self.free.lock();
                if list.blocks.len() >= count + keep {
                    let rest = list.blocks.len() - count;
                    for block in list.blocks.drain(rest..).rev() {
                        let state = self.get(block).map(|entry| entry.info().state);
                        assert_eq!(state, Some(State::Free), "block {block} is not free");
                        out.push(block);
                    }
                    self.free_count.store(rest as u64, Ordering::Relaxed);
                    self.claims.fetch_add(count as u64, Ordering::Relaxed);
                    return Ok(());
                }
            }
            self.grow((count + keep) as u64)?;
        }
    }

    /// Blocks by which the pool grows ahead of its writers: an eighth of the pool, within limits that keep
    /// growth rare. So a small pool does not get much more room than it needs.
    pub(crate) fn step(&self) -> u64 {
        let least = STEP_BYTES_MIN.min(self.chunk_bytes);
        let bytes = (self.total() * self.geometry.block_bytes / 8).clamp(least, self.chunk_bytes);
        bytes / self.geometry.block_bytes
    }

    /// Whether all blocks that the pool may have could hold so many bytes.
    pub(super) fn could_hold(&self, bytes: u64) -> bool {
        bytes / self.geometry.block_bytes < self.max_blocks.max(self.total())
    }

    /// Whether the pool has more than half of the blocks that it may have.
    pub(super) fn is_half_grown(&self) -> bool {
        self.total() * 2 > self.max_blocks
    }

    /// Grows the pool by part of a step (at least `blocks` blocks), because a writer is waiting. One thread
    /// grows the pool; others wait for it.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; nothing changed.
    pub(crate) fn grow(&self, blocks: u64) -> Result<(), Error> {
        self.grow_one_at_a_time(blocks.max(self.step() / 4), blocks, false)
    }

    /// Grows before writers need the room, and touches the new pages before writers can get them: a first
    /// touch costs more than a put. On files a touch would only spend DRAM early, so there it is skipped.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; nothing changed.
    pub(crate) fn grow_ahead(&self, blocks: u64) -> Result<(), Error> {
        self.grow_one_at_a_time(blocks, 1, self.pool.durable() == Lsn(u64::MAX))
    }

    /// Grows by `wanted` blocks, or by `least` if there is no room for more.
    fn grow_one_at_a_time(&self, wanted: u64, least: u64, touch: bool) -> Result<(), Error> {
        let before = self.grown.load(Ordering::Acquire);
        if self.growing.swap(true, Ordering::AcqRel) {
            let mut backoff = crate::concurrency::stripes::Backoff::new();
            while self.growing.load(Ordering::Acquire) {
                backoff.wait();
            }
            if self.grown.load(Ordering::Acquire) != before {
                return Ok(());
            }
            return self.grow_one_at_a_time(wanted, least, touch);
        }
        let result = match self.refill(wanted, least, touch) {
            Ok(false) => self.grow_alone(wanted, least, touch),
            refilled => refilled.map(|_| ()),
        };
        if result.is_ok() {
            self.grown.fetch_add(1, Ordering::Release);
        }
        self.growing.store(false, Ordering::Release);
        result
    }

    fn grow_alone(&self, wanted: u64, least: u64, touch: bool) -> Result<(), Error> {
        // Extents are whole pages of the pool, whatever the size of a block.
        let bytes = |blocks: u64| (blocks * self.geometry.block_bytes).next_multiple_of(POOL_PAGE);
        let align = self.geometry.block_bytes;
        let end = self.ranges().last().map_or(0, |range| u64::from(range.end));
        let is_beyond = |blocks: u64| end + bytes(blocks) / align + 2 > self.max_blocks;
        if is_beyond(least) {
            return Err(Error::NoSpace("the pool's size limit is reached".into()));
        }
        // Near the limit, or on a nearly full disk, there may be room for a smaller step.
        let mut blocks = wanted.max(least);
        while is_beyond(blocks) {
            blocks = (blocks / 2).max(least);
        }
        let extent = loop {
            match self.pool.allocate(OWNER, bytes(blocks), align) {
                Err(everdram_pm::Error::NoSpace { .. }) if blocks > least => {
                    blocks = (blocks / 2).max(least);
                }
                Err(error) => return Err(no_space(error)),
                Ok(extent) => break extent,
            }
        };
        if touch {
            self.pool.prefault(extent.at, extent.bytes);
        }
        let range = self.add_range(extent.at, extent.bytes);
        self.add_free(range.map(|block| (block, 0)));
        Ok(())
    }

    /// Empties the free list; the caller finds the free blocks anew.
    pub(super) fn forget_free(&self) {
        self.free.lock().blocks.clear();
        self.free_count.store(0, Ordering::Relaxed);
    }

    /// Adds blocks with room on the medium to the free list, each with the epoch from which it continues. The
    /// first ones are claimed first.
    pub(super) fn add_free(&self, blocks: impl DoubleEndedIterator<Item = (u32, u32)>) {
        let mut list = self.free.lock();
        for (block, epoch) in blocks.rev() {
            if let Some(entry) = self.get(block) {
                entry.set(Info {
                    state: State::Free,
                    kind: Kind::Free,
                    epoch,
                });
                list.blocks.push(block);
            }
        }
        self.free_count
            .store(list.blocks.len() as u64, Ordering::Relaxed);
    }

    /// Takes the free blocks with the highest numbers, all but `keep`, out of the free list, as `Outside`.
    pub(super) fn take_free(&self, keep: usize) -> Vec<u32> {
        let mut list = self.free.lock();
        // A stack: the lowest numbers are claimed first.
        list.blocks.sort_unstable_by(|one, other| other.cmp(one));
        let count = list.blocks.len().saturating_sub(keep);
        let taken: Vec<u32> = list.blocks.drain(..count).rev().collect();
        for entry in taken.iter().filter_map(|&block| self.get(block)) {
            entry.set(Info {
                state: State::Outside,
                ..entry.info()
            });
        }
        self.free_count
            .store(list.blocks.len() as u64, Ordering::Relaxed);
        taken
    }
}

pub(super) fn no_space(error: everdram_pm::Error) -> Error {
    match error {
        everdram_pm::Error::NoSpace { .. } => Error::NoSpace(error.to_string()),
        other => Error::Pool(other),
    }
}
