//! Lookup of keys: in the front, and in the back if the front is incomplete.

use super::layout::INLINE_MAX;
use super::session::BulletSession;
use crate::concurrency::seam::looks;
use crate::concurrency::stripes::{Backoff, StripeId, Stripes};
use crate::engine::counters::bump;
use crate::engine::session::read_own;
use crate::engine::{Found, Ticket};
use crate::error::Error;
use std::sync::atomic::{Ordering, fence};

impl BulletSession {
    /// Looks a key up: its state, and the length of its value. Appends the value to `into`, if given.
    #[inline]
    pub(super) fn read(
        &mut self,
        key: &[u8],
        mut into: Option<&mut Vec<u8>>,
    ) -> Result<Option<(Found, u64)>, Error> {
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripe(hash);
        read_own(self, stripe)?;
        let before = into.as_ref().map_or(0, |into| into.len());
        loop {
            // Whoever knows of what counts as later than a change of several keys must not be shown a key as
            // it was before that, also if it ends meanwhile (see [`crate::landing`]).
            self.pass_publisher(stripe);
            let found = self.read_once(hash, stripe, key, into.as_deref_mut());
            looks!();
            // Without this check, a reader could see half a batch. The reader looks at the stripe's state
            // after the value: if a batch has begun to be published in between, it waits and reads again.
            fence(Ordering::Acquire);
            if !self.is_being_published(stripe) {
                return found;
            }
            if let Some(into) = &mut into {
                into.truncate(before);
            }
        }
    }

    /// Waits while another session is publishing a batch with keys of the stripe.
    #[inline]
    fn pass_publisher(&self, stripe: StripeId) {
        if self.is_being_published(stripe) {
            let mut backoff = Backoff::new();
            while self.is_being_published(stripe) {
                backoff.wait();
            }
        }
    }

    /// Whether another session is publishing a batch with keys of the stripe.
    #[inline]
    fn is_being_published(&self, stripe: StripeId) -> bool {
        let stripes = &self.engine.stripes;
        Stripes::is_word_publishing(stripes.word(stripe)) && !stripes.held_by(stripe, self.id)
    }

    /// One look at a key.
    #[inline]
    fn read_once(
        &mut self,
        hash: u64,
        stripe: StripeId,
        key: &[u8],
        mut into: Option<&mut Vec<u8>>,
    ) -> Result<Option<(Found, u64)>, Error> {
        let BulletSession {
            engine,
            slot,
            scratch,
            claim,
            ..
        } = self;
        let word = engine.stripes.word(stripe);
        let reading = engine
            .reader_locks
            .as_ref()
            .map(|reader_locks| reader_locks.read(stripe));
        slot.hold();
        let found = match engine.system.has_front() {
            true => engine.front.find(hash, key),
            false => None,
        };
        looks!();
        let mut looked_behind = false;
        let result = match &found {
            Some(node) if !engine.is_live(node) => Ok(None),
            Some(node) => {
                engine.front.touch(node);
                let copied = match &mut into {
                    Some(into) => engine.value_of(node, scratch, into),
                    None => Ok(()),
                };
                copied.map(|()| {
                    Some((
                        node.version,
                        node.expires_at_ms,
                        u64::from(node.value_bytes),
                    ))
                })
            }
            None if engine.is_complete() => Ok(None),
            None => {
                looked_behind = true;
                match engine.back.find(hash, key, scratch) {
                    Ok(Some((at, head))) if engine.is_live_object(&head) => {
                        // The front copies only short values, and only while it has room.
                        let is_long = head.value_bytes as usize > INLINE_MAX;
                        let is_asked =
                            into.is_some() || !is_long && !engine.front.budget.is_exceeded();
                        let mut own = Vec::new();
                        let into = into.unwrap_or(&mut own);
                        let from = into.len();
                        let copied = match is_asked {
                            true => engine.back.value(at, &head, scratch, into),
                            false => Ok(()),
                        };
                        copied.map(|()| {
                            // The clock of a locked stripe may count a write that is not visible yet.
                            if !Stripes::is_word_locked(word) && engine.system.has_front() {
                                let clock = Stripes::version_of(word);
                                let value = is_asked.then_some(&into[from..]);
                                looks!();
                                engine.fill(slot, claim, clock, at, &head, key, value);
                            }
                            Some((
                                head.version,
                                head.expires_at_ms,
                                u64::from(head.value_bytes),
                            ))
                        })
                    }
                    Ok(_) => Ok(None),
                    Err(error) => Err(error),
                }
            }
        };
        slot.unhold();
        drop(reading);
        if looked_behind {
            bump(&engine.front_counters[slot.number()].behind, 1);
            if engine.front.budget.is_exceeded() {
                engine.help_evict(slot);
            }
        }
        self.core.last_read = match engine.durable_at_fence {
            true => Ticket::NONE,
            false => Ticket(engine.stripes.stamp(stripe)),
        };
        let found = result.map_err(|error| engine.at_path(error))?;
        let counters = self.counters();
        bump(&counters.gets, 1);
        let Some((version, expires_at_ms, bytes)) = found else {
            bump(&counters.misses, 1);
            return Ok(None);
        };
        let found = Found {
            version,
            expires_at_ms,
            ticket: self.core.last_read,
        };
        Ok(Some((found, bytes)))
    }
}
