//! The front as a cache: how nodes come into it from the back, and which leave it.
//!
//! With a budget ([`super::budget`]) the front is a cache of the back, except for nodes that are not applied.
//! Those are pinned (B7): without them, a reader would find an older state in the back. A node, even a
//! tombstone, may leave once its hint says that it is applied. A reader that misses it then finds its state
//! in the back, with the same version.
//!
//! # Which nodes leave
//! The rule is S3-FIFO's, but with a hand that goes round the table in the order of hashes, which is random,
//! instead of queues. A node begins *on trial*. If it is read again before the hand comes by, it is *kept*;
//! if not, it is evicted. While at least a tenth of the nodes are on trial, only those are evicted. Below
//! that, the hand also evicts kept nodes that were not read since its last round. So a single walk over all
//! keys passes only through the tenth that is on trial. A recently evicted key that is read again comes back
//! as kept ([`crate::engine::ghosts`]), so a working set larger than that tenth gets in.
//!
//! Why not a cache from a crate? It would add a second table with its own locks, and each get would have to
//! report to it. Here gets take no lock and are protected by our epochs, and gleaners decide which nodes may
//! leave. A get tests one bit of a line that it has read anyway, and sets it only if it is clear.
//!
//! # Why this is safe
//! - Eviction holds the node's row, like every change of a bucket. So no writer is using the node, and it is
//!   still the one that was judged.
//! - Its memory is reused once every session that could have found it has unpinned. Gleaners stay pinned
//!   while they refer to nodes.
//! - The front is marked incomplete before the first node leaves. A reader that sees the vacant slot also
//!   sees the mark.
//! - A fill takes a state that the back had while no session wrote the row: with the row held, its clock has
//!   not moved. So the state is the newest: the front had no unapplied node of the key.

use super::budget::lines_of;
use super::node_of;
use super::{KEPT, Node, TOUCHED};
use crate::bullet::Bullet;
use crate::bullet::layout::INLINE_MAX;
use crate::bullet::layout::ObjectHead;
use crate::concurrency::epoch::Slot;
use crate::engine::counters::{bump, bump_signed};
use crate::heap::Claim;
use std::sync::atomic::Ordering;

/// The hand passes a piece of the table at once: 2 to the power of this many buckets.
const PIECE_DEPTH: u32 = 6;
/// Pieces that the hand passes in one round of the background thread.
const PIECES: usize = 32;
/// A kept node leaves only while less than one byte in this many is on trial.
const ON_TRIAL_ONE_IN: u64 = 10;
/// Sessions stop helping when at most one node in this many leaves: most nodes are pinned.
const WORTH_ONE_IN: usize = 16;

/// What became of a piece.
#[derive(Clone, Copy, Debug, Default)]
struct Passed {
    nodes: usize,
    evicted: usize,
}

impl Bullet {
    /// Puts an object of the back into the front, unless a session is writing the key's row or has written it
    /// since `clock`, or there is no room. `value` is `None` if it was not read: then a short value stays in
    /// the back. A long value always stays in the pool, and `value` is ignored.
    #[expect(
        clippy::too_many_arguments,
        reason = "one caller, which names them all"
    )]
    pub(in crate::bullet) fn fill(
        &self,
        slot: &Slot,
        claim: &mut Option<Claim>,
        clock: u64,
        at: u64,
        head: &ObjectHead,
        key: &[u8],
        value: Option<&[u8]>,
    ) {
        let is_long = head.value_bytes as usize > INLINE_MAX;
        let value = match value {
            Some(value) => value,
            None if is_long => &[],
            // A second check of the budget would not do: there may be room by now, and still no value.
            None => return,
        };
        assert!(is_long || value.len() == head.value_bytes as usize);
        let stripe = self.stripe(head.hash);
        if self.read_only
            || self.front.budget.is_exceeded()
            || !self.stripes.try_lock(stripe, slot.number() as u16)
        {
            return;
        }
        let (place, node) = self.front.locate(head.hash, key);
        if node.is_none() && self.stripes.version(stripe) == clock && head.version > self.floor() {
            let mut node = Node {
                object: if is_long { at } else { 0 },
                marks: self.front.marks_of(head.hash),
                ..node_of(head)
            };
            // Without memory for a node, the key stays in the back alone.
            if let Ok(room) = self.front.take(claim, node.bytes()) {
                node.at = room;
                self.front.write(&node, key, value);
                match self.front.publish(&place, &node, &mut Vec::new(), claim) {
                    Ok(()) => {
                        let counters = &self.front_counters[slot.number()];
                        bump_signed(&counters.nodes, 1);
                        bump(&counters.filled, 1);
                    }
                    Err(_) => self.front.give_back(node.at, node.bytes()),
                }
            }
        }
        self.stripes.unlock(stripe);
    }

    /// Whether a node may leave the front: the back has its state, or neither it nor anything older of its
    /// key counts.
    fn may_leave(&self, node: &Node) -> bool {
        self.front.is_applied(node.at) || node.version <= self.floor()
    }

    /// Evicts some nodes, for a session that found the budget exceeded; it holds nothing.
    #[cold]
    pub(in crate::bullet) fn help_evict(&self, slot: &Slot) {
        let budget = &self.front.budget;
        if budget.is_stalled() {
            return;
        }
        let passed = self.pass_piece(slot);
        if passed.evicted * WORTH_ONE_IN <= passed.nodes {
            budget.set_stalled(true);
            self.background.wake();
        }
        self.free_evicted(false);
    }

    /// Moves the hand until the front is below its low mark, by at most [`PIECES`]. `true`: a node left.
    pub(in crate::bullet) fn keep_budget(&self, slot: &Slot) -> bool {
        let (front, budget) = (&self.front, &self.front.budget);
        self.free_evicted(true);
        if budget.is_due(front.held()) {
            front.weigh();
        }
        let mut evicted = 0;
        for _ in 0..PIECES {
            if budget.excess() <= 0 {
                break;
            }
            evicted += self.pass_piece(slot).evicted;
        }
        budget.set_stalled(false);
        evicted > 0
    }

    /// Gives back evicted nodes that no reader can access any more. With `now`, looks for the readers first.
    pub(in crate::bullet) fn free_evicted(&self, now: bool) {
        self.front.budget.free(|evicted| {
            let mut freed = 0;
            let free = |(at, bytes)| {
                freed += lines_of(bytes);
                self.front.give_back(at, bytes);
            };
            match now {
                true => evicted.take_now(&self.epochs, free),
                false => evicted.take(&self.epochs, free),
            }
            freed
        });
    }

    /// The hand passes the next piece of the table.
    fn pass_piece(&self, slot: &Slot) -> Passed {
        let _pin = slot.pin();
        let depth = self.front.table.current().depth();
        let piece_depth = depth.saturating_sub(PIECE_DEPTH);
        let number = self.front.budget.next_piece(1 << piece_depth);
        let first = |number: u64| number.checked_shl(64 - piece_depth).unwrap_or(0);
        let places = self.places(first(number), first(number + 1));
        let nodes = places.iter().map(|at| self.front.node(*at));
        let clean: Vec<Node> = nodes.filter(|node| self.may_leave(node)).collect();
        let mut evicted = Vec::new();
        for node in self.leaving(&clean) {
            if self.evict(slot, &node) {
                evicted.push((node.at, node.bytes()));
            }
        }
        let counters = &self.front_counters[slot.number()];
        bump(&counters.evicted, evicted.len() as u64);
        bump_signed(&counters.nodes, -(evicted.len() as i64));
        if !evicted.is_empty() {
            self.front.budget.evicted(&evicted);
        }
        Passed {
            nodes: places.len(),
            evicted: evicted.len(),
        }
    }

    /// Offsets of the nodes from hash `from` to `end`, which it prefetches.
    fn places(&self, from: u64, end: u64) -> Vec<u64> {
        let (mut places, mut at) = (Vec::new(), from);
        loop {
            at = self.front.gather(at, &mut places);
            if at == 0 || at.wrapping_sub(1) >= end.wrapping_sub(1) {
                return places;
            }
        }
    }

    /// Chooses the nodes of a piece that leave, as far as the budget needs, and updates the marks of others.
    fn leaving(&self, clean: &[Node]) -> Vec<Node> {
        let weight = |node: &Node| lines_of(node.bytes());
        let all: u64 = clean.iter().map(weight).sum();
        let kept = clean.iter().filter(|node| node.marks & KEPT != 0);
        let mut on_trial = all - kept.map(weight).sum::<u64>();
        let mut wanted = self.front.budget.excess();
        let mut leaving = Vec::new();
        // Those on trial first.
        let is_kept = |node: &&Node| node.marks & KEPT != 0;
        for node in clean.iter().filter(|node| !is_kept(node)) {
            if node.marks & TOUCHED != 0 && !node.is_tombstone {
                self.front.mark(node.at, KEPT, TOUCHED);
                on_trial -= weight(node);
            } else if wanted > 0 {
                wanted -= weight(node) as i64;
                leaving.push(*node);
            }
        }
        for node in clean.iter().filter(is_kept) {
            if wanted <= 0 || on_trial >= all / ON_TRIAL_ONE_IN {
                break;
            }
            if node.marks & TOUCHED != 0 && !node.is_tombstone {
                self.front.mark(node.at, 0, TOUCHED);
            } else {
                wanted -= weight(node) as i64;
                on_trial += weight(node);
                leaving.push(*node);
            }
        }
        leaving
    }

    /// Takes a node out of the table, unless a session is writing its row or the node has left already. The
    /// caller has been pinned since before it found the node.
    fn evict(&self, slot: &Slot, node: &Node) -> bool {
        let stripe = self.stripe(node.hash);
        if !self.stripes.try_lock(stripe, slot.number() as u16) {
            return false;
        }
        let place = self.front.place_of(node);
        debug_assert!(
            place.is_none() || self.may_leave(node),
            "a node leaves the front before it is applied"
        );
        if let Some(place) = &place {
            // Before any reader can miss the node.
            if self.is_complete() {
                self.complete.store(false, Ordering::Release);
            }
            self.front.remove(place);
            self.front.ghosts.add(node.hash);
        }
        self.stripes.unlock(stripe);
        place.is_some()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bullet::session::BulletSession;
    use crate::engine::{Engine, EngineSession};
    use std::sync::Arc;

    /// A session asks whether a key exists while the budget is exceeded, so it does not read the value. Then
    /// others evict, and there is room.
    #[test]
    fn a_value_that_was_not_read_is_not_kept() {
        let engine = Bullet::in_memory(Some(1));
        let mut session = BulletSession::new(Arc::clone(&engine)).unwrap();
        session.put(b"key", b"value", 0).unwrap();
        let _ = session.commit().unwrap();
        engine.glean_all().unwrap();
        let hash = engine.hash(b"key");
        while engine.front.find(hash, b"key").is_some() {
            engine.front.weigh();
            engine.keep_budget(&session.slot);
        }
        let (at, head) = engine
            .back
            .find(hash, b"key", &mut Vec::new())
            .unwrap()
            .unwrap();
        let clock = engine.stripes.version(engine.stripe(hash));
        engine.front.budget.weighed(0);
        assert!(!engine.front.budget.is_exceeded());
        for value in [None, Some(&b"value"[..])] {
            engine.fill(&session.slot, &mut None, clock, at, &head, b"key", value);
            assert_eq!(engine.front.find(hash, b"key").is_some(), value.is_some());
            let mut got = Vec::new();
            assert!(session.get(b"key", &mut got).unwrap().is_some());
            assert_eq!(got, b"value");
        }
        assert_eq!(engine.check().unwrap().findings, []);
    }
}
