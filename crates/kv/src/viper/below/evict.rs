//! Eviction: records of blocks that are being emptied go to the log, in batches.
//!
//! ```text
//!  each record, under its key's lock: append ──> sync ──> swing each, under its key's lock ──> settle ──> free
//! ```
//! Until the log is settled, only the pool has what leaves: nothing of it is marked dead or freed before.
//!
//! No lock of a key is held while the log is written or synced. So a victim may change meanwhile; it is not
//! swung then, and a DEL of the order that the log has follows it. Disk space for those is taken before the
//! first swing, since from there on there is no way back.

use super::{Below, Purpose, Tail, bump};
use crate::aof::{Order, Said, is_below};
use crate::engine::backend::Backend;
use crate::engine::halt::{Halt, OnPanic};
use crate::error::Error;
use crate::index::{KeyHash, Location};
use crate::viper::Viper;
use crate::viper::block_table::{Info, State};
use crate::viper::lookup::look_up;
use crate::viper::read::UNIT;
use crate::viper::record::Chain;
use crate::viper::recovery::at_old;
use crate::viper::session::{Old, ViperSession};
use crate::viper::space::Space;
use everdram_pm::Ordered;
use parking_lot::MutexGuard;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// Swings whose entries of the index are fetched while the ones before them are done.
const SWINGS_AHEAD: usize = 8;

/// A state that was appended, and where the index is to lead to it.
struct Swing {
    hash: KeyHash,
    /// The key, in the batch's buffer.
    key: Range<usize>,
    from: Location,
    to: Location,
    /// Bytes of the entry.
    bytes: u64,
    order: Order,
    /// The pieces of the value that is in the log now.
    chain: Option<Chain>,
}

/// A state to be appended.
pub(in crate::viper) struct Victim<'a> {
    pub(in crate::viper) hash: KeyHash,
    pub(in crate::viper) key: &'a [u8],
    pub(in crate::viper) value: &'a [u8],
    pub(in crate::viper) expires_at_ms: u64,
    pub(in crate::viper) order: Order,
    pub(in crate::viper) from: Location,
    pub(in crate::viper) chain: Option<Chain>,
}

/// An entry that has expired, with a removal behind it.
struct Expired {
    hash: KeyHash,
    from: Location,
}

/// A block from which everything was moved or appended.
struct Emptied {
    block: u32,
    info: Info,
    /// Records of it that were moved to other blocks.
    moved: Vec<Old>,
}

/// What is being evicted together. It holds the end of the log.
pub(in crate::viper) struct Batch<'a> {
    /// What a panic leaves in the log must not count later. Dropped before others get the end of the log.
    _on_panic: OnPanic<'a>,
    below: &'a Below,
    tail: MutexGuard<'a, Tail>,
    /// Whether records leave; otherwise they only move.
    pub(in crate::viper) evicts: bool,
    purpose: Purpose,
    swings: Vec<Swing>,
    expired: Vec<Expired>,
    keys: Vec<u8>,
    hashes: HashSet<u64>,
    clock: u64,
    emptied: Vec<Emptied>,
    /// Records that have left, of blocks that stay.
    left: Vec<Old>,
    /// The pieces of values that have left.
    chains: Vec<Chain>,
}

impl Below {
    /// Begins a batch. The caller holds no lock of a key.
    pub(in crate::viper) fn batch<'a>(&'a self, halted: &'a Halt, evicts: bool) -> Batch<'a> {
        if evicts && !self.is_used() {
            // Before any key is swung, which takes its lock.
            self.is_used.store(true, Ordering::Relaxed);
        }
        let mut tail = self.tail();
        tail.is_taken_back = false;
        Batch {
            _on_panic: halted.on_panic(),
            below: self,
            tail,
            evicts,
            purpose: Purpose::Evict,
            swings: Vec::new(),
            expired: Vec::new(),
            keys: Vec::new(),
            hashes: HashSet::new(),
            clock: 0,
            emptied: Vec::new(),
            left: Vec::new(),
            chains: Vec::new(),
        }
    }
}

impl<'a> Batch<'a> {
    /// The same, for entries of the log; see [`Purpose::Clean`].
    pub(super) fn for_cleaning(self, kept: Option<u64>) -> Batch<'a> {
        Batch {
            purpose: Purpose::Clean { kept },
            ..self
        }
    }

    /// Whether the record at byte `within` of a block is to leave. Where no block is free but perhaps one,
    /// everything leaves: what stays would need it, and keep writers from any room. (With a greater reserve,
    /// a flood of writes would take along what is read all the time.)
    pub(in crate::viper) fn is_to_leave(&self, space: &Space, block: u32, within: u64) -> bool {
        let is_short = space.blocks.free_count() <= 1;
        self.evicts && (is_short || !self.below.ages.stays(block, within))
    }

    /// Makes room for the next entry in the log. The session holds no lock of a key.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`].
    pub(in crate::viper) fn make_room(&mut self, session: &mut ViperSession) -> Result<(), Error> {
        self.below
            .make_segment(&mut self.tail, session, self.purpose)
    }

    /// Appends the state of a held key.
    ///
    /// # Errors
    /// [`Error::NoSpace`], [`Error::Pool`].
    pub(in crate::viper) fn append(&mut self, victim: &Victim<'_>) -> Result<(), Error> {
        let said = Said::Set {
            value: victim.value,
            expires_at_ms: victim.expires_at_ms,
        };
        let log = &self.below.log;
        let placed = self
            .tail
            .writer()
            .append(log, victim.key, said, victim.order)?;
        let from = self.keys.len();
        self.keys.extend_from_slice(victim.key);
        self.hashes.insert(victim.hash.0);
        self.clock = self.clock.max(victim.order.0);
        self.swings.push(Swing {
            hash: victim.hash,
            key: from..self.keys.len(),
            from: victim.from,
            to: placed.location,
            bytes: placed.bytes,
            order: victim.order,
            chain: victim.chain,
        });
        Ok(())
    }

    /// Appends the removal for which a dead record of a held key stands, unless the log has something newer.
    ///
    /// # Errors
    /// [`Error::Corrupt`], [`Error::Pool`].
    pub(in crate::viper) fn bury(
        &mut self,
        viper: &Viper,
        session: &mut ViperSession,
        hash: KeyHash,
        key: &[u8],
        order: Order,
    ) -> Result<(), Error> {
        let is_set = self.hashes.contains(&hash.0)
            && self
                .swings
                .iter()
                .any(|swing| self.keys[swing.key.clone()] == *key);
        if is_set {
            return Ok(());
        }
        let current = look_up(viper, &session.slot, hash, key, &mut session.scratch)?;
        if current.is_some_and(|(location, ..)| is_below(location)) {
            return Ok(());
        }
        self.clock = self.clock.max(order.0);
        bump(&self.below.counters.removals, 1);
        self.tail
            .writer()
            .append_removal(&self.below.log, key, order);
        Ok(())
    }

    /// Appends the removal of a held key whose entry has expired. The index leads there until the removal
    /// counts: a key that it does not have is written without a word about the log.
    pub(in crate::viper) fn expire(
        &mut self,
        hash: KeyHash,
        key: &[u8],
        order: Order,
        from: Location,
    ) {
        self.clock = self.clock.max(order.0);
        self.expired.push(Expired { hash, from });
        bump(&self.below.counters.removals, 1);
        self.tail
            .writer()
            .append_removal(&self.below.log, key, order);
    }

    /// Notes that everything in a block was moved or appended.
    pub(in crate::viper) fn emptied(&mut self, block: u32, info: Info, moved: Vec<Old>) {
        self.emptied.push(Emptied { block, info, moved });
    }

    /// Makes the batch durable and lets the index lead to it. Returns the blocks that are empty now.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing was evicted, and the blocks are as they were. [`Error::Pool`]: the same, and
    /// the engine takes no more writes.
    pub(in crate::viper) fn finish(
        mut self,
        viper: &Viper,
        session: &mut ViperSession,
    ) -> Result<Vec<(u32, Info)>, Error> {
        if let Err(error) = self.make_durable(viper, session) {
            return Err(self.give_up(viper, session, error));
        }
        Ok(self
            .emptied
            .into_iter()
            .map(|emptied| (emptied.block, emptied.info))
            .collect())
    }

    fn make_durable(&mut self, viper: &Viper, session: &mut ViperSession) -> Result<(), Error> {
        // The batch before may have ended in the middle while this one waited for the end of the log.
        viper.healthy()?;
        let Batch { below, tail, .. } = self;
        if tail.writer().end() == tail.line.known.settled {
            return Ok(());
        }
        bump(&below.counters.syncs, 1);
        tail.writer().sync(&below.log)?;
        // What replaces a state of the log covers it, and needs no removal.
        let may_change = self.swings.iter().filter(|swing| !is_below(swing.from));
        let (count, bytes) = may_change.fold((0, 0), |(count, bytes), swing| {
            (count + 1, bytes + swing.key.len())
        });
        tail.writer().reserve_removals(&below.log, count, bytes)?;
        // From here on the index leads to entries that are not settled. Until they are, tier 1 has all of
        // them.
        let outcome = self.swing(viper, session);
        let Batch {
            below, tail, clock, ..
        } = self;
        match outcome.and_then(|is_whole| match is_whole {
            true => Ok(()),
            false => tail.writer().sync(&below.log).map(drop),
        }) {
            Ok(()) => {
                let _marks = session.settle_and_fence();
                let _ordered = below.settle(tail, session, *clock);
                self.bury_left(viper, session)?;
                self.remove_expired(viper, session)
            }
            Err(error) => Err(viper.halt(error)),
        }
    }

    /// Marks what has left dead, and frees its pieces. The log counts now: before, a crash would have left
    /// nothing but these records.
    fn bury_left(&mut self, viper: &Viper, session: &mut ViperSession) -> Result<(), Error> {
        for chain in self.chains.drain(..) {
            viper.retire_chain(chain);
        }
        if self.left.is_empty() {
            return Ok(());
        }
        for old in self.left.drain(..) {
            session.mark(&old)?;
            session.count_garbage(&old);
        }
        let _dead = session.settle_and_fence();
        Ok(())
    }

    /// Removes the keys from the index whose removals count now, unless they were written meanwhile.
    fn remove_expired(&mut self, viper: &Viper, session: &mut ViperSession) -> Result<(), Error> {
        for Expired { hash, from } in std::mem::take(&mut self.expired) {
            let stripe = viper.stripe(hash);
            session.acquire(stripe)?;
            if viper.index.remove(hash, from, &Ordered::when_found()) {
                if !viper.durable_at_fence {
                    viper.deferred_marks.note_removal();
                }
                viper.stripes.next_version(stripe);
                session.count_key(-1);
                crate::engine::counters::bump(&session.counters().expired, 1);
            }
            session.give_back(stripe);
        }
        Ok(())
    }

    /// Whether the block of a record of the pool will be freed.
    fn is_emptied(&self, viper: &Viper, from: Location) -> bool {
        let block = viper.space.blocks.number(from.get() * UNIT);
        self.emptied.iter().any(|emptied| emptied.block == block)
    }

    /// Lets the index lead to what was appended. Whether all of it was still the state of its key.
    fn swing(&mut self, viper: &Viper, session: &mut ViperSession) -> Result<bool, Error> {
        let mut is_whole = true;
        let swings = std::mem::take(&mut self.swings);
        for (number, swing) in swings.iter().enumerate() {
            if let Some(later) = swings.get(number + SWINGS_AHEAD) {
                viper.index.prefetch(later.hash);
            }
            let stripe = viper.stripe(swing.hash);
            session.acquire(stripe)?;
            // The entry is synced, which is what a fence is to a record.
            let synced = Ordered::when_found();
            let is_swung = viper
                .index
                .replace(swing.hash, swing.from, swing.to, &synced);
            let counters = &self.below.counters;
            if is_swung {
                if !is_below(swing.from) && !viper.durable_at_fence {
                    // Older records of the key need their marks from here on: the log is read after the pool.
                    viper.deferred_marks.note_removal();
                }
                if !is_below(swing.from) && !self.is_emptied(viper, swing.from) {
                    // Its block stays, and the record must not count there any more.
                    self.left
                        .push(at_old(&viper.space, swing.from.get() * UNIT)?);
                }
                if is_below(swing.from) {
                    bump(&counters.cleaned_bytes, swing.bytes);
                    self.below.log.add_stale(swing.from, swing.bytes);
                } else {
                    bump(&counters.evicted, 1);
                    bump(&counters.evicted_bytes, swing.bytes);
                    self.below.ghosts.add(swing.hash.0);
                }
            } else {
                self.below.log.add_stale(swing.to, swing.bytes);
                bump(&counters.missed, 1);
                // The state that replaced one of the log covers it, wherever in the log that was.
                if !is_below(swing.from) {
                    is_whole = false;
                    let key = &self.keys[swing.key.clone()];
                    self.tail
                        .writer()
                        .append_removal(&self.below.log, key, swing.order);
                }
            }
            session.give_back(stripe);
            if is_swung {
                self.chains.extend(swing.chain);
            }
        }
        Ok(is_whole)
    }

    /// Leaves everything in its place. Records that were moved are marked dead where they were, so that a key
    /// has at most one unmarked record.
    pub(super) fn give_up(
        mut self,
        viper: &Viper,
        session: &mut ViperSession,
        error: Error,
    ) -> Error {
        let is_full = matches!(error, Error::NoSpace(_));
        if is_full {
            self.below.log.note_short();
        }
        let back = match viper.healthy() {
            Ok(()) => self.below.go_back(&mut self.tail).and_then(|()| {
                for old in self.emptied.iter().flat_map(|emptied| &emptied.moved) {
                    session.mark(old)?;
                }
                let _ordered = session.settle_and_fence();
                Ok(())
            }),
            Err(_) => Ok(()),
        };
        for emptied in &self.emptied {
            if let Some(entry) = viper.space.blocks.get(emptied.block) {
                entry.set(Info {
                    state: State::Sealed,
                    ..emptied.info
                });
            }
        }
        match back {
            Ok(()) if is_full => error,
            Ok(()) => viper.halt(error),
            Err(back) => viper.halt(back),
        }
    }
}
