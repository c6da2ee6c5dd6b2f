//! Walking the keys by the index: iterations, random draws, and the sweep of expired keys.

use super::Dstore;
use super::layout::Slot;
use super::session::DstoreSession;
use crate::concurrency::seam::looks;
use crate::engine::Ticket;
use crate::engine::backend::Met;
use crate::error::Error;
use crate::index::Location;
use everdram_pm::lock::lock;
use std::ops::Bound;

/// Keys for which the order is locked at a time.
const IN_ORDER: usize = 128;

impl Dstore {
    /// The slot at a location of the index, and its key; `None` if the object was removed just now.
    fn slot_at(&self, location: Location, key: &mut Vec<u8>) -> Option<Slot> {
        let (slot, _) = self.memory.slot(location.get());
        looks!();
        key.clear();
        self.memory.key(&slot, key);
        (!slot.is_dead).then_some(slot)
    }
}

impl DstoreSession {
    /// Meets the keys of at least `count` entries from `cursor` on, or of all that are left. Returns the
    /// cursor to continue from.
    pub(super) fn walk_index(
        &mut self,
        cursor: u64,
        count: usize,
        met: &mut Met,
    ) -> Result<u64, Error> {
        let engine = &self.engine;
        let pin = self.epoch.pin();
        let mut key = Vec::new();
        Ok(engine.index.scan(cursor, count, &pin, &mut |location| {
            if let Some(slot) = engine.slot_at(location, &mut key)
                && engine.is_live(&slot)
            {
                met.push(&key, slot.length, slot.expires_at_ms);
            }
        }))
    }

    /// Meets up to `count` keys between two bounds, in order. Returns the last key it looked at, `None` at
    /// the end.
    pub(super) fn walk_order(
        &mut self,
        from: Bound<&[u8]>,
        to: Bound<&[u8]>,
        count: usize,
        met: &mut Met,
    ) -> Option<Vec<u8>> {
        let engine = &self.engine;
        // While it is pinned, no slot that it finds gets another key.
        let _pin = self.epoch.pin();
        let mut slots = Vec::new();
        let most = count.clamp(1, IN_ORDER);
        lock(&engine.order).from(&engine.memory, from, most, &mut slots);
        let is_end = slots.len() < most;
        let mut key = Vec::new();
        for number in slots {
            let (slot, _) = engine.memory.slot(number);
            looks!();
            key.clear();
            engine.memory.key(&slot, &mut key);
            let is_beyond = match to {
                Bound::Unbounded => false,
                Bound::Included(to) => key.as_slice() > to,
                Bound::Excluded(to) => key.as_slice() >= to,
            };
            if is_beyond {
                return None;
            }
            if engine.is_live(&slot) {
                met.push(&key, slot.length, slot.expires_at_ms);
            }
        }
        (!is_end).then_some(key)
    }

    /// Draws a live key at random from the index; `false` if a few draws met none.
    pub(super) fn draw_key(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        for _ in 0..64 {
            let engine = &self.engine;
            let pin = self.epoch.pin();
            let Some(location) = engine.index.random(rand::random(), &pin) else {
                break;
            };
            let slot = engine.slot_at(location, into);
            if !slot.is_some_and(|slot| engine.is_live(&slot)) {
                continue;
            }
            let stamp = engine.stripes.stamp(engine.stripes.of(engine.hash(into)));
            drop(pin);
            self.engine.pass_publications()?;
            self.core.last_read = Ticket(stamp);
            return Ok(true);
        }
        into.clear();
        Ok(false)
    }

    /// Collects expired keys among the next `count`; returns the cursor to continue from (0 = from the
    /// start).
    pub(super) fn expired_keys(
        &mut self,
        cursor: u64,
        count: usize,
        expired: &mut Vec<Vec<u8>>,
    ) -> u64 {
        let engine = &self.engine;
        let pin = self.epoch.pin();
        let mut key = Vec::new();
        engine.index.scan(cursor, count, &pin, &mut |location| {
            if let Some(slot) = engine.slot_at(location, &mut key)
                && engine.is_expired(slot.expires_at_ms)
            {
                expired.push(key.clone());
            }
        })
    }
}
