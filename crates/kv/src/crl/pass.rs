//! The epoch advancer (section 2.4): passes that apply everything logged up to the end of an epoch, and then
//! reclaim it.
//!
//! ```text
//!   idle ─ a thread asks for one ─▶ ending ─ no writer left in that epoch ─▶ gleaning ─ all logs gleaned ─▶ ledger ─▶ idle
//! ```
//!
//! No thread owns a pass. A thread that has time, or waits for room, takes a bounded step of it.
//!
//! The last step writes the *ledger*: the epoch, and the new head of each log. It is one record (in two
//! copies), so after a crash all logs begin at their old heads, or all at their new ones (B1, B3).

use super::cursor::{Cursor, Entries};
use super::ledger::{Ledger, Notes};
use super::log::Logs;
use super::log::Pass;
use crate::concurrency::seam::publishes;
use crate::error::Error;
use everdram_pm::Lane;
use everdram_pm::lock::lock;
use std::sync::atomic::Ordering;

/// The structure to which entries are applied before their room is reused (the paper's persistent table). The
/// logs do not know what it is.
pub(crate) trait Back {
    /// Applies entries of one log, in order. On return their effects are fenced elsewhere and do not need the
    /// entries any more; or [`Back::finish`] does that for all entries of the pass.
    ///
    /// # Errors
    /// The same entries are applied again later, whichever of them were applied.
    fn apply(&mut self, entries: &mut Entries<'_>) -> Result<(), Error>;

    /// All entries up to the end of this epoch were passed to [`Back::apply`]. On return their effects are
    /// fenced elsewhere. It may write ledgers with [`Logs::note`] meanwhile.
    ///
    /// # Errors
    /// It is called again later.
    fn finish(&mut self, _logs: &Logs) -> Result<(), Error> {
        Ok(())
    }

    /// All entries up to the end of this epoch are applied. Updates the user's words for the ledger.
    fn note(&mut self, epoch: u64, notes: &mut Notes);

    /// The lane to write the ledger with.
    fn lane(&mut self) -> &mut Lane;
}

/// The result of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Worked,
    /// The last step of a pass: everything up to the end of this epoch is reclaimed.
    Reclaimed(u64),
    /// Only other threads can continue now.
    Waiting,
    /// No pass is needed.
    Idle,
}

impl Logs {
    /// Takes one bounded step of a pass. If no pass is in progress, `up_to` chooses the epoch to reclaim
    /// next, at most the current one; `None`: no pass begins. The caller holds no log.
    ///
    /// # Errors
    /// As [`Back::apply`]: the log's cursor does not move. [`Error::Corrupt`], without the path.
    pub(crate) fn step(
        &self,
        back: &mut impl Back,
        cursor: &mut Cursor,
        up_to: impl FnOnce() -> Option<u64>,
    ) -> Result<Step, Error> {
        let epoch = {
            let mut pass = lock(&self.pass);
            if pass.epoch == 0 {
                let Some(epoch) = up_to() else {
                    return Ok(Step::Idle);
                };
                *pass = Pass {
                    epoch: match epoch < self.epoch() {
                        true => epoch,
                        false => self.next_epoch(),
                    },
                    is_over: false,
                };
            }
            pass.is_over = pass.is_over || self.is_over(pass.epoch);
            if !pass.is_over {
                return Ok(Step::Waiting);
            }
            pass.epoch
        };
        let is_gleaned = |number| self.log(number).gleaned.load(Ordering::Acquire) >= epoch;
        for number in 0..self.count() {
            let log = self.log(number);
            if is_gleaned(number) || !log.try_glean() {
                continue;
            }
            // Another gleaner may have finished it just now.
            let gleaned = match is_gleaned(number) {
                true => Ok(true),
                false => self.glean(back, cursor, number, epoch),
            };
            if let Ok(true) = gleaned {
                publishes!();
                log.gleaned.fetch_max(epoch, Ordering::AcqRel);
            }
            log.stop_gleaning();
            gleaned?;
            return Ok(Step::Worked);
        }
        let mut pass = lock(&self.pass);
        if pass.epoch != epoch || !(0..self.count()).all(is_gleaned) {
            return Ok(Step::Waiting);
        }
        back.finish(self)?;
        self.reclaim(back, epoch);
        pass.epoch = 0;
        Ok(Step::Reclaimed(epoch))
    }

    /// Applies a batch of a log's entries, of epochs up to `epoch`. `true`: there are no more of them.
    fn glean(
        &self,
        back: &mut impl Back,
        cursor: &mut Cursor,
        number: usize,
        epoch: u64,
    ) -> Result<bool, Error> {
        let log = self.log(number);
        let position = log.cursor.load(Ordering::Acquire);
        let limit = log.published.load(Ordering::Acquire);
        assert!(
            log.is_gleaned() && position <= limit,
            "a log is gleaned without a gleaner, or beyond its published position"
        );
        cursor.switch_to(number);
        let mut entries = Entries::new(self, cursor, [position, limit], epoch);
        back.apply(&mut entries)?;
        assert!(
            (position..=limit).contains(&entries.position),
            "a gleaner's cursor decreases, or exceeds the published position"
        );
        publishes!();
        log.cursor.store(entries.position, Ordering::Release);
        Ok(entries.is_end)
    }

    /// Writes a ledger with other words of the user. What is reclaimed stays the same.
    pub(crate) fn note(&self, lane: &mut Lane, notes: Notes) {
        let mut kept = lock(&self.ledger);
        kept.sequence += 1;
        kept.notes = notes;
        kept.write(lane);
    }

    /// Writes the ledger; then writers may use the room before the new heads.
    fn reclaim(&self, back: &mut impl Back, epoch: u64) {
        assert!(epoch < self.epoch(), "an epoch is reclaimed before its end");
        let heads: Vec<u64> = (0..self.count())
            .map(|number| self.log(number).cursor.load(Ordering::Acquire))
            .collect();
        let mut ledger = lock(&self.ledger);
        let mut moves = ledger.heads.iter().zip(&heads);
        assert!(
            moves.all(|(before, head)| before <= head),
            "the head of a log decreases"
        );
        let mut next = Ledger {
            sequence: ledger.sequence + 1,
            epoch,
            notes: ledger.notes,
            heads,
        };
        back.note(epoch, &mut next.notes);
        next.write(back.lane());
        for (number, head) in next.heads.iter().enumerate() {
            publishes!();
            self.log(number).head.store(*head, Ordering::Release);
        }
        *ledger = next;
    }
}
