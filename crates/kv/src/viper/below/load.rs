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

use super::loader::{Loader, Outcome};
use super::{Below, salvage};
use crate::aof::{Order, Part, is_below};
use crate::concurrency::catching_up::CatchingUp;
use crate::concurrency::seam::few;
use crate::engine::backend::Backend;
use crate::error::{Error, corrupt};
use crate::options::{self, Options};
use crate::viper::Viper;
use crate::viper::checkpoint::verify::verify_some;
use crate::viper::lookup::look_up;
use crate::viper::recovery::scan::{Covers, Found, cover, threads};
use crate::viper::session::ViperSession;
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

    fn begin(&self, rest: Vec<Part>, viper: &Viper) {
        if rest.is_empty() {
            self.covers.write().clear();
            viper.index.note_refilled();
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

    /// Whether something says that a state of this order is void.
    pub(super) fn is_covered(&self, key: &[u8], order: Order) -> bool {
        let covers = self.covers.read();
        !covers.is_empty() && covers.get(key).is_some_and(|covered| *covered >= order)
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
    if let Some(error) = below.log.take_cut_off().pop() {
        return Err(error);
    }
    let mut outcome = match &viper.damage {
        None => read(viper, below, &recent)?,
        Some(damage) => salvage::read(viper, below, damage, &recent)?,
    };
    found.losers.append(&mut outcome.losers);
    loading.begin(rest, viper);
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
        viper.index.note_refilled();
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

/// Enters the states of parts of the log into the index.
fn read(viper: &Arc<Viper>, below: &Below, parts: &[Part]) -> Result<Outcome, Error> {
    let (next, failure) = (AtomicUsize::new(0), Mutex::new(None));
    let sums = Mutex::new(Outcome::default());
    let share = || {
        let mut loader = Loader::new(viper, below, below.clock())?;
        while let Some(part) = parts.get(next.fetch_add(1, Ordering::Relaxed)) {
            below
                .log
                .load_part(part, &mut |read| loader.enter_soon(&read))?;
            loader.catch_up()?;
            // Of what is read at the open, nothing is counted.
            below.loading.bytes.advance(part.bytes());
        }
        let mut outcome = loader.finish();
        let mut sums = sums.lock();
        sums.entered += outcome.entered;
        sums.losers.append(&mut outcome.losers);
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
