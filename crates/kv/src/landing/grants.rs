//! Giving grants: the metadata phase of a put. (RDMP-KV section III-A, which changes log and index here.)

use super::layout::{Line, PAGE_BYTES, slot_bytes};
use super::table::{Live, bucket_of};
use super::{Grant, Landing};
use crate::engine::{VALUE_BYTES_MAX, check_key};
use crate::error::Error;
use everdram_pm::{Flushed, Lane};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// One thread's way to give grants. [`Granter::prepare`] any number of them, then [`Granter::commit`] all:
/// two fences make them durable, and only then the caller learns them. So no grant can be told that a crash
/// takes (R9). What was prepared and not committed is forgotten when the granter is dropped.
pub struct Granter {
    landing: Arc<Landing>,
    lane: Lane,
    prepared: Vec<Arc<Live>>,
    /// Their lines, but for the words.
    bodies: Option<Flushed>,
}

impl std::fmt::Debug for Granter {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Granter")
            .field("prepared", &self.prepared.len())
            .finish_non_exhaustive()
    }
}

impl Granter {
    pub(super) fn new(landing: Arc<Landing>) -> Granter {
        Granter {
            lane: landing.pool.lane(),
            landing,
            prepared: Vec::new(),
            bodies: None,
        }
    }

    /// Prepares a grant for one write of `key` with a value of `value_bytes` bytes that expires at
    /// `expires_at_ms` (Unix milliseconds; 0 = never). Nothing changes that anybody can see; how much one
    /// client may be given is the caller's business. Not durable before [`Granter::commit`].
    ///
    /// # Errors
    /// [`Error::KeyLength`], [`Error::ValueLength`]; [`Error::NoSpace`]: the landing area has no such run of
    /// pages. Earlier grants stay prepared.
    pub fn prepare(
        &mut self,
        key: &[u8],
        value_bytes: u64,
        expires_at_ms: u64,
    ) -> Result<(), Error> {
        self.prepare_in(0, key, value_bytes, expires_at_ms)
    }

    /// As [`Granter::prepare`], in a slot of at least `slot_bytes` bytes, so that later grants of the client
    /// may be longer ([`Granter::prepare_again`]).
    ///
    /// # Errors
    /// As [`Granter::prepare`].
    pub fn prepare_in(
        &mut self,
        slot_bytes: u64,
        key: &[u8],
        value_bytes: u64,
        expires_at_ms: u64,
    ) -> Result<(), Error> {
        let least = u32::try_from(slot_bytes.div_ceil(PAGE_BYTES)).unwrap_or(u32::MAX);
        let pages = pages_for(key, value_bytes)?.max(least);
        self.landing.pool.healthy()?;
        let page = self.landing.table.take(pages)?;
        self.prepare_at(page, pages, key, value_bytes, expires_at_ms);
        Ok(())
    }

    /// As [`Granter::prepare`], in the pages of a grant whose value was applied, instead of its
    /// [`Landing::release`]. A client may be given its own pages again while it is connected: a late write of
    /// its own can spoil nothing but its own. `false`: the grant was not applied, or has too few pages.
    ///
    /// # Errors
    /// [`Error::KeyLength`], [`Error::ValueLength`].
    pub fn prepare_again(
        &mut self,
        number: u32,
        key: &[u8],
        value_bytes: u64,
        expires_at_ms: u64,
    ) -> Result<bool, Error> {
        let pages = pages_for(key, value_bytes)?;
        self.landing.pool.healthy()?;
        let Some(old) = self.landing.table.given(number) else {
            return Ok(false);
        };
        if !old.is_applied() || old.line.pages < pages || !self.landing.table.take_over(&old) {
            return Ok(false);
        }
        self.prepare_at(number, old.line.pages, key, value_bytes, expires_at_ms);
        Ok(true)
    }

    /// Writes the line of a grant, without its word, which is 0.
    fn prepare_at(&mut self, page: u32, pages: u32, key: &[u8], value_bytes: u64, expires: u64) {
        let landing = &*self.landing;
        let secret = landing.pool.secret();
        let generation = landing.generation.fetch_add(1, Ordering::Relaxed) + 1;
        let line = Line {
            pages,
            nonce: landing.nonce(generation),
            value_bytes,
            expires_at_ms: expires,
            key_bytes: key.len() as u32,
            key_sum: secret.sum(key),
            generation,
        };
        landing.table.raise(bucket_of(line.key_sum));
        let at = landing.area.line_at(page);
        let bytes = line.to_bytes(secret, at);
        let dirty = self.lane.store(at + 8, &bytes[8..]);
        let rest = self.lane.flush(dirty);
        rest.join(&mut self.bodies);
        self.prepared.push(Live::new(page, line));
    }

    /// Makes everything prepared durable, under two fences, and returns the grants in the order in which they
    /// were prepared. A client may write from here on.
    ///
    /// # Errors
    /// [`Error::Pool`]: none was given. [`Error::NoSpace`]: the system has no memory for a barrier; none was
    /// given.
    pub fn commit(&mut self) -> Result<Vec<Grant>, Error> {
        let Some(bodies) = self.bodies.take() else {
            return Ok(Vec::new());
        };
        let landing = Arc::clone(&self.landing);
        // Whoever does not see the raised counts is in a call, and its mark is visible from here on.
        if !landing.barrier.heavy() {
            self.forget();
            return Err(Error::NoSpace(
                "the system has no memory for a barrier".into(),
            ));
        }
        // A change of several keys that began before does not look for what arrives, so nothing may: the
        // client learns of its grant behind it.
        landing.blind_calls.wait_for_ends();
        let ordered = self.lane.fence(bodies);
        let mut words = None;
        for live in &self.prepared {
            let at = landing.area.line_at(live.page);
            let dirty = self.lane.publish(at, live.line.word(), &ordered);
            self.lane.flush(dirty).join(&mut words);
        }
        if let Some(words) = words {
            let ordered = self.lane.fence(words);
            if let Err(failed) = landing.pool.wait(ordered.lsn()) {
                self.forget();
                return Err(failed.into());
            }
        }
        let grants = self.prepared.drain(..).map(|live| {
            landing.table.enter(&live);
            Grant {
                number: live.page,
                offset: landing.area.page_at(live.page),
                bytes: live.line.slot_bytes(),
                generation: live.line.generation,
                nonce: live.line.nonce,
            }
        });
        Ok(grants.collect())
    }

    /// Takes back what was prepared. Its words may have been stored, but nobody was told.
    fn forget(&mut self) {
        for live in std::mem::take(&mut self.prepared) {
            let at = self.landing.area.line_at(live.page);
            if self.landing.pool.region().load_word(at) != 0 {
                let dirty = self.lane.store_word(at, 0);
                let flushed = self.lane.flush(dirty);
                let _cleared = self.lane.fence(flushed);
            }
            self.landing.table.free(live.page, live.line.pages);
            self.landing.table.lower(bucket_of(live.line.key_sum));
        }
    }
}

impl Drop for Granter {
    fn drop(&mut self) {
        self.forget();
    }
}

/// Pages of a slot.
fn pages_for(key: &[u8], value_bytes: u64) -> Result<u32, Error> {
    check_key(key)?;
    if value_bytes > VALUE_BYTES_MAX as u64 {
        return Err(Error::ValueLength(
            usize::try_from(value_bytes).unwrap_or(usize::MAX),
        ));
    }
    let pages = slot_bytes(key.len(), value_bytes).div_ceil(PAGE_BYTES);
    Ok(u32::try_from(pages).unwrap_or(u32::MAX))
}
