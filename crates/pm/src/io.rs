//! The seam to file system calls: every byte a pool writes to a file, and every sync, passes through here.
//!
//! Invariants:
//! - A write is whole or an error; a short write is continued, an interrupted call repeated. A failed sync
//!   is never repeated: the kernel may have dropped what it could not write and would report success.
//! - Files are opened without following symbolic links, and with mode 0600.
//! - With feature `faults` each call first asks the [`faults`] registered for the file's directory, and
//!   tells them what it overwrote, so that a test can take un-synced writes back. Without the feature
//!   there is no trace of that.

#[cfg(feature = "faults")]
pub mod faults;

use crate::error::Error;
use rustix::fs::{FallocateFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;
use std::fs;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

/// A regular file, addressed by offset.
#[derive(Debug)]
pub(crate) struct File {
    inner: fs::File,
    path: PathBuf,
    #[cfg(feature = "faults")]
    faults: Option<std::sync::Arc<faults::Faults>>,
}

impl Drop for File {
    /// Gives a lock back at once. Closing alone does so only when nobody else has the descriptor, and a
    /// child that another thread is just starting has a copy until it executes its program.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.inner, FlockOperation::Unlock);
    }
}

impl File {
    /// Opens the file for reading and writing; creates it if `create` and there is none.
    pub(crate) fn open(path: &Path, create: bool) -> Result<File, Error> {
        let mut flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if create {
            flags |= OFlags::CREATE;
        }
        let opened =
            rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR).map_err(|source| Error::Io {
                path: path.into(),
                what: "opening the file",
                source,
            })?;
        Ok(File::wrap(fs::File::from(opened), path))
    }

    /// Opens the file for reading only: every write is refused by the system.
    pub(crate) fn open_to_read(path: &Path) -> Result<File, Error> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty()).map_err(|source| Error::Io {
            path: path.into(),
            what: "opening the file",
            source,
        })?;
        Ok(File::wrap(fs::File::from(opened), path))
    }

    /// Takes over an open file.
    pub(crate) fn wrap(inner: fs::File, path: &Path) -> File {
        File {
            inner,
            path: path.into(),
            #[cfg(feature = "faults")]
            faults: faults::Faults::of(path),
        }
    }

    /// The open file, for mapping and locking.
    pub(crate) fn inner(&self) -> &fs::File {
        &self.inner
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of the file.
    pub(crate) fn len(&self) -> Result<u64, Errno> {
        Ok(u64::try_from(rustix::fs::fstat(&self.inner)?.st_size).unwrap_or(0))
    }

    /// Writes all of `bytes` at `at`. Not durable before a sync.
    pub(crate) fn pwrite_all(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            let read = |from: u64, into: &mut [u8]| read_available(&self.inner, from, into);
            let write = |at: u64, bytes: &[u8]| write_all(&self.inner, at, bytes);
            return faults.write(&self.path, at, bytes, self.len()?, &read, &write);
        }
        write_all(&self.inner, at, bytes)
    }

    /// Fills `into` from `at`; an end of file before that is [`Errno::NODATA`].
    pub(crate) fn pread_exact(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        if read_available(&self.inner, at, into)? == into.len() {
            Ok(())
        } else {
            Err(Errno::NODATA)
        }
    }

    /// Makes written bytes durable, and what is needed to read them back (`fdatasync`).
    pub(crate) fn data_sync(&self) -> Result<(), Errno> {
        self.sync_with(&|| rustix::fs::fdatasync(&self.inner))
    }

    /// Makes everything about the file durable (`fsync`).
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        self.sync_with(&|| rustix::fs::fsync(&self.inner))
    }

    fn sync_with(&self, call: &dyn Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            return faults.sync(&self.path, call);
        }
        call()
    }

    /// Backs `at .. at + bytes` with disk space, growing the file where it ends earlier. New bytes are zero.
    pub(crate) fn allocate(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            faults.claim((at + bytes).saturating_sub(self.len()?.max(at)))?;
        }
        retry(|| rustix::fs::fallocate(&self.inner, FallocateFlags::empty(), at, bytes))
    }

    /// Cuts or extends the file.
    pub(crate) fn set_len(&self, bytes: u64) -> Result<(), Errno> {
        retry(|| rustix::fs::ftruncate(&self.inner, bytes))
    }

    /// An error about this file.
    pub(crate) fn error(&self, what: &'static str, source: Errno) -> Error {
        Error::Io {
            path: self.path.clone(),
            what,
            source,
        }
    }
}

/// Makes the entries of a directory durable.
pub(crate) fn sync_directory(path: &Path) -> Result<(), Error> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    rustix::fs::open(path, flags, Mode::empty())
        .and_then(rustix::fs::fsync)
        .map_err(|source| Error::Io {
            path: path.into(),
            what: "syncing the directory",
            source,
        })
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn write_all(file: impl AsFd, mut at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let written = retry(|| rustix::io::pwrite(&file, bytes, at))?;
        if written == 0 {
            return Err(Errno::IO);
        }
        at += written as u64;
        bytes = bytes.get(written..).unwrap_or_default();
    }
    Ok(())
}

/// Reads until `into` is full or the file ends; returns the bytes read.
fn read_available(file: impl AsFd, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
    let mut done = 0;
    while let Some(rest) = into.get_mut(done..).filter(|rest| !rest.is_empty()) {
        let count = retry(|| rustix::io::pread(&file, &mut *rest, at + done as u64))?;
        if count == 0 {
            break;
        }
        done += count;
    }
    Ok(done)
}
