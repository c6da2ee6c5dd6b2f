//! Lookup of keys: index, slot, blocks.
//!
//! A reader takes no lock. It copies the slot and its cell, and then reads blocks that cannot change while it
//! is pinned.

use super::Dstore;
use super::layout::Slot;
use super::session::{At, DstoreSession};
use crate::concurrency::epoch::Pin;
use crate::concurrency::seam::looks;
use crate::concurrency::stripes::{Backoff, StripeId, Stripes};
use crate::engine::backend::Seen;
use crate::engine::counters::bump;
use crate::engine::session::read_own;
use crate::engine::{Found, Ticket};
use crate::error::Error;
use crate::index::KeyHash;
use std::ops::Range;
use std::sync::atomic::{Ordering, fence};

/// Where a value goes, or a part of it.
type Wanted<'a> = (&'a mut Vec<u8>, Option<Range<u64>>);

impl Dstore {
    /// The slot of a key, with what its cell holds if `cell` is given.
    #[inline]
    pub(super) fn find(
        &self,
        pin: &Pin<'_>,
        hash: u64,
        key: &[u8],
        mut cell: Option<&mut Vec<u8>>,
    ) -> Option<At> {
        for location in self.index.candidates(KeyHash(hash), pin) {
            let number = location.get();
            let mut backoff = Backoff::new();
            loop {
                let (slot, word) = self.memory.slot(number);
                if slot.is_dead || slot.hash != hash || !self.memory.has_key(&slot, key) {
                    break;
                }
                if let Some(cell) = &mut cell {
                    looks!();
                    self.cell_of(&slot, cell);
                    // The cell may have been changed in place since the slot was copied (D5).
                    if !self.memory.is_still(number, word) {
                        backoff.wait();
                        continue;
                    }
                }
                return Some(At { number, slot });
            }
        }
        None
    }

    /// Starts to fetch the slot that a search will look at first.
    #[inline]
    pub(super) fn prefetch_slot(&self, pin: &Pin<'_>, hash: u64) {
        if let Some(first) = self.index.candidates(KeyHash(hash), pin).next() {
            self.memory.prefetch(first.get());
        }
    }

    /// Copies the cell of a slot's body, if it has one.
    #[inline]
    pub(super) fn cell_of(&self, slot: &Slot, cell: &mut Vec<u8>) {
        cell.clear();
        let bytes = self.geometry.cell_bytes(slot.form, slot.length);
        if bytes > 0 {
            self.memory.read(slot.body, bytes, cell);
        }
    }

    /// Whether users see the object.
    #[inline]
    pub(super) fn is_live(&self, slot: &Slot) -> bool {
        !slot.is_dead && !self.is_expired(slot.expires_at_ms)
    }
}

impl DstoreSession {
    /// The state of a key whose stripe the session holds.
    #[inline]
    pub(super) fn find_held(&mut self, hash: u64, key: &[u8]) -> Seen<At> {
        let pin = self.epoch.pin();
        match self.engine.find(&pin, hash, key, None) {
            None => Seen::default(),
            Some(at) => Seen {
                is_counted: true,
                is_live: self.engine.is_live(&at.slot),
                version: at.slot.lsn,
                expires_at_ms: at.slot.expires_at_ms,
                at,
            },
        }
    }

    /// Looks a key up: its state, and the length of its value. Appends the value, or a part of it, if that is
    /// wanted.
    #[inline]
    pub(super) fn look_up(
        &mut self,
        key: &[u8],
        mut wanted: Option<Wanted<'_>>,
    ) -> Result<Option<(Found, u64)>, Error> {
        let hash = self.engine.hash(key);
        let stripe = self.engine.stripes.of(hash);
        read_own(self, stripe)?;
        let before = wanted.as_ref().map_or(0, |(into, _)| into.len());
        loop {
            // Whoever knows of what counts as later than a change of several keys must not be shown a key as
            // it was before that, also if it ends meanwhile (see [`crate::landing`]).
            self.pass_publisher(stripe);
            let again = wanted
                .as_mut()
                .map(|(into, part)| (&mut **into, part.clone()));
            let found = self.look_once(hash, stripe, key, again);
            looks!();
            // Without this check, a reader could see half a batch: it looks at the stripe's state after the
            // slot.
            fence(Ordering::Acquire);
            if !self.is_being_published(stripe) {
                return found.map_err(|error| self.engine.at_path(error));
            }
            if let Some((into, _)) = &mut wanted {
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

    #[inline]
    fn look_once(
        &mut self,
        hash: u64,
        stripe: StripeId,
        key: &[u8],
        wanted: Option<Wanted<'_>>,
    ) -> Result<Option<(Found, u64)>, Error> {
        let DstoreSession {
            engine,
            epoch,
            cell,
            core,
            id,
            ..
        } = self;
        let pin = epoch.pin();
        let cell_of = wanted.is_some().then_some(&mut *cell);
        let found = engine.find(&pin, hash, key, cell_of);
        let found = found.filter(|at| engine.is_live(&at.slot));
        core.last_read = match engine.durable_at_fence {
            true => Ticket::NONE,
            false => Ticket(engine.stripes.stamp(stripe)),
        };
        let counters = &engine.counters[usize::from(*id)];
        bump(&counters.gets, 1);
        let Some(At { slot, .. }) = found else {
            bump(&counters.misses, 1);
            return Ok(None);
        };
        if wanted.is_some() {
            looks!();
        }
        let read = match wanted {
            None => 0,
            Some((into, None)) => {
                engine.values.read(&slot, cell, into)?;
                let blocks = engine.values.count(slot.form, slot.length);
                blocks * engine.values.blocks.block_bytes()
            }
            Some((into, Some(part))) => {
                let before = into.len();
                engine.values.read_part(&slot, cell, part, into)?;
                (into.len() - before) as u64
            }
        };
        if read > 0 {
            bump(&counters.data_read, read);
        }
        let found = Found {
            version: slot.lsn,
            expires_at_ms: slot.expires_at_ms,
            ticket: core.last_read,
        };
        Ok(Some((found, slot.length)))
    }

    /// Reads keys one after the other; first asks the disk for the blocks of all of them.
    pub(super) fn look_up_each(
        &mut self,
        keys: &[&[u8]],
        hashes: &[(u64, u64)],
        into: &mut Vec<u8>,
        found: &mut Vec<(Option<Found>, usize)>,
    ) -> Result<(), Error> {
        let engine = &self.engine;
        for &(hash, _) in hashes {
            engine.index.prefetch(KeyHash(hash));
        }
        if keys.len() > 1 {
            let pin = self.epoch.pin();
            for (key, &(hash, _)) in keys.iter().zip(hashes) {
                if let Some(at) = engine.find(&pin, hash, key, None)
                    && at.slot.form == 1
                {
                    engine.values.blocks.will_need(at.slot.body, 1);
                }
            }
        }
        crate::engine::backend::read_one_by_one(self, keys, into, found)
    }
}
