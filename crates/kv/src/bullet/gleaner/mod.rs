//! A gleaner reads the records of a log in order and applies them to the back (section 2.3).
//!
//! To apply a record, it brings the back's object of the record's key to the state of the front. That state
//! includes the record, all older ones and perhaps newer ones: write collapsing (section 4.4) for every kind
//! of operation, not only puts. It is durable, since the front shows only durable writes. The object carries
//! its version, so no record is applied twice, even if a crash leaves applied records in the log (B1, B4).
//!
//! One transaction applies many records. Then the log's cursor moves, never past a record that is not durably
//! applied (B3). A gleaner waits for a row that another one has locked, and holds none meanwhile.
//!
//! A gleaner skips records of a key without a node in the front, or with an applied one. The back is up to
//! date then, even after a removal from both tables (B5).
//!
//! A record is also skipped when a later put or delete of its key is durable: the later record holds the full
//! state, and is reclaimed no earlier. A key that is written all the time is applied once writes pause, or
//! when the newest record with its full state is gleaned. Records that a later edit builds on
//! ([`Node::is_edit`]) are applied.

pub(super) mod apply_batch;
pub(super) mod pass;
pub(super) mod reserve;
pub(super) mod roles;
pub(super) mod stage;
pub(super) mod sweep;

use super::Bullet;
use super::back::Edits;
use super::counters::Sum;
use super::front::Node;
use super::layout::{Named, Opcode, Operation, RecordAt, operations, word_at};
use super::overflow_record::read_overflow_record;
use crate::concurrency::epoch::Slot;
use crate::concurrency::retired::Retired;
use crate::concurrency::seam::{few, looks};
use crate::concurrency::stripes::Backoff;
use crate::crl::{Cursor, Entries};
use crate::engine::halt::Halt;
use crate::error::Error;
use crate::heap::{Claim, Txn};
use crate::options::{BulletSystem, Options};
use apply_batch::ApplyBatch;
use everdram_pm::{Flushed, LINE, Lane};
use parking_lot::{Mutex, RwLock};
use roles::Roles;
use stage::{Staged, State};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Done,
    /// It is for others to go on.
    ForOthers,
}

/// What gleaners share.
pub(super) struct Gleaning {
    pub(super) roles: Roles,
    /// The background thread gleans without being asked.
    pub(super) by_itself: bool,
    /// Idle gleaners.
    pub(super) gleaners: Mutex<Vec<Gleaner>>,
    /// Read-locked to change the back, write-locked to see it unchanging.
    pub(super) working: RwLock<()>,
    /// Keys added less keys removed by the records of the pass under way; and the greatest version ever
    /// gleaned.
    pub(super) passed_keys: AtomicI64,
    pub(super) passed_version: AtomicU64,
    /// Objects to free once an epoch is reclaimed: the epoch; offset and bytes.
    pub(super) later: Mutex<Vec<(u64, (u64, u64))>>,
    /// Both tables hold no cleared keys up to this version.
    pub(super) swept: AtomicU64,
    pub(super) sweep: Mutex<sweep::Sweep>,
}

impl Gleaning {
    pub(super) fn new(system: BulletSystem, options: &Options, swept: u64) -> Gleaning {
        Gleaning {
            roles: Roles::new(system.has_fixed_roles(), options.role_period()),
            by_itself: options.reclaim_background,
            gleaners: Mutex::default(),
            working: RwLock::default(),
            passed_keys: AtomicI64::new(0),
            passed_version: AtomicU64::new(0),
            later: Mutex::default(),
            swept: AtomicU64::new(swept),
            sweep: Mutex::default(),
        }
    }
}

/// Keys that one transaction brings up to date, at most.
const TOGETHER: usize = 48;
/// The state of one gleaning thread.
pub(super) struct Gleaner {
    pub(super) lane: Lane,
    pub(super) txn: Txn,
    pub(super) claim: Option<Claim>,
    pub(super) slot: Slot,
    pub(super) flushed: Option<Flushed>,
    pub(super) staged: Vec<Staged>,
    pub(super) cursor: Cursor,
    gathered: ApplyBatch,
    /// Slots of the back to fetch for the gathered keys.
    slots: Vec<u64>,
    /// Sum of the records applied since the log's cursor moved.
    sum: Sum,
    key: Vec<u8>,
    pub(super) value: Vec<u8>,
    pub(super) bytes: Vec<u8>,
    /// Objects that log records may still name: offset, bytes.
    pub(super) later: Vec<(u64, u64)>,
    /// Removed keys whose nodes are still in the front: hash and key.
    unburied: Vec<(u64, Vec<u8>)>,
    /// Objects of the back that only readers may still access: offset, bytes.
    pub(super) objects: Retired<(u64, u64)>,
    /// Nodes of the front that only readers may still access: offset, bytes.
    pub(super) nodes: Retired<(u64, u64)>,
    halted: Halt,
}

impl Drop for Gleaner {
    /// Without the halt, others would wait for ever for rows that a dead gleaner left locked.
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.halted.set("a gleaner panicked");
        }
    }
}

impl Gleaner {
    /// `None`: the number of gleaners is at its limit.
    pub(super) fn new(engine: &Bullet) -> Option<Gleaner> {
        Some(Gleaner {
            lane: engine.pool.lane(),
            txn: engine.redo.txn()?,
            claim: None,
            slot: engine.epochs.register()?,
            flushed: None,
            staged: Vec::new(),
            cursor: Cursor::new(0),
            gathered: ApplyBatch::default(),
            slots: Vec::new(),
            sum: Sum::default(),
            key: Vec::new(),
            value: Vec::new(),
            bytes: Vec::new(),
            later: Vec::new(),
            unburied: Vec::new(),
            objects: Retired::default(),
            nodes: Retired::default(),
            halted: engine.halted.clone(),
        })
    }

    /// Whether it holds no row, and has nothing to commit.
    pub(super) fn is_at_rest(&self) -> bool {
        self.staged.is_empty() && self.txn.is_empty() && self.flushed.is_none()
    }

    /// Applies entries of a log that only the caller gleans.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Corrupt`].
    pub(super) fn glean(
        &mut self,
        engine: &Bullet,
        entries: &mut Entries<'_>,
    ) -> Result<(), Error> {
        assert!(
            self.is_at_rest(),
            "a gleaner begins with uncommitted changes"
        );
        self.sum = Sum::default();
        // The pin protects staged nodes: the commit marks them as applied.
        self.slot.hold();
        let outcome = self
            .apply_all(engine, entries)
            .and_then(|()| self.apply_gathered(engine));
        self.gathered.clear();
        self.commit(engine);
        self.drop_tombstones_again(engine);
        self.slot.unhold();
        outcome?;
        engine.passed(self.sum);
        Ok(())
    }

    fn apply_all(&mut self, engine: &Bullet, entries: &mut Entries<'_>) -> Result<(), Error> {
        while let Some(entry) = entries.next()? {
            for operation in operations(entry.bytes, entry.operations) {
                self.apply(engine, entry.at, &operation)?;
            }
        }
        Ok(())
    }

    /// Applies an operation of a record. Its key is up to date after the next commit, or a later record holds
    /// the full state.
    fn apply(
        &mut self,
        engine: &Bullet,
        record: RecordAt,
        operation: &Operation<'_>,
    ) -> Result<(), Error> {
        self.sum.add(operation);
        match operation.opcode {
            Opcode::Clear => Ok(()),
            Opcode::Parcel => self.apply_overflow_record(engine, record, operation),
            Opcode::Link => self.apply_link(engine, operation),
            _ => {
                let hash = engine.hash(operation.key);
                engine.front.prefetch(hash);
                match self.gathered.push(hash, record, operation.key) {
                    true => Ok(()),
                    false => self.apply_gathered(engine),
                }
            }
        }
    }

    /// Applies the gathered keys, whose memory has been prefetched.
    fn apply_gathered(&mut self, engine: &Bullet) -> Result<(), Error> {
        let mut gathered = std::mem::take(&mut self.gathered);
        for (hash, ..) in gathered.keys() {
            engine.front.prefetch_nodes(hash);
        }
        self.slots.clear();
        // Most records of keys that are written often end here.
        gathered.retain(|hash, record, key| {
            let shown = engine.front.find(hash, key);
            let wanted = shown.filter(|node| is_wanted(engine, Some(record), node));
            if let Some(node) = &wanted {
                self.slots.extend(engine.prefetch_behind(node));
            }
            wanted.is_some()
        });
        engine.back.fetch(&self.slots);
        let mut applied = Ok(());
        for (hash, record, key) in gathered.keys() {
            applied = self.apply_key(engine, Some(record), hash, key).map(drop);
            if applied.is_err() {
                break;
            }
        }
        self.gathered = gathered;
        self.gathered.clear();
        applied
    }

    fn apply_link(&mut self, engine: &Bullet, operation: &Operation<'_>) -> Result<(), Error> {
        let at = word_at(operation.payload, 0);
        let mut key = std::mem::take(&mut self.key);
        key.clear();
        let shown = engine
            .back
            .head(at, &mut key)
            .and_then(|head| self.apply_key(engine, None, head.hash, &key));
        self.key = key;
        // If the front shows a newer state, this transaction or an earlier one has that state. The object is
        // not needed.
        if (shown? != at || operation.version <= engine.floor())
            && let Some(bytes) = engine.reserve.linked.lock().remove(&at)
        {
            self.later.push((at, bytes));
        }
        Ok(())
    }

    fn apply_overflow_record(
        &mut self,
        engine: &Bullet,
        record: RecordAt,
        operation: &Operation<'_>,
    ) -> Result<(), Error> {
        let named = Named::read(operation.payload);
        let parcel = read_overflow_record(&engine.pool, named)?;
        for operation in operations(&parcel, u32::MAX) {
            self.apply(engine, record, &operation)?;
        }
        // A repeated step may have removed it before.
        if let Some(bytes) = engine.reserve.linked.lock().remove(&named.at) {
            self.later.push((named.at, bytes));
        }
        Ok(())
    }

    /// Brings a key up to date, if `record` asks for it ([`is_wanted`]). Returns the object that its node
    /// names, 0 for none.
    fn apply_key(
        &mut self,
        engine: &Bullet,
        record: Option<RecordAt>,
        hash: u64,
        key: &[u8],
    ) -> Result<u64, Error> {
        let wants = |node: Option<Node>| node.filter(|node| is_wanted(engine, record, node));
        let mut shown = engine.front.find(hash, key);
        if let Some(node) = wants(shown) {
            if engine.system.applies_each() {
                self.apply_older(engine, &node, key)?;
            }
            let row = self.lock_row(engine, hash)?;
            // Before this gleaner locked the row, another one may have applied the node and removed it.
            shown = engine.front.find(hash, key);
            match wants(shown) {
                Some(node) => {
                    looks!();
                    self.apply_node(engine, &node, key, row)?;
                }
                None => engine.back.unlock(row),
            }
        }
        Ok(shown.map_or(0, |node| node.object))
    }

    /// Stages a node; gives the row back if there is nothing to do.
    fn apply_node(
        &mut self,
        engine: &Bullet,
        node: &Node,
        key: &[u8],
        row: usize,
    ) -> Result<(), Error> {
        match self.stage(engine, &State::of_node(engine, node), key, row) {
            Ok(true) => {}
            other => {
                if other.is_ok() {
                    // The back has the state already, from before a crash.
                    engine.front.applied(node.at, None);
                }
                engine.back.unlock(row);
                other?;
            }
        }
        Ok(())
    }

    /// Locks the row of a hash. Commits the transaction first, if it holds that row, is full, or must wait.
    ///
    /// # Errors
    /// [`Error::Halted`]: a gleaner died, perhaps with the row locked.
    pub(super) fn lock_row(&mut self, engine: &Bullet, hash: u64) -> Result<usize, Error> {
        let row = engine.back.row(hash);
        if self.staged.len() >= few!(TOGETHER)
            || self.txn.room() < engine.geometry.words_a_key()
            || self.holds(row)
        {
            self.commit(engine);
        }
        if !engine.back.try_lock(row) {
            self.commit(engine);
            let mut backoff = Backoff::new();
            while !engine.back.try_lock(row) {
                engine.halted.check()?;
                backoff.wait();
            }
        }
        Ok(row)
    }

    /// Whether the row is locked for the transaction.
    fn holds(&self, row: usize) -> bool {
        self.staged.iter().any(|staged| staged.row == row)
    }

    /// Commits the staged changes; then the back has them.
    pub(super) fn commit(&mut self, engine: &Bullet) {
        let flushed = self.flushed.take();
        self.txn.commit(&mut self.lane, flushed);
        let mut more = 0;
        let mut staged = std::mem::take(&mut self.staged);
        for Staged {
            node,
            row,
            old,
            hint,
            more: one,
        } in staged.drain(..)
        {
            if let Some(node) = &node {
                engine.front.applied(node.at, hint);
            }
            engine.back.unlock(row);
            more += one;
            if let Some(old) = old {
                match engine.may_be_named(old.1) {
                    true => self.later.push(old),
                    false => self.objects.push(old),
                }
            }
            if let Some(node) = node.filter(|node| node.is_tombstone) {
                self.drop_tombstone(engine, &node);
            }
        }
        self.staged = staged;
        engine.back.objects.fetch_add(more, Ordering::Relaxed);
        engine.put_off(&mut self.later);
        self.give_back(engine);
    }

    /// Removes a node that is not needed any more, unless a session holds its stripe.
    pub(super) fn drop_tombstone(&mut self, engine: &Bullet, node: &Node) {
        let stripe = engine.stripe(node.hash);
        if !engine.stripes.try_lock(stripe, self.slot.number() as u16) {
            // A session is writing keys of the stripe, and holds it until it commits.
            let mut key = Vec::new();
            engine.front.key(node, &mut key);
            self.unburied.push((node.hash, key));
            return;
        }
        let mut key = std::mem::take(&mut self.key);
        let before = key.len();
        engine.front.key(node, &mut key);
        let (place, found) = engine.front.locate(node.hash, &key[before..]);
        if found.is_some_and(|found| found.at == node.at) {
            engine.front.remove(&place);
            self.nodes.push((node.at, node.bytes()));
            engine.front.nodes.fetch_sub(1, Ordering::Relaxed);
        }
        key.truncate(before);
        self.key = key;
        engine.stripes.unlock(stripe);
    }

    /// Retries the nodes whose stripe a session held.
    fn drop_tombstones_again(&mut self, engine: &Bullet) {
        for (hash, key) in std::mem::take(&mut self.unburied) {
            let found = engine.front.find(hash, &key);
            let is_dead = |node: &Node| {
                node.is_tombstone && engine.front.is_applied(node.at)
                    || node.version <= engine.floor()
            };
            if let Some(node) = found.filter(is_dead) {
                self.drop_tombstone(engine, &node);
            }
        }
    }

    /// Gives back retired memory that no reader can access any more, if there is enough of it.
    pub(super) fn give_back(&mut self, engine: &Bullet) {
        if self.objects.is_full() {
            let lane = &mut self.lane;
            self.objects.take(&engine.epochs, |(at, bytes)| {
                engine.back.heap.give_back(lane, at, bytes)
            });
        }
        if self.nodes.is_full() {
            self.nodes.take(&engine.epochs, |(at, bytes)| {
                engine.front.give_back(at, bytes)
            });
        }
    }

    /// As [`Gleaner::give_back`], however little there is.
    pub(super) fn give_back_all(&mut self, engine: &Bullet) {
        let lane = &mut self.lane;
        self.objects.take_now(&engine.epochs, |(at, bytes)| {
            engine.back.heap.give_back(lane, at, bytes)
        });
        self.nodes.take_now(&engine.epochs, |(at, bytes)| {
            engine.front.give_back(at, bytes)
        });
    }

    /// Moves up to `buckets` buckets of the back to its longer array, or begins such a move if the back needs
    /// one. `false`: there is nothing to do, or another thread is doing it.
    pub(super) fn grow_back(&mut self, engine: &Bullet, buckets: usize) -> Result<bool, Error> {
        let Some(_growing) = engine.growing.back.try_lock() else {
            return Ok(false);
        };
        let back = &engine.back;
        let Some((old, mut number)) = back.table.moving() else {
            if !back.is_crowded() {
                return Ok(false);
            }
            engine.afford(back.table.current().bytes() * 2)?;
            back.start_growth(&mut self.lane, &mut self.txn)?;
            return Ok(true);
        };
        for _ in 0..buckets {
            if number == 1 << old.depth() {
                back.finish_growth(&mut self.lane, &mut self.txn, old);
                self.objects.push((old.at(), old.bytes()));
                return Ok(true);
            }
            let row = back.row(number << (64 - old.depth()));
            if !back.try_lock(row) {
                return Ok(true);
            }
            let mut dropped = Vec::new();
            let mut edits = Edits {
                back,
                lane: &mut self.lane,
                txn: &mut self.txn,
                claim: &mut self.claim,
                flushed: &mut self.flushed,
            };
            let moved = back.move_bucket(&mut edits, number, &mut dropped);
            back.unlock(row);
            moved?;
            dropped
                .into_iter()
                .for_each(|line| self.objects.push((line, LINE)));
            number += 1;
        }
        self.give_back(engine);
        Ok(true)
    }
}

/// Whether to apply a node because of one of its key's records; `None`: because of any.
#[inline]
fn is_wanted(engine: &Bullet, record: Option<RecordAt>, node: &Node) -> bool {
    let says_all = !node.is_edit && !engine.system.applies_each();
    !engine.front.is_applied(node.at)
        && node.version > engine.floor()
        && record.is_none_or(|record| node.record == record.0 || !says_all)
}
