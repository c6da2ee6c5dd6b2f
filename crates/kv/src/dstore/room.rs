//! Room for slots, cells and blocks: who has which.
//!
//! Nothing of this is persistent. What is in use follows from the slots that live, so nothing can leak (the
//! paper copies the state of its allocators with each checkpoint).
//!
//! What is nearly used up grows in the background, so that writers do not wait for the disk. A store of a few
//! chunks has nothing ahead.
//!
//! What an object does not use any more is used again when no reader can be looking at it, and blocks only
//! when the record that freed them survives, too: a crash before that brings the old object back (D3).

use super::baselines::copy_on_write::CopyOnWrite;
use super::layout::{
    CELLS, GRAIN_BYTES, GRAINS_CHUNK, SEGMENTS, SLOT_BYTES, SLOTS, SLOTS_CHUNK, grains,
};
use super::machine::Objects;
use super::memory::Memory;
use crate::dipper::Dipper;
use crate::error::Error;
use crate::heap::{Claim, Lines};
use everdram_pm::lock::lock;
use everdram_pm::{Blocks, Pool};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Blocks of a chunk: what a session claims.
pub(super) const BLOCKS_CHUNK: u32 = 64;
/// Free blocks with which a chunk is claimed again. Overwrites in random order leave one free block here and
/// one there: the file would grow by as much as lies idle, and blocks that were never written take a disk
/// longer to make durable.
const BLOCKS_READY: u32 = 2;
/// The data file grows by one in so many of its bytes, or a chunk.
const GROWTH_ONE_IN: u64 = 64;
/// At most this much at once.
const GROWTH_MOST: u64 = 64 << 20;
/// The thread for this keeps one in so many bytes of the data file free. Of a small file rather
/// [`FILE_AHEAD_LEAST`] bytes, which is what writers fill in its period of 20 ms at 400 MB/s, or a sixteenth.
const FILE_AHEAD_ONE_IN: u64 = 128;
const FILE_AHEAD_LEAST: u64 = 8 << 20;
/// As for the data file, of slots and of cells; at most this many bytes.
const SEGMENT_AHEAD_ONE_IN: u64 = 16;
const SEGMENT_AHEAD_MOST: u64 = 16 << 20;
/// Bytes of a chunk of each segment.
pub(super) const CHUNK_BYTES: [u64; SEGMENTS] = [
    SLOTS_CHUNK as u64 * SLOT_BYTES,
    GRAINS_CHUNK as u64 * GRAIN_BYTES,
];
const _: () = assert!(SLOTS == 0 && CELLS == 1);

/// What an object has no use for any more.
#[derive(Clone, Copy, Debug)]
pub(super) enum Freed {
    Slot(u64),
    Cell { first: u64, grains: u32 },
    Blocks { first: u64, count: u32 },
}

/// The chunks that a session takes from.
#[derive(Default)]
pub(super) struct Claims {
    slots: Option<Claim>,
    cells: Option<Claim>,
    blocks: Option<Claim>,
}

/// See the module text.
pub(super) struct Room {
    pub(super) slots: Lines,
    pub(super) cells: Lines,
    pub(super) blocks: Lines,
    /// Held while slots or cells grow, and while the data file does.
    growing: Mutex<()>,
    growing_file: Mutex<()>,
    /// How large each of the three was when it could not grow ahead.
    refused: [AtomicU64; SEGMENTS + 1],
    /// Blocks whose freeing record may not survive yet, with its position.
    waiting: Mutex<VecDeque<(u64, Freed)>>,
    waits: AtomicUsize,
}

impl Room {
    pub(super) fn new() -> Room {
        Room {
            slots: Lines::new(SLOTS_CHUNK, 0),
            cells: Lines::new(GRAINS_CHUNK, 0),
            blocks: Lines::new(BLOCKS_CHUNK, 0).claimed_again_from(BLOCKS_READY),
            growing: Mutex::default(),
            growing_file: Mutex::default(),
            refused: [const { AtomicU64::new(u64::MAX) }; SEGMENTS + 1],
            waiting: Mutex::default(),
            waits: AtomicUsize::new(0),
        }
    }

    /// Takes a slot.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`].
    pub(super) fn take_slot(&self, claims: &mut Claims, grow: &Grow<'_>) -> Result<u64, Error> {
        loop {
            let chunks = self.slots.chunks();
            if let Some(number) = self.slots.take(&mut claims.slots, 1) {
                return Ok(number);
            }
            if let Err(full) = self.grow_segment(SLOTS, (chunks, 1), grow) {
                let found = self.slots.take_anywhere(&mut claims.slots, 1);
                return found.ok_or(full);
            }
        }
    }

    /// Takes the grains for a cell of so many bytes.
    ///
    /// # Errors
    /// As [`Room::take_slot`].
    pub(super) fn take_cell(
        &self,
        claims: &mut Claims,
        grow: &Grow<'_>,
        bytes: usize,
    ) -> Result<u64, Error> {
        let count = grains(bytes);
        loop {
            let chunks = self.cells.chunks();
            if let Some(first) = self.cells.take(&mut claims.cells, count) {
                return Ok(first);
            }
            if let Err(full) = self.grow_segment(CELLS, (chunks, 1), grow) {
                let found = self.cells.take_anywhere(&mut claims.cells, count);
                return found.ok_or(full);
            }
        }
    }

    /// Takes `count` blocks, neighbours as far as possible, and adds their runs to `runs`.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`]; no block is taken then.
    pub(super) fn take_blocks(
        &self,
        claims: &mut Claims,
        file: &Blocks,
        count: u64,
        runs: &mut Vec<(u64, u32)>,
    ) -> Result<(), Error> {
        let (before, mut left) = (runs.len(), count);
        let mut part = u64::from(BLOCKS_CHUNK);
        while left > 0 {
            let want = part.min(left) as u32;
            let end = file.end();
            if let Some(first) = self.blocks.take(&mut claims.blocks, want) {
                runs.push((first, want));
                left -= u64::from(want);
                continue;
            }
            match self.grow_blocks(file, end, left) {
                Ok(()) => {}
                Err(full) => match self.blocks.take_anywhere(&mut claims.blocks, want) {
                    Some(first) => {
                        runs.push((first, want));
                        left -= u64::from(want);
                    }
                    // A full file may have many small gaps.
                    None if want > 1 => part = u64::from(want / 2),
                    None => {
                        for (first, count) in runs.drain(before..) {
                            self.give_back_blocks(first, count);
                        }
                        return Err(full);
                    }
                },
            }
        }
        Ok(())
    }

    /// Lets a segment that has `chunks` chunks grow by `more`; does nothing if it has grown meanwhile.
    fn grow_segment(
        &self,
        segment: usize,
        (chunks, more): (u64, u64),
        grow: &Grow<'_>,
    ) -> Result<(), Error> {
        let _growing = lock(&self.growing);
        let lines = [&self.slots, &self.cells];
        if lines[segment].chunks() > chunks {
            return Ok(());
        }
        let mut bytes = [0, 1].map(|segment| lines[segment].chunks() * CHUNK_BYTES[segment]);
        bytes[segment] += more * CHUNK_BYTES[segment];
        grow.reserve(&bytes)?;
        grow.memory.grow(segment, bytes[segment])?;
        added(lines[segment], chunks, more)
    }

    /// Lets what is nearly used up grow, before a writer has to wait for that. Returns whether something did.
    /// Where there is no room for it, it is left to the writers, who need less.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub(super) fn grow_ahead(&self, file: &Blocks, grow: &Grow<'_>) -> Result<bool, Error> {
        let mut grew = false;
        // Metadata first: of the last room on a disk they need less, and each object needs some.
        for (segment, lines) in [&self.slots, &self.cells].into_iter().enumerate() {
            let chunks = lines.chunks();
            let ahead =
                (chunks / SEGMENT_AHEAD_ONE_IN).min(SEGMENT_AHEAD_MOST / CHUNK_BYTES[segment]);
            let is_low = lines.at_hand() < ahead * u64::from(lines.usable());
            grew |= is_low
                && self.ahead(&self.refused[segment], chunks, || {
                    self.grow_segment(segment, (chunks, ahead), grow)
                })?;
        }
        let end = file.end();
        let block = file.block_bytes();
        let ahead = (end / FILE_AHEAD_ONE_IN).max((end / 16).min(FILE_AHEAD_LEAST / block));
        let ahead =
            ahead.min(GROWTH_MOST / block) / u64::from(BLOCKS_CHUNK) * u64::from(BLOCKS_CHUNK);
        let is_low = self.blocks.at_hand() < ahead;
        grew |= is_low
            && self.ahead(&self.refused[SEGMENTS], end, || {
                let _growing = lock(&self.growing_file);
                file.grow(end + ahead).map_err(Error::of_pool)?;
                self.cover(file)
            })?;
        Ok(grew)
    }

    /// Tries to let something of this size grow, unless that was refused at this size already.
    fn ahead(
        &self,
        refused: &AtomicU64,
        size: u64,
        grow: impl FnOnce() -> Result<(), Error>,
    ) -> Result<bool, Error> {
        if refused.load(Ordering::Relaxed) == size {
            return Ok(false);
        }
        match grow() {
            Ok(()) => Ok(true),
            Err(Error::NoSpace(_)) => {
                refused.store(size, Ordering::Relaxed);
                Ok(false)
            }
            Err(other) => Err(other),
        }
    }

    fn grow_blocks(&self, file: &Blocks, end: u64, needed: u64) -> Result<(), Error> {
        let _growing = lock(&self.growing_file);
        if file.end() > end {
            return Ok(());
        }
        let chunk = u64::from(BLOCKS_CHUNK);
        let ahead = (end / GROWTH_ONE_IN).min(GROWTH_MOST / file.block_bytes());
        let wanted = (end
            + needed
                .max(ahead)
                .min(GROWTH_MOST / file.block_bytes())
                .max(1))
        .next_multiple_of(chunk);
        let least = (end + 1).next_multiple_of(chunk);
        match file.grow(wanted) {
            Err(everdram_pm::Error::NoSpace { .. }) if wanted > least => file.grow(least),
            other => other,
        }
        .map_err(Error::of_pool)?;
        self.cover(file)
    }

    /// Enters the blocks of the file, and lets a new one have `initial`, or a few: before sessions run, so
    /// that nobody takes what the header has.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`].
    pub(super) fn cover_file(
        &self,
        file: &Blocks,
        is_read_only: bool,
        initial: u64,
    ) -> Result<(), Error> {
        self.cover(file)?;
        match self.blocks.chunks() == 0 && !is_read_only {
            true => self.grow_blocks(file, file.end(), initial.max(1)),
            false => Ok(()),
        }
    }

    /// Enters the blocks of the file that the books do not know yet; a part of a chunk is left out.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    fn cover(&self, file: &Blocks) -> Result<(), Error> {
        let (known, chunks) = (self.blocks.chunks(), file.end() / u64::from(BLOCKS_CHUNK));
        if chunks <= known {
            return Ok(());
        }
        added(&self.blocks, known, chunks - known)?;
        if known == 0 {
            let is_free = self.blocks.adopt_lines(0, file.first() as u32);
            assert!(is_free, "blocks were taken before there were any");
        }
        Ok(())
    }

    /// Enters chunks of slots and grains that recovery found in memory, at least one of each.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(super) fn cover_memory(&self, slots: u64, cells: u64) -> Result<(), Error> {
        added(&self.slots, 0, slots)?;
        added(&self.cells, 0, cells)?;
        // Number 0 means none, for both.
        for lines in [&self.slots, &self.cells] {
            let is_free = lines.adopt_lines(0, 1);
            assert!(is_free, "number 0 is in use");
        }
        Ok(())
    }

    /// Counts what recovery has marked as taken.
    pub(super) fn count_adopted(&self) {
        for lines in [&self.slots, &self.cells, &self.blocks] {
            lines.count_adopted();
        }
    }

    /// One past the last block that the books know.
    pub(super) fn blocks_end(&self) -> u64 {
        self.blocks.chunks() * u64::from(BLOCKS_CHUNK)
    }

    /// Gives back what no reader can be looking at any more; blocks wait until their record survives.
    pub(super) fn free(&self, pool: &Pool, position: u64, freed: Freed) {
        let is_block = matches!(freed, Freed::Blocks { .. });
        if is_block && position > pool.survives().0 {
            lock(&self.waiting).push_back((position, freed));
            self.waits.fetch_add(1, Ordering::Relaxed);
            return;
        }
        self.give_back(freed);
    }

    /// Gives back the blocks whose record survives by now.
    #[inline]
    pub(super) fn free_survived(&self, pool: &Pool) {
        if self.waits.load(Ordering::Relaxed) == 0 {
            return;
        }
        let survives = pool.survives().0;
        let mut waiting = lock(&self.waiting);
        while let Some(&(position, freed)) = waiting.front()
            && position <= survives
        {
            waiting.pop_front();
            self.waits.fetch_sub(1, Ordering::Relaxed);
            self.give_back(freed);
        }
    }

    /// Gives back what no one else has seen.
    pub(super) fn give_back(&self, freed: Freed) {
        match freed {
            Freed::Slot(number) => self.slots.give_back(number, 1),
            Freed::Cell { first, grains } => self.cells.give_back(first, grains),
            Freed::Blocks { first, count } => self.give_back_blocks(first, count),
        }
    }

    fn give_back_blocks(&self, first: u64, count: u32) {
        let (mut at, end) = (first, first + u64::from(count));
        while at < end {
            let chunk_end = (at / u64::from(BLOCKS_CHUNK) + 1) * u64::from(BLOCKS_CHUNK);
            let part = end.min(chunk_end) - at;
            self.blocks.give_back(at, part as u32);
            at += part;
        }
    }

    /// Gives back the chunks of a session.
    pub(super) fn let_go(&self, claims: &mut Claims) {
        let Claims {
            slots,
            cells,
            blocks,
        } = claims;
        for (lines, claim) in [
            (&self.slots, slots),
            (&self.cells, cells),
            (&self.blocks, blocks),
        ] {
            if let Some(claim) = claim.take() {
                lines.let_go(claim);
            }
        }
    }
}

fn added(lines: &Lines, first: u64, count: u64) -> Result<(), Error> {
    let numbers = u32::try_from(first).ok().zip(u32::try_from(count).ok());
    match numbers.is_some_and(|(first, count)| lines.add(first, count)) {
        true => Ok(()),
        false => Err(Error::NoSpace("the numbers of chunks are used up".into())),
    }
}

/// What slots and cells grow in.
pub(super) struct Grow<'a> {
    pub(super) dipper: &'a Dipper<Objects>,
    pub(super) machine: &'a Objects,
    pub(super) memory: &'a Memory,
    pub(super) cow: Option<&'a CopyOnWrite>,
}

impl Grow<'_> {
    fn reserve(&self, bytes: &[u64]) -> Result<(), Error> {
        self.dipper.reserve(bytes)?;
        if let Some(cow) = self.cow {
            cow.grow(bytes)?;
        }
        self.machine.limit(bytes.iter().copied().max().unwrap_or(0));
        Ok(())
    }
}
