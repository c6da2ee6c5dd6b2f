//! Bullet's part of a pass ([`crate::crl`]): when it begins, which counters the ledger gets, and what is
//! freed once the ledger is written.
//!
//! A background thread, a worker that gleans, or a session that finds all logs full takes a step.

use super::Gleaner;
use crate::bullet::Bullet;
use crate::bullet::counters::{LedgerCounters, Sum};
use crate::bullet::layout::INLINE_MAX;
use crate::bullet::layout::{ENTRY_HEAD, OPERATION_HEAD};
use crate::crl::{Back, Entries, Notes, Step};
use crate::error::Error;
use everdram_pm::Lane;
use everdram_pm::lock::lock;
use std::sync::atomic::Ordering;

/// Percent of a log that may be in use before a pass begins by itself.
const BEGIN_AT: u64 = 30;

/// A gleaner at work. For the logs, it is the back.
struct AtWork<'a> {
    engine: &'a Bullet,
    gleaner: &'a mut Gleaner,
}

impl Back for AtWork<'_> {
    fn apply(&mut self, entries: &mut Entries<'_>) -> Result<(), Error> {
        self.gleaner.glean(self.engine, entries)
    }

    fn note(&mut self, epoch: u64, notes: &mut Notes) {
        *notes = self
            .engine
            .books_after(LedgerCounters::from_words(*notes))
            .to_words();
        self.engine.paid(epoch);
    }

    fn lane(&mut self) -> &mut Lane {
        &mut self.gleaner.lane
    }
}

impl Bullet {
    /// Takes one bounded step of a pass. Begins one if there is none, and the logs are full enough or the
    /// caller is `urgent`. The caller's session holds no log.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: the back cannot grow. [`Error::Corrupt`], [`Error::Pool`].
    pub(in crate::bullet) fn step(
        &self,
        gleaner: &mut Gleaner,
        urgent: bool,
    ) -> Result<Step, Error> {
        self.healthy()?;
        let mut cursor = std::mem::take(&mut gleaner.cursor);
        let mut back = AtWork {
            engine: self,
            gleaner,
        };
        let up_to = || {
            let begins = !self.is_tidy() && (urgent || self.logs.occupancy() >= BEGIN_AT);
            begins.then(|| self.logs.epoch())
        };
        let step = self.logs.step(&mut back, &mut cursor, up_to);
        gleaner.cursor = cursor;
        if let Ok(Step::Reclaimed(epoch)) = step {
            self.free_later(gleaner, epoch);
            match self.leaves_growing(urgent) {
                true => self.background.wake(),
                false => self.keep_room(),
            }
        }
        step.map_err(|error| self.at_path(error))
    }

    /// Counts gleaned records.
    pub(in crate::bullet) fn passed(&self, sum: Sum) {
        self.gleaning
            .passed_keys
            .fetch_add(sum.keys, Ordering::AcqRel);
        self.gleaning
            .passed_version
            .fetch_max(sum.version_max, Ordering::AcqRel);
    }

    /// The ledger's counters at the end of a pass; `before`: at the end of the one before.
    fn books_after(&self, before: LedgerCounters) -> LedgerCounters {
        let came = self.gleaning.passed_keys.swap(0, Ordering::AcqRel);
        assert!(
            self.floor() >= before.floor
                && self.gleaning.swept.load(Ordering::Acquire) >= before.swept,
            "a ledger's floor decreases: cleared keys would count again"
        );
        LedgerCounters {
            keys: before.keys.wrapping_add_signed(came),
            version_max: before
                .version_max
                .max(self.gleaning.passed_version.load(Ordering::Acquire)),
            floor: self.floor(),
            swept: self.gleaning.swept.load(Ordering::Acquire),
        }
    }

    /// Whether a log record may name an object of `bytes` bytes: a long one, or any once the pool was tight.
    #[inline]
    pub(in crate::bullet) fn may_be_named(&self, bytes: u64) -> bool {
        self.reserve.names_short.load(Ordering::Relaxed) || self.is_long(bytes)
    }

    /// Notes that a log record will name an object of `bytes` bytes.
    pub(in crate::bullet) fn names(&self, bytes: u64) {
        if !self.is_long(bytes) {
            self.reserve.names_short.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the state of an object of `bytes` bytes may be too long for a log.
    #[inline]
    fn is_long(&self, bytes: u64) -> bool {
        let least = self.logs.entry_most().min(INLINE_MAX);
        bytes as usize + ENTRY_HEAD + OPERATION_HEAD >= least
    }

    /// Defers the freeing of objects that only log records refer to. After a crash, recovery replays these
    /// records, so their objects stay until the records are reclaimed.
    pub(in crate::bullet) fn put_off(&self, objects: &mut Vec<(u64, u64)>) {
        if !objects.is_empty() {
            let epoch = self.logs.epoch();
            let mut later = lock(&self.gleaning.later);
            later.extend(objects.drain(..).map(|object| (epoch, object)));
        }
    }

    /// Frees the deferred objects of epochs up to this one, whose records are reclaimed.
    fn free_later(&self, gleaner: &mut Gleaner, epoch: u64) {
        let mut kept = Vec::new();
        let later = std::mem::take(&mut *lock(&self.gleaning.later));
        for (named, object) in later {
            match named <= epoch {
                true => gleaner.objects.push(object),
                false => kept.push((named, object)),
            }
        }
        lock(&self.gleaning.later).append(&mut kept);
        gleaner.give_back(self);
    }
}
