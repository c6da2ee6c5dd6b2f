//! The holes that can be opened on purpose ([`Hole`]), as far as that takes more than leaving something out.
//!
//! Without feature `broken` no hole is ever open ([`crate::broken::Opened`]), and none of this is left in the
//! program.

use super::Bullet;
use super::front::Node;
use super::gleaner::Gleaner;
use crate::broken::Hole;

impl Bullet {
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

impl Gleaner {
    /// Hole B3: whether another gleaner has locked the row of a hash, so that this one passes over the
    /// record.
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
