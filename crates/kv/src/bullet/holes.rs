//! The holes that can be opened on purpose ([`Hole`]), as far as that takes more than leaving something out.
//!
//! Without feature `broken` no hole is ever open ([`crate::broken::Opened`]), and none of this is left in the program.

use super::Bullet;
use super::front::Node;
use super::glean::Gleaner;
use super::ledger::Ledger;
use super::log::Logs;
use crate::broken::Hole;
use everdram_pm::Lane;

impl Bullet {
    /// Hole B1: a ledger for each log, in which only its head has moved.
    pub(super) fn move_heads_one_by_one(
        &self,
        lane: &mut Lane,
        ledger: &mut Ledger,
        heads: &[u64],
    ) {
        for (number, head) in heads.iter().enumerate() {
            ledger.sequence += 1;
            ledger.heads[number] = *head;
            ledger.write(lane);
        }
    }

    /// The LSN up to which an object with this one has its key's changes. Hole B4: nobody knows.
    pub(super) fn has_up_to(&self, lsn: u64) -> u64 {
        match self.broken.is(Hole::B4) {
            true => lsn.min(self.floor() + 1),
            false => lsn,
        }
    }

    /// Hole B7: a removed key's node goes as soon as it has come; the key's row is held.
    pub(super) fn forget_removed(&self, node: &Node) {
        if node.is_tombstone && self.broken.is(Hole::B7) {
            let mut key = Vec::new();
            self.front.key(node, &mut key);
            let (place, _) = self.front.locate(node.hash, &key);
            self.front.remove(&place);
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

impl Gleaner {
    /// Hole B3: whether another gleaner has locked the row of a hash, so that this one passes over the record.
    pub(super) fn passes_over(&self, engine: &Bullet, hash: u64) -> bool {
        if !engine.broken.is(Hole::B3) {
            return false;
        }
        let row = engine.back.row(hash);
        let is_free = engine.back.try_lock(row);
        if is_free {
            engine.back.unlock(row);
        }
        !is_free && !self.holds(row)
    }
}
