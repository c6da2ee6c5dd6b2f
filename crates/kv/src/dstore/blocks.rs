//! Values on the data file: blocks with sums, and maps of blocks.
//!
//! A block is written once, before anything names it, and never changed while anything does (D2). Its sum,
//! keyed and over its number, is beside its number in the slot, the root or the map that names it. So a value
//! is read without a lock: whoever has copied its slot and root has a snapshot of all of it, as long as the
//! blocks are not given to another value (D3).

use super::layout::{Geometry, REFERENCE, Slot, word_at};
use crate::engine::VALUE_BYTES_MAX;
use crate::error::{Error, corrupt};
use everdram_pm::{Blocks, Mark, Pool};
use std::ops::Range;
use std::sync::Arc;

const SALT: u64 = 0x62;
/// Staged blocks are written when they are this many bytes.
const STAGED_MAX: usize = 1 << 20;
/// Values of up to so many blocks are copied ahead: they stay in the first caches until they are written.
const AHEAD_BLOCKS: usize = 4;

/// Where a block is, and its sum. Number 0 is a hole.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct BlockAt {
    pub(super) number: u64,
    pub(super) sum: u64,
}

/// Reads values.
pub(super) struct Values {
    pub(super) pool: Arc<Pool>,
    pub(super) blocks: Blocks,
    pub(super) geometry: Geometry,
}

/// Blocks to be written: those with neighbouring numbers together.
#[derive(Default)]
pub(super) struct Staged {
    /// What is staged, and behind it what was copied ahead.
    bytes: Vec<u8>,
    /// Bytes that are staged.
    used: usize,
    /// Sums, without the numbers, of the blocks that were copied ahead; the next one is the last.
    ahead: Vec<u64>,
    /// First block, and where its bytes begin.
    runs: Vec<(u64, usize)>,
    /// One past the last block.
    end: u64,
    /// The last write.
    pub(super) mark: Mark,
    /// Bytes written, until they are counted.
    pub(super) written: u64,
}

/// A moment of what is staged.
#[derive(Clone, Copy, Debug)]
pub(super) struct Point {
    bytes: usize,
    runs: usize,
    end: u64,
    written: u64,
}

/// A value on its way to the data file.
#[derive(Debug, Default)]
pub(super) struct NewBody {
    pub(super) form: u8,
    /// Of form 1.
    pub(super) block: BlockAt,
}

impl Values {
    fn block_bytes(&self) -> usize {
        self.geometry.block_bytes as usize
    }

    fn sum(&self, number: u64, bytes: &[u8]) -> u64 {
        self.numbered(number, self.pool.secret().sum(bytes))
    }

    /// The sum of a block from the sum of its bytes.
    fn numbered(&self, number: u64, sum: u64) -> u64 {
        self.pool.secret().sum_words([sum, number, SALT])
    }

    /// An error about a block: its place in the data file.
    fn damaged(&self, number: u64, what: &str) -> Error {
        Error::Corrupt {
            path: self.blocks.path().into(),
            offset: number.saturating_mul(u64::from(self.geometry.block_bytes)),
            what: what.into(),
            remedy: "Only this object is concerned; put it again, or restore it from a copy",
        }
    }

    /// An error about a cell: a place in the pool that only a salvage would know.
    #[cold]
    fn damaged_cell(&self, slot: &Slot) -> Error {
        corrupt(
            0,
            format!("the cell {} of an object does not verify", slot.body),
        )
    }

    /// The sum of the cell of a body.
    #[inline]
    pub(super) fn cell_sum(&self, cell: &[u8]) -> u64 {
        match cell.is_empty() {
            true => 0,
            false => self.pool.secret().sum(cell),
        }
    }

    /// Blocks of a value of this length and form, its maps included.
    pub(super) fn count(&self, form: u8, length: u64) -> u64 {
        if form == 0 {
            return 0;
        }
        let blocks = length.div_ceil(u64::from(self.geometry.block_bytes));
        let mut level = blocks;
        let maps = (2..form).map(|_| {
            level = level.div_ceil(self.geometry.fan());
            level
        });
        blocks + maps.sum::<u64>()
    }

    /// Stages a value in these blocks, data first. Appends the root of its map to `root`.
    ///
    /// # Errors
    /// [`Error::Pool`].
    pub(super) fn stage(
        &self,
        staged: &mut Staged,
        value: &[u8],
        mut numbers: impl Iterator<Item = u64>,
        root: &mut Vec<u8>,
    ) -> Result<NewBody, Error> {
        let form = self.geometry.form(value.len() as u64);
        let mut next = || match numbers.next() {
            Some(number) => number,
            None => unreachable!("a value has more blocks than were taken"),
        };
        let mut level = Vec::new();
        for bytes in value.chunks(self.block_bytes()) {
            level.push(self.stage_block(staged, next(), bytes)?);
        }
        if form == 1 {
            let block = level.first().copied().unwrap_or_default();
            return Ok(NewBody { form, block });
        }
        let put = |references: &[BlockAt], into: &mut Vec<u8>| {
            references
                .iter()
                .for_each(|reference| reference.write(into));
        };
        let mut map = Vec::new();
        for _ in 2..form {
            let mut above = Vec::new();
            for references in level.chunks(self.geometry.fan() as usize) {
                map.clear();
                put(references, &mut map);
                above.push(self.stage_block(staged, next(), &map)?);
            }
            level = above;
        }
        put(&level, root);
        let block = BlockAt::default();
        Ok(NewBody { form, block })
    }

    /// Stages one block; a short one is padded with zeros.
    pub(super) fn stage_block(
        &self,
        staged: &mut Staged,
        number: u64,
        bytes: &[u8],
    ) -> Result<BlockAt, Error> {
        if staged.used >= STAGED_MAX {
            self.write(staged)?;
        }
        let from = staged.used;
        if staged.runs.is_empty() || staged.end != number {
            staged.runs.push((number, from));
        }
        let sum = if let Some(sum) = staged.ahead.pop() {
            debug_assert!(
                staged.bytes[from..].starts_with(bytes),
                "another value was copied ahead"
            );
            sum
        } else {
            staged.copy(from, self.block_bytes(), bytes);
            let block = &staged.bytes[from..from + self.block_bytes()];
            self.pool.secret().sum(block)
        };
        (staged.used, staged.end) = (from + self.block_bytes(), number + 1);
        let sum = self.numbered(number, sum);
        Ok(BlockAt { number, sum })
    }

    /// Copies a value that is to be staged next, while the caller waits for memory, if its blocks are few.
    /// [`Values::sum_ahead`] is the rest of it.
    #[inline]
    pub(super) fn copy_ahead(&self, staged: &mut Staged, value: &[u8]) {
        staged.forget_ahead();
        let (block, form) = (self.block_bytes(), self.geometry.form(value.len() as u64));
        let mut from = staged.used;
        // A part of it must not be written while it is staged.
        if form == 0 || value.len() > AHEAD_BLOCKS * block || from >= STAGED_MAX / 2 {
            return;
        }
        for bytes in value.chunks(block) {
            staged.copy(from, block, bytes);
            staged.ahead.push(0);
            from += block;
        }
    }

    /// Sums what was copied ahead.
    #[inline]
    pub(super) fn sum_ahead(&self, staged: &mut Staged) {
        let blocks = staged.bytes[staged.used..].chunks(self.block_bytes());
        for (sum, bytes) in staged.ahead.iter_mut().rev().zip(blocks) {
            *sum = self.pool.secret().sum(bytes);
        }
    }

    /// Writes what is staged. It is durable after a sync with its mark.
    ///
    /// # Errors
    /// [`Error::Pool`]: the medium failed.
    pub(super) fn write(&self, staged: &mut Staged) -> Result<(), Error> {
        let mut end = staged.used;
        staged.written += end as u64;
        for &(first, from) in staged.runs.iter().rev() {
            let mark = self.blocks.write(first, &staged.bytes[from..end])?;
            staged.mark = staged.mark.max(mark);
            end = from;
        }
        staged.forget();
        Ok(())
    }

    /// Appends a value. `cell`: what its cell holds, if it has one.
    ///
    /// # Errors
    /// [`Error::ValueLength`]: it is an object that is read by parts. [`Error::Corrupt`] with the place in
    /// the data file; [`Error::Pool`].
    pub(super) fn read(&self, slot: &Slot, cell: &[u8], into: &mut Vec<u8>) -> Result<(), Error> {
        if slot.length > VALUE_BYTES_MAX as u64 {
            return Err(Error::ValueLength(slot.length as usize));
        }
        self.read_part(slot, cell, 0..slot.length, into)
    }

    /// Appends these bytes of a value, as far as it has them.
    ///
    /// # Errors
    /// As [`Values::read`]; `into` is unchanged then.
    pub(super) fn read_part(
        &self,
        slot: &Slot,
        cell: &[u8],
        part: Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        if !cell.is_empty() && self.cell_sum(cell) != slot.sum {
            return Err(self.damaged_cell(slot));
        }
        let part = part.start..part.end.min(slot.length);
        if part.is_empty() {
            return Ok(());
        }
        if slot.form == 0 {
            into.extend_from_slice(&cell[part.start as usize..part.end as usize]);
            return Ok(());
        }
        let before = into.len();
        let read = self.read_leaves(slot, cell, &part, into);
        if read.is_err() {
            into.truncate(before);
        }
        read
    }

    fn read_leaves(
        &self,
        slot: &Slot,
        cell: &[u8],
        part: &Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let block = u64::from(self.geometry.block_bytes);
        let (before, mut at) = (into.len(), part.start / block * block);
        let mut first = Vec::new();
        let mut run: Vec<BlockAt> = Vec::new();
        let mut flush = |run: &mut Vec<BlockAt>, leaves: u64, into: &mut Vec<u8>| {
            // Only the first run may begin before the part.
            let skipped = part.start.saturating_sub(at) as usize;
            let target = if skipped > 0 { &mut first } else { &mut *into };
            self.read_run(run, leaves, target)?;
            if skipped > 0 {
                into.extend_from_slice(&first[skipped..]);
            }
            at += leaves * block;
            run.clear();
            Ok::<(), Error>(())
        };
        let leaves = part.start / block..part.end.div_ceil(block);
        self.walk_part(slot, cell, &leaves, &mut |found| {
            let (one, count) = match found {
                Node::Map(_) => return Ok(()),
                Node::Leaf(one) => (one, 1),
                Node::Holes(count) => (BlockAt::default(), count),
            };
            let follows = |last: &BlockAt| last.number.checked_add(1) == Some(one.number);
            let is_first =
                run.len() == 1 && leaves.start * block < part.start && into.len() == before;
            let continues = one.number != 0 && run.last().is_some_and(follows);
            if !run.is_empty()
                && (!continues || is_first || run.len() * self.block_bytes() >= STAGED_MAX)
            {
                let count = run.len() as u64;
                flush(&mut run, count, into)?;
            }
            if one.number == 0 {
                return flush(&mut run, count, into);
            }
            run.push(one);
            Ok(())
        })?;
        let count = run.len() as u64;
        flush(&mut run, count, into)?;
        let length = (part.end - part.start) as usize;
        if into.len() < before + length {
            return Err(self.damaged(slot.body, "a map has fewer blocks than its value"));
        }
        into.truncate(before + length);
        Ok(())
    }

    /// Appends neighbouring blocks, read at once, and verifies each; zeros for so many holes if there are
    /// none.
    fn read_run(&self, run: &[BlockAt], leaves: u64, into: &mut Vec<u8>) -> Result<(), Error> {
        let from = into.len();
        into.resize(from + leaves as usize * self.block_bytes(), 0);
        let Some(first) = run.first() else {
            return Ok(());
        };
        self.check(first.number, leaves)?;
        self.blocks.read(first.number, &mut into[from..])?;
        let blocks = into[from..].chunks(self.block_bytes());
        for (block, bytes) in run.iter().zip(blocks) {
            if self.sum(block.number, bytes) != block.sum {
                return Err(self.damaged(block.number, "a block of a value does not verify"));
            }
        }
        Ok(())
    }

    /// Reads a map.
    ///
    /// # Errors
    /// As [`Values::read`].
    pub(super) fn read_map(&self, block: BlockAt) -> Result<Vec<u8>, Error> {
        let mut map = Vec::new();
        match block.number {
            0 => map.resize(self.block_bytes(), 0),
            _ => self.read_run(&[block], 1, &mut map)?,
        }
        Ok(map)
    }

    fn check(&self, first: u64, count: u64) -> Result<(), Error> {
        let end = first.checked_add(count);
        match first >= self.blocks.first() && end.is_some_and(|end| end <= self.blocks.end()) {
            true => Ok(()),
            false => Err(self.damaged(first, "a value names a block outside the data file")),
        }
    }

    /// Calls `each` with every block of a value, and whether it is a map. Those below a map follow it.
    ///
    /// # Errors
    /// As [`Values::read`]; those of `each`.
    pub(super) fn walk(
        &self,
        slot: &Slot,
        cell: &[u8],
        each: &mut dyn FnMut(BlockAt, bool) -> Result<(), Error>,
    ) -> Result<(), Error> {
        self.walk_part(slot, cell, &(0..u64::MAX), &mut |found| match found {
            Node::Leaf(block) => each(block, false),
            Node::Map(block) => each(block, true),
            Node::Holes(_) => Ok(()),
        })
    }

    /// Reads all of a value, and calls `each` with every block, its maps' as well.
    ///
    /// # Errors
    /// As [`Values::walk`].
    pub(super) fn verify(
        &self,
        slot: &Slot,
        cell: &[u8],
        each: &mut dyn FnMut(BlockAt) -> Result<(), Error>,
    ) -> Result<(), Error> {
        if !cell.is_empty() && self.cell_sum(cell) != slot.sum {
            return Err(self.damaged_cell(slot));
        }
        let (mut run, mut bytes) = (Vec::<BlockAt>::new(), Vec::new());
        let mut read = |run: &mut Vec<BlockAt>| {
            bytes.clear();
            let result = self.read_run(run, run.len() as u64, &mut bytes);
            run.clear();
            result
        };
        self.walk(slot, cell, &mut |block, is_map| {
            each(block)?;
            let follows = |last: &BlockAt| last.number.checked_add(1) == Some(block.number);
            if is_map
                || !run.last().is_some_and(follows)
                || run.len() * self.block_bytes() >= STAGED_MAX
            {
                read(&mut run)?;
            }
            if !is_map {
                run.push(block);
            }
            Ok(())
        })?;
        read(&mut run)
    }

    /// Calls `each` with what a value has of these of its blocks, in order, and with the maps above them.
    ///
    /// # Errors
    /// As [`Values::read`]; those of `each`.
    fn walk_part(
        &self,
        slot: &Slot,
        cell: &[u8],
        leaves: &Range<u64>,
        each: &mut dyn FnMut(Node) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let end = slot.length.div_ceil(u64::from(self.geometry.block_bytes));
        let leaves = leaves.start..leaves.end.min(end);
        match slot.form {
            0 => Ok(()),
            1 => each(Node::Leaf(BlockAt {
                number: slot.body,
                sum: slot.sum,
            })),
            form => self.walk_map(u32::from(form - 2), cell, 0, &leaves, each),
        }
    }

    /// The map has references to what is `levels` above the leaves, from leaf `from` on.
    fn walk_map(
        &self,
        levels: u32,
        map: &[u8],
        from: u64,
        leaves: &Range<u64>,
        each: &mut dyn FnMut(Node) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let span = self.geometry.fan().pow(levels);
        let skipped = leaves.start.saturating_sub(from) / span;
        let references = map.as_chunks::<REFERENCE>().0.iter().zip(0..);
        for (bytes, nth) in references.skip(skipped as usize) {
            let own = from + nth * span..from + (nth + 1) * span;
            if own.start >= leaves.end {
                break;
            }
            let block = BlockAt::parse(bytes);
            if block.number == 0 {
                let holes = own.start.max(leaves.start)..own.end.min(leaves.end);
                each(Node::Holes(holes.end - holes.start))?;
            } else if levels == 0 {
                each(Node::Leaf(block))?;
            } else {
                each(Node::Map(block))?;
                let below = self.read_map(block)?;
                self.walk_map(levels - 1, &below, own.start, leaves, each)?;
            }
        }
        Ok(())
    }
}

/// What a walk meets.
enum Node {
    Leaf(BlockAt),
    Map(BlockAt),
    /// So many blocks of zeros, which do not exist.
    Holes(u64),
}

impl BlockAt {
    /// A reference of a map.
    pub(super) fn parse(bytes: &[u8; REFERENCE]) -> BlockAt {
        let [number, sum] = [0, 8].map(|at| word_at(bytes, at));
        BlockAt { number, sum }
    }

    pub(super) fn write(&self, into: &mut Vec<u8>) {
        into.extend_from_slice(&self.number.to_le_bytes());
        into.extend_from_slice(&self.sum.to_le_bytes());
    }
}

impl Staged {
    /// Where the next block will be staged.
    pub(super) fn point(&self) -> Point {
        Point {
            bytes: self.used,
            runs: self.runs.len(),
            end: self.end,
            written: self.written,
        }
    }

    /// Copies a block to a place at or behind the end of what is staged; a short one is padded with zeros.
    #[inline]
    fn copy(&mut self, at: usize, block: usize, bytes: &[u8]) {
        debug_assert!(at >= self.used, "a staged block is overwritten");
        self.bytes.truncate(at);
        self.bytes.extend_from_slice(bytes);
        self.bytes.resize(at + block, 0);
    }

    /// Drops what was copied ahead and was not staged.
    #[inline]
    pub(super) fn forget_ahead(&mut self) {
        self.ahead.clear();
    }

    /// Drops what was staged since. What was written meanwhile is in blocks that nothing will name.
    pub(super) fn roll_back(&mut self, point: Point) {
        if self.written > point.written {
            // What was staged before the point is written, and all that waits came after it.
            self.forget();
            return;
        }
        self.ahead.clear();
        self.used = point.bytes;
        self.runs.truncate(point.runs);
        self.end = point.end;
    }

    /// Drops what was not written.
    pub(super) fn forget(&mut self) {
        self.runs.clear();
        self.ahead.clear();
        self.bytes.clear();
        self.used = 0;
        self.bytes.shrink_to(2 * STAGED_MAX);
    }

    pub(super) fn is_empty(&self) -> bool {
        self.runs.is_empty()
    }
}
