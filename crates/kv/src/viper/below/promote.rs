//! Reads that write: a key that is missed twice in a while comes back to the pool, and with the policy
//! `lru` a record of the older half of the pool moves to the young end. The new record has the version of the
//! old one, and covers its entry of the log.

use super::{Below, bump};
use crate::aof::is_below;
use crate::engine::backend::Backend;
use crate::error::Error;
use crate::index::KeyHash;
use crate::viper::record::{Order, RecordKind};
use crate::viper::session::{Pending, Replaced, ViperSession};

impl Below {
    /// Whether a key of the log that was read now is to come back: when it is missed twice in a while, or
    /// once soon after it left.
    pub(in crate::viper) fn wants_back(&self, hash: KeyHash) -> bool {
        self.promotes && {
            let was_missed = self.ghosts.has(hash.0);
            if !was_missed {
                self.ghosts.add(hash.0);
            }
            was_missed
        }
    }
}

impl ViperSession {
    /// Writes a key again that was read now, unless someone writes it at this moment or the pool has no
    /// room: a read does not wait for either.
    ///
    /// # Errors
    /// As [`Backend::commit_pending`].
    #[cold]
    pub(in crate::viper) fn rewrite_read(
        &mut self,
        hash: KeyHash,
        key: &[u8],
    ) -> Result<(), Error> {
        if self.is_pending() || self.engine.healthy().is_err() || self.engine.is_short_of_room() {
            return Ok(());
        }
        let stripe = self.engine.stripe(hash);
        if !self.engine.stripes.try_lock(stripe, self.id) {
            return Ok(());
        }
        match self.write_again(hash, key) {
            Ok(Some(write)) => {
                let before = *write.old().expect("what is written again has an old place");
                self.submit_pending(write)?;
                self.commit_pending()?;
                if is_below(before.location) {
                    self.count_garbage(&before);
                    if let Some(below) = &self.engine.below {
                        bump(&below.counters.promoted, 1);
                    }
                }
                Ok(())
            }
            // The read itself has its answer.
            Ok(None) | Err(_) => {
                self.give_back(stripe);
                Ok(())
            }
        }
    }

    /// Writes the record of a held key once more.
    fn write_again(&mut self, hash: KeyHash, key: &[u8]) -> Result<Option<Pending>, Error> {
        let Some((old, record)) = self.find(hash, key)? else {
            return Ok(None);
        };
        let is_from_below = is_below(old.location);
        // What was edited in place has a later version than its record, and pieces stay where they are.
        let is_plain = old.chain.is_none() && old.version == old.stamp.version;
        // The record may be on its way to the log at this moment, as one move more.
        let more = if is_from_below { 1 } else { 2 };
        let Some(moves) = old.stamp.moves.checked_add(more) else {
            return Ok(None);
        };
        if old.expired || !is_plain {
            return Ok(None);
        }
        let order = Order {
            version: old.stamp.version,
            moves,
            covers: is_from_below || record.covers,
        };
        let scratch = std::mem::take(&mut self.scratch);
        let value = scratch.get(record.value()).unwrap_or(&[]);
        let new = self.write(RecordKind::Value, key, value, record.expires_at_ms, order);
        self.scratch = scratch;
        Ok(Some(Pending {
            hash,
            stripe: self.engine.stripe(hash),
            new: Some(new?),
            old: Replaced::Known(Some(old)),
            // A record of the pool is marked dead, as if it were overwritten.
            moved: is_from_below,
            written: self.lane.written(),
        }))
    }
}
