//! Recovery of the tier below, which comes after that of tier 1. (The paper reads the log first and
//! overwrites it with tier 1; the outcome is the same, and here the keys that are used most are there first.)
//!
//! 1. What was appended since all blocks were last freed is read before the store answers: only there may
//!    the log have a later state of a key than the pool. A crash came between settling and freeing, and the
//!    records of the pool that are older get their marks.
//! 2. The rest is read while the store is in use ([`Load`]), after all blocks of tier 1. Of a key of tier 1
//!    nothing in it counts, so such a key is served at once. Any other call waits, or is refused. Nothing
//!    leaves tier 1 until all is read.
//!
//! Each key's state is entered into the index unless something of a greater order is in tier 1 or in the
//! log. Orders decide, and not places, so segments are read by several threads, each key under its lock.
//!
//! Nothing is appended to the log, and the only thing written to the pool are those marks. A repetition
//! writes the same.

use super::Below;
use crate::aof::{Order, Part, Read, is_below};
use crate::concurrency::catching_up::CatchingUp;
use crate::concurrency::seam::few;
use crate::engine::backend::Backend;
use crate::error::{Error, corrupt};
use crate::index::{KeyHash, Location};
use crate::options::{self, Options};
use crate::viper::checkpoint::verify::verify_some;
use crate::viper::lookup::{look_up, rehash_all};
use crate::viper::read::UNIT;
use crate::viper::record::Record;
use crate::viper::recovery::scan::{Covers, Found, VERSION_SOUND, cover, threads};
use crate::viper::session::ViperSession;
use crate::viper::{Viper, index_error};
use everdram_pm::Ordered;
use everdram_pm::lock::lock;
use parking_lot::{Mutex, RwLock};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Segments that a thread reads before it looks whether the store is being closed.
const SHARE: usize = 2;
/// Greater than the order of any state.
const REMOVED: (u64, u16) = (u64::MAX, u16::MAX);

/// What is left to be read of the log while the store is in use.
pub(in crate::viper) struct Load {
    /// What calls do meanwhile that need more than tier 1.
    manner: options::Loading,
    threads: usize,
    bytes: CatchingUp,
    rest: Mutex<Vec<Part>>,
    /// What dead records say of the log, and which keys were removed since the store was opened.
    covers: RwLock<Covers>,
}

impl Load {
    pub(super) fn new(options: &Options) -> Load {
        Load {
            manner: options.tiered.loading,
            threads: threads(options),
            bytes: CatchingUp::default(),
            rest: Mutex::default(),
            covers: RwLock::default(),
        }
    }

    /// Whether the index may lack keys of the log.
    #[inline]
    pub(in crate::viper) fn is_running(&self) -> bool {
        self.bytes.is_running()
    }

    /// Bytes read, and bytes to read; `None` once all is read.
    pub(in crate::viper) fn progress(&self) -> Option<(u64, u64)> {
        self.bytes.progress()
    }

    fn begin(&self, rest: Vec<Part>) {
        if rest.is_empty() {
            self.covers.write().clear();
            return;
        }
        let bytes = rest.iter().map(Part::bytes).sum();
        *self.rest.lock() = rest;
        self.bytes.begin(bytes);
    }

    /// Notes that a held key was removed: whatever the log has of it is void.
    #[inline]
    pub(in crate::viper) fn note_removal(&self, key: &[u8]) {
        if self.is_running() {
            cover(&mut self.covers.write(), key, REMOVED);
        }
    }

    /// Notes what a dead record of tier 1 says of the log.
    pub(in crate::viper) fn note_cover(&self, key: &[u8], order: Order) {
        cover(&mut self.covers.write(), key, order);
    }

    fn was_removed(&self, key: &[u8]) -> bool {
        self.covers.read().get(key) == Some(&REMOVED)
    }
}

/// Reads the end of the log, where it may have later states of keys than the pool: losers of the pool are
/// left in `found`. The rest is read later, but at once if the store is open to be read, or the options say
/// so. Returns the number of keys that came, less those that went.
///
/// # Errors
/// [`Error::Corrupt`] names file and offset; [`Error::NoSpace`]: the index found no memory.
pub(in crate::viper) fn load_recent(
    viper: &Arc<Viper>,
    below: &Below,
    found: &mut Found,
) -> Result<i64, Error> {
    let loading = &below.loading;
    *loading.covers.write() = std::mem::take(&mut found.covers);
    let (mut rest, mut recent) = below.log.split_at(below.freed());
    let is_at_once =
        loading.manner == options::Loading::AtOpen || viper.read_only || viper.damage.is_some();
    if is_at_once {
        rest.append(&mut recent);
        recent = std::mem::take(&mut rest);
    }
    for error in below.log.take_cut_off() {
        viper.tolerate(error)?;
    }
    let mut outcome = read(viper, below, &recent)?;
    found.losers.append(&mut outcome.losers);
    loading.begin(rest);
    Ok(outcome.entered)
}

/// Reads the rest of the log. The caller holds no stripe.
///
/// # Errors
/// As [`load_some`].
pub(in crate::viper) fn load_all(viper: &Arc<Viper>) -> Result<(), Error> {
    while load_some(viper)? {}
    Ok(())
}

/// Reads a share of what is left; `false` once nothing is left. The caller holds no stripe.
///
/// # Errors
/// [`Error::Corrupt`] names file and offset, and the engine has halted. [`Error::Halted`]: it had halted
/// before.
pub(in crate::viper) fn load_some(viper: &Arc<Viper>) -> Result<bool, Error> {
    let Some(below) = &viper.below else {
        return Ok(false);
    };
    let loading = &below.loading;
    if !loading.is_running() {
        return Ok(false);
    }
    if viper.verification.is_running() {
        // What tier 1 says of the log is known only after it.
        return verify_some(viper, 1).map(|_| true);
    }
    let mut rest = lock(&loading.rest);
    if !loading.is_running() {
        return Ok(false);
    }
    viper.healthy()?;
    let at = rest.len().saturating_sub(few!(SHARE) * loading.threads);
    // They stay in the list until they are read. If this thread panics, the next one reads them again.
    let share = rest.get(at..).unwrap_or_default();
    if share.is_empty() {
        loading.covers.write().clear();
        loading.bytes.end();
        return Ok(false);
    }
    let outcome = read(viper, below, share).and_then(|outcome| match outcome.losers.first() {
        None => Ok(outcome),
        Some(&at) => Err(corrupt(
            at,
            "the log has a later state of a key than the pool, and not at its end",
        )),
    });
    outcome.map_err(|error| viper.halt(viper.at_path(error)))?;
    rest.truncate(at);
    Ok(true)
}

impl ViperSession {
    /// Notes that a held key is removed.
    #[inline]
    pub(in crate::viper) fn note_removal(&self, key: &[u8]) {
        if let Some(below) = &self.engine.below {
            below.loading.note_removal(key);
        }
    }

    /// Sees to it that the state of these keys, or of all (`None`), is known. A key is known if tier 1 has
    /// it, or had it when the store was opened. Otherwise the rest of the log is read now.
    ///
    /// # Errors
    /// [`Error::Loading`], if calls are not to wait. As [`load_some`] and [`Backend::commit_pending`].
    #[cold]
    pub(in crate::viper) fn await_log(&mut self, keys: Option<&[&[u8]]>) -> Result<(), Error> {
        let viper = Arc::clone(&self.engine);
        let Some(below) = &viper.below else {
            return Ok(());
        };
        if let Some(keys) = keys {
            let mut is_known = |key: &&[u8]| {
                let hash = viper.hash(key);
                match look_up(&viper, &self.slot, hash, key, &mut self.scratch) {
                    Ok(Some((location, ..))) => !is_below(location),
                    Ok(None) => below.loading.was_removed(key),
                    // Whoever reads the log meets the damage, too.
                    Err(_) => false,
                }
            };
            if keys.iter().all(&mut is_known) {
                return Ok(());
            }
        }
        // After damage no later try will do.
        viper.healthy()?;
        if below.loading.manner == options::Loading::Refuse {
            return Err(Error::Loading);
        }
        // The thread that reads takes the locks of keys.
        self.commit_pending()?;
        load_all(&viper)
    }
}

/// What several threads read together.
#[derive(Default)]
struct Outcome {
    /// Keys entered, less those that were removed.
    entered: i64,
    /// Records of tier 1 of which the log has a later state.
    losers: Vec<u64>,
}

/// Enters the states of parts of the log into the index.
fn read(viper: &Arc<Viper>, below: &Below, parts: &[Part]) -> Result<Outcome, Error> {
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let sums = Mutex::new(Outcome::default());
    let share = || {
        let mut loader = Loader {
            viper,
            below,
            session: ViperSession::new(Arc::clone(viper))?,
            // A salvage may not know it.
            clock: match viper.damage {
                None => below.clock(),
                Some(_) => VERSION_SOUND,
            },
            outcome: Outcome::default(),
        };
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            let outcome = below.log.load_part(part, &mut |read| {
                loader.enter(&read).or_else(|error| viper.tolerate(error))
            });
            outcome.or_else(|error| viper.tolerate(error))?;
            // Of what is read at the open, nothing is counted.
            below.loading.bytes.advance(part.bytes());
        }
        let Outcome { entered, losers } = &mut loader.outcome;
        loader.session.count_key(*entered);
        let mut sums = sums.lock();
        sums.entered += *entered;
        sums.losers.append(losers);
        Ok(())
    };
    let work = || {
        if let Err(error) = share() {
            // The first error is kept; the other threads stop at their next part.
            next.store(parts.len(), Ordering::Relaxed);
            failure.lock().get_or_insert(error);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..below.loading.threads.min(parts.len()) {
            scope.spawn(work);
        }
        work();
    });
    match failure.into_inner() {
        Some(error) => Err(error),
        None => Ok(sums.into_inner()),
    }
}

/// One of the threads that read the log.
struct Loader<'a> {
    viper: &'a Viper,
    below: &'a Below,
    session: ViperSession,
    /// No entry has a greater version.
    clock: u64,
    outcome: Outcome,
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
            cover(&mut self.below.loading.covers.write(), key, order);
            if let Some((old, record)) = current
                && !is_outdone
            {
                self.remove(hash, old, &record);
            }
            return Ok(());
        };
        let covers = &self.below.loading.covers;
        let is_covered = covers
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
