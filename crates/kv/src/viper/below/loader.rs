//! What an entry of the log says, entered into the index: the state of its key, unless something of a greater
//! order is in tier 1 or in the log. Orders decide, and not places.

use super::Below;
use crate::aof::{Order, Read, is_below};
use crate::engine::backend::Backend;
use crate::error::{Error, corrupt};
use crate::index::{KeyHash, Location};
use crate::viper::lookup::{look_up, rehash_all};
use crate::viper::read::UNIT;
use crate::viper::record::Record;
use crate::viper::session::ViperSession;
use crate::viper::{Viper, index_error};
use everdram_pm::Ordered;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Entries whose places in the index are fetched together.
const AHEAD: usize = 16;

/// What an entry says of its key.
struct Said {
    hash: KeyHash,
    order: Order,
    /// Of a state, its place; `None`: a removal.
    location: Option<Location>,
    expires_at_ms: u64,
    /// Of the entry.
    bytes: u64,
}

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
    /// What is to be entered next, with the key, in `keys`.
    ahead: Vec<(Said, Range<usize>)>,
    keys: Vec<u8>,
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
            ahead: Vec::with_capacity(AHEAD),
            keys: Vec::new(),
        })
    }

    /// What it has entered, which it counts.
    pub(super) fn finish(self) -> Outcome {
        assert!(self.ahead.is_empty(), "entries of the log are left out");
        self.session.count_key(self.outcome.entered);
        self.outcome
    }

    /// Enters what an entry says into the index.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::NoSpace`].
    pub(super) fn enter(&mut self, read: &Read<'_>) -> Result<(), Error> {
        match self.look(read)? {
            Some(said) => self.enter_said(&said, read.key()),
            None => Ok(()),
        }
    }

    /// As [`Loader::enter`], together with the next ones: [`Loader::catch_up`] enters what is left.
    ///
    /// # Errors
    /// As there, also of an entry before this one.
    pub(super) fn enter_soon(&mut self, read: &Read<'_>) -> Result<(), Error> {
        let Some(said) = self.look(read)? else {
            return Ok(());
        };
        self.viper.index.prefetch(said.hash);
        let from = self.keys.len();
        self.keys.extend_from_slice(read.key());
        self.ahead.push((said, from..self.keys.len()));
        match self.ahead.len() < AHEAD {
            true => Ok(()),
            false => self.catch_up(),
        }
    }

    /// Enters what waits for company.
    ///
    /// # Errors
    /// As [`Loader::enter`].
    pub(super) fn catch_up(&mut self) -> Result<(), Error> {
        let (mut ahead, mut keys) = (
            std::mem::take(&mut self.ahead),
            std::mem::take(&mut self.keys),
        );
        let mut all = ahead.drain(..);
        let outcome = all.try_for_each(|(said, key)| self.enter_said(&said, &keys[key]));
        drop(all);
        keys.clear();
        (self.ahead, self.keys) = (ahead, keys);
        outcome
    }

    /// What an entry says; `None` if the store has been emptied since.
    fn look(&self, read: &Read<'_>) -> Result<Option<Said>, Error> {
        let order = read.entry.order;
        if order.0 > self.clock {
            let what = "the log has a version that its pool does not know";
            return Err(corrupt(0, what));
        }
        if order.0 <= self.viper.floor() {
            self.stale(read.location, read.entry.bytes);
            return Ok(None);
        }
        Ok(Some(Said {
            hash: self.viper.hash(read.key()),
            order,
            location: read.location.filter(|_| read.value().is_some()),
            expires_at_ms: read.entry.expires_at_ms,
            bytes: read.entry.bytes,
        }))
    }

    fn enter_said(&mut self, said: &Said, key: &[u8]) -> Result<(), Error> {
        let stripe = self.viper.stripe(said.hash);
        self.session.acquire(stripe)?;
        let outcome = self.enter_held(said, key);
        self.session.give_back(stripe);
        outcome
    }

    fn stale(&self, location: Option<Location>, bytes: u64) {
        if let Some(location) = location {
            self.below.log.add_stale(location, bytes);
        }
    }

    /// Enters the state of a held key.
    fn enter_held(&mut self, said: &Said, key: &[u8]) -> Result<(), Error> {
        let (hash, order) = (said.hash, said.order);
        let scratch = &mut self.session.scratch;
        let current = look_up(self.viper, &self.session.slot, hash, key, scratch)?;
        let current = current.map(|(location, _, record)| (location, record));
        // Of the same order, what is in the pool counts: it was moved there from here.
        let is_outdone = current
            .as_ref()
            .is_some_and(|(at, record)| (record.stamp.order(), !is_below(*at)) > (order, false));
        let Some(location) = said.location else {
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
            self.stale(Some(location), said.bytes);
            return Ok(());
        }
        if said.expires_at_ms != 0 {
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
