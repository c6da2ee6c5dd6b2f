//! The holes that can be opened on purpose ([`Hole`]), so that the crash lab can show that it finds them.
//!
//! Without feature `broken` the answer of [`Viper::is_broken`] is a constant, and none of this is left in the
//! program. Whatever is done differently in a broken engine is behind that question.

use super::Viper;
use super::block_table::State;
use super::layout::{Kind, MARKS_PER_WORD, mark_word};
use super::lookup::rehash;
use super::read::{Page, Spot, UNIT};
use super::record::Stamp;
use super::session::{Pending, ViperSession};
use crate::broken::Hole;
use crate::error::Error;
use crate::error::corrupt;
use crate::index::Location;
use everdram_pm::{Dirty, Ordered, ROOT_AT};

/// Hole V4: where the count of used blocks lies, in a line of its own of the root page.
const COUNT_AT: u64 = ROOT_AT + 64;

impl Viper {
    /// Whether `hole` is open.
    #[cfg(feature = "broken")]
    pub(super) fn is_broken(&self, hole: Hole) -> bool {
        self.broken == Some(hole)
    }

    /// Whether `hole` is open: never.
    #[cfg(not(feature = "broken"))]
    #[inline(always)]
    pub(super) const fn is_broken(&self, _hole: Hole) -> bool {
        false
    }

    /// Whether recovery prefers the first of two records of one key. Hole V1: the one that lies further on.
    pub(super) fn wins(&self, one: (Location, Stamp), other: (Location, Stamp)) -> bool {
        if self.is_broken(Hole::V1) {
            return one.0.get() > other.0.get();
        }
        one.1.order() > other.1.order()
    }

    /// What recovery takes a block for. Hole V4: beyond the count of used blocks everything is free.
    pub(super) fn believed_kind(&self, block: u32, kind: Kind) -> Kind {
        if !self.is_broken(Hole::V4) {
            return kind;
        }
        let used = self.pool.region().load_word(COUNT_AT);
        let before = self.blocks.all().take_while(|&other| other != block);
        match (before.count() as u64) < used {
            true => kind,
            false => Kind::Free,
        }
    }

    /// The epoch after which a freed block goes on. Hole V10: the life that has ended is lived again.
    pub(super) fn last_life(&self, epoch: u32) -> u32 {
        match self.is_broken(Hole::V10) {
            true => epoch.wrapping_sub(1),
            false => epoch,
        }
    }

    /// Hole V5: whether a page was found locked after a crash. Nobody is left to give that lock back.
    fn is_locked_page(&self, spot: &Spot) -> bool {
        let (at, bit) = page_lock(&self.reader().page(spot));
        spot.info.state == State::Sealed && self.pool.region().load_word(at) & bit != 0
    }

    /// Hole V5: the records of a locked page cannot be read or replaced; whoever waits for it waits for ever.
    pub(super) fn refuse_locked_page(&self, spot: &Spot) -> Result<(), Error> {
        if !self.is_broken(Hole::V5) {
            return Ok(());
        }
        match self.is_locked_page(spot) {
            true => Err(corrupt(spot.block_at, "a page is locked for ever")),
            false => Ok(()),
        }
    }

    /// Hole V5: a block with a locked page belongs to somebody and is not reclaimed.
    pub(super) fn has_locked_page(&self, block: u32) -> bool {
        if !self.is_broken(Hole::V5) {
            return false;
        }
        let (reader, at) = (self.reader(), self.blocks.at(block));
        let steps = (0..self.geometry.block_bytes).step_by(self.geometry.page_bytes as usize);
        let mut spots = steps.filter_map(|within| reader.spot(at + within).ok());
        spots.any(|spot| self.is_locked_page(&spot))
    }
}

/// Hole V5: where a page's lock lies: the last bit of its marks, which no record needs.
fn page_lock(page: &Page<'_>) -> (u64, u64) {
    let last = page.at + 16 + 8 * (page.pages.mark_words - 1);
    (last, 1 << (MARKS_PER_WORD - 1))
}

impl ViperSession {
    /// Hole V3: `look` before the key's lock is there, which is all the looking there is.
    pub(super) fn early<T>(
        &mut self,
        look: impl FnOnce(&mut Self) -> Result<T, Error>,
    ) -> Result<Option<T>, Error> {
        if !self.engine.is_broken(Hole::V3) {
            return Ok(None);
        }
        // What the session itself has submitted is not what it is late for.
        self.commit_pending()?;
        look(self).map(Some)
    }

    /// The index entry that a write changes: of the record it replaces, which the key's lock keeps there.
    /// Holes V2 and V3: whichever the key has.
    pub(super) fn entry_of(&mut self, write: &Pending) -> Option<Location> {
        let moved_blindly = write.moved && self.engine.is_broken(Hole::V2);
        if !moved_blindly && !self.engine.is_broken(Hole::V3) {
            return write.old().map(|old| old.location);
        }
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let pin = slot.pin();
        engine.index.lookup(write.hash, &pin, |location| {
            rehash(engine, location, scratch) == Some(write.hash)
        })
    }

    /// Hole V4: counts blocks that were handed out some time ago; the next fence covers the count.
    pub(super) fn count_used_blocks(&mut self, more: u64) {
        if !self.engine.is_broken(Hole::V4) {
            return;
        }
        loop {
            let count = self.engine.pool.region().load_word(COUNT_AT);
            if let Ok(dirty) = self.lane.exchange_word(COUNT_AT, count, count + more) {
                self.unfenced.add(self.lane.flush(dirty));
                return;
            }
        }
    }

    /// Hole V5: locks the page of a record that is being written; the next fence covers the lock.
    pub(super) fn lock_page(&mut self, location: Location) -> Result<(), Error> {
        if self.engine.is_broken(Hole::V5) {
            let dirty = self.set_page_lock(location, true)?;
            self.unfenced.add(self.lane.flush(dirty));
        }
        Ok(())
    }

    /// Hole V5: gives the locks of pages back whose records are fenced, without a flush.
    pub(super) fn unlock_pages(&mut self, pending: &[Pending]) {
        if self.engine.is_broken(Hole::V5) {
            for location in pending.iter().filter_map(|write| write.new) {
                let _ = self.set_page_lock(location, false);
            }
        }
    }

    /// As [`ViperSession::unlock_pages`], of everything submitted so far.
    pub(super) fn unlock_pending_pages(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        self.unlock_pages(&pending);
        self.pending = pending;
    }

    fn set_page_lock(&mut self, location: Location, locked: bool) -> Result<Dirty, Error> {
        let spot = self.engine.reader().spot(location.get() * UNIT)?;
        let (at, bit) = page_lock(&self.engine.reader().page(&spot));
        loop {
            let reader = self.engine.reader();
            let (secret, epoch) = (reader.pool.secret(), spot.info.epoch);
            let bits = reader.marks(at, epoch)?;
            let old = mark_word(secret, at, epoch, bits);
            let bits = if locked { bits | bit } else { bits & !bit };
            let new = mark_word(secret, at, epoch, bits);
            if let Ok(dirty) = self.lane.exchange_word(at, old, new) {
                return Ok(dirty);
            }
        }
    }

    /// Hole V12: readers get the new records while they are on their way.
    pub(super) fn fence_after_publishing(&mut self, pending: &[Pending]) -> Result<(), Error> {
        self.settle();
        for write in pending {
            self.repoint(write, &Ordered::when_found())?;
        }
        let ordered = self.settle_and_fence();
        for write in pending {
            self.stamp(write, &ordered);
            self.mark_old_dead(write)?;
        }
        Ok(())
    }
}
