//! The seam to file system calls: every byte a pool writes to a file, and every sync, passes through here.
//!
//! Invariants:
//! - A write completes or fails: a short write is continued, an interrupted call repeated.
//! - A failed sync is never repeated. The kernel may have dropped the data, reports the failure once, and
//!   would report success to the next sync of the same file. So syncs of a file take turns, and after one
//!   that failed all fail.
//! - Files are opened without following symbolic links, and with mode 0600.
//! - With feature `faults` each call first asks the [`faults`] registered for the file's directory, and tells
//!   them what it overwrote, so that a test can revert un-synced writes. Without the feature this code does
//!   not exist.
//! - With feature `lab` a file may be one of the lab's [`Disk`](crate::lab::Disk). Callers see one
//!   difference: such a file cannot be mapped.

mod directory;
#[cfg(feature = "faults")]
pub mod faults;
mod system;

pub(crate) use directory::Directory;

use crate::error::Error;
#[cfg(feature = "lab")]
use crate::lab::DiskFile;
use crate::lock::lock;
use parking_lot::{Mutex, MutexGuard};
use rustix::io::Errno;
use std::fs;
use std::path::Path;
use system::SystemFile;

/// A regular file, addressed by offset.
#[derive(Debug)]
pub(crate) struct File {
    inner: Inner,
    /// The error of the first sync that failed. Locked during each sync.
    failed: Mutex<Option<Errno>>,
}

#[derive(Debug)]
enum Inner {
    /// A file of the system.
    System(SystemFile),
    /// A file of the lab's disk.
    #[cfg(feature = "lab")]
    Simulated(DiskFile),
}

/// Calls a method of whatever the file is.
macro_rules! of {
    ($file:expr, $method:ident($($argument:expr),*)) => {
        match &$file.inner {
            Inner::System(file) => file.$method($($argument),*),
            #[cfg(feature = "lab")]
            Inner::Simulated(file) => file.$method($($argument),*),
        }
    };
}

impl File {
    /// Opens the file for reading and writing; creates it if `create` and there is none.
    pub(crate) fn open(path: &Path, create: bool) -> Result<File, Error> {
        SystemFile::open(path, create).map(File::system)
    }

    /// Opens the file for reading only: every write is refused by the system.
    pub(crate) fn open_to_read(path: &Path) -> Result<File, Error> {
        SystemFile::open_to_read(path).map(File::system)
    }

    /// Opens a data file: a regular file, created if `create` and there is none, or a block device, which no
    /// other process may use meanwhile.
    pub(crate) fn open_data(path: &Path, create: bool) -> Result<File, Error> {
        SystemFile::open_data(path, create).map(File::system)
    }

    /// Opens the file for reads that do not pass through the page cache, into memory and from offsets that
    /// are aligned. `None`: its file system has none.
    pub(crate) fn open_direct(&self) -> Result<Option<File>, Error> {
        match &self.inner {
            Inner::System(file) => {
                let opened = SystemFile::open_direct(file.path())?;
                Ok(opened.map(File::system))
            }
            #[cfg(feature = "lab")]
            Inner::Simulated(_) => Ok(None),
        }
    }

    /// Takes over an open file.
    pub(crate) fn wrap(inner: fs::File, path: &Path) -> File {
        File::system(SystemFile::wrap(inner, path))
    }

    fn system(file: SystemFile) -> File {
        File {
            inner: Inner::System(file),
            failed: Mutex::new(None),
        }
    }

    /// A file of the lab's disk.
    #[cfg(feature = "lab")]
    pub(crate) fn simulated(file: DiskFile) -> File {
        File {
            inner: Inner::Simulated(file),
            failed: Mutex::new(None),
        }
    }

    /// The open file, for mapping and locking.
    ///
    /// # Panics
    /// If it is a file of the lab's disk: a lab pool has its image copied, never mapped.
    pub(crate) fn inner(&self) -> &fs::File {
        match &self.inner {
            Inner::System(file) => file.inner(),
            #[cfg(feature = "lab")]
            Inner::Simulated(_) => unreachable!("a file of the lab's disk is never mapped"),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        of!(self, path())
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> Result<u64, Errno> {
        of!(self, len())
    }

    /// As [`File::len`].
    pub(crate) fn length(&self) -> Result<u64, Error> {
        self.len()
            .map_err(|source| self.error("looking at the file", source))
    }

    /// Locks the file for this process: shared to read, exclusive to write. `false`: it is locked elsewhere.
    pub(crate) fn lock(&self, shared: bool) -> Result<bool, Errno> {
        match &self.inner {
            Inner::System(file) => file.lock(shared),
            #[cfg(feature = "lab")]
            Inner::Simulated(_) => Ok(true),
        }
    }

    /// Says how the file will be read: in order, or here and there.
    pub(crate) fn advise(&self, in_order: bool) {
        match &self.inner {
            Inner::System(file) => file.advise(in_order),
            #[cfg(feature = "lab")]
            Inner::Simulated(_) => {}
        }
    }

    /// Asks the system to read a range ahead of its use.
    pub(crate) fn will_need(&self, at: u64, bytes: u64) {
        match &self.inner {
            Inner::System(file) => file.will_need(at, bytes),
            #[cfg(feature = "lab")]
            Inner::Simulated(_) => {}
        }
    }

    /// Writes all of `bytes` at `at`. Not durable before a sync.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn pwrite_all(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        of!(self, pwrite_all(at, bytes))
    }

    /// Fills `into` from `at`; an end of file before that is [`Errno::NODATA`].
    pub(crate) fn pread_exact(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        of!(self, pread_exact(at, into))
    }

    /// Reads from `at` until `into` is full or the file ends; returns the bytes read.
    pub(crate) fn pread_some(&self, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
        of!(self, pread_some(at, into))
    }

    /// Makes written bytes durable, and what is needed to read them back (`fdatasync`).
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn data_sync(&self) -> Result<(), Errno> {
        let mut failed = self.turn()?;
        of!(self, data_sync()).inspect_err(|errno| *failed = Some(*errno))
    }

    /// Makes everything about the file durable (`fsync`).
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        let mut failed = self.turn()?;
        of!(self, sync()).inspect_err(|errno| *failed = Some(*errno))
    }

    /// Waits until no other thread syncs the file; fails if a sync has failed.
    fn turn(&self) -> Result<MutexGuard<'_, Option<Errno>>, Errno> {
        // Another thread's sync may come between a write and its own.
        #[cfg(feature = "lab")]
        crate::lab::step();
        let failed = lock(&self.failed);
        failed.map_or(Ok(failed), Err)
    }

    /// Backs `at .. at + bytes` with disk space, growing the file where it ends earlier. New bytes are zero.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn allocate(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        of!(self, allocate(at, bytes))
    }

    /// Takes the disk space of the first `bytes`, as far as the file system can do that without changing the
    /// length of the file.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), Errno> {
        of!(self, reserve(bytes))
    }

    /// Whether the first `bytes` have no hole, as far as the file system can tell quickly. A wrong `false` is
    /// harmless: [`File::allocate`] then finds nothing to do.
    pub(crate) fn is_whole(&self, bytes: u64) -> bool {
        match &self.inner {
            Inner::System(file) => file.is_whole(bytes),
            #[cfg(feature = "lab")]
            Inner::Simulated(_) => false,
        }
    }

    /// Returns the room of `at .. at + bytes` to the file system. The range then reads as zeros. Until the
    /// file is synced, a crash may bring back any part of the old contents.
    pub(crate) fn punch(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        match &self.inner {
            Inner::System(file) => file.punch(at, bytes),
            #[cfg(feature = "lab")]
            Inner::Simulated(_) => Err(Errno::OPNOTSUPP),
        }
    }

    /// Bytes of the medium that the file occupies.
    pub(crate) fn backed_bytes(&self) -> Result<u64, Errno> {
        match &self.inner {
            Inner::System(file) => file.backed_bytes(),
            #[cfg(feature = "lab")]
            Inner::Simulated(file) => file.len(),
        }
    }

    /// Cuts or extends the file.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn set_len(&self, bytes: u64) -> Result<(), Errno> {
        of!(self, set_len(bytes))
    }

    /// An error about this file.
    pub(crate) fn error(&self, what: &'static str, source: Errno) -> Error {
        Error::Io {
            path: self.path().into(),
            what,
            source,
        }
    }
}
