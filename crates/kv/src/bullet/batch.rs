//! Atomic batches: several keys, all or none, also across a crash; and the removal of everything.
//!
//! A batch is one entry of one log, with an operation for each key. An entry is whole or absent, so a batch
//! needs no other commit record (B13). A batch that is too long for an entry goes into an overflow record of
//! the heap, which its entry names. While the session publishes the nodes one by one, readers of their
//! stripes wait: no reader sees half a batch.

use super::layout::{Opcode, Operation, RecordAt};
use super::session::BulletSession;
use super::session::Pending;
use crate::concurrency::stripes::StripeId;
use crate::engine::backend::{Backend, Change, Taken};
use crate::engine::counters::bump_signed;
use crate::engine::transaction::room_of;
use crate::engine::{BatchOp, Engine, Ticket, last_of_each_key};
use crate::error::Error;

impl BulletSession {
    /// Applies operations whose stripes the caller holds and keeps. `clear` removes everything else first;
    /// then the caller holds all stripes.
    pub(super) fn apply_locked(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'_>],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error> {
        let room = room_of(ops) as u64;
        let result = self
            .engine
            .healthy()
            .and_then(|()| self.engine.has_room(room))
            .and_then(|()| self.try_apply(clear, ops, stripes));
        // The session took a log before, and gives it back on an error, too.
        self.end_group();
        self.drop_spare_lines();
        result
    }

    fn try_apply(
        &mut self,
        clear: bool,
        ops: &[BatchOp<'_>],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error> {
        if !self.engine.system.has_front() {
            return Err(Error::Options(format!(
                "the system `{}` is there to be measured and has no batches",
                self.engine.system
            )));
        }
        let ops = last_of_each_key(ops);
        let floor = clear.then(|| self.clear_operation(stripes));
        let mut prepared: Vec<(Pending, &BatchOp<'_>)> = Vec::with_capacity(ops.len());
        for op in ops {
            match self.prepare_one(op, floor) {
                Ok(Some(pending)) => {
                    let room = self.spare_line_for(&pending);
                    prepared.push((pending, op));
                    if let Err(error) = room {
                        self.abandon_all(&prepared);
                        return Err(error);
                    }
                }
                Ok(None) => {}
                Err(error) => {
                    self.abandon_all(&prepared);
                    return Err(error);
                }
            }
        }
        if prepared.is_empty() && floor.is_none() {
            let found = stripes
                .iter()
                .map(|&stripe| self.engine.stripes.stamp(stripe));
            return Ok(Ticket(found.fold(self.ordered.lsn().0, u64::max)));
        }
        let record = match self.append_all() {
            Ok(record) => record,
            Err(error) => {
                self.abandon_all(&prepared);
                return Err(error);
            }
        };
        for (pending, op) in &mut prepared {
            let value = match op {
                BatchOp::Put { value, .. } => value,
                BatchOp::Delete { .. } => &[][..],
            };
            self.write_node(pending, record, op.key(), value);
        }
        self.fence();
        self.counters().publishing.begin();
        let published = self.publish_all(floor, &mut prepared, stripes);
        self.counters().publishing.end();
        published
    }

    fn prepare_one(
        &mut self,
        op: &BatchOp<'_>,
        floor: Option<u64>,
    ) -> Result<Option<Pending>, Error> {
        let key = op.key();
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripe(hash);
        let taken = Taken { hash, stripe };
        let mut seen = self.locate(taken, key)?;
        if floor.is_some() {
            (seen.is_live, seen.is_counted) = (false, false);
        }
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
        self.prepare(taken, key, &seen, change).map(Some)
    }

    fn abandon_all(&mut self, prepared: &[(Pending, &BatchOp<'_>)]) {
        prepared
            .iter()
            .for_each(|(pending, _)| self.abandon(pending));
        self.forget_entry();
    }

    /// Adds the operation that removes everything to the entry; returns the new floor: versions up to it do
    /// not count.
    fn clear_operation(&mut self, stripes: &[StripeId]) -> u64 {
        let locks = &self.engine.stripes;
        let versions = stripes.iter().map(|&stripe| locks.version(stripe));
        // One more than the maximum, so that every stripe's clock moves: a reader that compares it before and
        // after notices.
        let floor = versions.fold(self.engine.floor(), u64::max) + 1;
        for &stripe in stripes {
            locks.raise(stripe, floor);
        }
        let keys = self.engine.len().to_le_bytes();
        self.add_operation(&Operation {
            version: floor,
            opcode: Opcode::Clear,
            keys: Default::default(),
            prev: RecordAt::default(),
            expires_at_ms: 0,
            key: &[],
            payload: &keys,
        });
        floor
    }

    /// Appends the entry, or one that names an overflow record with its operations.
    fn append_all(&mut self) -> Result<RecordAt, Error> {
        if self.entry_bytes() > self.engine.logs.entry_most() {
            let operations = self.take_operations();
            let parcel = self.write_overflow_record(&operations)?;
            self.add_operation(&Operation {
                version: 0,
                opcode: Opcode::Parcel,
                keys: Default::default(),
                prev: RecordAt::default(),
                expires_at_ms: 0,
                key: &[],
                payload: &parcel.to_payload(),
            });
        }
        Ok(self.append())
    }

    fn publish_all(
        &mut self,
        floor: Option<u64>,
        prepared: &mut [(Pending, &BatchOp<'_>)],
        stripes: &[StripeId],
    ) -> Result<Ticket, Error> {
        for &stripe in stripes {
            self.engine.stripes.publish(stripe);
        }
        if let Some(floor) = floor {
            if !self.engine.durable_at_fence {
                for stripe in self.engine.stripes.all() {
                    self.engine.stripes.set_stamp(stripe, &self.ordered);
                }
            }
            self.engine.clear_up_to(floor);
            bump_signed(&self.counters().keys, -(self.engine.len() as i64));
        }
        for (pending, op) in prepared {
            // Two keys of a batch may be in one bucket, and the first has used the vacant slot that both
            // found.
            pending.place = self.engine.front.locate(pending.node.hash, op.key()).0;
            self.publish(pending)
                .map_err(|error| self.engine.halt(error))?;
        }
        Ok(Ticket(self.ordered.lsn().0))
    }
}
