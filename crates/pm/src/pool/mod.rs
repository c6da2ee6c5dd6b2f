//! A pool: one image of persistent bytes, its superblock, its medium.
//!
//! Invariants:
//! - While a pool is open to write the superblock says "not clean". Only [`Pool::close`] changes that, after
//!   all else is durable. Dropping a pool without closing it counts as a crash, on purpose: recovery is the
//!   only way to start, so it is exercised.
//! - Every open raises the incarnation durably before it writes anything else; an open with `read_only`
//!   writes nothing at all (`view.rs`).
//! - The image only grows, by extents; the superblock records an extent before its owner uses it.

pub(super) mod carrier;
pub(super) mod erase;
pub(super) mod growth;
pub(super) mod header;
pub(super) mod inspect;
pub(super) mod opening;
pub(super) mod pages;
pub(super) mod place;
pub(super) mod probe;
pub(super) mod report;
pub(super) mod superblock;
pub(super) mod view;
pub(super) mod window;

use crate::checksum::Secret;
use crate::error::{Damage, Error};
use crate::io::Directory;
use crate::log::Log;
use crate::medium::{Durability, Medium, MediumChoice, Report};
use crate::memory::cpu::FlushKind;
use crate::memory::delay::Delay;
use crate::memory::position::{Durable, Lsn};
use crate::memory::preset::DiskPreset;
use crate::memory::region::Region;
use growth::Growth;
use header::Header;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use superblock::extent::Extent;

/// How to open or create a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Medium. `auto` chooses for a new pool, and means the recorded one for an existing pool.
    pub medium: MediumChoice,
    /// Create a pool if there is none.
    pub create: bool,
    /// Open an existing pool.
    pub open: bool,
    /// Open the existing pool in private memory, to look at it: whatever the caller does, nothing changes on
    /// the medium. It cannot grow, acknowledges nothing, and ignores `create`. `auto` then also means
    /// `emulated`. Several readers may look at once, but not while a process has the pool open to write.
    pub read_only: bool,
    /// With `read_only`: damage that ends what can be recovered does not fail the open. The intact part is
    /// readable, and [`Pool::damage`] lists the rest.
    pub salvage: bool,
    /// Acknowledgement class on the `file` medium.
    pub durability: Durability,
    /// The image may grow to this many bytes.
    pub max_bytes: u64,
    /// Redo log bytes to keep preallocated (`file`).
    pub log_bytes: u64,
    /// Delay model preset (`emulated`).
    pub delay: Option<String>,
    /// New pools: the engine's number.
    pub engine: u32,
    /// New pools: the engine's geometry words.
    pub geometry: [u64; 8],
    /// Existing pools: numbers of the engines to accept. Empty: any.
    pub engines: Vec<u32>,
}

impl Default for PoolOptions {
    fn default() -> Self {
        PoolOptions {
            medium: MediumChoice::Auto,
            create: true,
            open: true,
            read_only: false,
            salvage: false,
            durability: Durability::Always,
            max_bytes: 1 << 40,
            log_bytes: 64 << 20,
            delay: None,
            engine: 0,
            geometry: [0; 8],
            engines: Vec::new(),
        }
    }
}

/// An open pool.
pub struct Pool {
    // Fields are dropped in this order: the log's threads stop before the mapping and the lock go.
    pub(crate) log: Option<Log>,
    pub(crate) region: Arc<Region>,
    pub(crate) kind: FlushKind,
    pub(crate) delay: Option<Delay>,
    /// The path of its data file and the delay model of that, once it is open.
    pub(crate) data: OnceLock<(PathBuf, Option<&'static DiskPreset>)>,
    pub(crate) secret: Secret,
    pub(crate) header: Arc<Header>,
    pub(crate) growth: Growth,
    /// Where its files are, if it has a directory.
    pub(crate) directory: Option<Directory>,
    pub(crate) engine: u32,
    pub(crate) geometry: [u64; 8],
    pub(crate) path: PathBuf,
    pub(crate) created: bool,
    pub(crate) was_clean: bool,
    /// The bytes are a private copy; nothing may reach the medium.
    pub(crate) read_only: bool,
    pub(crate) damage: Vec<Damage>,
    pub(crate) closed: AtomicBool,
    pub(crate) report: Report,
}

impl Pool {
    /// A pool in heap memory, for tests. Nothing survives.
    ///
    /// # Panics
    /// If `bytes` is not a multiple of 4096, or leaves no room for the first extent.
    #[must_use]
    pub fn heap(bytes: u64, engine: u32, geometry: [u64; 8]) -> Arc<Pool> {
        opening::heap(bytes, engine, geometry)
    }

    /// Opens or creates the pool at `path`: a directory, or a devdax device. The pool is locked until the
    /// last handle is dropped.
    ///
    /// # Errors
    /// See [`Error`]; the pool is unchanged then.
    pub fn open(path: &Path, options: &PoolOptions) -> Result<Arc<Pool>, Error> {
        let preset = opening::check_delay(path, options)?;
        let place = place::open(path, options)?;
        match options.read_only {
            true => view::open(path, options, &place, preset),
            false => opening::open(path, options, &place, preset),
        }
    }

    /// Its path.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Whether this `open` created the pool.
    #[must_use]
    pub fn was_created(&self) -> bool {
        self.created
    }

    /// Whether the pool existed and had been closed cleanly.
    #[must_use]
    pub fn was_clean(&self) -> bool {
        self.was_clean
    }

    /// How often the pool was opened, this time included. Each opening that writes anything has a number of
    /// its own.
    #[must_use]
    pub fn incarnation(&self) -> u64 {
        self.header.get().incarnation
    }

    /// Whether the pool was opened with [`PoolOptions::read_only`].
    #[inline]
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.read_only
    }

    /// What an open with [`PoolOptions::salvage`] left out; empty otherwise.
    #[must_use]
    pub fn damage(&self) -> &[Damage] {
        &self.damage
    }

    /// Engine number in the superblock.
    #[must_use]
    pub fn engine(&self) -> u32 {
        self.engine
    }

    /// Geometry words in the superblock.
    #[must_use]
    pub fn geometry(&self) -> [u64; 8] {
        self.geometry
    }

    /// The mapped bytes.
    #[inline]
    #[must_use]
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// The pool's checksum key.
    #[inline]
    #[must_use]
    pub fn secret(&self) -> &Secret {
        &self.secret
    }

    /// Extents of `owner`, by offset. Extents that touch are one.
    #[must_use]
    pub fn extents(&self, owner: u32) -> Vec<Extent> {
        let superblock = self.header.get();
        superblock
            .extents
            .as_slice()
            .iter()
            .filter(|extent| extent.owner == owner)
            .copied()
            .collect()
    }

    /// The extent, of whatever owner, that has this byte. Extents that touch are one.
    #[must_use]
    pub fn extent_at(&self, offset: u64) -> Option<Extent> {
        let superblock = self.header.get();
        let mut extents = superblock.extents.as_slice().iter();
        let found = extents.find(|extent| (extent.at..extent.end()).contains(&offset));
        found.copied()
    }

    /// Grows the image by an extent of `bytes` (a multiple of 4096), aligned to `align` bytes (a multiple of
    /// 4096, or a divisor of it). The bytes are zero and backed by the medium. The extent is durable on
    /// return, and returned without the neighbours it was merged with.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing changed. [`Error::Poisoned`]: the medium failed. [`Error::Options`]: the
    /// pool is open read-only, or the numbers are not whole pages.
    pub fn allocate(&self, owner: u32, bytes: u64, align: u64) -> Result<Extent, Error> {
        self.healthy()?;
        if self.read_only {
            return Err(Error::Options {
                path: self.path.clone(),
                what: "the pool is open read-only and cannot grow; open it without `read_only`"
                    .into(),
            });
        }
        self.growth
            .allocate(&self.header, &self.region, owner, bytes, align)
    }

    /// Whether [`Pool::give_back`] can work: the image is a file that stores reach directly, and the file
    /// system may support it.
    #[must_use]
    pub fn gives_back(&self) -> bool {
        self.growth.gives_back() && !self.read_only
    }

    /// Returns the room of `at .. at + bytes` (whole pages of 4096 bytes) to the medium; `false` if the
    /// medium keeps it. The range then reads as zeros, and must not be stored to before [`Pool::take_back`].
    /// A crash may bring back any part of the old contents.
    ///
    /// # Errors
    /// [`Error::Io`]; part of the room may have been returned.
    ///
    /// # Panics
    /// If the range is outside the pool, or a [`crate::Window`] lies in it: a device would write to bytes
    /// that nobody has.
    pub fn give_back(&self, at: u64, bytes: u64) -> Result<bool, Error> {
        assert!(self.region.contains(at, bytes));
        self.healthy()?;
        self.growth.give_back(at, bytes)
    }

    /// Allocates ranges (offset, bytes) on the medium where they lack room, durably. Changes no byte.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: some ranges may have room. [`Error::Poisoned`]: the medium failed.
    pub fn take_back(&self, ranges: &[(u64, u64)]) -> Result<(), Error> {
        self.healthy()?;
        self.growth.take_back(&self.header, ranges)
    }

    /// Bytes of the medium that the image occupies.
    #[must_use]
    pub fn backed_bytes(&self) -> u64 {
        self.growth.backed_bytes(&self.region)
    }

    /// Makes the memory of `at .. at + bytes` present before writers use it, so that they take no page
    /// faults. Slow; meant for a background thread. Changes no byte.
    ///
    /// # Panics
    /// If the range is outside the pool.
    pub fn prefault(&self, at: u64, bytes: u64) {
        assert!(self.region.contains(at, bytes));
        self.growth.prefault(at, bytes);
    }

    /// Puts the memory of `at .. at + bytes` into huge pages of 2 MiB, where a pool in the page cache can
    /// have them (`emulated`). Slower than [`Pool::prefault`], and loads and stores meanwhile may wait: meant
    /// for the time before writers come. Changes no byte, and takes room that was given back.
    ///
    /// # Panics
    /// If the range is outside the pool.
    pub fn collapse(&self, at: u64, bytes: u64) {
        assert!(self.region.contains(at, bytes));
        self.growth.collapse(at, bytes);
    }

    /// The position up to which writes may be acknowledged; `Lsn(u64::MAX)` on media that are durable at the
    /// fence.
    #[inline]
    #[must_use]
    pub fn durable(&self) -> Lsn {
        self.log.as_ref().map_or(Lsn(u64::MAX), Log::acknowledged)
    }

    /// A position that covers everything that any lane has fenced until now; `Lsn(0)` on media that are
    /// durable at the fence. `Lsn(u64::MAX)`, which never comes, once the log has failed: it dropped later
    /// fences. Takes a lock that all writers share.
    #[must_use]
    pub fn fenced(&self) -> Lsn {
        self.log.as_ref().map_or(Lsn(0), Log::fenced)
    }

    /// Blocks until `lsn` may be acknowledged in the pool's durability class.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    #[inline]
    pub fn wait(&self, lsn: Lsn) -> Result<Durable, Error> {
        match &self.log {
            None => self.header.healthy()?,
            Some(log) => log.wait(lsn)?,
        }
        Ok(Durable(()))
    }

    /// Blocks until everything fenced so far survives, in every durability class.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn sync(&self) -> Result<Durable, Error> {
        self.header.healthy()?;
        if let Some(log) = &self.log {
            log.sync()?;
        }
        Ok(Durable(()))
    }

    /// Asks the log writer to make `lsn` durable, without waiting.
    #[inline]
    pub fn request(&self, lsn: Lsn) {
        if let Some(log) = &self.log {
            log.request(lsn);
        }
    }

    /// Registers a callback for each advance of durability, or failure. It runs on the thread that wrote
    /// the log, must be short, and must not call the pool. Never called on media that are durable at the
    /// fence.
    pub fn subscribe(&self, advanced: Arc<dyn Fn() + Send + Sync>) {
        if let Some(log) = &self.log {
            log.subscribe(advanced);
        }
    }

    /// The pool still takes writes.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after the first failed sync.
    pub fn healthy(&self) -> Result<(), Error> {
        self.header.healthy()
    }

    /// Whether [`Pool::healthy`] returns `Ok`.
    #[inline]
    #[must_use]
    pub fn is_healthy(&self) -> bool {
        self.header.poison().is_healthy()
    }

    /// Which pool, medium, latency, meaning of an acknowledgement. The latency is updated as the log runs.
    #[must_use]
    pub fn report(&self) -> Report {
        let mut report = self.report.clone();
        report.uuid = self.header.get().uuid;
        if let Some(log) = &self.log {
            report.latency = log.sync_latency();
        }
        if let Some((path, delay)) = self.data.get() {
            report.data = Some(path.clone());
            report.data_delay = delay.map(ToString::to_string);
        }
        report
    }

    /// Bytes of redo log that recovery would read, and bytes of its segments; both zero without a log.
    #[must_use]
    pub fn log_usage(&self) -> (u64, u64) {
        self.log.as_ref().map_or((0, 0), Log::usage)
    }

    /// Copies changed pages to the image file, so that recovery reads less of the redo log. Writers continue
    /// meanwhile. Does nothing without a log.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn checkpoint(&self) -> Result<(), Error> {
        self.log.as_ref().map_or(Ok(()), Log::checkpoint)
    }

    /// One round of the redo log's flusher, for a lab that schedules it; does nothing on other media.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    #[cfg(feature = "lab")]
    pub fn flush_once(&self) -> Result<(), Error> {
        self.log.as_ref().map_or(Ok(()), Log::flush_once)
    }

    /// One round of the redo log's checkpointer, for a lab that schedules it; does nothing on other media.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    #[cfg(feature = "lab")]
    pub fn checkpoint_once(&self) -> Result<(), Error> {
        self.log.as_ref().map_or(Ok(()), Log::checkpoint_once)
    }

    /// Makes everything durable, checkpoints, and marks the pool clean. Lanes must be idle, and stay so. The
    /// pool remains locked and readable until the last handle is dropped. A second call does nothing, and so
    /// does a call on a pool that is open read-only.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Io`]. The pool then opens as after a crash.
    pub fn close(&self) -> Result<(), Error> {
        if self.closed.swap(true, Ordering::AcqRel) || self.read_only {
            return self.healthy();
        }
        self.header.healthy()?;
        if let Some(log) = &self.log {
            log.close()?;
        }
        self.header.update(|superblock| superblock.clean = true)
    }

    pub(crate) fn log(&self) -> Option<&Log> {
        self.log.as_ref()
    }

    pub(crate) fn flush_kind(&self) -> FlushKind {
        self.kind
    }

    pub(crate) fn delay(&self) -> Option<Delay> {
        self.delay.clone()
    }

    /// The medium in effect.
    #[must_use]
    pub fn medium(&self) -> Medium {
        self.report.medium
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool")
            .field("path", &self.path)
            .field("medium", &self.report.medium)
            .finish_non_exhaustive()
    }
}
