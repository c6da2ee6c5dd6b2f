//! The holes of the logs that can be opened on purpose ([`crate::broken::Hole`]), as far as that takes more
//! than leaving something out.

use super::ledger::Ledger;
use super::log::Logs;
use crate::broken::Hole;
use everdram_pm::Lane;

impl Ledger {
    /// Hole B1: a ledger for each log, in which only its head has moved.
    pub(super) fn move_heads_one_by_one(&mut self, lane: &mut Lane, heads: &[u64]) {
        for (number, head) in heads.iter().enumerate() {
            self.sequence += 1;
            self.heads[number] = *head;
            self.write(lane);
        }
    }
}

impl Logs {
    /// The position that the check of an entry covers. Hole B8: without the lap.
    #[inline]
    pub(super) fn sealed(&self, position: u64) -> u64 {
        match self.broken.is(Hole::B8) {
            true => position % self.log_bytes(),
            false => position,
        }
    }
}
