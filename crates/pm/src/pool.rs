//! A pool: one image of persistent bytes, its superblock, its medium.

use crate::checksum::Secret;
use crate::cpu::FlushKind;
use crate::delay::Delay;
use crate::error::Error;
use crate::lane::{Durable, Lane, Lsn};
use crate::log::Log;
use crate::medium::{Durability, Medium, MediumChoice, Report};
use crate::region::{Heap, Region};
use parking_lot::Mutex;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

/// Where the engine's root page starts; 4096 bytes that belong to the engine, zero in a new pool.
pub const ROOT_AT: u64 = 8192;
/// Bytes of the engine's root page.
pub const ROOT_BYTES: u64 = 4096;
/// Where extents start.
pub const DATA_AT: u64 = 65_536;

/// How to open or create a pool.
#[derive(Clone, Debug)]
pub struct PoolOptions {
    /// Medium; `auto` picks.
    pub medium: MediumChoice,
    /// Create a pool where there is none.
    pub create: bool,
    /// Open a pool that is there.
    pub open: bool,
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
}

/// A range of the image that belongs to one owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Whose it is; engines number their uses.
    pub owner: u32,
    /// First byte in the image.
    pub at: u64,
    /// Length in bytes.
    pub bytes: u64,
}

/// An open pool.
pub struct Pool {
    region: Region,
    secret: Secret,
    engine: u32,
    geometry: [u64; 8],
    extents: Mutex<Vec<Extent>>,
}

impl Pool {
    /// A pool in heap memory, for tests.
    #[must_use]
    pub fn heap(bytes: u64, engine: u32, geometry: [u64; 8]) -> Arc<Pool> {
        let region = Region::new(Box::new(Heap::new(bytes as usize)), bytes, None);
        Arc::new(Pool {
            region,
            secret: Secret::expand(&rand::random()),
            engine,
            geometry,
            extents: Mutex::default(),
        })
    }
    /// Opens or creates the pool at `path`.
    ///
    /// # Errors
    /// See [`Error`]; the pool is left untouched then.
    pub fn open(_path: &Path, options: &PoolOptions) -> Result<Arc<Pool>, Error> {
        Ok(Self::heap(options.max_bytes.min(256 << 20), options.engine, options.geometry))
    }
    /// Whether the pool was created by this `open`, and whether it had been closed cleanly.
    #[must_use]
    pub fn was_clean(&self) -> bool {
        false
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
    /// A lane for one thread.
    #[must_use]
    pub fn lane(self: &Arc<Self>) -> Lane {
        Lane::new(Arc::clone(self))
    }
    /// Extents of `owner`, by offset.
    #[must_use]
    pub fn extents(&self, owner: u32) -> Vec<Extent> {
        self.extents.lock().iter().filter(|e| e.owner == owner).copied().collect()
    }
    /// Grows the image by an extent of `bytes` (a multiple of 4096), starting at a multiple of `align`
    /// bytes. The bytes are zero and backed by the medium; the extent is durable on return.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing changed.
    pub fn allocate(&self, owner: u32, bytes: u64, align: u64) -> Result<Extent, Error> {
        let mut extents = self.extents.lock();
        let end = extents.last().map_or(DATA_AT, |e| e.at + e.bytes);
        let at = end.next_multiple_of(align);
        if !self.region.contains(at, bytes) {
            return Err(Error::NoSpace { path: "heap".into(), what: "grow the pool" });
        }
        extents.push(Extent { owner, at, bytes });
        Ok(Extent { owner, at, bytes })
    }
    /// Up to where the log is durable; `Lsn(u64::MAX)` on media that are durable at the fence.
    #[must_use]
    pub fn durable(&self) -> Lsn {
        Lsn(u64::MAX)
    }
    /// Blocks until `lsn` may be acknowledged in the pool's durability class.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    pub fn wait(&self, _lsn: Lsn) -> Result<Durable, Error> {
        Ok(Durable(()))
    }
    /// Asks the log writer to make `lsn` durable, without waiting.
    pub fn request(&self, _lsn: Lsn) {}
    /// Registers a callback for each advance of durability, or failure.
    pub fn subscribe(&self, _advanced: Arc<dyn Fn() + Send + Sync>) {}
    /// The pool still takes writes.
    ///
    /// # Errors
    /// [`Error::Poisoned`] after the first failed sync.
    #[inline]
    pub fn healthy(&self) -> Result<(), Error> {
        Ok(())
    }
    /// Medium, latency, meaning of an acknowledgement.
    #[must_use]
    pub fn report(&self) -> Report {
        Report {
            medium: Medium::Emulated,
            why: "heap memory".into(),
            persist: FlushKind::detect().to_string(),
            durability: Durability::Always,
            latency: Duration::ZERO,
            acknowledgement: "nothing survives".into(),
            delay: None,
        }
    }
    /// Makes everything durable, checkpoints, marks the pool clean. Lanes must be idle.
    ///
    /// # Errors
    /// [`Error::Poisoned`], [`Error::Io`].
    pub fn close(&self) -> Result<(), Error> {
        Ok(())
    }
    pub(crate) fn log(&self) -> Option<&Log> {
        None
    }
    pub(crate) fn flush_kind(&self) -> FlushKind {
        FlushKind::detect()
    }
    pub(crate) fn delay(&self) -> Option<Delay> {
        None
    }
}
