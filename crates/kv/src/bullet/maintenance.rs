//! Background work: gleaning, growth of both tables, removal of expired and cleared keys.
//!
//! A background thread does it, and so do sessions that wait for log room. The crash lab runs no such thread
//! and asks for each step.

use super::Bullet;
use super::WAITS_MAX;
use super::gleaner::{Gleaner, Work};
use super::session::BulletSession;
use super::table::Array;
use crate::concurrency::epoch::Slot;
use crate::concurrency::stripes::Backoff;
use crate::crl::Step;
use crate::engine::Recovered;
use crate::engine::backend::Backend;
use crate::engine::counters::bump;
use crate::engine::damage::Damage;
use crate::engine::session::remove_expired;
use crate::error::Error;
use crate::heap::Claim;
use crate::stats::Inspection;
use everdram_pm::lock::lock;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Time between two rounds of the background thread, unless a session wakes it.
const PERIOD: Duration = Duration::from_millis(5);
/// Rounds without a write after which everything is gleaned.
const QUIET: u32 = 20;
/// Pieces of the tables in which one round looks for expired keys.
const EXPIRY_PIECES: usize = 64;
/// Buckets that one round moves.
const BUCKETS: usize = 256;

/// Held while a thread moves buckets of a growing table.
#[derive(Default)]
pub(super) struct Growing {
    pub(super) front: Mutex<FrontGrowth>,
    pub(super) back: Mutex<()>,
}

/// Growth of the front under way.
#[derive(Default)]
pub(super) struct FrontGrowth {
    claim: Option<Claim>,
    /// Arrays that readers may still access, with the stamp after which none does.
    arrays: Vec<(u64, Array)>,
}

impl Bullet {
    /// Takes a step of gleaning, for a caller that waits.
    ///
    /// # Errors
    /// As [`Bullet::step`].
    pub(super) fn assist(&self, urgent: bool) -> Result<Work, Error> {
        self.healthy()?;
        let _working = self.gleaning.working.read();
        let Some(mut gleaner) = self.take_gleaner() else {
            return Ok(Work::ForOthers);
        };
        let step = self.step(&mut gleaner, urgent);
        // Gleaning fills the back, so it also grows the table, as far as room allows: chains stay short.
        // Starting a growth may grow the pool; workers leave that to the background.
        let is_for_others = self.leaves_growing(urgent) && self.back.table.moving().is_none();
        let grown = match is_for_others {
            true => Ok(false),
            false => gleaner.grow_back(self, BUCKETS),
        };
        self.put_back(gleaner);
        if let Err(error @ (Error::Corrupt { .. } | Error::Pool(_))) = grown {
            return Err(self.at_path(error));
        }
        Ok(match step? {
            Step::Worked | Step::Reclaimed(_) => Work::Done,
            Step::Waiting | Step::Idle => Work::ForOthers,
        })
    }

    /// Returns a gleaner for reuse. In a tight pool it gives back its chunk, too.
    pub(super) fn put_back(&self, mut gleaner: Gleaner) {
        assert!(
            gleaner.is_at_rest(),
            "a gleaner is returned with uncommitted changes"
        );
        if self.is_tight() {
            self.back.heap.let_go(&mut gleaner.claim);
        }
        self.gleaning.gleaners.lock().push(gleaner);
    }

    pub(super) fn take_gleaner(&self) -> Option<Gleaner> {
        let idle = self.gleaning.gleaners.lock().pop();
        idle.or_else(|| Gleaner::new(self))
    }

    /// Gleans and reclaims everything in the logs, and gives back what that frees. The caller holds no log.
    /// Uncommitted writes of other sessions delay it; it waits for them only a while.
    ///
    /// # Errors
    /// As [`Bullet::step`].
    pub(super) fn glean_all(&self) -> Result<(), Error> {
        // One epoch more: the next pass frees what this one replaces.
        let wanted = self.logs.epoch() + 1;
        let (mut backoff, mut waits) = (Backoff::new(), 0);
        while self.logs.reclaimed() < wanted && waits < WAITS_MAX {
            if self.is_tidy() {
                break;
            }
            if self.assist(true)? == Work::ForOthers {
                waits += 1;
                backoff.wait();
            }
        }
        self.give_back_all();
        Ok(())
    }

    /// Whether a pass has nothing to glean and nothing to free.
    pub(super) fn is_tidy(&self) -> bool {
        self.logs.are_empty() && self.gleaning.later.lock().is_empty()
    }

    /// Gives back retired memory that no reader can access any more.
    pub(super) fn give_back_all(&self) {
        for mut gleaner in self.gleaners_at_rest() {
            gleaner.give_back_all(self);
            self.put_back(gleaner);
        }
        let mut retired = lock(&self.retired_nodes);
        retired.take_now(&self.epochs, |(at, bytes)| self.front.give_back(at, bytes));
        drop(retired);
        self.free_evicted(true);
    }

    /// All gleaners, if soon no thread uses one; otherwise the idle ones.
    fn gleaners_at_rest(&self) -> Vec<Gleaner> {
        let mut backoff = Backoff::new();
        for _ in 0..WAITS_MAX {
            if let Some(_at_rest) = self.gleaning.working.try_write() {
                return std::mem::take(&mut *self.gleaning.gleaners.lock());
            }
            backoff.wait();
        }
        std::mem::take(&mut *self.gleaning.gleaners.lock())
    }

    /// Gives back nodes of ended sessions that no reader can access any more.
    fn free_retired_nodes(&self) {
        let mut retired = lock(&self.retired_nodes);
        retired.take(&self.epochs, |(at, bytes)| self.front.give_back(at, bytes));
    }

    /// Moves buckets of the front to a longer array, if it needs one. `false`: there is nothing to do.
    fn grow_front(&self, slot: &Slot, buckets: usize) -> Result<bool, Error> {
        let Some(mut growth) = self.growing.front.try_lock() else {
            return Ok(false);
        };
        let FrontGrowth { claim, arrays } = &mut *growth;
        self.epochs.ask(arrays.last().map(|(stamp, _)| *stamp));
        arrays.retain(|(stamp, array)| {
            let passed = self.epochs.is_known_to_have_passed(*stamp);
            if passed {
                self.front.give_back_array(*array);
            }
            !passed
        });
        let table = &self.front.table;
        let Some((old, mut number)) = table.moving() else {
            let (nodes, depth) = (self.nodes(), table.current().depth());
            // Somewhat longer chains are better than evicting nodes for the array; long chains are worse.
            let may_be_crowded = !self.front.budget.has_room(Array::bytes_of(depth + 1));
            if nodes <= 5 << depth || may_be_crowded && nodes <= 20 << depth {
                return Ok(false);
            }
            table.start(self.front.array(table.current().depth() + 1)?);
            return Ok(true);
        };
        let mut dropped = Vec::new();
        let mut moved = Ok(());
        for _ in 0..buckets {
            if number == 1 << old.depth() {
                table.finish();
                arrays.push((self.epochs.advance(), old));
                break;
            }
            let stripe = self.stripe(number << (64 - old.depth()));
            if !self.stripes.try_lock(stripe, slot.number() as u16) {
                break;
            }
            moved = self.front.split(number, claim, &mut dropped);
            self.stripes.unlock(stripe);
            if moved.is_err() {
                break;
            }
            number += 1;
        }
        let mut retired = lock(&self.retired_nodes);
        dropped
            .into_iter()
            .for_each(|line| retired.push((line, everdram_pm::LINE)));
        moved.map(|()| true)
    }

    /// Grows the front for `nodes` nodes. The caller uses it alone.
    pub(super) fn grow_front_now(
        &self,
        nodes: i64,
        claim: &mut Option<Claim>,
    ) -> Result<(), Error> {
        let table = &self.front.table;
        while self.front.is_short_of_buckets(nodes) {
            table.start(self.front.array(table.current().depth() + 1)?);
            let mut dropped = Vec::new();
            while let Some((old, number)) = table.moving() {
                if number == 1 << old.depth() {
                    table.finish();
                    self.front.give_back_array(old);
                    break;
                }
                self.front.split(number, claim, &mut dropped)?;
            }
            dropped
                .into_iter()
                .for_each(|line| self.front.give_back(line, everdram_pm::LINE));
        }
        Ok(())
    }

    /// Gleans, unless a worker pool does or background reclamation is off; if `urgent`, in any case.
    fn step_by_itself(&self, gleaner: &mut Gleaner, urgent: bool) -> Result<bool, Error> {
        if !urgent && (!self.gleaning.by_itself || self.gleaning.roles.has_workers()) {
            return Ok(false);
        }
        Ok(matches!(
            self.step(gleaner, urgent)?,
            Step::Worked | Step::Reclaimed(_)
        ))
    }

    /// One round of background work. `false`: there was nothing to do.
    fn tend_some(self: &Arc<Self>, cursor: &mut u64, urgent: bool) -> Result<bool, Error> {
        if self.healthy().is_err() {
            return Ok(false);
        }
        let working = self.gleaning.working.read();
        let Some(mut gleaner) = self.take_gleaner() else {
            return Ok(false);
        };
        // Each job runs even if an earlier one failed: it may free the room that the earlier one lacked.
        let evicted = self.keep_budget(&gleaner.slot);
        // If no node may leave the front, gleaning helps: applied nodes may leave.
        let is_pinned = self.front.budget.excess() > 0 && !evicted && self.gleaning.by_itself;
        let results = [
            Ok(evicted),
            self.grow_front(&gleaner.slot, BUCKETS),
            self.step_by_itself(&mut gleaner, urgent || is_pinned),
            gleaner.grow_back(self, BUCKETS),
            gleaner.sweep_cleared(self),
        ];
        self.put_back(gleaner);
        self.free_retired_nodes();
        drop(working);
        let mut worked = false;
        let mut failed = Ok(());
        for result in results {
            match result {
                Ok(one) => worked |= one,
                Err(error) => failed = Err(self.at_path(error)),
            }
        }
        if (!worked || failed.is_err()) && self.expiries.load(Ordering::Relaxed) {
            self.sweep_expired(cursor)?;
        }
        failed.map(|()| worked)
    }
}

impl Bullet {
    /// Removes expired keys of the next pieces of the tables.
    fn sweep_expired(self: &Arc<Self>, cursor: &mut u64) -> Result<(), Error> {
        let mut session = BulletSession::new(Arc::clone(self))?;
        let mut expired: Vec<Vec<u8>> = Vec::new();
        let mut failed = Ok(());
        for _ in 0..EXPIRY_PIECES {
            let walked = self.walk(&session.slot, *cursor, true, &mut |one| {
                expired.push(one.key.to_vec());
            });
            // Damage in one piece does not keep the others from being swept.
            *cursor = walked.unwrap_or_else(|error| {
                failed = Err(error);
                self.piece_end(*cursor)
            });
            if *cursor == 0 {
                break;
            }
        }
        for key in &expired {
            if remove_expired(&mut session, key)? {
                bump(&session.counters().expired, 1);
            }
        }
        session.commit_pending().and(failed)
    }
}

impl Recovered for Bullet {
    fn start(self: Arc<Self>) {
        let (mut cursor, mut written, mut quiet) = (0, 0, 0);
        let weak = Arc::downgrade(&self);
        self.background
            .start(weak, "everdram-bullet", &self.halted, move |bullet, _| {
                let now = bullet.logs.written();
                quiet = if now == written { quiet + 1 } else { 0 };
                written = now;
                // An error here (full pool, failed medium, damage) meets the next caller again, which returns
                // it.
                let urgent = quiet >= QUIET && bullet.gleaning.by_itself;
                match bullet.tend_some(&mut cursor, urgent) {
                    Ok(true) => Duration::ZERO,
                    Ok(false) | Err(_) => PERIOD,
                }
            });
    }

    fn damage(&self) -> Option<&Arc<Damage>> {
        self.damage.as_ref()
    }

    fn describe(&self, inspection: &mut Inspection) {
        let geometry = &self.geometry;
        let array = self.back.table.current();
        let mut field = |name: &str, value: String| inspection.fields.push((name.into(), value));
        field(
            "logs",
            format!("{} of {} bytes", geometry.logs, geometry.log_bytes),
        );
        field("reclaimed up to epoch", self.logs.reclaimed().to_string());
        field("records in the logs", self.recovery.records.to_string());
        field(
            "workers that glean",
            self.gleaning.roles.gleaners().to_string(),
        );
        field("buckets of the back", (1_u64 << array.depth()).to_string());
    }

    #[cfg(feature = "lab")]
    fn tend(self: Arc<Self>, cursor: &mut u64) -> Result<(), Error> {
        while self.tend_some(cursor, true)? {}
        Ok(())
    }

    #[cfg(feature = "lab")]
    fn jobs(self: Arc<Self>) -> Vec<crate::engine::jobs::Job> {
        let (tended, urgent, gleaned) = (Arc::clone(&self), Arc::clone(&self), self);
        let (mut cursor, mut second) = (0, 0);
        vec![
            crate::engine::jobs::Job::new("tend", move || tended.tend_some(&mut cursor, false)),
            crate::engine::jobs::Job::new("quiet", move || urgent.tend_some(&mut second, true)),
            crate::engine::jobs::Job::new("glean", move || Ok(gleaned.assist(true)? == Work::Done)),
        ]
    }

    #[cfg(feature = "lab")]
    fn see_clock(&self) {
        self.now_ms();
    }

    #[cfg(feature = "lab")]
    fn space(&self) -> crate::engine::jobs::Space {
        let (heap, _) = self.back.heap.bytes();
        let array = self.back.table.current();
        let old = self.back.table.moving().map_or(0, |(old, _)| old.bytes());
        let lines = (array.bytes() + old) / everdram_pm::LINE;
        // Objects that log records name are freed with the records.
        let linked: u64 = self
            .reserve
            .linked
            .lock()
            .values()
            .map(|bytes| bytes.div_ceil(64))
            .sum();
        let later: u64 = self
            .gleaning
            .later
            .lock()
            .iter()
            .map(|(_, (_, bytes))| bytes.div_ceil(64))
            .sum();
        let chunks = heap / (u64::from(self.geometry.chunk_lines) * everdram_pm::LINE);
        crate::engine::jobs::Space {
            block_bytes: everdram_pm::LINE,
            blocks: heap / everdram_pm::LINE,
            blocks_to_write: 4 * chunks,
            is_scattered: self.is_scattered(),
            // The arrays, some lines of chains, headers of chunks, and the last write.
            blocks_left: lines + 8 + chunks + linked + later,
        }
    }
}
