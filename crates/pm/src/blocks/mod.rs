//! The data file: blocks of values beside a pool, on a disk, for engines that keep only metadata in the pool.
//!
//! ```text
//!  data file   +-----------------+-----------------+--------+--------+- - -
//!              | header, copy A  | header, copy B  | block  | block  |
//!              +-----------------+-----------------+--------+--------+- - -
//!              0                 4096              8192
//! ```
//!
//! Block `n` is at `n` times the size of a block; the headers take the first few numbers. An engine writes
//! blocks that nothing names yet, makes them durable, and only then writes what names them to the pool.
//!
//! Invariants:
//! - [`Blocks::sync`] returns only after a sync of the file that began after the write had returned. On the
//!   `file` medium the redo log does the same before each batch, so no durable record names a block that is
//!   not durable.
//! - The first write or sync that fails is the last: it poisons the pool, and the pool's failure the blocks.
//! - A data file is used only with the pool that made it, and each of the two only if it is not older than
//!   the other (`pairing.rs`).

pub(crate) mod data;
pub(crate) mod delay;
mod direct;
mod header;
mod hint;
mod pairing;
#[cfg(all(test, feature = "faults"))]
mod tests;

use crate::error::Error;
use crate::io::File;
use crate::lock::lock;
use crate::pool::Pool;
use crate::pool::place;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use data::Data;
use delay::DiskDelay;
pub(crate) use header::HEADER_BYTES;
pub use hint::{HINT_BYTES, Hint};

/// How to open a data file.
#[derive(Clone, Debug)]
pub struct BlocksOptions {
    /// A regular file or a block device. `None`: where it was when the pool was opened with a path, or else
    /// the file `data` in the pool's directory.
    pub path: Option<PathBuf>,
    /// Bytes of a block: a power of two, 512 to 64 KiB; the same at each open.
    pub block_bytes: u32,
    /// The file may grow to this many bytes.
    pub bytes_max: u64,
    /// Offset in the pool of two words that pair it with its data file; zero in a new pool.
    pub tokens_at: u64,
    /// Offset in the pool of 512 bytes that remember `path`; zeros in a new pool.
    pub path_at: u64,
    /// Delay model preset (`emulated` only); see [`crate::DISK_PRESETS`].
    pub delay: Option<String>,
    /// Whether reads pass by the page cache, where the file system can do that.
    pub reads_directly: bool,
}

/// A point in the order of writes to a data file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[must_use = "a written block is durable only after a sync"]
pub struct Mark(u64);

/// See the module text.
pub struct Blocks {
    data: Arc<Data>,
    block_bytes: u64,
    bytes_max: u64,
    /// Bytes of the file that blocks may use: whole blocks, durably allocated.
    bytes: AtomicU64,
    growing: Mutex<()>,
    can_grow: bool,
    delay: Option<DiskDelay>,
    /// The same file for direct reads.
    direct: Option<File>,
}

impl Pool {
    /// Opens the pool's data file, or creates it if the pool never had one. A pool that is open read-only
    /// gets blocks that can only be read.
    ///
    /// # Errors
    /// [`Error::Unpaired`]: it is missing, of another pool, or one of the two is an older copy; nothing is
    /// changed then. [`Error::Options`], [`Error::Io`], [`Error::NoSpace`], [`Error::Poisoned`].
    pub fn open_blocks(self: &Arc<Self>, options: &BlocksOptions) -> Result<Blocks, Error> {
        pairing::open(self, options)
    }

    /// The position up to which writes survive in every durability class; `Lsn(u64::MAX)` on media that are
    /// durable at the fence. [`Pool::durable`] is what may be acknowledged.
    #[inline]
    #[must_use]
    pub fn survives(&self) -> crate::Lsn {
        self.log
            .as_ref()
            .map_or(crate::Lsn(u64::MAX), crate::log::Log::durable)
    }
}

impl Blocks {
    fn new(
        pool: &Pool,
        (file, direct): (File, Option<File>),
        options: &BlocksOptions,
        bytes: u64,
        delay: Option<DiskDelay>,
    ) -> Blocks {
        let block_bytes = u64::from(options.block_bytes);
        let blocks = Blocks {
            data: Arc::new(Data::new(file, Arc::clone(pool.header.poison()))),
            block_bytes,
            bytes_max: options.bytes_max,
            bytes: AtomicU64::new(bytes / block_bytes * block_bytes),
            growing: Mutex::new(()),
            can_grow: true,
            delay,
            direct,
        };
        if let Some(log) = pool.log() {
            log.precede_by(Arc::clone(&blocks.data));
        }
        blocks
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u64 {
        self.block_bytes
    }

    /// The number of the first block that can be used.
    #[must_use]
    pub fn first(&self) -> u64 {
        HEADER_BYTES.div_ceil(self.block_bytes)
    }

    /// One past the number of the last block that there is room for.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.bytes.load(Ordering::Acquire) / self.block_bytes
    }

    /// Where the file is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.data.file.path()
    }

    /// Bytes of the disk that the file occupies.
    #[must_use]
    pub fn backed_bytes(&self) -> u64 {
        let backed = self.data.file.backed_bytes();
        backed.unwrap_or_else(|_| self.bytes.load(Ordering::Acquire))
    }

    /// Writes neighbouring blocks from block `first` on; the last one may be short. They are durable after
    /// [`Blocks::sync`] with the returned mark.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    ///
    /// # Panics
    /// If there is no room for these blocks.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn write(&self, first: u64, bytes: &[u8]) -> Result<Mark, Error> {
        self.check(first, bytes.len() as u64);
        self.data.poison.healthy()?;
        let at = first * self.block_bytes;
        let begun = self.delay.as_ref().map(DiskDelay::begin);
        self.data
            .file
            .pwrite_all(at, bytes)
            .map_err(|source| self.data.poison.fail(self.path(), source))?;
        if let Some((delay, begun)) = self.delay.as_ref().zip(begun) {
            delay.end_write(begun, bytes.len() as u64);
        }
        Ok(Mark(self.data.written.fetch_add(1, Ordering::AcqRel) + 1))
    }

    /// Blocks until the write with this mark is durable. One sync serves all who wait.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn sync(&self, mark: Mark) -> Result<(), Error> {
        self.data.poison.healthy()?;
        self.data
            .sync_to(mark.0)
            .map_err(|(path, source)| self.data.poison.fail(&path, source))
    }

    /// Fills `into` with the bytes from block `first` on.
    ///
    /// # Errors
    /// [`Error::Io`].
    ///
    /// # Panics
    /// If there are no such blocks.
    pub fn read(&self, first: u64, into: &mut [u8]) -> Result<(), Error> {
        self.check(first, into.len() as u64);
        let begun = self.delay.as_ref().map(DiskDelay::begin);
        let at = first * self.block_bytes;
        let read = match &self.direct {
            Some(direct) => direct::read(direct, at, into),
            None => Err(Errno::INVAL),
        };
        read.or_else(|error| match error {
            // Blocks that are smaller than those of the disk.
            Errno::INVAL => self.data.file.pread_exact(at, into),
            other => Err(other),
        })
        .map_err(|source| self.data.file.error("reading a block", source))?;
        if let Some((delay, begun)) = self.delay.as_ref().zip(begun) {
            delay.end_read(begun, into.len() as u64);
        }
        Ok(())
    }

    /// Syncs of the file since it was opened.
    #[must_use]
    pub fn syncs(&self) -> u64 {
        self.data.syncs.load(Ordering::Relaxed)
    }

    /// Whether reads pass by the page cache.
    #[must_use]
    pub fn reads_directly(&self) -> bool {
        self.direct.is_some()
    }

    /// Asks the disk to have these blocks ready soon; nothing, if reads pass by the page cache.
    pub fn will_need(&self, first: u64, blocks: u64) {
        if self.direct.is_some() {
            return;
        }
        let (at, bytes) = (first * self.block_bytes, blocks * self.block_bytes);
        self.data.file.will_need(at, bytes);
    }

    fn check(&self, first: u64, bytes: u64) {
        let end = first + bytes.div_ceil(self.block_bytes);
        assert!(
            first >= self.first() && end <= self.end(),
            "blocks {first} to {end} of a data file of {}",
            self.end()
        );
    }

    /// Makes room for the blocks up to `end`, durably; does nothing if there is.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: nothing changed. [`Error::Poisoned`], [`Error::Io`].
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn grow(&self, end: u64) -> Result<(), Error> {
        let _growing = lock(&self.growing);
        self.data.poison.healthy()?;
        let (from, to) = (self.bytes.load(Ordering::Acquire), end * self.block_bytes);
        if to <= from {
            return Ok(());
        }
        if to > self.bytes_max || !self.can_grow {
            return Err(Error::NoSpace {
                path: self.path().into(),
                what: "grow the data file",
            });
        }
        let file = &self.data.file;
        place::back(file, from, to).map_err(Error::io(self.path(), "grow the data file"))?;
        file.sync()
            .map_err(|source| self.data.poison.fail(self.path(), source))?;
        self.bytes.store(to, Ordering::Release);
        Ok(())
    }
}

impl std::fmt::Debug for Blocks {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Blocks")
            .field("path", &self.path())
            .field("end", &self.end())
            .finish_non_exhaustive()
    }
}
