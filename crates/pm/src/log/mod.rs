//! The redo log of the `file` medium: it makes ordinary files behave as persistent memory.
//!
//! The image is mapped privately, so stores reach no file by themselves. A lane collects the lines it flushes
//! in a [`Group`]. The fence appends the group to the log and gets its position, the LSN. The group is
//! durable once an `fdatasync` of the log covers that position. From time to time a checkpoint copies changed
//! pages to the image file, and frees the log before it.
//!
//! ```text
//!  lanes ── Group::close ──> Pending ── a waiter leads: write + fdatasync ──> segments `log-NNNNNN`
//!     \                                                                                  |
//!      stores ──> private pages ── checkpoint, after the log is durable ──> image   recovery
//! ```
//!
//! Rules for the crash model of `docs/persistence.md`:
//! 1. Log entries are whole lines. Lines that several lanes may write are copied from the image under the
//!    log's lock, in LSN order. So a later copy of a line holds all that an earlier one had. A racing store
//!    that is copied early is an eviction; its own dependencies have smaller LSNs.
//! 2. A page reaches the image file only after the log is durable up to an LSN taken after the page was
//!    copied. Otherwise a crash could show a store without what was fenced before it.
//! 3. Replaying from any earlier checkpoint is harmless: the last copy of each line in the log wins, and
//!    nothing in the image depends on more than the durable log holds.
//! 4. Acknowledged bytes are never written again: each batch starts and ends on a 4 KiB block.
//! 5. The first failed write or sync of any of the pool's files is the last: it poisons the pool and wakes
//!    the waiters, and nothing is retried. A panic of a thread that writes for others does the same
//!    (`watch.rs`).
//! 6. A page goes to the image only if a group at or after the recorded checkpoint touches it; and opening
//!    makes those pages durable before it shows them (`checkpoint.rs`).
//! 7. Memory is given back to the page cache only where the synced image has the same bytes, and while no
//!    lane stores to it (`give_back.rs`, `chunks.rs`).
//!
//! Two threads serve a log: the *flusher* makes requested positions durable (it leads like any waiter), and
//! the *checkpointer* prepares segments, writes checkpoints and gives memory back. They are two because a
//! checkpoint takes seconds, and a request must not wait for it.

mod append;
mod background;
mod bell;
mod checkpoint;
mod chunks;
mod content;
mod dirty;
mod frame;
#[cfg(feature = "fuzzing")]
pub(crate) mod fuzzing;
mod give_back;
mod group;
#[cfg(feature = "lab")]
mod lab;
mod pending;
mod recover;
mod run;
mod segment;
mod wait;
mod watch;
mod writer;

#[cfg(all(test, feature = "faults"))]
mod tests;

pub(crate) use group::Group;

use crate::blocks::data::Data;
use crate::checksum::Secret;
use crate::error::{Damage, Error};
use crate::io::{Directory, File};
use crate::medium::Durability;
use crate::memory::map::Reservation;
use crate::memory::position::Lsn;
use crate::memory::region::Region;
use crate::poison::Poison;
use background::Background;
use bell::Bell;
use dirty::DirtyPages;
use give_back::Memory;
use parking_lot::{Condvar, Mutex, RwLock};
use pending::Pending;
use segment::Segments;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use writer::Writer;

/// Bytes of a log segment; part of the format.
const SEGMENT_BYTES: u64 = 4 << 20;

/// Called for each advance of durability, or failure.
type Subscriber = Arc<dyn Fn() + Send + Sync>;

/// Options and parts of a log.
pub(crate) struct LogOptions {
    /// Where the segments are.
    pub(crate) directory: Directory,
    /// The image file, for checkpoints.
    pub(crate) image: Arc<File>,
    /// The private mapping of the image; recovery applies the log to it.
    pub(crate) region: Arc<Region>,
    /// The address space of that mapping, if unused memory is to be given back to the page cache.
    pub(crate) reservation: Option<Arc<Reservation>>,
    /// The pool's checksum key.
    pub(crate) secret: Secret,
    /// When [`Log::wait`] returns.
    pub(crate) durability: Durability,
    /// Bytes of segments to keep; a checkpoint starts when half of them are used.
    pub(crate) log_bytes: u64,
    /// [`Setup::REAL`], except in tests.
    pub(crate) setup: Setup,
    /// The pool's.
    pub(crate) poison: Arc<Poison>,
    /// From the superblock: the image holds everything before this position. 0 in a new pool.
    pub(crate) checkpoint_lsn: u64,
    /// From the superblock, where it was raised durably before this call.
    pub(crate) incarnation: u64,
    /// Writes a new `checkpoint_lsn` to the superblock, durably.
    pub(crate) record_checkpoint: Box<dyn Fn(u64) -> Result<(), Error> + Send + Sync>,
}

/// Settings that a pool does not choose, but tests and the lab do.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setup {
    /// Bytes of a segment, a multiple of 4096.
    pub(crate) segment_bytes: u64,
    /// Whether threads serve the log. Without them the waiter, or the append that finds no room, does their
    /// work; in one thread the same calls then always lead to the same writes.
    #[cfg(feature = "lab")]
    pub(crate) background: bool,
    /// Whether the write-ahead rule is in force (rule 2).
    #[cfg(any(test, feature = "lab"))]
    pub(crate) write_ahead: bool,
}

impl Setup {
    /// The setup of every real pool.
    pub(crate) const REAL: Setup = Setup {
        segment_bytes: SEGMENT_BYTES,
        #[cfg(feature = "lab")]
        background: true,
        #[cfg(any(test, feature = "lab"))]
        write_ahead: true,
    };

    #[inline]
    fn has_threads(self) -> bool {
        #[cfg(feature = "lab")]
        return self.background;
        #[cfg(not(feature = "lab"))]
        true
    }

    fn writes_ahead(self) -> bool {
        #[cfg(any(test, feature = "lab"))]
        return self.write_ahead;
        #[cfg(not(any(test, feature = "lab")))]
        true
    }
}

/// An open redo log. Dropping it without [`Log::close`] leaves the files as a crash would.
pub(crate) struct Log {
    shared: Arc<Shared>,
    background: Mutex<Option<Background>>,
}

/// What lanes, waiters and the two threads share.
struct Shared {
    options: LogOptions,
    /// Groups that no batch has taken yet. Locked for a copy of a few lines, never across a system call.
    pending: Mutex<Pending>,
    /// The role of the log writer; only its holder writes and syncs segments in use.
    writer: Mutex<Writer>,
    segments: Mutex<Segments>,
    /// One past the last position that has a segment; appends stay below it. Written under `segments`.
    prepared_end: AtomicU64,
    /// Waited on, with `segments`, by appends that found no room.
    room: Condvar,
    /// Appends that wait for room.
    starving: AtomicU32,
    /// Everything before this position survives.
    durable: AtomicU64,
    /// Counts finished batches, modulo 2^32: the futex word of waiters.
    completed: AtomicU32,
    /// Pages stored to since they were last copied to the image.
    dirty: DirtyPages,
    /// The chunks of the image that are memory, if memory is given back.
    memory: Option<Memory>,
    /// The image holds everything before this position.
    checkpoint_lsn: AtomicU64,
    /// Held during a checkpoint.
    checkpointing: Mutex<()>,
    /// The position that the flusher was asked to make durable.
    requested: AtomicU64,
    flusher: Bell,
    checkpointer: Bell,
    stopping: AtomicBool,
    subscribers: RwLock<Vec<Subscriber>>,
    /// Moving average of one write and sync.
    sync_ns: AtomicU64,
    /// Data that is made durable before each batch: records may name it.
    data: OnceLock<Arc<Data>>,
}

impl Log {
    /// Recovers: applies the log's longest unbroken run of groups to the region, prepares the log, and makes
    /// the region's contents durable in the image. The log is then empty.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if acknowledged groups are damaged or lead outside the image (the files are then
    /// unchanged); [`Error::Io`], [`Error::NoSpace`], [`Error::Options`].
    pub(crate) fn open(options: LogOptions) -> Result<Log, Error> {
        let setup = options.setup;
        let dirty = DirtyPages::default();
        // A process that died while preparing a segment may leave a file whose name exists only in caches.
        options.directory.sync()?;
        let recovered = recover::recover(&options, &dirty)?;
        let mut segments = Segments::new(&options, &recovered.files);
        segments.prepare_ahead(recovered.start)?;
        let sync_ns = match setup.has_threads() {
            true => segments.measure(recovered.start)?,
            false => 0,
        };
        let image_bytes = options.region.len();
        let memory = options.reservation.clone();
        let memory = memory.map(|reservation| Memory::new(reservation, image_bytes));
        let shared = Arc::new(Shared {
            pending: Mutex::new(Pending::new(recovered.start, setup.segment_bytes)),
            writer: Mutex::new(Writer::new(&recovered)),
            prepared_end: AtomicU64::new(segments.end()),
            segments: Mutex::new(segments),
            room: Condvar::new(),
            starving: AtomicU32::new(0),
            durable: AtomicU64::new(recovered.start),
            completed: AtomicU32::new(0),
            dirty,
            memory,
            checkpoint_lsn: AtomicU64::new(options.checkpoint_lsn),
            checkpointing: Mutex::new(()),
            requested: AtomicU64::new(0),
            flusher: Bell::default(),
            checkpointer: Bell::default(),
            stopping: AtomicBool::new(false),
            subscribers: RwLock::default(),
            sync_ns: AtomicU64::new(sync_ns),
            data: OnceLock::new(),
            options,
        });
        let log = Arc::downgrade(&shared);
        let wake = move || {
            log.upgrade()
                .iter()
                .for_each(|log| log.wake_after_failure())
        };
        shared.options.poison.on_failure(Box::new(wake));
        if recovered.start > shared.options.checkpoint_lsn {
            shared.settle()?;
        }
        let background = setup
            .has_threads()
            .then(|| Background::start(&shared))
            .transpose()?;
        Ok(Log {
            shared,
            background: Mutex::new(background),
        })
    }

    /// Applies the log to the region as [`Log::open`] does, and changes no file: it rewrites, wipes and
    /// prepares nothing, and starts no thread.
    ///
    /// # Errors
    /// As [`Log::open`].
    pub(crate) fn replay(options: &LogOptions) -> Result<(), Error> {
        recover::replay(options)
    }

    /// As [`Log::replay`]. If the log is damaged, applies the intact part before the damage and returns the
    /// damage.
    ///
    /// # Errors
    /// As [`Log::open`], except for damage.
    pub(crate) fn salvage(options: &LogOptions) -> Result<Option<Damage>, Error> {
        recover::salvage(options)
    }

    /// A collector for one lane.
    pub(crate) fn group(&self) -> Group {
        Group::new(Arc::clone(&self.shared))
    }

    /// Blocks until `lsn` may be acknowledged: until it is durable in class `always`, not at all otherwise.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    #[inline]
    pub(crate) fn wait(&self, lsn: Lsn) -> Result<(), Error> {
        self.shared.serve_without_thread();
        match self.shared.options.durability {
            Durability::Always => self.shared.wait_durable(lsn.0),
            Durability::EverySec | Durability::None => self.shared.healthy(),
        }
    }

    /// Blocks until everything appended so far is durable, in every durability class.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub(crate) fn sync(&self) -> Result<(), Error> {
        self.shared.serve_without_thread();
        self.shared.wait_durable(self.shared.end())
    }

    /// Blocks until `lsn` is durable, in every durability class.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub(crate) fn make_durable(&self, lsn: Lsn) -> Result<(), Error> {
        self.shared.serve_without_thread();
        self.shared.wait_durable(lsn.0)
    }

    /// From now on each batch is written only once this data is durable: a record in it may name blocks that
    /// were written before it was appended. There is one data file.
    pub(crate) fn precede_by(&self, data: Arc<Data>) {
        assert!(
            self.shared.data.set(data).is_ok(),
            "a pool has a second data file"
        );
    }

    /// Asks the flusher to make `lsn` durable and to tell the subscribers. Without threads the waiter does
    /// it.
    #[inline]
    pub(crate) fn request(&self, lsn: Lsn) {
        let shared = &self.shared;
        if !shared.options.setup.has_threads() {
            return;
        }
        if shared.options.durability == Durability::Always && self.durable() < lsn {
            shared.requested.fetch_max(lsn.0, Ordering::AcqRel);
            shared.flusher.ring();
        }
    }

    /// Registers a callback for each advance of durability and for the failure of the log. It runs on the
    /// thread that wrote the batch. It must be short and must not call the log; a panic fails the log.
    pub(crate) fn subscribe(&self, advanced: Subscriber) {
        self.shared.subscribers.write().push(advanced);
    }

    /// Everything up to here survives.
    #[inline]
    pub(crate) fn durable(&self) -> Lsn {
        Lsn(self.shared.durable.load(Ordering::Acquire))
    }

    /// Everything up to here may be acknowledged in the durability class: [`Log::durable`] in class
    /// `always`, [`Log::end`] in the others.
    #[inline]
    pub(crate) fn acknowledged(&self) -> Lsn {
        match self.shared.options.durability {
            Durability::Always => self.durable(),
            Durability::EverySec | Durability::None => self.end(),
        }
    }

    /// Everything appended so far is before this position.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.shared.end())
    }

    /// As [`Log::end`]; `Lsn(u64::MAX)` once the log has failed, and drops groups.
    pub(crate) fn fenced(&self) -> Lsn {
        match self.shared.is_healthy() {
            true => self.end(),
            false => Lsn(u64::MAX),
        }
    }

    /// The log still takes writes.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after the first failed write or sync.
    #[cfg(all(test, feature = "faults"))]
    pub(crate) fn healthy(&self) -> Result<(), Error> {
        self.shared.healthy()
    }

    /// Copies every changed page to the image and frees the log before it. Writers continue meanwhile.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub(crate) fn checkpoint(&self) -> Result<(), Error> {
        self.shared.serve_without_thread();
        self.shared.checkpoint()
    }

    /// Bytes of log that recovery would read, and bytes of segments on disk.
    pub(crate) fn usage(&self) -> (u64, u64) {
        let used = self
            .shared
            .end()
            .saturating_sub(self.shared.checkpoint_lsn.load(Ordering::Acquire));
        (used, self.shared.segments.lock().bytes())
    }

    /// Moving average of one write and sync; at first the value measured at open.
    pub(crate) fn sync_latency(&self) -> Duration {
        Duration::from_nanos(self.shared.sync_ns.load(Ordering::Relaxed))
    }

    /// Makes everything durable, stops the threads and checkpoints, so that the log is empty. Lanes must
    /// be idle.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub(crate) fn close(&self) -> Result<(), Error> {
        if let Some(background) = self.background.lock().take() {
            background.stop(&self.shared);
        }
        self.shared.checkpoint()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        if let Some(background) = self.background.lock().take() {
            background.stop(&self.shared);
        }
    }
}

impl Shared {
    #[inline]
    fn healthy(&self) -> Result<(), Error> {
        self.options.poison.healthy()
    }

    /// [`Shared::healthy`] without the reason.
    #[inline]
    fn is_healthy(&self) -> bool {
        self.options.poison.is_healthy()
    }

    fn end(&self) -> u64 {
        self.pending.lock().end()
    }
}
