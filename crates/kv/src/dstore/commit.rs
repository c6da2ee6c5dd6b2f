//! The commit of a session: data durable, records fenced, slots shown.

use super::layout::Operation;
use super::room::Freed;
use super::session::{DstoreSession, Pending};
use crate::crl::{ENTRY_HEAD, Group};
use crate::engine::counters::{bump, bump_signed};
use crate::engine::halt::PANICKED;
use crate::error::Error;
use crate::index::{KeyHash, Location};
use crate::steps::{self, Step};
use everdram_pm::Ordered;
use everdram_pm::lock::lock;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;

/// What commits free is left to all sessions once it is so many slots, cells and blocks.
const KEPT_MAX: u64 = 256;
/// Less in a small file: a share of its blocks. An idle session keeps it from the others.
const KEPT_ONE_IN: u64 = 256;

impl DstoreSession {
    /// Commits everything submitted; releases the stripes.
    pub(super) fn commit_all(&mut self) -> Result<(), Error> {
        assert!(!self.pending.is_empty(), "a commit of nothing");
        let mut pending = std::mem::take(&mut self.pending);
        if let Err(error) = self.engine.healthy() {
            // Nobody has seen these writes, and the pool gets no more.
            pending
                .iter()
                .for_each(|one| self.engine.stripes.unlock(one.stripe));
            self.abandon(&pending);
            return Err(error);
        }
        let commit = AssertUnwindSafe(|| self.commit_these(&pending));
        let result = catch_unwind(commit);
        if result.is_err() {
            // Before other sessions get the stripes.
            self.engine.halted.set(PANICKED);
        }
        let result = result.map(|done| done.map_err(|error| self.engine.halt(error)));
        let ordered = self.ordered();
        for one in &pending {
            self.engine.stripes.release(one.stripe, &ordered);
        }
        pending.clear();
        self.pending = pending;
        self.end_commit();
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Forgets the buffers of a commit, and frees what is due.
    pub(super) fn end_commit(&mut self) {
        self.operations.clear();
        self.operations
            .shrink_to(crate::engine::session::SCRATCH_KEEP);
        self.runs.clear();
        let freed = self.freed.drain(..).map(|freed| match freed {
            Freed::Blocks { count, .. } => u64::from(count),
            Freed::Slot(_) | Freed::Cell { .. } => 1,
        });
        self.kept += freed.sum::<u64>();
        self.staged.forget();
        let most = (self.engine.values.blocks.end() / KEPT_ONE_IN).min(KEPT_MAX);
        if self.kept > most || self.retired.is_full() {
            self.hand_over_retired();
        }
        self.engine.room.free_survived(&self.engine.pool);
    }

    fn commit_these(&mut self, pending: &[Pending]) -> Result<(), Error> {
        let begun = steps::begin();
        self.sync_data()?;
        begun.end(Step::Data);
        let one_locked = self.one_locked();
        let together = match self.engine.cow {
            // No session waits for a log while it is inside.
            Some(_) => 1,
            None => pending.len(),
        };
        for writes in pending.chunks(together) {
            let _alone = one_locked.as_ref().and_then(|engine| engine.alone());
            let begun = steps::begin();
            self.log(writes)?;
            begun.end(Step::Log);
            let ordered = self.ordered();
            for one in writes {
                let begun = steps::begin();
                self.publish(one, &ordered)?;
                begun.end(Step::Show);
            }
            self.leave();
        }
        Ok(())
    }

    /// Logs writes whose data is durable, under one fence.
    fn log(&mut self, writes: &[Pending]) -> Result<(), Error> {
        let mut group: Option<Group> = None;
        for one in writes {
            if !self.engine.system.is_logged() {
                let operation = self.operations[one.operation.clone()].to_vec();
                self.keep_without_log(&operation, 1)?;
                continue;
            }
            self.entry.clear();
            self.entry.resize(ENTRY_HEAD, 0);
            let logged = &self.operations[one.logged.clone()];
            self.entry.extend_from_slice(logged);
            self.append(&mut group, 1, one.parcel.clone())?;
        }
        self.fence(group);
        Ok(())
    }

    /// Writes what is staged, and makes it durable before a record names it (D10). On files the redo log does
    /// the latter.
    pub(super) fn sync_data(&mut self) -> Result<(), Error> {
        if self.staged.is_empty() && self.staged.mark == everdram_pm::Mark::default() {
            return Ok(());
        }
        let values = &self.engine.values;
        values.write(&mut self.staged)?;
        let written = std::mem::take(&mut self.staged.written);
        bump(&self.counters().data_written, written);
        if self.engine.durable_at_fence {
            values.blocks.sync(self.staged.mark)?;
        }
        self.staged.mark = everdram_pm::Mark::default();
        Ok(())
    }

    /// Appends the entry under construction to a log with room. `parcel`: the runs that it names.
    pub(super) fn append(
        &mut self,
        group: &mut Option<Group>,
        operations: u32,
        parcel: Range<usize>,
    ) -> Result<(), Error> {
        let held = match group.take() {
            Some(held) if self.engine.dipper.logs.fits(&held) => held,
            full => {
                self.fence(full);
                self.take_log()?
            }
        };
        let held = group.insert(held);
        let logs = &self.engine.dipper.logs;
        let (entry, flushed) = logs.append(&mut self.lane, held, &mut self.entry, operations);
        self.unfenced.add(flushed);
        bump(&self.counters().log_written, self.entry.len() as u64);
        if !parcel.is_empty() {
            let runs = self.runs[parcel].to_vec();
            lock(&self.engine.parcels).push((entry, runs));
        }
        Ok(())
    }

    /// Fences what was appended, and gives the log back.
    pub(super) fn fence(&mut self, group: Option<Group>) {
        let _ordered = self.unfenced.fence(&mut self.lane);
        if let Some(group) = group {
            let is_due = self.engine.dipper.becomes_due(&group);
            self.wanted = self.engine.dipper.logs.end(group);
            if is_due {
                self.engine.background.wake();
            }
        }
    }

    /// Shows a fenced write; the session still holds its stripe.
    pub(super) fn publish(&mut self, one: &Pending, ordered: &Ordered) -> Result<(), Error> {
        debug_assert!(
            self.holds(one.stripe),
            "a session publishes a write without holding its stripe"
        );
        assert!(
            one.old.is_none_or(|old| old.lsn < one.slot.lsn),
            "the LSN of an object decreases"
        );
        let engine = &self.engine;
        if !engine.durable_at_fence {
            engine.stripes.set_stamp(one.stripe, ordered);
        }
        let bytes = &self.operations[one.operation.clone()];
        let Some((operation, _)) = Operation::parse(&engine.geometry, bytes) else {
            unreachable!("an operation of this session does not parse");
        };
        let cell = operation.cell.map(|cell| (one.slot.body, cell));
        let bytes = [operation.key, operation.cell].map(|part| part.map_or(0, <[u8]>::len));
        engine.before_publish(one.number, &one.slot, bytes)?;
        engine
            .memory
            .publish(one.number, &one.slot, operation.key, cell);
        let Some(location) = Location::new(one.number) else {
            unreachable!("number 0 is no slot");
        };
        let hash = KeyHash(one.slot.hash);
        let begun = steps::begin();
        if let Some(key) = operation.key {
            let mut rehash = |locations: &[Location], hashes: &mut Vec<KeyHash>| {
                let hash = |location: &Location| KeyHash(engine.memory.hash(location.get()));
                hashes.extend(locations.iter().map(hash));
                Ok(())
            };
            engine
                .index
                .insert(hash, location, &mut rehash, ordered)
                .map_err(|error| Error::NoSpace(format!("the index in DRAM: {error}")))?;
            lock(&engine.order).insert(&engine.memory, key, one.number);
        }
        if one.slot.is_dead {
            let was_there = engine.index.remove(hash, location, ordered);
            assert!(
                was_there,
                "an object is removed that the index does not have"
            );
            let mut key = Vec::new();
            engine.memory.key_of(one.number, &mut key);
            lock(&engine.order).remove(&engine.memory, &key, one.number);
        }
        begun.end(Step::Order);
        self.count(one);
        let position = ordered.lsn().0;
        for freed in &self.freed[one.freed.clone()] {
            self.retired.push((position, *freed));
        }
        Ok(())
    }

    fn count(&mut self, one: &Pending) {
        self.core.made = one.is_new;
        let (engine, counters) = (&self.engine, &self.engine.counters[usize::from(self.id)]);
        match (one.old.is_none(), one.slot.is_dead) {
            (true, _) => bump_signed(&counters.keys, 1),
            (false, true) => bump_signed(&counters.keys, -1),
            (false, false) => {}
        }
        match one.slot.is_dead {
            true => bump(&counters.deletes, 1),
            false => bump(&counters.puts, 1),
        }
        if one.slot.expires_at_ms != 0 && !engine.expiries.load(Ordering::Relaxed) {
            engine.expiries.store(true, Ordering::Relaxed);
        }
    }
}
