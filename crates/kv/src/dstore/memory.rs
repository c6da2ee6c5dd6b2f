//! The segments in DRAM: slots, and cells with keys, short values and roots of maps.
//!
//! A slot is written by one session at a time, which holds the stripe of its object. Readers take no lock:
//! they copy a slot, and what its cell holds, between two looks at the LSN, which must be equal and not busy
//! (a sequence lock; D5).
//!
//! A reader is pinned. A slot or cell that it can find is given to another object only when it has left.

use super::layout::{BUSY, CELLS, GRAIN_BYTES, SEGMENTS, SLOT_BYTES, SLOTS, Slot};
use crate::concurrency::seam::publishes;
use crate::concurrency::stripes::Backoff;
use crate::dipper::Space;
use crate::error::Error;
use everdram_pm::{Dram, DramLine, DramRefused};
use std::sync::atomic::{AtomicU64, Ordering, fence};

/// See the module text.
pub(super) struct Memory {
    slots: Dram,
    cells: Dram,
    /// Bytes of each segment that were asked for; a little more may be usable.
    used: [AtomicU64; SEGMENTS],
}

pub(super) fn refused(error: DramRefused) -> Error {
    Error::NoSpace(format!("metadata in DRAM: {error}"))
}

impl Memory {
    pub(super) fn new() -> Result<Memory, Error> {
        let reserve = || Dram::reserve(None).map_err(refused);
        Ok(Memory {
            slots: reserve()?,
            cells: reserve()?,
            used: [const { AtomicU64::new(0) }; SEGMENTS],
        })
    }

    fn segment(&self, segment: usize) -> &Dram {
        match segment {
            SLOTS => &self.slots,
            _ => {
                assert!(segment == CELLS, "there is no segment {segment}");
                &self.cells
            }
        }
    }

    /// Makes the first bytes of a segment usable.
    ///
    /// # Errors
    /// [`Error::NoSpace`].
    pub(super) fn grow(&self, segment: usize, bytes: u64) -> Result<(), Error> {
        self.segment(segment).grow_to(bytes).map_err(refused)?;
        self.used[segment].fetch_max(bytes, Ordering::Relaxed);
        Ok(())
    }

    /// Bytes for which a segment has grown.
    pub(super) fn used_bytes(&self, segment: usize) -> u64 {
        self.used[segment].load(Ordering::Relaxed)
    }

    /// Usable bytes of both segments.
    pub(super) fn bytes(&self) -> u64 {
        self.slots.bytes() + self.cells.bytes()
    }

    /// Slots that can be used.
    pub(super) fn slots(&self) -> u64 {
        self.slots.bytes() / SLOT_BYTES
    }

    /// Stores whole words of a segment, before anything runs.
    pub(super) fn store_at(&self, segment: usize, at: u64, bytes: &[u8]) {
        self.segment(segment).store(at, bytes);
    }

    #[inline]
    fn line(&self, number: u64) -> &DramLine {
        self.slots.line(number as usize)
    }

    /// The hash in a slot, for the index, which has it.
    #[inline]
    pub(super) fn hash(&self, number: u64) -> u64 {
        self.line(number)[1].load(Ordering::Relaxed)
    }

    /// A slot, and the word with which [`Memory::is_still`] compares.
    #[inline]
    pub(super) fn slot(&self, number: u64) -> (Slot, u64) {
        let line = self.line(number);
        let mut backoff = Backoff::new();
        loop {
            let word = line[0].load(Ordering::Acquire);
            if word & BUSY == 0 {
                let words = std::array::from_fn(|nth| match nth {
                    0 => word,
                    _ => line[nth].load(Ordering::Relaxed),
                });
                if self.is_still(number, word) {
                    return (Slot::from_words(words), word);
                }
            }
            backoff.wait();
        }
    }

    /// Whether a slot, and what its cell holds, is as it was when its LSN was this word.
    #[inline]
    pub(super) fn is_still(&self, number: u64, word: u64) -> bool {
        // Orders the reads before this look.
        fence(Ordering::Acquire);
        self.line(number)[0].load(Ordering::Relaxed) == word
    }

    /// Whether the key of a slot is this one.
    #[inline]
    pub(super) fn has_key(&self, slot: &Slot, key: &[u8]) -> bool {
        if slot.key_bytes as usize != key.len() {
            return false;
        }
        let words = key.len().next_multiple_of(8) as u64;
        let own = self.cells.words(slot.key_cell * GRAIN_BYTES, words);
        let (chunks, rest) = key.as_chunks::<8>();
        let same = |(word, bytes): (&AtomicU64, &[u8; 8])| {
            word.load(Ordering::Relaxed) == u64::from_le_bytes(*bytes)
        };
        let mut last = [0; 8];
        last[..rest.len()].copy_from_slice(rest);
        own.iter().zip(chunks).all(same)
            && (rest.is_empty() || own.last().is_some_and(|word| same((word, &last))))
    }

    /// Whether there is such a cell.
    pub(super) fn has_cell(&self, cell: u64, bytes: usize) -> bool {
        let end = cell
            .saturating_mul(GRAIN_BYTES)
            .checked_add(bytes.next_multiple_of(8) as u64);
        end.is_some_and(|end| end <= self.cells.bytes())
    }

    /// The words of a slot, before anything runs.
    #[inline]
    pub(super) fn words(&self, number: u64) -> [u64; 8] {
        let line = self.line(number);
        std::array::from_fn(|nth| line[nth].load(Ordering::Relaxed))
    }

    /// Appends `bytes` bytes of a cell.
    #[inline]
    pub(super) fn read(&self, cell: u64, bytes: usize, into: &mut Vec<u8>) {
        let length = into.len() + bytes;
        self.cells
            .load_behind(cell * GRAIN_BYTES, bytes.next_multiple_of(8) as u64, into);
        into.truncate(length);
    }

    /// Appends the key of a slot by its number. A slot has the same key for its whole life, so that it is
    /// read without a look at the LSN.
    pub(super) fn key_of(&self, number: u64, into: &mut Vec<u8>) {
        let mut words = [0; 8];
        words[4] = self.line(number)[4].load(Ordering::Relaxed);
        self.key(&Slot::from_words(words), into);
    }

    /// Appends the key of a slot.
    pub(super) fn key(&self, slot: &Slot, into: &mut Vec<u8>) {
        self.read(slot.key_cell, slot.key_bytes as usize, into);
    }

    /// Appends the key of a slot. `false`: what pads it to whole words is not zero.
    #[inline]
    pub(super) fn key_and_padding(&self, slot: &Slot, into: &mut Vec<u8>) -> bool {
        let (from, bytes) = (into.len(), slot.key_bytes as usize);
        let padded = bytes.next_multiple_of(8) as u64;
        self.cells
            .load_behind(slot.key_cell * GRAIN_BYTES, padded, into);
        let is_padded = into[from + bytes..].iter().all(|byte| *byte == 0);
        into.truncate(from + bytes);
        is_padded
    }

    /// Starts loading a slot. Any number is allowed.
    #[inline]
    pub(super) fn prefetch(&self, number: u64) {
        self.slots.prefetch(number as usize);
    }

    /// Starts loading the cells of a slot, if there is such a slot.
    #[inline]
    pub(super) fn prefetch_cells(&self, number: u64) {
        if number >= self.slots() {
            return;
        }
        let line = self.line(number);
        let slot = Slot::from_words(line.load());
        let line_of = |cell: u64| (cell.wrapping_mul(GRAIN_BYTES) / 64) as usize;
        self.cells.prefetch(line_of(slot.key_cell));
        if slot.form != 1 {
            self.cells.prefetch(line_of(slot.body));
        }
    }

    /// Shows a new state of a slot whose object the caller holds, with the contents of its cells.
    #[inline]
    pub(super) fn publish(
        &self,
        number: u64,
        slot: &Slot,
        key: Option<&[u8]>,
        cell: Option<(u64, &[u8])>,
    ) {
        let line = self.line(number);
        let words = slot.to_words();
        let before = line[0].load(Ordering::Relaxed);
        debug_assert!(before & BUSY == 0, "two sessions write a slot");
        line[0].store(before | BUSY, Ordering::Relaxed);
        // Whoever reads any of the following sees that the slot is busy.
        fence(Ordering::Release);
        publishes!();
        for (word, place) in words.iter().zip(line.iter()).skip(1) {
            place.store(*word, Ordering::Relaxed);
        }
        if let Some(key) = key {
            self.store_cell(slot.key_cell, key);
        }
        if let Some((at, bytes)) = cell {
            self.store_cell(at, bytes);
        }
        publishes!();
        line[0].store(words[0], Ordering::Release);
    }

    fn store_cell(&self, cell: u64, bytes: &[u8]) {
        let (words, rest) = bytes.split_at(bytes.len() / 8 * 8);
        let at = cell * GRAIN_BYTES;
        self.cells.store(at, words);
        if !rest.is_empty() {
            let mut last = [0; 8];
            last[..rest.len()].copy_from_slice(rest);
            self.cells.store(at + words.len() as u64, &last);
        }
    }
}

/// For recovery, which replays the logs here as a checkpoint does on the shadow.
impl Space for &Memory {
    fn load(&mut self, segment: usize, at: u64) -> Result<u64, Error> {
        let segment = self.segment(segment);
        if at + 8 > segment.bytes() {
            return Ok(0);
        }
        let word = segment.words(at, 8).first();
        Ok(word.map_or(0, |word| word.load(Ordering::Relaxed)))
    }

    fn store(&mut self, segment: usize, at: u64, bytes: &[u8]) -> Result<(), Error> {
        let end = at + bytes.len() as u64;
        if end > self.used_bytes(segment) {
            self.grow(segment, end)?;
        }
        self.store_at(segment, at, bytes);
        Ok(())
    }
}
