//! A disk in memory: the files as a running process sees them, with a tap on every call that decides what a
//! crash can leave of them.
//!
//! A [`Disk`] holds files as the page cache shows them. It does not hold the medium's contents: the tap sees
//! each write and each sync, and keeps those by its own rules. As on Linux, the data of a failed sync stays
//! visible to the process.
//!
//! Invariants:
//! - The tap is told of every call before it takes effect, and can prevent it.
//! - A [`FileId`] names one file for the life of the disk. A file that is unlinked and created again under
//!   its name is another file.
//! - The tap is called without a lock of the disk, so it may read the disk.

use super::tap::Site;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::panic::Location;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// One file of a disk. The initial files have 0, 1 and so on, by name; later ones continue from there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FileId(pub u32);

/// A call on a disk that decides what a crash can leave.
#[derive(Clone, Copy, Debug)]
pub enum DiskEvent<'a> {
    /// An empty file appears in the directory. Cannot be skipped: the opener needs a file.
    Create {
        /// The file.
        file: FileId,
        /// Its name.
        name: &'a str,
    },
    /// Bytes are written; the file grows where it ends earlier.
    Write {
        /// The file.
        file: FileId,
        /// Offset in the file.
        at: u64,
        /// The bytes.
        bytes: &'a [u8],
    },
    /// The file is truncated, or extended with zeros.
    SetLen {
        /// The file.
        file: FileId,
        /// Its new length.
        bytes: u64,
    },
    /// Space is allocated; the file grows, with zeros, where it ends earlier.
    Allocate {
        /// The file.
        file: FileId,
        /// Offset in the file.
        at: u64,
        /// Bytes.
        bytes: u64,
    },
    /// Space for the first bytes is taken; the length stays, and a change of the length gives back what is
    /// behind it.
    Reserve {
        /// The file.
        file: FileId,
        /// Bytes.
        bytes: u64,
    },
    /// Everything written to the file is made durable.
    Sync {
        /// The file.
        file: FileId,
        /// `fdatasync`, which covers the length too, instead of `fsync`.
        data_only: bool,
    },
    /// The file disappears from the directory. Its open handles stay valid.
    Unlink {
        /// The file.
        file: FileId,
    },
    /// The file gets another name of the same folder. The file that had it disappears from there, as by
    /// [`DiskEvent::Unlink`].
    Rename {
        /// The file.
        file: FileId,
        /// Its name from here on.
        name: &'a str,
    },
    /// The entries of a folder are made durable.
    SyncDirectory {
        /// What names in the folder begin with, and no names in others; see [`Disk`].
        folder: &'a str,
    },
}

/// What happens to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It takes effect.
    Go,
    /// It does nothing, and reports success: the program runs as without the call.
    Skip,
    /// It does nothing, and fails.
    Fail(Errno),
    /// The first `n` bytes of a write take effect, and it fails; any other call does nothing, and fails.
    FailAfter(u64, Errno),
}

/// Is told of every call on a disk, before it takes effect, and decides what happens to it. Calls can come
/// from inside an event of a [`Tap`](super::Tap): a fence that finds the log full writes a checkpoint.
pub trait DiskTap: Send + Sync {
    /// A call is about to happen.
    fn disk(&self, site: Site, event: DiskEvent<'_>) -> Answer;
}

/// A disk in memory, of one directory, which may have folders. The name of a file in a folder is the
/// folder's, a slash, and its own; folders need not be made. See the module text.
pub struct Disk {
    /// By [`FileId`].
    files: Mutex<Vec<Content>>,
    tap: Option<Arc<dyn DiskTap>>,
}

struct Content {
    name: String,
    bytes: Vec<u8>,
    /// Whether the directory has the file.
    linked: bool,
}

impl std::fmt::Debug for Disk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Disk").finish_non_exhaustive()
    }
}

impl Disk {
    /// A disk with these files, all of them durable.
    #[must_use]
    pub fn new(files: BTreeMap<String, Vec<u8>>, tap: Option<Arc<dyn DiskTap>>) -> Disk {
        let content = |(name, bytes)| Content {
            name,
            bytes,
            linked: true,
        };
        Disk {
            files: Mutex::new(files.into_iter().map(content).collect()),
            tap,
        }
    }

    /// The files in the directory as the process sees them, and as a crash of the process alone leaves them.
    #[must_use]
    pub fn files(&self) -> BTreeMap<String, Vec<u8>> {
        let files = self.files.lock();
        let linked = files.iter().filter(|content| content.linked);
        linked
            .map(|content| (content.name.clone(), content.bytes.clone()))
            .collect()
    }

    /// The name of a file, or the last one that it had.
    ///
    /// # Panics
    /// If the disk never had such a file.
    #[must_use]
    pub fn name(&self, file: FileId) -> String {
        self.with(file, |content| content.name.clone())
    }

    /// Names of the files in a folder, without the folder's. The folder of the directory itself is "".
    pub(crate) fn names(&self, folder: &str) -> Vec<String> {
        let files = self.files.lock();
        let linked = files.iter().filter(|content| content.linked);
        let inside = linked.filter_map(|content| content.name.strip_prefix(folder));
        let names = inside.filter(|name| !name.contains('/'));
        names.map(str::to_owned).collect()
    }

    /// Opens a file; creates it if `create` and there is none. `path` is for messages.
    #[track_caller]
    pub(crate) fn open(
        self: &Arc<Self>,
        name: &str,
        path: &Path,
        create: bool,
    ) -> Result<DiskFile, Errno> {
        let id = match self.find(name) {
            Some(id) => id,
            None if create => self.create(name)?,
            None => return Err(Errno::NOENT),
        };
        Ok(DiskFile {
            disk: Arc::clone(self),
            id,
            path: path.into(),
        })
    }

    /// The file of this name.
    pub(crate) fn find(&self, name: &str) -> Option<FileId> {
        let files = self.files.lock();
        let mut ids = (0..).map(FileId).zip(files.iter());
        ids.find(|(_, content)| content.linked && content.name == name)
            .map(|(id, _)| id)
    }

    /// Passes the bytes of a file to `look`.
    pub(crate) fn read<T>(&self, name: &str, look: impl FnOnce(&[u8]) -> T) -> Result<T, Errno> {
        let file = self.find(name).ok_or(Errno::NOENT)?;
        Ok(self.with(file, |content| look(&content.bytes)))
    }

    #[track_caller]
    fn create(&self, name: &str) -> Result<FileId, Errno> {
        let file = {
            let mut files = self.files.lock();
            files.push(Content {
                name: name.into(),
                bytes: Vec::new(),
                linked: false,
            });
            FileId(files.len() as u32 - 1)
        };
        self.ask(DiskEvent::Create { file, name })?;
        self.with(file, |content| content.linked = true);
        Ok(file)
    }

    /// Removes a file from the directory.
    #[track_caller]
    pub(crate) fn unlink(&self, name: &str) -> Result<(), Errno> {
        let file = self.find(name).ok_or(Errno::NOENT)?;
        if self.ask(DiskEvent::Unlink { file })? {
            self.with(file, |content| content.linked = false);
        }
        Ok(())
    }

    /// Gives a file another name, and takes that from the file that has it.
    #[track_caller]
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        let file = self.find(from).ok_or(Errno::NOENT)?;
        if from == to || !self.ask(DiskEvent::Rename { file, name: to })? {
            return Ok(());
        }
        let mut files = self.files.lock();
        for content in files.iter_mut().filter(|content| content.name == to) {
            content.linked = false;
        }
        files[file.0 as usize].name = to.into();
        Ok(())
    }

    /// Makes the entries of a folder durable.
    #[track_caller]
    pub(crate) fn sync_directory(&self, folder: &str) -> Result<(), Errno> {
        self.ask(DiskEvent::SyncDirectory { folder }).map(drop)
    }

    /// Asks the tap; returns whether the call takes effect.
    #[track_caller]
    fn ask(&self, event: DiskEvent<'_>) -> Result<bool, Errno> {
        match self.answer(event) {
            Answer::Go => Ok(true),
            Answer::Skip => Ok(false),
            Answer::Fail(errno) | Answer::FailAfter(_, errno) => Err(errno),
        }
    }

    #[track_caller]
    fn answer(&self, event: DiskEvent<'_>) -> Answer {
        match &self.tap {
            None => Answer::Go,
            Some(tap) => tap.disk(Location::caller(), event),
        }
    }

    fn with<T>(&self, file: FileId, what: impl FnOnce(&mut Content) -> T) -> T {
        what(&mut self.files.lock()[file.0 as usize])
    }
}

/// An open file of a disk. The methods are those of [`File`](crate::io::File).
#[derive(Debug)]
pub(crate) struct DiskFile {
    disk: Arc<Disk>,
    id: FileId,
    path: PathBuf,
}

impl DiskFile {
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn len(&self) -> Result<u64, Errno> {
        Ok(self
            .disk
            .with(self.id, |content| content.bytes.len() as u64))
    }

    pub(crate) fn pread_exact(&self, at: u64, into: &mut [u8]) -> Result<(), Errno> {
        self.disk.with(self.id, |content| {
            let rest = content.bytes.get(at as usize..).unwrap_or_default();
            let bytes = rest.get(..into.len()).ok_or(Errno::NODATA)?;
            into.copy_from_slice(bytes);
            Ok(())
        })
    }

    pub(crate) fn pread_some(&self, at: u64, into: &mut [u8]) -> Result<usize, Errno> {
        self.disk.with(self.id, |content| {
            let rest = content.bytes.get(at as usize..).unwrap_or_default();
            let count = rest.len().min(into.len());
            into[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        })
    }

    #[track_caller]
    pub(crate) fn pwrite_all(&self, at: u64, bytes: &[u8]) -> Result<(), Errno> {
        let file = self.id;
        let (count, said) = match self.disk.answer(DiskEvent::Write { file, at, bytes }) {
            Answer::Go => (bytes.len(), Ok(())),
            Answer::Skip => (0, Ok(())),
            Answer::Fail(errno) => (0, Err(errno)),
            Answer::FailAfter(count, errno) => (count as usize, Err(errno)),
        };
        if count > 0 {
            let (from, end) = (at as usize, at as usize + count);
            self.disk.with(file, |content| {
                content.grow(end);
                content.bytes[from..end].copy_from_slice(&bytes[..count]);
            });
        }
        said
    }

    #[track_caller]
    pub(crate) fn data_sync(&self) -> Result<(), Errno> {
        let (file, data_only) = (self.id, true);
        self.disk.ask(DiskEvent::Sync { file, data_only }).map(drop)
    }

    #[track_caller]
    pub(crate) fn sync(&self) -> Result<(), Errno> {
        let (file, data_only) = (self.id, false);
        self.disk.ask(DiskEvent::Sync { file, data_only }).map(drop)
    }

    #[track_caller]
    pub(crate) fn allocate(&self, at: u64, bytes: u64) -> Result<(), Errno> {
        let file = self.id;
        if self.disk.ask(DiskEvent::Allocate { file, at, bytes })? {
            let end = (at + bytes) as usize;
            self.disk.with(file, |content| content.grow(end));
        }
        Ok(())
    }

    #[track_caller]
    pub(crate) fn reserve(&self, bytes: u64) -> Result<(), Errno> {
        let file = self.id;
        self.disk.ask(DiskEvent::Reserve { file, bytes }).map(drop)
    }

    #[track_caller]
    pub(crate) fn set_len(&self, bytes: u64) -> Result<(), Errno> {
        let file = self.id;
        if self.disk.ask(DiskEvent::SetLen { file, bytes })? {
            let length = bytes as usize;
            self.disk
                .with(file, |content| content.bytes.resize(length, 0));
        }
        Ok(())
    }
}

impl Content {
    /// Extends the file with zeros to at least `end`.
    fn grow(&mut self, end: usize) {
        if self.bytes.len() < end {
            self.bytes.resize(end, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Full;

    impl DiskTap for Full {
        fn disk(&self, _site: Site, event: DiskEvent<'_>) -> Answer {
            match event {
                DiskEvent::Write { .. } => Answer::FailAfter(3, Errno::NOSPC),
                DiskEvent::Allocate { .. } => Answer::FailAfter(3, Errno::NOSPC),
                _ => Answer::Go,
            }
        }
    }

    #[test]
    fn a_write_may_fail_half_way() {
        let disk = Arc::new(Disk::new(BTreeMap::new(), Some(Arc::new(Full))));
        let file = disk.open("file", Path::new("file"), true).unwrap();
        assert_eq!(file.pwrite_all(1, b"abcdef"), Err(Errno::NOSPC));
        assert_eq!(file.allocate(0, 100), Err(Errno::NOSPC));
        assert_eq!(disk.files()["file"], b"\0abc");
    }
}
