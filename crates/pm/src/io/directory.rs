//! A directory: which files exist, and which will exist after a crash.
//!
//! Invariant: the creation, removal or renaming of a file survives a crash only once the directory was
//! synced. With feature `lab` a directory may be the lab's [`Disk`], or a folder of it.

use super::File;
#[cfg(feature = "faults")]
use super::faults::{Faults, Naming};
use super::system::SystemFile;
use crate::error::Error;
#[cfg(feature = "lab")]
use crate::lab::Disk;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::fd::{AsFd, BorrowedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A directory of files.
#[derive(Clone, Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// The directory itself, if it was opened: then names lead from there, whatever becomes of the path.
    held: Option<Arc<File>>,
    /// The lab's disk, if it stands in for the directory, and what the names of its files begin with there.
    #[cfg(feature = "lab")]
    disk: Option<(Arc<Disk>, String)>,
}

impl From<&Path> for Directory {
    /// The directory of the system at a path.
    fn from(path: &Path) -> Directory {
        Directory {
            path: path.into(),
            held: None,
            #[cfg(feature = "lab")]
            disk: None,
        }
    }
}

impl Directory {
    /// The lab's disk as a directory; `path` is for messages.
    #[cfg(feature = "lab")]
    pub(crate) fn simulated(disk: &Arc<Disk>, path: &Path) -> Directory {
        Directory {
            path: path.into(),
            held: None,
            disk: Some((Arc::clone(disk), String::new())),
        }
    }

    /// A folder of the lab's disk, if that stands in for this directory.
    #[cfg(feature = "lab")]
    pub(crate) fn folder(&self, path: &Path, name: &str) -> Option<Directory> {
        let (disk, folder) = self.disk.as_ref()?;
        Some(Directory {
            path: path.into(),
            held: None,
            disk: Some((Arc::clone(disk), format!("{folder}{name}/"))),
        })
    }

    /// Whether the lab's disk stands in for it.
    #[cfg(feature = "lab")]
    pub(crate) fn is_simulated(&self) -> bool {
        self.disk.is_some()
    }

    /// Opens the directory itself; a symbolic link to one is refused. Its lock is held until the last copy is
    /// dropped.
    pub(crate) fn hold(path: &Path) -> Result<Directory, Error> {
        let held = File::system(SystemFile::open_directory(path)?);
        Ok(Directory {
            held: Some(Arc::new(held)),
            ..Directory::from(path)
        })
    }

    /// The open directory.
    pub(crate) fn held(&self) -> Option<&File> {
        self.held.as_deref()
    }

    /// Where names lead from, and the name from there: that of a file in the open directory, or its path.
    fn at<'a>(&'a self, name: &'a str, path: &'a Path) -> (BorrowedFd<'a>, &'a Path) {
        match &self.held {
            Some(held) => (held.inner().as_fd(), Path::new(name)),
            None => (CWD, path),
        }
    }

    /// Where it is.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Names of the files, in no order. Names that are not UTF-8 are left out: everdram writes none.
    pub(crate) fn names(&self) -> Result<Vec<String>, Errno> {
        #[cfg(feature = "lab")]
        if let Some((disk, folder)) = &self.disk {
            return Ok(disk.names(folder));
        }
        if let Some(held) = &self.held {
            let mut names = Vec::new();
            for entry in Dir::read_from(held.inner())? {
                let entry = entry?;
                let name = entry.file_name().to_str().map(str::to_owned);
                names.extend(name.ok().filter(|name| name != "." && name != ".."));
            }
            return Ok(names);
        }
        let failed = |error: std::io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.path).map_err(failed)? {
            names.extend(entry.map_err(failed)?.file_name().into_string());
        }
        Ok(names)
    }

    /// Opens a file for reading and writing; creates it if `create` and there is none.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn open(&self, name: &str, create: bool) -> Result<File, Error> {
        let path = self.path.join(name);
        #[cfg(feature = "lab")]
        if let Some((disk, folder)) = &self.disk {
            return match disk.open(&format!("{folder}{name}"), &path, create) {
                Ok(file) => Ok(File::simulated(file)),
                Err(source) => Err(Error::Io {
                    path,
                    what: "opening the file",
                    source,
                }),
            };
        }
        match &self.held {
            None => File::open(&path, create),
            Some(held) => {
                let create = if create {
                    OFlags::CREATE
                } else {
                    OFlags::empty()
                };
                open_in(held, name, &path, OFlags::RDWR | create)
            }
        }
    }

    /// Creates a file; an existing one is refused.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn create(&self, name: &str) -> Result<File, Error> {
        #[cfg(feature = "lab")]
        if let Some((disk, folder)) = &self.disk {
            return match disk.find(&format!("{folder}{name}")) {
                None => self.open(name, true),
                Some(_) => Err(Error::io(&self.path.join(name), "creating the file")(
                    Errno::EXIST,
                )),
            };
        }
        let path = self.path.join(name);
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW;
        let (at, from_there) = self.at(name, &path);
        let mode = Mode::RUSR | Mode::WUSR;
        let call = || rustix::fs::openat(at, from_there, flags | OFlags::CLOEXEC, mode);
        #[cfg(feature = "faults")]
        let call = || self.named(Naming::Create(&path), call);
        let opened = call().map_err(Error::io(&path, "creating the file"))?;
        Ok(File::wrap(opened.into(), &path))
    }

    /// Opens a file for reading only.
    pub(crate) fn open_to_read(&self, name: &str) -> Result<File, Error> {
        #[cfg(feature = "lab")]
        if self.disk.is_some() {
            return self.open(name, false);
        }
        let path = self.path.join(name);
        match &self.held {
            None => File::open_to_read(&path),
            Some(held) => open_in(held, name, &path, OFlags::RDONLY),
        }
    }

    /// Gives a file another name. A file that has it is replaced, at once and whole.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn rename(&self, from: &str, to: &str) -> Result<(), Errno> {
        #[cfg(feature = "lab")]
        if let Some((disk, folder)) = &self.disk {
            return disk.rename(&format!("{folder}{from}"), &format!("{folder}{to}"));
        }
        let (old, new) = (self.path.join(from), self.path.join(to));
        let ((at, from), (to_there, to)) = (self.at(from, &old), self.at(to, &new));
        let call = || rustix::fs::renameat(at, from, to_there, to);
        #[cfg(feature = "faults")]
        let call = || self.named(Naming::Rename(&old, &new), call);
        call()
    }

    /// Removes a file from the directory.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn unlink(&self, name: &str) -> Result<(), Errno> {
        #[cfg(feature = "lab")]
        if let Some((disk, folder)) = &self.disk {
            return disk.unlink(&format!("{folder}{name}"));
        }
        let path = self.path.join(name);
        let (at, name) = self.at(name, &path);
        let call = || rustix::fs::unlinkat(at, name, AtFlags::empty());
        #[cfg(feature = "faults")]
        let call = || self.named(Naming::Unlink(&path), call);
        call()
    }

    /// Tells the directory's faults of a change of names.
    #[cfg(feature = "faults")]
    fn named<T>(
        &self,
        naming: Naming<'_>,
        call: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let faults = self.held.as_ref().and(Faults::of_directory(&self.path));
        match faults {
            Some(faults) => faults.name(naming, call),
            None => call(),
        }
    }

    /// Makes the entries of the directory durable.
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn sync(&self) -> Result<(), Error> {
        let synced = self.sync_entries();
        synced.map_err(|source| Error::Io {
            path: self.path.clone(),
            what: "syncing the directory",
            source,
        })
    }

    /// As [`Directory::sync`].
    #[cfg_attr(feature = "lab", track_caller)]
    pub(crate) fn sync_entries(&self) -> Result<(), Errno> {
        #[cfg(feature = "lab")]
        if let Some((disk, folder)) = &self.disk {
            return disk.sync_directory(folder);
        }
        #[cfg(feature = "faults")]
        if let Some(faults) = Faults::of_directory(&self.path) {
            faults.sync_directory(self.held.is_some())?;
        }
        if let Some(held) = &self.held {
            return rustix::fs::fsync(held.inner());
        }
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(&self.path, flags, Mode::empty()).and_then(rustix::fs::fsync)
    }
}

/// Opens a regular file of an open directory.
fn open_in(directory: &File, name: &str, path: &Path, flags: OFlags) -> Result<File, Error> {
    let file = SystemFile::open_in(directory.inner().as_fd(), name, path, flags)?;
    let stat = rustix::fs::fstat(file.inner()).map_err(Error::io(path, "looking at the file"))?;
    if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
        return Err(Error::Options {
            path: path.into(),
            what: "this is no regular file; remove it, or restore the directory".into(),
        });
    }
    Ok(File::system(file))
}
