//! The epoch advancer (section 2.4): passes that apply what was logged up to the end of an epoch, and then
//! reclaim it.
//!
//! ```text
//!   idle ─ whoever asks wants one ─▶ ending ─ nobody writes in that epoch ─▶ gleaning ─ all logs gleaned ─▶ ledger ─▶ idle
//! ```
//!
//! Nobody owns a pass. Whoever has time, or waits for room, takes a step of it; a step is bounded.
//!
//! The last step writes the *ledger*: the epoch, and where each log begins now. It is one record (and a copy
//! of it), so after a crash all logs begin where they began before the pass, or all where they begin after it
//! (B1, B3).

use super::cursor::{Cursor, Entries};
use super::ledger::{Ledger, Notes};
use super::log::Logs;
use super::log::Pass;
use crate::concurrency::seam::publishes;
use crate::error::Error;
use everdram_pm::Lane;
use everdram_pm::lock::lock;
use std::sync::atomic::Ordering;

/// What entries are applied to before their room is used again (the paper's persistent table). The logs do
/// not ask what that is.
pub(crate) trait Back {
    /// Applies entries of one log, in order. When it returns, what they did does not need them any more: it
    /// is fenced elsewhere.
    ///
    /// # Errors
    /// Whatever was applied, the same entries are applied again.
    fn apply(&mut self, entries: &mut Entries<'_>) -> Result<(), Error>;

    /// All entries up to the end of this epoch are applied. Changes the words that the ledger is to have
    /// beside that.
    fn note(&mut self, epoch: u64, notes: &mut Notes);

    /// What the ledger is written with.
    fn lane(&mut self) -> &mut Lane;
}

/// What a step did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Worked,
    /// The last step of a pass: everything up to the end of this epoch is reclaimed.
    Reclaimed(u64),
    /// It is for others to go on.
    Waiting,
    /// There is nothing to do.
    Idle,
}

impl Logs {
    /// Takes one bounded step of a pass. `up_to`: the epoch that is to be reclaimed next if no pass is under
    /// way, the current one at most; `None`: nothing is. The caller holds no log.
    ///
    /// # Errors
    /// As [`Back::apply`]: the log's cursor is where it was. [`Error::Corrupt`], without the path.
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
        self.reclaim(back, epoch);
        pass.epoch = 0;
        Ok(Step::Reclaimed(epoch))
    }

    /// Has a lot of a log's entries applied, of epochs up to `epoch`. `true`: there are no more of them.
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
            "a log is gleaned that has no gleaner, or beyond what is published"
        );
        cursor.turn_to(number);
        let mut entries = Entries::new(self, cursor, [position, limit], epoch);
        back.apply(&mut entries)?;
        assert!(
            (position..=limit).contains(&entries.position),
            "a gleaner's cursor goes back, or beyond what is published"
        );
        publishes!();
        log.cursor.store(entries.position, Ordering::Release);
        Ok(entries.are_all)
    }

    /// Writes the ledger; then writers may use what is behind the new heads.
    fn reclaim(&self, back: &mut impl Back, epoch: u64) {
        assert!(
            epoch < self.epoch(),
            "an epoch is reclaimed that has not ended"
        );
        let heads: Vec<u64> = (0..self.count())
            .map(|number| self.log(number).cursor.load(Ordering::Acquire))
            .collect();
        let mut ledger = lock(&self.ledger);
        let mut moves = ledger.heads.iter().zip(&heads);
        assert!(
            moves.all(|(before, head)| before <= head),
            "the head of a log goes back"
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
