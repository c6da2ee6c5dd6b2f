//! The write path of a session: records into open blocks, marks, fences.
//!
//! This file writes, marks and fences records; `commit.rs` makes them visible.

use super::chain;
use super::claim::Claim;
use super::layout::{Kind, mark_bits, mark_word, parse_mark_word};
use super::lookup::location;
use super::read::{MarkPlace, UNIT, damaged_mark};
use super::record::{self, Order, RecordKind, Stamp};
use super::session::{Old, ViperSession, claim_index};
use crate::aof::is_below;
use crate::concurrency::seam::publishes;
use crate::concurrency::stripes::VERSION_MAX;
use crate::error::Error;
use crate::index::Location;
use crate::steps::{self, Step};
use everdram_pm::{Ordered, Pool, Secret};
use std::sync::atomic::Ordering;

/// Of the blocks that are reserved for compaction, removals leave so many.
const GRAVES_KEEP: u64 = 2;

impl ViperSession {
    /// Writes a record and returns its location. The record stays unreachable until its commit.
    pub(super) fn write(
        &mut self,
        kind: RecordKind,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        order: Order,
    ) -> Result<Location, Error> {
        debug_assert!(
            (1..=VERSION_MAX).contains(&order.version),
            "a record without a version, or with one too great"
        );
        let geometry = self.engine.space.geometry;
        let fixed = geometry.fixed.filter(|shape| {
            // A slot has no room to say that it covers anything.
            kind == RecordKind::Value
                && expires_at_ms == 0
                && !order.covers
                && (shape.key, shape.value) == (key.len(), value.len())
        });
        if let Some(shape) = fixed {
            let at = self.place(Kind::Fixed, shape.slot_bytes())?;
            let stamp = self.stamp_of(order);
            return self.append(Kind::Fixed, at, |into, secret, epoch| {
                let slot = record::encode_slot(into, &shape, key, value, stamp);
                record::seal_slot(secret, &shape, slot, at, epoch);
            });
        }
        let bytes = record::encoded_bytes(key.len(), value.len(), expires_at_ms != 0) as u64;
        let Some(place) = geometry.kind_for(bytes) else {
            return self.write_chained(kind, key, value, expires_at_ms, order);
        };
        if expires_at_ms != 0 {
            self.engine.expiries.store(true, Ordering::Relaxed);
        }
        let at = self.place(place, bytes)?;
        if kind == RecordKind::BigKey
            && let Some(entry) = self
                .engine
                .space
                .blocks
                .get(self.engine.space.blocks.number(at))
        {
            entry.set_long_keys(true);
        }
        let stamp = (self.stamp_of(order), order.covers);
        self.append(place, at, |into, secret, epoch| {
            let record = record::encode(into, kind, key, value, expires_at_ms, stamp);
            record::seal(secret, record, at, epoch);
        })
    }

    /// The stamp of the next record.
    fn stamp_of(&mut self, order: Order) -> Stamp {
        let first = std::mem::take(&mut self.first);
        Stamp {
            version: order.version,
            moves: order.moves,
            first,
        }
    }

    fn write_chained(
        &mut self,
        kind: RecordKind,
        key: &[u8],
        value: &[u8],
        expires_at_ms: u64,
        order: Order,
    ) -> Result<Location, Error> {
        let big_key = self.engine.space.is_big(key);
        let kind = match (kind, big_key) {
            (RecordKind::Journal, _) => RecordKind::ChainedJournal,
            (_, true) => RecordKind::BigKey,
            (_, false) => RecordKind::Chained,
        };
        let (held, chain) = if big_key {
            (
                &key[..record::BIG_KEY_PREFIX],
                chain::write(self, key, value)?,
            )
        } else {
            (key, chain::write(self, b"", value)?)
        };
        // A key that is too long for a page never leaves the pool.
        let order = Order {
            covers: order.covers && !big_key,
            ..order
        };
        let result = self.write(kind, held, &chain.to_bytes(), expires_at_ms, order);
        if result.is_err() {
            // The pieces were never reachable.
            self.engine.retire_chain(chain);
        }
        result
    }

    /// Finds room for the record of a chained value of this key, which is then written without looking.
    ///
    /// # Errors
    /// [`Error::NoSpace`]; [`Error::KeyLength`]: of a key that has no room in a page.
    pub(super) fn find_room_for_chain(
        &mut self,
        key: &[u8],
        expires_at_ms: u64,
    ) -> Result<(), Error> {
        let bytes =
            record::encoded_bytes(key.len(), record::CHAIN_BYTES, expires_at_ms != 0) as u64;
        match self.engine.space.geometry.kind_for(bytes) {
            Some(kind) => self.place(kind, bytes).map(drop),
            None => Err(Error::KeyLength(key.len())),
        }
    }

    /// Finds room for a record in a block of `kind`; opens the next block if the current one is full.
    fn place(&mut self, kind: Kind, bytes: u64) -> Result<u64, Error> {
        let begun = steps::begin();
        let placed = self.find_place(kind, bytes);
        begun.end(Step::Room);
        placed
    }

    #[inline(always)]
    fn find_place(&mut self, kind: Kind, bytes: u64) -> Result<u64, Error> {
        let index = claim_index(kind);
        loop {
            if let Some(claim) = &mut self.claims[index] {
                let page = claim.page_at();
                if let Some(at) = claim.place(bytes, &mut self.lane, &mut self.unfenced) {
                    // The fence of the next page's first record also covers this page's tail word. A crash
                    // may keep that record and lose the word, so the record proves nothing.
                    self.first &= claim.page_at() == page;
                    return Ok(at);
                }
            }
            self.next_block(kind)?;
        }
    }

    /// Takes blocks, first from those reserved for a batch, then from the free list.
    pub(super) fn take_blocks(&mut self, count: usize, out: &mut Vec<u32>) -> Result<(), Error> {
        if self.reserved.len() >= count {
            let rest = self.reserved.len() - count;
            out.extend(self.reserved.drain(rest..));
            return Ok(());
        }
        self.engine.space.blocks.claim(count, self.compaction, out)
    }

    /// Seals the current block of `kind`, if there is one, and opens another, with one fence for both.
    fn next_block(&mut self, kind: Kind) -> Result<(), Error> {
        let mut taken = Vec::with_capacity(1);
        self.take_blocks(1, &mut taken)?;
        let Some(&block) = taken.first() else {
            return Err(Error::NoSpace("no free block".into()));
        };
        let ViperSession {
            engine,
            lane,
            unfenced,
            claims,
            ..
        } = self;
        for claim in claims.iter_mut().flatten() {
            claim.settle(lane, unfenced);
        }
        let slot = &mut claims[claim_index(kind)];
        if let Some(full) = slot {
            full.seal(lane, unfenced);
        }
        // The fence in here covers every tail word.
        let next = Claim::open(
            &engine.space.blocks,
            &engine.space.geometry,
            kind,
            block,
            lane,
            unfenced,
        );
        let full = slot.replace(next);
        let fenced = |claim: &mut Claim| claim.fenced(&engine.space.blocks);
        claims.iter_mut().flatten().for_each(fenced);
        if let Some(full) = full {
            full.sealed(&self.engine.space.blocks);
        }
        if let Some(below) = &self.engine.below {
            below.ages.open(block, self.compaction);
        }
        self.first = true;
        self.took_room();
        Ok(())
    }

    /// Adds a record to the block of `kind`, at `at`, where [`Self::place`] found room.
    #[inline(always)]
    fn append(
        &mut self,
        kind: Kind,
        at: u64,
        build: impl FnOnce(&mut Vec<u8>, &Secret, u32),
    ) -> Result<Location, Error> {
        let ViperSession {
            engine,
            lane,
            unfenced,
            claims,
            ..
        } = self;
        if let Some(claim) = &mut claims[claim_index(kind)] {
            let epoch = claim.epoch();
            let build = |into: &mut Vec<u8>| build(into, engine.pool.secret(), epoch);
            let begun = steps::begin();
            claim.append(lane, unfenced, build);
            begun.end(Step::Store);
        }
        location(at)
    }

    /// Writes what stands for the absence of a key whose state may lie in the log: a record that is dead from
    /// the beginning. Its version is the next one of the key.
    pub(super) fn write_grave(&mut self, key: &[u8], version: u64) -> Result<(), Error> {
        if self.engine.space.is_big(key) {
            // Such a key never leaves the pool.
            return Ok(());
        }
        if !self.engine.durable_at_fence {
            // Of the key there may be older records whose marks are not durable.
            self.engine.deferred_marks.note_removal();
        }
        let order = Order::new(version, true);
        let write = |session: &mut Self| session.write(RecordKind::Grave, key, b"", 0, order);
        let location = match write(self) {
            // Removals go on in a full pool: they need little, and are the way to more.
            Err(Error::NoSpace(_)) if self.engine.space.blocks.free_count() > GRAVES_KEEP => {
                let before = std::mem::replace(&mut self.compaction, true);
                let written = write(self);
                self.compaction = before;
                written?
            }
            written => written?,
        };
        let blocks = &self.engine.space.blocks;
        if let Some(entry) = blocks.get(blocks.number(location.get() * UNIT)) {
            entry.add_garbage(record::encoded_bytes(key.len(), 0, false) as u32);
        }
        Ok(())
    }

    /// Marks a record dead that may be the newest of its key: stored and flushed, not fenced.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(super) fn mark(&mut self, old: &Old) -> Result<(), Error> {
        let ViperSession { engine, lane, .. } = self;
        // What lies in the log has no mark.
        let Some(place) = old.mark else {
            return Ok(());
        };
        if !engine.durable_at_fence {
            engine.deferred_marks.note_removal();
        }
        let dirty = set_mark(&engine.pool, place, |at, word, new| {
            lane.exchange_word(at, word, new)
        })?;
        self.unfenced.add(self.lane.flush(dirty));
        Ok(())
    }

    /// Marks a record dead that a durable newer one has replaced. The mark stays in the cache: waiting for it
    /// would cost each overwrite as much as its record does.
    pub(super) fn mark_superseded(&mut self, old: &Old) -> Result<(), Error> {
        // Pieces of a chain are freed later, and that requires a durable mark on their record.
        if self.engine.durable_at_fence || old.chain.is_some() {
            return self.defer_mark(old);
        }
        let ViperSession { engine, lane, .. } = self;
        let Some(place) = old.mark else {
            return Ok(());
        };
        set_mark(&engine.pool, place, |at, word, new| {
            lane.exchange_word_late(at, word, new)
        })?;
        engine.deferred_marks.note(place.at);
        Ok(())
    }

    /// Marks a record dead whose return in a crash does no harm for a while, and lists the mark for
    /// compaction. The mark stays in the cache until the session has several.
    pub(super) fn defer_mark(&mut self, old: &Old) -> Result<(), Error> {
        let ViperSession {
            engine, lane, id, ..
        } = self;
        let Some(place) = old.mark else {
            return Ok(());
        };
        let is_full = engine.listed_marks[usize::from(*id)].push(place.at);
        // If the mark is lost, recovery finds two records and the higher version wins.
        set_mark(&engine.pool, place, |at, word, new| {
            lane.exchange_word_late(at, word, new)
        })?;
        if is_full {
            self.fence_marks();
        }
        Ok(())
    }

    /// Makes this session's deferred marks durable, with everything else it wrote.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(super) fn fence_marks(&mut self) {
        let ViperSession {
            engine,
            lane,
            unfenced,
            id,
            ..
        } = self;
        for at in engine.listed_marks[usize::from(*id)].iter() {
            unfenced.add(lane.flush_range(at, 8));
        }
        let _ordered = self.settle_and_fence();
        self.engine.listed_marks[usize::from(self.id)].clear();
    }

    /// Streams the incomplete lines of all open blocks.
    pub(super) fn settle(&mut self) {
        let ViperSession {
            claims,
            lane,
            unfenced,
            ..
        } = self;
        for claim in claims.iter_mut().flatten() {
            claim.settle(lane, unfenced);
        }
    }

    /// Stores a word and fences it, with everything the session has flushed.
    pub(super) fn store_and_fence(&mut self, at: u64, word: u64) -> Ordered {
        let dirty = self.lane.store_word(at, word);
        self.unfenced.add(self.lane.flush(dirty));
        self.settle_and_fence()
    }

    /// Streams the incomplete lines of all open blocks and fences. Returns the fence that covers everything
    /// the session has ever written.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(super) fn settle_and_fence(&mut self) -> Ordered {
        self.settle();
        let begun = steps::begin();
        let ordered = self.unfenced.fence(&mut self.lane);
        begun.end(Step::Fence);
        self.last_ticket = ordered.lsn();
        for claim in self.claims.iter_mut().flatten() {
            claim.fenced(&self.engine.space.blocks);
        }
        self.first = true;
        ordered
    }

    /// Counts a record as garbage.
    pub(super) fn count_garbage(&self, old: &Old) {
        if let Some(below) = &self.engine.below
            && is_below(old.location)
        {
            below.log.add_stale(old.location, u64::from(old.bytes));
            return;
        }
        let block = self.engine.space.blocks.number(old.location.get() * UNIT);
        if let Some(entry) = self.engine.space.blocks.get(block) {
            entry.add_garbage(old.bytes);
        }
    }

    /// Retires the pieces of a record that is marked dead.
    pub(super) fn let_go(&self, old: &Old) {
        if let Some(chain) = old.chain {
            self.engine.retire_chain(chain);
        }
    }
}

/// Sets the bit of a dead record with `exchange`, a compare-and-swap that returns the word it found on
/// failure.
#[inline]
#[cfg_attr(feature = "lab", track_caller)]
fn set_mark<T>(
    pool: &Pool,
    place: MarkPlace,
    mut exchange: impl FnMut(u64, u64, u64) -> Result<T, u64>,
) -> Result<T, Error> {
    let MarkPlace { at, bit, epoch, .. } = place;
    debug_assert!(
        bit.is_power_of_two() && mark_bits(bit) == bit,
        "a mark is one of the bits of its word"
    );
    let secret = pool.secret();
    publishes!();
    let mut word = pool.region().load_word(at);
    loop {
        let bits = match place.verified == Some(word) {
            true => Some(mark_bits(word)),
            false => parse_mark_word(secret, at, epoch, word),
        };
        let Some(bits) = bits else {
            return Err(damaged_mark(at));
        };
        match exchange(at, word, mark_word(secret, at, epoch, bits | bit)) {
            Ok(done) => return Ok(done),
            // Another session marked a record of the same page at the same moment.
            Err(found) => word = found,
        }
    }
}
