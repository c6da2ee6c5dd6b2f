//! Committing: one fence for everything a session submitted, then the index, then the old records' marks.
//!
//! A put also replaces a damaged record: the newer record of a key counts, even if the older cannot be marked
//! or read. Any other error half-way halts the engine. The pool is then in a state that a crash could have
//! left. The next recovery settles it, as long as nothing is built upon it.

use super::below::Below;
use super::claim::SCRATCH_KEEP;
use super::current::locate_at;
use super::index_error;
use super::lookup::rehash_all;
use super::read::{UNIT, What};
use super::record::{Order, RecordKind};
use super::session::{Old, PENDING_MAX, Pending, Replaced, ViperSession};
use crate::aof::is_below;
use crate::concurrency::stripes::StripeId;
use crate::engine::backend::Backend;
use crate::engine::counters::{bump, bump_signed};
use crate::engine::halt::PANICKED;
use crate::error::Error;
use crate::index::{KeyHash, Location};
use crate::steps::{self, Step};
use everdram_pm::Ordered;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

impl ViperSession {
    /// Fences and publishes everything submitted; releases the stripes. It never refuses a single write. The
    /// call that commits may have nothing to do with that write, so the submitter would not learn of the
    /// refusal.
    ///
    /// # Errors
    /// The medium failed, or the engine halted: the fate of the submitted writes is unknown.
    pub(super) fn commit_all(&mut self) -> Result<(), Error> {
        assert!(!self.pending.is_empty(), "a commit of nothing");
        let mut pending = std::mem::take(&mut self.pending);
        if let Err(error) = self.engine.healthy() {
            // Other sessions have seen none of these writes, and the pool gets no more.
            for write in &pending {
                self.engine.stripes.unlock(write.stripe);
            }
            return Err(error);
        }
        // Half a commit must not be built upon. The engine halts before other sessions get the stripes, and
        // the next open settles it.
        let result = self.held(|session| {
            let done = session.commit_these(&mut pending);
            done.map_err(|error| session.engine.halt(error))
        });
        let ordered = self.unfenced.last();
        for write in &pending {
            self.engine.stripes.release(write.stripe, &ordered);
        }
        pending.clear();
        self.pending = pending;
        self.keys.clear();
        if self.keys.capacity() > SCRATCH_KEEP {
            self.keys = Vec::new();
        }
        result.unwrap_or_else(|panic| resume_unwind(panic))
    }

    /// Runs `work` while no thread frees a block in which it marks records. This holds from before the first
    /// mark until the index and the counts have followed. If `work` panics, the engine takes no more writes;
    /// the caller releases what it holds, so that no session waits for this thread.
    pub(super) fn held<T>(&mut self, work: impl FnOnce(&mut Self) -> T) -> std::thread::Result<T> {
        self.slot.hold();
        let result = catch_unwind(AssertUnwindSafe(|| work(self)));
        self.slot.unhold();
        if result.is_err() {
            self.engine.halted.set(PANICKED);
        }
        result
    }

    fn commit_these(&mut self, pending: &mut [Pending]) -> Result<(), Error> {
        for write in &*pending {
            if let (None, Replaced::Known(Some(old))) = (write.new, &write.old) {
                self.mark(old)?;
            }
        }
        // The session looks up the replaced records while the new ones are on their way to the medium.
        self.settle();
        let begun = steps::begin();
        match pending {
            [one] => self.resolve(one),
            _ => self.resolve_together(pending),
        }
        begun.end(Step::Index);
        let ordered = self.settle_and_fence();
        let begun = steps::begin();
        for write in pending {
            self.resolve(write);
            self.publish(write, &ordered)?;
        }
        begun.end(Step::Index);
        Ok(())
    }

    /// Looks up the records that several writes replace, as far as the fast path can, waiting for memory
    /// together.
    fn resolve_together(&mut self, pending: &mut [Pending]) {
        let ViperSession {
            engine,
            slot,
            scratch,
            keys,
            ahead,
            ..
        } = self;
        let is_unknown = |write: &Pending| matches!(write.old, Replaced::Unknown { .. });
        let unknown = pending.iter().filter(|write| is_unknown(write));
        // One pin covers all keys: the index's candidates stay valid under it.
        let pin = slot.pin();
        ahead.start(engine, &pin, unknown.map(|write| write.hash), What::Head);
        let unknown = pending.iter_mut().filter(|write| is_unknown(write));
        for (write, &place) in unknown.zip(ahead.places()) {
            let key = key_of(&write.old, keys);
            if let Ok(old) = locate_at(engine, slot, place, write.hash, key, scratch) {
                write.old = Replaced::Known(old);
            }
        }
    }

    /// Looks up the record that a write replaces.
    #[inline(always)]
    fn resolve(&mut self, write: &mut Pending) {
        if let Replaced::Unknown { .. } = write.old {
            write.old = Replaced::Known(self.replaced_by(write));
        }
    }

    /// The record that a write replaces, looked up now.
    fn replaced_by(&mut self, write: &Pending) -> Option<Old> {
        let keys = std::mem::take(&mut self.keys);
        let key = key_of(&write.old, &keys);
        let found = self.locate_old(write.hash, key);
        let found = found.unwrap_or_else(|_| self.locate_damaged(write.hash, key));
        self.keys = keys;
        found
    }

    /// Makes one fenced write visible. The caller holds the stripe.
    #[inline(always)]
    pub(super) fn publish(&mut self, write: &Pending, ordered: &Ordered) -> Result<(), Error> {
        ordered.assert_covers(write.written);
        debug_assert!(
            self.engine.stripes.held_by(write.stripe, self.id),
            "a write is published without its key's lock"
        );
        self.stamp(write, ordered);
        self.repoint(write, ordered)?;
        self.mark_old_dead(write)
    }

    /// Sets the ticket that reads of the write's key depend on.
    #[inline(always)]
    fn stamp(&self, write: &Pending, ordered: &Ordered) {
        let engine = &self.engine;
        // Compaction's copies need no stamp: the original stays until the copy is durable.
        if !engine.durable_at_fence && !write.moved {
            engine.stripes.set_stamp(write.stripe, ordered);
        }
    }

    /// Points the index entry to the new record, inserts it or removes it.
    #[inline(always)]
    fn repoint(&mut self, write: &Pending, ordered: &Ordered) -> Result<(), Error> {
        let old = write.old().map(|old| old.location);
        let ViperSession {
            engine, scratch, ..
        } = self;
        match (write.new, old) {
            (Some(new), Some(old)) => {
                let replaced = engine.index.replace(write.hash, old, new, ordered);
                assert!(replaced, "the index changed under a held key lock");
            }
            (Some(new), None) => {
                let mut rehash = |locations: &[Location], hashes: &mut Vec<KeyHash>| {
                    rehash_all(engine, locations, scratch, hashes)
                };
                engine
                    .index
                    .insert(write.hash, new, &mut rehash, ordered)
                    .map_err(index_error)?;
            }
            (None, Some(old)) => {
                let removed = engine.index.remove(write.hash, old, ordered);
                assert!(removed, "the index changed under a held key lock");
            }
            (None, None) => {}
        }
        Ok(())
    }

    /// Marks the record dead that a published write replaced, and updates the counters.
    #[inline(always)]
    fn mark_old_dead(&mut self, write: &Pending) -> Result<(), Error> {
        if write.moved {
            return Ok(());
        }
        self.count(write);
        if let Some(old) = write.old() {
            if write.new.is_some() && !old.unmarkable {
                self.mark_superseded(old)?;
            }
            if let (Some(new), Some(below)) = (write.new, &self.engine.below)
                && !is_below(old.location)
            {
                // A key that is overwritten in the pool is in use like one that is read there.
                below.touch(&self.engine.space, new.get() * UNIT);
            }
            self.count_garbage(old);
            if !old.unmarkable {
                self.let_go(old);
            }
        }
        Ok(())
    }

    #[inline(always)]
    fn count(&mut self, write: &Pending) {
        self.core.made = write.old().is_none_or(|old| old.expired);
        let counters = self.counters();
        match (&write.new, write.old()) {
            (Some(_), None) => {
                bump_signed(&counters.keys, 1);
                bump(&counters.puts, 1);
            }
            (Some(_), Some(_)) => bump(&counters.puts, 1),
            (None, Some(old)) => {
                bump_signed(&counters.keys, -1);
                match old.expired {
                    true => bump(&counters.expired, 1),
                    false => bump(&counters.deletes, 1),
                }
            }
            (None, None) => {}
        }
    }

    /// Submits a record of a kind, whose predecessor the commit looks up.
    #[inline]
    pub(super) fn submit_new(
        &mut self,
        kind: RecordKind,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
    ) -> Result<(), Error> {
        self.submit_new_by(key, |session, order| {
            session.write(kind, key, value, expires_at_ms, order)
        })
    }

    /// As [`ViperSession::submit_new`], of a record that `write` writes, under the stripe of the key.
    #[inline(always)]
    pub(super) fn submit_new_by(
        &mut self,
        key: &[u8],
        write: impl FnOnce(&mut ViperSession, Order) -> Result<Location, Error>,
    ) -> Result<(), Error> {
        self.engine.healthy()?;
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripe(hash);
        self.engine.index.prefetch(hash);
        self.acquire(stripe)?;
        let old = Replaced::Unknown {
            from: self.keys.len() as u32,
            bytes: key.len() as u32,
        };
        self.keys.extend_from_slice(key);
        self.submit_by(hash, stripe, old, write)
    }

    /// Submits a record on a held stripe: its kind, key and value.
    pub(super) fn submit_record(
        &mut self,
        hash: KeyHash,
        stripe: StripeId,
        (kind, key, value): (RecordKind, &[u8], &[u8]),
        expires_at_ms: u64,
        old: Replaced,
    ) -> Result<(), Error> {
        self.submit_by(hash, stripe, old, |session, order| {
            session.write(kind, key, value, expires_at_ms, order)
        })
    }

    /// Submits a record that `write` writes, on a held stripe.
    #[inline(always)]
    fn submit_by(
        &mut self,
        hash: KeyHash,
        stripe: StripeId,
        old: Replaced,
        write: impl FnOnce(&mut ViperSession, Order) -> Result<Location, Error>,
    ) -> Result<(), Error> {
        // The clock moves when the record is written: of a refused write it stays, since it is also the
        // version of a key that is changed in place.
        let version = self.engine.stripes.version(stripe) + 1;
        let order = Order::new(version, self.may_be_below(hash));
        match write(self, order) {
            Ok(location) => {
                let clock = self.engine.stripes.next_version(stripe);
                assert_eq!(clock, version, "the clock of a held stripe moved");
                if self.pending.is_empty() {
                    // Usually it stays the only one: its fence comes soon, with no other lock before it.
                    self.settle();
                }
                self.submit_pending(Pending {
                    hash,
                    stripe,
                    new: Some(location),
                    old,
                    moved: false,
                    written: self.lane.written(),
                })
            }
            Err(error) => {
                self.give_back(stripe);
                Err(error)
            }
        }
    }

    /// Whether the state of a held key may lie in the log. Another key with the same tag gives a false alarm,
    /// which costs the record of a removal in the log.
    #[inline]
    pub(super) fn may_be_below(&self, hash: KeyHash) -> bool {
        self.engine.below.as_ref().is_some_and(Below::is_used) && {
            let pin = self.slot.pin();
            self.engine.index.lookup(hash, &pin, is_below).is_some()
        }
    }

    pub(super) fn submit_pending(&mut self, write: Pending) -> Result<(), Error> {
        debug_assert!(
            self.engine.stripes.held_by(write.stripe, self.id),
            "a write is submitted without its key's lock"
        );
        debug_assert!(
            self.pending
                .iter()
                .all(|other| other.stripe != write.stripe),
            "two writes are pending under one lock, which the first to be published releases"
        );
        self.pending.push(write);
        if self.pending.len() >= PENDING_MAX {
            self.commit_pending()
        } else {
            Ok(())
        }
    }
}

/// The key of a write whose replaced record is not looked up yet; otherwise empty.
#[inline]
fn key_of<'k>(old: &Replaced, keys: &'k [u8]) -> &'k [u8] {
    match *old {
        Replaced::Unknown { from, bytes } => &keys[from as usize..(from + bytes) as usize],
        Replaced::Known(_) => &[],
    }
}
