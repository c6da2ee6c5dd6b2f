//! Coming back on a read: a key that is read again soon after it left moves to the pool. The record
//! covers its entry of the log, and keeps its version.

use super::{Below, bump};
use crate::engine::backend::Backend;
use crate::error::Error;
use crate::index::KeyHash;
use crate::viper::record::{Order, RecordKind};
use crate::viper::session::{Pending, Replaced, ViperSession};

impl Below {
    /// Whether a key of the log that was read now is to come back.
    pub(in crate::viper) fn wants_back(&self, hash: KeyHash) -> bool {
        self.promotes && self.ghosts.has(hash.0)
    }
}

impl ViperSession {
    /// Moves a key of the log to the pool, unless someone writes it now or the pool has no room: a read does
    /// not wait for either.
    ///
    /// # Errors
    /// As [`Backend::commit_pending`].
    #[cold]
    pub(in crate::viper) fn promote(&mut self, hash: KeyHash, key: &[u8]) -> Result<(), Error> {
        if self.is_pending() || self.engine.healthy().is_err() || self.engine.wants_room() {
            return Ok(());
        }
        let stripe = self.engine.stripe(hash);
        if !self.engine.stripes.try_lock(stripe, self.id) {
            return Ok(());
        }
        match self.write_back(hash, key) {
            Ok(Some(write)) => {
                let moved = *write
                    .old()
                    .expect("a promotion replaces an entry of the log");
                self.submit_pending(write)?;
                self.commit_pending()?;
                self.count_garbage(&moved);
                if let Some(below) = &self.engine.below {
                    bump(&below.counters.promoted, 1);
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

    /// Writes the record of a held key of the log.
    fn write_back(&mut self, hash: KeyHash, key: &[u8]) -> Result<Option<Pending>, Error> {
        let Some((old, record)) = self.find(hash, key)? else {
            return Ok(None);
        };
        let Some(moves) = old.stamp.moves.checked_add(1) else {
            return Ok(None);
        };
        if old.mark.is_some() || old.expired {
            return Ok(None);
        }
        let order = Order {
            version: old.stamp.version,
            moves,
            covers: true,
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
            moved: true,
            written: self.lane.written(),
        }))
    }
}
