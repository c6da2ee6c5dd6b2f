//! A session: the paper's client (section 4.1). This file holds its calls; `lookup.rs`, `current.rs`,
//! `write.rs`, `commit.rs` and `batch.rs` do the work.
//!
//! Invariants:
//! - A submitted write holds its key's stripe lock until it is committed. `pending` has at most one entry for
//!   each stripe: a call that needs a stripe of a pending write commits first.
//! - A session that holds a stripe never waits for another one. Only batches do; they commit first and lock
//!   in ascending order. So no two sessions wait for each other (V15).
//! - A location enters the index only after the fence that covers its record (I2).

use super::Viper;
use super::claim::{Claim, SCRATCH_KEEP};
use super::layout::Kind;
use super::read::{Ahead, MarkPlace};
use super::record::{Chain, RecordKind, Stamp};
use crate::concurrency::epoch::Slot;
use crate::concurrency::stripes::StripeId;
use crate::engine::backend::{
    Backend, Change, Met, Seen, SessionCore, Taken, random_of_some, read_one_by_one,
};
use crate::engine::counters::{Counters, bump_signed};
use crate::engine::session;
use crate::engine::{BatchOp, Engine, Found, Loan, Piece, Placed, Placing, Said, Ticket};
use crate::error::Error;
use crate::index::{KeyHash, Location};
use everdram_pm::{Lane, Lsn, Unfenced, Written};
use std::collections::HashMap;
use std::sync::Arc;

/// Submitted writes after which a session commits by itself.
pub(super) const PENDING_MAX: usize = 256;

/// The record a write replaces or removes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Old {
    pub(super) location: Location,
    pub(super) bytes: u32,
    pub(super) chain: Option<Chain>,
    /// Its expiry has passed: the key counts as absent.
    pub(super) expired: bool,
    pub(super) stamp: Stamp,
    /// The version to show. Edits in place leave the record's own as it is, so these show the key's clock.
    pub(super) version: u64,
    /// Where it is marked dead; `None`: it lies in the log.
    pub(super) mark: Option<MarkPlace>,
    /// Its mark word is damaged. The word stays as it is, and the pieces of the record's value are not freed.
    pub(super) unmarkable: bool,
}

impl Old {
    /// The state of the key of this record, which expires at `expires_at_ms`.
    pub(super) fn seen(self, expires_at_ms: u64) -> Seen<Option<Old>> {
        Seen {
            is_counted: true,
            is_live: !self.expired,
            version: self.version,
            expires_at_ms,
            at: Some(self),
        }
    }
}

/// The record that a write replaces or removes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Replaced {
    /// This record, or none.
    Known(Option<Old>),
    /// The key's record at the time of the commit. The key is `bytes` bytes long and starts at `from` in
    /// [`ViperSession::keys`]. Deferring the look-up overlaps its memory latency with other writes and the
    /// fence.
    Unknown { from: u32, bytes: u32 },
}

/// A write between submit and commit.
pub(super) struct Pending {
    pub(super) hash: KeyHash,
    pub(super) stripe: StripeId,
    /// `None`: a removal.
    pub(super) new: Option<Location>,
    pub(super) old: Replaced,
    /// A copy by compaction: the commit does not mark the old record dead and counts nothing.
    pub(super) moved: bool,
    /// When the record was written; of a removal, when it was submitted.
    pub(super) written: Written,
}

pub(crate) struct ViperSession {
    pub(super) engine: Arc<Viper>,
    pub(super) slot: Slot,
    pub(super) id: u16,
    pub(super) lane: Lane,
    /// Open blocks: variable, fixed, large.
    pub(super) claims: [Option<Claim>; 3],
    pub(super) unfenced: Unfenced,
    pub(super) pending: Vec<Pending>,
    /// Keys of pending writes whose replaced record is not looked up yet.
    pub(super) keys: Vec<u8>,
    pub(super) ahead: Ahead,
    /// Checks that readers of placed pieces get, by the piece's place and its chain's name.
    pub(super) checks: HashMap<(u64, u64), u64>,
    /// The record last read.
    pub(super) scratch: Vec<u8>,
    /// The next record is the first of its fence group.
    pub(super) first: bool,
    /// Free blocks reserved for a batch, so that it cannot run out of space half-way.
    pub(super) reserved: Vec<u32>,
    /// Compaction may use the reserve of free blocks.
    pub(super) compaction: bool,
    /// The session took a block while few were free; see `compaction/backpressure.rs`.
    pub(super) owes: bool,
    /// Bytes that compaction had freed in all when the session last looked for room.
    pub(super) freed_seen: u64,
    pub(super) last_ticket: Lsn,
    pub(super) core: SessionCore,
}

pub(super) fn claim_index(kind: Kind) -> usize {
    match kind {
        Kind::Fixed | Kind::FixedEdited => 1,
        Kind::Large => 2,
        _ => 0,
    }
}

impl Pending {
    /// The replaced record, if it was looked up and exists.
    pub(super) fn old(&self) -> Option<&Old> {
        match &self.old {
            Replaced::Known(old) => old.as_ref(),
            Replaced::Unknown { .. } => None,
        }
    }
}

impl ViperSession {
    pub(super) fn new(engine: Arc<Viper>) -> Result<ViperSession, Error> {
        let slot = engine
            .epochs
            .register()
            .ok_or_else(|| engine.sessions.reached())?;
        let id = slot.number() as u16;
        let lane = engine.pool.lane();
        let mut session = ViperSession {
            slot,
            id,
            lane,
            claims: [None, None, None],
            unfenced: Unfenced::default(),
            pending: Vec::with_capacity(PENDING_MAX),
            keys: Vec::new(),
            ahead: Ahead::default(),
            checks: HashMap::new(),
            scratch: Vec::new(),
            first: true,
            reserved: Vec::new(),
            compaction: false,
            owes: false,
            freed_seen: 0,
            last_ticket: Lsn(0),
            core: SessionCore::default(),
            engine,
        };
        let engine = Arc::clone(&session.engine);
        let mut parked = engine.parked.lock();
        for (index, claim) in session.claims.iter_mut().enumerate() {
            let adopted = parked
                .iter()
                .position(|parked| claim_index(parked.kind()) == index);
            *claim = adopted.map(|position| parked.swap_remove(position));
        }
        drop(parked);
        Ok(session)
    }

    /// A session for a user; their number is limited.
    pub(super) fn of_user(engine: Arc<Viper>) -> Result<ViperSession, Error> {
        let core = SessionCore::of_user(&engine)?;
        let mut session = ViperSession::new(engine)?;
        session.core = core;
        Ok(session)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.engine.counters[usize::from(self.id)]
    }

    /// Counts keys that came or went without a write.
    pub(super) fn count_key(&self, more: i64) {
        bump_signed(&self.counters().keys, more);
    }
}

impl Backend for ViperSession {
    type Engine = Viper;
    /// The record of the key.
    type At = Option<Old>;

    #[inline]
    fn engine(&self) -> &Arc<Viper> {
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
        Ticket(self.last_ticket.0)
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.engine.hash(key).0
    }

    #[inline]
    fn stripe(&self, hash: u64) -> StripeId {
        self.engine.stripe(KeyHash(hash))
    }

    #[inline]
    fn prefetch(&self, hash: u64) {
        self.engine.index.prefetch(KeyHash(hash));
    }

    #[inline(always)]
    fn await_known(&mut self, keys: Option<&[&[u8]]>) -> Result<(), Error> {
        match self.engine.is_loading() {
            true => self.await_log(keys),
            false => Ok(()),
        }
    }

    #[inline(always)]
    fn read_value(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        let hash = self.engine.hash(key);
        let found = match self.get_fast(hash, key, into) {
            Some(found) => found,
            None => self.get_slow(key, into)?,
        };
        self.trim();
        Ok(found)
    }

    fn read_or_place(
        &mut self,
        key: &[u8],
        how: &Placing,
        into: &mut Vec<u8>,
        pieces: &mut Vec<Piece>,
    ) -> Result<Option<(Found, Option<Placed>)>, Error> {
        let hash = self.engine.hash(key);
        let found = match self.get_fast(hash, key, into) {
            Some(found) => Ok(found.map(|found| (found, None))),
            None => self.place_slow(key, how, into, pieces),
        };
        self.trim();
        found
    }

    fn read_meta(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        let Some(looked) = self.read(key, None)? else {
            return Ok(None);
        };
        let reader = self.engine.reader();
        let bytes = reader.value_bytes(&looked.record, &self.scratch)?;
        Ok(Some((self.found(&looked), bytes)))
    }

    fn read_each(
        &mut self,
        keys: &[&[u8]],
        hashes: &[(u64, u64)],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        let (bytes, count) = (into.len(), found.len());
        if self.get_each_fast(keys, hashes, into, found) {
            return Ok(());
        }
        into.truncate(bytes);
        found.truncate(count);
        let index = &self.engine.index;
        if let Some(below) = self.engine.below.as_ref().filter(|below| below.is_used())
            && keys.len() > 1
        {
            let pin = self.slot.pin();
            for &(hash, _) in hashes {
                below.foresee(index.candidates(KeyHash(hash), &pin));
            }
        }
        read_one_by_one(self, keys, into, found)
    }

    fn walk(&mut self, cursor: u64, count: usize, met: &mut Met) -> Result<u64, Error> {
        self.walk_index(cursor, count, met)
    }

    fn pick_random(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        match self.draw_key(into)? {
            true => Ok(true),
            false => random_of_some(self, 0, into),
        }
    }

    #[inline(always)]
    fn acquire(&mut self, stripe: StripeId) -> Result<(), Error> {
        if self.owes {
            self.pay_for_room()?;
        }
        if self.engine.stripes.try_lock(stripe, self.id) {
            return Ok(());
        }
        // The holder is a pending write of this session, or another session. In both cases this session must
        // release its own stripes before it waits.
        self.commit_pending()?;
        self.engine.stripes.lock(stripe, self.id);
        Ok(())
    }

    fn try_acquire(&mut self, stripe: StripeId) -> Result<bool, Error> {
        if self.engine.stripes.held_by(stripe, self.id) {
            self.commit_pending()?;
        }
        Ok(self.engine.stripes.try_lock(stripe, self.id))
    }

    fn give_back(&mut self, stripe: StripeId) {
        self.engine.stripes.unlock(stripe);
    }

    fn lock_all(&mut self, stripes: &[StripeId]) -> Result<(), Error> {
        self.commit_pending()?;
        self.pay_for_room()?;
        for &stripe in stripes {
            self.engine.stripes.lock(stripe, self.id);
        }
        Ok(())
    }

    #[inline(always)]
    fn locate(&mut self, taken: Taken, key: &[u8]) -> Result<Seen<Option<Old>>, Error> {
        let located = self.locate_old(KeyHash(taken.hash), key)?;
        Ok(located.map_or_else(Seen::default, |old| old.seen(0)))
    }

    fn see(
        &mut self,
        taken: Taken,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Seen<Option<Old>>, Error> {
        let Some((old, record)) = self.find(KeyHash(taken.hash), key)? else {
            return Ok(Seen::default());
        };
        if !old.expired {
            self.value_of(&record, into)?;
        }
        Ok(old.seen(record.expires_at_ms))
    }

    fn make_room(&mut self, bytes: u64, attempt: u32) -> Result<bool, Error> {
        debug_assert!(
            !self
                .engine
                .stripes
                .all()
                .any(|stripe| self.engine.stripes.held_by(stripe, self.id)),
            "compaction would wait for a key that this session holds"
        );
        // Until all blocks are verified and all of the log is known, nothing leaves.
        self.await_known(None)?;
        if self.engine.below.is_some() {
            Engine::verify(&*self.engine)?;
        }
        Ok(self.engine.make_room(bytes, attempt, &mut self.freed_seen))
    }

    #[inline]
    fn submit_put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<(), Error> {
        self.submit_new(RecordKind::Value, key, value, expires_at_ms)
    }

    fn submit_lent(
        &mut self,
        key: &[u8],
        loan: &mut Loan,
        said: &Said,
        expires_at_ms: u64,
    ) -> Result<bool, Error> {
        self.submit_loan(key, loan, said, expires_at_ms)
    }

    #[inline(always)]
    fn submit(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<Option<Old>>,
        change: Change<'_>,
    ) -> Result<(), Error> {
        let Taken { hash, stripe } = taken;
        let (hash, old) = (KeyHash(hash), Replaced::Known(seen.at));
        if !matches!(change, Change::Remove) {
            let (value, expires_at_ms) = (change.value(), change.expires_at_ms());
            let record = (RecordKind::Value, key, value);
            return self.submit_record(hash, stripe, record, expires_at_ms, old);
        }
        if seen.at.is_some_and(|old| old.mark.is_none()) {
            let version = self.engine.stripes.version(stripe) + 1;
            if let Err(error) = self.write_grave(key, version) {
                self.give_back(stripe);
                return Err(error);
            }
        }
        self.note_removal(key);
        // The removal gets a new version, so that watchers of the key notice it.
        self.engine.stripes.next_version(stripe);
        self.submit_pending(Pending {
            hash,
            stripe,
            new: None,
            old,
            moved: false,
            written: self.lane.written(),
        })
    }

    fn change_in_place(
        &mut self,
        taken: Taken,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<[u64; 2]>, Error> {
        match self.engine.space.geometry.fixed {
            Some(shape) => self.change_in_slot(&shape, taken, key, at, change),
            None => Ok(None),
        }
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
        if self.scratch.capacity() > SCRATCH_KEEP {
            self.scratch = Vec::new();
        }
    }

    fn finish(&mut self) {
        let _ = self.commit_pending();
        self.fence_marks();
    }
}

impl Drop for ViperSession {
    fn drop(&mut self) {
        session::end(self);
        for claim in self.claims.iter_mut().filter_map(Option::take) {
            self.engine.parked.lock().push(claim);
        }
    }
}
