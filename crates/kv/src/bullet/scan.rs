//! Walking over all keys: by hash, a piece of both tables at a time.
//!
//! A piece is a range of hashes that is a whole bucket of the table with the shorter array, so it is whole
//! buckets of both. A cursor is the first hash of a piece; buckets are halved when a table grows, and never
//! anything else, so a cursor stays good.

use super::Bullet;
use super::front::Node;
use super::session::BulletSession;
use crate::concurrency::epoch::Slot;
use crate::concurrency::seam::looks;
use crate::engine::seen::Met;
use crate::engine::{Engine, Visit};
use crate::error::Error;
use std::collections::BTreeSet;
use std::sync::atomic::{Ordering, fence};

/// What a walk shows of a key.
pub(super) struct Shown<'a> {
    pub(super) key: &'a [u8],
    pub(super) value_bytes: u32,
    pub(super) expires_at_ms: u64,
}

/// The last hash before `end`, where a piece ends: the end of all is 0.
fn last(end: u64) -> u64 {
    end.wrapping_sub(1)
}

impl Bullet {
    /// Where the piece at `cursor` ends: the first hash of the next one; 0 = there is none.
    pub(super) fn piece_end(&self, cursor: u64) -> u64 {
        let (front, back) = (self.front.table.next(cursor), self.back.table.next(cursor));
        last(front).max(last(back)).wrapping_add(1)
    }

    /// Calls `each` with the nodes of a piece; under a pin.
    pub(super) fn front_piece(&self, from: u64, end: u64, mut each: impl FnMut(Node)) {
        let mut at = from;
        loop {
            at = self.front.visit(at, &mut each);
            if at == 0 || last(at) >= last(end) {
                return;
            }
        }
    }

    /// Calls `each` with the offsets of the objects of a piece; under a pin.
    ///
    /// # Errors
    /// [`Error::Corrupt`], without the path.
    pub(super) fn back_piece(
        &self,
        from: u64,
        end: u64,
        mut each: impl FnMut(u64),
    ) -> Result<(), Error> {
        let mut at = from;
        loop {
            at = match self.back.visit(at, &mut each) {
                Ok(next) => next,
                Err(error) => {
                    self.pass_over(error)?;
                    self.back.table.next(at)
                }
            };
            if at == 0 || last(at) >= last(end) {
                return Ok(());
            }
        }
    }

    /// Shows the keys of the piece at `cursor`, expired ones if `expired` is set, live ones otherwise.
    /// Returns the first hash of the next piece, 0 if there is none.
    pub(super) fn walk(
        &self,
        slot: &Slot,
        cursor: u64,
        expired: bool,
        show: &mut dyn FnMut(Shown<'_>),
    ) -> Result<u64, Error> {
        let _pin = slot.pin();
        let is_wanted = |node: &Node| match expired {
            false => self.is_live(node),
            true => self.counts(node) && self.is_expired(node.expires_at_ms),
        };
        let end = self.piece_end(cursor);
        let is_inside = |hash: u64| hash >= cursor && hash <= last(end);
        let mut seen = BTreeSet::new();
        let mut key = Vec::new();
        self.front_piece(cursor, end, |node| {
            if !is_inside(node.hash) || !is_wanted(&node) {
                return;
            }
            key.clear();
            self.front.key(&node, &mut key);
            show(Shown {
                key: &key,
                value_bytes: node.value_bytes,
                expires_at_ms: node.expires_at_ms,
            });
            // What is complete now need not be so any more when the back is to be looked at.
            if !self.is_complete() || self.front.budget.is_set() {
                seen.insert(key.clone());
            }
        });
        if self.is_complete() {
            return Ok(end);
        }
        let mut objects = Vec::new();
        self.back_piece(cursor, end, |object| objects.push(object))?;
        let mut bytes = Vec::new();
        for object in objects {
            key.clear();
            let head = match self.back.head(object, &mut key) {
                Ok(head) => head,
                Err(error) => {
                    self.pass_over(error)?;
                    continue;
                }
            };
            if seen.contains(&key) || !is_inside(head.hash) {
                continue;
            }
            // The front first, as everybody who looks a key up: it may have come there meanwhile, or have
            // been removed.
            let found = match self.front.find(head.hash, &key) {
                Some(node) => is_wanted(&node).then_some((node.value_bytes, node.expires_at_ms)),
                None => self
                    .back
                    .find(head.hash, &key, &mut bytes)?
                    .filter(|(_, head)| match expired {
                        false => self.is_live_object(head),
                        true => head.lsn > self.floor() && self.is_expired(head.expires_at_ms),
                    })
                    .map(|(_, head)| (head.value_bytes, head.expires_at_ms)),
            };
            if let Some((value_bytes, expires_at_ms)) = found {
                show(Shown {
                    key: &key,
                    value_bytes,
                    expires_at_ms,
                });
            }
        }
        Ok(end)
    }
}

impl BulletSession {
    pub(super) fn scan_keys(
        &mut self,
        cursor: u64,
        count: usize,
        visit: Visit<'_>,
    ) -> Result<u64, Error> {
        if self.is_pending() {
            self.commit_pending()?;
        }
        let BulletSession { engine, slot, .. } = self;
        // Shown when nobody is pinned any more: whoever is shown a key may write, and wait for room that
        // comes when readers leave.
        let mut met = Met::default();
        let next = loop {
            // Looked at first: whoever has raised it meanwhile, and is waited for, may not have been all the
            // time.
            let floor = engine.floor();
            looks!();
            engine.pass_publications()?;
            let (mut shown, mut next) = (0, cursor);
            loop {
                next = engine
                    .walk(slot, next, false, &mut |one| {
                        shown += 1;
                        met.push(one.key, u64::from(one.value_bytes), one.expires_at_ms);
                    })
                    .map_err(|error| engine.at_path(error))?;
                if next == 0 || shown >= count.max(1) {
                    break;
                }
            }
            engine.pass_publications()?;
            // What was walked through is older than what is looked at now.
            fence(Ordering::Acquire);
            // A transaction that removes everything may put keys again that were there before: they have been
            // there all the time, and were not to be found for a moment.
            if engine.floor() == floor {
                break next;
            }
            met = Met::default();
        };
        met.show(visit);
        // Of a key that was not met, nothing tells since when it is gone.
        self.last_read = engine.committed();
        Ok(next)
    }

    pub(super) fn pick_random(&mut self, into: &mut Vec<u8>) -> Result<bool, Error> {
        /// Keys among which one is picked, at least, if there are as many.
        const AMONG: usize = 16;
        into.clear();
        let mut keys: Vec<Vec<u8>> = Vec::new();
        let mut collect = |key: &[u8], _, _| keys.push(key.to_vec());
        // From somewhere on, and if nothing is there, from the start on.
        self.scan_keys(rand::random(), AMONG, &mut collect)?;
        let mut cursor = 0;
        while keys.is_empty() {
            cursor = self.scan_keys(cursor, AMONG, &mut |key, _, _| keys.push(key.to_vec()))?;
            if cursor == 0 {
                break;
            }
        }
        let Some(key) = keys.get(rand::random_range(0..keys.len().max(1))) else {
            return Ok(false);
        };
        into.extend_from_slice(key);
        Ok(true)
    }
}
