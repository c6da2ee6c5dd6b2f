//! A shelf: a directory of append-only files beside a pool, on a disk, for engines that keep older data in a
//! log.
//!
//! What the files are, and what is in them, is the engine's: a shelf has no format of its own. It brings what
//! an engine needs to order its writes: a file is durable after its own sync, a name after that of the
//! directory.
//!
//! Invariants:
//! - A shelf is used only while this process holds a lock on its directory, exclusive to write, shared to
//!   look. Files of a shelf hold the lock, too.
//! - The first write or sync that fails is the last: the kernel may have lost what it had accepted, and would
//!   report success to the next sync. Reads go on. A disk that is full is no such failure.
//! - A shelf of a pool that is open read-only changes nothing.
//! - What a writer finds when it opens a shelf has durable names.

mod place;
#[cfg(all(test, feature = "faults"))]
mod tests;

use crate::error::Error;
use crate::io::{Directory, File};
use crate::lock::lock;
use crate::poison::Poison;
use crate::pool::Pool;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::path::Path;
use std::sync::Arc;

/// A directory of append-only files; see the module text. Copies are the same shelf.
#[derive(Clone)]
pub struct Shelf {
    inner: Arc<Inner>,
}

/// An open file of a [`Shelf`], addressed by offset. Handles of one file see each other's writes. A handle
/// stays valid when the file is renamed or unlinked.
pub struct ShelfFile {
    file: File,
    shelf: Arc<Inner>,
    can_write: bool,
}

struct Inner {
    directory: Directory,
    poison: Poison,
    read_only: bool,
    /// Held during each sync of the directory: its failure is reported to one thread, once.
    turn: Mutex<()>,
}

impl Inner {
    /// Refuses to change anything if the shelf is read-only, or has failed.
    fn check(&self) -> Result<(), Error> {
        if self.read_only {
            return Err(Error::Options {
                path: self.directory.path().into(),
                what: "the pool is open read-only, so its log cannot change; open it without `read_only`".into(),
            });
        }
        self.poison.healthy()
    }
}

/// A name leads to a file of the directory, and to no other place.
fn check_name(name: &str) {
    let is_plain = !matches!(name, "" | "." | "..") && !name.contains(['/', '\0']);
    assert!(is_plain, "{name:?} is not the name of a file");
}

impl Shelf {
    /// Opens the directory at `path` as a shelf of the pool, and locks it until the last copy of the shelf
    /// and the last of its files are dropped. With `create` it is made if it is missing, with mode 0700, and
    /// its name is durable then. The shelf is read-only if the pool is, and `create` is ignored then.
    ///
    /// A shelf of a pool of the lab is on the pool's simulated disk, in a folder with the last name of
    /// `path`.
    ///
    /// # Errors
    /// [`Error::Unpaired`]: there is no such directory. [`Error::Locked`]: it is open elsewhere.
    /// [`Error::Options`]: the path is a symbolic link, or no directory, or one of a pool, or everybody can
    /// write it, or it is in memory while the pool survives a power loss. [`Error::Io`].
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn open(pool: &Pool, path: &Path, create: bool) -> Result<Shelf, Error> {
        let directory = place::open(pool, path, create)?;
        Ok(Shelf {
            inner: Arc::new(Inner {
                directory,
                poison: Poison::default(),
                read_only: pool.is_read_only(),
                turn: Mutex::new(()),
            }),
        })
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.inner.directory.path()
    }

    /// Whether it can only be read.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.inner.read_only
    }

    /// The shelf still takes writes.
    ///
    /// # Errors
    /// [`Error::Poisoned`]: the first failure.
    pub fn healthy(&self) -> Result<(), Error> {
        self.inner.poison.healthy()
    }

    /// Names of all that is in the directory, sorted. Names that are not UTF-8 are left out.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn names(&self) -> Result<Vec<String>, Error> {
        let names = self.inner.directory.names();
        let mut names = names.map_err(Error::io(self.path(), "reading the directory"))?;
        names.sort_unstable();
        Ok(names)
    }

    /// Creates an empty file, with mode 0600. Its name survives a crash after [`Shelf::sync`].
    ///
    /// # Errors
    /// [`Error::Io`]: the name is taken, among others. [`Error::NoSpace`], [`Error::Poisoned`],
    /// [`Error::Options`] if the shelf is read-only.
    ///
    /// # Panics
    /// If `name` is not a plain file name.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn create(&self, name: &str) -> Result<ShelfFile, Error> {
        check_name(name);
        self.inner.check()?;
        let file = self.inner.directory.create(name)?;
        Ok(self.file(file, true))
    }

    /// Opens a file for reading and writing.
    ///
    /// # Errors
    /// [`Error::Io`]: there is none, or the name is a symbolic link, among others. [`Error::Poisoned`];
    /// [`Error::Options`] if it is no regular file, or the shelf is read-only.
    ///
    /// # Panics
    /// If `name` is not a plain file name.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn open_file(&self, name: &str) -> Result<ShelfFile, Error> {
        check_name(name);
        self.inner.check()?;
        let file = self.inner.directory.open(name, false)?;
        Ok(self.file(file, true))
    }

    /// Opens a file for reading only.
    ///
    /// # Errors
    /// [`Error::Io`]: there is none, or the name is a symbolic link, among others. [`Error::Options`] if it
    /// is no regular file.
    ///
    /// # Panics
    /// If `name` is not a plain file name.
    pub fn open_to_read(&self, name: &str) -> Result<ShelfFile, Error> {
        check_name(name);
        let file = self.inner.directory.open_to_read(name)?;
        Ok(self.file(file, false))
    }

    fn file(&self, file: File, can_write: bool) -> ShelfFile {
        ShelfFile {
            file,
            shelf: Arc::clone(&self.inner),
            can_write,
        }
    }

    /// Gives a file another name; a file that has it is replaced. Until [`Shelf::sync`] a crash leaves either
    /// file under the name, and never a half. The contents are not synced by this.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NoSpace`]: nothing changed. [`Error::Poisoned`]; [`Error::Options`] if the
    /// shelf is read-only.
    ///
    /// # Panics
    /// If a name is not a plain file name.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn rename(&self, from: &str, to: &str) -> Result<(), Error> {
        check_name(from);
        check_name(to);
        self.inner.check()?;
        let renamed = self.inner.directory.rename(from, to);
        renamed.map_err(Error::io(&self.path().join(from), "rename the file"))
    }

    /// Removes a file; handles of it stay valid. Until [`Shelf::sync`] a crash may bring it back.
    ///
    /// # Errors
    /// [`Error::Io`]: nothing changed. [`Error::Poisoned`]; [`Error::Options`] if the shelf is read-only.
    ///
    /// # Panics
    /// If `name` is not a plain file name.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn unlink(&self, name: &str) -> Result<(), Error> {
        check_name(name);
        self.inner.check()?;
        let removed = self.inner.directory.unlink(name);
        removed.map_err(Error::io(&self.path().join(name), "removing the file"))
    }

    /// Makes all names durable as they are: files that were created, renamed and removed.
    ///
    /// # Errors
    /// [`Error::Poisoned`]; [`Error::Options`] if the shelf is read-only.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn sync(&self) -> Result<(), Error> {
        let _turn = lock(&self.inner.turn);
        self.inner.check()?;
        let synced = self.inner.directory.sync_entries();
        synced.map_err(|source| self.inner.poison.fail(self.path(), source))
    }
}

impl ShelfFile {
    /// Where it was when it was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.file.path()
    }

    fn check(&self) -> Result<(), Error> {
        assert!(self.can_write, "a file that was opened to read is written");
        self.shelf.check()
    }

    fn failed(&self, source: Errno) -> Error {
        self.shelf.poison.fail(self.path(), source)
    }

    /// Writes all of `bytes` at `at`; the file grows where it ends earlier. Durable after
    /// [`ShelfFile::data_sync`].
    ///
    /// # Errors
    /// [`Error::NoSpace`]: a part may be written, and the shelf stays healthy. [`Error::Poisoned`].
    ///
    /// # Panics
    /// If the file was opened to read.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn write_at(&self, at: u64, bytes: &[u8]) -> Result<(), Error> {
        self.check()?;
        match self.file.pwrite_all(at, bytes) {
            Err(full @ (Errno::NOSPC | Errno::DQUOT)) => {
                Err(Error::io(self.path(), "write the file")(full))
            }
            Err(source) => Err(self.failed(source)),
            Ok(()) => Ok(()),
        }
    }

    /// Fills `into` with the bytes from `at` on.
    ///
    /// # Errors
    /// [`Error::EndOfFile`]: the file is shorter. [`Error::Io`].
    pub fn read_at(&self, at: u64, into: &mut [u8]) -> Result<(), Error> {
        match self.read_some_at(at, into)? == into.len() {
            true => Ok(()),
            false => Err(Error::EndOfFile {
                path: self.path().into(),
                end: at.saturating_add(into.len() as u64),
            }),
        }
    }

    /// Reads from `at` on until `into` is full or the file ends; returns how many bytes it read.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read_some_at(&self, at: u64, into: &mut [u8]) -> Result<usize, Error> {
        let read = self.file.pread_some(at, into);
        read.map_err(|source| self.file.error("reading the file", source))
    }

    /// Makes every byte durable that was written before, and the length (`fdatasync`).
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    ///
    /// # Panics
    /// If the file was opened to read.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn data_sync(&self) -> Result<(), Error> {
        self.check()?;
        let synced = self.file.data_sync();
        synced.map_err(|source| self.failed(source))
    }

    /// As [`ShelfFile::data_sync`], and everything else about the file (`fsync`), but not its name.
    ///
    /// # Errors
    /// [`Error::Poisoned`].
    ///
    /// # Panics
    /// If the file was opened to read.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn sync(&self) -> Result<(), Error> {
        self.check()?;
        let synced = self.file.sync();
        synced.map_err(|source| self.failed(source))
    }

    /// Bytes of the file.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn len(&self) -> Result<u64, Error> {
        self.file.length()
    }

    /// Whether it has no bytes.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn is_empty(&self) -> Result<bool, Error> {
        Ok(self.len()? == 0)
    }

    /// Cuts the file, or extends it with zeros. Durable after [`ShelfFile::data_sync`]; until then a crash
    /// may bring back what was cut.
    ///
    /// # Errors
    /// [`Error::Io`], [`Error::NoSpace`]: nothing changed. [`Error::Poisoned`].
    ///
    /// # Panics
    /// If the file was opened to read.
    #[cfg_attr(feature = "lab", track_caller)]
    pub fn set_len(&self, bytes: u64) -> Result<(), Error> {
        self.check()?;
        let set = self.file.set_len(bytes);
        set.map_err(Error::io(self.path(), "change the length of the file"))
    }

    /// Takes disk space for the first `bytes` without changing the length of the file. Does nothing where the
    /// file system cannot do that.
    ///
    /// # Errors
    /// [`Error::NoSpace`]: a part may be taken. [`Error::Io`], [`Error::Poisoned`].
    ///
    /// # Panics
    /// If the file was opened to read.
    pub fn reserve(&self, bytes: u64) -> Result<(), Error> {
        self.check()?;
        let reserved = self.file.reserve(bytes);
        reserved.map_err(Error::io(self.path(), "reserve room for the file"))
    }

    /// Asks the system to have a range in memory soon.
    pub fn will_need(&self, at: u64, bytes: u64) {
        self.file.will_need(at, bytes);
    }

    /// Says that reads through this handle come here and there: the system then reads nothing ahead.
    pub fn advise_random(&self) {
        self.file.advise(false);
    }

    /// Says that reads through this handle come in order: the system then reads far ahead.
    pub fn advise_sequential(&self) {
        self.file.advise(true);
    }
}

impl std::fmt::Debug for Shelf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shelf")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}

impl std::fmt::Debug for ShelfFile {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ShelfFile")
            .field("path", &self.path())
            .finish_non_exhaustive()
    }
}
