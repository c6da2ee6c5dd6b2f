//! A session: the paper's client (section 4.1), and the write path.
//!
//! Invariants:
//! - A write that was submitted and not committed holds its key's stripe lock. `pending` has at most one
//!   entry for each stripe: whoever needs a stripe that the session itself holds commits first.
//! - Nobody waits for a stripe while holding another, except in ascending order (batches, which commit
//!   first). So no two sessions wait for each other (V15).
//! - A location enters the index only after the fence that covers its record (I2).

use super::chain;
use super::claim::{Claim, Unfenced};
use super::layout::Kind;
use super::read::{Reader, Spot, UNIT, chain_of, corrupt};
use super::record::{self, Chain, Record, RecordKind, Stamp};
use super::{MARKS_MAX, SlotShared, Viper, bump, index_error};
use crate::engine::{
    BatchOp, Change, Current, EngineSession, Found, Modify, Scope, Ticket, TransactionBody, Visit,
};
use crate::epoch::Slot;
use crate::error::{Error, KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::index::{KeyHash, Location};
use crate::stripe::{Patience, StripeId, Stripes};
use everdram_pm::{Lane, Lsn, Ordered};
use std::sync::Arc;
use std::sync::atomic::{Ordering, fence};

/// Submitted writes after which a session commits by itself.
const PENDING_MAX: usize = 256;
/// Scratch memory above this is given back after use.
const SCRATCH_KEEP: usize = 1 << 20;

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

/// A record that a read found, and the version to show.
struct Seen {
    record: Record,
    version: u64,
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
    claims: [Option<Claim>; 3],
    pub(super) unfenced: Unfenced,
    pub(super) pending: Vec<Pending>,
    /// The record being built.
    record: Vec<u8>,
    /// The record last read.
    pub(super) scratch: Vec<u8>,
    /// The value a `modify` builds.
    value: Vec<u8>,
    /// The next record is the first of its fence group.
    first: bool,
    /// Free blocks put aside, so that a batch cannot run out of space half-way.
    pub(super) spare: Vec<u32>,
    /// Compaction may use the reserve of free blocks.
    pub(super) compaction: bool,
    pub(super) last_ticket: Lsn,
    last_read: Ticket,
    /// Counts towards the sessions a user may have.
    counted: bool,
}

fn claim_index(kind: Kind) -> usize {
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
    if value.len() > VALUE_BYTES_MAX { Err(Error::ValueLength(value.len())) } else { Ok(()) }
}

impl ViperSession {
    pub(super) fn new(engine: Arc<Viper>) -> Result<ViperSession, Error> {
        let slot = engine.epochs.register().ok_or(Error::TooManySessions(engine.sessions_max))?;
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
            let adopted = parked.iter().position(|parked| claim_index(parked.kind()) == index);
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

    // ---- locks ----------------------------------------------------------------------------------------

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

    // ---- finding --------------------------------------------------------------------------------------

    /// The current record of `key`, whose stripe the caller holds. Its bytes are left in `scratch`.
    pub(super) fn find(&mut self, hash: KeyHash, key: &[u8]) -> Result<Option<(Old, Record)>, Error> {
        let ViperSession { engine, slot, scratch, .. } = self;
        let found = look_up(engine, slot, hash, key, scratch)?;
        if let Some((location, _)) = &found {
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

    // ---- writing --------------------------------------------------------------------------------------

    /// Refuses writes once the medium has failed, or the engine has halted.
    #[inline]
    pub(super) fn healthy(&self) -> Result<(), Error> {
        self.engine.healthy()
    }

    /// Writes a record and returns its location. Nothing points to it yet.
    pub(super) fn write(
        &mut self,
        kind: RecordKind,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        version: u64,
        moves: u16,
    ) -> Result<Location, Error> {
        let geometry = self.engine.geometry;
        let fixed = geometry.fixed.filter(|shape| {
            kind == RecordKind::Value
                && expires_at_ms == 0
                && (shape.key, shape.value) == (key.len(), value.len())
        });
        if let Some(shape) = fixed {
            let at = self.place(Kind::Fixed, shape.slot_bytes())?;
            let stamp = Stamp { version, moves, first: std::mem::take(&mut self.first) };
            record::encode_slot(&mut self.record, &shape, key, value, stamp);
            let epoch = self.epoch_of(Kind::Fixed);
            record::seal_slot(self.engine.pool.secret(), &shape, &mut self.record, at, epoch);
            return self.append(Kind::Fixed, at);
        }
        let bytes = record::encoded_bytes(key.len(), value.len(), expires_at_ms != 0) as u64;
        let place = if bytes <= geometry.pages_of(Kind::Variable).room() {
            Kind::Variable
        } else if bytes <= geometry.pages_of(Kind::Large).room() {
            Kind::Large
        } else {
            return self.write_chained(kind, key, value, expires_at_ms, version, moves);
        };
        if expires_at_ms != 0 {
            self.engine.expiries.store(true, Ordering::Relaxed);
        }
        let at = self.place(place, bytes)?;
        let stamp = Stamp { version, moves, first: std::mem::take(&mut self.first) };
        record::encode(&mut self.record, kind, key, value, expires_at_ms, stamp);
        let epoch = self.epoch_of(place);
        record::seal(self.engine.pool.secret(), &mut self.record, at, epoch);
        let location = self.append(place, at)?;
        if self.record.capacity() > SCRATCH_KEEP {
            self.record = Vec::new();
        }
        Ok(location)
    }

    fn write_chained(
        &mut self,
        kind: RecordKind,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        version: u64,
        moves: u16,
    ) -> Result<Location, Error> {
        let head = record::encoded_bytes(key.len(), record::CHAIN_BYTES, true) as u64;
        let big_key = head > self.engine.geometry.pages_of(Kind::Large).room();
        let kind = match (kind, big_key) {
            (RecordKind::Journal, _) => RecordKind::ChainedJournal,
            (_, true) => RecordKind::BigKey,
            (_, false) => RecordKind::Chained,
        };
        let (held, chain) = if big_key {
            (&key[..record::BIG_KEY_PREFIX], chain::write(self, key, value)?)
        } else {
            (key, chain::write(self, b"", value)?)
        };
        let result = self.write(kind, held, &chain.to_bytes(), expires_at_ms, version, moves);
        if result.is_err() {
            // The pieces were never reachable.
            self.engine.retire_chain(chain);
        }
        result
    }

    /// Room for a record in a block of `kind`, opening the next block if need be.
    fn place(&mut self, kind: Kind, bytes: u64) -> Result<u64, Error> {
        let index = claim_index(kind);
        loop {
            if let Some(claim) = &mut self.claims[index] {
                let page = claim.page_at();
                if let Some(at) = claim.place(bytes, &mut self.lane, &mut self.unfenced) {
                    // A page's tail word travels under the fence of the record that begins the next page: a
                    // crash may keep the record and lose the word, so that record proves nothing.
                    self.first &= claim.page_at() == page;
                    return Ok(at);
                }
            }
            self.next_block(kind)?;
        }
    }

    /// Blocks from the free list: first those put aside for the batch being applied.
    pub(super) fn take_blocks(&mut self, count: usize, out: &mut Vec<u32>) -> Result<(), Error> {
        if self.spare.len() >= count {
            let rest = self.spare.len() - count;
            out.extend(self.spare.drain(rest..));
            return Ok(());
        }
        self.engine.blocks.claim(count, self.compaction, out)
    }

    /// Seals the current block of `kind`, if there is one, and opens another. One fence for both.
    fn next_block(&mut self, kind: Kind) -> Result<(), Error> {
        let mut taken = Vec::with_capacity(1);
        self.take_blocks(1, &mut taken)?;
        let Some(&block) = taken.first() else {
            return Err(Error::NoSpace("no free block".into()));
        };
        let ViperSession { engine, lane, unfenced, claims, .. } = self;
        for claim in claims.iter_mut().flatten() {
            claim.settle(lane, unfenced);
        }
        let slot = &mut claims[claim_index(kind)];
        if let Some(full) = slot {
            full.seal(lane, unfenced);
        }
        // The fence in here covers every tail word.
        let next = Claim::open(&engine.blocks, &engine.geometry, kind, block, lane, unfenced);
        if let Some(full) = slot.replace(next) {
            full.sealed(&engine.blocks);
        }
        claims.iter_mut().flatten().for_each(Claim::fenced);
        self.first = true;
        self.engine.background.nudge_if(self.engine.blocks.wants_growth());
        Ok(())
    }

    fn epoch_of(&self, kind: Kind) -> u32 {
        self.claims[claim_index(kind)].as_ref().map_or(0, Claim::epoch)
    }

    fn append(&mut self, kind: Kind, at: u64) -> Result<Location, Error> {
        if let Some(claim) = &mut self.claims[claim_index(kind)] {
            claim.append(&self.record, &mut self.lane, &mut self.unfenced);
        }
        location(at)
    }

    /// Marks a record dead: stored and flushed, not fenced.
    pub(super) fn mark(&mut self, old: &Old) -> Result<(), Error> {
        let at = old.location.get() * UNIT;
        let ViperSession { engine, lane, unfenced, .. } = self;
        let reader = engine.reader();
        let spot = reader.spot(at)?;
        let (mark_at, bit) = reader.mark_of(&spot);
        let secret = engine.pool.secret();
        loop {
            let word = engine.pool.region().load_word(mark_at);
            let Some(bits) = super::layout::parse_mark_word(secret, mark_at, spot.info.epoch, word)
            else {
                return Err(corrupt(mark_at, "a mark word of a page does not verify"));
            };
            let new = super::layout::mark_word(secret, mark_at, spot.info.epoch, bits | bit);
            match lane.exchange_word(mark_at, word, new) {
                Ok(dirty) => {
                    unfenced.add(lane.flush(dirty));
                    return Ok(());
                }
                // Another record of the page died at the same moment.
                Err(_) => std::hint::spin_loop(),
            }
        }
    }

    /// Marks a record dead that a durable newer one has replaced, and says so to compaction.
    pub(super) fn mark_superseded(&mut self, old: &Old) -> Result<(), Error> {
        let at = old.location.get() * UNIT;
        let mark_at = {
            let reader = self.engine.reader();
            let spot = reader.spot(at)?;
            reader.mark_of(&spot).0
        };
        let shared = self.shared();
        let len = shared.marks_len.load(Ordering::Relaxed);
        if let Some(place) = shared.marks.get(len) {
            place.store(mark_at, Ordering::Relaxed);
            shared.marks_len.store(len + 1, Ordering::Release);
        }
        self.mark(old)?;
        if len + 1 >= MARKS_MAX {
            self.fence();
        }
        Ok(())
    }

    fn fence(&mut self) -> Option<Ordered> {
        let flushed = self.unfenced.take()?;
        let ordered = self.lane.fence(flushed);
        self.shared().marks_len.store(0, Ordering::Release);
        self.last_ticket = ordered.lsn();
        Some(ordered)
    }

    /// Streams what is left of open lines and fences everything.
    pub(super) fn settle_and_fence(&mut self) {
        let ViperSession { claims, lane, unfenced, .. } = self;
        for claim in claims.iter_mut().flatten() {
            claim.settle(lane, unfenced);
        }
        self.fence();
        self.claims.iter_mut().flatten().for_each(Claim::fenced);
        self.first = true;
    }

    /// Counts a record as garbage.
    pub(super) fn count_garbage(&self, old: &Old) {
        let block = self.engine.blocks.number(old.location.get() * UNIT);
        if let Some(entry) = self.engine.blocks.get(block) {
            entry.add_garbage(old.bytes);
        }
    }

    /// Lets go of the pieces of a record that is marked dead.
    pub(super) fn let_go(&self, old: &Old) {
        if let Some(chain) = old.chain {
            self.engine.retire_chain(chain);
        }
    }

    /// Runs a write, and once more after compaction if there was no room and compaction made some.
    pub(super) fn with_room<T>(
        &mut self,
        mut write: impl FnMut(&mut Self) -> Result<T, Error>,
    ) -> Result<T, Error> {
        match write(self) {
            Err(Error::NoSpace(why)) if !self.compaction => {
                // Compaction needs key locks: this session may hold none.
                self.commit_pending()?;
                match super::reclaim::reclaim_all(&self.engine) {
                    Ok(freed) if freed > 0 => write(self),
                    _ => Err(Error::NoSpace(why)),
                }
            }
            other => other,
        }
    }

    /// Fences and publishes everything submitted; gives the stripes back.
    pub(super) fn commit_pending(&mut self) -> Result<(), Error> {
        if self.pending.is_empty() {
            return Ok(());
        }
        let mut pending = std::mem::take(&mut self.pending);
        if let Err(error) = self.healthy() {
            // Nothing of it was shown to anybody, and nothing more is written.
            for write in &pending {
                self.engine.stripes.unlock(write.stripe);
            }
            return Err(error);
        }
        // Half a commit must not be built upon: the engine halts, and the next open sorts it out.
        let result = self.commit_these(&pending).map_err(|error| self.engine.halt(error));
        for write in &pending {
            self.engine.stripes.unlock(write.stripe);
        }
        pending.clear();
        self.pending = pending;
        result
    }

    fn commit_these(&mut self, pending: &[Pending]) -> Result<(), Error> {
        for write in pending {
            if let (None, Some(old)) = (write.new, &write.old) {
                self.mark(old)?;
            }
        }
        self.settle_and_fence();
        for write in pending {
            self.publish(write)?;
        }
        Ok(())
    }

    /// Makes one fenced write visible. The caller holds the stripe.
    pub(super) fn publish(&mut self, write: &Pending) -> Result<(), Error> {
        let ViperSession { engine, scratch, .. } = self;
        // A copy that compaction made needs no stamp: until it is durable, the original is still there.
        if !engine.durable_at_fence && !write.moved {
            engine.stripes.set_stamp(write.stripe, self.last_ticket.0);
        }
        match (write.new, &write.old) {
            (Some(new), Some(old)) => {
                let replaced = engine.index.replace(write.hash, old.location, new);
                assert!(replaced, "the index changed under a held key lock");
            }
            (Some(new), None) => {
                let mut rehash = |location: Location| rehash(engine, location, scratch);
                engine.index.insert(write.hash, new, &mut rehash).map_err(index_error)?;
            }
            (None, Some(old)) => {
                let removed = engine.index.remove(write.hash, old.location);
                assert!(removed, "the index changed under a held key lock");
            }
            (None, None) => {}
        }
        if write.moved {
            return Ok(());
        }
        self.count(write);
        if let Some(old) = &write.old {
            if write.new.is_some() {
                self.mark_superseded(old)?;
            }
            self.count_garbage(old);
            self.let_go(old);
        }
        Ok(())
    }

    fn count(&self, write: &Pending) {
        let shared = self.shared();
        let keys = &shared.keys;
        match (&write.new, &write.old) {
            (Some(_), None) => {
                keys.store(keys.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                bump(&shared.puts, 1);
            }
            (Some(_), Some(_)) => bump(&shared.puts, 1),
            (None, Some(old)) => {
                keys.store(keys.load(Ordering::Relaxed) - 1, Ordering::Relaxed);
                bump(if old.expired { &shared.expired } else { &shared.deletes }, 1);
            }
            (None, None) => {}
        }
    }

    /// Submits a put on a held stripe.
    pub(super) fn submit_put(
        &mut self,
        hash: KeyHash,
        stripe: StripeId,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        old: Option<Old>,
    ) -> Result<(), Error> {
        let version = self.engine.stripes.next_version(stripe);
        match self.write(RecordKind::Value, key, value, expires_at_ms, version, 0) {
            Ok(location) => {
                self.submit(Pending { hash, stripe, new: Some(location), old, moved: false })
            }
            Err(error) => {
                self.give_back(stripe);
                Err(error)
            }
        }
    }

    pub(super) fn submit(&mut self, write: Pending) -> Result<(), Error> {
        self.pending.push(write);
        if self.pending.len() >= PENDING_MAX { self.commit_pending() } else { Ok(()) }
    }

    // ---- reading --------------------------------------------------------------------------------------

    /// Commits what a read of `stripe` would otherwise miss; waits out a batch that is being published.
    #[inline]
    fn before_read(&mut self, stripe: StripeId) -> Result<(), Error> {
        if !self.pending.is_empty() && self.engine.stripes.held_by(stripe, self.id) {
            self.commit_pending()?;
        }
        Ok(())
    }

    /// Reads the record of `key` into `scratch` and, if asked, appends its value.
    fn read(&mut self, key: &[u8], mut into: Option<&mut Vec<u8>>) -> Result<Option<Seen>, Error> {
        check_key(key)?;
        let hash = self.engine.hash(key);
        let stripe = Stripes::of(hash.0);
        self.before_read(stripe)?;
        let before = into.as_ref().map_or(0, |into| into.len());
        let mut patience = Patience::new();
        loop {
            let clock = self.engine.stripes.version(stripe);
            let found = self.read_once(hash, key, into.as_deref_mut())?;
            // What was read is older than what is looked at now.
            fence(Ordering::Acquire);
            let edited = found.as_ref().is_some_and(|(_, edited)| *edited);
            let stripes = &self.engine.stripes;
            let foreign = stripes.is_locked(stripe) && !stripes.held_by(stripe, self.id);
            // Half a batch is not to be seen; and a value that is being changed in place is not durable
            // before the lock is given back.
            if foreign && (stripes.is_publishing(stripe) || edited) {
                if let Some(into) = &mut into {
                    into.truncate(before);
                }
                // Whoever holds the stripe may be waiting for one that this session holds.
                self.commit_pending()?;
                patience.wait();
                continue;
            }
            self.last_read = match self.engine.durable_at_fence {
                true => Ticket::NONE,
                false => Ticket(stripes.stamp(stripe)),
            };
            let shared = self.shared();
            bump(&shared.gets, 1);
            if found.is_none() {
                bump(&shared.misses, 1);
            }
            return Ok(found.map(|(record, edited)| {
                // An edit in place keeps the record's version, so the key's clock speaks for it.
                let version = if edited { clock } else { record.stamp.version };
                Seen { record, version }
            }));
        }
    }

    /// One look: the live record, whether its block is open to edits, and its value into `into`. The value
    /// is read under the pin of the look-up, because pieces of a value are let go with their record.
    fn read_once(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        into: Option<&mut Vec<u8>>,
    ) -> Result<Option<(Record, bool)>, Error> {
        let ViperSession { engine, slot, scratch, .. } = self;
        let _pin = slot.pin();
        let found = look_up(engine, slot, hash, key, scratch).and_then(|found| {
            let Some((location, record)) = found else { return Ok(None) };
            if engine.is_expired(record.expires_at_ms) {
                return Ok(None);
            }
            if let Some(into) = into {
                engine.reader().value(&record, scratch, into)?;
            }
            Ok(Some((record, engine.is_edited(location))))
        });
        found.map_err(|error| engine.at_path(error))
    }

    /// Appends the value of the record in `scratch`.
    pub(super) fn value_of(&self, record: &Record, into: &mut Vec<u8>) -> Result<(), Error> {
        self.engine.reader().value(record, &self.scratch, into).map_err(|e| self.engine.at_path(e))
    }

    pub(super) fn set_last_read(&mut self, ticket: Ticket) {
        self.last_read = ticket;
    }

    pub(super) fn last_read_ticket(&self) -> Ticket {
        self.last_read
    }

    /// Adds a dependency to those of the current transaction.
    pub(super) fn newest_read(&mut self, ticket: Ticket) {
        self.last_read = self.last_read.max(ticket);
    }

    /// The version of a key that is there; the clock that its next version comes from if it is not.
    pub(super) fn watch_number(&self, hash: KeyHash, version: Option<u64>) -> u64 {
        let stripe = Stripes::of(hash.0);
        version.map_or_else(|| self.engine.stripes.version(stripe) << 1 | 1, |version| version << 1)
    }

    fn found(&self, seen: &Seen) -> Found {
        Found {
            version: seen.version,
            expires_at_ms: seen.record.expires_at_ms,
            ticket: self.last_read,
        }
    }
}

/// Gives stripes back if a caller's closure panics while they are held.
pub(super) struct OnPanic<'a> {
    pub(super) stripes: &'a Stripes,
    pub(super) held: &'a [StripeId],
}

impl Drop for OnPanic<'_> {
    fn drop(&mut self) {
        self.held.iter().for_each(|&stripe| self.stripes.unlock(stripe));
    }
}

/// The location of a byte offset.
pub(super) fn location(at: u64) -> Result<Location, Error> {
    Location::new(at / UNIT)
        .ok_or_else(|| Error::NoSpace("a pool has at most 8 TiB".into()))
}

/// The hash of the key of the record at `location`, which the index points to.
pub(super) fn rehash(engine: &Viper, location: Location, scratch: &mut Vec<u8>) -> Option<KeyHash> {
    let reader = engine.reader();
    let mut buffer = Vec::new();
    let key = reader
        .spot(location.get() * UNIT)
        .and_then(|spot| reader.copy(&spot, scratch))
        .and_then(|record| reader.key(&record, scratch, &mut buffer));
    // A record whose head rotted keeps the hash bits its entry has; `check` reports the damage.
    key.ok().map(|key| engine.hash(key))
}

/// Finds and verifies the record of `key`; its bytes are left in `scratch`.
pub(super) fn look_up(
    engine: &Viper,
    slot: &Slot,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<Option<(Location, Record)>, Error> {
    let reader = engine.reader();
    let pin = slot.pin();
    let mut outcome = Ok(None);
    engine.index.lookup(hash, &pin, |location| {
        let spot = match reader.spot(location.get() * UNIT) {
            Ok(spot) => spot,
            Err(error) => {
                outcome = Err(error);
                return true;
            }
        };
        match load_if(&reader, &spot, key, scratch) {
            Ok(None) => false,
            Ok(Some(record)) => {
                outcome = Ok(Some((location, record)));
                true
            }
            Err(error) => {
                outcome = Err(error);
                true
            }
        }
    });
    outcome
}

/// The verified record at `spot`, if it is of `key`. A record of another key is verified as well: damage to
/// the key must not read as absence.
#[inline]
fn load_if(
    reader: &Reader<'_>,
    spot: &Spot,
    key: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<Option<Record>, Error> {
    let record = reader.load(spot, scratch)?;
    Ok(reader.is_of(&record, scratch, key)?.then_some(record))
}

impl EngineSession for ViperSession {
    fn get(&mut self, key: &[u8], into: &mut Vec<u8>) -> Result<Option<Found>, Error> {
        let Some(seen) = self.read(key, Some(into))? else { return Ok(None) };
        if self.scratch.capacity() > SCRATCH_KEEP {
            self.scratch = Vec::new();
        }
        Ok(Some(self.found(&seen)))
    }

    fn probe(&mut self, key: &[u8]) -> Result<Option<(Found, u64)>, Error> {
        let Some(seen) = self.read(key, None)? else { return Ok(None) };
        let bytes = self.engine.reader().value_bytes(&seen.record, &self.scratch)?;
        Ok(Some((self.found(&seen), bytes)))
    }

    fn last_read(&self) -> Ticket {
        self.last_read
    }

    fn get_many(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        self.get_many_at_once(keys, into, found)
    }

    fn put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<bool, Error> {
        check_key(key)?;
        check_value(value)?;
        self.with_room(|session| session.try_put(key, value, expires_at_ms))
            .map_err(|error| self.engine.at_path(error))
    }

    fn delete(&mut self, key: &[u8]) -> Result<bool, Error> {
        check_key(key)?;
        self.healthy()?;
        let hash = self.engine.hash(key);
        let stripe = Stripes::of(hash.0);
        self.acquire(stripe)?;
        self.last_read = Ticket(self.engine.stripes.stamp(stripe));
        match self.find(hash, key) {
            Ok(None) => {
                self.give_back(stripe);
                Ok(false)
            }
            Ok(Some((old, _))) => {
                // A removal must be newer than anything that may be watching.
                self.engine.stripes.next_version(stripe);
                self.submit(Pending { hash, stripe, new: None, old: Some(old), moved: false })?;
                Ok(!old.expired)
            }
            Err(error) => {
                self.give_back(stripe);
                Err(self.engine.at_path(error))
            }
        }
    }

    fn modify(&mut self, key: &[u8], decide: Modify<'_>) -> Result<(), Error> {
        check_key(key)?;
        let hash = self.engine.hash(key);
        let stripe = Stripes::of(hash.0);
        self.acquire(stripe)?;
        self.last_read = Ticket(self.engine.stripes.stamp(stripe));
        let mut value = std::mem::take(&mut self.value);
        let mut current = Vec::new();
        let result = self.modify_locked(hash, stripe, key, &mut current, &mut value, decide);
        value.clear();
        if value.capacity() <= SCRATCH_KEEP {
            self.value = value;
        }
        result.map_err(|error| self.engine.at_path(error))
    }

    fn update_word(
        &mut self,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        check_key(key)?;
        self.healthy()?;
        let hash = self.engine.hash(key);
        let stripe = Stripes::of(hash.0);
        self.acquire(stripe)?;
        self.update_word_locked(hash, stripe, key, at, change)
            .map_err(|error| self.engine.at_path(error))
    }

    fn batch(&mut self, ops: &[BatchOp<'_>]) -> Result<Ticket, Error> {
        self.apply_batch(ops).map_err(|error| self.engine.at_path(error))
    }

    fn transaction(&mut self, scope: Scope<'_>, body: TransactionBody<'_>) -> Result<Ticket, Error> {
        self.run_transaction(scope, body).map_err(|error| self.engine.at_path(error))
    }

    fn clear(&mut self) -> Result<Ticket, Error> {
        self.clear_all()
    }

    fn commit(&mut self) -> Result<Ticket, Error> {
        self.commit_pending()?;
        // Also with nothing to commit: whoever waits for this session learns here that the medium failed.
        self.healthy()?;
        Ok(Ticket(self.last_ticket.0))
    }

    fn wait(&mut self, ticket: Ticket) -> Result<(), Error> {
        if ticket == Ticket::NONE {
            return Ok(());
        }
        self.engine.pool.wait(Lsn(ticket.0))?;
        Ok(())
    }

    fn scan(&mut self, cursor: u64, count: usize, visit: Visit<'_>) -> Result<u64, Error> {
        self.scan_keys(cursor, count, visit)
    }

    fn random_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        self.pick_random(into)
    }

    fn watch(&mut self, key: &[u8]) -> u64 {
        if check_key(key).is_err() {
            return 0;
        }
        let hash = self.engine.hash(key);
        let found = self.read(key, None).ok().flatten();
        self.watch_number(hash, found.map(|seen| seen.version))
    }
}

impl ViperSession {
    fn try_put(&mut self, key: &[u8], value: &[u8], expires_at_ms: u64) -> Result<bool, Error> {
        self.healthy()?;
        let hash = self.engine.hash(key);
        let stripe = Stripes::of(hash.0);
        self.acquire(stripe)?;
        match self.find(hash, key) {
            Ok(found) => {
                let old = found.map(|(old, _)| old);
                self.submit_put(hash, stripe, key, value, expires_at_ms, old)?;
                Ok(old.is_none_or(|old| old.expired))
            }
            Err(error) => {
                self.give_back(stripe);
                Err(error)
            }
        }
    }

    fn modify_locked(
        &mut self,
        hash: KeyHash,
        stripe: StripeId,
        key: &[u8],
        current: &mut Vec<u8>,
        value: &mut Vec<u8>,
        decide: Modify<'_>,
    ) -> Result<(), Error> {
        let looked = self.find(hash, key).and_then(|found| {
            if let Some((old, record)) = &found
                && !old.expired
            {
                self.value_of(record, current)?;
            }
            Ok(found)
        });
        let found = match looked {
            Ok(found) => found,
            Err(error) => {
                self.give_back(stripe);
                return Err(error);
            }
        };
        let old = found.as_ref().map(|(old, _)| *old);
        let seen = found.filter(|(old, _)| !old.expired).map(|(old, record)| Current {
            value: current,
            version: old.version,
            expires_at_ms: record.expires_at_ms,
        });
        let release = OnPanic { stripes: &self.engine.stripes, held: &[stripe] };
        let change = decide(seen, value);
        std::mem::forget(release);
        let refused = match change {
            Change::Keep => Ok(()),
            _ => self.healthy().and_then(|()| check_value(value)),
        };
        match (refused, change, old) {
            (Err(error), ..) => {
                self.give_back(stripe);
                Err(error)
            }
            (_, Change::Put { expires_at_ms }, old) => {
                self.submit_put(hash, stripe, key, value, expires_at_ms, old)
            }
            (_, Change::Delete, Some(old)) => {
                self.engine.stripes.next_version(stripe);
                self.submit(Pending { hash, stripe, new: None, old: Some(old), moved: false })
            }
            _ => {
                self.give_back(stripe);
                Ok(())
            }
        }
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
