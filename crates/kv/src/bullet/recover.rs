//! From bytes to a running engine.
//!
//! The back is as its last transaction left it, and is not touched. What the logs hold goes into the front, and to the back later, with
//! the gleaners' other work (section 5): so recovery takes as long as the logs are full, however large the store is.
//!
//! Of a key's records the one with the highest LSN counts, whichever log it is in (B2). What is in the logs is all of some epochs and nothing of earlier
//! ones, so no record that is left is older than one that was reclaimed (B1). Records that only say what changed
//! are collected, and in a second pass laid over what they build on: a record of the logs, or the back's object, whose LSN says what it has (B4).
//!
//! A log ends where an entry does not verify. Everything fenced lies before that, unless it was damaged later; and then an entry behind it
//! says that more had been fenced, and recovery refuses.

use super::Bullet;
use super::back::corrupt;
use super::front::Node;
use super::glean::Sum;
use super::layout::{EntryHead, Named, ObjectHead, Opcode, Operation, RecordAt, word_at};
use super::ledger::Ledger;
use super::log::{Cursor, Next, are_sound, operations};
use super::parcel::read_parcel;
use super::session::INLINE_MAX;
use crate::broken::Hole;
use crate::error::Error;
use crate::heap::Claim;
use everdram_pm::{LINE, Lane};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

/// A record that says only what changed.
struct Edit {
    lsn: u64,
    opcode: Opcode,
    expires_at_ms: u64,
    payload: Vec<u8>,
    record: RecordAt,
}

/// What recovery found.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Summary {
    pub(super) records: u64,
    pub(super) microseconds: u64,
}

/// Recovery under way.
pub(super) struct Recovery<'a> {
    engine: &'a Bullet,
    lane: &'a mut Lane,
    claim: Option<Claim>,
    edits: HashMap<Vec<u8>, Vec<Edit>>,
    sum: Sum,
    records: u64,
    /// Bytes of what comes of records that say only what changed.
    owed: u64,
}

impl<'a> Recovery<'a> {
    pub(super) fn new(engine: &'a Bullet, lane: &'a mut Lane) -> Recovery<'a> {
        Recovery {
            engine,
            lane,
            claim: None,
            edits: HashMap::new(),
            sum: Sum::default(),
            records: 0,
            owed: 0,
        }
    }

    /// Brings what the logs hold into the front; returns how many records that were, and by how many keys the count of the
    /// ledger changes.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path; [`Error::NoSpace`]: DRAM.
    pub(super) fn run(
        mut self,
        ledger: &Ledger,
        progress: &dyn Fn(u64, u64),
    ) -> Result<(u64, i64), Error> {
        let engine = self.engine;
        let logs = engine.logs.count();
        for number in 0..logs {
            progress(number as u64, logs as u64);
            self.read_log(number, ledger.heads[number], ledger.epoch)?;
        }
        self.lay_edits()?;
        progress(logs as u64, logs as u64);
        let lsn_max = self.sum.lsn_max.max(ledger.lsn_max).max(engine.floor());
        engine.raise_clocks(lsn_max);
        engine.passed_lsn.store(lsn_max, Ordering::Relaxed);
        let incarnation = engine.pool.incarnation();
        engine
            .logs
            .set_epoch(((incarnation << 32) | 1).max(ledger.epoch + 2));
        engine.owes(self.owed);
        engine.front.let_go(&mut self.claim);
        Ok((self.records, self.sum.keys))
    }

    fn read_log(&mut self, number: usize, head: u64, reclaimed: u64) -> Result<(), Error> {
        let logs = &self.engine.logs;
        let limit = head + logs.log_bytes();
        let mut cursor = Cursor::new(number);
        let (mut position, mut epoch) = (head, reclaimed);
        while let Next::Entry(entry, bytes, next) = cursor.next(logs, position, limit) {
            let is_sound = entry.is_sound(position, self.engine.pool.incarnation())
                && are_sound(bytes, Some(entry.operations));
            if !is_sound {
                let at = logs.place(number, position);
                return Err(corrupt(at, "a log record says what cannot be"));
            }
            // A later life of the pool has later epochs, and so has what it wrote.
            let is_of_a_former_lap = entry.epoch < epoch && !logs.broken.is(Hole::B8);
            if is_of_a_former_lap || !self.is_there(bytes, entry.operations) {
                break;
            }
            let record = RecordAt::new(number, position);
            self.replay_all(bytes, entry.operations, record)?;
            (position, epoch) = (next, entry.epoch);
        }
        self.refuse_damage(number, position, limit)?;
        self.settle(number, head, position);
        if position < limit {
            self.end_log(number, position);
        }
        logs.restore(number, head, position);
        Ok(())
    }

    /// Makes durable what was found: a process that was killed may have left it in the caches, and it is shown from here on.
    fn settle(&mut self, number: usize, from: u64, to: u64) {
        let logs = &self.engine.logs;
        let mut position = from;
        while position < to {
            let bytes = logs.to_end(position).min(to - position);
            let found = self.lane.flush_found(logs.place(number, position), bytes);
            let _ordered = self.lane.fence(found);
            position += bytes;
        }
    }

    /// Makes sure that what comes behind the end of a log never counts: an entry that is torn, or names something torn, would, if something
    /// else came to lie there that makes it whole. Only the check goes, a word that is written wholly or not at all: zeros that are torn
    /// themselves could be just what the entry lacked.
    fn end_log(&mut self, number: usize, end: u64) {
        let at = self.engine.logs.place(number, end);
        if self.engine.pool.region().load_word(at) != 0 {
            let dirty = self.lane.store(at, &[0; 8]);
            let flushed = self.lane.flush(dirty);
            let _ordered = self.lane.fence(flushed);
        }
    }

    /// Whether what an entry's operations name in the heap is there, and whole: it was fenced together with the entry.
    fn is_there(&self, bytes: &[u8], count: u32) -> bool {
        let (pool, back) = (&self.engine.pool, &self.engine.back);
        operations(bytes, count).all(|operation| {
            let named = Named::read(operation.payload);
            match operation.opcode {
                Opcode::Link => back
                    .value_at(named.at, &mut Vec::new(), &mut Vec::new())
                    .is_ok_and(|head| head.bytes() == named.bytes && head.check == named.check),
                Opcode::Parcel => {
                    read_parcel(pool, named).is_ok_and(|parcel| self.is_there(&parcel, u32::MAX))
                }
                _ => true,
            }
        })
    }

    /// Refuses to start if an entry behind the end of a log says that the log went on.
    fn refuse_damage(&self, number: usize, end: u64, limit: u64) -> Result<(), Error> {
        let logs = &self.engine.logs;
        let mut cursor = Cursor::new(number);
        let mut position = end + LINE;
        while position < limit {
            let head = cursor.head(logs, position, limit);
            let claims = head.ordered > end && head.ordered <= position;
            if claims && matches!(cursor.next(logs, position, limit), Next::Entry(..)) {
                let at = logs.place(number, end);
                return Err(corrupt(at, "an acknowledged log record is damaged"));
            }
            position += LINE;
        }
        Ok(())
    }

    fn replay_all(&mut self, bytes: &[u8], count: u32, record: RecordAt) -> Result<(), Error> {
        for operation in operations(bytes, count) {
            self.sum.add(&operation);
            self.replay(&operation, record)?;
        }
        Ok(())
    }

    fn replay(&mut self, operation: &Operation<'_>, record: RecordAt) -> Result<(), Error> {
        let engine = self.engine;
        let named = Named::read(operation.payload);
        let (at, length) = (named.at, named.bytes);
        self.records += 1;
        match operation.opcode {
            Opcode::Clear => {
                engine.clear_up_to(operation.lsn);
                Ok(())
            }
            Opcode::Parcel => {
                self.adopt(at, length)?;
                engine.linked.lock().insert(at, length);
                let parcel = read_parcel(&engine.pool, named)?;
                self.replay_all(&parcel, u32::MAX, record)
            }
            Opcode::Link => {
                engine.names(length);
                if !engine.back.heap.is_published(at, length) {
                    self.adopt(at, length)?;
                    engine.linked.lock().insert(at, length);
                }
                let mut key = Vec::new();
                let head = engine.back.head(at, &mut key)?;
                if head.lsn != operation.lsn {
                    return Err(corrupt(at, "a log record names an object of another LSN"));
                }
                let node = Node {
                    object: at,
                    record: record.0,
                    ..node_of(&head)
                };
                self.show(node, &key, &[])
            }
            Opcode::Put | Opcode::Remove => {
                let node = Node {
                    hash: engine.hash(operation.key),
                    lsn: operation.lsn,
                    expires_at_ms: operation.expires_at_ms,
                    key_bytes: operation.key.len() as u32,
                    value_bytes: operation.payload.len() as u32,
                    record: record.0,
                    is_tombstone: operation.opcode == Opcode::Remove,
                    ..Node::default()
                };
                self.show(node, operation.key, operation.payload)
            }
            Opcode::Append | Opcode::Increment | Opcode::SetField => {
                let edits = self.edits.entry(operation.key.to_vec()).or_default();
                edits.push(Edit {
                    lsn: operation.lsn,
                    opcode: operation.opcode,
                    expires_at_ms: operation.expires_at_ms,
                    payload: operation.payload.to_vec(),
                    record,
                });
                Ok(())
            }
        }
    }

    fn adopt(&mut self, at: u64, bytes: u64) -> Result<(), Error> {
        let found = self.lane.flush_found(at, bytes);
        let _ordered = self.lane.fence(found);
        match self.engine.back.heap.adopt(at, bytes) {
            true => Ok(()),
            false => Err(corrupt(
                at,
                "a log record names what belongs to something else",
            )),
        }
    }

    /// Puts a state into the front, unless it has a newer one of the key.
    fn show(&mut self, mut node: Node, key: &[u8], value: &[u8]) -> Result<(), Error> {
        let engine = self.engine;
        // What does not count any more, nobody sweeps again.
        if node.lsn <= engine.floor() {
            return Ok(());
        }
        let (place, old) = engine.front.locate(node.hash, key);
        if old.is_some_and(|old| old.lsn >= node.lsn) && !engine.broken.is(Hole::B2) {
            return Ok(());
        }
        if node.is_tombstone && engine.broken.is(Hole::B5) {
            engine.front.remove(&place);
            return Ok(());
        }
        if node.expires_at_ms != 0 {
            engine.expiries.store(true, Ordering::Relaxed);
        }
        node.at = engine.front.take(&mut self.claim, node.bytes())?;
        engine.front.write(&node, key, value);
        engine
            .front
            .publish(&place, &node, &mut Vec::new(), &mut self.claim)?;
        match old {
            Some(old) => engine.front.give_back(old.at, old.bytes()),
            None => {
                let nodes = engine.front.nodes.fetch_add(1, Ordering::Relaxed);
                if nodes % 1024 == 1023 {
                    engine.grow_front_now(&mut self.claim)?;
                }
            }
        }
        Ok(())
    }

    /// The second pass: lays what changed over what it builds on, in the order of LSNs.
    fn lay_edits(&mut self) -> Result<(), Error> {
        let engine = self.engine;
        for (key, mut edits) in std::mem::take(&mut self.edits) {
            edits.sort_unstable_by_key(|edit| edit.lsn);
            let hash = engine.hash(&key);
            let mut value = Vec::new();
            let mut scratch = Vec::new();
            let shown = engine.front.find(hash, &key);
            let behind = engine.back.find(hash, &key, &mut scratch)?;
            let shown_lsn = shown.map_or(0, |node| node.lsn);
            let base = match behind {
                Some((at, head)) if head.lsn >= shown_lsn => {
                    engine.back.value(at, &head, &mut scratch, &mut value)?;
                    engine.has_up_to(head.lsn)
                }
                _ => {
                    if let Some(node) = &shown {
                        engine.value_of(node, &mut scratch, &mut value)?;
                    }
                    shown_lsn
                }
            };
            let left: Vec<&Edit> = edits
                .iter()
                .filter(|edit| edit.lsn > base.max(engine.floor()))
                .collect();
            let Some(newest) = left.last() else {
                // The back has all of it, and the front may show what some of it built on.
                if let (Some(_), Some((at, head))) = (shown, behind) {
                    let object = if value.len() > INLINE_MAX { at } else { 0 };
                    let node = Node {
                        object,
                        ..node_of(&head)
                    };
                    self.show(node, &key, &value)?;
                }
                continue;
            };
            if base <= engine.floor() {
                return Err(corrupt(0, "a log record changes a value that is not there"));
            }
            for edit in &left {
                lay(edit, &mut value)?;
            }
            // A log says only what changed of values that the front has.
            if value.len() > INLINE_MAX {
                return Err(corrupt(0, "log records make a value longer than they can"));
            }
            let node = Node {
                hash,
                lsn: newest.lsn,
                expires_at_ms: newest.expires_at_ms,
                key_bytes: key.len() as u32,
                value_bytes: value.len() as u32,
                record: newest.record.0,
                ..Node::default()
            };
            self.owed += node.object_bytes();
            self.show(node, &key, &value)?;
        }
        Ok(())
    }
}

/// Does to a value what a record says.
fn lay(edit: &Edit, value: &mut Vec<u8>) -> Result<(), Error> {
    if edit.opcode == Opcode::Append {
        value.extend_from_slice(&edit.payload);
        return Ok(());
    }
    let (at, operand) = (word_at(&edit.payload, 0), word_at(&edit.payload, 8));
    let place = usize::try_from(at)
        .ok()
        .and_then(|at| value.get_mut(at..)?.first_chunk_mut::<8>());
    let Some(place) = place else {
        return Err(corrupt(
            0,
            "a log record changes a word outside of its value",
        ));
    };
    let word = match edit.opcode {
        Opcode::Increment => u64::from_le_bytes(*place).wrapping_add(operand),
        _ => operand,
    };
    *place = word.to_le_bytes();
    Ok(())
}

/// What an object's head says, as a node.
pub(super) fn node_of(head: &ObjectHead) -> Node {
    Node {
        hash: head.hash,
        lsn: head.lsn,
        expires_at_ms: head.expires_at_ms,
        key_bytes: head.key_bytes,
        value_bytes: head.value_bytes,
        is_tombstone: head.is_tombstone,
        ..Node::default()
    }
}

impl Cursor {
    /// What would be the head of an entry at `position`.
    fn head(&mut self, logs: &super::log::Logs, position: u64, limit: u64) -> EntryHead {
        EntryHead::read(self.peek(logs, position, limit))
    }
}
