//! The write path of a session: from a change to a log record, and from the fence to the front.

use super::back_hint::BackHint;
use super::front::{Node, TOUCHED};
use super::layout::INLINE_MAX;
use super::layout::{ENTRY_HEAD, Keys, Named, Opcode, Operation, RecordAt, word_at, words_payload};
use super::overflow_record::write_overflow_record;
use super::session::{At, BulletSession};
use super::session::{PENDING_MAX, Pending};
use crate::engine::backend::{Backend, Change, Edit, Seen, Taken};
use crate::engine::counters::{bump, bump_signed};
use crate::error::Error;
use everdram_pm::Flushed;
use std::sync::atomic::Ordering;

/// A session wakes the background thread after this many new nodes: the front may need more buckets.
const NODES_A_LOOK: i64 = 1024;

impl BulletSession {
    /// Submits a write of a key whose stripe the caller holds; the session has a log with room. On an error
    /// it gives the stripe back.
    #[inline]
    pub(super) fn write(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<At>,
        change: Change<'_>,
    ) -> Result<(), Error> {
        let stripe = taken.stripe;
        if !self.engine.system.has_front() {
            return self.write_behind(taken, key, seen, change);
        }
        match self.prepare(taken, key, seen, change) {
            Ok(mut pending) => {
                let record = self.append();
                self.write_node(&mut pending, record, key, change.value());
                if self.engine.system.has_transaction() {
                    self.fence();
                    // From here on, readers of the back may see the record.
                    if !self.engine.durable_at_fence {
                        self.engine.stripes.set_stamp(stripe, &self.ordered);
                    }
                    if let Err(error) = self.enter(&pending.node, record, key, change.value()) {
                        self.give_back(stripe);
                        return Err(self.engine.halt(error));
                    }
                }
                self.pending.push(pending);
                if self.pending.len() >= PENDING_MAX {
                    self.commit_pending()?;
                }
                Ok(())
            }
            Err(error) => {
                self.forget_entry();
                self.give_back(stripe);
                Err(error)
            }
        }
    }

    /// Drops the entry under construction.
    pub(super) fn forget_entry(&mut self) {
        self.entry.clear();
        self.operations = 0;
    }

    /// Adds the operation of a write to the entry, and takes room for its node. Nothing is persistent or
    /// visible yet.
    #[inline]
    pub(super) fn prepare(
        &mut self,
        taken: Taken,
        key: &[u8],
        seen: &Seen<At>,
        change: Change<'_>,
    ) -> Result<Pending, Error> {
        let Taken { hash, stripe } = taken;
        debug_assert!(
            self.holds(stripe) && (self.group.is_some() || !self.engine.system.is_logged()),
            "a write without its key's stripe, or without a log"
        );
        assert!(
            seen.is_live || !matches!(change, Change::Edit { .. }),
            "an edit of a value that does not exist"
        );
        if seen.at.place.is_full() {
            self.spare_line()?;
        }
        let version = self.engine.stripes.next_version(stripe);
        let value = change.value();
        let expires_at_ms = change.expires_at_ms();
        let words: [u8; 16];
        let (opcode, payload) = match change {
            Change::Put { .. } => (Opcode::Put, value),
            Change::Remove => (Opcode::Remove, value),
            Change::Edit { edit, .. } => match edit {
                Edit::Append(suffix) => (Opcode::Append, suffix),
                Edit::SetWord { at, word } => {
                    words = words_payload([at, word]);
                    (Opcode::SetField, &words[..])
                }
                Edit::AddToWord { at, by } => {
                    words = words_payload([at, by]);
                    (Opcode::Increment, &words[..])
                }
            },
        };
        let is_tombstone = opcode == Opcode::Remove;
        let keys = match (seen.is_counted, is_tombstone) {
            (false, false) => Keys::More,
            (true, true) => Keys::Fewer,
            _ => Keys::Same,
        };
        let prev = RecordAt(seen.at.node.map_or(0, |node| node.record));
        let mut operation = Operation {
            version,
            opcode,
            keys,
            prev,
            expires_at_ms,
            key,
            payload,
        };
        let mut node = Node {
            at: 0,
            hash,
            version,
            expires_at_ms,
            key_bytes: key.len() as u32,
            value_bytes: value.len() as u32,
            record: 0,
            is_tombstone,
            is_edit: false,
            object: 0,
            hint: self.hint_of(seen),
            // A write counts as a use of the key.
            marks: match &seen.at.node {
                Some(old) => old.marks | TOUCHED,
                None => self.engine.front.marks_of(hash),
            },
        };
        // An edit is logged as such if the front has the value and the debt allows it. Otherwise the record
        // holds the whole value.
        if opcode.is_edit()
            && (self.engine.is_tight()
                || seen.at.node.is_none_or(|node| node.object != 0)
                || !self
                    .engine
                    .may_owe(node.object_bytes(), operation.bytes() as u64))
        {
            (operation.opcode, operation.payload) = (Opcode::Put, value);
        }
        // A state that is too long for the log or the front goes into the heap, and its record names it. In a
        // tight pool every put allocates its object now.
        let fits = (is_tombstone || !self.engine.is_tight())
            && value.len() <= INLINE_MAX
            && ENTRY_HEAD + operation.bytes() <= self.engine.logs.entry_most()
            && operation.payload.len() <= INLINE_MAX;
        let link;
        if !fits {
            let object = self.write_object(&node, key, value)?;
            node.object = object.at;
            link = object.to_payload();
            operation.opcode = Opcode::Link;
            operation.key = &[];
            operation.payload = &link;
        }
        node.is_edit = operation.opcode.is_edit();
        match self.engine.front.take(&mut self.claim, node.bytes()) {
            Ok(at) => node.at = at,
            Err(error) => {
                self.drop_object(&node);
                return Err(error);
            }
        }
        // The node's memory may have left the caches. It is written after the record.
        self.engine.front.prefetch_to_write(&node);
        self.add_operation(&operation);
        Ok(Pending {
            stripe,
            place: seen.at.place,
            node,
            old: seen.at.node,
            keys,
            is_new: !seen.is_live && !is_tombstone,
            written: None,
        })
    }

    /// The hint for the node that replaces what was seen.
    #[inline]
    fn hint_of(&self, seen: &Seen<At>) -> Option<BackHint> {
        let front = &self.engine.front;
        let old = seen.at.node.filter(|_| seen.is_counted)?;
        front.is_applied(old.at).then(|| front.hint(old.at))?
    }

    /// Writes the node of a prepared write, which no reader can find yet.
    #[inline]
    pub(super) fn write_node(
        &self,
        pending: &mut Pending,
        record: RecordAt,
        key: &[u8],
        value: &[u8],
    ) {
        pending.node.record = record.0;
        pending.written = self.flushed.as_ref().map(|_| self.lane.written());
        self.engine.front.write(&pending.node, key, value);
    }

    /// Reserves a line for a write of a batch: another write of the batch may take the vacant slot.
    pub(super) fn spare_line_for(&mut self, pending: &Pending) -> Result<(), Error> {
        match pending.old.is_none() && !pending.place.is_full() {
            true => self.spare_line(),
            false => Ok(()),
        }
    }

    /// Gives back the room of a prepared write that will not happen.
    #[cold]
    pub(super) fn abandon(&mut self, pending: &Pending) {
        self.engine
            .front
            .give_back(pending.node.at, pending.node.bytes());
        self.drop_object(&pending.node);
    }

    fn drop_object(&mut self, node: &Node) {
        let named = self.engine.reserve.linked.lock().remove(&node.object);
        if let Some(bytes) = named {
            // Without this fence, on files, the session's next fence would log the object's lines. Replay
            // would lay them over what another session has written there since.
            self.fence();
            self.engine
                .back
                .heap
                .give_back(&mut self.lane, node.object, bytes);
        }
    }

    /// Writes the object of a state that is too large for the log.
    #[cold]
    fn write_object(&mut self, node: &Node, key: &[u8], value: &[u8]) -> Result<Named, Error> {
        let head = super::front::head_of(node);
        self.engine.spare(head.bytes())?;
        let mut bytes = Vec::new();
        let (back, lane) = (&self.engine.back, &mut self.lane);
        let written = back.write(&head, key, value, lane, &mut self.heap_claim, &mut bytes);
        // Free lines of a chunk that an idle session claims are lost to other sessions.
        back.heap.let_go(&mut self.heap_claim);
        let (at, flushed) = written?;
        self.fence_with(flushed);
        self.engine.names(head.bytes());
        let named = self.engine.reserve.linked.lock().insert(at, head.bytes());
        assert!(
            named.is_none(),
            "an object is written over one that a log record names"
        );
        Ok(Named {
            at,
            bytes: head.bytes(),
            check: word_at(&bytes, 0),
        })
    }

    fn fence_with(&mut self, flushed: Flushed) {
        flushed.join(&mut self.flushed);
    }

    /// Adds an operation to the entry.
    #[inline]
    pub(super) fn add_operation(&mut self, operation: &Operation<'_>) {
        if !self.engine.system.is_logged() {
            return;
        }
        assert!(
            operation.has_fit_payload(),
            "a logged operation is one that recovery would refuse"
        );
        if self.entry.is_empty() {
            self.entry.extend_from_slice(&[0; ENTRY_HEAD]);
        }
        operation.write(&mut self.entry);
        self.operations += 1;
    }

    /// Bytes of the entry so far.
    pub(super) fn entry_bytes(&self) -> usize {
        self.entry.len()
    }

    /// Takes the operations out of the entry.
    pub(super) fn take_operations(&mut self) -> Vec<u8> {
        self.operations = 0;
        std::mem::take(&mut self.entry).split_off(ENTRY_HEAD)
    }

    /// Writes operations to an overflow record.
    pub(super) fn write_overflow_record(&mut self, operations: &[u8]) -> Result<Named, Error> {
        // Room for the overflow record, and for the objects that its operations become.
        self.engine.spare(2 * operations.len() as u64)?;
        let (heap, secret) = (&self.engine.back.heap, self.engine.pool.secret());
        let (lane, claim) = (&mut self.lane, &mut self.heap_claim);
        let written = write_overflow_record(heap, secret, lane, claim, operations);
        heap.let_go(claim);
        let (parcel, flushed) = written?;
        self.fence_with(flushed);
        let named = self
            .engine
            .reserve
            .linked
            .lock()
            .insert(parcel.at, parcel.bytes);
        assert!(
            named.is_none(),
            "an overflow record is written over an object that a log record names"
        );
        Ok(parcel)
    }

    /// Appends the entry to the session's log.
    #[inline]
    pub(super) fn append(&mut self) -> RecordAt {
        if !self.engine.system.is_logged() {
            return RecordAt::default();
        }
        let Some(group) = &mut self.group else {
            panic!("an entry without a log to append it to");
        };
        let (record, flushed) =
            self.engine
                .logs
                .append(&mut self.lane, group, &mut self.entry, self.operations);
        self.entry.clear();
        self.operations = 0;
        self.fence_with(flushed);
        record
    }

    /// Fences everything submitted at once, then publishes it in the front.
    #[inline]
    pub(super) fn commit_group(&mut self) -> Result<(), Error> {
        // Taken before the fence: if the session panics in it, its destructor must not publish unfenced
        // writes.
        let mut pending = std::mem::take(&mut self.pending);
        self.fence();
        let mut result = Ok(());
        for one in pending.drain(..) {
            if let Err(error) = self.publish(&one) {
                result = Err(self.engine.halt(error));
            }
            self.engine.stripes.release(one.stripe, &self.ordered);
        }
        self.pending = pending;
        self.end_group();
        self.drop_spare_lines();
        let (front, epochs) = (&self.engine.front, &self.engine.epochs);
        let is_exceeded = front.budget.is_exceeded();
        if self.nodes.is_full() {
            let free = |(at, bytes)| front.give_back(at, bytes);
            match is_exceeded {
                true => self.nodes.take_now(epochs, free),
                false => self.nodes.take(epochs, free),
            }
        }
        if is_exceeded {
            self.engine.help_evict(&self.slot);
        }
        result
    }

    /// Fences everything that was flushed.
    #[inline]
    pub(super) fn fence(&mut self) {
        if let Some(flushed) = self.flushed.take() {
            self.ordered = self.lane.fence(flushed);
        }
    }

    /// Gives back the log: the front shows all its records, so gleaners may apply them.
    #[inline]
    pub(super) fn end_group(&mut self) {
        if let Some(group) = self.group.take() {
            self.wanted = self.engine.logs.end(group);
        }
    }

    /// Publishes a fenced write; the session still holds its stripe.
    #[inline]
    pub(super) fn publish(&mut self, one: &Pending) -> Result<(), Error> {
        if let Some(written) = one.written {
            self.ordered.assert_covers(written);
        }
        debug_assert!(
            self.holds(one.stripe),
            "a session publishes a write without holding its stripe"
        );
        // A node from the back has the version that the pool says, so no assertion covers it.
        assert!(
            one.old
                .is_none_or(|old| old.record == 0 || old.version < one.node.version),
            "the version of a key decreases"
        );
        assert!(
            !one.place.is_full() || !self.spare.is_empty(),
            "a write is published in a full bucket without a reserved line"
        );
        let BulletSession {
            engine,
            claim,
            spare,
            nodes,
            core,
            ..
        } = self;
        if !engine.durable_at_fence {
            engine.stripes.set_stamp(one.stripe, &self.ordered);
        }
        let mut show = || engine.front.publish(&one.place, &one.node, spare, claim);
        match &engine.reader_locks {
            Some(reader_locks) => reader_locks.write(one.stripe, show),
            None => show(),
        }?;
        let counters = &engine.counters[usize::from(self.id)];
        let front = &engine.front_counters[usize::from(self.id)];
        match &one.old {
            Some(old) => nodes.push((old.at, old.bytes())),
            None => {
                bump_signed(&front.nodes, 1);
                if front.nodes.load(Ordering::Relaxed) % NODES_A_LOOK == 0 {
                    engine.background.wake();
                }
            }
        }
        if one.node.is_tombstone && !engine.system.is_logged() {
            // Without logs, no gleaner removes the tombstone.
            engine.front.remove(&one.place);
            nodes.push((one.node.at, one.node.bytes()));
            bump_signed(&front.nodes, -1);
        }
        core.made = one.is_new;
        match one.keys {
            Keys::More => bump_signed(&counters.keys, 1),
            Keys::Fewer => bump_signed(&counters.keys, -1),
            Keys::Same => {}
        }
        match one.node.is_tombstone {
            true => bump(&counters.deletes, 1),
            false => bump(&counters.puts, 1),
        }
        if one.node.expires_at_ms != 0 && !engine.expiries.load(Ordering::Relaxed) {
            engine.expiries.store(true, Ordering::Relaxed);
        }
        Ok(())
    }
}
