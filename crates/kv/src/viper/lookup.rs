//! The read path of a session: from a key to its verified record, under a pin, and what the answer depends on.

use super::read::{Reader, Spot, UNIT};
use super::record::Record;
use super::session::{ViperSession, check_key};
use super::{Viper, bump};
use crate::engine::{Found, Ticket};
use crate::epoch::Slot;
use crate::error::Error;
use crate::index::{KeyHash, Location};
use crate::stripe::{Patience, StripeId, Stripes};
use std::sync::atomic::{Ordering, fence};

/// A record that a read found, and the version to show.
pub(super) struct Seen {
    pub(super) record: Record,
    pub(super) version: u64,
}

impl ViperSession {
    /// Commits what a read of `stripe` would otherwise miss; waits out a batch that is being published.
    #[inline]
    fn before_read(&mut self, stripe: StripeId) -> Result<(), Error> {
        if !self.pending.is_empty() && self.engine.stripes.held_by(stripe, self.id) {
            self.commit_pending()?;
        }
        Ok(())
    }

    /// Reads the record of `key` into `scratch` and, if asked, appends its value.
    pub(super) fn read(
        &mut self,
        key: &[u8],
        mut into: Option<&mut Vec<u8>>,
    ) -> Result<Option<Seen>, Error> {
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
        let ViperSession {
            engine,
            slot,
            scratch,
            ..
        } = self;
        let _pin = slot.pin();
        let found = look_up(engine, slot, hash, key, scratch).and_then(|found| {
            let Some((location, record)) = found else {
                return Ok(None);
            };
            engine.refuse_locked_page(location)?;
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
        self.engine
            .reader()
            .value(record, &self.scratch, into)
            .map_err(|e| self.engine.at_path(e))
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
        version.map_or_else(
            || self.engine.stripes.version(stripe) << 1 | 1,
            |version| version << 1,
        )
    }

    pub(super) fn found(&self, seen: &Seen) -> Found {
        Found {
            version: seen.version,
            expires_at_ms: seen.record.expires_at_ms,
            ticket: self.last_read,
        }
    }
}

/// The location of a byte offset.
pub(super) fn location(at: u64) -> Result<Location, Error> {
    Location::new(at / UNIT).ok_or_else(|| Error::NoSpace("a pool has at most 8 TiB".into()))
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
    look_up_with(engine, slot, hash, |reader, spot| {
        load_if(reader, spot, key, scratch)
    })
}

/// As [`look_up`], but an ordinary record is neither read beyond its key nor verified: for writers, who
/// need to know which record they replace and not what is in it.
pub(super) fn locate(
    engine: &Viper,
    slot: &Slot,
    hash: KeyHash,
    key: &[u8],
    scratch: &mut Vec<u8>,
) -> Result<Option<(Location, Record)>, Error> {
    look_up_with(engine, slot, hash, |reader, spot| {
        match reader.peek(spot, key, scratch) {
            Some(record) => Ok(Some(record)),
            None => load_if(reader, spot, key, scratch),
        }
    })
}

fn look_up_with(
    engine: &Viper,
    slot: &Slot,
    hash: KeyHash,
    mut look: impl FnMut(&Reader<'_>, &Spot) -> Result<Option<Record>, Error>,
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
        match look(&reader, &spot) {
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
