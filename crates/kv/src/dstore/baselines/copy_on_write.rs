//! Checkpoints by copy-on-write, as NOVA and Pronto have them (section 4.5), to be measured beside DIPPER's.
//!
//! A checkpoint closes a gate for a moment, so that no write is between its record and its publication, and
//! *freezes* every page of metadata that was changed since the last one. Then the background copies these
//! pages to persistent memory. Whoever wants to change one that was not copied yet copies it first, and waits
//! for that. When all are copied, the root is switched and the logs are reclaimed.
//!
//! The paper marks pages read-only and takes a page fault for each. Here a word for each page says so, and
//! only changed pages are copied. Both are in the favour of this system.

use super::super::Dstore;
use super::super::layout::{CELLS, GRAIN_BYTES, SEGMENTS, SLOT_BYTES, SLOTS, Slot};
use crate::concurrency::stripes::Backoff;
use crate::crl::Step;
use crate::error::Error;
use everdram_pm::Dram;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Pages that a step of the background copies.
const TOGETHER: usize = 16;

/// A page is as the shadow has it.
const CLEAN: u64 = 0;
/// It was changed since the last checkpoint began.
const CHANGED: u64 = 1;
/// It was changed before that, and is to be copied as it is now.
const FROZEN: u64 = 2;

/// See the module text.
pub(in super::super) struct CopyOnWrite {
    gate: Gate,
    /// A word for each page of each segment.
    states: [Dram; SEGMENTS],
    /// How many pages each has.
    pages: [AtomicU64; SEGMENTS],
    page_bytes: u64,
    /// The checkpoint under way.
    under_way: Mutex<Option<Frozen>>,
}

/// What a checkpoint has still to copy, and the epoch that it covers.
struct Frozen {
    epoch: u64,
    pages: Vec<(usize, u64)>,
}

/// Sessions are inside from before their records until they are visible.
#[derive(Default)]
struct Gate {
    is_closed: AtomicBool,
    inside: AtomicU64,
}

impl Gate {
    fn enter(&self) {
        let mut backoff = Backoff::new();
        loop {
            self.inside.fetch_add(1, Ordering::SeqCst);
            if !self.is_closed.load(Ordering::SeqCst) {
                return;
            }
            self.leave();
            while self.is_closed.load(Ordering::SeqCst) {
                backoff.wait();
            }
        }
    }

    fn leave(&self) {
        let before = self.inside.fetch_sub(1, Ordering::SeqCst);
        assert!(before > 0, "a gate is left by nobody");
    }
}

impl CopyOnWrite {
    pub(in super::super) fn new(page_bytes: u32) -> Result<CopyOnWrite, Error> {
        let reserve = || Dram::reserve(None).map_err(super::super::memory::refused);
        Ok(CopyOnWrite {
            gate: Gate::default(),
            states: [reserve()?, reserve()?],
            pages: Default::default(),
            page_bytes: u64::from(page_bytes),
            under_way: Mutex::default(),
        })
    }

    /// Waits until no checkpoint begins. A session is inside for one record, and waits for nothing there.
    pub(in super::super) fn enter(&self) {
        self.gate.enter();
    }

    pub(in super::super) fn leave(&self) {
        self.gate.leave();
    }

    /// Makes the states of segments of so many bytes usable.
    pub(in super::super) fn grow(&self, segments: &[u64]) -> Result<(), Error> {
        for (segment, bytes) in segments.iter().enumerate() {
            let pages = bytes.div_ceil(self.page_bytes);
            let (states, words) = (&self.states[segment], 8 * pages);
            states
                .grow_to(words)
                .map_err(super::super::memory::refused)?;
            self.pages[segment].fetch_max(pages, Ordering::Release);
        }
        Ok(())
    }

    /// Every page counts as changed: after recovery, which has replayed the logs in DRAM alone.
    pub(in super::super) fn change_all(&self) {
        let states = [SLOTS, CELLS]
            .into_iter()
            .flat_map(|segment| self.states(segment));
        states.for_each(|state| state.store(CHANGED, Ordering::Relaxed));
    }

    fn states(&self, segment: usize) -> &[AtomicU64] {
        let pages = self.pages[segment].load(Ordering::Acquire);
        self.states[segment].words(0, 8 * pages)
    }

    fn state(&self, segment: usize, page: u64) -> &AtomicU64 {
        let Some(state) = self.states(segment).get(page as usize) else {
            unreachable!("a page of a segment has no state");
        };
        state
    }
}

impl Dstore {
    /// Called before bytes of a segment change; waits for the copies of their pages, if a checkpoint needs
    /// them.
    fn before_change(
        &self,
        cow: &CopyOnWrite,
        segment: usize,
        at: u64,
        bytes: u64,
    ) -> Result<(), Error> {
        // What does not change has no place in the segment either.
        let pages = match bytes {
            0 => 0..0,
            _ => at / cow.page_bytes..(at + bytes).div_ceil(cow.page_bytes),
        };
        for page in pages {
            if cow.state(segment, page).load(Ordering::Acquire) == FROZEN {
                self.copy_page(cow, segment, page)?;
            }
            cow.state(segment, page).store(CHANGED, Ordering::Release);
        }
        Ok(())
    }

    /// Called before a slot changes, and the cells of its key and body, of so many bytes.
    #[inline]
    pub(in super::super) fn before_publish(
        &self,
        number: u64,
        slot: &Slot,
        [key_bytes, cell_bytes]: [usize; 2],
    ) -> Result<(), Error> {
        let Some(cow) = &self.cow else {
            return Ok(());
        };
        self.before_change(cow, SLOTS, number * SLOT_BYTES, SLOT_BYTES)?;
        for (cell, bytes) in [(slot.key_cell, key_bytes), (slot.body, cell_bytes)] {
            self.before_change(cow, CELLS, cell * GRAIN_BYTES, bytes as u64)?;
        }
        Ok(())
    }

    /// Copies a frozen page to the shadow, unless somebody has done so.
    fn copy_page(&self, cow: &CopyOnWrite, segment: usize, page: u64) -> Result<(), Error> {
        self.dipper.with_shadow(|shadow| {
            let state = cow.state(segment, page);
            if state.load(Ordering::Acquire) != FROZEN {
                return Ok(());
            }
            let at = page * cow.page_bytes;
            shadow.put_page(
                segment,
                at,
                &self.page_as_logged(segment, at, cow.page_bytes),
            )?;
            state.store(CLEAN, Ordering::Release);
            Ok(())
        })
    }

    /// The bytes of a page as the shadow has them: slots with their checks.
    fn page_as_logged(&self, segment: usize, at: u64, bytes: u64) -> Vec<u8> {
        let mut page = Vec::with_capacity(bytes as usize);
        if segment == SLOTS {
            let secret = self.pool.secret();
            for number in at / SLOT_BYTES..(at + bytes) / SLOT_BYTES {
                let words = match number < self.memory.slots() {
                    true => self.memory.words(number),
                    false => [0; 8],
                };
                let slot = Slot::from_words(words);
                let words = match slot.lsn {
                    0 => words,
                    _ => slot.to_checked_words(secret, number),
                };
                page.extend_from_slice(words.map(u64::to_le_bytes).as_flattened());
            }
        } else {
            let end = (at + bytes).min(self.memory.used_bytes(CELLS));
            self.memory
                .read(at / GRAIN_BYTES, end.saturating_sub(at) as usize, &mut page);
            page.resize(bytes as usize, 0);
        }
        page
    }

    /// Takes a step of a checkpoint by copy-on-write, as [`crate::dipper::Dipper::step`] of one by replay.
    pub(in super::super) fn copy_step(
        &self,
        cow: &CopyOnWrite,
        force: bool,
    ) -> Result<Step, Error> {
        let Some(mut under_way) = cow.under_way.try_lock() else {
            return Ok(Step::Waiting);
        };
        let Some(frozen) = &mut *under_way else {
            if !self.dipper.is_due(force) {
                return Ok(Step::Idle);
            }
            *under_way = Some(self.freeze(cow)?);
            return Ok(Step::Worked);
        };
        if !frozen.pages.is_empty() {
            let from = frozen.pages.len().saturating_sub(TOGETHER);
            for &(segment, page) in frozen.pages[from..].iter().rev() {
                self.copy_page(cow, segment, page)?;
            }
            frozen.pages.truncate(from);
            return Ok(Step::Worked);
        }
        let step = self.dipper.step_copied(&self.machine, frozen.epoch)?;
        if let Step::Reclaimed(_) = step {
            *under_way = None;
        }
        Ok(step)
    }

    /// Ends the epoch of the logs, and freezes the pages that were changed.
    ///
    /// # Errors
    /// The engine has halted: somebody may stay inside for ever.
    fn freeze(&self, cow: &CopyOnWrite) -> Result<Frozen, Error> {
        cow.gate.is_closed.store(true, Ordering::SeqCst);
        let mut backoff = Backoff::new();
        while cow.gate.inside.load(Ordering::SeqCst) > 0 {
            if let Err(halted) = self.healthy() {
                cow.gate.is_closed.store(false, Ordering::SeqCst);
                return Err(halted);
            }
            backoff.wait();
        }
        let epoch = self.dipper.logs.next_epoch();
        let mut pages = Vec::new();
        for segment in [SLOTS, CELLS] {
            for (page, state) in cow.states(segment).iter().enumerate() {
                if state.load(Ordering::Acquire) == CHANGED {
                    state.store(FROZEN, Ordering::Release);
                    pages.push((segment, page as u64));
                }
            }
        }
        self.dipper
            .with_shadow(|shadow| shadow.raise_floor(self.floor()));
        cow.gate.is_closed.store(false, Ordering::SeqCst);
        Ok(Frozen { epoch, pages })
    }
}
