//! A session finds an object's slot, writes its value to blocks, logs the new state, and shows it.
//!
//! Invariants:
//! - A write that is submitted and not committed holds its key's stripe. A session waits for a stripe only
//!   while it holds none; batches take theirs in ascending order.
//! - A session waits for room in the logs with stripes held. That is safe because a checkpoint takes no
//!   stripe, no log, and no pin.
//! - A log is held for the time of an append and a fence, never across input or output.
//! - Order everywhere: data durable, record fenced, slot shown (D4).

use super::Dstore;
use super::blocks::Staged;
use super::change::{Body, Write};
use super::layout::Slot;
use super::room::{Claims, Freed};
use crate::concurrency::epoch;
use crate::concurrency::retired::Retired;
use crate::concurrency::stripes::{Backoff, StripeId};
use crate::crl::{Group, Step};
use crate::engine::backend::{Backend, Change, Met, Seen, SessionCore, Taken, random_of_some};
use crate::engine::counters::{Counters, bump};
use crate::engine::part::Part;
use crate::engine::session::{self, SCRATCH_KEEP};
use crate::engine::{BatchOp, Found, Ticket};
use crate::error::Error;
use crate::steps;
use everdram_pm::lock::lock;
use everdram_pm::{Lane, Ordered, Unfenced};
use std::ops::{Bound, Range};
use std::sync::Arc;

/// Submitted writes after which a session commits by itself.
pub(super) const PENDING_MAX: usize = 256;

/// Where a key's object is; number 0: nowhere.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct At {
    pub(super) number: u64,
    pub(super) slot: Slot,
}

/// A write between submit and commit.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) stripe: StripeId,
    pub(super) number: u64,
    /// The new state, and the one before, if the object is not new.
    pub(super) slot: Slot,
    pub(super) old: Option<Slot>,
    /// Users saw the key as absent.
    pub(super) is_new: bool,
    /// Of the session's buffer of operations.
    pub(super) operation: Range<usize>,
    /// What is logged: the operation, or a parcel with it.
    pub(super) logged: Range<usize>,
    /// Runs of the blocks that were taken for the parcel.
    pub(super) parcel: Range<usize>,
    /// What the state before has and the new one has not.
    pub(super) freed: Range<usize>,
}

pub(crate) struct DstoreSession {
    pub(super) engine: Arc<Dstore>,
    pub(super) epoch: epoch::Slot,
    pub(super) id: u16,
    pub(super) lane: Lane,
    pub(super) unfenced: Unfenced,
    /// The log it wrote last.
    pub(super) wanted: usize,
    pub(super) pending: Vec<Pending>,
    /// Operations of the pending writes; runs of blocks taken for them; what they free.
    pub(super) operations: Vec<u8>,
    pub(super) runs: Vec<(u64, u32)>,
    pub(super) freed: Vec<Freed>,
    pub(super) staged: Staged,
    /// The entry under construction.
    pub(super) entry: Vec<u8>,
    pub(super) claims: Claims,
    /// What readers may still be looking at, with the position of the record that freed it.
    pub(super) retired: Retired<(u64, Freed)>,
    /// Slots, cells and blocks freed since the session last left them to all.
    pub(super) kept: u64,
    /// The cell of a body.
    pub(super) cell: Vec<u8>,
    /// Inside the gate of a checkpoint by copy-on-write.
    is_inside: bool,
    pub(super) core: SessionCore,
}

impl DstoreSession {
    pub(super) fn new(engine: Arc<Dstore>) -> Result<DstoreSession, Error> {
        let epoch = engine
            .epochs
            .register()
            .ok_or_else(|| engine.sessions.reached())?;
        let id = epoch.number() as u16;
        Ok(DstoreSession {
            id,
            epoch,
            lane: engine.pool.lane(),
            unfenced: Unfenced::default(),
            wanted: usize::from(id) % engine.dipper.logs.count(),
            pending: Vec::with_capacity(PENDING_MAX),
            operations: Vec::new(),
            runs: Vec::new(),
            freed: Vec::new(),
            staged: Staged::default(),
            entry: Vec::new(),
            claims: Claims::default(),
            retired: Retired::default(),
            kept: 0,
            cell: Vec::new(),
            is_inside: false,
            core: SessionCore::default(),
            engine,
        })
    }

    /// A session for a user; their number is limited.
    pub(super) fn of_user(engine: Arc<Dstore>) -> Result<DstoreSession, Error> {
        let core = SessionCore::of_user(&engine)?;
        let mut session = DstoreSession::new(engine)?;
        session.core = core;
        Ok(session)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.engine.counters[usize::from(self.id)]
    }

    /// Whether the session holds a stripe.
    pub(super) fn holds(&self, stripe: StripeId) -> bool {
        self.engine.stripes.held_by(stripe, self.id)
    }

    /// The last fence.
    pub(super) fn ordered(&self) -> Ordered {
        self.unfenced.last()
    }

    /// Takes a log with room. Waits for a checkpoint if there is none, and helps it.
    ///
    /// # Errors
    /// The checkpoint failed, or the engine halted.
    pub(super) fn take_log(&mut self) -> Result<Group, Error> {
        let (mut backoff, mut waits) = (Backoff::new(), false);
        loop {
            self.enter();
            let engine = &self.engine;
            if let Some(group) = engine.dipper.logs.begin(self.wanted) {
                return Ok(group);
            }
            self.leave();
            if !std::mem::replace(&mut waits, true) {
                bump(&self.counters().log_waits, 1);
            }
            let engine = &self.engine;
            engine.healthy()?;
            engine.background.wake();
            match engine.checkpoint_step(false)? {
                Step::Worked | Step::Reclaimed(_) => {}
                Step::Waiting | Step::Idle => backoff.wait(),
            }
        }
    }

    /// The engine, if it has one lock, which is then taken through this.
    pub(super) fn one_locked(&self) -> Option<Arc<Dstore>> {
        let is_locked = self.engine.system.has_one_lock();
        is_locked.then(|| Arc::clone(&self.engine))
    }

    /// Passes the gate of checkpoints by copy-on-write, in systems that have them.
    fn enter(&mut self) {
        if let Some(cow) = &self.engine.cow {
            assert!(
                !self.is_inside,
                "a session waits for a log while it is inside"
            );
            cow.enter();
            self.is_inside = true;
        }
    }

    /// Everything that was logged since [`DstoreSession::enter`] is visible.
    pub(super) fn leave(&mut self) {
        if let Some(cow) = &self.engine.cow
            && std::mem::take(&mut self.is_inside)
        {
            cow.leave();
        }
    }

    /// Leaves what this session does not use any more to all, and frees what no reader can be looking at, as
    /// far as that is cheap to find out.
    pub(super) fn hand_over_retired(&mut self) {
        let mut retired = lock(&self.engine.retired);
        retired.append(&mut self.retired);
        drop(retired);
        self.kept = 0;
        self.engine.free_retired(false);
    }
}

impl Backend for DstoreSession {
    type Engine = Dstore;
    type At = At;
    const HAS_PARTS: bool = true;

    #[inline]
    fn engine(&self) -> &Arc<Dstore> {
        &self.engine
    }

    #[inline]
    fn core(&self) -> &SessionCore {
        &self.core
    }

    #[inline]
    fn core_mut(&mut self) -> &mut SessionCore {
        &mut self.core
    }

    #[inline]
    fn id(&self) -> u16 {
        self.id
    }

    #[inline]
    fn is_pending(&self) -> bool {
        !self.pending.is_empty()
    }

    fn ticket(&self) -> Ticket {
        Ticket(self.ordered().lsn().0)
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.engine.hash(key)
    }

    #[inline]
    fn stripe(&self, hash: u64) -> StripeId {
        self.engine.stripes.of(hash)
    }

    #[inline]
    fn prefetch(&self, hash: u64) {
        self.engine.index.prefetch(crate::index::KeyHash(hash));
    }

    #[inline]
    fn read_value(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        let found = self.look_up(key, Some((into, None)))?;
        self.trim();
        Ok(found.map(|(found, _)| found))
    }

    fn read_part(
        &mut self,
        key: &[u8],
        part: Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<Option<(Found, u64)>, Error> {
        let found = self.look_up(key, Some((into, Some(part))))?;
        self.trim();
        Ok(found)
    }

    fn read_meta(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        self.look_up(key, None)
    }

    fn read_each(
        &mut self,
        keys: &[&[u8]],
        hashes: &[(u64, u64)],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        self.look_up_each(keys, hashes, into, found)
    }

    fn walk(&mut self, cursor: u64, count: usize, met: &mut Met) -> Result<u64, Error> {
        self.walk_index(cursor, count, met)
    }

    fn walk_in_order(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        count: usize,
        met: &mut Met,
    ) -> Result<Option<Vec<u8>>, Error> {
        Ok(self.walk_order(from, to, count, met))
    }

    fn pick_random(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        // That there is none is the answer of a walk, which depends on every removal.
        Ok(self.draw_key(into)? || random_of_some(self, rand::random(), into)?)
    }

    #[inline]
    fn acquire(&mut self, stripe: StripeId) -> Result<(), Error> {
        if self.engine.stripes.try_lock(stripe, self.id) {
            return Ok(());
        }
        // This session's own pending write holds the stripe, or another session does.
        self.commit_pending()?;
        assert!(
            self.pending.is_empty() && !self.holds(stripe),
            "a session waits for a stripe that it holds"
        );
        self.engine.stripes.lock(stripe, self.id);
        Ok(())
    }

    fn try_acquire(&mut self, stripe: StripeId) -> Result<bool, Error> {
        if self.holds(stripe) {
            self.commit_pending()?;
        }
        Ok(self.engine.stripes.try_lock(stripe, self.id))
    }

    fn give_back(&mut self, stripe: StripeId) {
        debug_assert!(
            self.holds(stripe),
            "a session gives a stripe back that it does not hold"
        );
        self.engine.stripes.unlock(stripe);
    }

    fn lock_all(&mut self, stripes: &[StripeId]) -> Result<(), Error> {
        self.commit_pending()?;
        for &stripe in stripes {
            assert!(
                !self.holds(stripe),
                "a session waits for a stripe that it holds"
            );
            self.engine.stripes.lock(stripe, self.id);
        }
        Ok(())
    }

    #[inline]
    fn locate(&mut self, taken: Taken, key: &[u8]) -> Result<Seen<At>, Error> {
        debug_assert!(
            self.holds(taken.stripe),
            "a session looks at a key to change it, and does not hold its stripe"
        );
        Ok(self.find_held(taken.hash, key))
    }

    fn see(&mut self, taken: Taken, key: &[u8], into: &mut Vec<u8>) -> Result<Seen<At>, Error> {
        let seen = self.locate(taken, key)?;
        if seen.is_live {
            // Nobody changes the object, or frees its blocks, while the stripe is held.
            self.engine.cell_of(&seen.at.slot, &mut self.cell);
            self.engine.values.read(&seen.at.slot, &self.cell, into)?;
        }
        Ok(seen)
    }

    fn see_part(
        &mut self,
        seen: &Seen<At>,
        part: Range<u64>,
        into: &mut Vec<u8>,
    ) -> Result<u64, Error> {
        let DstoreSession { engine, cell, .. } = self;
        let slot = &seen.at.slot;
        engine.cell_of(slot, cell);
        engine.values.read_part(slot, cell, part, into)?;
        Ok(slot.length)
    }

    fn make_room(&mut self, _bytes: u64, attempt: u32) -> Result<bool, Error> {
        let engine = Arc::clone(&self.engine);
        engine.make_room(self, attempt)
    }

    #[inline]
    fn submit_put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.engine.healthy()?;
        let hash = self.engine.hash(key);
        self.prefetch(hash);
        let stripe = self.engine.stripes.of(hash);
        self.acquire(stripe)?;
        let taken = Taken { hash, stripe };
        // The value's blocks are made while the index, and then the slot, come from memory.
        let DstoreSession {
            engine,
            staged,
            epoch,
            ..
        } = &mut *self;
        let begun = steps::begin();
        engine.values.copy_ahead(staged, value);
        begun.end(steps::Step::Ahead);
        engine.prefetch_slot(&epoch.pin(), hash);
        let begun = steps::begin();
        engine.values.sum_ahead(staged);
        begun.end(steps::Step::Ahead);
        let seen = self.find_held(hash, key);
        let what = Write::Put {
            body: Body::Ahead(value),
            expires_at_ms,
        };
        self.write(taken, key, &seen, what)
    }

    #[inline]
    fn submit(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<At>,
        change: Change<'_>,
    ) -> Result<(), Error> {
        self.write(taken, key, seen, change.into())
    }

    fn submit_part(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<At>,
        part: Part<'_>,
    ) -> Result<[u64; 2], Error> {
        self.write_part(taken, key, seen, part)
    }

    fn apply(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'_>],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error> {
        self.apply_locked(clear, ops, stripes)
    }

    #[inline]
    fn commit_pending(&mut self) -> Result<(), Error> {
        match self.pending.is_empty() {
            true => Ok(()),
            false => self.commit_all(),
        }
    }

    #[inline]
    fn trim(&mut self) {
        if self.cell.capacity() > SCRATCH_KEEP {
            self.cell = Vec::new();
        }
    }

    fn finish(&mut self) {
        // A failed medium has told its waiters already.
        let _ = self.commit_pending();
    }
}

impl Drop for DstoreSession {
    fn drop(&mut self) {
        session::end(self);
        let engine = Arc::clone(&self.engine);
        engine.room.let_go(&mut self.claims);
        lock(&engine.retired).append(&mut self.retired);
    }
}
