//! The walk over all keys: in the order of hashes, a piece of both tables at a time.
//!
//! A piece is the range of hashes of one bucket of the shorter array, so it covers whole buckets of both
//! tables. A cursor is the first hash of a piece. Tables grow only by halving buckets, so a cursor stays
//! valid.

use super::Bullet;
use super::front::Node;
use super::session::BulletSession;
use crate::concurrency::epoch::Slot;
use crate::engine::backend::Met;
use crate::error::Error;
use std::collections::BTreeSet;

/// What a walk shows of a key.
pub(super) struct Shown<'a> {
    pub(super) key: &'a [u8],
    pub(super) value_bytes: u32,
    pub(super) expires_at_ms: u64,
}

/// The last hash of a piece that ends before `end`; `end` 0 stands for 2^64.
fn last(end: u64) -> u64 {
    end.wrapping_sub(1)
}

impl Bullet {
    /// The first hash after the piece at `cursor`; 0: it is the last piece.
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
            // The front may stop being complete before the walk reads the back.
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
            // The front first, as in every lookup: meanwhile the key may have come there, or was removed.
            let found = match self.front.find(head.hash, &key) {
                Some(node) => is_wanted(&node).then_some((node.value_bytes, node.expires_at_ms)),
                None => self
                    .back
                    .find(head.hash, &key, &mut bytes)?
                    .filter(|(_, head)| match expired {
                        false => self.is_live_object(head),
                        true => head.version > self.floor() && self.is_expired(head.expires_at_ms),
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
    /// Shows the keys of pieces from `cursor` on, until they are at least `count`.
    pub(super) fn walk_tables(
        &mut self,
        cursor: u64,
        count: usize,
        met: &mut Met,
    ) -> Result<u64, Error> {
        let BulletSession { engine, slot, .. } = self;
        let (mut shown, mut next) = (0, cursor);
        loop {
            next = engine.walk(slot, next, false, &mut |one| {
                shown += 1;
                met.push(one.key, u64::from(one.value_bytes), one.expires_at_ms);
            })?;
            if next == 0 || shown >= count.max(1) {
                return Ok(next);
            }
        }
    }
}
