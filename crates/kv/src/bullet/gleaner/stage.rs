//! Stages the change of one key's object in a gleaner's transaction.

use super::Gleaner;
use crate::bullet::Bullet;
use crate::bullet::back::Edits;
use crate::bullet::back_hint::BackHint;
use crate::bullet::front::Node;
use crate::bullet::front::head_of;
use crate::bullet::layout::ObjectHead;
use crate::bullet::table::{Place, slot_word};
use crate::error::Error;

/// A key whose object is being replaced.
pub(in crate::bullet) struct Staged {
    /// The node whose state the key gets; `None`: the state has another source, or the key is removed.
    pub(in crate::bullet) node: Option<Node>,
    pub(in crate::bullet) row: usize,
    /// The object that is replaced: offset and bytes.
    pub(in crate::bullet) old: Option<(u64, u64)>,
    /// The key's new place.
    pub(in crate::bullet) hint: Option<BackHint>,
    /// Change of the number of objects in the table.
    pub(in crate::bullet) more: i64,
}

/// A key's new state.
pub(in crate::bullet) struct State<'a> {
    pub(in crate::bullet) head: ObjectHead,
    pub(in crate::bullet) value: Value<'a>,
    /// The node whose state it is.
    node: Option<Node>,
    known: Option<BackHint>,
}

/// Where a value is.
#[derive(Clone, Copy)]
pub(in crate::bullet) enum Value<'a> {
    Here(&'a [u8]),
    /// In the front.
    Node(Node),
    /// In an object, which itself goes into the table.
    Object(u64),
}

impl<'a> State<'a> {
    /// The state of a node. The caller holds the row of the back.
    pub(in crate::bullet) fn of_node(engine: &Bullet, node: &Node) -> State<'static> {
        State {
            head: ObjectHead {
                has_lentry: engine.system.has_transaction() && node.object == 0,
                ..head_of(node)
            },
            value: match node.object {
                0 => Value::Node(*node),
                at => Value::Object(at),
            },
            node: Some(*node),
            known: engine.front.hint(node.at),
        }
    }

    /// The state of a log record or a direct write.
    pub(in crate::bullet) fn of_value(head: ObjectHead, value: &'a [u8]) -> State<'a> {
        State {
            head,
            value: Value::Here(value),
            node: None,
            known: None,
        }
    }
}

impl Bullet {
    /// Prefetches the memory that staging a node will write, if the node has a hint; returns the slot.
    #[inline]
    pub(in crate::bullet) fn prefetch_behind(&self, node: &Node) -> Option<u64> {
        let hint = self.front.hint(node.at)?;
        self.back.heap.prefetch(hint.object, hint.bytes());
        Some(hint.slot)
    }
}

impl Gleaner {
    /// Takes a key's object out of the table if its version is `floor` or less.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(in crate::bullet) fn remove_object(
        &mut self,
        engine: &Bullet,
        hash: u64,
        key: &[u8],
        floor: u64,
    ) -> Result<(), Error> {
        let row = self.lock_row(engine, hash)?;
        let located = engine.back.locate(hash, key, &mut self.bytes);
        let (place, head) = located.inspect_err(|_| engine.back.unlock(row))?;
        let Some(head) = head.filter(|head| head.version <= floor) else {
            engine.back.unlock(row);
            return Ok(());
        };
        engine
            .back
            .heap
            .retract(&mut self.txn, place.object, head.bytes());
        engine.back.change(&mut self.txn, place.slot, 0);
        self.staged.push(Staged {
            node: None,
            row,
            old: Some((place.object, head.bytes())),
            hint: None,
            more: -1,
        });
        Ok(())
    }

    /// Stages the change of the key's object to a state; the caller holds the row. `false`: the object has
    /// that state, or a newer one.
    pub(in crate::bullet) fn stage(
        &mut self,
        engine: &Bullet,
        state: &State<'_>,
        key: &[u8],
        row: usize,
    ) -> Result<bool, Error> {
        let (back, head) = (&engine.back, &state.head);
        assert!(
            row == back.row(head.hash) && back.is_locked(row) && !self.holds(row),
            "a key is staged without a row locked for it alone"
        );
        let depth = back.table.depth(head.hash);
        let known = state.known.filter(|known| known.depth == depth);
        let (place, old) = match known.filter(|known| back.has(head.hash, known)) {
            Some(known) => (
                Place::known(known.slot, known.object),
                Some((known.object, known.bytes())),
            ),
            None => {
                let (place, old) = back.locate(head.hash, key, &mut self.bytes)?;
                if old.is_some_and(|old| old.version >= head.version) {
                    return Ok(false);
                }
                (place, old.map(|old| (place.object, old.bytes())))
            }
        };
        let named = match state.value {
            Value::Object(at) => match engine.reserve.linked.lock().remove(&at) {
                Some(bytes) => Some((at, bytes)),
                // The store was cleared since the caller looked, and the gleaner of the record has given the
                // object up.
                None => return Ok(false),
            },
            Value::Here(_) | Value::Node(_) => None,
        };
        let hint = match head.is_tombstone {
            true => {
                if old.is_some() {
                    back.change(&mut self.txn, place.slot, 0);
                }
                self.later.extend(named);
                None
            }
            false => {
                let staged = self.stage_value(engine, state, key, &place, depth);
                if staged.is_err() {
                    let mut linked = engine.reserve.linked.lock();
                    match head.version <= engine.floor() {
                        // Meanwhile the gleaner of its record may have looked for it here and missed it.
                        true => self.later.extend(named),
                        false => linked.extend(named),
                    }
                }
                staged?
            }
        };
        if let Some((at, bytes)) = old {
            back.heap.retract(&mut self.txn, at, bytes);
        }
        self.staged.push(Staged {
            node: state.node,
            row,
            old,
            hint,
            more: i64::from(!head.is_tombstone) - i64::from(old.is_some()),
        });
        Ok(true)
    }

    /// Stages the new object and its slot. Steps that can fail come first: the transaction cannot undo a
    /// staged change.
    fn stage_value(
        &mut self,
        engine: &Bullet,
        state: &State<'_>,
        key: &[u8],
        place: &Place,
        depth: u32,
    ) -> Result<Option<BackHint>, Error> {
        let (back, head) = (&engine.back, &state.head);
        let (at, is_new) = match state.value {
            Value::Object(at) => (at, false),
            Value::Here(value) => (self.write(engine, head, key, value)?, true),
            Value::Node(node) => {
                let mut value = std::mem::take(&mut self.value);
                value.clear();
                engine.front.value(&node, &mut value);
                let written = self.write(engine, head, key, &value);
                self.value = value;
                (written?, true)
            }
        };
        let mut edits = Edits {
            back,
            lane: &mut self.lane,
            txn: &mut self.txn,
            claim: &mut self.claim,
            flushed: &mut self.flushed,
        };
        let slot = match place.put(&mut edits, slot_word(head.hash, at)) {
            Ok(slot) => slot,
            Err(error) => {
                if is_new {
                    edits.fence();
                    back.heap.give_back(&mut self.lane, at, head.bytes());
                }
                return Err(error);
            }
        };
        back.heap.publish(&mut self.txn, at, head.bytes());
        Ok(BackHint::new(depth, slot, at, head.bytes()))
    }

    pub(in crate::bullet) fn write(
        &mut self,
        engine: &Bullet,
        head: &ObjectHead,
        key: &[u8],
        value: &[u8],
    ) -> Result<u64, Error> {
        let (lane, claim, bytes) = (&mut self.lane, &mut self.claim, &mut self.bytes);
        let (at, flushed) = engine.back.write(head, key, value, lane, claim, bytes)?;
        flushed.join(&mut self.flushed);
        Ok(at)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bullet::layout::INLINE_MAX;
    use crate::bullet::session::BulletSession;
    use crate::engine::{Engine, EngineSession};
    use std::sync::Arc;

    /// One gleaner reads a node. The store is cleared, and another gleaner gleans the node's record and gives
    /// its object up. Then the first one goes on.
    #[test]
    fn an_object_that_was_given_up_does_not_get_into_the_table() {
        let engine = Bullet::in_memory(None);
        let mut session = BulletSession::new(Arc::clone(&engine)).unwrap();
        session.put(b"key", &[1; INLINE_MAX + 1], 0).unwrap();
        let _ = session.commit().unwrap();
        let mut gleaner = engine.take_gleaner().unwrap();
        gleaner.slot.hold();
        let hash = engine.hash(b"key");
        let node = engine.front.find(hash, b"key").unwrap();
        let row = gleaner.lock_row(&engine, hash).unwrap();

        let _ = session.clear().unwrap();
        let mut other = engine.take_gleaner().unwrap();
        while !engine.is_tidy() {
            engine.step(&mut other, true).unwrap();
        }

        let state = State::of_node(&engine, &node);
        assert!(!gleaner.stage(&engine, &state, b"key", row).unwrap());
        engine.back.unlock(row);
        gleaner.commit(&engine);
        gleaner.slot.unhold();
        engine.put_back(gleaner);
        engine.put_back(other);
        engine.give_back_all();
        session.put(b"key", &[2; INLINE_MAX + 1], 0).unwrap();
        let _ = session.commit().unwrap();
        engine.glean_all().unwrap();
        assert_eq!(engine.check().unwrap().findings, []);
    }
}
