//! The sweep removes keys from before the store was cleared.
//!
//! Cleared keys need no record: the floor hides them, in the ledger or in its own record. The sweep only
//! frees their room.

use super::Gleaner;
use crate::bullet::Bullet;
use crate::bullet::WAITS_MAX;
use crate::concurrency::stripes::Backoff;
use crate::error::Error;
use std::sync::atomic::Ordering;

/// Pieces of the tables that one call visits.
const PIECES: usize = 64;

/// Progress of the sweep of cleared keys.
#[derive(Debug, Default)]
pub(in crate::bullet) struct Sweep {
    /// The floor that this sweep removes keys up to.
    floor: u64,
    /// The hash at which the next piece begins.
    cursor: u64,
}

impl Bullet {
    /// Removes all cleared keys, for a caller that needs their room now. If another thread is at it, waits
    /// for it, but only a while.
    ///
    /// # Errors
    /// As [`Gleaner::sweep_cleared`]; with the path.
    pub(in crate::bullet) fn sweep_all_cleared(&self) -> Result<(), Error> {
        let (mut backoff, mut waits) = (Backoff::new(), 0);
        while self.gleaning.swept.load(Ordering::Acquire) < self.floor() && waits < WAITS_MAX {
            self.healthy()?;
            let working = self.gleaning.working.read();
            let swept = self.take_gleaner().map(|mut gleaner| {
                let swept = gleaner.sweep_cleared(self);
                self.put_back(gleaner);
                swept
            });
            drop(working);
            if !swept
                .unwrap_or(Ok(false))
                .map_err(|error| self.at_path(error))?
            {
                waits += 1;
                backoff.wait();
            }
        }
        Ok(())
    }
}

impl Gleaner {
    /// Removes cleared keys from the next pieces of both tables. `false`: there is nothing to do, or another
    /// thread does it.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(in crate::bullet) fn sweep_cleared(&mut self, engine: &Bullet) -> Result<bool, Error> {
        let floor = engine.floor();
        if engine.gleaning.swept.load(Ordering::Acquire) >= floor {
            return Ok(false);
        }
        let Some(mut sweep) = engine.gleaning.sweep.try_lock() else {
            return Ok(false);
        };
        if sweep.floor != floor {
            assert!(
                sweep.floor < floor,
                "the floor decreases: cleared keys count again"
            );
            *sweep = Sweep { floor, cursor: 0 };
        }
        for _ in 0..PIECES {
            let (from, end) = (sweep.cursor, engine.piece_end(sweep.cursor));
            self.slot.hold();
            self.sweep_nodes(engine, floor, from, end);
            let swept = self.sweep_objects(engine, floor, from, end);
            self.slot.unhold();
            swept?;
            sweep.cursor = end;
            if end == 0 {
                engine.gleaning.swept.fetch_max(floor, Ordering::AcqRel);
                break;
            }
        }
        self.give_back(engine);
        Ok(true)
    }

    /// A node that a session is writing stays: the session replaces it.
    fn sweep_nodes(&mut self, engine: &Bullet, floor: u64, from: u64, end: u64) {
        let mut dead = Vec::new();
        engine.front_piece(from, end, |node| {
            if node.version <= floor {
                dead.push(node);
            }
        });
        dead.iter()
            .for_each(|node| self.drop_tombstone(engine, node));
    }

    fn sweep_objects(
        &mut self,
        engine: &Bullet,
        floor: u64,
        from: u64,
        end: u64,
    ) -> Result<(), Error> {
        let mut objects = Vec::new();
        // A gleaner that staged an object there before the clear commits it first.
        let row = self.lock_row(engine, from)?;
        engine.back.unlock(row);
        engine.back_piece(from, end, |at| objects.push(at))?;
        let mut key = Vec::new();
        let mut result = Ok(());
        for at in objects {
            key.clear();
            let removed =
                engine
                    .back
                    .head(at, &mut key)
                    .and_then(|head| match head.version <= floor {
                        true => self.remove_object(engine, head.hash, &key, floor),
                        false => Ok(()),
                    });
            if removed.is_err() {
                result = removed;
                break;
            }
        }
        // Also after an error: the rows of staged removals are locked.
        self.commit(engine);
        result
    }
}
