//! What an entry of the log says, entered into the index: the state of its key, unless something of a greater
//! order is in tier 1 or in the log. Orders decide, and not places.

use super::Below;
use crate::aof::{Read, is_below};
use crate::engine::backend::Backend;
use crate::error::{Error, corrupt};
use crate::index::{KeyHash, Location};
use crate::viper::lookup::{look_up, rehash_all};
use crate::viper::read::UNIT;
use crate::viper::record::Record;
use crate::viper::session::ViperSession;
use crate::viper::{Viper, index_error};
use everdram_pm::Ordered;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// What several threads read together.
#[derive(Default)]
pub(super) struct Outcome {
    /// Keys entered, less those that were removed.
    pub(super) entered: i64,
    /// Records of tier 1 of which the log has a later state.
    pub(super) losers: Vec<u64>,
}

/// One of the threads that read the log.
pub(super) struct Loader<'a> {
    viper: &'a Viper,
    below: &'a Below,
    pub(super) session: ViperSession,
    /// No entry has a greater version.
    clock: u64,
    outcome: Outcome,
}

impl<'a> Loader<'a> {
    pub(super) fn new(
        viper: &'a Arc<Viper>,
        below: &'a Below,
        clock: u64,
    ) -> Result<Loader<'a>, Error> {
        Ok(Loader {
            viper,
            below,
            session: ViperSession::new(Arc::clone(viper))?,
            clock,
            outcome: Outcome::default(),
        })
    }

    /// What it has entered, which it counts.
    pub(super) fn finish(self) -> Outcome {
        self.session.count_key(self.outcome.entered);
        self.outcome
    }

    /// Enters what an entry says into the index.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::NoSpace`].
    pub(super) fn enter(&mut self, read: &Read<'_>) -> Result<(), Error> {
        let version = read.entry.order.0;
        if version > self.clock {
            let what = "the log has a version that its pool does not know";
            return Err(corrupt(0, what));
        }
        if version <= self.viper.floor() {
            self.stale(read.location, read.entry.bytes);
            return Ok(());
        }
        let hash = self.viper.hash(read.key());
        let stripe = self.viper.stripe(hash);
        self.session.acquire(stripe)?;
        let outcome = self.enter_held(hash, read);
        self.session.give_back(stripe);
        outcome
    }

    fn stale(&self, location: Option<Location>, bytes: u64) {
        if let Some(location) = location {
            self.below.log.add_stale(location, bytes);
        }
    }

    /// Enters the state of a held key.
    fn enter_held(&mut self, hash: KeyHash, read: &Read<'_>) -> Result<(), Error> {
        let (key, order) = (read.key(), read.entry.order);
        let scratch = &mut self.session.scratch;
        let current = look_up(self.viper, &self.session.slot, hash, key, scratch)?;
        let current = current.map(|(location, _, record)| (location, record));
        // Of the same order, what is in the pool counts: it was moved there from here.
        let is_outdone = current
            .as_ref()
            .is_some_and(|(at, record)| (record.stamp.order(), !is_below(*at)) > (order, false));
        let Some(location) = read.location.filter(|_| read.value().is_some()) else {
            // A removal. A record of the pool that is older has lost its mark.
            self.below.loading.note_cover(key, order);
            if let Some((old, record)) = current
                && !is_outdone
            {
                self.remove(hash, old, &record);
            }
            return Ok(());
        };
        let is_covered = self.below.loading.is_covered(key, order);
        if is_outdone || is_covered {
            self.stale(Some(location), read.entry.bytes);
            return Ok(());
        }
        if read.entry.expires_at_ms != 0 {
            self.viper.expiries.store(true, Ordering::Relaxed);
        }
        match current {
            Some((old, record)) => {
                let synced = Ordered::when_found();
                let replaced = self.viper.index.replace(hash, old, location, &synced);
                assert!(replaced, "the index changed under a held key lock");
                self.lose(old, &record);
                Ok(())
            }
            None => self.insert(hash, location),
        }
    }

    fn remove(&mut self, hash: KeyHash, old: Location, record: &Record) {
        let synced = Ordered::when_found();
        let removed = self.viper.index.remove(hash, old, &synced);
        assert!(removed, "the index changed under a held key lock");
        self.outcome.entered -= 1;
        self.lose(old, record);
    }

    /// Notes that a record, wherever it is, does not count any more.
    fn lose(&mut self, old: Location, record: &Record) {
        match is_below(old) {
            true => self.stale(Some(old), u64::from(record.bytes)),
            false => self.outcome.losers.push(old.get() * UNIT),
        }
    }

    fn insert(&mut self, hash: KeyHash, location: Location) -> Result<(), Error> {
        let (viper, scratch) = (self.viper, &mut self.session.scratch);
        let mut again = |locations: &[Location], hashes: &mut Vec<KeyHash>| {
            rehash_all(viper, locations, scratch, hashes)
        };
        viper
            .index
            .insert(hash, location, &mut again, &Ordered::when_found())
            .map_err(index_error)?;
        self.outcome.entered += 1;
        Ok(())
    }
}
