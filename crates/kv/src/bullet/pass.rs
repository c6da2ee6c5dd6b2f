//! The epoch advancer (section 2.4): passes that glean what was logged up to the end of an epoch, and then reclaim it.
//!
//! ```text
//!   idle ─ logs are full enough ─▶ ending ─ nobody writes in that epoch ─▶ gleaning ─ all logs gleaned ─▶ ledger ─▶ idle
//! ```
//!
//! Nobody owns a pass. Whoever has time, or waits for room, takes a step of it: a background thread, a worker whose
//! role it is, a session whose logs are full. A step is bounded.
//!
//! The last step writes the *ledger*: the epoch, where each log begins now, how many keys there are. It is one record (and a copy of it), so after a crash all
//! logs begin where they began before the pass, or all where they begin after it (B1, B3).

use super::Bullet;
use super::glean::{Gleaner, Sum};
use super::layout::{ENTRY_HEAD, OPERATION_HEAD};
use super::ledger::Ledger;
use super::session::INLINE_MAX;
use crate::broken::Hole;
use crate::error::Error;
use everdram_pm::Lane;
use std::sync::atomic::Ordering;

/// Percent of a log that may be in use before a pass begins by itself.
pub(super) const BEGIN_AT: u64 = 30;

/// The pass that is under way.
#[derive(Debug, Default)]
pub(super) struct Pass {
    /// The epoch that it reclaims; 0: there is none.
    epoch: u64,
    /// Nobody writes in that epoch any more.
    is_over: bool,
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Worked,
    /// It is for others to go on.
    Waiting,
    /// There is nothing to do.
    Idle,
}

impl Bullet {
    /// Takes one bounded step of a pass. Begins one if there is none, and the logs are full enough or the caller is `urgent`. The
    /// caller's session holds no log.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: the back cannot grow. [`Error::Corrupt`], [`Error::Pool`].
    pub(super) fn step(&self, gleaner: &mut Gleaner, urgent: bool) -> Result<Step, Error> {
        self.healthy()?;
        let epoch = {
            let mut pass = self.pass.lock();
            if pass.epoch == 0 {
                if self.is_tidy() || !urgent && self.logs.occupancy() < BEGIN_AT {
                    return Ok(Step::Idle);
                }
                *pass = Pass {
                    epoch: self.logs.next_epoch(),
                    is_over: false,
                };
            }
            pass.is_over = pass.is_over || self.logs.is_over(pass.epoch);
            if !pass.is_over {
                return Ok(Step::Waiting);
            }
            pass.epoch
        };
        for number in 0..self.logs.count() {
            let log = self.logs.log(number);
            if log.gleaned.load(Ordering::Acquire) >= epoch || !log.try_glean() {
                continue;
            }
            // Another gleaner may have finished it just now.
            let gleaned = match log.gleaned.load(Ordering::Acquire) >= epoch {
                true => Ok(true),
                false => gleaner.glean(self, number, epoch),
            };
            if let Ok(true) = gleaned {
                log.gleaned.fetch_max(epoch, Ordering::AcqRel);
            }
            log.stop_gleaning();
            gleaned.map_err(|error| self.at_path(error))?;
            return Ok(Step::Worked);
        }
        let mut pass = self.pass.lock();
        let is_gleaned = |number| self.logs.log(number).gleaned.load(Ordering::Acquire) >= epoch;
        if pass.epoch != epoch || !(0..self.logs.count()).all(is_gleaned) {
            return Ok(Step::Waiting);
        }
        self.reclaim_epoch(&mut gleaner.lane, epoch);
        self.paid(epoch);
        pass.epoch = 0;
        drop(pass);
        self.free_later(gleaner, epoch);
        self.keep_room();
        Ok(Step::Worked)
    }

    /// Counts records that were passed over.
    pub(super) fn passed(&self, sum: Sum) {
        self.passed_keys.fetch_add(sum.keys, Ordering::AcqRel);
        self.passed_lsn.fetch_max(sum.lsn_max, Ordering::AcqRel);
    }

    /// Writes the ledger; then writers may use what is behind the new heads.
    fn reclaim_epoch(&self, lane: &mut Lane, epoch: u64) {
        let heads: Vec<u64> = (0..self.logs.count())
            .map(|number| self.logs.log(number).cursor.load(Ordering::Acquire))
            .collect();
        let mut ledger = self.ledger.lock();
        if self.broken.is(Hole::B1) {
            self.move_heads_one_by_one(lane, &mut ledger, &heads);
        }
        let next = Ledger {
            sequence: ledger.sequence + 1,
            epoch,
            keys: ledger
                .keys
                .wrapping_add_signed(self.passed_keys.swap(0, Ordering::AcqRel)),
            lsn_max: ledger.lsn_max.max(self.passed_lsn.load(Ordering::Acquire)),
            floor: self.floor(),
            swept: self.swept.load(Ordering::Acquire),
            heads,
        };
        next.write(lane);
        for (number, head) in next.heads.iter().enumerate() {
            self.logs.log(number).head.store(*head, Ordering::Release);
        }
        *ledger = next;
    }

    /// Whether a log record may name an object of so many bytes: what a log has no room for, and anything once room was short.
    #[inline]
    pub(super) fn may_be_named(&self, bytes: u64) -> bool {
        self.names_short.load(Ordering::Relaxed) || self.is_long(bytes)
    }

    /// Notes that a log record is going to name an object of so many bytes.
    pub(super) fn names(&self, bytes: u64) {
        if !self.is_long(bytes) {
            self.names_short.store(true, Ordering::Relaxed);
        }
    }

    /// Whether a log may have no room for what is as long as an object of so many bytes.
    #[inline]
    fn is_long(&self, bytes: u64) -> bool {
        let least = self.logs.entry_most().min(INLINE_MAX);
        bytes as usize + ENTRY_HEAD + OPERATION_HEAD >= least
    }

    /// Objects go that nothing refers to any more but log records, which a crash now may bring back: they are kept until those are
    /// reclaimed, so that what a record in a log names is always there.
    pub(super) fn put_off(&self, objects: &mut Vec<(u64, u64)>) {
        if !objects.is_empty() {
            let epoch = self.logs.epoch();
            let mut later = self.later.lock();
            later.extend(objects.drain(..).map(|object| (epoch, object)));
        }
    }

    /// Frees the objects that were put off, now that records up to this epoch are reclaimed.
    fn free_later(&self, gleaner: &mut Gleaner, epoch: u64) {
        let mut kept = Vec::new();
        let later = std::mem::take(&mut *self.later.lock());
        for (named, object) in later {
            match named <= epoch {
                true => gleaner.objects.push(object),
                false => kept.push((named, object)),
            }
        }
        self.later.lock().append(&mut kept);
        gleaner.give_back(self);
    }
}
