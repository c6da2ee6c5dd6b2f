//! The read path of a session: from a key to its verified record, under a pin, and what the answer depends
//! on.

use super::Viper;
use super::block_table::State;
use super::layout::Kind;
use super::read::{NOWHERE, Spot, UNIT, What};
use super::record::Record;
use super::session::ViperSession;
use super::space::Space;
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

/// What one look for a key finds.
enum Look {
    Absent,
    /// A record, and whether its block is open to edits.
    There(Record, bool),
    /// A record that is marked dead, in a block that nobody has verified since a restart: its key has been
    /// removed, or is being replaced right now.
    Dead,
}

/// A record that a read found, and the version to show.
pub(super) struct Looked {
    pub(super) record: Record,
    pub(super) version: u64,
}

impl ViperSession {
    /// Reads the value of `key` if all is as usual: the first record that the index offers is an ordinary one
    /// of the key, or it offers none, and nobody writes keys of the stripe. `None` says nothing: look
    /// thoroughly. This is [`ViperSession::read`] in a straight line. While one look-up waits for memory the
    /// processor begins the next, but only if it is no more than some hundreds of instructions away.
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
        let pin = slot.pin();
        let record = match engine.index.candidates(hash, &pin).next() {
            Some(location) => {
                looks!();
                let at = location.get() * UNIT;
                // What the block table says of it takes a while, too.
                engine.reader().prefetch(at);
                Some(read_ordinary(&engine.space, at, key, scratch)?)
            }
            None => None,
        };
        drop(pin);
        looks!();
        // What was read is older than what is looked at now.
        fence(Ordering::Acquire);
        let stripe = engine.stripe(hash);
        if engine.stripes.is_locked(stripe) {
            return None;
        }
        self.core.last_read = self.ticket_of(stripe);
        bump(&self.counters().gets, 1);
        let Some(record) = record else {
            bump(&self.counters().misses, 1);
            return Some(None);
        };
        into.extend_from_slice(self.scratch.get(record.value())?);
        Some(Some(Found {
            version: record.stamp.version,
            expires_at_ms: 0,
            ticket: self.core.last_read,
        }))
    }

    /// Reads several keys, waiting for memory together, if each of them is absent or has an ordinary record.
    /// `false` says nothing: read each by itself. Whether anybody was writing the keys meanwhile is for the
    /// caller to find out.
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
        // One pin from here on: what the index offers stays what it is.
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
                let Some(record) = read_ordinary(&engine.space, at, key, scratch) else {
                    return false;
                };
                into.extend_from_slice(scratch.get(record.value()).unwrap_or(&[]));
                one = Some(Found {
                    version: record.stamp.version,
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
        let looked = self.read(key, Some(into))?;
        Ok(looked.map(|looked| self.found(&looked)))
    }

    /// What a read of a key of the stripe depends on; asked after the read.
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
            // What was read is older than what is looked at now.
            fence(Ordering::Acquire);
            let word = self.engine.stripes.word(stripe);
            let (found, edited) = match look {
                Look::There(record, edited) => (Some(record), edited),
                Look::Absent => (None, false),
                Look::Dead => match self.stood_still(stripe, earlier, word) {
                    true => (None, false),
                    false => continue,
                },
            };
            if Stripes::is_word_locked(word) && self.is_unsettled(stripe, word, edited) {
                if let Some(into) = &mut into {
                    into.truncate(before);
                }
                self.give_way(stripe, word)?;
                continue;
            }
            // Words of a value that are edited one after the other may have been read between the edits.
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
            // An edit in place keeps the record's version, so the key's clock speaks for it.
            let clock = Stripes::version_of(earlier);
            let version = if edited { clock } else { record.stamp.version };
            return Ok(Some(Looked { record, version }));
        }
    }

    /// As [`ViperSession::read`], while nobody else changes keys of the stripe: they have been changed all
    /// the time.
    #[cold]
    fn read_locked(
        &mut self,
        key: &[u8],
        into: Option<&mut Vec<u8>>,
    ) -> Result<Option<Looked>, Error> {
        let locked = Locked::take(self, Some(&[key]))?;
        locked.session.read(key, into)
    }

    /// Whether nobody else has changed a key of the stripe during a look that found a dead record: its word
    /// was `before`, and is `after`. Waits for whoever is changing one now.
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

    /// Waits for whoever is changing a key of the stripe now.
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

    /// Whether another session, which has the lock of `stripe`, may be in the middle of something that is not
    /// to be seen: half a batch, or a value that is being changed in place, and is not durable before the
    /// lock is given back.
    #[cold]
    fn is_unsettled(&self, stripe: StripeId, word: u64, edited: bool) -> bool {
        let stripes = &self.engine.stripes;
        !stripes.held_by(stripe, self.id) && (Stripes::is_word_publishing(word) || edited)
    }

    /// Waits until the lock of a stripe has moved on.
    #[cold]
    fn give_way(&mut self, stripe: StripeId, word: u64) -> Result<(), Error> {
        // Whoever holds the stripe may be waiting for one that this session holds.
        self.commit_pending()?;
        let mut backoff = Backoff::new();
        while self.engine.stripes.word(stripe) == word {
            backoff.wait();
        }
        Ok(())
    }

    /// One look at a key; its value goes into `into`. The value
    /// is read under the pin of the look-up, because pieces of a value are let go with their record.
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
        Ok(Look::There(record, spot.info.kind == Kind::FixedEdited))
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

/// As [`rehash`], of many records, whose first lines are fetched side by side.
pub(super) fn rehash_all(
    engine: &Viper,
    locations: &[Location],
    scratch: &mut Vec<u8>,
    hashes: &mut Vec<KeyHash>,
) -> Result<(), Location> {
    let reader = engine.reader();
    for location in locations {
        reader.prefetch_start(location.get() * UNIT);
    }
    for &location in locations {
        hashes.push(rehash(engine, location, scratch).ok_or(location)?);
    }
    Ok(())
}

/// A record that was looked for: as the index has it, where it lies, what it is.
pub(super) type Hit = (Location, Spot, Record);

/// What a record is looked for, for.
#[derive(Clone, Copy)]
pub(super) enum Aim {
    /// To be read: all of it, verified.
    Read,
    /// To be replaced or removed. An ordinary record is looked at no further than its key, and not verified:
    /// writers need to know which record they mark dead and not what is in it.
    Mark,
    /// As [`Aim::Mark`], to have the word at so many bytes from its start changed.
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

/// As [`look_up`], as far as a writer wants to know.
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

/// Leaves out, for good, what was removed before the restart that the index was loaded in.
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

/// The record of `key` for an iteration that has met a dead one of it: that one was removed before a restart,
/// or it has been replaced since the iteration came to it.
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

/// [`super::read::Reader::read_ordinary`] at what the index has offered under the present pin.
#[inline(always)]
pub(super) fn read_ordinary(
    space: &Space,
    at: u64,
    key: &[u8],
    scratch: &mut Vec<u8>,
) -> Option<Record> {
    space.reader().read_ordinary(at, key, scratch)
}

/// The record of `key` that the index leads to.
///
/// # Errors
/// [`Error::Corrupt`]: something that the index has offered is damaged, and nothing else is a record of the key.
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
        let at = location.get() * UNIT;
        // What the block table says of it takes a while, too.
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
            // The key may have been put again since, and have another entry.
            Err(error) => keep(&mut damage, error),
        }
    }
    match damage {
        None => Ok(None),
        Some(error) => Err(engine.at_path(*error)),
    }
}

/// Keeps the first of several errors: apart, and in a box, because look-ups hardly ever meet one.
#[cold]
fn keep(damage: &mut Option<Box<Error>>, error: Error) {
    damage.get_or_insert_with(|| Box::new(error));
}

/// The record at a place that the index has offered, if it is one of `key`.
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
    // A record of another key is verified as well: damage to the key must not read as absence. What it is by
    // then counts: from the moment when the block is opened for edits, a value may be one that is not
    // durable.
    let record = reader.load(&mut spot, scratch)?;
    let is_of_key = reader.is_of(&record, scratch, key)?;
    Ok(is_of_key.then_some((spot, record)))
}
