//! Operations beside put, get and delete: several reads at one moment, in-place updates, iteration.

use super::block_table::{Info, State};
use super::layout::{Kind, page_word};
use super::lookup::{Aim, SNAPSHOT_TRIES, locate, look_again, read_ordinary};
use super::read::{NOWHERE, Spot, UNIT, What};
use super::record::Record;
use super::session::{Old, Pending, Replaced, ViperSession};
use crate::concurrency::seam::looks;
use crate::concurrency::stripes::{GiveBack, StripeId, Stripes};
use crate::engine::counters::bump;
use crate::engine::seen::Met;
use crate::engine::{Engine, EngineSession, Found, Ticket, Visit, check_key};
use crate::error::Error;
use crate::index::KeyHash;
use everdram_pm::Ordered;
use std::sync::atomic::{Ordering, fence};

/// A record to change a word of, and its value.
pub(super) type WordFound = (Old, Record, Vec<u8>);

impl ViperSession {
    /// Reads several keys as of one moment: optimistically, then under their locks.
    pub(super) fn get_many_at_once(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        for key in keys {
            check_key(key)?;
        }
        self.commit_pending()?;
        let mut hashes = std::mem::take(&mut self.hashes);
        hashes.clear();
        hashes.extend(keys.iter().map(|key| (self.engine.hash(key), 0)));
        let result = self.get_hashed(keys, &mut hashes, into, found);
        self.hashes = hashes;
        result
    }

    /// `hashes`: of each key, and room for its stripe's word.
    fn get_hashed(
        &mut self,
        keys: &[&[u8]],
        hashes: &mut [(KeyHash, u64)],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        let (bytes, count) = (into.len(), found.len());
        for attempt in 0..=SNAPSHOT_TRIES {
            let locked = match attempt == SNAPSHOT_TRIES {
                true => self.lock_all(keys.iter().copied())?,
                false => Vec::new(),
            };
            let stripes = &self.engine.stripes;
            for (hash, word) in hashes.iter_mut() {
                *word = stripes.word(stripes.of(hash.0));
            }
            let result = match self.get_each_fast(keys, hashes, into, found) {
                true => Ok(()),
                false => {
                    into.truncate(bytes);
                    found.truncate(count);
                    self.read_each(keys, into, found)
                }
            };
            // What was read is older than what is looked at now.
            fence(Ordering::Acquire);
            let stripes = &self.engine.stripes;
            let quiet = hashes.iter().all(|&(hash, word)| {
                !Stripes::is_word_locked(word) && stripes.word(stripes.of(hash.0)) == word
            });
            let stable = quiet || !locked.is_empty();
            self.engine.stripes.unlock_all(&locked);
            if stable || result.is_err() {
                return result;
            }
            into.truncate(bytes);
            found.truncate(count);
        }
        Ok(())
    }

    /// Reads several keys, waiting for memory together, if each of them is absent or has an ordinary record.
    /// `false` says nothing: read each by itself. Whether anybody was writing the keys meanwhile is for the
    /// caller to find out.
    fn get_each_fast(
        &mut self,
        keys: &[&[u8]],
        hashes: &[(KeyHash, u64)],
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
        let all = hashes.iter().map(|&(hash, _)| hash);
        ahead.start(engine, &pin, all, What::Whole);
        looks!();
        let (mut newest, mut misses) = (Ticket::NONE, 0);
        for ((key, &(hash, _)), &at) in keys.iter().zip(hashes).zip(ahead.places()) {
            let mut one = None;
            if at == NOWHERE {
                misses += 1;
            } else {
                let Some(record) = read_ordinary(engine, at, key, scratch) else {
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
                let ticket = Ticket(engine.stripes.stamp(engine.stripe(hash)));
                newest = newest.max(ticket);
                one = one.map(|found| Found { ticket, ..found });
            }
            found.push((one, into.len()));
        }
        drop(pin);
        self.set_last_read(newest);
        let counters = self.counters();
        bump(&counters.gets, keys.len() as u64);
        bump(&counters.misses, misses);
        true
    }

    fn read_each(
        &mut self,
        keys: &[&[u8]],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        let mut newest = Ticket::NONE;
        for key in keys {
            let one = self.get(key, into)?;
            newest = newest.max(self.last_read());
            found.push((one, into.len()));
        }
        self.set_last_read(newest);
        Ok(())
    }

    /// `update_word` on a held stripe, with what [`ViperSession::word_of`] said; gives it back or submits on
    /// it.
    pub(super) fn update_word_locked(
        &mut self,
        prepared: Result<Option<WordFound>, Error>,
        hash: KeyHash,
        stripe: StripeId,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        let (old, record, value) = match prepared {
            Ok(Some(found)) => found,
            Ok(None) => {
                self.set_last_read(Ticket(self.engine.stripes.stamp(stripe)));
                self.give_back(stripe);
                return Ok(None);
            }
            Err(error) => {
                // That the value is too short is an answer, too.
                self.set_last_read(Ticket(self.engine.stripes.stamp(stripe)));
                self.give_back(stripe);
                return Err(error);
            }
        };
        let word = super::layout::word_at(&value, at);
        let release = GiveBack {
            stripes: &self.engine.stripes,
            held: &[stripe],
        };
        let new = change(word);
        std::mem::forget(release);
        let mut value = value;
        if let Some(place) = value.get_mut(at..at + 8) {
            place.copy_from_slice(&new.to_le_bytes());
        }
        self.submit_put(
            hash,
            stripe,
            key,
            &value,
            record.expires_at_ms,
            Replaced::Known(Some(old)),
        )?;
        Ok(Some(word))
    }

    /// The live record of `key` and its value, if the word at `at` is inside it.
    pub(super) fn word_of(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        at: usize,
    ) -> Result<Option<WordFound>, Error> {
        let Some((old, record)) = self.find(hash, key)?.filter(|(old, _)| !old.expired) else {
            return Ok(None);
        };
        let mut value = Vec::new();
        self.value_of(&record, &mut value)?;
        let inside =
            at.is_multiple_of(8) && at.checked_add(8).is_some_and(|end| end <= value.len());
        if !inside {
            return Err(Error::WordOutside {
                at,
                len: value.len(),
            });
        }
        Ok(Some((old, record, value)))
    }

    /// Changes a word of a fixed-size value where it lies, on a held stripe, and gives the stripe back.
    /// `None`: it has to be done another way, and the stripe is still held.
    pub(super) fn change_in_place(
        &mut self,
        hash: KeyHash,
        stripe: StripeId,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<u64>, Error> {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let value_at = engine.geometry.fixed.map_or(0, |shape| shape.value_at());
        let aim = Aim::Edit(at.wrapping_add(value_at) as u64);
        let Some((_, spot, record)) = locate(engine, slot, hash, key, scratch, aim)? else {
            return Ok(None);
        };
        let is_inside = at.is_multiple_of(8) && at < record.value().len().saturating_sub(7);
        if !spot.info.kind.is_fixed() || !is_inside {
            return Ok(None);
        }
        let word_at = spot.at + (record.value().start + at) as u64;
        debug_assert!(
            word_at.is_multiple_of(8) && word_at + 8 <= spot.at + u64::from(record.bytes),
            "a word outside of its value is changed"
        );
        if !self.is_editable(&spot) {
            return Ok(None);
        }
        let word = self.engine.pool.region().load_word(word_at);
        let release = GiveBack {
            stripes: &self.engine.stripes,
            held: &[stripe],
        };
        let new = change(word);
        std::mem::forget(release);
        let ordered = self.store_and_fence(word_at, new);
        // Readers take the clock for the version of what may be changed in place.
        self.engine.stripes.next_version(stripe);
        if !self.engine.durable_at_fence {
            self.engine.stripes.set_stamp(stripe, &ordered);
        }
        self.engine.stripes.release(stripe, &ordered);
        Ok(Some(word))
    }

    /// Whether words of the block may be changed where they lie, which it is opened for if it can be. Not if
    /// it has records of variable size, is not sealed yet, or is being compacted.
    fn is_editable(&mut self, spot: &Spot) -> bool {
        match (spot.info.state, spot.info.kind) {
            (State::Sealed, Kind::FixedEdited) => true,
            (State::Sealed, Kind::Fixed) => {
                let block = self.engine.blocks.number(spot.at);
                self.open_for_edits(block, spot.info)
            }
            _ => false,
        }
    }

    pub(super) fn store_and_fence(&mut self, at: u64, word: u64) -> Ordered {
        let dirty = self.lane.store_word(at, word);
        self.unfenced.add(self.lane.flush(dirty));
        self.settle_and_fence()
    }

    /// Voids the value checks of a block, durably, before the first word in it changes (V13).
    fn open_for_edits(&mut self, block: u32, info: Info) -> bool {
        let at = self.engine.blocks.at(block);
        let word = page_word(self.engine.pool.secret(), at, Kind::FixedEdited, info.epoch);
        let _ordered = self.store_and_fence(at, word);
        let edited = Info {
            kind: Kind::FixedEdited,
            ..info
        };
        self.engine.blocks.get(block).is_some_and(|entry| {
            // Somebody else may have opened it meanwhile; or compaction took it, then it stays shut.
            entry.swap(info, edited) || entry.info() == edited
        })
    }

    pub(super) fn scan_keys(
        &mut self,
        cursor: u64,
        count: usize,
        visit: Visit<'_>,
    ) -> Result<u64, Error> {
        self.commit_pending()?;
        // Shown when nobody is pinned any more: whoever is shown a key may write, and wait for room that
        // comes when readers leave.
        let mut met = Met::default();
        let next = loop {
            // Looked at first: whoever has raised it meanwhile, and is waited for, may not have been all the
            // time.
            let floor = self.engine.floor.load(Ordering::Acquire);
            looks!();
            self.engine.pass_publications()?;
            let next = self.walk(cursor, count, &mut met);
            self.engine.pass_publications()?;
            // What was walked through is older than what is looked at now.
            fence(Ordering::Acquire);
            // A transaction that removes everything may put keys again that were there before: they have been
            // there all the time, and were not to be found for a moment.
            if self.engine.floor.load(Ordering::Acquire) == floor {
                break next;
            }
            met = Met::default();
        };
        met.show(visit);
        // Of a key that was not met, nothing tells since when it is gone.
        self.set_last_read(self.engine.committed());
        next
    }

    /// Meets the keys of at least `count` entries, if there are as many, from `cursor` on. Returns where to
    /// go on.
    fn walk(&mut self, cursor: u64, count: usize, met: &mut Met) -> Result<u64, Error> {
        let mut failed = Ok(());
        let mut dying = Vec::new();
        let next = {
            let ViperSession {
                engine,
                slot,
                scratch,
                ..
            } = self;
            let pin = slot.pin();
            let mut one = |location: crate::index::Location| -> Result<(), Error> {
                looks!();
                let reader = engine.reader();
                let mut spot = reader.spot(location.get() * UNIT)?;
                let mut record = reader.load(&mut spot, scratch)?;
                let mut buffer = Vec::new();
                if spot.info.state == State::Unverified && engine.has_died(&spot, &record)? {
                    let key = reader.key(&record, scratch, &mut buffer)?.to_vec();
                    dying.push(engine.stripe(engine.hash(&key)));
                    match look_again(engine, &pin, &key, scratch)? {
                        Some((.., found)) => record = found,
                        None => return Ok(()),
                    }
                }
                if engine.is_expired(record.expires_at_ms) {
                    return Ok(());
                }
                let bytes = reader.value_bytes(&record, scratch)?;
                let key = reader.key(&record, scratch, &mut buffer)?;
                met.push(key, bytes, record.expires_at_ms);
                Ok(())
            };
            engine.index.scan(cursor, count, &pin, &mut |location| {
                if failed.is_ok() {
                    failed = one(location);
                }
            })
        };
        // Their marks may have been stored just now, and are fenced before the stripe is given back.
        for stripe in dying {
            self.pass_writer(stripe)?;
        }
        failed.map_err(|error| self.engine.at_path(error))?;
        Ok(next)
    }

    pub(super) fn pick_random(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        self.commit_pending()?;
        for _ in 0..64 {
            into.clear();
            let ViperSession {
                engine,
                slot,
                scratch,
                ..
            } = self;
            let pin = slot.pin();
            let Some(location) = engine.index.random(rand::random(), &pin) else {
                break;
            };
            looks!();
            let reader = engine.reader();
            let mut spot = reader.spot(location.get() * UNIT)?;
            let record = reader
                .load(&mut spot, scratch)
                .map_err(|e| engine.at_path(e))?;
            if engine.is_expired(record.expires_at_ms)
                || spot.info.state == State::Unverified && engine.has_died(&spot, &record)?
            {
                continue;
            }
            let mut buffer = Vec::new();
            into.extend_from_slice(reader.key(&record, scratch, &mut buffer)?);
            let stamp = engine.stripes.stamp(engine.stripe(engine.hash(into)));
            drop(pin);
            self.engine.pass_publications()?;
            self.set_last_read(Ticket(stamp));
            return Ok(true);
        }
        self.first_key(into)
    }

    /// A live key by iteration: random draws met only expired ones, or nothing.
    fn first_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        into.clear();
        let mut cursor = 0;
        loop {
            cursor = self.scan_keys(cursor, 64, &mut |key, _, _| {
                into.clear();
                into.extend_from_slice(key);
            })?;
            if !into.is_empty() || cursor == 0 {
                return Ok(!into.is_empty());
            }
        }
    }

    /// Collects expired keys among the next `count`; returns where to go on (0 = from the start). Records
    /// that are damaged are passed over: `check` names them.
    pub(super) fn expired_keys(
        &mut self,
        cursor: u64,
        count: usize,
        expired: &mut Vec<Vec<u8>>,
    ) -> u64 {
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let pin = slot.pin();
        engine.index.scan(cursor, count, &pin, &mut |location| {
            let reader = engine.reader();
            let mut buffer = Vec::new();
            let mut key_of = || -> Result<Option<Vec<u8>>, Error> {
                let spot = reader.spot(location.get() * UNIT)?;
                let record = reader.copy(&spot, scratch)?;
                if !engine.is_expired(record.expires_at_ms) {
                    return Ok(None);
                }
                let key = reader.key(&record, scratch, &mut buffer)?;
                Ok(Some(key.to_vec()))
            };
            expired.extend(key_of().ok().flatten());
        })
    }

    /// Removes `key` if its expiry has passed; the sweep's step.
    pub(super) fn remove_expired(&mut self, key: &[u8]) -> Result<bool, Error> {
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripe(hash);
        self.acquire(stripe)?;
        match self.find(hash, key) {
            Ok(Some((old, _))) if old.expired => {
                self.engine.stripes.next_version(stripe);
                self.submit(Pending {
                    hash,
                    stripe,
                    new: None,
                    old: Replaced::Known(Some(old)),
                    moved: false,
                    written: self.lane.written(),
                })?;
                Ok(true)
            }
            other => {
                self.give_back(stripe);
                other.map(|_| false)
            }
        }
    }
}
