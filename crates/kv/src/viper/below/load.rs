//! Recovery of the tier below: the log is read up to its settled end, after all of tier 1 was read, and each
//! key's state there is entered into the index unless something of a greater order is in tier 1 or in the
//! log. (The paper reads the log first and overwrites it with tier 1; the outcome is the same.)
//!
//! Orders decide, and not places, so segments are read by several threads, each key under its lock.
//!
//! Nothing is appended to the log, and the only thing written to the pool are marks of records of which
//! the log has a later state: a crash came between settling and freeing their block. A repetition writes
//! the same.

use super::Below;
use crate::aof::{Read, is_below};
use crate::engine::backend::Backend;
use crate::error::{Error, corrupt};
use crate::index::{KeyHash, Location};
use crate::options::Options;
use crate::viper::lookup::{look_up, rehash_all};
use crate::viper::read::UNIT;
use crate::viper::record::Record;
use crate::viper::recovery::scan::{Covers, Found, VERSION_SOUND, cover, threads};
use crate::viper::session::ViperSession;
use crate::viper::{Viper, index_error};
use everdram_pm::Ordered;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Enters the states of the log into the index.
///
/// # Errors
/// [`Error::Corrupt`] names file and offset; [`Error::NoSpace`]: the index found no memory.
pub(in crate::viper) fn load(
    viper: &Arc<Viper>,
    below: &Below,
    options: &Options,
    found: &mut Found,
) -> Result<(), Error> {
    let numbers = below.log.numbers();
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let covers = RwLock::new(std::mem::take(&mut found.covers));
    let sums = Mutex::new((0, Vec::new()));
    let read = || {
        let mut loader = Loader {
            viper,
            below,
            session: ViperSession::new(Arc::clone(viper))?,
            covers: &covers,
            // A salvage may not know it.
            clock: match viper.damage {
                None => below.clock(),
                Some(_) => VERSION_SOUND,
            },
            entered: 0,
            losers: Vec::new(),
        };
        while let Some(&number) = numbers.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = below.log.replay(number, &mut |read| {
                loader.enter(&read).or_else(|error| viper.tolerate(error))
            });
            outcome.or_else(|error| viper.tolerate(error))?;
        }
        let (entered, losers) = &mut *sums.lock();
        *entered += loader.entered;
        losers.append(&mut loader.losers);
        Ok(())
    };
    let work = || {
        if let Err(error) = read() {
            // The first error is kept; the other threads stop at their next segment.
            next.store(numbers.len(), Ordering::Relaxed);
            failure.lock().get_or_insert(error);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..threads(options).min(numbers.len()) {
            scope.spawn(work);
        }
        work();
    });
    if let Some(error) = failure.into_inner() {
        return Err(error);
    }
    let (entered, mut losers) = sums.into_inner();
    found.inserted = found
        .inserted
        .checked_add_signed(entered)
        .expect("the log takes no keys away that nobody has");
    found.losers.append(&mut losers);
    Ok(())
}

/// One of the threads that read the log.
struct Loader<'a> {
    viper: &'a Viper,
    below: &'a Below,
    session: ViperSession,
    /// What removals and dead records say of the log.
    covers: &'a RwLock<Covers>,
    /// No entry has a greater version.
    clock: u64,
    /// Keys entered, less those that were removed.
    entered: i64,
    /// Records of tier 1 of which the log has a later state.
    losers: Vec<u64>,
}

impl Loader<'_> {
    fn enter(&mut self, read: &Read<'_>) -> Result<(), Error> {
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
            cover(&mut self.covers.write(), key, order);
            if let Some((old, record)) = current
                && !is_outdone
            {
                self.remove(hash, old, &record);
            }
            return Ok(());
        };
        let is_covered = self
            .covers
            .read()
            .get(key)
            .is_some_and(|covered| *covered >= order);
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
        self.entered -= 1;
        self.lose(old, record);
    }

    /// Notes that a record, wherever it is, does not count any more.
    fn lose(&mut self, old: Location, record: &Record) {
        match is_below(old) {
            true => self.stale(Some(old), u64::from(record.bytes)),
            false => self.losers.push(old.get() * UNIT),
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
        self.entered += 1;
        Ok(())
    }
}
