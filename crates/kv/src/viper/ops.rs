//! Operations beside put, get and delete: several reads at one moment, in-place updates, iteration.

use super::block_table::{Info, State};
use super::layout::{FixedShape, Kind, page_word};
use super::lookup::{Aim, locate, look_again, read_ordinary};
use super::read::{NOWHERE, Spot, UNIT, What};
use super::session::ViperSession;
use crate::concurrency::seam::looks;
use crate::concurrency::stripes::GiveBack;
use crate::engine::backend::{Met, Taken};
use crate::engine::counters::bump;
use crate::engine::{Found, Ticket};
use crate::error::Error;
use crate::index::KeyHash;
use everdram_pm::Ordered;

impl ViperSession {
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

    /// Changes a word of a fixed-size value where it lies, on a held stripe, and gives the stripe back.
    /// `None`: it has to be done another way, and the stripe is still held.
    pub(super) fn change_in_slot(
        &mut self,
        shape: &FixedShape,
        taken: Taken,
        key: &[u8],
        at: usize,
        change: &mut dyn FnMut(u64) -> u64,
    ) -> Result<Option<[u64; 2]>, Error> {
        let Taken { hash, stripe } = taken;
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let value_at = shape.value_at();
        let aim = Aim::Edit(at.wrapping_add(value_at) as u64);
        let Some((_, spot, record)) = locate(engine, slot, KeyHash(hash), key, scratch, aim)?
        else {
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
        Ok(Some([word, new]))
    }

    /// Whether words of the block may be changed where they lie, which it is opened for if it can be. Not if
    /// it has records of variable size, is not sealed yet, or is being compacted.
    fn is_editable(&mut self, spot: &Spot) -> bool {
        match (spot.info.state, spot.info.kind) {
            (State::Sealed, Kind::FixedEdited) => true,
            (State::Sealed, Kind::Fixed) => {
                let block = self.engine.space.blocks.number(spot.at);
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
        let at = self.engine.space.blocks.at(block);
        let word = page_word(self.engine.pool.secret(), at, Kind::FixedEdited, info.epoch);
        let _ordered = self.store_and_fence(at, word);
        let edited = Info {
            kind: Kind::FixedEdited,
            ..info
        };
        self.engine.space.blocks.get(block).is_some_and(|entry| {
            // Somebody else may have opened it meanwhile; or compaction took it, then it stays shut.
            entry.swap(info, edited) || entry.info() == edited
        })
    }

    /// Meets the keys of at least `count` entries, if there are as many, from `cursor` on. Returns where to
    /// go on.
    pub(super) fn walk_index(
        &mut self,
        cursor: u64,
        count: usize,
        met: &mut Met,
    ) -> Result<u64, Error> {
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
        failed.map(|()| next)
    }

    /// A live key that a few random draws from the index have met; `false`: they met expired ones, or
    /// nothing.
    pub(super) fn draw_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
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
            self.core.last_read = Ticket(stamp);
            return Ok(true);
        }
        into.clear();
        Ok(false)
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
}
