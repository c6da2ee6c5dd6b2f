//! The front as a part of the data: what comes into it from the back, and what leaves it.
//!
//! With a budget ([`super::budget`]) the front is a cache of the back, but for the nodes whose state the back
//! does not have yet. Those are pinned (B7): nobody looks behind a node, so nobody sees an older state than
//! the newest. A node may leave once its hint says that it is applied, removals as well. Whoever misses it
//! from then on finds its state in the back, with the same version.
//!
//! # Who leaves
//! The rule of S3-FIFO, with a hand that goes round the table in the order of hashes, which is random,
//! instead of queues. A node begins *on trial*. If it is read again before the hand comes by, it is *kept*;
//! if not, it is evicted. While at least a tenth of the nodes are on trial, only those are evicted; below
//! that, the hand also evicts kept nodes that were not read since its last round. So a walk over all keys,
//! once each, only passes through the tenth that is on trial. A key that was evicted not long ago and is read
//! again comes back as kept ([`crate::engine::ghosts`]), so a working set that does not fit into that tenth
//! finds its way in.
//!
//! Why not a cache from a crate: gets take no lock here and are protected by our epochs, nodes lie in our
//! table, and what may leave is for gleaners to say. A crate would have a second table with locks of its own,
//! and would have to be told of each get. Here a get tests one bit of a line that it has read anyway, and
//! sets it if it is clear: a node that is asked for all the time is only read.
//!
//! # Why this is safe
//! - A node leaves with its row held, as every change of a bucket: no writer is looking at it, and it is
//!   still the one that was judged.
//! - Its memory is used again when everybody has unpinned who could have found it. Gleaners are pinned as
//!   long as they refer to nodes.
//! - The front ceases to be complete before the first node leaves. Whoever sees the vacant slot sees that,
//!   too.
//! - What is filled in is what the back had while no key of the row was written: the row's clock says so,
//!   with the row held. If the clock stood still, the back's state is the newest, since the front had nothing
//!   of the key that was not applied.

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

/// Buckets of a piece of the table, 2 to the power of this: what the hand passes at once.
const PIECE_DEPTH: u32 = 6;
/// Pieces that the background thread lets the hand pass before it does something else.
const PIECES: usize = 32;
/// One byte in so many is on trial, at least, before a kept node goes.
const ON_TRIAL_ONE_IN: u64 = 10;
/// If fewer than one node in so many leaves, sessions do not help: most of what is there may not leave.
const WORTH_ONE_IN: usize = 16;

/// What became of a piece.
#[derive(Clone, Copy, Debug, Default)]
struct Passed {
    nodes: usize,
    evicted: usize,
}

impl Bullet {
    /// Puts what was found behind into the front, unless the key's row is being written or was written since
    /// its clock showed `clock`, or there is no room. `value`: as far as it was read. One that stays in the
    /// pool, since it is long, is not looked at; a key whose short value was not read stays behind, too.
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
            // Whether there is room is for no second look to say: there may be some by now.
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
            // Without memory for it, it stays where it is.
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

    /// Whether a node may leave the front: the back has its state, or it does not count any more, and nothing
    /// behind it does.
    fn may_leave(&self, node: &Node) -> bool {
        self.front.is_applied(node.at) || node.version <= self.floor()
    }

    /// Evicts some, for a session that is about to use more; it holds nothing.
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

    /// Lets the hand go on until the front is below its low mark, or for a while. `true`: something left.
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

    /// Gives back what was evicted, as far as nobody can be looking at it; finds out who is, if `now` is set.
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

    /// Where the nodes from hash `from` to `end` are; they are on their way to the caches.
    fn places(&self, from: u64, end: u64) -> Vec<u64> {
        let (mut places, mut at) = (Vec::new(), from);
        loop {
            at = self.front.gather(at, &mut places);
            if at == 0 || at.wrapping_sub(1) >= end.wrapping_sub(1) {
                return places;
            }
        }
    }

    /// Who of a piece leaves, as far as need be; the others are told that the hand came by.
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

    /// Takes a node out of the table, unless its row is being written or it has gone already; under a pin
    /// from before it was found.
    fn evict(&self, slot: &Slot, node: &Node) -> bool {
        let stripe = self.stripe(node.hash);
        if !self.stripes.try_lock(stripe, slot.number() as u16) {
            return false;
        }
        let place = self.front.place_of(node);
        debug_assert!(
            place.is_none() || self.may_leave(node),
            "a node leaves whose state the back does not have"
        );
        if let Some(place) = &place {
            // Before anybody can miss it.
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

    /// Somebody asks whether a key is there while the budget is exceeded, so the value is not read; then
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
