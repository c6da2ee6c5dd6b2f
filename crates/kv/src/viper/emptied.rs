//! Emptied blocks: between the last record moved out and the free list.
//!
//! A block is freed when nobody can be at work in it any more: no reader that found a location in it, no writer that
//! marked a record in it and has still to change the index. Both are pinned. Then every mark is made durable that
//! keeps an older copy of one of its dead records dead, and the free page word is stored and fenced (V14).
//!
//! Blocks that were emptied before others may be freed after them, but not after blocks that were *filled* when they
//! were emptied: of two copies that compaction made of a record, the older one has no mark. So all are freed before
//! the next blocks are chosen.

use super::blocks::{Info, State};
use super::layout::{Kind, page_word};
use super::session::ViperSession;
use super::{Viper, bump_shared};
use crate::broken::Hole;
use crate::error::Error;
use crate::stripe::Patience;
use std::sync::Arc;
use std::sync::atomic::Ordering;

struct Emptied {
    block: u32,
    info: Info,
    grace: u64,
}

/// Blocks that wait for readers.
#[derive(Default)]
pub(super) struct EmptiedBlocks(Vec<Emptied>);

impl EmptiedBlocks {
    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes blocks whose records have all moved or died.
    pub(super) fn add(&mut self, viper: &Viper, blocks: &[(u32, Info)]) {
        if blocks.is_empty() {
            return;
        }
        let grace = viper.epochs.advance();
        self.0.extend(
            blocks
                .iter()
                .map(|&(block, info)| Emptied { block, info, grace }),
        );
    }

    /// Frees those that no reader can be in. Returns how many.
    pub(super) fn free_passed(&mut self, viper: &Viper, session: &mut ViperSession) -> u64 {
        let at_once = viper.is_broken(Hole::V14);
        let newest = self.0.iter().map(|emptied| emptied.grace).max();
        viper.epochs.ask(newest);
        let is_ready = |grace| at_once || viper.epochs.is_known_to_have_passed(grace);
        let (ready, waiting): (Vec<_>, Vec<_>) = std::mem::take(&mut self.0)
            .into_iter()
            .partition(|emptied| is_ready(emptied.grace));
        self.0 = waiting;
        if ready.is_empty() {
            return 0;
        }
        if at_once {
            free_at_once(viper, &ready);
        } else {
            free(viper, session, &ready);
        }
        bump_shared(&viper.blocks_reclaimed, ready.len() as u64);
        ready.len() as u64
    }

    /// Frees all, waiting for their readers. Returns how many there were.
    pub(super) fn free_all(&mut self, viper: &Viper, session: &mut ViperSession) -> u64 {
        let mut patience = Patience::new();
        let mut freed = 0;
        loop {
            freed += self.free_passed(viper, session);
            if self.is_empty() {
                return freed;
            }
            patience.wait();
        }
    }
}

fn free(viper: &Viper, session: &mut ViperSession, ready: &[Emptied]) {
    viper.fence_marks(session);
    for &Emptied { block, info, .. } in ready {
        let at = viper.blocks.at(block);
        let word = page_word(viper.pool.secret(), at, Kind::Free, info.epoch);
        let dirty = session.lane.store_word(at, word);
        let flushed = session.lane.flush(dirty);
        session.unfenced.add(flushed);
    }
    session.settle_and_fence();
    for &Emptied { block, info, .. } in ready {
        viper.blocks.release(block, viper.last_life(info.epoch));
    }
}

/// Hole V14: nobody is waited for, and the pool does not know that the blocks are free.
fn free_at_once(viper: &Viper, ready: &[Emptied]) {
    for &Emptied { block, info, .. } in ready {
        viper.blocks.release(block, info.epoch);
    }
}

impl Viper {
    /// Blocks until no reader can hold a location from before `epoch`.
    pub(super) fn wait_for_readers(&self, epoch: u64) {
        let mut patience = Patience::new();
        while !self.epochs.passed(epoch) {
            patience.wait();
        }
    }

    /// Makes durable, of the marks that sessions left in the cache, those that keep elders dead of what is about to be
    /// dropped.
    ///
    /// Of each record that the caller is about to drop it has seen the mark, so whoever set that had the key's lock
    /// after the session that marked the key's older copy had listed or noted that mark.
    pub(super) fn fence_marks(&self, session: &mut ViperSession) {
        self.flush_listed_marks(session);
        // Whatever was replaced has a newer record that keeps its elders dead; only what was removed has none.
        if self.late_marks.take_removals() {
            self.flush_late_marks(session);
        }
        session.settle_and_fence();
    }

    /// Makes all marks durable that sessions left in the cache.
    pub(super) fn fence_all_marks(&self, session: &mut ViperSession) {
        self.flush_listed_marks(session);
        self.flush_late_marks(session);
        session.settle_and_fence();
    }

    /// As [`Viper::fence_all_marks`], so that the next open finds less to do.
    pub(super) fn fence_marks_at_close(self: &Arc<Self>) -> Result<(), Error> {
        if self.healthy().is_ok() {
            self.fence_all_marks(&mut ViperSession::new(Arc::clone(self))?);
        }
        Ok(())
    }

    fn flush_listed_marks(&self, session: &mut ViperSession) {
        for slot in self.slots.iter().take(self.epochs.slots_used()) {
            let len = slot.marks_len.load(Ordering::Acquire);
            for mark in slot.marks.iter().take(len) {
                let at = mark.load(Ordering::Acquire);
                if at != 0 && self.pool.region().contains(at, 8) {
                    let flushed = session.lane.flush_range(at, 8);
                    session.unfenced.add(flushed);
                }
            }
        }
    }

    /// Flushes the marks of all noted pages; see `late.rs`.
    fn flush_late_marks(&self, session: &mut ViperSession) {
        self.late_marks.take(|page_at| {
            let block = self.blocks.number(page_at);
            let info = self.blocks.get(block).map(|entry| entry.info());
            // A free block has no records left that a mark would keep dead.
            if let Some(info) = info.filter(|info| info.state != State::Free) {
                let marks = 8 * self.geometry.pages_of(info.kind).mark_words;
                let flushed = session.lane.flush_range(page_at + 16, marks);
                session.unfenced.add(flushed);
            }
        });
    }
}

#[cfg(all(test, feature = "lab"))]
mod tests {
    use super::super::layout::Geometry;
    use super::super::reclaim::Step;
    use super::super::victims::Goal;
    use super::*;
    use crate::engine::EngineSession;
    use crate::kind::EngineKind;
    use crate::options::Options;
    use everdram_pm::Region;
    use everdram_pm::lab::{self, Actor, Event, Perform, Source, Tap};
    use parking_lot::Mutex;
    use std::path::Path;
    use std::sync::Arc;

    const CAPACITY: u64 = 256 << 10;

    /// Does something before the next fence.
    #[derive(Default)]
    struct BeforeFence(Mutex<Option<Box<dyn FnOnce() + Send>>>);

    impl Tap for BeforeFence {
        fn actor(&self) -> Actor {
            0
        }

        fn event(&self, _: &Region, _: Source, event: Event<'_>, perform: Perform<'_>) -> bool {
            if let Event::Fence = event {
                let work = self.0.lock().take();
                if let Some(work) = work {
                    work();
                }
            }
            perform()
        }

        fn load(&self, _: &Region, _: u64, _: u64) {}
    }

    fn viper(tap: Arc<BeforeFence>) -> Arc<Viper> {
        let options = Options {
            initial_bytes: 16 << 10,
            chunk_bytes: 16 << 10,
            max_bytes: CAPACITY,
            reclaim_threshold: 0.05,
            reclaim_background: false,
            ..Options::default()
        };
        let words = Geometry::new(512, 2, None).unwrap().to_words();
        let image = lab::create(lab::Seed(7), EngineKind::Viper.number(), words).unwrap();
        let pool = lab::open(&image, CAPACITY, Some(tap)).unwrap();
        Viper::over(pool, Path::new("lab"), &options).unwrap()
    }

    /// Compaction left marked records where they were without a look at the index. A delete sets its mark before the
    /// fence and changes the index after it: meanwhile the block went, and readers were led into its next life.
    #[test]
    fn a_block_is_not_freed_under_a_delete() {
        let tap = Arc::new(BeforeFence::default());
        let viper = viper(Arc::clone(&tap));
        let mut user = ViperSession::new(Arc::clone(&viper)).unwrap();
        user.put(b"key", &[1; 100], 0).unwrap();
        for _ in 0..12 {
            user.put(b"other", &[7; 180], 0).unwrap();
        }
        user.commit_pending().unwrap();
        let hash = viper.hash(b"key");
        let place = user.locate(hash, b"key").unwrap().unwrap().location;
        let block = viper.blocks.number(place.get() * super::super::read::UNIT);
        let life = viper.blocks.get(block).unwrap().info();
        let compact = |viper: &Viper| {
            let mut compactor = viper.compactor();
            while compactor.step(viper, Goal::Threshold, 64).unwrap() == Step::Worked {}
        };
        let meanwhile = Arc::clone(&viper);
        *tap.0.lock() = Some(Box::new(move || {
            compact(&meanwhile);
            let taken = meanwhile.blocks.get(block).unwrap().info();
            assert_eq!((taken.kind, taken.epoch), (life.kind, life.epoch));
            assert_ne!(taken.state, life.state, "compaction did not take the block");
        }));
        assert!(user.delete(b"key").unwrap());
        user.commit_pending().unwrap();
        assert!(tap.0.lock().is_none(), "the delete had no fence");
        compact(&viper);
        assert_eq!(viper.blocks.get(block).unwrap().info().kind, Kind::Free);
    }
}
