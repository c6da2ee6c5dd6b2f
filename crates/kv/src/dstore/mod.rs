//! DStore (HPDC 2021): values in blocks on a disk, metadata in DRAM, and DIPPER to make the metadata
//! persistent.
//!
//! # The story of one put of 4 KiB
//! 1. The session takes the key's stripe ([`crate::concurrency::stripes`]) and finds the object's slot
//!    through the index. The slot is the paper's metadata page: length, expiry, key, and where the value is.
//!    While index and slot come from memory, it copies the value into its write buffer and sums it
//!    ([`blocks`]).
//! 2. It takes a block of the data file from its own chunk ([`room`]). A new object also gets a slot and a
//!    cell for its key. The write is *submitted*.
//! 3. [`commit`] writes the buffer, blocks that are neighbours together, and makes it durable. On the `file`
//!    medium the redo log does that.
//! 4. It appends an entry to a log, with the object's whole new state and without the value, and fences it:
//!    now the write survives. No log is held across input or output.
//! 5. It shows the slot ([`memory`]); a new key enters the index and the order of keys ([`order`]). What the
//!    old state used is used again later ([`room`]).
//! 6. Some time later a checkpoint replays the entry on the shadow ([`crate::dipper`]), and the log has room
//!    again. Nobody waits for it.
//!
//! A get finds the slot, copies it between two looks at its LSN, and reads the blocks; it takes no lock.
//!
//! `docs/engines.md` says where and why this differs from the paper.

mod baselines;
mod batch;
mod blocks;
mod change;
mod check;
mod commit;
mod edit;
mod layout;
mod machine;
mod maintenance;
mod memory;
mod order;
mod read;
mod recovery;
mod room;
mod salvage;
mod scan;
mod session;
mod write;

use crate::concurrency::retired::Retired;
use crate::crl::{Ledger, Logs, RecordAt, Step};
use crate::dipper::{Dipper, Shadow};
use crate::engine::background::Background;
use crate::engine::base::Base;
use crate::engine::counters::Counters;
use crate::engine::damage::Damage;
use crate::engine::persist_on_read::ReadFlusher;
use crate::engine::{Engine, EngineSession, Ticket};
use crate::error::{Error, corrupt};
use crate::index::{Hasher, Index};
use crate::options::{DstoreSystem, Options};
use crate::stats::{CheckReport, Stats};
use baselines::copy_on_write::CopyOnWrite;
use blocks::Values;
use everdram_pm::lock::lock;
use everdram_pm::{BlocksOptions, Lsn, Pool};
use layout::{Geometry, LOGS_OWNER, PATH_AT, TOKENS_AT};
use machine::Objects;
use memory::Memory;
use order::Order;
use parking_lot::{Mutex, MutexGuard};
use room::{Freed, Room};
use session::DstoreSession;
use std::ops::Deref;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// Sessions the engine keeps for itself: the sweeps.
const OWN_SESSIONS: usize = 4;

/// Runs of the blocks of a parcel, and the entry that names it: they are free once it is reclaimed.
type Parcel = (RecordAt, Vec<(u64, u32)>);

/// An open DStore store.
pub(crate) struct Dstore {
    base: Base,
    geometry: Geometry,
    memory: Memory,
    index: Index,
    /// The keys in order. Locked for a microsecond when a key comes or goes.
    order: Mutex<Order>,
    values: Arc<Values>,
    room: Room,
    dipper: Dipper<Objects>,
    machine: Objects,
    system: DstoreSystem,
    /// Whether the background takes checkpoints; writers who find no room always do.
    by_itself: bool,
    /// In systems that have one lock over allocation, metadata and log.
    one_lock: Mutex<()>,
    cow: Option<CopyOnWrite>,
    parcels: Mutex<Vec<Parcel>>,
    /// What objects do not use any more, and readers may still be looking at.
    retired: Mutex<Retired<(u64, Freed)>>,
    /// The next slot that the sweep after a clear looks at; beyond the last: there is nothing to sweep.
    swept: Mutex<u64>,
    sweeps: AtomicBool,
    /// Keys at the end of recovery.
    keys_before: AtomicU64,
    recovery: Mutex<recovery::Summary>,
    /// Lets room grow ahead of the writers.
    growth: Background,
    closed: AtomicBool,
}

/// The geometry words of a new pool.
pub(crate) fn geometry(options: &Options) -> Result<[u64; 8], Error> {
    Ok(Geometry::new(&options.dstore, options.max_bytes)?.to_words())
}

/// The offset of the logs; allocates their extent in a new pool.
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
        None => {
            let allocated = pool.allocate(LOGS_OWNER, geometry.logs_extent(), 4096);
            Ok(allocated.map_err(Error::of_pool)?.at)
        }
    }
}

impl Dstore {
    /// An engine over an open pool, recovered, without background threads.
    pub(crate) fn over(
        pool: Arc<Pool>,
        path: &Path,
        options: &Options,
    ) -> Result<Arc<Dstore>, Error> {
        let at_path = |error: Error| error.at_path(path);
        let Some(geometry) = Geometry::from_words(pool.geometry()) else {
            let what = "the geometry in the superblock makes no sense";
            return Err(at_path(corrupt(0, what)));
        };
        let system = options.dstore.system;
        let is_new = pool.region().load_word(TOKENS_AT) == 0;
        if geometry.bound != system.bound() || geometry.bound != 0 && !is_new {
            return Err(Error::Options(
                "the pool is of a system that exists to be measured, and such pools are opened once; make a new one".into(),
            ));
        }
        if geometry.bound != 0 && pool.durable() != Lsn(u64::MAX) {
            return Err(Error::Options(format!(
                "the system `{system}` exists to be measured on memory; choose the medium `emulated` or `pmem`"
            )));
        }
        let mut timing = recovery::Timing::begin();
        let base = Base::new(Arc::clone(&pool), path, options, OWN_SESSIONS);
        let file = pool.open_blocks(&BlocksOptions {
            path: options.dstore.data.clone(),
            block_bytes: geometry.block_bytes,
            bytes_max: options.dstore.data_bytes_max,
            tokens_at: TOKENS_AT,
            path_at: PATH_AT,
            delay: options.dstore.data_delay.clone(),
            reads_directly: options.dstore.reads_directly,
        });
        let values = Arc::new(Values {
            pool: Arc::clone(&pool),
            blocks: file.map_err(Error::of_pool)?,
            geometry,
        });
        let mut found = ReadFlusher::new(pool.lane());
        let (logs, shadow) =
            open_parts(&pool, &geometry, options, &mut found, base.damage.as_ref())
                .map_err(at_path)?;
        found.settle();
        let machine = Objects {
            geometry,
            values: Arc::clone(&values),
            slots_max: AtomicU64::new(0),
            grains_max: AtomicU64::new(0),
            is_recovering: AtomicBool::new(true),
            parcels: Mutex::default(),
            damage: base.damage.clone(),
            lost: Mutex::default(),
        };
        machine.limit(shadow.segment_bytes_max());
        let memory = Memory::new()?;
        let recovered = recovery::load(
            &pool,
            &shadow,
            &logs,
            &machine,
            &memory,
            options,
            &mut timing,
        )
        .map_err(at_path)?;
        let depth = options.index_depth();
        let index = Index::new(
            Arc::clone(&base.epochs),
            Hasher::new(&options.chance()),
            depth,
        )
        .map_err(|error| Error::NoSpace(format!("the index in DRAM: {error}")))?;
        let piece = geometry.shadow(options.max_bytes, system).piece;
        let cow = match system.copies_on_write() {
            true => Some(CopyOnWrite::new(geometry.page_bytes)?),
            false => None,
        };
        base.floor.store(recovered.floor, Ordering::Relaxed);
        let dstore = Arc::new(Dstore {
            dipper: Dipper::new(logs, shadow, piece),
            geometry,
            memory,
            index,
            order: Mutex::default(),
            values,
            room: Room::new(),
            machine,
            system,
            by_itself: options.reclaim_background,
            one_lock: Mutex::default(),
            cow,
            parcels: Mutex::default(),
            retired: Mutex::default(),
            swept: Mutex::new(u64::MAX),
            sweeps: AtomicBool::new(false),
            keys_before: AtomicU64::new(0),
            recovery: Mutex::default(),
            growth: Background::default(),
            closed: AtomicBool::new(false),
            base,
        });
        recovery::build(&dstore, options, &mut timing).map_err(at_path)?;
        if let Some(cow) = &dstore.cow {
            cow.change_all();
        }
        *dstore.recovery.lock() = timing.end(recovered.records);
        Ok(dstore)
    }

    #[inline]
    fn hash(&self, key: &[u8]) -> u64 {
        self.pool.secret().sum(key)
    }

    /// From now on, objects with LSNs up to `floor` do not count.
    fn clear_up_to(&self, floor: u64) {
        self.floor.fetch_max(floor, Ordering::AcqRel);
    }

    /// Takes the one lock, in systems that have it.
    #[inline]
    fn alone(&self) -> Option<MutexGuard<'_, ()>> {
        self.system.has_one_lock().then(|| lock(&self.one_lock))
    }

    /// Takes a step of a checkpoint; frees the parcels whose records are reclaimed.
    fn checkpoint_step(&self, force: bool) -> Result<Step, Error> {
        let step = match &self.cow {
            Some(cow) => self.copy_step(cow, force),
            None => self.dipper.step(&self.machine, force),
        };
        let step = step.map_err(|error| self.at_path(error))?;
        if let Step::Reclaimed(_) = step {
            let is_reclaimed = |(entry, _): &mut Parcel| {
                entry.place().is_none_or(|(log, position)| {
                    self.dipper.logs.log(log).head.load(Ordering::Acquire) > position
                })
            };
            let mut parcels = lock(&self.parcels);
            let free: Vec<Parcel> = parcels.extract_if(.., is_reclaimed).collect();
            drop(parcels);
            // The ledger is fenced, but may not survive yet: until then the entries count.
            let position = self.pool.fenced().0;
            for (first, count) in free.into_iter().flat_map(|(_, runs)| runs) {
                let freed = Freed::Blocks { first, count };
                self.room.free(&self.pool, position, freed);
            }
        }
        Ok(step)
    }
}

/// Logs and shadow of a pool.
fn open_parts(
    pool: &Arc<Pool>,
    geometry: &Geometry,
    options: &Options,
    found: &mut ReadFlusher,
    damage: Option<&Arc<Damage>>,
) -> Result<(Logs, Shadow), Error> {
    let shape = geometry.logs_from(logs_extent(pool, geometry)?);
    let ledger = match Ledger::find(pool, found, shape.count) {
        Ok(None) if !shape.is_blank(pool) => {
            let what = "the ledger is missing, and the logs are not empty";
            Err(corrupt(crate::crl::LEDGERS_AT, what))
        }
        other => other,
    };
    let ledger = match ledger {
        Err(error) => {
            salvage::without_ledger(damage, error)?;
            None
        }
        Ok(ledger) => ledger,
    };
    let notes = ledger.as_ref().map(|ledger| ledger.notes);
    let ledger = match ledger {
        Some(ledger) => ledger,
        None => Ledger::first(&mut found.lane, shape.count),
    };
    let shadow = Shadow::open(
        pool,
        geometry.shadow(options.max_bytes, options.dstore.system),
        notes,
        damage.is_some(),
    )?;
    Ok((Logs::new(Arc::clone(pool), shape, ledger), shadow))
}

impl Deref for Dstore {
    type Target = Base;

    #[inline]
    fn deref(&self) -> &Base {
        &self.base
    }
}

impl Engine for Dstore {
    fn name(&self) -> &'static str {
        crate::engine::kind::EngineKind::Dstore.name()
    }

    fn session(self: Arc<Self>) -> Result<Box<dyn EngineSession>, Error> {
        Ok(Box::new(DstoreSession::of_user(self)?))
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
        let before = self.keys_before.load(Ordering::Relaxed) as i64;
        (before + self.keys()).max(0) as u64
    }

    fn sync(&self) -> Result<(), Error> {
        self.pool.sync()?;
        Ok(())
    }

    fn stats(&self) -> Stats {
        let block = u64::from(self.geometry.block_bytes);
        let taken = self.room.blocks.taken();
        let (shadow, shadow_free) = self.dipper.shadow(Shadow::bytes);
        let counts = self.dipper.counts();
        let count = |counter: &AtomicU64| Some(counter.load(Ordering::Relaxed));
        let sum = |field: fn(&Counters) -> &AtomicU64| Some(self.base.sum(field));
        let recovery = *self.recovery.lock();
        let phases = recovery
            .phases
            .map(|(name, microseconds)| (name, Some(microseconds)));
        Stats {
            keys: self.len(),
            used_bytes: taken * block,
            live_bytes: taken * block,
            index_bytes: self.index.bytes() + self.memory.bytes() + lock(&self.order).bytes(),
            blocks_free: self.room.blocks.free(),
            blocks_sealed: taken,
            own: [
                ("data_file_bytes", Some(self.values.blocks.backed_bytes())),
                ("data_used_bytes", Some(taken * block)),
                ("metadata_dram_bytes", Some(self.memory.bytes())),
                ("shadow_bytes", Some(shadow - shadow_free)),
                ("log_used_bytes", Some(self.dipper.logs.used_bytes())),
                ("checkpoints", count(&counts.checkpoints)),
                ("checkpoint_changes", count(&counts.changes)),
                ("checkpoint_written_bytes", count(&counts.bytes)),
                ("data_written_bytes", sum(|of| &of.data_written)),
                ("data_read_bytes", sum(|of| &of.data_read)),
                ("data_syncs", Some(self.values.blocks.syncs())),
                ("log_written_bytes", sum(|of| &of.log_written)),
                ("log_waits", sum(|of| &of.log_waits)),
            ]
            .into_iter()
            .chain(phases)
            .collect(),
            recovery_us: recovery.microseconds,
            recovered_records: recovery.records,
            ..self.base.stats()
        }
    }

    fn check(&self) -> Result<CheckReport, Error> {
        check::check(self)
    }

    fn checkpoint(&self) -> Result<(), Error> {
        self.checkpoint_all()
    }

    fn reclaim(&self) -> Result<u64, Error> {
        let before = self.room.blocks.taken();
        self.reclaim_all()?;
        let after = self.room.blocks.taken();
        Ok(before.saturating_sub(after) * u64::from(self.geometry.block_bytes))
    }

    fn close(&self) -> Result<(), Error> {
        self.background.stop();
        self.growth.stop();
        if self.read_only || self.closed.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        if self.healthy().is_ok() {
            // Without it, the next open only replays more.
            let _ = self.checkpoint_all();
        }
        self.pool.close()?;
        Ok(())
    }
}

impl Drop for Dstore {
    fn drop(&mut self) {
        self.background.stop();
        self.growth.stop();
        // Drop cannot return the error; the next open recovers what this close did not finish.
        let _ = self.close();
    }
}
