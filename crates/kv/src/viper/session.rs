//! A session: the paper's client (section 4.1). Its calls are in `calls.rs`, and lead to `lookup.rs`,
//! `write.rs` and `commit.rs`.
//!
//! Invariants:
//! - A write that was submitted and not committed holds its key's stripe lock. `pending` has at most one
//!   entry for each stripe: whoever needs a stripe that the session itself holds commits first.
//! - Nobody waits for a stripe while holding another, except in ascending order (batches, which commit
//!   first). So no two sessions wait for each other (V15).
//! - A location enters the index only after the fence that covers its record (I2).

use super::Viper;
use super::claim::Claim;
use super::layout::Kind;
use super::read::{Ahead, MarkPlace};
use super::record::{Chain, Stamp};
use crate::concurrency::epoch::Slot;
use crate::concurrency::stripes::StripeId;
use crate::engine::Ticket;
use crate::engine::counters::{Counters, bump_signed};
use crate::engine::halt::PANICKED;
use crate::engine::session_limit::Permit;
use crate::error::Error;
use crate::index::{KeyHash, Location};
use everdram_pm::{Lane, Lsn, Unfenced, Written};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// Submitted writes after which a session commits by itself.
pub(super) const PENDING_MAX: usize = 256;

/// The record a write replaces or removes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Old {
    pub(super) location: Location,
    pub(super) bytes: u32,
    pub(super) chain: Option<Chain>,
    /// Its expiry had passed: the key counts as absent.
    pub(super) expired: bool,
    pub(super) stamp: Stamp,
    /// The version to show: the key's clock where edits in place keep the record's own.
    pub(super) version: u64,
    /// Where it is marked dead.
    pub(super) mark: MarkPlace,
    /// Its mark word is damaged. It stays as it is, and so do the pieces of its value.
    pub(super) unmarkable: bool,
}

/// What a write replaces or removes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Replaced {
    /// This, or nothing.
    Known(Option<Old>),
    /// Whatever the key has at the commit; the key is so many bytes from there on in [`ViperSession::keys`].
    /// The look-up waits for memory, and until the commit it waits beside the other writes and the fence.
    Unknown { from: u32, bytes: u32 },
}

/// A write between submit and commit.
pub(super) struct Pending {
    pub(super) hash: KeyHash,
    pub(super) stripe: StripeId,
    /// `None`: a removal.
    pub(super) new: Option<Location>,
    pub(super) old: Replaced,
    /// A copy by compaction: the old record is not marked dead, and nothing is counted.
    pub(super) moved: bool,
    /// When its record had been written; of a removal, when it was submitted.
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
    /// Keys of pending writes that do not know yet what they replace.
    pub(super) keys: Vec<u8>,
    pub(super) ahead: Ahead,
    /// Of the keys that are read together: hash, and word of the stripe.
    pub(super) hashes: Vec<(KeyHash, u64)>,
    /// Whether the write committed last made a key.
    pub(super) made: bool,
    /// The record last read.
    pub(super) scratch: Vec<u8>,
    /// The value a `modify` builds.
    pub(super) value: Vec<u8>,
    /// The next record is the first of its fence group.
    pub(super) first: bool,
    /// Free blocks put aside, so that a batch cannot run out of space half-way.
    pub(super) reserved: Vec<u32>,
    /// Compaction may use the reserve of free blocks.
    pub(super) compaction: bool,
    /// It took a block while there were few; see `compaction/space.rs`.
    pub(super) owes: bool,
    pub(super) last_ticket: Lsn,
    pub(super) last_read: Ticket,
    /// If it is a user's: there may be so many of these.
    pub(super) permit: Option<Permit>,
}

pub(super) fn claim_index(kind: Kind) -> usize {
    match kind {
        Kind::Fixed | Kind::FixedEdited => 1,
        Kind::Large => 2,
        _ => 0,
    }
}

impl Pending {
    /// What is replaced, once it is known.
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
            hashes: Vec::new(),
            made: false,
            scratch: Vec::new(),
            value: Vec::new(),
            first: true,
            reserved: Vec::new(),
            compaction: false,
            owes: false,
            last_ticket: Lsn(0),
            last_read: Ticket::NONE,
            permit: None,
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

    /// A session for a user: there may be only so many.
    pub(super) fn of_user(engine: Arc<Viper>) -> Result<ViperSession, Error> {
        let permit = engine.sessions.take()?;
        let mut session = ViperSession::new(engine)?;
        session.permit = Some(permit);
        Ok(session)
    }

    pub(super) fn counters(&self) -> &Counters {
        &self.engine.counters[usize::from(self.id)]
    }

    /// Counts keys that came or went without a write.
    pub(super) fn count_key(&self, more: i64) {
        bump_signed(&self.counters().keys, more);
    }

    /// Takes a stripe for a write that stays pending.
    #[inline]
    pub(super) fn acquire(&mut self, stripe: StripeId) -> Result<(), Error> {
        if self.owes {
            self.pay_for_room()?;
        }
        if self.engine.stripes.try_lock(stripe, self.id) {
            return Ok(());
        }
        // Held by this session's own pending write, or by another while this one holds some: either way
        // nothing may be held while waiting.
        self.commit_pending()?;
        self.engine.stripes.lock(stripe, self.id);
        Ok(())
    }

    /// Gives back a stripe on which nothing was submitted.
    pub(super) fn give_back(&self, stripe: StripeId) {
        self.engine.stripes.unlock(stripe);
    }

    /// Refuses writes once the medium has failed, or the engine has halted.
    #[inline]
    pub(super) fn healthy(&self) -> Result<(), Error> {
        self.engine.healthy()
    }
}

impl Drop for ViperSession {
    fn drop(&mut self) {
        // A failing medium has already told every waiter; nothing submitted here was acknowledged. A panic
        // may have left half a write, which what is asserted meets here; a second one must not get out.
        let finish = || {
            let _ = self.commit_pending();
            self.fence_marks();
        };
        if catch_unwind(AssertUnwindSafe(finish)).is_err() {
            self.engine.halted.set(PANICKED);
        }
        if std::thread::panicking() && self.engine.stripes.unlock_all_of(self.id) > 0 {
            self.engine.halted.set(PANICKED);
        }
        for claim in self.claims.iter_mut().filter_map(Option::take) {
            self.engine.parked.lock().push(claim);
        }
    }
}
