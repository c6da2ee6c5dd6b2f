//! A session: the paper's client (section 4.1). Its calls are in `calls.rs`, and lead to `lookup.rs`,
//! `write.rs` and `commit.rs`.
//!
//! Invariants:
//! - A write that was submitted and not committed holds its key's stripe lock. `pending` has at most one
//!   entry for each stripe: whoever needs a stripe that the session itself holds commits first.
//! - Nobody waits for a stripe while holding another, except in ascending order (batches, which commit
//!   first). So no two sessions wait for each other (V15).
//! - A location enters the index only after the fence that covers its record (I2).

use super::claim::{Claim, Unfenced};
use super::layout::Kind;
use super::lookup::{locate, look_up};
use super::read::{UNIT, chain_of};
use super::record::{Chain, Record, Stamp};
use super::{SlotShared, Viper};
use crate::engine::Ticket;
use crate::epoch::Slot;
use crate::error::{Error, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::index::{KeyHash, Location};
use crate::stripe::{StripeId, Stripes};
use everdram_pm::{Lane, Lsn};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Submitted writes after which a session commits by itself.
pub(super) const PENDING_MAX: usize = 256;
/// Scratch memory above this is given back after use.
pub(super) const SCRATCH_KEEP: usize = 1 << 20;

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
}

/// A write between submit and commit.
pub(super) struct Pending {
    pub(super) hash: KeyHash,
    pub(super) stripe: StripeId,
    /// `None`: a removal.
    pub(super) new: Option<Location>,
    pub(super) old: Option<Old>,
    /// A copy by compaction: the old record is not marked dead, and nothing is counted.
    pub(super) moved: bool,
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
    /// The record being built.
    pub(super) record: Vec<u8>,
    /// The record last read.
    pub(super) scratch: Vec<u8>,
    /// The value a `modify` builds.
    pub(super) value: Vec<u8>,
    /// The next record is the first of its fence group.
    pub(super) first: bool,
    /// Free blocks put aside, so that a batch cannot run out of space half-way.
    pub(super) spare: Vec<u32>,
    /// Compaction may use the reserve of free blocks.
    pub(super) compaction: bool,
    pub(super) last_ticket: Lsn,
    pub(super) last_read: Ticket,
    /// Counts towards the sessions a user may have.
    pub(super) counted: bool,
}

pub(super) fn claim_index(kind: Kind) -> usize {
    match kind {
        Kind::Fixed | Kind::FixedEdited => 1,
        Kind::Large => 2,
        _ => 0,
    }
}

pub(super) fn check_key(key: &[u8]) -> Result<(), Error> {
    if key.is_empty() || key.len() > KEY_BYTES_MAX {
        return Err(Error::KeyLength(key.len()));
    }
    Ok(())
}

pub(super) fn check_value(value: &[u8]) -> Result<(), Error> {
    if value.len() > VALUE_BYTES_MAX {
        Err(Error::ValueLength(value.len()))
    } else {
        Ok(())
    }
}

impl ViperSession {
    pub(super) fn new(engine: Arc<Viper>) -> Result<ViperSession, Error> {
        let slot = engine
            .epochs
            .register()
            .ok_or(Error::TooManySessions(engine.sessions_max))?;
        let id = slot.number() as u16;
        let lane = engine.pool.lane();
        let mut session = ViperSession {
            slot,
            id,
            lane,
            claims: [None, None, None],
            unfenced: Unfenced::default(),
            pending: Vec::with_capacity(PENDING_MAX),
            record: Vec::new(),
            scratch: Vec::new(),
            value: Vec::new(),
            first: true,
            spare: Vec::new(),
            compaction: false,
            last_ticket: Lsn(0),
            last_read: Ticket::NONE,
            counted: false,
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
    pub(super) fn counted(engine: Arc<Viper>) -> Result<ViperSession, Error> {
        let taken = engine.sessions.fetch_add(1, Ordering::AcqRel);
        let mut session = match taken < engine.sessions_max {
            true => ViperSession::new(Arc::clone(&engine)),
            false => Err(Error::TooManySessions(engine.sessions_max)),
        };
        match &mut session {
            Ok(session) => session.counted = true,
            Err(_) => {
                engine.sessions.fetch_sub(1, Ordering::AcqRel);
            }
        }
        session
    }

    pub(super) fn shared(&self) -> &SlotShared {
        &self.engine.slots[usize::from(self.id)]
    }

    /// Takes a stripe for a write that stays pending.
    #[inline]
    pub(super) fn acquire(&mut self, stripe: StripeId) -> Result<(), Error> {
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

    /// The current record of `key`, whose stripe the caller holds. Its bytes are left in `scratch`.
    pub(super) fn find(
        &mut self,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<Option<(Old, Record)>, Error> {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let found = look_up(engine, slot, hash, key, scratch)?;
        replaceable(engine, hash, found, scratch)
    }

    /// As [`ViperSession::find`], for a write that does not ask what the value was: `scratch` holds nothing
    /// of use afterwards.
    pub(super) fn locate(&mut self, hash: KeyHash, key: &[u8]) -> Result<Option<Old>, Error> {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let found = locate(engine, slot, hash, key, scratch)?;
        Ok(replaceable(engine, hash, found, scratch)?.map(|(old, _)| old))
    }

    /// Refuses writes once the medium has failed, or the engine has halted.
    #[inline]
    pub(super) fn healthy(&self) -> Result<(), Error> {
        self.engine.healthy()
    }
}

/// What replacing a found record takes.
fn replaceable(
    engine: &Viper,
    hash: KeyHash,
    found: Option<(Location, Record)>,
    scratch: &[u8],
) -> Result<Option<(Old, Record)>, Error> {
    if let Some((location, _)) = &found {
        engine.refuse_locked_page(*location)?;
        // Whoever replaces it will have to mark it dead: damage shows here, before anything is written.
        let reader = engine.reader();
        let spot = reader.spot(location.get() * UNIT)?;
        reader.marks(reader.mark_of(&spot).0, spot.info.epoch)?;
    }
    Ok(found.map(|(location, record)| {
        let chained = record.kind.is_chained();
        let chain = chained.then(|| chain_of(&record, scratch).ok()).flatten();
        let old = Old {
            location,
            bytes: record.bytes as u32,
            chain,
            expired: engine.is_expired(record.expires_at_ms),
            stamp: record.stamp,
            version: match engine.is_edited(location) {
                true => engine.stripes.version(Stripes::of(hash.0)),
                false => record.stamp.version,
            },
        };
        (old, record)
    }))
}

/// Gives stripes back if a caller's closure panics while they are held.
pub(super) struct OnPanic<'a> {
    pub(super) stripes: &'a Stripes,
    pub(super) held: &'a [StripeId],
}

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        self.held
            .iter()
            .for_each(|&stripe| self.stripes.unlock(stripe));
    }
}

impl Drop for ViperSession {
    fn drop(&mut self) {
        // A failing medium has already told every waiter; nothing submitted here was acknowledged.
        let _ = self.commit_pending();
        self.settle_and_fence();
        for claim in self.claims.iter_mut().filter_map(Option::take) {
            self.engine.parked.lock().push(claim);
        }
        if self.counted {
            self.engine.sessions.fetch_sub(1, Ordering::AcqRel);
        }
    }
}
