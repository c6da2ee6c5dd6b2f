//! The read path of a session: from a key to its verified record, under a pin, and the ticket of the answer.

mod place;
mod usual;

use super::Viper;
use super::block_table::State;
use super::layout::Kind;
use super::read::{NOWHERE, Spot, UNIT, What};
use super::record::Record;
use super::session::ViperSession;
use super::space::Space;
use crate::aof::is_below;
use crate::concurrency::epoch::{Pin, Slot};
use crate::concurrency::seam::looks;
use crate::concurrency::stripes::{Backoff, StripeId, Stripes};
use crate::engine::backend::{Backend, Locked};
use crate::engine::counters::bump;
use crate::engine::session::{SNAPSHOT_TRIES, read_own};
use crate::engine::{Found, Ticket};
use crate::error::Error;
use crate::index::{KeyHash, Location};
use std::sync::atomic::{Ordering, fence};
use usual::Usual;

/// The result of one look at a key.
enum Look {
    Absent,
    /// A record, and how it lies there.
    There(Record, Manner),
    /// A dead record in a block that is not verified since the restart: the key was removed, or a writer is
    /// replacing it right now.
    Dead,
}

/// How a record lies in its place.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Settled,
    /// In a block that is open to edits.
    Edited,
    /// In the older half of a pool that keeps what was read last.
    Old,
    /// In the log.
    Below,
}

/// A record that a read found, and the version to show.
pub(super) struct Looked {
    pub(super) record: Record,
    pub(super) version: u64,
    manner: Manner,
}

impl ViperSession {
    /// Reads the value of `key` in the usual case. The index's first candidate is an ordinary record of the
    /// key, or there is none, and no session is writing the stripe, or was changing several keys. `None`
    /// decides nothing: the caller takes the slow path. This is [`ViperSession::read`] in a straight line.
    #[inline(always)]
    pub(super) fn get_fast(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Option<Option<Found>> {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        // Of a change of several keys that ends meanwhile: see [`ViperSession::read`].
        if Stripes::is_word_publishing(engine.stripes.word(engine.stripe(hash))) {
            return None;
        }
        let pin = slot.pin();
        let Some(location) = engine.index.first(hash, &pin) else {
            drop(pin);
            self.end_fast(hash)?;
            bump(&self.counters().misses, 1);
            return Some(None);
        };
        looks!();
        let at = location.get() * UNIT;
        // The look at the block table takes a while, too, so the fetch starts before it.
        engine.reader().prefetch(at);
        let record = read_usual(&engine.space, at, key, scratch)?;
        if let Some(below) = &engine.below
            && below.touch(&engine.space, at)
        {
            return None;
        }
        drop(pin);
        self.end_fast(hash)?;
        into.extend_from_slice(self.scratch.get(record.value())?);
        Some(Some(Found {
            version: record.version,
            expires_at_ms: 0,
            ticket: self.core.last_read,
        }))
    }

    /// Takes the ticket of a fast look, after it; `None` if a session is writing the stripe.
    #[inline(always)]
    fn end_fast(&mut self, hash: KeyHash) -> Option<()> {
        looks!();
        // Orders the read before the look at the lock.
        fence(Ordering::Acquire);
        let stripe = self.engine.stripe(hash);
        if self.engine.stripes.is_locked(stripe) {
            return None;
        }
        self.core.last_read = self.ticket_of(stripe);
        bump(&self.counters().gets, 1);
        Some(())
    }

    /// Reads several keys, and waits for their memory together, if each of them is absent or has an ordinary
    /// record. `false` decides nothing: the caller reads the keys one by one. The caller also checks whether
    /// a session wrote any of the keys meanwhile.
    pub(super) fn get_each_fast(
        &mut self,
        keys: &[&[u8]],
        hashes: &[(u64, u64)],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> bool {
        let ViperSession {
            engine,
            slot,
            scratch,
            ahead,
            ..
        } = self;
        // One pin covers all keys: the index's candidates stay valid under it.
        let pin = slot.pin();
        let all = hashes.iter().map(|&(hash, _)| KeyHash(hash));
        ahead.start(engine, &pin, all, What::Whole);
        looks!();
        let (mut newest, mut misses) = (Ticket::NONE, 0);
        for ((key, &(hash, _)), &at) in keys.iter().zip(hashes).zip(ahead.places()) {
            let mut one = None;
            if at == NOWHERE {
                misses += 1;
            } else {
                let Some(record) = read_usual(&engine.space, at, key, scratch) else {
                    return false;
                };
                if let Some(below) = &engine.below
                    && below.touch(&engine.space, at)
                {
                    return false;
                }
                into.extend_from_slice(scratch.get(record.value()).unwrap_or(&[]));
                one = Some(Found {
                    version: record.version,
                    expires_at_ms: 0,
                    ticket: Ticket::NONE,
                });
            }
            if !engine.durable_at_fence {
                let ticket = Ticket(engine.stripes.stamp(engine.stripe(KeyHash(hash))));
                newest = newest.max(ticket);
                one = one.map(|found| Found { ticket, ..found });
            }
            found.push((one, into.len()));
        }
        drop(pin);
        self.core.last_read = newest;
        let counters = self.counters();
        bump(&counters.gets, keys.len() as u64);
        bump(&counters.misses, misses);
        true
    }

    #[cold]
    pub(super) fn get_slow(
        &mut self,
        key: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<Option<Found>, Error> {
        let Some(looked) = self.read(key, Some(into))? else {
            return Ok(None);
        };
        let found = self.found(&looked);
        if let Some(below) = &self.engine.below {
            let hash = self.engine.hash(key);
            let is_to_move = match looked.manner {
                Manner::Below => below.wants_back(hash),
                manner => manner == Manner::Old,
            };
            if is_to_move {
                self.rewrite_read(hash, key)?;
            }
        }
        Ok(Some(found))
    }

    /// The ticket that a read of the stripe depends on; taken after the read.
    #[inline(always)]
    fn ticket_of(&self, stripe: StripeId) -> Ticket {
        match self.engine.durable_at_fence {
            true => Ticket::NONE,
            false => Ticket(self.engine.stripes.stamp(stripe)),
        }
    }

    /// Reads the record of `key` into `scratch` and, if asked, appends its value.
    #[inline(always)]
    pub(super) fn read(
        &mut self,
        key: &[u8],
        mut into: Option<&mut Vec<u8>>,
    ) -> Result<Option<Looked>, Error> {
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripe(hash);
        read_own(self, stripe)?;
        let before = into.as_ref().map_or(0, |into| into.len());
        let mut tries = 0;
        loop {
            let earlier = self.engine.stripes.word(stripe);
            let look = self.read_once(hash, key, into.as_deref_mut())?;
            // Orders the read before the look at the stripe's word.
            fence(Ordering::Acquire);
            let word = self.engine.stripes.word(stripe);
            let (found, manner) = match look {
                Look::There(record, manner) => (Some(record), manner),
                Look::Absent => (None, Manner::Settled),
                Look::Dead => match self.stood_still(stripe, earlier, word) {
                    true => (None, Manner::Settled),
                    false => continue,
                },
            };
            let edited = manner == Manner::Edited;
            let is_unsettled =
                Stripes::is_word_locked(word) && self.is_unsettled(stripe, word, edited);
            // A change of several keys has ended meanwhile: who knows of what counts as later than it (see
            // [`crate::landing`]) must not be shown this key as it was before.
            let has_settled = Stripes::is_word_publishing(earlier)
                && !self.engine.stripes.held_by(stripe, self.id);
            if is_unsettled || has_settled {
                if let Some(into) = &mut into {
                    into.truncate(before);
                }
                self.give_way(stripe, if is_unsettled { word } else { earlier })?;
                continue;
            }
            // A reader of several edited words may have seen some before an edit and some after it.
            if edited && word != earlier && !self.engine.stripes.held_by(stripe, self.id) {
                if let Some(into) = &mut into {
                    into.truncate(before);
                }
                tries += 1;
                match tries > SNAPSHOT_TRIES {
                    true => return self.read_locked(key, into),
                    false => continue,
                }
            }
            self.core.last_read = self.ticket_of(stripe);
            let counters = self.counters();
            bump(&counters.gets, 1);
            let Some(record) = found else {
                bump(&counters.misses, 1);
                return Ok(None);
            };
            if manner == Manner::Below {
                bump(&counters.below_reads, 1);
            }
            // An edit in place keeps the record's version, so the key's clock is shown.
            let clock = Stripes::version_of(earlier);
            let version = if edited { clock } else { record.stamp.version };
            return Ok(Some(Looked {
                record,
                version,
                manner,
            }));
        }
    }

    /// As [`ViperSession::read`], under the stripe's lock, because writers changed keys of the stripe during
    /// every attempt.
    #[cold]
    fn read_locked(
        &mut self,
        key: &[u8],
        into: Option<&mut Vec<u8>>,
    ) -> Result<Option<Looked>, Error> {
        let locked = Locked::take(self, Some(&[key]))?;
        locked.session.read(key, into)
    }

    /// Whether no other session changed a key of the stripe during a look that found a dead record. The
    /// stripe's word was `before` and is `after`. Waits for a writer that holds the stripe now.
    #[cold]
    fn stood_still(&self, stripe: StripeId, before: u64, after: u64) -> bool {
        let stripes = &self.engine.stripes;
        if Stripes::is_word_locked(after) && !stripes.held_by(stripe, self.id) {
            let mut backoff = Backoff::new();
            while stripes.word(stripe) == after {
                backoff.wait();
            }
            return false;
        }
        before == after
    }

    /// Waits for the session that holds the stripe's lock now.
    #[cold]
    pub(super) fn pass_writer(&self, stripe: StripeId) -> Result<(), Error> {
        let stripes = &self.engine.stripes;
        match stripes.held_by(stripe, self.id) {
            true => Ok(()),
            false => stripes
                .pass(stripe, self.id, || self.engine.healthy())
                .map(drop),
        }
    }

    /// Whether another session holds `stripe` and may be in the middle of a change that readers must not see.
    /// It may be half a batch, or an edit in place, which is not durable before that session releases the
    /// lock.
    #[cold]
    fn is_unsettled(&self, stripe: StripeId, word: u64, edited: bool) -> bool {
        let stripes = &self.engine.stripes;
        !stripes.held_by(stripe, self.id) && (Stripes::is_word_publishing(word) || edited)
    }

    /// Waits until the lock of a stripe has moved on.
    #[cold]
    fn give_way(&mut self, stripe: StripeId, word: u64) -> Result<(), Error> {
        // Without this commit, the holder of the stripe may wait for one that this session holds.
        self.commit_pending()?;
        let mut backoff = Backoff::new();
        while self.engine.stripes.word(stripe) == word {
            backoff.wait();
        }
        Ok(())
    }

    /// One look at a key; its value goes into `into`. The pin of the look-up covers the read of the value,
    /// because the pieces of a value are retired with their record.
    #[inline(always)]
    fn read_once(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        into: Option<&mut Vec<u8>>,
    ) -> Result<Look, Error> {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let pin = slot.pin();
        let Some((_, spot, record)) = find(engine, &pin, hash, key, scratch, Aim::Read)? else {
            return Ok(Look::Absent);
        };
        if spot.info.state == State::Unverified && engine.has_died(&spot, &record)? {
            return Ok(Look::Dead);
        }
        looks!();
        if engine.is_expired(record.expires_at_ms) {
            return Ok(Look::Absent);
        }
        if let Some(into) = into {
            engine
                .reader()
                .value(&record, scratch, into)
                .map_err(|error| engine.at_path(error))?;
        }
        let is_touched_old = match &engine.below {
            Some(below) if !spot.is_below() => below.touch(&engine.space, spot.at),
            _ => false,
        };
        let manner = match spot.info.kind {
            _ if spot.is_below() => Manner::Below,
            Kind::FixedEdited => Manner::Edited,
            _ if is_touched_old => Manner::Old,
            _ => Manner::Settled,
        };
        Ok(Look::There(record, manner))
    }

    /// Appends the value of the record in `scratch`.
    pub(super) fn value_of(&self, record: &Record, into: &mut Vec<u8>) -> Result<(), Error> {
        self.engine
            .reader()
            .value(record, &self.scratch, into)
            .map_err(|e| self.engine.at_path(e))
    }

    #[inline(always)]
    pub(super) fn found(&self, seen: &Looked) -> Found {
        Found {
            version: seen.version,
            expires_at_ms: seen.record.expires_at_ms,
            ticket: self.core.last_read,
        }
    }
}

/// The location of a byte offset.
pub(super) fn location(at: u64) -> Result<Location, Error> {
    Location::new(at / UNIT).ok_or_else(|| Error::NoSpace("a pool has at most 8 TiB".into()))
}

/// The hash of the key of the record at `location`, which the index points to.
fn rehash(engine: &Viper, location: Location, scratch: &mut Vec<u8>) -> Option<KeyHash> {
    if let Some(below) = &engine.below
        && is_below(location)
    {
        let record = below.record(location, scratch).ok()?;
        return scratch.get(record.key()).map(|key| engine.hash(key));
    }
    let reader = engine.reader();
    // `check` reports the damage of a record whose head rotted.
    let spot = reader.spot(location.get() * UNIT).ok()?;
    if let Some(record) = reader.start(&spot, scratch) {
        return scratch.get(record.key()).map(|key| engine.hash(key));
    }
    let mut buffer = Vec::new();
    let record = reader.copy(&spot, scratch).ok()?;
    let key = reader.key(&record, scratch, &mut buffer).ok()?;
    Some(engine.hash(key))
}

/// As [`rehash`], for many records whose first lines are fetched side by side.
pub(super) fn rehash_all(
    engine: &Viper,
    locations: &[Location],
    scratch: &mut Vec<u8>,
    hashes: &mut Vec<KeyHash>,
) -> Result<(), Location> {
    let reader = engine.reader();
    for location in locations.iter().filter(|location| !is_below(**location)) {
        reader.prefetch_start(location.get() * UNIT);
    }
    for &location in locations {
        hashes.push(rehash(engine, location, scratch).ok_or(location)?);
    }
    Ok(())
}

/// A record that a look-up found: its location in the index, its place, its contents.
pub(super) type Hit = (Location, Spot, Record);

/// The purpose of a look-up.
#[derive(Clone, Copy)]
pub(super) enum Aim {
    /// To be read: all of it, verified.
    Read,
    /// To be replaced or removed. The look-up reads an ordinary record up to its key and does not verify it.
    /// A writer needs to know which record to mark dead, not its value.
    Mark,
    /// As [`Aim::Mark`], to edit the word at this many bytes from the record's start.
    Edit(u64),
}

/// Finds and verifies the record of `key`, whose stripe the caller holds; its bytes are left in `scratch`.
pub(super) fn look_up(
    engine: &Viper,
    slot: &Slot,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<Option<Hit>, Error> {
    locate(engine, slot, hash, key, scratch, Aim::Read)
}

/// As [`look_up`], as far as `aim` asks.
#[inline(always)]
pub(super) fn locate(
    engine: &Viper,
    slot: &Slot,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
    aim: Aim,
) -> Result<Option<Hit>, Error> {
    let hit = find(engine, &slot.pin(), hash, key, scratch, aim)?;
    alive(engine, slot, hash, hit)
}

/// Skips a record that was removed before the index was loaded, and removes its entry from the index.
#[inline(always)]
fn alive(
    engine: &Viper,
    slot: &Slot,
    hash: KeyHash,
    hit: Option<Hit>,
) -> Result<Option<Hit>, Error> {
    if let Some((location, spot, record)) = &hit
        && spot.info.state == State::Unverified
        && engine.has_died(spot, record)?
    {
        engine.mark_found_dead(slot, hash, *location);
        return Ok(None);
    }
    Ok(hit)
}

/// The record of `key` for an iteration that has met a dead one. The key was removed before a restart, or
/// replaced since the iteration came to it.
#[cold]
pub(super) fn look_again(
    engine: &Viper,
    pin: &Pin<'_>,
    key: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<Option<Hit>, Error> {
    let hit = find(engine, pin, engine.hash(key), key, scratch, Aim::Read)?;
    match hit {
        Some((_, spot, record))
            if spot.info.state == State::Unverified && engine.has_died(&spot, &record)? =>
        {
            Ok(None)
        }
        hit => Ok(hit),
    }
}

/// [`super::read::Reader::read_usual`] at a candidate of the index, under the present pin.
#[inline(always)]
fn read_usual(space: &Space, at: u64, key: &[u8], scratch: &mut Vec<u8>) -> Option<Usual> {
    space.reader().read_usual(at, key, scratch)
}

/// The record of `key` that the index leads to.
///
/// # Errors
/// [`Error::Corrupt`]: a candidate is damaged, and no other one is a record of the key.
#[inline(always)]
fn find(
    engine: &Viper,
    pin: &Pin<'_>,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
    aim: Aim,
) -> Result<Option<Hit>, Error> {
    let reader = engine.reader();
    let mut damage = None;
    for location in engine.index.candidates(hash, pin) {
        looks!();
        if let Some(below) = &engine.below
            && is_below(location)
        {
            match below.offered(location, key, scratch) {
                Ok(None) => {}
                Ok(Some(record)) => return Ok(Some((location, Spot::below(), record))),
                Err(error) => keep(&mut damage, error),
            }
            continue;
        }
        let at = location.get() * UNIT;
        // The look at the block table takes a while, too, so the fetch starts before it.
        match aim {
            Aim::Read => reader.prefetch(at),
            Aim::Edit(word) => {
                let region = engine.pool.region();
                region.prefetch_to_write(at.wrapping_add(word));
            }
            Aim::Mark => reader.prefetch_start(at),
        }
        match offered(&engine.space, at, key, scratch, aim) {
            Ok(None) => {}
            Ok(Some((spot, record))) => return Ok(Some((location, spot, record))),
            // Another entry may be a later put of the key.
            Err(error) => keep(&mut damage, error),
        }
    }
    match damage {
        None => Ok(None),
        Some(error) => Err(engine.at_path(*error)),
    }
}

/// Keeps the first of several errors: apart and boxed, because look-ups hardly ever meet one.
#[cold]
fn keep(damage: &mut Option<Box<Error>>, error: Error) {
    damage.get_or_insert_with(|| Box::new(error));
}

/// The record at a candidate of the index, if it is one of `key`.
#[inline(always)]
fn offered(
    space: &Space,
    at: u64,
    key: &[u8],
    scratch: &mut Vec<u8>,
    aim: Aim,
) -> Result<Option<(Spot, Record)>, Error> {
    let reader = space.reader();
    let mut spot = reader.spot(at)?;
    looks!();
    if let Aim::Mark = aim {
        reader.prefetch_mark(&reader.mark_of(&spot));
    }
    if let Aim::Mark | Aim::Edit(_) = aim
        && let Some(record) = reader.header(&spot, key, scratch)
    {
        return Ok(Some((spot, record)));
    }
    // A record of another key is verified, too: a damaged key must not read as absent. `load` updates `spot`:
    // once the block is open for edits, a value may be one that is not durable.
    let record = reader.load(&mut spot, scratch)?;
    let is_of_key = reader.is_of(&record, scratch, key)?;
    Ok(is_of_key.then_some((spot, record)))
}
