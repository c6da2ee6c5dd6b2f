//! A lane: one thread's way to write persistent memory, and the order of persistence as types.
//!
//! ```text
//!   store ──> Dirty ──flush──> Flushed ──fence──> Ordered ──Pool::wait──> Durable
//!   stream ───────────────────> Flushed                └─> publish (a commit word that needs it)
//! ```
//!
//! - [`Dirty`]: stored, in the cache; a crash may keep it or lose it, line by line.
//! - [`Flushed`]: on its way; not ordered with anything yet.
//! - [`Ordered`]: if anything stored after the fence survives a crash, then so does everything flushed before
//!   it. It carries the log position ([`Lsn`]) that [`crate::Pool::wait`] waits for; on persistent memory it
//!   is durable already.
//! - [`crate::Durable`]: survives. Only [`crate::Pool`] makes it.
//! - [`Written`]: what the next fence will cover. Code that publishes something in DRAM shows an [`Ordered`],
//!   and debug builds check that its fence came after the stores.
//!
//! No code outside this crate can make these tokens. Code that publishes before its fence, or answers before
//! durability, does not compile.
//!
//! Every store, flush and fence of the product passes through this file (those of the superblock through
//! `carrier.rs`). The crash lab listens here. With feature `lab` each call costs one more branch; without the
//! feature that code does not exist.

use super::cpu;
use super::cpu::{FlushKind, LINE};
use super::delay::Delay;
use super::fence_number::FenceNumber;
use super::position::Lsn;
use super::region::Region;
use crate::log::Group;
use crate::pool::Pool;
use std::ops::Range;
use std::sync::Arc;

/// Stored, still in the cache.
#[must_use = "a store that is not flushed is lost in a crash"]
#[derive(Debug)]
pub struct Dirty {
    at: u64,
    bytes: u64,
}

/// Flushed (or streamed), not yet fenced.
#[must_use = "a flush that is not fenced may be lost in a crash"]
#[derive(Debug)]
pub struct Flushed(());

impl Flushed {
    /// Joins two flushes: one fence covers both.
    pub fn and(self, _other: Flushed) -> Flushed {
        self
    }

    /// Joins this to what the next fence covers.
    #[inline]
    pub fn join(self, before: &mut Option<Flushed>) {
        *before = Some(match before.take() {
            Some(before) => before.and(self),
            None => self,
        });
    }
}

/// Fenced: ordered before everything stored later.
#[must_use = "ordered is not yet durable on every medium"]
#[derive(Clone, Copy, Debug)]
pub struct Ordered {
    lsn: Lsn,
    fence: FenceNumber,
}

impl Ordered {
    /// The log position to wait for.
    #[must_use]
    pub fn lsn(&self) -> Lsn {
        self.lsn
    }

    /// For something that was found when the pool was opened, and that the finder fences before anyone else
    /// sees it: no earlier fence of this process is needed.
    pub const fn when_found() -> Ordered {
        Ordered {
            lsn: Lsn(0),
            fence: FenceNumber::found(),
        }
    }

    /// Checks that this fence covers what a lane had written; call it before publishing that.
    ///
    /// # Panics
    /// In debug builds, if the fence came before that, or on another lane. Release builds do not check.
    #[inline(always)]
    #[track_caller]
    pub fn assert_covers(&self, written: Written) {
        self.fence.assert_covers(written.0);
    }
}

/// What a lane has stored, streamed or gathered for its next fence. Only debug builds track it: see
/// [`Ordered::assert_covers`].
#[derive(Clone, Copy, Debug)]
pub struct Written(FenceNumber);

/// How this pool persists.
enum Persist {
    /// Cache lines: flush and fence instructions.
    Lines {
        kind: FlushKind,
        delay: Option<Delay>,
    },
    /// Ordinary files: lines go to the redo log.
    Redo(Group),
    /// Memory of the crash lab.
    #[cfg(feature = "lab")]
    Simulated,
}

impl Persist {
    /// Performs a store to memory. On files it first locks out the replacement of that memory.
    #[inline]
    fn during<T>(&mut self, at: u64, bytes: u64, store: impl FnOnce() -> T) -> T {
        match self {
            Persist::Redo(group) => group.during(at, bytes, store),
            _ => store(),
        }
    }
}

/// Reports this lane's events to the lab's tap, if there is one.
#[cfg(feature = "lab")]
struct TapHandle {
    tap: Option<crate::lab::TapRef>,
    actor: crate::lab::Actor,
}

#[cfg(feature = "lab")]
impl TapHandle {
    fn of(pool: &Pool) -> TapHandle {
        let tap = pool.region().tap().cloned();
        let actor = tap.as_ref().map_or(0, |tap| tap.actor());
        TapHandle { tap, actor }
    }

    /// Has the tap perform an event; returns its answer.
    #[cold]
    #[inline(never)]
    #[track_caller]
    fn report(
        &self,
        tap: &crate::lab::TapRef,
        region: &crate::memory::region::Region,
        event: crate::lab::Event<'_>,
        mut perform: impl FnMut() -> bool,
    ) -> bool {
        let site = std::panic::Location::caller();
        let actor = self.actor;
        let source = crate::lab::Source { actor, site };
        tap.event(region, source, event, &mut perform)
    }
}

/// Performs an event, and reports it to the lab where there is one. Both ways have the event's own code, so
/// that the one without a tap is what it is in builds without the lab.
macro_rules! reported {
    ($lane:ident, $event:ident $fields:tt, $perform:expr) => {{
        #[cfg(feature = "lab")]
        let happened = match &$lane.tap_handle.tap {
            None => $perform,
            Some(tap) => $lane.tap_handle.report(
                tap,
                $lane.pool.region(),
                crate::lab::Event::$event $fields,
                || $perform,
            ),
        };
        #[cfg(not(feature = "lab"))]
        let happened = $perform;
        happened
    }};
}

/// Every line that `at .. at + bytes` touches, the last one included (V7).
#[inline]
pub(crate) fn lines_of(at: u64, bytes: u64) -> Range<u64> {
    at / LINE * LINE..(at + bytes).next_multiple_of(LINE)
}

/// One thread's way to write persistent memory. Not shared; a session owns one.
pub struct Lane {
    pool: Arc<Pool>,
    persist: Persist,
    /// The last fence.
    fence: FenceNumber,
    #[cfg(feature = "lab")]
    tap_handle: TapHandle,
}

impl Pool {
    /// A lane for one thread.
    #[must_use]
    pub fn lane(self: &Arc<Self>) -> Lane {
        Lane::new(Arc::clone(self))
    }
}

impl Lane {
    pub(crate) fn new(pool: Arc<Pool>) -> Lane {
        let persist = match pool.log() {
            Some(log) => Persist::Redo(log.group()),
            #[cfg(feature = "lab")]
            None if pool.region().is_simulated() => Persist::Simulated,
            None => Persist::Lines {
                kind: pool.flush_kind(),
                delay: pool.delay(),
            },
        };
        Lane {
            #[cfg(feature = "lab")]
            tap_handle: TapHandle::of(&pool),
            pool,
            persist,
            fence: FenceNumber::first(),
        }
    }

    /// What the next fence will cover.
    #[inline(always)]
    #[must_use]
    pub fn written(&self) -> Written {
        Written(self.fence.next())
    }

    /// The pool this lane writes.
    #[must_use]
    pub fn pool(&self) -> &Arc<Pool> {
        &self.pool
    }

    /// Stores bytes; `at` and the length are multiples of 8. Others may see each word at once.
    ///
    /// # Panics
    /// If the range is outside the pool or unaligned.
    #[inline]
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn store(&mut self, at: u64, bytes: &[u8]) -> Dirty {
        let region = self.pool.region();
        let (persist, length) = (&mut self.persist, bytes.len() as u64);
        reported!(
            self,
            Store {
                at,
                bytes,
                kind: crate::lab::StoreKind::Bulk
            },
            {
                persist.during(at, length, || region.store(at, bytes));
                true
            }
        );
        Dirty {
            at,
            bytes: bytes.len() as u64,
        }
    }

    /// Stores one aligned word; never torn, also by a crash.
    ///
    /// # Panics
    /// As [`Lane::store`].
    #[inline]
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn store_word(&mut self, at: u64, word: u64) -> Dirty {
        let region = self.pool.region();
        let persist = &mut self.persist;
        reported!(
            self,
            Store {
                at,
                bytes: &word.to_le_bytes(),
                kind: crate::lab::StoreKind::Word
            },
            {
                persist.during(at, 8, || region.store_word(at, word));
                true
            }
        );
        Dirty { at, bytes: 8 }
    }

    /// Compare-and-swap of one aligned word; `Err` is the word found.
    ///
    /// # Errors
    /// The word that was there instead of `old`.
    ///
    /// # Panics
    /// As [`Lane::store`].
    #[inline]
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn exchange_word(&mut self, at: u64, old: u64, new: u64) -> Result<Dirty, u64> {
        let region = self.pool.region();
        let persist = &mut self.persist;
        let mut found = old;
        reported!(
            self,
            Store {
                at,
                bytes: &new.to_le_bytes(),
                kind: crate::lab::StoreKind::Word
            },
            persist.during(at, 8, || exchange(region, at, &mut found, new))
        )
        .then_some(Dirty { at, bytes: 8 })
        .ok_or(found)
    }

    /// As [`Lane::exchange_word`], for a word whose loss in a crash is harmless even after an
    /// acknowledgement. It stays in the cache; [`Lane::flush_range`] makes it durable later. The crash lab
    /// demands of every other store that it is durable when an answer is given.
    ///
    /// # Errors
    /// As [`Lane::exchange_word`].
    ///
    /// # Panics
    /// As [`Lane::store`].
    #[inline]
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn exchange_word_late(&mut self, at: u64, old: u64, new: u64) -> Result<(), u64> {
        let region = self.pool.region();
        let persist = &mut self.persist;
        let mut found = old;
        reported!(
            self,
            Store {
                at,
                bytes: &new.to_le_bytes(),
                kind: crate::lab::StoreKind::Late
            },
            persist.during(at, 8, || exchange(region, at, &mut found, new))
        )
        .then_some(())
        .ok_or(found)
    }

    /// A commit word: an aligned 8-byte store that may only follow a fence.
    ///
    /// # Panics
    /// As [`Lane::store`].
    #[inline]
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn publish(&mut self, at: u64, word: u64, _after: &Ordered) -> Dirty {
        self.store_word(at, word)
    }

    /// Writes whole lines past the cache (non-temporal); `at` and the length are multiples of 64. The caller
    /// owns these lines: no other thread writes them until they are fenced.
    ///
    /// # Panics
    /// As [`Lane::store`].
    #[inline]
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn stream(&mut self, at: u64, lines: &[u8]) -> Flushed {
        let region = self.pool.region();
        let persist = &mut self.persist;
        reported!(
            self,
            Store {
                at,
                bytes: lines,
                kind: crate::lab::StoreKind::Stream
            },
            {
                match persist {
                    Persist::Lines { kind, delay } => {
                        region.stream(*kind, at, lines);
                        if let Some(delay) = delay {
                            delay.flush(lines.len() as u64 / LINE);
                        }
                    }
                    Persist::Redo(group) => {
                        group.during(at, lines.len() as u64, || region.store(at, lines));
                        group.push_lines(at, lines);
                    }
                    #[cfg(feature = "lab")]
                    Persist::Simulated => region.store(at, lines),
                }
                true
            }
        );
        Flushed(())
    }

    /// Starts writing back what a store touched.
    #[inline]
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn flush(&mut self, dirty: Dirty) -> Flushed {
        let Dirty { at, bytes } = dirty;
        let lines = lines_of(at, bytes);
        let region = self.pool.region();
        debug_assert!(region.contains(at, bytes), "a flush lies outside the pool");
        let persist = &mut self.persist;
        reported!(
            self,
            Flush {
                at: lines.start,
                bytes: lines.end - lines.start
            },
            {
                match persist {
                    Persist::Lines { kind, delay } => {
                        region.flush(*kind, lines.clone());
                        if let Some(delay) = delay {
                            delay.flush((lines.end - lines.start) / LINE);
                        }
                    }
                    Persist::Redo(group) => group.push_shared(at, bytes),
                    #[cfg(feature = "lab")]
                    Persist::Simulated => {}
                }
                true
            }
        );
        Flushed(())
    }

    /// Flushes a range again, whichever thread stored it.
    ///
    /// # Panics
    /// If the range is outside the pool.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn flush_range(&mut self, at: u64, bytes: u64) -> Flushed {
        assert!(self.pool.region().contains(at, bytes));
        self.flush(Dirty { at, bytes })
    }

    /// Flushes what was there when the pool was opened. A killed process leaves stores that can be read but
    /// exist only in caches; recovery must make them durable before relying on them. The delay model does not
    /// count this: clean lines cost nothing. On files this does nothing, since memory was read from what is
    /// durable.
    ///
    /// # Panics
    /// If the range is outside the pool.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn flush_found(&mut self, at: u64, bytes: u64) -> Flushed {
        let region = self.pool.region();
        assert!(region.contains(at, bytes));
        let lines = lines_of(at, bytes);
        let persist = &mut self.persist;
        reported!(
            self,
            Flush {
                at: lines.start,
                bytes: lines.end - lines.start
            },
            {
                if let Persist::Lines { kind, .. } = persist {
                    region.flush(*kind, lines.clone());
                }
                true
            }
        );
        Flushed(())
    }

    /// Orders everything this lane flushed before everything it stores later.
    #[inline]
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn fence(&mut self, _flushed: Flushed) -> Ordered {
        let persist = &mut self.persist;
        let mut lsn = Lsn(0);
        reported!(self, Fence {}, {
            match persist {
                Persist::Lines { delay, .. } => {
                    cpu::fence();
                    if let Some(delay) = delay {
                        delay.fence();
                    }
                }
                Persist::Redo(group) => lsn = group.close(),
                #[cfg(feature = "lab")]
                Persist::Simulated => {}
            }
            true
        });
        self.fence = self.fence.next();
        Ordered {
            lsn,
            fence: self.fence,
        }
    }
}

/// Replaces `found` by `new`; on failure `found` becomes the actual word.
#[inline]
fn exchange(region: &Region, at: u64, found: &mut u64, new: u64) -> bool {
    match region.exchange_word(at, *found, new) {
        Ok(()) => true,
        Err(other) => {
            *found = other;
            false
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pool::superblock::DATA_AT;

    #[test]
    fn a_record_is_written_published_and_found() {
        let pool = Pool::heap(1 << 18, 0, [0; 8]);
        let mut lane = pool.lane();
        let record = lane.stream(DATA_AT, &[9; 128]);
        let count = lane.store_word(DATA_AT + 192, 1);
        let count = lane.flush(count);
        let ordered = lane.fence(record.and(count));
        let pointer = lane.publish(DATA_AT + 256, DATA_AT, &ordered);
        let pointer = lane.flush(pointer);
        let ordered = lane.fence(pointer);
        assert!(ordered.lsn() <= pool.durable());
        assert!(pool.wait(ordered.lsn()).is_ok());
        let mut found = [0; 128];
        pool.region()
            .load(pool.region().load_word(DATA_AT + 256), &mut found);
        assert_eq!(found, [9; 128]);
    }

    /// Debug builds detect a publication before its own fence, or after another lane's.
    #[test]
    #[cfg(debug_assertions)]
    fn a_fence_covers_what_its_lane_wrote_before_it() {
        let pool = Pool::heap(1 << 18, 0, [0; 8]);
        let mut lanes = [pool.lane(), pool.lane()];
        let [(early, first), (late, second), (others, other)] = [0, 0, 1].map(|number: usize| {
            let lane = &mut lanes[number];
            let flushed = lane.stream(DATA_AT, &[9; 64]);
            (lane.written(), lane.fence(flushed))
        });
        first.assert_covers(early);
        second.assert_covers(early);
        second.assert_covers(late);
        other.assert_covers(others);
        for (ordered, written) in [(first, late), (second, others), (other, early)] {
            let covers = std::panic::catch_unwind(|| ordered.assert_covers(written));
            assert!(covers.is_err(), "{ordered:?} for {written:?}");
        }
    }

    #[test]
    fn lanes_that_exchange_a_word_lose_no_update() {
        let pool = Pool::heap(1 << 18, 0, [0; 8]);
        let rounds = if cfg!(miri) { 20 } else { 10_000 };
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    let mut lane = pool.lane();
                    for _ in 0..rounds {
                        let mut old = pool.region().load_word(DATA_AT);
                        let dirty = loop {
                            match lane.exchange_word(DATA_AT, old, old + 1) {
                                Ok(dirty) => break dirty,
                                Err(found) => old = found,
                            }
                        };
                        let flushed = lane.flush(dirty);
                        let _ordered = lane.fence(flushed);
                    }
                });
            }
        });
        assert_eq!(pool.region().load_word(DATA_AT), 2 * rounds);
    }
}
