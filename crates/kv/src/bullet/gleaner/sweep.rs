//! Removes everything from before the store was cleared.
//!
//! This needs no records: the ledger, or a record of it, says that nothing up to a version counts, and
//! readers do not see it. The sweep only takes back the room.

use super::Gleaner;
use crate::bullet::Bullet;
use crate::bullet::WAITS_MAX;
use crate::concurrency::stripes::Backoff;
use crate::error::Error;
use std::sync::atomic::Ordering;

/// Pieces of the tables that are looked at at once.
const PIECES: usize = 64;

/// How far what was cleared is removed.
#[derive(Debug, Default)]
pub(in crate::bullet) struct Sweep {
    /// The version up to which it is being removed.
    floor: u64,
    /// The hash at which the next piece begins.
    cursor: u64,
}

impl Bullet {
    /// Removes all that was cleared, for who needs its room now; waits for whoever is doing that already, a
    /// while at most.
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
    /// Removes what was cleared from the next pieces of both tables. `false`: there is nothing to do, or
    /// somebody else does it.
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
            assert!(sweep.floor < floor, "what was cleared counts again");
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

    /// A node that is being written now stays; whoever writes it replaces it.
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
        // Whoever has staged something there that did not count as cleared yet commits it first.
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
        // Also what was found before: its rows are locked.
        self.commit(engine);
        result
    }
}
