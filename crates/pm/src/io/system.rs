//! Files of the system: one call each, repeated when interrupted, continued when short.

use crate::error::Error;
use rustix::fs::{Advice, FallocateFlags, FileType, FlockOperation, Mode, OFlags, SeekFrom};
use rustix::io::Errno;
use std::fs;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
#[cfg(feature = "faults")]
use std::sync::atomic::{AtomicU64, Ordering};

/// The magic number of tmpfs in `statfs`.
const TMPFS: u64 = 0x0102_1994;

/// A file of the system. The methods are those of [`File`](super::File).
#[derive(Debug)]
pub(crate) struct SystemFile {
    inner: fs::File,
    path: PathBuf,
    #[cfg(feature = "faults")]
    faults: Option<std::sync::Arc<super::faults::Faults>>,
    /// Bytes that [`SystemFile::reserve`] has taken room for.
    #[cfg(feature = "faults")]
    reserved: AtomicU64,
}

impl Drop for SystemFile {
    /// Unlocks at once. Closing does so only when it drops the last copy of the descriptor, and a child
    /// process that another thread has just forked holds one until it calls `exec`.
    fn drop(&mut self) {
        let _ = rustix::fs::flock(&self.inner, FlockOperation::Unlock);
    }
}

impl SystemFile {
    pub(super) fn open(path: &Path, create: bool) -> Result<SystemFile, Error> {
        let mut flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if create {
            flags |= OFlags::CREATE;
        }
        Self::open_with(path, flags, Mode::RUSR | Mode::WUSR)
    }

    /// Opens a file of an open directory. `path` is for messages.
    pub(super) fn open_in(
        directory: BorrowedFd<'_>,
        name: &str,
        path: &Path,
        flags: OFlags,
    ) -> Result<SystemFile, Error> {
        // Without NONBLOCK opening a pipe would wait for its other end. On a regular file it has no effect.
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let opened = rustix::fs::openat(directory, name, flags, Mode::RUSR | Mode::WUSR);
        let opened = opened.map_err(Error::io(path, "opening the file"))?;
        Ok(Self::wrap(fs::File::from(opened), path))
    }

    /// Opens a directory itself, for its entries and its lock.
    pub(super) fn open_directory(path: &Path) -> Result<SystemFile, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::open(path, flags, Mode::empty());
        let opened = opened.map_err(Error::io(path, "opening the directory"))?;
        Ok(Self::wrap(fs::File::from(opened), path))
    }

    pub(super) fn open_to_read(path: &Path) -> Result<SystemFile, Error> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        Self::open_with(path, flags, Mode::empty())
    }

    pub(super) fn open_data(path: &Path, create: bool) -> Result<SystemFile, Error> {
        let is_device = rustix::fs::stat(path)
            .is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode) == FileType::BlockDevice);
        if !is_device {
            return Self::open(path, create);
        }
        // On a block device this refuses one that is mounted, or open elsewhere in the same way.
        let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
        Self::open_with(path, flags, Mode::empty())
    }

    /// Opens a file for reads that do not pass through the page cache; `None`: its file system has none.
    pub(super) fn open_direct(path: &Path) -> Result<Option<SystemFile>, Error> {
        let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
        match Self::open_with(path, flags, Mode::empty()) {
            Err(Error::Io {
                source: Errno::INVAL,
                ..
            }) => Ok(None),
            other => other.map(Some),
        }
    }

    fn open_with(path: &Path, flags: OFlags, mode: Mode) -> Result<SystemFile, Error> {
        let opened = rustix::fs::open(path, flags, mode).map_err(|source| Error::Io {
            path: path.into(),
            what: "opening the file",
            source,
        })?;
        Ok(Self::wrap(fs::File::from(opened), path))
    }

    pub(super) fn wrap(inner: fs::File, path: &Path) -> SystemFile {
        SystemFile {
            inner,
            path: path.into(),
            #[cfg(feature = "faults")]
            faults: super::faults::Faults::of(path),
            #[cfg(feature = "faults")]
            reserved: AtomicU64::new(0),
        }
    }

    pub(super) fn inner(&self) -> &fs::File {
        &self.inner
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn len(&self) -> Result<u64, Errno> {
        let stat = rustix::fs::fstat(&self.inner)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => rustix::fs::seek(&self.inner, SeekFrom::End(0)),
            _ => Ok(u64::try_from(stat.st_size).unwrap_or(0)),
        }
    }

    pub(super) fn lock(&self, shared: bool) -> Result<bool, Errno> {
        let how = match shared {
            true => FlockOperation::NonBlockingLockShared,
            false => FlockOperation::NonBlockingLockExclusive,
        };
        match rustix::fs::flock(&self.inner, how) {
            Ok(()) => Ok(true),
            Err(Errno::WOULDBLOCK) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    pub(super) fn advise(&self, in_order: bool) {
        let advice = match in_order {
            true => Advice::Sequential,
            false => Advice::Random,
        };
        // Only a hint.
        let _ = rustix::fs::fadvise(&self.inner, 0, None, advice);
    }

    pub(super) fn will_need(&self, at: u64, bytes: u64) {
        // Only a hint.
        let length = std::num::NonZeroU64::new(bytes);
        let _ = rustix::fs::fadvise(&self.inner, at, length, Advice::WillNeed);
    }

    pub(super) fn pwrite_all(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            self.claim(faults, at, bytes.len() as u64)?;
            return faults.write(&self.inner, &self.path, at, bytes);
        }
        write_all(&self.inner, at, bytes)
    }

    pub(super) fn pread_some(&self, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
        read_available(&self.inner, at, into)
    }

    pub(super) fn pread_exact(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        if self.pread_some(at, into)? == into.len() {
            Ok(())
        } else {
            Err(Errno::NODATA)
        }
    }

    pub(super) fn data_sync(&self) -> Result<(), Errno> {
        self.sync_with(&|| rustix::fs::fdatasync(&self.inner))
    }

    pub(super) fn sync(&self) -> Result<(), Errno> {
        self.sync_with(&|| rustix::fs::fsync(&self.inner))
    }

    fn sync_with(&self, call: &dyn Fn() -> Result<(), Errno>) -> Result<(), Errno> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            return faults.sync(&self.inner, call);
        }
        call()
    }

    pub(super) fn allocate(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            self.claim(faults, at, bytes)?;
        }
        retry(|| rustix::fs::fallocate(&self.inner, FallocateFlags::empty(), at, bytes))
    }

    /// Takes the room that the file needs more to have `at .. at + bytes`.
    #[cfg(feature = "faults")]
    fn claim(&self, faults: &super::faults::Faults, at: u64, bytes: u64) -> Result<(), Errno> {
        let had = self.len()?.max(self.reserved.load(Ordering::Relaxed));
        // What lies before `at` may be a hole.
        faults.claim(had.max(at), at + bytes, self.backed_bytes()?)
    }

    pub(super) fn reserve(&self, bytes: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::KEEP_SIZE;
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            if let Err(error) = self.claim(faults, 0, bytes) {
                // As on ext4, the file keeps what there was.
                let most = faults.most(self.backed_bytes()?).filter(|most| *most > 0);
                most.map_or(Ok(()), |most| {
                    rustix::fs::fallocate(&self.inner, flags, 0, most)
                })?;
                return Err(error);
            }
            self.reserved.fetch_max(bytes, Ordering::Relaxed);
        }
        match retry(|| rustix::fs::fallocate(&self.inner, flags, 0, bytes)) {
            Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            other => other,
        }
    }

    pub(super) fn is_whole(&self, bytes: u64) -> bool {
        // To `SEEK_HOLE`, allocated memory that was never written is a hole, and allocating it again would
        // write zeros to all of it. So on tmpfs the blocks of the file decide. They must be equal, not more:
        // of a huge page tmpfs counts the part past the end of the file, too.
        if rustix::fs::fstatfs(&self.inner).is_ok_and(|stat| stat.f_type as u64 == TMPFS)
            && self.backed_bytes().is_ok_and(|backed| backed == bytes)
        {
            return true;
        }
        let hole = rustix::fs::seek(&self.inner, SeekFrom::Hole(0));
        hole.is_ok_and(|hole| hole >= bytes)
    }

    pub(super) fn punch(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        retry(|| rustix::fs::fallocate(&self.inner, flags, at, bytes))
    }

    /// A device is all there.
    pub(super) fn backed_bytes(&self) -> Result<u64, Errno> {
        /// The unit of `st_blocks`.
        const BLOCK: u64 = 512;
        let stat = rustix::fs::fstat(&self.inner)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::BlockDevice => self.len(),
            _ => Ok(u64::try_from(stat.st_blocks).unwrap_or(0) * BLOCK),
        }
    }

    pub(super) fn set_len(&self, bytes: u64) -> Result<(), Errno> {
        let call = || retry(|| rustix::fs::ftruncate(&self.inner, bytes));
        #[cfg(feature = "faults")]
        if let Some(faults) = &self.faults {
            // The system gives back what is behind the end.
            self.reserved.store(0, Ordering::Relaxed);
            return faults.set_len(&self.inner, &self.path, bytes, call);
        }
        call()
    }
}

fn retry<T>(mut call: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    loop {
        match call() {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

/// Writes all of `bytes` at `at`, as [`SystemFile::pwrite_all`] does.
pub(super) fn write_all(file: impl AsFd, mut at: u64, mut bytes: &[u8]) -> Result<(), Errno> {
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
pub(super) fn read_available(file: impl AsFd, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
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
