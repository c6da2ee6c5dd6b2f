//! Viper (PVLDB 14, 2021): records in DIMM-aligned pages in persistent memory, a volatile index in DRAM.
//!
//! # The story of one put
//! 1. The session takes its key's lock ([`crate::concurrency::stripes`]) and prefetches the index's lines.
//! 2. It builds the new record, with the next version, in the block it owns ([`claim`]): in DRAM at first,
//!    then streamed past the cache in whole lines.
//! 3. While the record is on its way, it finds the current one through the index. Then one fence covers the
//!    record ([`commit`]). A torn record does not verify, so there is no valid bit and no second fence.
//! 4. It points the index entry to the new record; only now can other sessions read it.
//! 5. It marks the old record dead in its page header. The mark stays in the cache. Compaction, or the
//!    session itself after 64 of them, makes marks durable; on files they stay for longer
//!    ([`deferred_marks`]). If a crash loses a mark, recovery sees two records and the higher version wins.
//! 6. It releases the lock. On files the caller then waits for the log to be durable.
//!
//! A delete is step 5 under a fence of its own, then the index entry goes. A dead record is its own
//! tombstone: no older record of the key ever comes back.
//!
//! `docs/engines.md` tells where and why this differs from the paper.

mod batch;
mod below;
mod block_table;
mod chain;
mod check;
mod checkpoint;
mod claim;
mod commit;
mod compaction;
mod current;
mod deferred_marks;
mod edit;
#[cfg(feature = "fuzzing")]
pub mod fuzzing;
mod layout;
mod lookup;
mod maintenance;
mod read;
mod record;
mod recovery;
mod scan;
mod session;
mod space;
#[cfg(test)]
mod tests;
mod write;

use crate::concurrency::stripes::{Backoff, StripeId};
use crate::engine::background::Background;
use crate::engine::base::Base;
use crate::engine::kind::EngineKind;
use crate::engine::random::Random;
use crate::engine::{Engine, EngineSession, Loan, Ticket};
use crate::error::{Error, corrupt};
use crate::index::{Hasher, Index, KeyHash};
use crate::options::{Loading, Options};
use crate::stats::{CheckReport, Stats};
use below::Below;
use block_table::State;
use chain::lending::Lending;
use claim::Claim;
use compaction::Compaction;
use compaction::retired::Retired;
use crossbeam_utils::CachePadded;
use deferred_marks::{DeferredMarks, ListedMarks};
use everdram_pm::{Lsn, Pool};
use layout::Geometry;
use parking_lot::Mutex;
use read::Reader;
use record::Chain;
use space::Space;
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

/// Sessions the engine keeps for itself (compaction, recovery's cleanup, verification and checkpoints).
const OWN_SESSIONS: usize = 6;

/// Adds to a counter that one thread at a time writes.
fn bump_shared(counter: &AtomicU64, by: u64) {
    counter.fetch_add(by, Ordering::Relaxed);
}

/// An open Viper store.
pub(crate) struct Viper {
    base: Base,
    space: Space,
    index: Index,
    deferred_marks: DeferredMarks,
    /// Marks that sessions left in the cache, by the number of their slot.
    listed_marks: Box<[CachePadded<ListedMarks>]>,
    /// Open blocks of sessions that ended, for the next ones.
    parked: Mutex<Vec<Claim>>,
    /// Draws the names of chains.
    chance: Random,
    compaction: Compaction,
    /// The tier below, of the engine `tiered`.
    below: Option<Below>,
    recovery: Mutex<recovery::Summary>,
    /// The pool's checkpoint of the index. A writer of checkpoints holds this lock.
    checkpoint: Mutex<checkpoint::Kept>,
    checkpoint_bytes: u64,
    verification: checkpoint::verify::Verification,
    /// Whether any value has pieces that do not verify.
    unreadable: recovery::unreadable::Unreadable,
    /// Verifies after a restart, and writes checkpoints of the index.
    keeper: Background,
    /// Whether peers may read values in place.
    is_readable: bool,
    lending: Lending,
    /// Itself, for sessions that the engine opens for its own work.
    weak: Weak<Viper>,
}

impl Viper {
    /// An engine over an open pool, recovered, without background threads.
    pub(crate) fn over(
        pool: Arc<Pool>,
        path: &Path,
        options: &Options,
    ) -> Result<Arc<Viper>, Error> {
        let Some(geometry) = Geometry::from_words(pool.geometry()) else {
            return Err(Error::Corrupt {
                path: path.into(),
                offset: 0,
                what: "the geometry in the superblock makes no sense".into(),
                remedy: "Restore the pool from a copy",
            });
        };
        // The log is read by several threads, also while users have all their sessions.
        let own = match pool.engine() == EngineKind::Tiered.number() {
            true => OWN_SESSIONS + recovery::scan::threads(options),
            false => OWN_SESSIONS,
        };
        let base = Base::new(Arc::clone(&pool), path, options, own);
        let chance = options.chance();
        let bytes_max = options.max_bytes.max(pool.region().len());
        let damage = base.damage.as_deref();
        let below = Below::open(
            &pool,
            path,
            options,
            damage,
            bytes_max,
            geometry.block_bytes,
        )?;
        let space = Space::of(Arc::clone(&pool), geometry, options);
        // An open that has to read everything skips the checkpoint.
        let is_all_read = pool.is_read_only()
            || below.is_some() && (options.salvage || options.tiered.loading == Loading::AtOpen);
        let checkpoint = (!is_all_read)
            .then(|| checkpoint::load::find(&space.reader()))
            .flatten();
        let hasher = match &checkpoint {
            Some(checkpoint) => Hasher::of(&checkpoint.summary.secret),
            None => Hasher::new(&chance),
        };
        let index = Index::new(Arc::clone(&base.epochs), hasher, options.index_depth())
            .map_err(index_error)?;
        let is_readable = options.keep_room
            && base.durable_at_fence
            && !base.read_only
            && pool.engine() == EngineKind::Viper.number();
        let viper = Arc::new_cyclic(|weak| Viper {
            deferred_marks: DeferredMarks::new(geometry.page_bytes, bytes_max),
            space,
            index,
            listed_marks: base
                .counters
                .iter()
                .map(|_| CachePadded::default())
                .collect(),
            parked: Mutex::default(),
            chance,
            compaction: Compaction::new(options),
            below,
            recovery: Mutex::default(),
            checkpoint: Mutex::default(),
            // Nobody would use one.
            checkpoint_bytes: match is_all_read {
                true => 0,
                false => options.checkpoint_bytes,
            },
            verification: checkpoint::verify::Verification::default(),
            unreadable: recovery::unreadable::Unreadable::default(),
            keeper: Background::default(),
            is_readable,
            lending: Lending::new(match is_readable {
                true => options.lend_bytes / geometry.block_bytes,
                false => 0,
            }),
            weak: Weak::clone(weak),
            base,
        });
        recovery::recover(&viper, options, checkpoint).map_err(|error| viper.at_path(error))?;
        if viper.space.blocks.total() == 0 && !viper.pool.is_read_only() {
            let bytes = options.initial_bytes / viper.space.geometry.block_bytes;
            viper.space.blocks.grow(bytes.max(1))?;
        }
        if viper.is_readable {
            viper.space.blocks.hollow.keep();
        }
        if options.prefault && viper.durable_at_fence && !viper.read_only {
            viper.space.blocks.prefault();
            viper.space.blocks.hollow.keep();
        }
        Ok(viper)
    }

    #[inline]
    fn reader(&self) -> Reader<'_> {
        self.space.reader()
    }

    fn hash(&self, key: &[u8]) -> KeyHash {
        self.index.hash(key)
    }

    #[inline]
    fn stripe(&self, hash: KeyHash) -> StripeId {
        self.stripes.of(hash.0)
    }

    /// Blocks until no reader can hold a location from before `epoch`.
    fn wait_for_readers(&self, epoch: u64) {
        let mut backoff = Backoff::new();
        while !self.epochs.passed(epoch) {
            backoff.wait();
        }
    }

    /// Tells the pool of blocks that were freed since records left to the log. Before verification is done,
    /// such a record may still be without its mark.
    fn settle_freed(&self) {
        let compactor = self.compactor();
        if let Some(below) = &self.below
            && !self.compaction.retired.has_blocks()
            && !self.verification.is_running()
            && self.healthy().is_ok()
        {
            below.settle_freed(&mut self.pool.lane());
        }
        drop(compactor);
    }

    /// Queues the pieces of an unreachable value for freeing.
    fn retire_chain(&self, chain: Chain) {
        self.compaction
            .retired
            .push(&self.epochs, vec![Retired::Chain(chain)]);
    }
}

impl Deref for Viper {
    type Target = Base;

    #[inline]
    fn deref(&self) -> &Base {
        &self.base
    }
}

fn index_error(error: crate::index::IndexError) -> Error {
    match error {
        crate::index::IndexError::Rehash(location) => corrupt(
            location.get() * read::UNIT,
            "a record that the index holds cannot be read",
        ),
        other => Error::NoSpace(format!("the index in DRAM: {other}")),
    }
}

/// Geometry words of a new pool.
pub(crate) fn geometry(options: &Options) -> Result<[u64; 8], Error> {
    let geometry = Geometry::new(options.page_bytes, options.dimms, options.fixed)?;
    Ok(geometry.to_words())
}

impl Engine for Viper {
    fn name(&self) -> &'static str {
        match self.below {
            None => EngineKind::Viper.name(),
            Some(_) => EngineKind::Tiered.name(),
        }
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn EngineSession>, Error> {
        Ok(Box::new(session::ViperSession::of_user(self)?))
    }

    fn durable(&self) -> Ticket {
        self.base.durable()
    }

    fn request(&self, ticket: Ticket) {
        self.pool.request(Lsn(ticket.0));
    }

    fn subscribe(&self, advanced: Arc<dyn Fn() + Send + Sync>) {
        self.pool.subscribe(advanced);
    }

    fn committed(&self) -> Ticket {
        self.base.committed()
    }

    fn len(&self) -> u64 {
        self.keys().max(0) as u64
    }

    fn loading(&self) -> Option<(u64, u64)> {
        // A store that has halted does not go on with it.
        self.healthy().ok()?;
        self.below.as_ref()?.loading.progress()
    }

    fn sync(&self) -> Result<(), Error> {
        self.pool.sync()?;
        Ok(())
    }

    fn stats(&self) -> Stats {
        let mut stats = Stats {
            keys: self.keys().max(0) as u64,
            index_bytes: self.index.bytes(),
            blocks_reclaimed: self.compaction.blocks_reclaimed.load(Ordering::Relaxed),
            bytes_moved: self.compaction.bytes_moved.load(Ordering::Relaxed),
            ..self.base.stats()
        };
        for block in self.space.blocks.all() {
            let Some(entry) = self.space.blocks.get(block) else {
                continue;
            };
            match entry.info().state {
                State::Outside | State::Free => {
                    stats.blocks_free += 1;
                    continue;
                }
                State::Open => stats.blocks_open += 1,
                State::Checkpoint => stats.checkpoint_bytes += self.space.geometry.block_bytes,
                State::Sealed | State::Compacting | State::Unverified => {
                    stats.blocks_sealed += 1;
                    stats.live_bytes += u64::from(entry.live());
                }
                State::Overflow => stats.live_bytes += u64::from(entry.filled()),
                State::Lent => {}
            }
            stats.used_bytes += self.space.geometry.block_bytes;
        }
        if let Some(below) = &self.below {
            below.fill(&mut stats.own, self.base.sum(|of| &of.below_reads));
        }
        self.recovery.lock().fill(&mut stats);
        stats.verification = self.verification.progress();
        stats
    }

    fn verification(&self) -> Option<(u64, u64)> {
        self.verification.progress()
    }

    fn verify(&self) -> Result<(), Error> {
        match self.myself() {
            Some(viper) => {
                below::load::load_all(&viper)?;
                checkpoint::verify::verify_all(&viper)
            }
            None => Ok(()),
        }
    }

    fn checkpoint(&self) -> Result<(), Error> {
        self.verify()?;
        match self.myself() {
            Some(viper) => checkpoint::write(&viper),
            None => Ok(()),
        }
    }

    fn check(&self) -> Result<CheckReport, Error> {
        // The report also lists damage that verification meets.
        let _ = self.verify();
        check::check(self)
    }

    fn readable(&self) -> Option<Arc<Pool>> {
        self.is_readable.then(|| Arc::clone(&self.pool))
    }

    fn lender(&self) -> Option<Arc<Pool>> {
        self.lending.lends().then(|| Arc::clone(&self.pool))
    }

    fn lend(&self, key: &[u8], bytes: u64) -> Option<Loan> {
        self.lend_blocks(key, bytes)
    }

    fn take_back(&self, loan: Loan) {
        self.take_back_blocks(loan);
    }

    fn reclaim(&self) -> Result<u64, Error> {
        let freed = compaction::reclaim_all(self).map_err(|error| self.at_path(error))?;
        if let (Some(below), Some(viper)) = (&self.below, self.myself()) {
            let mut session = session::ViperSession::new(viper)?;
            below
                .rewrite(self, &mut session)
                .map_err(|error| self.at_path(error))?;
        }
        Ok(freed)
    }

    fn close(&self) -> Result<(), Error> {
        self.keeper.stop();
        self.background.stop();
        if self.read_only {
            return Ok(());
        }
        if let Some(viper) = self.myself() {
            viper.seal_parked()?;
            viper.fence_marks_at_close()?;
            viper.settle_freed();
            // Without a checkpoint, the next open only takes longer.
            let _ = checkpoint::write_at_close(&viper);
        }
        if self.is_uncertain() && self.verification.is_running() {
            // Unread blocks may have marks that only caches know: the next open must not take them for
            // durable.
            return self.pool.healthy().map_err(Error::from);
        }
        self.pool.close()?;
        Ok(())
    }
}

impl Drop for Viper {
    fn drop(&mut self) {
        self.keeper.stop();
        self.background.stop();
        // Drop cannot return the error; the next open recovers what this close did not finish.
        let _ = self.close();
    }
}
