//! Bullet (USENIX ATC 2018): a volatile hash table in front, a persistent one behind, and cross-referencing
//! logs between them.
//!
//! # The story of one put
//! 1. The session takes a log with room, if it has none. So it never waits for room while it holds anything
//!    ([`crate::crl`]).
//! 2. It takes its key's stripe ([`crate::concurrency::stripes`]): the lock of a row of buckets, and the
//!    clock of their versions. It finds the key's node in the front ([`front`]).
//! 3. It appends a record to the log: the operation, the key, and the place of the key's previous record. It
//!    writes the key's new node, which no reader can find yet.
//! 4. One fence covers the record. A torn record does not verify, so there is no tail to write and no second
//!    fence.
//! 5. The new node replaces the old one in the table; only now can others read it. The session gives back the
//!    stripe and the log.
//! 6. Later a gleaner reads the record and brings the key's object in the back to the front's state, in a
//!    transaction ([`gleaner`]). Once an epoch's records are all applied, the ledger says so
//!    ([`pass`](gleaner::pass)), and the logs have room again.
//!
//! A get reads the front: one word that writers of its row write, a bucket, a node. It reads the back only if
//! the front is incomplete: after a restart, or after an eviction ([`front::eviction`]).
//!
//! `docs/engines.md` says where and why this differs from the paper.

mod back;
pub(super) mod back_hint;
mod baselines;
mod batch;
mod check;
pub(super) mod counters;
mod front;
mod gleaner;
mod layout;
mod maintenance;
mod overflow_record;
mod read;
mod recovery;
mod scan;
mod session;
mod table;
mod write;

use crate::concurrency::retired::Retired;
use crate::concurrency::stripes::StripeId;
use crate::crl::Logs;
use crate::engine::base::Base;
use crate::engine::persist_on_read::ReadFlusher;
use crate::engine::{Engine, EngineSession, Ticket};
use crate::error::{Error, corrupt};
use crate::heap::Redo;
use crate::options::{BulletSystem, Options};
use crate::stats::{CheckReport, Stats};
use back::Back;
use back::root::ROOT_WORDS;
use baselines::reader_locks::ReaderLocks;
use crossbeam_utils::CachePadded;
use everdram_pm::{Lsn, Pool};
use front::{Front, Node};
use gleaner::Gleaning;
use gleaner::reserve::Reserve;
use layout::{AREAS_MAX, Geometry, LOGS_OWNER, ObjectHead};
use maintenance::Growing;
use parking_lot::Mutex;
use session::{BulletSession, FrontCounters};
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

/// How often a thread that needs room waits for others: some milliseconds in all.
const WAITS_MAX: usize = 400;
/// Sessions the engine keeps for itself: gleaners, and the sweep of expired keys.
const OWN_SESSIONS: usize = AREAS_MAX as usize + 4;

/// An open Bullet store.
pub(crate) struct Bullet {
    base: Base,
    geometry: Geometry,
    front: Front,
    back: Back,
    redo: Arc<Redo>,
    logs: Logs,
    system: BulletSystem,
    /// Locks that gets take, in the system `static` alone.
    reader_locks: Option<ReaderLocks>,
    /// Top bits of a hash that number its stripe.
    row_bits: u32,
    /// Each session's counters of the front, by slot number.
    front_counters: Box<[CachePadded<FrontCounters>]>,
    /// Keys at the end of recovery.
    keys_before: i64,
    /// The front has every key.
    complete: AtomicBool,
    gleaning: Gleaning,
    reserve: Reserve,
    growing: Growing,
    /// Nodes that sessions left when they ended.
    retired_nodes: Mutex<Retired<(u64, u64)>>,
    recovery: recovery::Summary,
    closed: AtomicBool,
}

/// The geometry words of a new pool.
pub(crate) fn geometry(options: &Options) -> Result<[u64; 8], Error> {
    Ok(Geometry::new(&options.bullet, options.max_bytes)?.to_words())
}

impl Bullet {
    /// An engine over an open pool, recovered, without background threads.
    pub(crate) fn over(
        pool: Arc<Pool>,
        path: &Path,
        options: &Options,
    ) -> Result<Arc<Bullet>, Error> {
        let at_path = |error: Error| error.at_path(path);
        let Some(geometry) = Geometry::from_words(pool.geometry()) else {
            return Err(at_path(corrupt(
                0,
                "the geometry in the superblock makes no sense",
            )));
        };
        let system = options.bullet.system;
        let is_new = ROOT_WORDS
            .iter()
            .all(|at| pool.region().load_word(*at) == 0);
        if geometry.bound != system.bound() || geometry.bound != 0 && !is_new {
            return Err(Error::Options(
                "the pool is of a system that exists to be measured, and such pools are opened once; make a new one".into(),
            ));
        }
        let begun = std::time::Instant::now();
        let mut base = Base::new(Arc::clone(&pool), path, options, OWN_SESSIONS);
        let logs_at = logs_extent(&pool, &geometry).map_err(at_path)?;
        let mut found = ReadFlusher::new(pool.lane());
        let redo = Arc::new(Redo::new(
            Arc::clone(&pool),
            logs_at,
            geometry.areas(),
            geometry.area_bytes,
        ));
        let (ledger, books, mut back) = recovery::open_parts(
            &pool,
            (&geometry, &geometry.logs_from(logs_at)),
            options,
            &redo,
            &mut found,
            base.damage.as_ref(),
        )
        .map_err(at_path)?;
        back.has_books = system != BulletSystem::HikvHt;
        // Objects of the back may expire, and no counter says whether any does.
        base.expiries = AtomicBool::new(!back.is_new);
        base.floor = AtomicU64::new(books.floor);
        base.halted = back.halted.clone();
        let row_bits = base.stripes.count().ilog2().min(geometry.depth);
        let mut bullet = Bullet {
            front: Front::new(geometry.depth, options.bullet.front_bytes).map_err(at_path)?,
            logs: Logs::new(Arc::clone(&pool), geometry.logs_from(logs_at), ledger),
            geometry,
            redo,
            reader_locks: system
                .locks_gets()
                .then(|| ReaderLocks::new(base.stripes.count())),
            system,
            row_bits,
            front_counters: base
                .counters
                .iter()
                .map(|_| CachePadded::default())
                .collect(),
            keys_before: 0,
            complete: AtomicBool::new(back.is_new && system.has_front()),
            gleaning: Gleaning::new(system, options, books.swept),
            reserve: Reserve::default(),
            growing: Growing::default(),
            retired_nodes: Mutex::default(),
            recovery: recovery::Summary::default(),
            closed: AtomicBool::new(false),
            back,
            base,
        };
        let progress = options.progress.clone();
        let report = move |done, all| {
            if let Some(progress) = &progress {
                progress(done, all);
            }
        };
        // Each key of the ledger's count has an object.
        if books.keys as i64 > (bullet.back.heap.bytes().0 / everdram_pm::LINE) as i64 {
            let what = "the ledger counts more keys than the heap has room for";
            bullet
                .tolerate(corrupt(everdram_pm::ROOT_AT, what))
                .map_err(at_path)?;
        }
        let threads = options.recoverers();
        let (records, keys) =
            recovery::replay_logs(&bullet, &books, threads, &report).map_err(at_path)?;
        if !bullet.read_only {
            bullet.back.heap.sweep(&mut found.lane);
            if bullet.back.is_new {
                // If the pool cannot grow that far, the heap starts smaller.
                let _ = bullet.back.heap.grow_to(options.initial_bytes);
            }
            bullet.keep_room();
        }
        bullet.keys_before = (books.keys as i64).wrapping_add(keys);
        bullet.back.objects = AtomicI64::new(books.keys as i64);
        bullet.recovery = recovery::Summary {
            records,
            microseconds: begun.elapsed().as_micros() as u64,
        };
        Ok(Arc::new(bullet))
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.pool.secret().sum(key)
    }

    /// The stripe of a hash: a row of buckets of the front.
    #[inline]
    fn stripe(&self, hash: u64) -> StripeId {
        // With one stripe there are no bits.
        let row = hash.checked_shr(64 - self.row_bits).unwrap_or(0);
        self.stripes.numbered(row as usize)
    }

    /// Raises the clock of every stripe: before sessions run, or while all stripes are held.
    fn raise_clocks(&self, version: u64) {
        self.stripes
            .all()
            .for_each(|stripe| self.stripes.raise(stripe, version));
    }

    /// Whether a key that is absent from the front is absent from the back, too.
    #[inline]
    fn is_complete(&self) -> bool {
        self.complete.load(Ordering::Relaxed)
    }

    /// From now on, versions up to `floor` do not count.
    fn clear_up_to(&self, floor: u64) {
        self.floor.fetch_max(floor, Ordering::AcqRel);
    }

    /// Whether a node's key exists; it may have expired.
    #[inline]
    fn counts(&self, node: &Node) -> bool {
        !node.is_tombstone && node.version > self.floor()
    }

    /// Whether users see the node's key.
    #[inline]
    fn is_live(&self, node: &Node) -> bool {
        self.counts(node) && !self.is_expired(node.expires_at_ms)
    }

    /// As [`Bullet::is_live`], of an object of the back.
    fn is_live_object(&self, head: &ObjectHead) -> bool {
        head.version > self.floor() && !self.is_expired(head.expires_at_ms)
    }

    /// Appends the value of a node, from the front or the back; under a pin, or with the stripe held.
    #[inline]
    fn value_of(
        &self,
        node: &Node,
        scratch: &mut Vec<u8>,
        into: &mut Vec<u8>,
    ) -> Result<(), Error> {
        match node.object {
            0 => {
                self.front.value(node, into);
                Ok(())
            }
            at => self.back.value_at(at, scratch, into).map(drop),
        }
    }

    /// The sum of a front counter over all sessions.
    fn front_sum(&self, field: impl Fn(&FrontCounters) -> &AtomicU64) -> u64 {
        let counts = self
            .front_counters
            .iter()
            .map(|session| field(session).load(Ordering::Relaxed));
        counts.fold(0, u64::wrapping_add)
    }

    /// Nodes in the front.
    fn nodes(&self) -> i64 {
        let of_session = |one: &CachePadded<FrontCounters>| one.nodes.load(Ordering::Relaxed);
        let nodes: i64 = self.front_counters.iter().map(of_session).sum();
        nodes + self.front.nodes.load(Ordering::Relaxed)
    }
}

impl Deref for Bullet {
    type Target = Base;

    #[inline]
    fn deref(&self) -> &Base {
        &self.base
    }
}

#[cfg(test)]
impl Bullet {
    /// A small engine in heap memory, without background threads.
    fn in_memory(front_bytes: Option<u64>) -> Arc<Bullet> {
        let options = Bullet::small(front_bytes);
        let words = geometry(&options).unwrap();
        let pool = Pool::heap(
            32 << 20,
            crate::engine::kind::EngineKind::Bullet.number(),
            words,
        );
        Bullet::over(pool, Path::new("heap"), &options).unwrap()
    }

    fn small(front_bytes: Option<u64>) -> Options {
        Options {
            max_bytes: 64 << 20,
            reclaim_background: false,
            bullet: crate::options::BulletOptions {
                logs: 2,
                depth: 4,
                front_bytes,
                ..Default::default()
            },
            ..Options::default()
        }
    }
}

/// The offset of the areas and logs; allocates their extent in a new pool.
fn logs_extent(pool: &Pool, geometry: &Geometry) -> Result<u64, Error> {
    let extents = pool.extents(LOGS_OWNER);
    match extents.first() {
        Some(extent) if extent.bytes == geometry.logs_extent() && extents.len() == 1 => {
            Ok(extent.at)
        }
        Some(extent) => Err(corrupt(
            extent.at,
            "the extent of the logs does not have their size",
        )),
        None => Ok(pool.allocate(LOGS_OWNER, geometry.logs_extent(), 4096)?.at),
    }
}

impl Engine for Bullet {
    fn name(&self) -> &'static str {
        crate::engine::kind::EngineKind::Bullet.name()
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn EngineSession>, Error> {
        Ok(Box::new(BulletSession::of_user(self)?))
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
        (self.keys_before + self.keys()).max(0) as u64
    }

    fn sync(&self) -> Result<(), Error> {
        self.pool.sync()?;
        Ok(())
    }

    fn stats(&self) -> Stats {
        let (heap, taken) = self.back.heap.bytes();
        let (front, front_used) = self.front.bytes();
        let shared = self.base.stats();
        let misses = self.front_sum(|session| &session.behind);
        Stats {
            keys: self.len(),
            used_bytes: taken,
            live_bytes: taken,
            index_bytes: front,
            blocks_free: heap.saturating_sub(taken) / everdram_pm::LINE,
            blocks_sealed: taken / everdram_pm::LINE,
            own: match self.system.has_front() {
                true => vec![
                    ("front_used_bytes", Some(front_used)),
                    ("front_budget_bytes", self.front.budget.bytes()),
                    ("front_hits", Some(shared.gets.saturating_sub(misses))),
                    ("front_misses", Some(misses)),
                    (
                        "front_filled",
                        Some(self.front_sum(|session| &session.filled)),
                    ),
                    (
                        "front_evicted",
                        Some(self.front_sum(|session| &session.evicted)),
                    ),
                ],
                false => Vec::new(),
            },
            recovery_us: self.recovery.microseconds,
            recovered_records: self.recovery.records,
            ..shared
        }
    }

    fn check(&self) -> Result<CheckReport, Error> {
        check::check(self)
    }

    fn reclaim(&self) -> Result<u64, Error> {
        let (_, before) = self.back.heap.bytes();
        self.sweep_all_cleared()?;
        self.glean_all()?;
        let (_, after) = self.back.heap.bytes();
        Ok(before.saturating_sub(after))
    }

    fn close(&self) -> Result<(), Error> {
        self.background.stop();
        if self.read_only || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        // Records that are gleaned now need no replay at the next open, and cannot look like a torn end of a
        // log. The next open gleans the others.
        let _ = self.glean_all();
        self.gleaning.gleaners.lock().clear();
        self.pool.close()?;
        Ok(())
    }
}

impl Drop for Bullet {
    fn drop(&mut self) {
        // A destructor cannot return the error; the next open recovers unfinished work.
        let _ = self.close();
    }
}
