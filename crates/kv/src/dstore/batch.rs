//! Atomic batches: several keys, all or none, also across a crash; and the removal of everything.
//!
//! A batch is one entry of one log, with an operation for each key. An entry is whole or absent, so a batch
//! needs no other commit record. A batch that is too long for an entry goes to a parcel of blocks, which its
//! entry names. While the session shows the slots one by one, readers of their stripes wait.

use super::layout::{ENTRY_HEAD, Opcode, Operation, Slot};
use super::session::{DstoreSession, Pending};
use crate::concurrency::stripes::StripeId;
use crate::engine::backend::{Change, Seen, Taken};
use crate::engine::counters::bump_signed;
use crate::engine::{BatchOp, Engine, Ticket, last_of_each_key};
use crate::error::Error;
use everdram_pm::lock::lock;

impl DstoreSession {
    /// Applies operations whose stripes the caller holds and keeps. `clear` removes everything else first;
    /// then the caller holds all stripes.
    pub(super) fn apply_locked(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'_>],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error> {
        self.engine.healthy()?;
        assert!(
            self.pending.is_empty() && self.operations.is_empty(),
            "a batch while writes are pending"
        );
        let ops = last_of_each_key(ops);
        let floor = clear.then(|| self.clear_operation(stripes));
        let mut prepared: Vec<Pending> = Vec::with_capacity(ops.len());
        for op in ops {
            match self.prepare_one(op, clear) {
                Ok(one) => prepared.extend(one),
                Err(error) => {
                    self.abandon(&prepared);
                    return Err(error);
                }
            }
        }
        if prepared.is_empty() && floor.is_none() {
            let stamps = stripes
                .iter()
                .map(|&stripe| self.engine.stripes.stamp(stripe));
            return Ok(Ticket(stamps.fold(self.ordered().lsn().0, u64::max)));
        }
        let one_locked = self.one_locked();
        let alone = one_locked.as_ref().and_then(|engine| engine.alone());
        if let Err(error) = self.log_all(&prepared, floor.is_some()) {
            self.abandon(&prepared);
            return Err(error);
        }
        self.counters().publishing.begin();
        let published = self.publish_all(floor, &prepared, stripes);
        self.counters().publishing.end();
        self.leave();
        drop(alone);
        self.end_commit();
        published.map_err(|error| self.engine.halt(error))
    }

    fn prepare_one(&mut self, op: &BatchOp<'_>, clear: bool) -> Result<Option<Pending>, Error> {
        let key = op.key();
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripes.of(hash);
        let seen = match clear {
            true => Seen::default(),
            false => self.find_held(hash, key),
        };
        let change = match *op {
            BatchOp::Put {
                value,
                expires_at_ms,
                ..
            } => Change::Put {
                value,
                expires_at_ms,
            },
            BatchOp::Delete { .. } if seen.is_counted => Change::Remove,
            BatchOp::Delete { .. } => return Ok(None),
        };
        let taken = Taken { hash, stripe };
        self.prepare(taken, key, &seen, change.into()).map(Some)
    }

    /// Writes the operation that removes everything; returns the new floor: objects with LSNs up to it do not
    /// count.
    fn clear_operation(&mut self, stripes: &[StripeId]) -> u64 {
        let locks = &self.engine.stripes;
        let clocks = stripes.iter().map(|&stripe| locks.version(stripe));
        // One more than the maximum, so that every stripe's clock moves: a reader that compares it before and
        // after notices.
        let floor = clocks.fold(self.engine.floor(), u64::max) + 1;
        stripes
            .iter()
            .for_each(|&stripe| locks.raise(stripe, floor));
        let operation = Operation {
            opcode: Opcode::Clear,
            number: 0,
            slot: Slot::default().buried(floor),
            key: None,
            cell: None,
            before: None,
        };
        operation.write(&mut self.operations);
        floor
    }

    /// Makes the batch durable: one entry with all operations, or one that names a parcel with them.
    fn log_all(&mut self, prepared: &[Pending], has_clear: bool) -> Result<(), Error> {
        let mut operations = Vec::new();
        let clear = prepared
            .first()
            .map_or(self.operations.len(), |one| one.operation.start);
        operations.extend_from_slice(&self.operations[..clear]);
        for one in prepared {
            operations.extend_from_slice(&self.operations[one.operation.clone()]);
        }
        let mut count = (prepared.len() + usize::from(has_clear)) as u32;
        let mut parcel = 0..0;
        let is_logged = self.engine.system.is_logged();
        if is_logged && ENTRY_HEAD + operations.len() > self.engine.dipper.logs.entry_most() {
            let begin = self.operations.len();
            self.operations.append(&mut operations);
            let (logged, runs) = self.wrap(begin..self.operations.len())?;
            operations.extend_from_slice(&self.operations[logged]);
            (count, parcel) = (1, runs);
        }
        self.sync_data()?;
        if is_logged {
            self.entry.clear();
            self.entry.resize(ENTRY_HEAD, 0);
            self.entry.append(&mut operations);
            let mut group = None;
            self.append(&mut group, count, parcel)?;
            self.fence(group);
        } else {
            self.keep_without_log(&operations, count)?;
        }
        // Parcels of single operations were not logged.
        for one in prepared {
            for (first, count) in self.runs[one.parcel.clone()].iter().copied() {
                self.engine
                    .room
                    .give_back(super::room::Freed::Blocks { first, count });
            }
        }
        Ok(())
    }

    fn publish_all(
        &mut self,
        floor: Option<u64>,
        prepared: &[Pending],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error> {
        let ordered = self.ordered();
        for &stripe in stripes {
            self.engine.stripes.publish(stripe);
        }
        if let Some(floor) = floor {
            let engine = &self.engine;
            if !engine.durable_at_fence {
                for stripe in engine.stripes.all() {
                    engine.stripes.set_stamp(stripe, &ordered);
                }
            }
            engine.clear_up_to(floor);
            let cleared = engine.index.clear(&ordered);
            cleared.map_err(|error| Error::NoSpace(format!("the index in DRAM: {error}")))?;
            *lock(&engine.order) = super::order::Order::default();
            let keys = engine.len() as i64;
            bump_signed(&self.counters().keys, -keys);
            self.engine.sweep_from_the_start();
        }
        for one in prepared {
            self.publish(one, &ordered)?;
        }
        Ok(Ticket(ordered.lsn().0))
    }
}
